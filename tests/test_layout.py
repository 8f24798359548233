"""The house: who may import whom, and what stays quick to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import darrm_torch

PACKAGE = Path(darrm_torch.__file__).parent
# Each module may import only from those before it.
ORDER = [
    "errors", "guarantees", "composition", "regions", "priors", "worst_case", "certificate", "noise", "program",
    "store", "plurality", "mechanisms", "totals", "candidates", "strategies", "planner", "ledger", "workers", "opacus",
    "teachers", "stacking", "ensemble", "distributed", "lightning", "plots", "cli", "__main__",
]  # fmt: skip
LIGHT = ORDER[: ORDER.index("opacus")]


def modules_of(name: str) -> list[Path]:
    folder = PACKAGE / name
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{name}.py"]


def test_order_names_every_module() -> None:
    found = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert found - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_imports_only_from_above(name: str) -> None:
    above = set(ORDER[: ORDER.index(name)])
    for path in modules_of(name):
        depth = len(path.relative_to(PACKAGE).parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == depth:
                targets = {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
                targets -= {"__version__"}  # of the package itself
                assert targets <= above, f"{path.name} imports {targets - above}"


def test_solver_side_never_imports_torch() -> None:
    """Each module in its turn, so that the first that does is named."""
    code = f"""
import importlib, sys
for name in {LIGHT!r}:
    importlib.import_module("darrm_torch." + name)
    assert not {{"torch", "opacus", "lightning"}} & set(sys.modules), name
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (told.returncode, told.stderr) == (0, "")


def test_every_public_name_is_there() -> None:
    assert {name for name in dir(darrm_torch) if not name.startswith("__")} == {*darrm_torch.__all__} - {"__version__"}
    for name in darrm_torch.__all__:
        assert getattr(darrm_torch, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        darrm_torch.nothing  # noqa: B018
