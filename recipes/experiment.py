"""The steps of the end-to-end recipe; each writes its result to the run folder, so a stopped run can continue."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import darrm_torch as dt
from darrm_torch import files
from darrm_torch.errors import InvalidArgument, check_integer, check_number
from darrm_torch.teachers.checkpoints import load_teacher
from darrm_torch.teachers.dp_sgd import TrainingSettings
from darrm_torch.teachers.reading import drawn_rate
from darrm_torch.teachers.shards import assign_shards, contiguous_shards
from darrm_torch.teachers.training import Training, prepare_training, run_trainings

from .data import Task
from .models import PaperCNN

DRAWS = 10  # random draws of Q queries over which label accuracy is averaged, as in the paper


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides the contents of a run folder; one folder has one of these.

    ``records`` is a declared number, which fixes sample rate and steps; the true number of records does not.
    ``one_model`` says how one model on all records is trained; its noise multiplier follows from the total.
    """

    source: str
    classes: str
    records: int
    teachers: int
    overlap: int
    assumed_overlap: int
    contiguous: bool
    training: TrainingSettings
    delta: float
    allowance: float
    epsilon: float | None
    queries: int
    total_delta: float
    seed: int | None
    limit: int | None
    one_model: TrainingSettings | None = None

    @property
    def shard_size(self) -> int:
        """The declared number of records of a shard."""
        return self.records * self.overlap // self.teachers

    def __post_init__(self) -> None:
        check_integer("teachers", self.teachers, low=1)
        check_integer("overlap", self.overlap, low=1, high=self.teachers, cure="A record is in at most all shards.")
        if self.records * self.overlap < self.teachers:
            raise InvalidArgument("records", f"at least {self.teachers} / {self.overlap}", self.records)
        check_integer("assumed-overlap", self.assumed_overlap, low=self.overlap, high=self.teachers)
        if self.contiguous and (self.overlap > 1 or self.assumed_overlap < self.teachers):
            raise InvalidArgument(
                "contiguous",
                "used with overlap 1 and assumed-overlap K",
                f"overlap {self.overlap}, assumed-overlap {self.assumed_overlap}",
                "Removing one record moves the cuts between slices, so all K teachers may change.",
            )
        if self.training.noise_multiplier is None:
            raise InvalidArgument("noise-multiplier", "a number", None)
        check_number("delta", self.delta, low=0, high=1, low_open=True, high_open=True)
        check_number("allowance", self.allowance, low=0, low_open=True, high_open=True)
        if self.epsilon is not None:
            check_number(
                "epsilon",
                self.epsilon,
                low=0,
                low_open=True,
                high_open=True,
                cure="A label that costs nothing is pure chance.",
            )
        check_integer("queries", self.queries, low=1)
        if self.seed is not None:
            check_integer("seed", self.seed, low=0)
        check_number("total-delta", self.total_delta, low=0, high=1, low_open=True, high_open=True)


def claim_folder(folder: Path, settings: Settings) -> None:
    """Create the run folder; refuse one that holds a run with other settings or that cannot be written."""
    record = folder / "settings.json"
    wanted = json.loads(json.dumps(asdict(settings)))
    try:
        files.make_private_folder(folder, "run")
        if not record.exists():
            if any(folder.iterdir()):
                raise InvalidArgument("run", "a new or empty folder, or that of an earlier run", str(folder))
            write_whole(record, json.dumps(wanted, indent=1))
        stored = json.loads(record.read_text())
        files.make_private_folder(folder / "ledgers", "run")
        files.make_private_folder(folder / "students", "run")
    except (OSError, json.JSONDecodeError) as error:
        raise InvalidArgument("run", "a folder that can be read and written", str(folder), str(error)) from None
    different = sorted(name for name in wanted if stored.get(name) != wanted[name])
    if different:
        listing = ", ".join(f"{name}: {stored.get(name)} there, {wanted[name]} now" for name in different)
        raise InvalidArgument(
            "run", "a folder with the same settings", str(folder), f"Give another --run or the old settings: {listing}"
        )


def write_whole(file: Path, text: str) -> None:
    """Write a file completely or not at all, for its owner only: the user decides what is published."""
    with files.write_whole(file, private=True) as beside:
        beside.write_text(text)


