"""The steps of the recipe with ten classes, and its output."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

import darrm_torch as dt
from darrm_torch.errors import check_integer, check_number
from darrm_torch.files import write_whole
from darrm_torch.lightning import StudentModule, VirtualAdversarialTraining
from darrm_torch.noise.histograms import votes_within
from darrm_torch.privacy.guarantees import format_bound
from darrm_torch.teachers.allocations import recorded_allocation

from . import experiment, report, teaching
from .data import Task
from .models import PaperCNN

students = importlib.import_module("recipes.04_students")

CLASSES = 10
ALLOWANCES = (1, 2, 3, 5)  # m: a label costs m times a teacher
VOTE_EPSILONS = (0.25, 0.5, 1.0)  # of one label that only the mechanism's own randomness protects
LISTED = 1000  # calibrate GNMax on its label up to this many histograms of votes (23 teachers)
NETWORK = functools.partial(PaperCNN, classes=CLASSES)

# Plain training works best with small batches.
PLAIN = dt.TrainingSettings(noise_multiplier=None, batch_size=64, epochs=15, learning_rate=0.05)

PRIVATE_TITLES = {
    "self-bounding": "self-bounding plurality",
    "randomized": "randomized response",
    "gnmax-all": "GNMax, K votes change",
    "noise-free": "noise-free plurality",
}
PLAIN_TITLES = {
    "vote-private": "vote-private table",
    "permute-and-flip": "permute-and-flip",
    "vote-randomized": "randomized response",
    "gnmax-label": "GNMax, by its label",
    "gnmax-exact": "GNMax, by its counts",
    "gnmax-rdp": "GNMax, usual sigma",
}


@dataclass(frozen=True, kw_only=True)
class Settings(experiment.Settings):
    """The settings of the first recipe, the cost of a label by randomness alone, and the students' training steps."""

    vote_epsilon: float
    steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("vote-epsilon", self.vote_epsilon, low=0, low_open=True, high_open=True)
        check_integer("steps", self.steps, low=1)


def private_mechanisms(settings: Settings, target: dt.PrivacyGuarantee) -> dict[str, dt.Mechanism]:
    """Mechanisms whose label keeps ``target`` even if one record is in the training data of every teacher."""
    count = settings.teachers
    return {
        "randomized": dt.RandomizedPlurality(epsilon=target.epsilon, classes=CLASSES, teachers=count),
        "gnmax-all": dt.GNMax.calibrated(target, overlap=count, teachers=count),
    }


def vote_mechanisms(settings: Settings, epsilon: float) -> dict[str, dt.Mechanism]:
    """Mechanisms whose own randomness protects one changed vote; delta is 0 except for GNMax.

    GNMax is calibrated on the released label (where there are few enough histograms of votes), on the noisy counts, and
    by their Renyi divergence, as usual.
    """
    count = settings.teachers
    target = dt.PrivacyGuarantee(epsilon=epsilon, delta=settings.delta)
    few = votes_within(LISTED, votes=count, classes=CLASSES) == count
    return {
        "vote-private": dt.VotePrivatePlurality(teachers=count, classes=CLASSES, epsilon=epsilon),
        "permute-and-flip": dt.PermuteAndFlip(epsilon=epsilon, teachers=count),
        "vote-randomized": dt.RandomizedPlurality(epsilon=epsilon, classes=CLASSES, teachers=count),
        **(
            {"gnmax-label": dt.GNMax.calibrated(target, teachers=count, classes=CLASSES, method="label")} if few else {}
        ),
        "gnmax-exact": dt.GNMax.calibrated(target, teachers=count),
        "gnmax-rdp": dt.GNMax.calibrated(target, teachers=count, method="rdp"),
    }


