"""The growth plot: seconds of the solver, the certificate and the oracle against K, with the count of compositions."""

from __future__ import annotations

from pathlib import Path

from .measuring import Record
from .oracle import compositions


def plot(results: dict[str, list[Record]], file: Path) -> None:
    """Write the plot; the count of compositions is scaled to the largest case of the first line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullLocator

    lines = {
        "solver, monotone": [r for r in results.get("solver", []) if "compositions" in r],
        "certificate": results.get("certificate", []),
        "oracle, one call": [r for r in results.get("oracle", []) if r["overlap"] == r["teachers"]],
        "oracle, one call, r = 2": [r for r in results.get("oracle", []) if r["overlap"] == 2],
    }
    lines = {name: records for name, records in lines.items() if records}
    sizes = sorted({record["teachers"] for records in lines.values() for record in records})
    counts = {teachers: compositions(teachers, overlap=teachers, corners=3) for teachers in sizes}
    largest = next(iter(lines.values()))[-1]
    figure, axes = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
    colours = ["#0072B2", "#009E73", "#E69F00", "#CC79A7"]
    for (name, records), colour, marker in zip(lines.items(), colours, "osD^", strict=False):
        axes.plot(
            [r["teachers"] for r in records], [r["seconds"] for r in records], color=colour, marker=marker, label=name
        )
    axes.plot(
        sizes,
        [largest["seconds"] * counts[teachers] / counts[largest["teachers"]] for teachers in sizes],
        "--",
        color="black",
        label="count of compositions (scaled)",
    )
    axes.set(
        xscale="log", yscale="log", xlabel="teachers K", ylabel="seconds", title="Growth with the number of teachers"
    )
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    figure.savefig(file)
    figure.savefig(file.with_suffix(".png"), dpi=130)
    plt.close(figure)