def train_models(
    folder: Path,
    settings: Settings,
    task: Task,
    *,
    workers: int | None,
    device: str,
    build: Callable[[], nn.Module] = PaperCNN,
    plain: TrainingSettings | None = None,
    one_model: TrainingSettings | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[list[Path]]:
    """The files of private teachers, of plain ones on the same shards, and of one model on all records.

    All are trained side by side, while this process calls ``meanwhile``.

    Plain teachers are for the baselines that protect only the votes. They are trained with the settings ``plain``, by
    default those of the private ones without the noise. Without ``one_model``, its settings, there is no one model.
    """
    private_folder = folder / "private"
    shards = (
        contiguous_shards(len(task.private_labels), teachers=settings.teachers)
        if settings.contiguous
        else assign_shards(
            len(task.private_labels),
            teachers=settings.teachers,
            overlap=settings.overlap,
            private_folder=private_folder if settings.seed is None else None,
            insecure_seed=settings.seed,
        )
    )

    def prepared(place: str, name: str, training: TrainingSettings, **data: Any) -> Training:
        return prepare_training(
            folder / place,
            build_model=build,
            dataset=TensorDataset(task.private_images, task.private_labels),
            settings=training,
            private_folder=private_folder,
            name=name,
            workers=workers,
            device=device,
            insecure_seed=settings.seed,
            **data,
        )

    sharded = {"shards": shards, "shard_size": settings.shard_size}
    pooled = {"shards": [np.arange(len(task.private_labels))], "shard_size": settings.records}
    bare = replace(settings.training, noise_multiplier=None) if plain is None else plain
    trainings = [
        prepared("teachers", "teacher", settings.training, **sharded),
        prepared("teachers", "plain-teacher", bare, **sharded),
        *([] if one_model is None else [prepared("one-model", "model", one_model, **pooled)]),
    ]
    run_trainings(trainings, workers=workers, device=device, meanwhile=meanwhile)
    return [training.files for training in trainings]


def teachers_total(settings: Settings) -> dt.PrivacyGuarantee:
    """What any number of labels of the private teachers cost: publishing those whose data may hold one record."""
    noise, steps = settings.training.noise_multiplier, settings.training.steps_per_epoch(settings.shard_size)
    assert noise is not None
    teacher = dt.PrivacyProfile.from_dp_sgd([(noise, drawn_rate(1 / steps), steps * settings.training.epochs)])
    return dt.total_privacy(
        teachers=[teacher] * settings.teachers,
        overlap=settings.assumed_overlap,
        mechanism=dt.NoiseFreeMajority(classes=2),
        labels=settings.queries,
        delta=settings.total_delta,
    ).guarantee


def with_noise_for(total: dt.PrivacyGuarantee, settings: TrainingSettings, records: int) -> TrainingSettings:
    """The settings with the noise that ``total`` needs for one model on all ``records``, a declared number.

    This model is the honest baseline of every ensemble.
    """
    steps = settings.steps_per_epoch(records)
    noise = dt.calibrate_noise(total, sample_rate=1 / steps, steps=steps * settings.epochs)
    return replace(settings, noise_multiplier=noise)


def load_models(files: list[Path], build: Callable[[], nn.Module] = PaperCNN) -> list[nn.Module]:
    """The trained networks."""
    models = []
    for file in files:
        model = build()
        load_teacher(file, model)
        models.append(model.to(memory_format=torch.channels_last))  # a third faster on a CPU
    return models


def build_ensembles(
    folder: Path,
    settings: Settings,
    private: list[Path],
    plain: list[Path],
    one_model: list[Path] | None = None,
    *,
    gnmax_total: dt.PrivacyGuarantee | None = None,
) -> dict[str, dt.PrivateMajorityEnsemble]:
    """Every strategy at the same guarantee for one label, each with its own ledger.

    With ``gnmax_total``, all labels of GNMax together keep that total instead. ``one_model`` adds the labels of one
    private model.
    """
    models, bare = load_models(private), load_models(plain)
    overlap = settings.assumed_overlap
    target = None
    if settings.epsilon is not None:
        target = dt.PrivacyGuarantee(epsilon=settings.epsilon, delta=min(1.0, settings.allowance * settings.delta))

    def ledger(name: str) -> dt.PrivacyLedger:
        return dt.PrivacyLedger(folder / "ledgers" / f"{name}.ledger")

    def private_ensemble(name: str, mechanism: Any) -> dt.PrivateMajorityEnsemble:
        return dt.PrivateMajorityEnsemble(
            models, mechanism, profiles=profiles, overlap=overlap, ledger=ledger(name), delta=settings.total_delta
        )

    def from_opacus(name: str, **how: Any) -> dt.PrivateMajorityEnsemble:
        return dt.PrivateMajorityEnsemble.from_opacus(
            models, private, delta=settings.delta, overlap=overlap, ledger=ledger(name), **how
        )

    budget = {"allowance": settings.allowance} if target is None else {"target": target}
    optimal = from_opacus("darrm-optimal", teacher_promise="point", **budget)
    profiles, certificate = optimal.profiles, optimal.noise.certificate
    target, data_overlap = optimal.noise.target, settings.teachers if settings.contiguous else settings.overlap
    kept, labels = (target, 1) if gnmax_total is None else (gnmax_total, settings.queries)
    gnmax = dt.GNMax.calibrated(kept, labels=labels, overlap=data_overlap, teachers=settings.teachers)
    allowance = target.epsilon / max(point.epsilon for point in certificate.teacher)
    subsampled = dt.subsampling_noise(teachers=settings.teachers, allowance=int(min(allowance, settings.teachers)))
    teacher = dt.PrivacyProfile.from_guarantee(*certificate.teacher)
    checked = dt.certify(subsampled.gamma, teachers=settings.teachers, teacher=teacher, target=target, overlap=overlap)
    single = {}
    if one_model is not None:
        single["one-model"] = dt.PrivateMajorityEnsemble.from_opacus(
            load_models(one_model),
            one_model,
            mechanism=dt.NoiseFreeMajority(classes=2),
            ledger=ledger("one-model"),
            delta=settings.total_delta,
        )
    return {
        **single,
        "gnmax-exact": dt.PrivateMajorityEnsemble(
            bare, gnmax, overlap=data_overlap, ledger=ledger("gnmax-exact"), delta=settings.total_delta
        ),
        "darrm-subsampling": private_ensemble(
            "darrm-subsampling", dt.DaRRM(dt.NoiseFunction(gamma=subsampled.gamma, certificate=checked))
        ),
        "darrm-self-bounding": private_ensemble(
            "darrm-self-bounding",
            dt.DaRRM(dt.self_bounding_noise(teachers=settings.teachers, allowance=allowance, overlap=overlap)),
        ),
        "darrm-optimal": optimal,
        "darrm-profile": from_opacus("darrm-profile", target=target),
        "noise-free": private_ensemble("noise-free", dt.NoiseFreeMajority(classes=2)),
    }
