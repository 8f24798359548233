"""Documentation: what it shows as Python runs, what it shows as commands exists, and no public name is left out."""

from __future__ import annotations

import contextlib
import doctest
import functools
import io
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

import darrm_torch

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "recipes").glob("*.md"), *ROOT.glob("*.md")])
PAGES = [page for page in PAGES if "_build" not in page.parts]
SLOW = ("docs/tutorials/", "docs/theory/composition.md")  # these train something, or compose for seconds
BLOCK = re.compile(r"^```(?:console|bash|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`((?:make|darrm|pip install|python -m) [^`]+)`(?!`)")

DARRM = (sys.executable, "-m", "darrm_torch")  # the command, also where it is not installed


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def pages_with(pattern: str) -> list[Any]:
    found = [page for page in PAGES if re.search(pattern, page.read_text(encoding="utf-8"), re.MULTILINE)]
    return [
        pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] if name_of(page).startswith(SLOW) else [])
        for page in found
    ]


@pytest.mark.parametrize("page", pages_with(r"^ *```python"))
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page, in order, in an empty folder; what a doctest prints is compared."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    document = Sybil(parsers=[PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS)], pattern="*").parse(page)
    if page.name == "README.md" and page.parent == ROOT:
        document.namespace.update(two_opacus_models())  # which README says that the reader has
    for example in document.examples():
        example.evaluate()


def two_opacus_models() -> dict[str, Any]:
    """``models`` and ``engines`` as Opacus leaves them, ``images`` and a ``backbone``."""
    import torch

    from tests.labels.helpers import train_with_opacus

    _, models, engines = zip(*(train_with_opacus(seed) for seed in range(2)), strict=True)
    return {
        "models": list(models),
        "engines": list(engines),
        "images": torch.randn(120, 4),
        "backbone": torch.nn.Linear(4, 2),
    }


def lines_of_blocks(text: str) -> list[str]:
    return [line for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]


def commands() -> list[Any]:
    found = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for line in lines_of_blocks(text) + INLINE.findall(text):
            if words := shlex.split(line.removeprefix("$ "), comments=True):
                found[f"{name_of(page)}: {' '.join(words)}"] = words
    return [pytest.param(words, id=name) for name, words in found.items()]


@functools.cache
def help_of(*command: str) -> str:
    """What ``python -m`` prints with these words and --help, in this process."""
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(text), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(sys, "argv", [*command, "--help"])
        try:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if ended.code:
                raise
    return text.getvalue()


@pytest.mark.parametrize("words", commands())
def test_command_exists(words: list[str]) -> None:
    """A target of the Makefile, an extra of the package, or a program whose --help names every option that is used."""
    program, *arguments = words
    if program == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert {word for word in arguments if "=" not in word} <= targets
        assert {word.split("=")[0] for word in arguments if "=" in word} <= {"DATA", "ARGS"}
        return
    if program == "pip":
        extras = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
        assert set(",".join(re.findall(r"\[(.*?)\]", " ".join(arguments))).split(",")) - {""} <= extras
        return
    if program == "python":
        module, options = arguments[1], arguments[2:]
        assert arguments[0] == "-m"
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), f"no module {module}"
        command = (module,)
    elif program == "darrm":
        command, options = ("darrm_torch", arguments[0]), arguments[1:]
        assert help_of(*command)
    elif program == "dask":
        pytest.importorskip("distributed")
        command, options = ("dask", arguments[0]), arguments[1:]
    else:
        assert program == "torchrun", f"no check is known for {program}"
        command, options = ("torch.distributed.run",), arguments
    for option in options:
        if option.startswith("--"):
            name = re.escape(option.split("=")[0])
            assert re.search(rf"(?<![\w-]){name}(?![\w-])", help_of(*command)), f"no option {option}"


@pytest.mark.slow
def test_plans_and_proofs_run(tmp_path: Path) -> None:
    """On the page about the command line, what needs no teachers does what the page says."""
    lines = lines_of_blocks((ROOT / "docs" / "command-line.md").read_text(encoding="utf-8"))
    runnable = [words[1:] for words in map(shlex.split, lines) if words[1] in ("plan", "noise", "verify")]
    assert len(runnable) == 8
    for words in runnable:
        subprocess.run([*DARRM, *words], check=True, cwd=tmp_path, capture_output=True)


def test_every_export_has_a_place() -> None:
    """Each module that exports something, or its wing, is on a page of the reference, once."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.rst"))
    stub = Path(darrm_torch.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    homes = re.findall(r"^from \.(\w[\w.]*) import", stub, re.MULTILINE)
    places = re.findall(r"^\.\. exports:: ([\w.]+)$", text, re.MULTILINE)
    covered = {home: [place for place in places if f"{home}.".startswith(f"{place}.")] for home in homes}
    assert {home: found for home, found in covered.items() if len(found) != 1} == {}
    assert sorted(places) == sorted({place for found in covered.values() for place in found})


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs" / "api").glob("*.rst"))], ids=name_of)
def test_lines_are_at_most_120_columns(page: Path) -> None:
    """Printed output in a fenced block may be longer."""
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), page.read_text("utf-8"), flags=re.M | re.S)
    lines = text.splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > 120] == []
