"""Output of the end-to-end recipe: a table of 80 columns, results.json and a figure."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from darrm_torch import files
from darrm_torch.privacy.guarantees import format_bound

from .data import Task
from .experiment import DRAWS, write_whole

WIDTH = 80


def table(results: dict[str, Any]) -> str:
    """The results as text, at most 80 columns wide."""
    settings, teachers = results["settings"], results["teachers"]
    asked = f"{settings['queries']} labels"
    lines = [
        "",
        describe_teachers(f"{settings['teachers']}; each is", settings["delta"], teachers),
        "",
        f"{'method':<23}{'one label':>14}{'label':>16}{asked:>15}{'student':>11}",
        f"{'':<23}{'epsilon':>14}{'accuracy':>16}{'epsilon':>15}{'accuracy':>11}",
        "-" * (WIDTH - 1),
    ]
    rules: list[str] = []
    for row in results["methods"]:
        if row["total"]["rule"] not in rules:
            rules.append(row["total"]["rule"])
        mark = "abcdefgh"[rules.index(row["total"]["rule"])]
        accuracy = f"{row['label_accuracy']:.3f} ({row['label_accuracy_std']:.3f})"
        lines.append(
            f"{row['title']:<23}{epsilon(row['label']):>14}{accuracy:>16}"
            f"{epsilon(row['total']):>12} {mark:<2}{row['student_accuracy']:>11.3f}"
        )
    lines.append("-" * (WIDTH - 1))
    lines += shard_prices(results)
    label, total = results["methods"][0]["label"], results["methods"][0]["total"]
    notes = [
        f"Epsilon in nats; neighbours differ in one record, added or removed. Delta is "
        f"{format_bound(label['delta'], 3)} for one label and {format_bound(total['delta'], 3)} for all. Label "
        f"accuracy: mean and standard deviation over {DRAWS} draws of {settings['queries']} queries; this evaluation "
        "sees the votes and is not released.",
        *(f"[{'abcdefgh'[number]}] {rule}" for number, rule in enumerate(rules)),
        *results["notes"],
    ]
    lines += [paragraph(note, indent=4 if note.startswith("[") else 0) for note in notes]
    return "\n".join(lines)


def shard_prices(results: dict[str, Any]) -> list[str]:
    """What the labels of the private teachers cost, by what is known about the shards of a record."""
    settings, prices = results["settings"], results["prices"]
    count, r = settings["teachers"], settings["teachers"] if settings["contiguous"] else settings["overlap"]
    words = {
        "assumed": f"any {settings['assumed_overlap']} of the {count} shards, as the table assumes",
        "true": f"{r} of them, and everyone may know which",
        "allocation": f"{r} of them, drawn at random and in secret",
    }
    return [
        "",
        "Epsilon of all labels of the private teachers, if a record may be in",
        *(
            f"  {text:<60}{'no such price' if prices[name] is None else format_bound(prices[name]):>17}"
            for name, text in words.items()
        ),
        "",
    ]


def describe_teachers(beginning: str, delta: float, teachers: dict[str, Any]) -> str:
    """The guarantees and accuracies of the teachers."""
    return paragraph(
        f"Teachers  {beginning} ({format_bound(teachers['accountant_epsilon'])}, {delta:g})-DP according to its "
        f"accountant and ({format_bound(teachers['epsilon'])}, {delta:g})-DP by its privacy loss distribution. "
        f"Accuracy of a single teacher, lowest / median / highest: private {spread(teachers['private_accuracy'])}, "
        f"plain {spread(teachers['plain_accuracy'])}."
    )


def describe_data(task: Task) -> str:
    """The data of the run and where they come from."""
    return paragraph(
        f"Data      {task.source}, {task.classes}: {len(task.private_labels)} private records, "
        f"{len(task.public_labels)} public queries, {len(task.heldout_labels)} held out. {task.reason}."
    )


def paragraph(text: str, *, indent: int = 10) -> str:
    """Text wrapped to the width, with its later lines indented."""
    return textwrap.fill(text, WIDTH - 1, subsequent_indent=" " * indent)


def epsilon(guarantee: dict[str, Any]) -> str:
    """The epsilon of a guarantee, rounded up."""
    return "none" if guarantee["epsilon"] is None else format_bound(guarantee["epsilon"])


def spread(values: list[float]) -> str:
    """Smallest, median and largest value."""
    ordered = sorted(values)
    return f"{ordered[0]:.2f} / {ordered[len(ordered) // 2]:.2f} / {ordered[-1]:.2f}"


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write results.json and figure.png to ``folder``."""
    write_whole(folder / "results.json", json.dumps(results, indent=1))
    figure(folder / "figure.png", results)


def figure(file: Path, results: dict[str, Any]) -> None:
    """Noise functions on the left, accuracies on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # Okabe and Ito's colours, which colour-blind readers can distinguish; markers distinguish them in print.
    colours = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442"]
    markers = "osD^vPX*"
    methods = results["methods"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for index, row in enumerate(methods):
        if row["gamma"] is not None:
            left.plot(row["gamma"], color=colours[index], marker=markers[index], label=row["title"])
    left.set(
        xlabel="votes for class 1",
        ylabel="gamma: Pr[the label is the majority]",
        ylim=(-0.03, 1.05),
        title="Noise functions",
    )
    left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=2, frameon=False)
    heights = range(len(methods))
    right.barh(
        [height - 0.19 for height in heights],
        [row["label_accuracy"] for row in methods],
        xerr=[row["label_accuracy_std"] for row in methods],
        height=0.36,
        color=colours[0],
        label="labels",
        capsize=2,
    )
    right.barh(
        [height + 0.19 for height in heights],
        [row["student_accuracy"] for row in methods],
        height=0.36,
        color=colours[1],
        label="student",
    )
    right.set_yticks(list(heights), [row["title"] for row in methods])
    right.invert_yaxis()
    lowest = min(0.5, *(row[which] for row in methods for which in ("label_accuracy", "student_accuracy")))
    right.set(xlim=(lowest, 1.0), xlabel="accuracy (guessing: 0.5)", title="All labels together at the same total")
    right.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=2, frameon=False)
    with files.write_whole(file, private=True) as beside:
        figure.savefig(beside, dpi=130)
    plt.close(figure)
