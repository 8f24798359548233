"""Exact draws: tails against 50-digit arithmetic, every branch of the sampler with bits chosen by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from darrm_torch.mechanisms.sampling import (
    GaussianTail,
    GeometricTail,
    Magnitudes,
    RandomBits,
    fair_argmax,
    tie_quadrature,
)
from tests.processes import processor_seconds

TAILS = {
    "gaussian": GaussianTail(13.43, 1.0),
    "narrow": GaussianTail(0.3, 2.0**-6),
    "wide": GaussianTail(1e4, 1.0),
    "one-sided": GeometricTail(Fraction(0.9), Fraction(1)),
    "two-sided": GeometricTail(Fraction(0.3), 2 / (1 + Fraction(0.3))),
    "certain": GeometricTail(Fraction(math.exp(-500)), Fraction(1)),
}
tails = pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS.keys())


class Scripted(RandomBits):
    """Hands out the words that it was given."""

    def __init__(self, *words: int) -> None:
        super().__init__()
        self.left = list(words)

    def words(self, *shape: int) -> np.ndarray:
        size = math.prod(shape)
        taken, self.left = self.left[:size], self.left[size:]
        assert len(taken) == size, "more bits were asked for than expected"
        return np.array(taken, dtype=np.uint64).reshape(shape)


def exact(tail, g: int) -> mpmath.mpf:
    """S(g) to the working precision."""
    if g == 0:
        return mpmath.mpf(1)
    if isinstance(tail, GaussianTail):
        return mpmath.erfc(mpmath.mpf(g - 0.5) * tail.step / (mpmath.mpf(tail.sigma) * mpmath.sqrt(2)))
    value = tail.first * tail.ratio**g
    return mpmath.mpf(value.numerator) / value.denominator


@tails
def test_float_tails_are_as_accurate_as_the_sampler_assumes(tail) -> None:
    reach = max(Magnitudes(tail).reach, 1)
    for g in np.unique(np.linspace(1, reach, 60).astype(int)):
        with mpmath.workdps(50):
            assert abs(tail.floats(np.array([float(g)]))[0] / exact(tail, int(g)) - 1) < 2.0**-41


@tails
@pytest.mark.parametrize("bits", [63, 127, 191])
def test_enclosures_enclose(tail, bits: int) -> None:
    for g in (1, 2, 5, 40):
        low, high = tail.enclosure(g, bits)
        with mpmath.workdps(120):
            assert low <= exact(tail, g) * mpmath.mpf(2) ** bits <= high
        assert high - low <= 3


@tails
def test_draws_near_every_threshold_are_right(tail) -> None:
    """Words next to S(g) * 2**63, where the table decides last: the draw is the G with S(G) > U >= S(G + 1)."""
    magnitudes = Magnitudes(tail)
    for g in np.unique(np.linspace(1, max(magnitudes.reach, 1), 25).astype(int)):
        with mpmath.workdps(80):
            edge = int(mpmath.floor(exact(tail, int(g)) * 2**63))
            for word in range(max(edge - 2, 0), min(edge + 3, 2**63)):
                drawn = int(magnitudes.draw(Scripted(word << 1, *[2**63] * 3), 1)[0])
                uniform = (mpmath.mpf(word) + mpmath.mpf(0.5)) / 2**63  # up to the bits 2**-128 and beyond
                assert exact(tail, drawn) > uniform >= exact(tail, drawn + 1)


@pytest.mark.parametrize("g", [65536, 1_000_000])
def test_enclosures_of_wide_noise_take_no_time(g: int) -> None:
    """An exact power has millions of digits: 200 ms and 20 s; one draw in 8 million asks for one."""
    ratio = Fraction(math.exp(-1 / 65536))
    tail = GeometricTail(ratio, 2 / (1 + ratio))
    assert processor_seconds(lambda: tail.enclosure(g, 63), below=0.05) < 0.05
    low, high = tail.enclosure(g, 63)
    with mpmath.workdps(60):
        one = mpmath.mpf(ratio.numerator) / ratio.denominator
        assert low <= mpmath.ldexp(2 / (1 + one) * one**g, 63) <= high
    assert high - low <= 3


def test_undecided_words_are_decided_by_further_bits() -> None:
    tail = GeometricTail(Fraction(1, 3), Fraction(1))  # 2**63 / 3 is no integer: one word cannot decide
    word = 2**63 // 3
    sampler = Magnitudes(tail)
    below, above = Scripted(word << 1, 0), Scripted(word << 1, 2**64 - 1)
    assert sampler.draw(below, 1)[0] == 1
    assert sampler.draw(above, 1)[0] == 0
    assert not below.left
    assert not above.left
    # The binary digits of 1/3 go on as ..0101: the next 64 bits leave it open once more.
    undecided = Fraction(2**127, 3) - word * 2**64
    assert sampler.draw(Scripted(word << 1, math.floor(undecided), 0), 1)[0] == 1
    assert sampler.draw(Scripted(word << 1, math.floor(undecided), 2**64 - 1), 1)[0] == 0


def test_the_far_tail_is_reached() -> None:
    sampler = Magnitudes(GeometricTail(Fraction(1, 2), Fraction(1)))
    assert sampler.reach == 64
    # U in [0, 2**-63) and then [2**-100, 2**-100 + 2**-127): G = 100 exactly when U < 2**-100, so 99.
    assert sampler.draw(Scripted(0, 1 << 27), 1)[0] == 99
    assert sampler.draw(Scripted(0, (1 << 27) - 1), 1)[0] == 100
    # Here the table ends with S(27) > 2**-63 and leaves no doubt, but U may still be below S(28) = 2**-65.01.
    sampler = Magnitudes(GeometricTail(Fraction(1, 5), Fraction(1)))
    assert sampler.reach == 27
    edge = 2**127 // 5**28
    assert sampler.draw(Scripted(0, edge - 1), 1)[0] == 28
    assert sampler.draw(Scripted(0, edge + 1), 1)[0] == 27


def test_sign_is_the_last_bit() -> None:
    sampler = Magnitudes(GeometricTail(Fraction(1, 2), Fraction(1)))
    word = 3 << 61  # U = 3/8: G = 1
    assert sampler.signed(Scripted(word, word | 1), 2).tolist() == [1, -1]


@tails
def test_symmetric_law_is_symmetric_and_sums_to_one(tail) -> None:
    law = Magnitudes(tail).symmetric_law()
    assert np.array_equal(law, law[::-1])
    assert law.min() >= 0
    assert abs(law.sum() - 1) < 1e-12


@pytest.mark.parametrize("name", ["gaussian", "narrow", "two-sided"])
def test_signed_draws_follow_the_law(name: str) -> None:
    sampler = Magnitudes(TAILS[name])
    values = sampler.signed(RandomBits(insecure_seed=1), 200_000)
    law = sampler.symmetric_law() * values.size
    seen = np.bincount(values + sampler.reach, minlength=law.size)
    kept = law >= 10
    statistic = ((seen[kept] - law[kept]) ** 2 / law[kept]).sum()
    assert stats.chi2.sf(statistic, kept.sum() - 1) > 1e-6  # false alarm 1e-6, fixed seed


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 2**62), min_size=1, max_size=5), st.integers(0, 2**32))
def test_integers_below_a_limit(limits: list[int], seed: int) -> None:
    drawn = RandomBits(insecure_seed=seed).below(np.array(limits))
    assert np.all((drawn >= 0) & (drawn < limits))


def test_integers_below_a_limit_are_exactly_uniform() -> None:
    # 2**64 = 3 * 0x5555555555555555 + 1: the last word is the only one rejected for limit 3.
    assert Scripted(2**64 - 1, 5).below(np.array([3])).tolist() == [2]
    assert Scripted(2**64 - 2).below(np.array([3])).tolist() == [(2**64 - 2) % 3]
    # A power of two rejects nothing.
    assert Scripted(2**64 - 1).below(np.array([4])).tolist() == [3]
    # One choice needs no bits.
    assert Scripted().below(np.array([1])).tolist() == [0]


def test_ties_are_fair() -> None:
    scores = np.tile([[2, 5, 5, 1, 5]], (60_000, 1))
    seen = np.bincount(fair_argmax(scores, RandomBits(insecure_seed=9)), minlength=5)
    assert seen[[0, 3]].sum() == 0
    assert stats.chisquare(seen[[1, 2, 4]]).pvalue > 1e-6  # false alarm 1e-6, fixed seed


def test_untied_rows_take_no_bits() -> None:
    assert fair_argmax(np.array([[1, 2], [4, 3]]), Scripted()).tolist() == [1, 0]


@pytest.mark.parametrize("classes", [2, 3, 10, 66, 67, 68, 300, 1000])
def test_ties_among_many_classes_need_few_nodes(classes: int) -> None:
    """The chance of a fair choice among m + 1 that tie is 1 / (m + 1), up to the rounding of the nodes."""
    nodes, weights = tie_quadrature(classes)
    assert len(nodes) <= 8 + 3 * math.isqrt(classes) + 3
    powers = np.arange(classes)
    chances = np.exp(powers[:, None] * np.log(nodes)) @ weights
    np.testing.assert_allclose(chances * (powers + 1), 1.0, rtol=2e-11)
