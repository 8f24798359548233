"""The worst r of K unlike teachers: against every subset, under small changes, and for many teachers."""

from __future__ import annotations

import itertools
import math
from functools import reduce

import pytest

import darrm_torch as dt
from darrm_torch import PrivacyGuarantee, PrivacyProfile
from darrm_torch.mechanisms.noise_free import NoiseFreeMajority
from darrm_torch.privacy.unlike import worst_epsilon, worst_subsets


def trained(noise: float, rate: float, steps: int) -> PrivacyProfile:
    return PrivacyProfile.from_dp_sgd([(noise, rate, steps)])


SIX = tuple(trained(3.0, 1 / n, 10 * n) for n in range(6, 12))
BETTER = [
    trained(3.0, 1 / 6, 55),
    *(pytest.param(one, marks=pytest.mark.slow) for one in (trained(3.3, 1 / 6, 60), trained(3.0, 1 / 7, 60))),
]


@pytest.mark.slow
def test_two_of_six_teachers_cost_what_the_worst_pair_does() -> None:
    pairs = [one.compose(other).epsilon(1e-5) for one, other in itertools.combinations(SIX, 2)]
    total = dt.total_privacy(teachers=SIX, overlap=2, mechanism=NoiseFreeMajority(), labels=7, delta=1e-5)
    assert total.epsilon == pytest.approx(max(pairs), rel=1e-3)
    assert total.epsilon <= 2.5735
    assert worst_epsilon(SIX, 3, 1, 1e-5) <= 3.0875
    assert worst_epsilon(SIX, 3, 1, 1e-5) == pytest.approx(
        reduce(PrivacyProfile.compose, SIX[:3]).epsilon(1e-5), rel=1e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize("better", BETTER)
@pytest.mark.parametrize("place", [0, pytest.param(5, marks=pytest.mark.slow)])
def test_a_more_private_teacher_never_raises_the_price(better: PrivacyProfile, place: int) -> None:
    worse = (*SIX[:place], trained(3.0, 1 / 6, 60), *SIX[place + 1 :])
    improved = (*SIX[:place], better, *SIX[place + 1 :])
    for count in (2, 4):
        assert worst_epsilon(improved, count, 1, 1e-5) <= worst_epsilon(worse, count, 1, 1e-5) * (1 + 1e-6)


def test_dominated_teachers_are_left_out() -> None:
    chain = [trained(sigma, 0.1, 20) for sigma in (4.0, 2.0, 3.0, 2.0)]
    assert worst_subsets(chain, 2, limit=9) == [(chain[1], chain[1])]
    assert worst_epsilon(tuple(chain), 3, 1, 1e-5) == chain[1].compose(2).compose(chain[2]).epsilon(1e-5)
    assert worst_subsets(SIX, 2, limit=14) is None
    assert len(worst_subsets(SIX, 2, limit=15) or ()) == 15


def test_guarantees_and_teachers_without_privacy() -> None:
    unlike = tuple(map(PrivacyProfile.from_guarantee, (PrivacyGuarantee(epsilon=e) for e in (0.1, 0.3, 0.2))))
    assert worst_epsilon(unlike, 2, 1, 0.0) == pytest.approx(0.5, rel=1e-12)
    mixed = (*unlike, SIX[0])
    pairs = [one.compose(other).epsilon(1e-5) for one, other in itertools.combinations(mixed, 2)]
    assert max(pairs) * (1 - 1e-3) <= worst_epsilon(mixed, 2, 1, 1e-5) <= max(pairs) * (1 + 2e-3)
    assert worst_epsilon((*SIX, PrivacyProfile.non_private()), 2, 1, 1e-5) == math.inf


@pytest.mark.slow
def test_many_unlike_teachers_are_bounded_closely() -> None:
    many = tuple(trained(3.0, 1 / n, 5 * n) for n in range(100, 300))
    worst = reduce(PrivacyProfile.compose, many[:20]).epsilon(1e-5)
    assert worst * (1 - 2e-3) <= worst_epsilon(many, 20, 1, 1e-5) <= worst * (1 + 1e-2)


def test_few_subsets_too_many_to_enumerate_are_bounded_closely() -> None:
    many = tuple(trained(3.0, 1 / n, 5 * n) for n in range(10, 22))
    worst = reduce(PrivacyProfile.compose, many[:4]).epsilon(1e-5)
    assert worst * (1 - 2e-3) <= worst_epsilon(many, 4, 1, 1e-5) <= worst * (1 + 1e-2)