def label_and_teach(
    folder: Path, settings: Settings, task: Task, private: list[Path], plain: list[Path]
) -> dict[str, Any]:
    """For every strategy its labels, their accuracy and cost, and a student."""
    models, bare = (experiment.load_models(files, NETWORK) for files in (private, plain))

    def ledger(name: str) -> dt.PrivacyLedger:
        return dt.PrivacyLedger(folder / "ledgers" / f"{name}.ledger")

    chosen = dt.PrivateMajorityEnsemble.from_opacus(
        models,
        private,
        delta=settings.delta,
        allowance=settings.allowance,
        overlap=settings.teachers,
        noise="self-bounding",
        classes=CLASSES,
        ledger=ledger("self-bounding"),
    )

    def private_ensemble(mechanism: dt.Mechanism, **how: Any) -> dt.PrivateMajorityEnsemble:
        return dt.PrivateMajorityEnsemble(
            models,
            mechanism,
            profiles=chosen.profiles,
            overlap=settings.teachers,
            delta=settings.total_delta,
            **how,
        )

    def plain_ensemble(mechanism: dt.Mechanism, **how: Any) -> dt.PrivateMajorityEnsemble:
        return dt.PrivateMajorityEnsemble(bare, mechanism, overlap=1, delta=settings.total_delta, **how)

    def one_label(ensemble: dt.PrivateMajorityEnsemble, allowance: float) -> dt.PrivacyGuarantee:
        return ensemble.total_privacy(labels=1, delta=min(1.0, allowance * settings.delta)).guarantee

    free = dt.NoiseFreeMajority(classes=CLASSES, teachers=settings.teachers)
    target = one_label(chosen, settings.allowance)
    ensembles = {
        "self-bounding": chosen,
        **{
            name: private_ensemble(mechanism, ledger=ledger(name))
            for name, mechanism in private_mechanisms(settings, target).items()
        },
        "noise-free": private_ensemble(free, ledger=ledger("noise-free")),
        **{
            name: plain_ensemble(mechanism, ledger=ledger(name))
            for name, mechanism in vote_mechanisms(settings, settings.vote_epsilon).items()
        },
    }
    voters = {"private": ensembles["noise-free"], "plain": ensembles["gnmax-exact"]}
    votes = {kind: ensemble.sensitive_votes(task.heldout_images) for kind, ensemble in voters.items()}
    accuracy = {
        kind: functools.partial(
            label_accuracy, counts=nn.functional.one_hot(given, CLASSES).sum(dim=0), truth=task.heldout_labels
        )
        for kind, given in votes.items()
    }
    by_allowance = []
    for m in ALLOWANCES:
        table = dt.SelfBoundingPlurality(teachers=settings.teachers, classes=CLASSES, allowance=m)
        cost = one_label(private_ensemble(table), m)
        mechanisms = {"self-bounding": table, **private_mechanisms(settings, cost), "noise-free": free}
        by_allowance.append({"allowance": m, "label": asdict(cost), **measured(mechanisms, accuracy["private"])})
    by_epsilon = [
        {
            "epsilon": epsilon,
            **measured({**vote_mechanisms(settings, epsilon), "noise-free": free}, accuracy["plain"]),
        }
        for epsilon in VOTE_EPSILONS
    ]
    rows = []
    for name, ensemble in tqdm(ensembles.items(), desc="labels and students", unit="method", dynamic_ncols=True):
        kind = "private" if name in PRIVATE_TITLES else "plain"
        label = ensemble.total_privacy(labels=1, delta=target.delta if kind == "private" else settings.delta)
        total = ensemble.total_privacy(labels=settings.queries, delta=settings.total_delta)
        rows.append(
            {
                "method": name,
                "title": (PRIVATE_TITLES | PLAIN_TITLES)[name],
                "teachers": kind,
                "overlap": ensemble.overlap,
                "label": label.to_dict(),
                "total": total.to_dict() | {"rule": f"{total.route.name}: {total.route.explanation}"},
                "label_accuracy": accuracy[kind](ensemble.mechanism),
                **teaching.train_student(
                    folder,
                    ensemble,
                    settings,
                    task,
                    build=build_student,
                    unlabelled_batch_size=64,
                    max_steps=settings.steps,
                    max_epochs=-1,
                ),
                "mechanism": ensemble.mechanism.describe(),
            }
        )
    return {
        "settings": json.loads(json.dumps(asdict(settings))),
        "data": {"source": task.source, "classes": task.classes, "reason": task.reason},
        "teachers": teaching.describe_teachers(chosen.profiles)
        | {
            f"{kind}_accuracy": (given == task.heldout_labels).float().mean(dim=1).tolist()
            for kind, given in votes.items()
        },
        "by_allowance": by_allowance,
        "by_epsilon": by_epsilon,
        "methods": rows,
        "notes": remarks(ensembles, settings),
    }


