"""What all figures share: axes, colours, titles, legends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import DarrmError, InvalidArgument

__all__ = ["COLOURS", "axes_or_new", "finished", "looks", "next_look", "set_title"]

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#999999",
    "#7F3C8D",
    "#8C6D31",
)
MARKERS = "osD^vP*X<>"
DASHES = ("-", "--", "-.", ":")


def axes_or_new(axes: Any) -> Any:
    """The caller's axes, or those of a new figure."""
    if axes is not None:
        if not hasattr(axes, "get_lines"):
            raise InvalidArgument("axes", "matplotlib Axes or None", axes)
        return axes
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DarrmError("figures need matplotlib: pip install 'darrm-torch[plots]'") from None
    return Figure(figsize=(7.5, 4.5), layout="constrained", dpi=130).subplots()


def looks() -> Iterable[dict[str, Any]]:
    """Colour, marker and dash of one line after the other."""
    for number, (colour, marker) in enumerate(zip(COLOURS, MARKERS, strict=True)):
        yield {"color": colour, "marker": marker, "linestyle": DASHES[number % 4], "markersize": 5, "linewidth": 1.4}


def next_look(axes: Any) -> dict[str, Any]:
    """The look of the next line on these axes."""
    return list(looks())[len(axes.get_lines()) % len(COLOURS)]


def set_title(axes: Any, title: str, proof: str, *, alone: bool) -> None:
    """Sets the title, with the proof if one thing is drawn; keeps a title that the caller has set."""
    if not axes.get_title() or axes.get_title().startswith(title):
        axes.set_title(f"{title}\n{proof}" if alone else title, fontsize=9)


def finished(axes: Any, *, legend: bool = True, **options: Any) -> Any:
    """The axes with a grid and, if asked for, a legend with these options."""
    axes.grid(alpha=0.25)
    axes.spines["top"].set_visible(False)
    if legend:
        axes.legend(frameon=False, fontsize=8, **options)
    return axes
