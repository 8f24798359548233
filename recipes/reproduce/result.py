"""The result of an experiment: tables, notes and a figure, as JSON, Markdown, PNG and SVG."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..experiment import write_text

HEAD = """# The paper's figures and tables, reproduced

Made by `python -m recipes.reproduce`; `make reproduce`. The paper: Jiang, Zhang, Joshi, "Optimized Tradeoffs for
Private Prediction with Majority Ensembling", TMLR 2024.

K teachers, each (epsilon, Delta)-DP as a trained model, vote 0 or 1. When l of them vote 1, the label is their majority
with probability gamma(l), otherwise a fair coin. One label may cost as much as m teachers, (m epsilon, m Delta), or as
stated. Epsilon is in nats. The noise functions gamma are:

- gamma_opt: the best one that keeps this guarantee;
- gamma_Sub: the majority of m teachers drawn at random; gamma_DSub: of 2m - 1, for pure guarantees;
- gamma_const: the same for every l (randomized response).

GNMax instead adds Gaussian noise to the votes of teachers that are not private.
"""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text and numbers under one caption; floats are shown with ``digits`` decimals."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    digits: int = 4

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [self.caption, "", "| " + " | ".join(self.columns) + " |", "|" + "---|" * len(self.columns)]
        lines += ["| " + " | ".join(map(self._cell, row)) + " |" for row in self.rows]
        return "\n".join(lines)

    def _cell(self, value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        return f"{value:.{self.digits}f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one experiment.

    Attributes:
        name: its name on the command line and of its files.
        title: what it shows, and which of the paper's figures or tables it reproduces.
        tables: in reading order.
        notes: the meaning of the numbers; where they differ from the paper and why.
        data: the data behind the figure, ready for JSON.
        draw: draws the figure, given a file name without its ending; None: there is no figure.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    data: Any = None
    draw: Callable[[Path], None] | None = None

    def markdown(self) -> str:
        """The experiment's section of the report."""
        parts = [f"## {self.title}", f"`python -m recipes.reproduce {self.name}`"]
        if self.draw:
            parts.append(f"![{self.title}]({self.name}.png)")
        parts += [table.markdown() for table in self.tables]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> None:
        """Write ``name``.json, .md and, if there is a figure, .png and .svg to ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        plain = {"title": self.title, "tables": [asdict(table) for table in self.tables], "notes": list(self.notes)}
        write_text(folder / f"{self.name}.json", json.dumps(plain | {"data": self.data}, indent=1))
        write_text(folder / f"{self.name}.md", self.markdown())
        if self.draw:
            self.draw(folder / self.name)


def write_report(folder: Path, names: Sequence[str]) -> Path:
    """Write one report of all experiments in ``names`` whose results are in ``folder``."""
    sections = [file.read_text() for name in names if (file := folder / f"{name}.md").exists()]
    write_text(folder / "report.md", "\n".join([HEAD, *sections]))
    return folder / "report.md"
