"""Teachers on a public base, a student of their labels, and their rivals at the same total; for recipes 06 and 11."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import StackDataset, TensorDataset

import darrm_torch as dt
from darrm_torch.lightning import PrivateLabelDataModule, StudentModule
from darrm_torch.teachers.structures import Rows

from .experiment import load_models, with_noise_for
from .report import paragraph
from .teaching import fit_and_test

Labelled = tuple[Any, Tensor]  # inputs, a tensor or a tuple of tensors; and the class of each
TITLES = {
    "private": "private ensemble",
    "plain": "the same without privacy",
    "one": "one private model",
    "public": "public data alone",
    "majority": "the largest class",
}


@dataclass(frozen=True)
class Plan:
    """How the teachers and their rivals are trained.

    ``total`` is the price of everything that is published. ``records`` is a declared, public number of private records.
    The noise multipliers of ``private`` and ``one`` follow from the total.
    """

    total: dt.PrivacyGuarantee
    teachers: int
    overlap: int
    records: int
    classes: int
    unit: str
    private: dt.TrainingSettings
    plain: dt.TrainingSettings
    one: dt.TrainingSettings
    student_epochs: int

    def small(self) -> Plan:
        """The same with one epoch of everything."""
        short = {name: dataclasses.replace(getattr(self, name), epochs=1) for name in ("private", "plain", "one")}
        return dataclasses.replace(self, student_epochs=1, **short)


@dataclass(frozen=True)
class Results:
    """Shares of right labels and of right answers to held-out inputs, the price of all labels, and their report."""

    accuracies: dict[str, tuple[float, float]]
    total: dt.TotalPrivacy
    report: str


def compare(
    folder: Path,
    plan: Plan,
    *,
    private: Labelled,
    queries: Labelled,
    heldout: Labelled,
    build_teacher: Callable[[], nn.Module],
    build_student: Callable[[], nn.Module],
    public: Callable[[Any], Any] | None = None,
    seed: int,
) -> Results:
    """Train the teachers, buy a label for each query, train a student on them; and the same for each rival.

    Args:
        folder: of the run; it keeps teachers and labels, so a stopped run goes on.
        build_teacher: an untrained teacher on the public base; a function of a module, with arguments perhaps.
        build_student: an untrained student on the public base.
        public: what classes the public data alone give inputs.
        seed: of the student. Noise and shards come from the operating system: draws that anyone can repeat have no
            price of a random allocation.
    """
    shards = dt.assign_shards(
        len(private[1]),
        teachers=plan.teachers,
        overlap=plan.overlap,
        unit=plan.unit,
        private_folder=folder / "draws",
    )

    def train(name: str, shards: Any, settings: dt.TrainingSettings, **how: Any) -> tuple[list[Path], list[Any]]:
        rows = private[0] if isinstance(private[0], tuple) else (private[0],)
        with ThreadPoolExecutor(1) as executor:  # to start processes would take longer than to train so little
            files = dt.train_teachers(
                folder / name,
                build_model=build_teacher,
                dataset=TensorDataset(*rows, private[1]),
                shards=shards,
                shard_size=plan.records * plan.overlap // plan.teachers if len(shards) > 1 else plan.records,
                settings=settings,
                name=name,
                executor=executor,
                **how,
            )
        return files, load_models(files, build_teacher)

    files, models = train("private", shards, plan.private, total=plan.total)
    mechanism = dt.MeanProbabilities(classes=plan.classes)
    ensembles = {
        "private": dt.PrivateMajorityEnsemble.from_opacus(
            models,
            files,
            mechanism=mechanism,
            delta=plan.total.delta,
            ledger=dt.PrivacyLedger(folder / "labels.ledger"),
        )
    }
    _, models = train("plain", shards, plan.plain)
    ensembles["plain"] = dt.PrivateMajorityEnsemble(models, mechanism, overlap=plan.overlap, ledger=dt.PrivacyLedger())
    noisy = with_noise_for(plan.total, plan.one, plan.records)
    _, (single,) = train("one", [np.arange(len(private[1]))], noisy)
    bare = dt.PrivateMajorityEnsemble([single], mechanism, overlap=1, ledger=dt.PrivacyLedger())

    results = {
        name: _student(ensemble, queries, heldout, build_student, plan, seed=seed)
        for name, ensemble in ensembles.items()
    }
    most = int(torch.bincount(private[1]).argmax())
    rivals = {"one": lambda inputs: bare(inputs).argmax(dim=1), "public": public, "majority": lambda inputs: most}
    for name, answer in rivals.items():
        if answer is not None:
            results[name] = (_accuracy(answer(queries[0]), queries[1]), _accuracy(answer(heldout[0]), heldout[1]))
    paid = ensembles["private"]
    return Results(results, paid.total_privacy(labels=len(queries[1])), str(paid.privacy_report()))


def _student(
    ensemble: dt.PrivateMajorityEnsemble,
    queries: Labelled,
    heldout: Labelled,
    build: Callable[[], nn.Module],
    plan: Plan,
    *,
    seed: int,
) -> tuple[float, float]:
    test = StackDataset(Rows(heldout[0]), heldout[1])
    data = PrivateLabelDataModule(ensemble, queries[0], queries=len(queries[1]), test=test, seed=seed)
    torch.manual_seed(seed)
    student = StudentModule(build(), classes=plan.classes)
    accuracy = fit_and_test(student, data, max_epochs=plan.student_epochs)
    return _accuracy(data.labels.argmax(dim=1), queries[1][data.queries]), accuracy


def _accuracy(given: Any, true: Tensor) -> float:
    return float((given == true).float().mean())


def table(results: Sequence[Results]) -> str:
    """The mean accuracies and those of each run in percent; at most 80 columns wide for five runs."""
    lines = [f"{'':<26}{'labels':>7}{'student':>9}{'':4}labels/student of each run", "-" * 79]
    for name in results[0].accuracies:
        pairs = [result.accuracies[name] for result in results]
        labels, student = 100 * np.mean(pairs, axis=0)
        each = " ".join(f"{100 * one:.0f}/{100 * two:.0f}" for one, two in pairs)
        lines.append(f"{TITLES[name]:<26}{labels:>7.1f}{student:>9.1f}{'':4}{each}")
    return "\n".join(lines)


def summary(results: Sequence[Results], plan: Plan) -> str:
    """The report of the last run, the table, and what everything costs."""
    total = results[-1].total
    meaning = (
        "Accuracy in percent: of the labels, and of the student that they train; of a rival without a student, of its "
        "own answers to queries and to held-out inputs. The accuracies are evaluations that nobody releases."
    )
    price = (
        f"All labels, the student and all {plan.teachers} teachers of one run together: {total.guarantee}, by "
        f"{total.route.name}, under the assumptions above. One private model has the same total. The settings of "
        "training are fixed in the recipe; the total does not cover how they were chosen."
    )
    return "\n\n".join(
        ["\n" + results[-1].report, paragraph(meaning, indent=0), table(results), paragraph(price, indent=0)]
    )
