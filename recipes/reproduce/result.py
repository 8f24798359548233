"""What an experiment comes to: tables, notes and a figure, as JSON, Markdown, PNG and SVG."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..experiment import write_whole

HEAD = """# The paper's figures and tables, reproduced

Made by `python -m recipes.reproduce`; `make reproduce`. The paper: Jiang, Zhang, Joshi, "Optimized Tradeoffs for
Private Prediction with Majority Ensembling", TMLR 2024.

K teachers, each (epsilon, Delta)-DP as a trained model, vote 0 or 1. A label is their majority with probability
gamma(l) when l of them vote 1, otherwise a fair coin. It may cost what m teachers cost, (m epsilon, m Delta) or as
stated. Epsilons are in nats. Which gamma:

- gamma_opt: the best that keeps this guarantee;
- gamma_Sub: the majority of m teachers drawn at random; gamma_DSub: of 2m - 1, for pure guarantees;
- gamma_const: the same for every l (randomized response).

GNMax instead adds Gaussian noise to the votes of teachers without privacy of their own.
"""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of words and numbers under one caption; numbers are shown with ``digits`` digits after the point."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    digits: int = 4

    def markdown(self) -> str:
        """As Markdown."""
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
    """One experiment's outcome.

    Attributes:
        name: of its files and on the command line.
        title: what it shows, and which of the paper's figures or tables that is.
        tables: in the order in which they are read.
        notes: where it differs from the paper and why; what the numbers mean.
        data: everything a figure is drawn from, ready for JSON.
        draw: draws the figure into a folder, given a file name without its ending; None: there is no figure.
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
        """Leave ``name``.json, .md and, if there is a figure, .png and .svg in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        plain = {"title": self.title, "tables": [asdict(table) for table in self.tables], "notes": list(self.notes)}
        write_whole(folder / f"{self.name}.json", json.dumps(plain | {"data": self.data}, indent=1))
        write_whole(folder / f"{self.name}.md", self.markdown())
        if self.draw:
            self.draw(folder / self.name)


def write_report(folder: Path, names: Sequence[str]) -> Path:
    """One report of all experiments in ``names`` that ``folder`` holds."""
    sections = [file.read_text() for name in names if (file := folder / f"{name}.md").exists()]
    write_whole(folder / "report.md", "\n".join([HEAD, *sections]))
    return folder / "report.md"
