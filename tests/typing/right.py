"""A user's script: every line must pass mypy --strict and pyright. It is checked, not run."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

import darrm_torch as dt
from darrm_torch import PrivacyGuarantee, PrivacyProfile


def noise_for(teachers: int, epsilon: float) -> dt.NoiseFunction:
    teacher = PrivacyGuarantee(epsilon=epsilon, delta=1e-5)
    target = PrivacyGuarantee(epsilon=3 * epsilon, delta=3e-5)
    noise = dt.optimize_noise(teachers=teachers, teacher=teacher, target=target, overlap=2)
    gamma: float = float(noise.gamma[0])
    print(gamma, noise.to_json())
    return dt.NoiseFunction.from_json(noise.to_json())


def label(models: Sequence[nn.Module], images: Tensor) -> Tensor:
    profile = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
    epsilon: float = profile.epsilon(1e-4)
    mechanism = dt.DaRRM(noise_for(len(models), epsilon))
    ledger = dt.PrivacyLedger("labels.ledger", budget=PrivacyGuarantee(epsilon=1.0, delta=1e-4))
    ensemble = dt.PrivateMajorityEnsemble(list(models), mechanism, profiles=[profile] * len(models), ledger=ledger)
    labels: Tensor = ensemble(images)
    dt.plot_noise(ensemble.noise)
    spent: int = ensemble.ledger.count
    print(spent, ensemble.total_privacy(labels=10).guarantee.epsilon)
    return labels


def choose() -> str:
    answer = dt.plan(teachers=11, teacher=PrivacyGuarantee(epsilon=0.1), label_target=PrivacyGuarantee(epsilon=0.3))
    return str(answer)


def other_noise(counts: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> None:
    for mechanism in (dt.GNMax(sigma=2.0), dt.PermuteAndFlip(epsilon=1.0), dt.NoiseFreeMajority()):
        print(mechanism.aggregate(counts), mechanism.aggregate(torch.from_numpy(counts)))


try:
    noise_for(3, -1.0)
except dt.InvalidArgument as error:
    print(error.name, error.expected)
