"""Output: text of 80 columns, JSON, figures, progress bars."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .files import check_ending, whole
from .parser import UsageError

__all__ = ["check_figure", "print_json", "progress", "save_figure", "search_progress"]


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=1))


@contextlib.contextmanager
def progress(total: int | None, what: str) -> Iterator[Any]:
    """A bar on a terminal for work that takes more than a second; ``total`` is None if it is unknown.

    The elapsed time moves on even while the bar is not updated.
    """
    from tqdm.auto import tqdm

    bar_format = None if total is not None else "{desc} {elapsed}{postfix}"
    done = threading.Event()
    with tqdm(
        total=total,
        desc=what,
        leave=False,
        delay=1,
        miniters=0,
        dynamic_ncols=True,
        disable=None,
        bar_format=bar_format,
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
    """A bar for the search of a noise function; yields the callback that the search calls after each round."""
    with progress(None, "noise") as bar:

        def on_progress(excess: float) -> None:
            bar.set_postfix_str(f"delta over by {excess:.1e}", refresh=False)
            bar.update()

        yield on_progress


def check_figure(path: str | None) -> None:
    """Refuse, before any work, a figure that cannot be drawn or whose ending is unknown."""
    if path is None:
        return
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install 'darrm-torch[plots]'") from None
    check_ending("--plot", path, *(f".{ending}" for ending in sorted(FigureCanvasBase.filetypes)))


def save_figure(axes: Any, path: str) -> None:
    """Write the figure that holds ``axes``."""
    with whole("--plot", path) as beside:
        axes.figure.savefig(beside)
