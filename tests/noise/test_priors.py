"""Priors against exact rational sums, numerical integrals and enumeration."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import integrate, stats

from darrm_torch import BetaVotes, IndependentVotes, InvalidArgument, SharedVotes
from darrm_torch.noise.priors import majority_lead, vote_law


def enumerated_law(probabilities: list[float]) -> list[float]:
    law = [Fraction(0)] * (len(probabilities) + 1)
    for votes in itertools.product((0, 1), repeat=len(probabilities)):
        law[sum(votes)] += math.prod(
            (Fraction(p) if v else 1 - Fraction(p) for p, v in zip(probabilities, votes, strict=True)),
            start=Fraction(1),
        )
    return [float(x) for x in law]


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
def test_vote_law_is_the_enumeration(probabilities: list[float]) -> None:
    assert np.allclose(vote_law(np.array(probabilities)), enumerated_law(probabilities), rtol=1e-13, atol=1e-300)


def test_vote_law_is_relatively_accurate_in_the_tail() -> None:
    law = vote_law(np.full((2, 60), 1e-3))
    assert law.shape == (2, 61)
    assert law[0, 60] == pytest.approx(1e-180, rel=1e-12)


@pytest.mark.parametrize("teachers", [1, 2, 7, 11, 1001])
@pytest.mark.parametrize("mean", [0.0, 0.3, 0.5, 0.75, 1.0])
def test_independent_votes_are_binomial(teachers: int, mean: float) -> None:
    law = IndependentVotes(mean=mean).law(teachers)
    assert np.allclose(law, stats.binom.pmf(np.arange(teachers + 1), teachers, mean), rtol=1e-9, atol=1e-300)


def test_independent_votes_do_not_depend_on_the_law_of_each_chance() -> None:
    # Exact: two-point laws of p_i with the same mean, different for each teacher, averaged over all combinations.
    mean, teachers = Fraction(3, 4), 5
    laws = [(mean - Fraction(1, k + 2), mean + Fraction(1, 5), Fraction(k + 2, k + 7)) for k in range(teachers)]
    laws = [(a, b, (b - mean) / (b - a)) for a, b, _ in laws]
    total = [Fraction(0)] * (teachers + 1)
    for choice in itertools.product((0, 1), repeat=teachers):
        weight, law = Fraction(1), [Fraction(1)]
        for pick, (a, b, share) in zip(choice, laws, strict=True):
            p = b if pick else a
            weight *= 1 - share if pick else share
            law = [x * (1 - p) + y * p for x, y in zip([*law, 0], [0, *law], strict=True)]
        total = [t + weight * x for t, x in zip(total, law, strict=True)]
    assert np.allclose([float(t) for t in total], IndependentVotes(mean=0.75).law(teachers), rtol=1e-13)


@pytest.mark.parametrize("teachers", [1, 4, 11])
@pytest.mark.parametrize(
    ("prior", "density"),
    [
        (SharedVotes(low=0.5, high=1.0), stats.uniform(0.5, 0.5)),
        (SharedVotes(low=0.2, high=0.9), stats.uniform(0.2, 0.7)),
        (BetaVotes(a=3.0, b=1.5), stats.beta(3.0, 1.5)),
    ],
)
def test_shared_votes_are_integrals(
    teachers: int, prior: SharedVotes | BetaVotes, density: stats.rv_continuous
) -> None:
    def at(p: float) -> np.ndarray:
        return stats.binom.pmf(np.arange(teachers + 1), teachers, p) * density.pdf(p)

    low, high = density.support()
    law, _ = integrate.quad_vec(at, low, high)
    lead, _ = integrate.quad_vec(lambda p: np.abs(majority_lead(at(p))), low, high, points=(0.5,))
    assert np.allclose(prior.law(teachers), law, rtol=1e-7)
    assert np.allclose(prior.lead_weights(teachers), lead, rtol=1e-6, atol=1e-9)


def test_a_shared_chance_may_be_certain() -> None:
    assert np.allclose(SharedVotes(low=0.6, high=0.6).law(5), IndependentVotes(mean=0.6).law(5))
    assert np.allclose(SharedVotes(low=0.6, high=0.6).lead_weights(5), majority_lead(IndependentVotes(mean=0.6).law(5)))


def test_the_sign_of_the_lead_is_known_on_one_side_of_a_half_only() -> None:
    assert IndependentVotes(mean=0.74).lead_weights(5) is None
    sample = IndependentVotes(mean=0.75).sample(5, 2000, np.random.default_rng(1))
    assert sample.shape == (2000, 5)
    assert 0.5 <= sample.min() < sample.max() <= 1.0
    assert np.all(majority_lead(vote_law(sample)) >= 0)  # dropping the absolute value is exact on [1/2, 1]^K
    wide = IndependentVotes(mean=0.5).sample(5, 2000, np.random.default_rng(1))
    assert np.any(majority_lead(vote_law(wide)) < 0)


def test_majority_lead() -> None:
    assert majority_lead(np.array([0.1, 0.2, 0.3, 0.4])).tolist() == pytest.approx([0.1, 0.3])
    assert majority_lead(np.array([0.1, 0.2, 0.7])).tolist() == pytest.approx([0.6])


@pytest.mark.parametrize(
    "make",
    [
        lambda: IndependentVotes(mean=1.5),
        lambda: IndependentVotes(mean=math.nan),
        lambda: SharedVotes(low=0.7, high=0.6),
        lambda: SharedVotes(low=-0.1),
        lambda: BetaVotes(a=0.0, b=1.0),
        lambda: BetaVotes(a=1.0, b=math.inf),
    ],
)
def test_priors_check_themselves(make: object) -> None:
    with pytest.raises(InvalidArgument, match="must be a number in"):
        make()  # type: ignore[operator]