def measured(mechanisms: dict[str, dt.Mechanism], accuracy: Callable[[dt.Mechanism], float]) -> dict[str, Any]:
    """The accuracy of each mechanism."""
    return {"accuracy": {name: accuracy(mechanism) for name, mechanism in mechanisms.items()}}


def label_accuracy(mechanism: dt.Mechanism, *, counts: Tensor, truth: Tensor) -> float:
    """The mean probability that a label is right: exact for these votes, no label is drawn.

    This evaluation sees the votes; it is neither released nor charged.
    """
    law = mechanism.label_probabilities(counts)
    return float(law[torch.arange(len(truth)), truth].mean())


def build_student() -> StudentModule:
    """A small network that also learns from unlabelled images."""
    return StudentModule(students.student_network(CLASSES), classes=CLASSES, consistency=VirtualAdversarialTraining())


def remarks(ensembles: dict[str, dt.PrivateMajorityEnsemble], settings: Settings) -> list[str]:
    """Notes for the reader of the tables, with the numbers of this run."""
    free, chosen = ensembles["noise-free"], ensembles["self-bounding"]
    published = dt.total_privacy(
        teachers=free.profiles,
        overlap=1,
        mechanism=free.mechanism,
        labels=settings.queries,
        delta=settings.total_delta,
    )
    allocation = recorded_allocation(free.profiles)
    allocated = allocation and dt.total_privacy(
        teachers=free.profiles,
        mechanism=free.mechanism,
        labels=settings.queries,
        delta=settings.total_delta,
        allocation=allocation,
    )
    adding = [
        labels
        for labels in range(1, settings.teachers + 1)
        if chosen.total_privacy(labels=labels, delta=settings.total_delta).route.key == "self-bounding"
    ]
    return [
        f"The costs of labels with self-bounding noise add up. At m = {settings.allowance:g} this is the best bound "
        f"for {f'up to {adding[-1]} label(s)' if adding else 'no number of labels'}; more labels cost no more than "
        "publishing all teachers.",
        f"For the true r = 1 of these shards, all labels of a noise-free plurality of the private teachers together "
        f"are {published.guarantee}, whatever their number. Add noise only where one label must cost less than that, "
        "or where a record may be in the training data of many teachers."
        + (
            f" Each record drew its shard at random and in secret; counting that, they are {allocated.guarantee}."
            if allocated
            else ""
        ),
    ]


