"""The style of figures: colours that colour-blind readers can distinguish, each with its own marker and dashes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Okabe and Ito's colours.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#E69F00", "marker": "s", "linestyle": "--"},
    {"color": "#009E73", "marker": "D", "linestyle": "-."},
    {"color": "#CC79A7", "marker": "^", "linestyle": ":"},
    {"color": "#56B4E9", "marker": "v", "linestyle": (0, (5, 1))},
    {"color": "#D55E00", "marker": "P", "linestyle": (0, (3, 1, 1, 1))},
    {"color": "#000000", "marker": "X", "linestyle": (0, (1, 3))},
)


@contextmanager
def grid(
    file: Path, rows: int, columns: int, *, size: tuple[float, float], lines: bool = True, **how: Any
) -> Iterator[tuple[Any, Any]]:
    """A figure and its ``(rows, columns)`` axes, written to ``file``.png and ``file``.svg at the end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **how)
    try:
        yield figure, axes
        for panel in axes.flat if lines else ():
            panel.grid(alpha=0.3)
        figure.savefig(file.with_name(file.name + ".svg"))
        figure.savefig(file.with_name(file.name + ".png"), dpi=130)
    finally:
        plt.close(figure)


def legend(figure: Any, panel: Any, *, columns: int) -> None:
    """One legend for all panels, below them."""
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)
