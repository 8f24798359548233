"""``darrm demo`` and ``darrm reproduce``: recipes of the source tree that this package belongs to."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from .parser import Command, UsageError

__all__ = ["DEMO", "REPRODUCE"]


def _load(module: str) -> Any:
    """A recipe of this package's own source tree; code in the current folder is never imported."""
    root = Path(__file__).parents[2]
    if not ((root / "recipes" / "reproduce").is_dir() and (root / "pyproject.toml").is_file()):
        message = f"{module} is part of the source tree, not of an installation: run it in a clone of the repository"
        raise UsageError(message)
    sys.path.insert(0, str(root))
    return importlib.import_module(module)


def _command(module: str, *, summary: str, example: str, stopped: str) -> Command:
    return Command(
        summary=summary,
        example=example,
        add_arguments=lambda parser: _load(module).add_arguments(parser),
        run=lambda options: int(_load(module).run(options)),
        stopped=stopped,
    )


DEMO = _command(
    "recipes.01_private_labels",
    summary="Private images to teachers to private labels to a student.",
    example="darrm demo --data fashion-mnist",
    stopped="stopped; run the same command again to go on",
)
REPRODUCE = _command(
    "recipes.reproduce.__main__",
    summary="The paper's figures and tables.",
    example="darrm reproduce losses --out runs/reproduce",
    stopped="stopped; finished results are kept",
)
