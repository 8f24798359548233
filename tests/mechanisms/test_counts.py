"""Private counts: the law of their noise, and intervals that cover an accuracy at the stated rate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darrm_torch import InvalidArgument
from darrm_torch.mechanisms.counts import accuracy_interval, private_counts


def coverage(units: int, accuracy: float, epsilon: float, cells: int, *, runs: int, ignored: bool = False) -> float:
    """How often the interval covers; ``ignored``: the noise is in the counts, and the interval leaves it out."""
    rng, covered = np.random.default_rng(22), 0
    for run in range(runs):
        right = rng.binomial(units, accuracy)
        table = np.zeros((2, cells), dtype=np.int64)
        table[:, 0] = right, units - right
        one, two = private_counts(table, epsilon=epsilon, insecure_seed=run).sum(axis=1).tolist()
        known = {"epsilon": 64.0} if ignored else {"epsilon": epsilon, "cells": cells}
        low, high = accuracy_interval(one, two, **known)  # type: ignore[arg-type]
        covered += low <= accuracy <= high
    return covered / runs


def test_the_interval_covers() -> None:
    # Of 40 runs at a rate of 95 percent, fewer than 33 cover in one of 1,400 trials.
    assert coverage(150, 0.93, 0.3, 2, runs=40) >= 33 / 40
    assert coverage(150, 0.93, 0.3, 2, runs=40, ignored=True) < 33 / 40  # without the noise it does not


@pytest.mark.slow
@pytest.mark.parametrize(
    ("units", "accuracy", "epsilon", "cells"),
    [(1500, 0.93, 0.05, 2), (1500, 0.93, 0.5, 2), (300, 0.6, 0.3, 1), (40, 0.98, 0.5, 1), (3000, 0.8, 0.1, 10)],
)
def test_the_interval_covers_in_a_thousand_runs(units: int, accuracy: float, epsilon: float, cells: int) -> None:
    # Of 1,000 runs at a rate of 95 percent, fewer than 930 cover in one of 400 trials.
    assert coverage(units, accuracy, epsilon, cells, runs=1000) >= 0.930


def test_the_interval_covers_by_enumeration() -> None:
    units, accuracy, reach, a = 4, 0.75, 3, math.exp(-3)
    counts, noise = range(-reach, units + reach + 1), np.array([a ** abs(z) for z in range(-reach, reach + 1)])
    noise *= (1 - a) / (1 + a)
    covered = np.array([
        [low <= accuracy <= high for low, high in (accuracy_interval(r, w, epsilon=3.0) for w in counts)]
        for r in counts
    ])  # fmt: skip
    total = 0.0
    for right in range(units + 1):
        chance = math.comb(units, right) * accuracy**right * (1 - accuracy) ** (units - right)
        part = covered[right : right + 2 * reach + 1, units - right : units - right + 2 * reach + 1]
        total += chance * noise @ part @ noise
    assert 0.95 <= total <= 1


def test_intervals_shrink_and_are_symmetric() -> None:
    assert accuracy_interval(930, 70, epsilon=64.0) == pytest.approx((0.9107, 0.9456), abs=2e-3)  # Clopper-Pearson
    low, high = accuracy_interval(930, 70, epsilon=0.5)
    other = accuracy_interval(70, 930, epsilon=0.5)
    assert other == pytest.approx((1 - high, 1 - low), abs=1e-12)
    widths = [high - low for low, high in (accuracy_interval(93 * n, 7 * n, epsilon=0.5) for n in (1, 4))]
    assert widths == sorted(widths, reverse=True)
    narrow, wide = (accuracy_interval(930, 70, epsilon=0.5, confidence=level) for level in (0.8, 0.99))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    for extremes in ((0, 0), (-9, -9), (-9, 40), (40, -9), (10**5, 10**5)):
        low, high = accuracy_interval(*extremes, epsilon=0.5)
        assert 0 <= low <= high <= 1
    assert accuracy_interval(0, 0, epsilon=0.5) == (0.0, 1.0)


def test_the_noise_has_its_law() -> None:
    # Chi-square with 8 degrees of freedom: fails once in 10,000 runs.
    drawn = private_counts(np.zeros(20_000, dtype=np.int64), epsilon=0.7)
    places, a = np.arange(-4, 5), math.exp(-0.7)
    law = (1 - a) / (1 + a) * a ** np.abs(places)
    law[0], law[-1] = a**4 / (1 + a), a**4 / (1 + a)
    seen = np.array([(np.clip(drawn, -4, 4) == place).sum() for place in places])
    assert ((seen - 20_000 * law) ** 2 / (20_000 * law)).sum() < 31.8
    assert private_counts(np.zeros((0, 2), dtype=np.int64), epsilon=0.7).shape == (0, 2)
    assert private_counts([[3, 4]], epsilon=1.0, insecure_seed=1).tolist() == [
        [3 + one for one in private_counts([0, 1], epsilon=1.0, insecure_seed=1).tolist()]
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda: private_counts([0.5], epsilon=1.0),
        lambda: private_counts([1], epsilon=0.0),
        lambda: private_counts([1], epsilon=math.nan),
        lambda: private_counts([1], epsilon=1e-9),
        lambda: accuracy_interval(1, 2, epsilon=1.0, confidence=1.0),
        lambda: accuracy_interval(1, 2, epsilon=1.0, cells=0),
        lambda: accuracy_interval(10**12, 2, epsilon=1.0),
    ],
)
def test_what_is_no_count_is_refused(call: object) -> None:
    with pytest.raises(InvalidArgument):
        call()  # type: ignore[operator]
