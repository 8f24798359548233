"""The result of an experiment: tables, notes and a figure, as JSON, Markdown, PNG and SVG."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from darrm_torch.files import make_private_folder

from ..experiment import write_whole

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
class Exhibit:
    """What became of one figure or table of the paper.

    Attributes:
        name: "Figure 3", as the paper counts.
        agrees: what was compared with the paper, and how close it is.
        differs: what differs, and why; empty if nothing does.
        made: whether it was made at all.
    """

    name: str
    agrees: str = ""
    differs: str = ""
    made: bool = True


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
        exhibits: the figures and tables of the paper that it makes.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    data: Any = None
    draw: Callable[[Path], None] | None = None
    exhibits: tuple[Exhibit, ...] = ()

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
        make_private_folder(folder)
        plain = {
            "title": self.title,
            "exhibits": [asdict(exhibit) for exhibit in self.exhibits],
            "tables": [asdict(table) for table in self.tables],
            "notes": list(self.notes),
        }
        write_whole(folder / f"{self.name}.json", json.dumps(plain | {"data": self.data}, indent=1))
        write_whole(folder / f"{self.name}.md", self.markdown())
        if self.draw:
            self.draw(folder / self.name)


def write_report(folder: Path, names: Sequence[str], listing: Table) -> Path:
    """Write one report of all experiments in ``names`` whose results are in ``folder``; ``listing`` comes first."""
    sections = [file.read_text() for name in names if (file := folder / f"{name}.md").exists()]
    sections.insert(0, f"## The paper, figure by figure\n\n{listing.markdown()}\n")
    write_whole(folder / "report.md", "\n".join([HEAD, *sections]))
    return folder / "report.md"
