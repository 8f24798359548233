"""The house: who may import whom, and what stays quick to import. `docs/architecture.md` is the one list of modules."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import darrm_torch

PACKAGE = Path(darrm_torch.__file__).parent
ARCHITECTURE = PACKAGE.parent / "docs" / "architecture.md"
LISTED = re.findall(r"^\| `([\w/*]+)` \|", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)


def modules_of(row: str) -> list[str]:
    """The modules that a row of the list stands for: "noise/priors" is darrm_torch.noise.priors; "mechanisms/*" stands
    for the modules of that wing without a row of their own.
    """
    names = [path.relative_to(PACKAGE).with_suffix("").as_posix() for path in sorted(PACKAGE.glob(f"{row}.py"))]
    return [name for name in names if name == row or (name not in LISTED and not name.endswith("__init__"))]


# Each module may import only from those before it.
ORDER = [name for row in LISTED for name in modules_of(row)]
LIGHT = ORDER[: next(place for place, name in enumerate(ORDER) if name.startswith("teachers/"))]


def test_order_names_every_module() -> None:
    modules = {path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py")}
    assert sorted(ORDER) == sorted(name for name in modules if not name.endswith("__init__"))


def imported_modules(path: Path) -> set[str]:
    """The modules of the package that a file imports from, written as in ``ORDER``; a wing stands for all it has."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            home = path.parents[node.level - 1]
            target = home.joinpath(*(node.module or "").split("."))
            for alias in node.names:
                if (target / f"{alias.name}.py").exists() or (target / alias.name).is_dir():
                    found.add(target / alias.name)
                elif target != PACKAGE:  # __version__ is the package's own
                    found.add(target)
    return {target.relative_to(PACKAGE).as_posix() for target in found}


@pytest.mark.parametrize("name", ORDER)
def test_imports_only_from_above(name: str) -> None:
    row = next(row for row in LISTED if name in modules_of(row))
    above = {module for earlier in LISTED[: LISTED.index(row)] for module in modules_of(earlier)}
    # A whole wing may be imported from once all of its modules stand above.
    wings = {module.split("/")[0] for module in ORDER if "/" in module}
    above |= {wing for wing in wings if all(module in above for module in ORDER if module.startswith(f"{wing}/"))}
    assert imported_modules(PACKAGE / f"{name}.py") <= above


def test_solver_side_never_imports_torch() -> None:
    """Each module in its turn, so that the first that does is named."""
    code = f"""
import importlib, sys
for name in {LIGHT!r}:
    importlib.import_module("darrm_torch." + name.replace("/", "."))
    assert not {{"torch", "opacus", "lightning"}} & set(sys.modules), name
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_every_public_name_is_there() -> None:
    assert {name for name in dir(darrm_torch) if not name.startswith("__")} == {*darrm_torch.__all__} - {"__version__"}
    for name in darrm_torch.__all__:
        assert getattr(darrm_torch, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        darrm_torch.nothing  # noqa: B018


def test_no_module_is_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert not {path.name: length for path, length in lengths.items() if length > 450}


WITHOUT_A_FILE = {  # module: where its tests are
    "__main__": "cli/test_main",
    "arrays": "",  # names of types alone
    "mechanisms/base": "mechanisms/test_conformance",
    "privacy/routes": "privacy/test_totals",
    "teachers/accountants": "teachers/test_reading",
    "teachers/findings": "teachers/test_reading",
    "teachers/workers": "teachers/test_training",
}


def test_each_module_has_its_test_file() -> None:
    """`noise/grid` is tested by `tests/noise/test_grid.py`; mechanisms without a row by the tests of all of them."""
    tests = PACKAGE.parent / "tests"
    listed = [name for name in ORDER if name in LISTED]
    without = [name for name in listed if not (tests / Path(name).parent / f"test_{Path(name).name}.py").is_file()]
    assert sorted(without) == sorted(WITHOUT_A_FILE)
    for place in WITHOUT_A_FILE.values():
        assert not place or (tests / f"{place}.py").is_file()
