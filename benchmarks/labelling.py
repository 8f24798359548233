"""The time of a private label besides its votes: mechanism and ledger; and teachers stacked in one forward pass."""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import darrm_torch as dt
from darrm_torch.teachers.stacking import LARGEST_BATCH, StackedNetworks
from recipes.models import PaperCNN

from .measuring import Record, seconds

TEACHERS = 11
TARGET = dt.PrivacyGuarantee(epsilon=0.2556, delta=3e-4)
TEACHER = dt.PrivacyGuarantee(epsilon=0.0852, delta=1e-4)


def mechanisms() -> dict[str, tuple[dt.Mechanism, int]]:
    """Name -> (mechanism, classes)."""
    return {
        "DaRRM": (dt.DaRRM(dt.optimize_noise(teachers=TEACHERS, teacher=TEACHER, target=TARGET)), 2),
        "SelfBoundingPlurality": (dt.SelfBoundingPlurality(teachers=TEACHERS, classes=10, allowance=3), 10),
        "GNMax, analytic": (dt.GNMax.calibrated(TARGET), 2),
        "GNMax, analytic, 10 classes": (dt.GNMax.calibrated(TARGET), 10),
        "GNMax, RDP": (dt.GNMax.calibrated(TARGET, method="rdp"), 2),
        "ConfidentGNMax": (dt.ConfidentGNMax(threshold=7, sigma_check=13.4, sigma=13.4, delta=3e-4), 2),
        "LNMax": (dt.LNMax(scale=2 / TARGET.epsilon), 2),
        "PermuteAndFlip": (dt.PermuteAndFlip(epsilon=TARGET.epsilon), 2),
        "ExponentialMechanism": (dt.ExponentialMechanism(epsilon=TARGET.epsilon), 2),
        "NoiseFreeMajority": (dt.NoiseFreeMajority(), 2),
    }


class Timed(nn.Module):
    """A teacher that adds the seconds of its forward passes to a sum over all teachers."""

    spent = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.network = PaperCNN()

    def forward(self, images: Tensor) -> Tensor:
        start = time.perf_counter()
        logits: Tensor = self.network(images)
        Timed.spent += time.perf_counter() - start
        return logits


def overhead(images: Tensor, *, batch: int, budget: bool) -> Record:
    """The time of labelling besides the forward passes, relative to the forward passes, in one run."""
    with tempfile.TemporaryDirectory() as folder:
        most = dt.PrivacyGuarantee(epsilon=1.0, delta=3e-4) if budget else None
        ensemble = dt.PrivateMajorityEnsemble(
            [Timed() for _ in range(TEACHERS)],
            mechanisms()["DaRRM"][0],
            profiles=[dt.PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])] * TEACHERS,
            ledger=dt.PrivacyLedger(Path(folder) / "labels.ledger", most),
        )
        ensemble(torch.rand(batch, *images.shape[1:]))  # do not count what loads once, at the first label
        Timed.spent, start = 0.0, time.perf_counter()
        for part in images.split(batch):
            ensemble(part)
        total = time.perf_counter() - start
        ensemble.ledger.close()
    case = f"{len(images)} images, {TEACHERS} paper CNNs, {batch} at a time" + (", with a budget" if budget else "")
    record = {"case": case, "seconds": total, "forward_seconds": Timed.spent}
    return {**record, "overhead": (total - Timed.spent) / Timed.spent}


def perceptrons(count: int, *sizes: int) -> list[nn.Module]:
    """Networks of linear layers without activations, which would take the same time either way."""
    return [nn.Sequential(*(nn.Linear(*pair) for pair in itertools.pairwise(sizes))) for _ in range(count)]


def networks() -> dict[str, tuple[list[nn.Module], tuple[int, ...]]]:
    """Ensembles of one architecture each, and the shape of one input."""
    return {
        "11 paper CNNs": ([PaperCNN() for _ in range(TEACHERS)], (1, 28, 28)),
        "11 linear 784-10": (perceptrons(11, 784, 10), (784,)),
        "250 linear 784-10": (perceptrons(250, 784, 10), (784,)),
        "32 perceptrons 784-512-512-10": (perceptrons(32, 784, 512, 512, 10), (784,)),
        "250 perceptrons 20-64-64-2": (perceptrons(250, 20, 64, 64, 2), (20,)),
    }


@torch.no_grad()
def stacked(case: str, teachers: list[nn.Module], shape: tuple[int, ...], *, batch: int, repeat: int) -> Record:
    """One stacked pass compared with one network after another."""
    inputs, together = torch.rand(batch, *shape), StackedNetworks(teachers)
    apart = seconds(lambda: [teacher(inputs) for teacher in teachers], repeat=repeat, clock=time.perf_counter)
    once = seconds(lambda: together(inputs), repeat=repeat, clock=time.perf_counter)
    chosen = StackedNetworks.where_quicker(teachers) is not None and batch <= LARGEST_BATCH
    record = {"case": f"{case}, {batch} at a time", "seconds": apart, "stacked_seconds": once}
    return {**record, "times_faster_stacked": apart / once, "stacked_by_the_ensemble": chosen}


def measure(*, items: int, images: int, repeat: int) -> list[Record]:
    """Mechanisms on ``items`` counts, labelling of ``images`` images, and ways to run many networks."""
    generator = np.random.default_rng(0)
    records: list[Record] = []
    for name, (mechanism, classes) in mechanisms().items():
        chances = np.full(classes, 0.3 / (classes - 1))
        chances[0] = 0.7
        counts = generator.multinomial(TEACHERS, chances, size=items)
        spent = seconds(lambda mechanism=mechanism, counts=counts: mechanism.aggregate(counts), repeat=repeat)
        records.append({"case": f"{name}, {items} labels from counts", "seconds": spent})
    pixels = torch.rand(images, 1, 28, 28)
    records += [overhead(pixels, batch=500, budget=budget) for budget in (False, True)]
    for case, (teachers, shape) in networks().items():
        records += [stacked(case, teachers, shape, batch=batch, repeat=repeat) for batch in (1, 32, 64, 500)]
    return records