def table(results: dict[str, Any]) -> str:
    """The results as text, at most 80 columns wide."""
    settings, teachers = results["settings"], results["teachers"]
    line = "-" * (report.WIDTH - 1)

    def sweep(title: str, heads: list[str], points: list[dict[str, Any]], titles: dict[str, str]) -> list[str]:
        width = 14 if len(heads) > len(VOTE_EPSILONS) else 18
        body = [
            f"{words:<23}" + "".join(f"{point['accuracy'][name]:>{width}.3f}" for point in points)
            for name, words in titles.items()
            if name in points[0]["accuracy"]
        ]
        return [
            "",
            report.paragraph(title, indent=0),
            f"{'':<23}" + "".join(f"{head:>{width}}" for head in heads),
            *body,
        ]

    asked = f"{settings['queries']} labels"
    free = next(row["label"] for row in results["methods"] if row["method"] == "noise-free")
    lines = [
        "",
        report.describe_teachers(
            f"{settings['teachers']} on disjoint shards; each private one is", settings["delta"], teachers
        ),
        *sweep(
            "Accuracy of labels. Private teachers, r = K; one label costs:",
            [f"m = {point['allowance']}: {report.epsilon(point['label'])}" for point in results["by_allowance"]],
            results["by_allowance"],
            PRIVATE_TITLES | {"noise-free": f"noise-free, costs {report.epsilon(free)}"},
        ),
        *sweep(
            "Plain teachers, r = 1, only the mechanism's own randomness protects; one label costs:",
            [f"epsilon = {point['epsilon']:g}" for point in results["by_epsilon"]],
            results["by_epsilon"],
            PLAIN_TITLES | {"noise-free": "noise-free: no promise"},
        ),
        "",
        f"{'labels and a student':<23}{'r':>3}{'one label':>13}{'label':>12}{asked:>17}{'student':>11}",
        f"{'':<26}{'epsilon':>13}{'accuracy':>12}{'epsilon':>17}{'accuracy':>11}",
        line,
    ]
    rules: list[str] = []
    for row in results["methods"]:
        if row["total"]["rule"] not in rules:
            rules.append(row["total"]["rule"])
        mark = "abcdefgh"[rules.index(row["total"]["rule"])]
        lines.append(
            f"{row['title']:<23}{row['overlap']:>3}{report.epsilon(row['label']):>13}{row['label_accuracy']:>12.3f}"
            f"{report.epsilon(row['total']):>14} {mark:<2}{row['student_accuracy']:>11.3f}"
        )
    lines.append(line)
    private, plain = (
        next(row["label"]["delta"] for row in results["methods"] if row["teachers"] == kind)
        for kind in ("private", "plain")
    )
    notes = [
        "Epsilon in nats; neighbours differ in one record, added or removed; r: how many teachers' training data may "
        f"hold that record. Delta is {format_bound(private, 3)} for one label of private teachers, "
        f"{format_bound(plain, 3)} for one of plain teachers and {format_bound(settings['total_delta'], 3)} for all "
        "labels. Label accuracy: the exact probability of the right label given the votes on held-out images; this "
        "evaluation sees the votes and is not released.",
        *(f"[{'abcdefgh'[number]}] {rule}" for number, rule in enumerate(rules)),
        *results["notes"],
    ]
    lines += [report.paragraph(note, indent=4 if note.startswith("[") else 0) for note in notes]
    return "\n".join(lines)


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write results.json and figure.png to ``folder``."""
    experiment.write_whole(folder / "results.json", json.dumps(results, indent=1))
    figure(folder / "figure.png", results)


def figure(file: Path, results: dict[str, Any]) -> None:
    """Accuracy of labels by their cost: private teachers on the left, the mechanism's own randomness on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # Okabe and Ito's colours, which colour-blind readers can distinguish; markers distinguish them in print.
    colours, markers = ["#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"], "os^DvP"
    canvas, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharey=True)
    sides = (
        (results["by_allowance"], "allowance", PRIVATE_TITLES, "m: one label costs m times a teacher"),
        (results["by_epsilon"], "epsilon", PLAIN_TITLES, "epsilon of one label"),
    )
    for axis, (points, cost, titles, words) in zip(axes, sides, strict=True):
        across = [point[cost] for point in points]
        free = points[0]["accuracy"]["noise-free"]
        axis.axhline(free, color="#000000", linestyle="--", linewidth=1, label="noise-free plurality")
        noisy = [name for name in titles if name != "noise-free" and name in points[0]["accuracy"]]
        for name, colour, marker in zip(noisy, colours, markers, strict=False):
            heights = [point["accuracy"][name] for point in points]
            axis.plot(across, heights, color=colour, marker=marker, label=titles[name])
        axis.set(xlabel=words, xticks=across, ylim=(0, 1))
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=2, frameon=False)
    axes[0].set(ylabel="accuracy of labels (guessing: 0.1)", title="Private teachers, r = K")
    axes[1].set(title="Plain teachers, r = 1")
    with write_whole(file, private=True) as beside:
        canvas.savefig(beside, dpi=130)
    plt.close(canvas)
