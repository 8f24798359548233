"""The second half of the end-to-end recipe: labels, what they cost, and a student of each strategy.

It imports Lightning, which takes seconds; the recipe does so while the teachers train.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm

import darrm_torch as dt
from darrm_torch.lightning import PrivateLabelDataModule, StudentModule
from darrm_torch.teachers.allocations import recorded_allocation

from .data import Task
from .experiment import DRAWS, Settings, build_ensembles, write_whole
from .models import PaperCNN


def label_accuracy(mechanism: Any, counts: Tensor, truth: Tensor, *, queries: int) -> tuple[float, float]:
    """Mean and standard deviation of the share of right labels over ``DRAWS`` draws of the queries.

    This evaluation sees the votes. Its labels are discarded: they are neither released nor charged.
    """
    order = np.random.default_rng(0)
    shares = []
    for _ in range(DRAWS):
        rows = torch.from_numpy(order.choice(len(truth), size=min(queries, len(truth)), replace=False))
        labels = mechanism.aggregate(counts[rows])
        shares.append(float((labels == truth[rows]).float().mean()))
    return float(np.mean(shares)), float(np.std(shares, ddof=1))


def fit(student: StudentModule, data: PrivateLabelDataModule | DataLoader[Any], **length: int) -> L.Trainer:
    """Train for ``max_epochs`` or ``max_steps``, without output."""
    trainer = L.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **length,
    )  # fmt: skip
    trainer.fit(student, data)
    return trainer


def fit_and_test(student: StudentModule, data: PrivateLabelDataModule, **length: int) -> float:
    """Train as :func:`fit` does and return the accuracy on held-out data."""
    (scores,) = fit(student, data, **length).test(student, datamodule=data, verbose=False)
    return float(scores["test_accuracy"])


def train_student(
    folder: Path,
    ensemble: dt.PrivateMajorityEnsemble,
    settings: Settings,
    task: Task,
    *,
    build: Callable[[], StudentModule] = lambda: StudentModule(PaperCNN().to(memory_format=torch.channels_last)),
    unlabelled_batch_size: int | None = None,
    **length: int,
) -> dict[str, float]:
    """Label the public queries (once; the ledger keeps them), train a student on them, test it on held-out data.

    Strategies that release the same labels have the same student, which is trained once.
    """
    data = PrivateLabelDataModule(
        ensemble,
        task.public_images,
        queries=settings.queries,
        test=TensorDataset(task.heldout_images, task.heldout_labels),
        unlabelled_batch_size=unlabelled_batch_size,
    )
    labels = data.label()
    digest = hashlib.sha256(np.asarray([data.queries, labels.tolist()]).tobytes()).hexdigest()
    done = folder / "students" / f"{digest[:16]}.json"
    try:
        return json.loads(done.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        pass  # missing or damaged: retraining a student costs no privacy
    torch.manual_seed(0)
    result = {
        "student_accuracy": fit_and_test(build(), data, **length),
        "released_label_accuracy": float((labels == task.public_labels[data.queries]).float().mean()),
    }
    write_whole(done, json.dumps(result))
    return result


TITLES = {
    "one-model": "one DP-SGD model",
    "gnmax-exact": "GNMax",
    "darrm-subsampling": "DaRRM, subsampling",
    "darrm-self-bounding": "DaRRM, self-bounding",
    "darrm-optimal": "DaRRM, optimal",
    "darrm-profile": "DaRRM, whole profile",
    "noise-free": "noise-free majority",
}


def label_and_teach(
    folder: Path,
    settings: Settings,
    task: Task,
    private: list[Path],
    plain: list[Path],
    one_model: list[Path],
    total: dt.PrivacyGuarantee,
) -> dict[str, Any]:
    """For every strategy its labels, their accuracy and cost, and a student; all labels together keep ``total``."""
    ensembles = build_ensembles(folder, settings, private, plain, one_model, gnmax_total=total)
    votes = {
        kind: torch.cat([ensembles[name].sensitive_votes(part) for part in task.public_images.split(128)], dim=1)
        for kind, name in (("private", "darrm-optimal"), ("plain", "gnmax-exact"), ("one", "one-model"))
    }
    counts = {kind: nn.functional.one_hot(given, 2).sum(dim=0) for kind, given in votes.items()}
    voters = {"gnmax-exact": "plain", "one-model": "one"}
    rows = []
    for name, ensemble in tqdm(ensembles.items(), desc="labels and students", unit="method", dynamic_ncols=True):
        given = counts[voters.get(name, "private")]
        mean, deviation = label_accuracy(ensemble.mechanism, given, task.public_labels, queries=settings.queries)
        scores = train_student(folder, ensemble, settings, task, max_epochs=20)
        label = ensemble.total_privacy(labels=1, delta=ensembles["darrm-optimal"].noise.target.delta)
        price = ensemble.total_privacy(labels=settings.queries)
        rows.append(
            {
                "method": name,
                "title": TITLES[name],
                "label": label.to_dict(),
                "total": price.to_dict() | {"rule": f"{price.route.name}: {price.route.explanation}"},
                "label_accuracy": mean,
                "label_accuracy_std": deviation,
                **scores,
                "gamma": ensemble.noise.gamma.tolist() if isinstance(ensemble.mechanism, dt.DaRRM) else None,
                "mechanism": ensemble.mechanism.describe(),
            }
        )
    prices = prices_of_the_shards(ensembles["noise-free"], settings)
    return {
        "settings": json.loads(json.dumps(asdict(settings))),
        "data": {"source": task.source, "classes": task.classes, "reason": task.reason},
        "teachers": describe_teachers(ensembles["darrm-optimal"].profiles)
        | {
            f"{kind}_accuracy": (votes[kind] == task.public_labels).float().mean(dim=1).tolist()
            for kind in ("private", "plain")
        },
        "target": asdict(ensembles["darrm-optimal"].noise.target),
        "total": asdict(total),
        "prices": prices,
        "methods": rows,
        "notes": remarks(ensembles, settings, rows),
    }


def prices_of_the_shards(free: dt.PrivateMajorityEnsemble, settings: Settings) -> dict[str, float | None]:
    """Epsilon of all labels of the private teachers, by what is known about the shards of a record.

    "assumed": it may be in ``assumed_overlap`` of them; "true": it is in ``overlap`` of them, and everyone knows which;
    "allocation": it is in those, drawn at random and in secret (None: they were not).
    """
    allocation = recorded_allocation(free.profiles)
    affected = settings.teachers if settings.contiguous else settings.overlap
    knowledge: dict[str, dict[str, Any]] = {
        "assumed": {"overlap": settings.assumed_overlap},
        "true": {"overlap": affected},
        "allocation": {"allocation": allocation},
    }
    return {
        name: dt.total_privacy(
            teachers=free.profiles,
            mechanism=free.mechanism,
            labels=settings.queries,
            delta=settings.total_delta,
            **known,
        ).epsilon
        if known != {"allocation": None}
        else None
        for name, known in knowledge.items()
    }


def remarks(
    ensembles: dict[str, dt.PrivateMajorityEnsemble], settings: Settings, rows: list[dict[str, Any]]
) -> list[str]:
    """Notes for the reader of the table, with the numbers of this run."""
    optimal = ensembles["darrm-optimal"]
    redrawn = dt.as_if_redrawn(optimal.noise.target, settings.queries, slack=settings.delta)
    affected = settings.teachers if settings.contiguous else settings.overlap
    accuracy = {row["method"]: row["label_accuracy"] for row in rows}
    single, (best, most) = (
        accuracy["one-model"],
        max(((name, share) for name, share in accuracy.items() if name != "one-model"), key=lambda pair: pair[1]),
    )
    chosen = "Fashion-MNIST, which is not private here"
    if settings.source == "fashion-mnist":
        chosen = "4,000 of these images with other labels: choose yours on public data"
    wins = "One private model is better here" if single >= most else f"{TITLES[best]} is better here"
    ((noise, rate, steps),) = ensembles["one-model"].profiles[0].reading.history
    return [
        "All rows keep the same total. DaRRM and the noise-free majority assume that a record is in the training data "
        f"of r = {settings.assumed_overlap} of the {settings.teachers} teachers, and their total is the price of "
        "publishing these. DaRRM's noise makes a single label cheaper: it is chosen so that one label is at most "
        f"{optimal.noise.target}. GNMax protects only the votes of teachers without privacy, and uses the true "
        f"r = {affected} of these shards.",
        f"The one model is trained on all records: noise multiplier {noise:.3g}, sample rate 1/{1 / rate:.0f}, {steps} "
        f"steps; its settings were chosen on {chosen}. {wins}: its labels are right "
        f"on {max(single, most):.3f}, those of {'the best other row' if single >= most else 'the one model'} on "
        f"{min(single, most):.3f}. Where all records can be pooled and no teacher exists yet, train one private "
        "model. An ensemble is for records that must stay where they are, teachers that exist already, models that "
        "differ, and votes whose disagreement shows which labels to doubt.",
        f"If the teachers were retrained for every label, as the paper's composition assumes, {settings.queries} "
        f"optimal labels would be {redrawn}. That is not a guarantee here: all labels come from the same teachers.",
    ]


def describe_teachers(profiles: Sequence[dt.PrivacyProfile]) -> dict[str, Any]:
    """The teachers' training and guarantees."""
    readings = [profile.reading for profile in profiles]
    return {
        "history": readings[0].history,
        "epsilon": max(reading.epsilon for reading in readings),
        "accountant_epsilon": max(dict(reading.accountant_epsilons)[reading.accountant] for reading in readings),
    }
