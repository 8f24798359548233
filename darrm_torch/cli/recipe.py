"""``darrm demo`` and ``darrm reproduce``: recipes of the source tree, with their own arguments."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from .parser import UsageError, one_line
from .showing import print_json

__all__ = ["DEMO", "REPRODUCE", "Recipe"]


class _Prefixed:
    """Errors of a recipe, as the command says them."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> Any:
        return self._stream.write(re.sub(r"\A(?=error: |stopped)", "darrm: ", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A command that runs a recipe.

    Attributes:
        summary: what it does.
        example: a command line, as the help shows it.
        module: the recipe.
        option: its option for the folder of results, and ``folder``, what that is unless it is given.
        results: the files of results in it; none: every JSON file.
    """

    summary: str
    example: str
    module: str
    option: str
    folder: str
    results: tuple[str, ...] = ()

    def run(self, arguments: list[str]) -> int:
        """Run it with its own arguments; with --json its results instead of its tables."""
        root = next(
            (place for place in (Path.cwd(), Path(__file__).parents[2]) if (place / "recipes" / "reproduce").is_dir()),
            None,
        )
        if {"-h", "--help"} & set(arguments):
            print(f"{self.summary}\n\nexample:\n  {self.example}\n\n--json prints the results as JSON.", end=" ")
            print("The rest is the recipe's own:\n")
        if root is None:
            raise UsageError(
                f"{self.module} is in the source tree, which is not part of an installation: run it in a clone of the "
                "repository"
            )
        sys.path.insert(0, str(root))
        errors = _Prefixed(sys.stderr)
        recipe = importlib.import_module(self.module)
        run, asked = recipe.main, [argument for argument in arguments if argument != "--json"]
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                names = getattr(recipe.read_arguments(asked), "names", ())
            except SystemExit as stop:
                if stop.code:
                    raise UsageError(one_line(said.getvalue().rpartition("error: ")[2])) from None
                return 0
        for unknown in names:
            if unknown not in recipe.NAMES:
                raise InvalidArgument("name", f"one of {', '.join(recipe.NAMES)}", unknown)
        if "--json" not in arguments:
            with contextlib.redirect_stderr(errors):
                return int(run(arguments))
        folder = self.folder
        if self.option in asked[:-1]:
            folder = asked[asked.index(self.option) + 1]
        else:
            asked += [self.option, folder]
        with contextlib.redirect_stdout(sys.stderr), contextlib.redirect_stderr(errors):
            status = int(run(asked))
        if status == 0:
            found = [Path(folder) / file for file in self.results] or sorted(Path(folder).glob("*.json"))
            print_json({file.stem: json.loads(file.read_text(encoding="utf-8")) for file in found})
        return status


DEMO = Recipe(
    summary="Private images to teachers to private labels to a student.",
    example="darrm demo --data fashion-mnist",
    module="recipes.01_private_labels",
    option="--run",
    folder="runs/demo",
    results=("results.json",),
)
REPRODUCE = Recipe(
    summary="The paper's figures and tables.",
    example="darrm reproduce losses --out runs/reproduce",
    module="recipes.reproduce.__main__",
    option="--out",
    folder="runs/reproduce",
)
