"""What an experiment comes to: tables, notes and a figure, as JSON, Markdown, PNG and SVG."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..experiment import write_whole


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
    head = "# The paper's figures and tables, reproduced\n\nMade by `python -m recipes.reproduce`; `make reproduce`.\n"
    write_whole(folder / "report.md", "\n".join([head, *sections]))
    return folder / "report.md"
