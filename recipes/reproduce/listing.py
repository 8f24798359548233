"""Every figure and table of the paper: which experiment makes it, whether it agrees, and why it differs."""

from __future__ import annotations

import json
from pathlib import Path

from .result import Table

# In the paper's order: what it shows, and the experiments that make it.
EXHIBITS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Figure 1": ("the problem setting", ("problem-setting",)),
    "Figure 2": ("noise functions and their errors, K = 11", ("simulation",)),
    "Figure 3": ("the linear program of randomized response", ("randomized-response",)),
    "Figure 4": ("the feasible region under pure privacy", ("feasible-regions",)),
    "Figure 5": ("the feasible region with Delta > 0", ("feasible-regions",)),
    "Figure 6": ("noise functions under general composition, K = 35", ("composition",)),
    "Figure 7": ("noise functions under pure privacy, K = 11", ("pure-11",)),
    "Figure 8": ("noise functions under pure privacy, K = 101", ("pure-101",)),
    "Figure 9": ("two priors under three distributions", ("priors",)),
    "Figure 10": ("lambda against sigma^2", ("gaussian",)),
    "Table 1": ("accuracy of labels, m = 3", ("labels-fashion-mnist", "labels-mnist")),
    "Table 2": ("privacy loss, m = 3", ("losses",)),
    "Table 3": ("parameters of general composition", ("composition",)),
    "Table 4": ("parameters of the RDP bound", ("gaussian",)),
    "Table 5": ("privacy loss, m = 1", ("losses",)),
    "Table 6": ("accuracy of labels, m = 1", ("labels-fashion-mnist", "labels-mnist")),
    "Table 7": ("privacy loss, m = 5", ("losses",)),
    "Table 8": ("accuracy of labels, m = 5", ("labels-fashion-mnist", "labels-mnist")),
    "Table 9": ("privacy loss, m = 7", ("losses",)),
    "Table 10": ("accuracy of labels, m = 7", ("labels-fashion-mnist", "labels-mnist")),
}


def listing(folder: Path) -> Table:
    """The state of every exhibit, from the results in ``folder``."""
    rows = []
    for exhibit, (shows, makers) in EXHIBITS.items():
        for maker in makers:
            file = folder / f"{maker}.json"
            stored = json.loads(file.read_text()).get("exhibits", []) if file.exists() else None
            found = next((one for one in stored or [] if one["name"] == exhibit), None)
            if found is None:
                made, agrees, differs = "no", "", f"not run: `python -m recipes.reproduce {maker}`"
            else:
                made = "yes" if found["made"] else "no"
                agrees, differs = found["agrees"], found["differs"]
            rows.append((exhibit, shows, f"`{maker}`", made, agrees, differs))
    return Table(
        caption="The paper has ten figures and ten tables. What each of them became here:",
        columns=("paper", "shows", "by", "made", "agrees", "differs because"),
        rows=tuple(rows),
    )
