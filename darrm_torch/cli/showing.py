"""What is shown: text of 80 columns, JSON, figures, progress."""

from __future__ import annotations

import contextlib
import json
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import InvalidArgument
from .files import check_ending, whole

__all__ = ["check_figure", "fill", "print_json", "progress", "save_figure", "search_progress"]


def print_json(value: Any) -> None:
    """For machines."""
    print(json.dumps(value, indent=1))


def fill(text: str) -> str:
    """For a screen of 80 columns."""
    return textwrap.fill(text, 79, subsequent_indent="  ", break_on_hyphens=False)


@contextlib.contextmanager
def progress(total: int | None, what: str) -> Iterator[Any]:
    """A bar on a terminal, for what takes more than a second; ``total`` None: it is not known.

    It shows the time also while nothing is done that it is told of.
    """
    from tqdm.auto import tqdm

    words = None if total is not None else "{desc} {elapsed}{postfix}"
    done = threading.Event()
    with tqdm(
        total=total, desc=what, leave=False, delay=1, miniters=0, dynamic_ncols=True, disable=None, bar_format=words
    ) as bar:

        def keep_time() -> None:
            while not done.wait(1.0):
                bar.update(0)

        clock = threading.Thread(target=keep_time, daemon=True)
        if not bar.disable:
            clock.start()
        try:
            yield bar
        finally:
            done.set()
            if clock.is_alive():
                clock.join()


@contextlib.contextmanager
def search_progress() -> Iterator[Callable[[float], None]]:
    """For a search of noise: told of each of its rounds."""
    with progress(None, "noise") as bar:

        def on_progress(excess: float) -> None:
            bar.set_postfix_str(f"delta over by {excess:.1e}", refresh=False)
            bar.update()

        yield on_progress


def check_figure(path: str | None) -> None:
    """Before any work: that a figure can be drawn and has a known ending."""
    if path is None:
        return
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        cure = "pip install 'darrm-torch[plots]'"
        raise InvalidArgument("--plot", "used where matplotlib is installed", "no matplotlib", cure) from None
    check_ending("--plot", path, *(f".{ending}" for ending in sorted(FigureCanvasBase.filetypes)))


def save_figure(axes: Any, path: str) -> None:
    """Write the figure that ``axes`` belong to."""
    with whole("--plot", path) as beside:
        axes.figure.savefig(beside)
