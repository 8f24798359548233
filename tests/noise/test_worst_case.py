"""The oracle against brute force that shares nothing with it: corners by half planes, laws by convolution, all tuples.

The brute force works in ball arithmetic with e^epsilon bounded to 50 digits, so what it proves is proven.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from darrm_torch import InvalidArgument, PrivacyGuarantee, PrivacyProfile, optimize_noise
from darrm_torch.noise.certificate import certify_scaled
from darrm_torch.noise.grid import is_monotone, label_law, on_grid
from darrm_torch.noise.priors import vote_law
from darrm_torch.noise.regions import Region, growth_at_least
from darrm_torch.noise.worst_case import Losses, worst_losses

flint = pytest.importorskip("flint")

Points = list[tuple[float, float]]


def exp_bound(epsilon: float, *, up: bool) -> Fraction:
    with localcontext() as context:
        context.prec = 50
        return Fraction(Decimal(epsilon).exp()) * (1 + Fraction(1 if up else -1, 10**48))


def vertices(points: Points) -> list[tuple[Fraction, Fraction]]:
    """All corners of a region that contains the true one, by intersecting all lines a p + b p' = c."""
    planes = [(Fraction(s), Fraction(0), Fraction(max(s, 0))) for s in (1, -1)]
    planes += [(b, a, c) for a, b, c in planes]
    for epsilon, delta in points:
        if math.isfinite(epsilon):
            e, d = (exp_bound(epsilon, up=True) if epsilon else Fraction(1)), Fraction(delta)
            planes += [(Fraction(1), -e, d), (-e, Fraction(1), d)]
            planes += [(e, Fraction(-1), d + e - 1), (Fraction(-1), e, d + e - 1)]
    found = set()
    for (a, b, c), (d, e, f) in itertools.combinations(planes, 2):
        if a * e != b * d:
            p, q = (c * e - b * f) / (a * e - b * d), (a * f - c * d) / (a * e - b * d)
            if all(x * p + y * q <= z for x, y, z in planes):
                found.add((p, q))
    return sorted(found)


def ball(x: Fraction) -> Any:
    return flint.arb(flint.fmpq(x.numerator, x.denominator))


def laws(corners: list[tuple[Any, Any]], teachers: int, *, ordered: bool) -> Iterator[tuple[list[Any], list[Any]]]:
    """The two laws of the vote count for all tuples of corners, or for all multisets."""

    def grow(first: int, left: int, here: list[Any], there: list[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
        if not left:
            yield here, there
            return
        for index in range(0 if ordered else first, len(corners)):
            p, q = corners[index]
            yield from grow(
                index,
                left - 1,
                [x * (1 - p) + y * p for x, y in zip([*here, 0], [0, *here], strict=True)],
                [x * (1 - q) + y * q for x, y in zip([*there, 0], [0, *there], strict=True)],
            )

    yield from grow(0, teachers, [flint.arb(1)], [flint.arb(1)])


@flint.ctx.workprec(128)
def brute_loss(gamma: np.ndarray, points: Points, epsilon: float, overlap: int, *, ordered: bool = False) -> Any:
    """Upper end of max Pr[label 1] - e^epsilon Pr'[label 1], over all corners of r teachers, all votes of the rest."""
    teachers = len(gamma) - 1
    half = Fraction(1, 2)
    signs = [(2 * votes > teachers) - (2 * votes < teachers) for votes in range(teachers + 1)]
    law = [ball(half + half * s * Fraction(float(g))) for s, g in zip(signs, gamma, strict=True)]
    growth = ball(exp_bound(epsilon, up=False) if epsilon else Fraction(1))
    best = -math.inf
    corners = [(ball(p), ball(q)) for p, q in vertices(points)]
    for here, there in laws(corners, overlap, ordered=ordered):
        for ones in range(teachers - overlap + 1):
            loss = sum(q * (p - growth * s) for q, p, s in zip(law[ones:], here, there, strict=False))
            best = max(best, float(loss.upper()))
    return best


def search(
    gamma: np.ndarray, points: Points, epsilon: float, overlap: int, *, rigorous: bool = False, monotone: bool = False
) -> Losses:
    region = Region(guarantees=tuple(PrivacyGuarantee(epsilon=e, delta=d) for e, d in points))
    return worst_losses(
        label_law(gamma),
        region=region,
        overlap=overlap,
        growth=growth_at_least(epsilon),
        monotone=monotone,
        rigorous=rigorous,
    )


def symmetric(half: list[float], teachers: int) -> np.ndarray:
    upper = np.array(half[: (teachers + 1) // 2])
    return np.concatenate([upper[::-1], [0.0] * (1 - teachers % 2), upper])


CASES = [
    (3, [(0.1, 0.0)], 0.1, 3),
    (3, [(1.0, 0.01)], 0.5, 3),
    (4, [(0.2, 1e-4)], 0.5, 4),
    (5, [(0.1, 1e-5)], 0.3, 2),
    (5, [(math.inf, 0.0)], 1.0, 2),
    (4, [(0.0, 0.1)], 0.0, 3),
    (4, [(0.0, 0.3), (1.0, 0.01)], 0.7, 3),
    (2, [(50.0, 1e-9)], 20.0, 2),
    (1, [(0.5, 0.1)], 0.2, 1),
    (6, [(1e-6, 0.0)], 2e-6, 3),
]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.sampled_from(CASES),
    st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0])), min_size=3, max_size=3),
    st.booleans(),
)
def test_oracle_is_the_brute_force(case: tuple[int, Points, float, int], values: list[float], monotone: bool) -> None:
    teachers, points, epsilon, overlap = case
    gamma = symmetric(sorted(values) if monotone else values, teachers)
    exact = brute_loss(gamma, points, epsilon, overlap)
    scale = math.exp(epsilon)
    found = search(gamma, points, epsilon, overlap, monotone=monotone).losses[0]
    assert exact <= found <= exact + 2e-14 * scale
    proven = search(gamma, points, epsilon, overlap, monotone=monotone, rigorous=True).losses[0]
    assert exact <= proven <= exact + 4e-15 * scale


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.sampled_from(CASES), st.lists(st.floats(0.01, 1), min_size=3, max_size=3), st.booleans(), st.booleans())
def test_any_gamma_scaled_to_the_bound_is_private_and_tight(
    case: tuple[int, Points, float, int], values: list[float], monotone: bool, pure: bool
) -> None:
    teachers, points, epsilon, overlap = case
    delta = 0.0 if pure and epsilon else 0.003
    region = Region(guarantees=tuple(PrivacyGuarantee(epsilon=e, delta=d) for e, d in points))
    target = PrivacyGuarantee(epsilon=epsilon, delta=delta)
    start = on_grid(symmetric(sorted(values) if monotone else values, teachers))
    gamma, certificate = certify_scaled(start, region=region, overlap=overlap, target=target)
    assert brute_loss(gamma, points, epsilon, overlap) <= delta
    assert certificate.margin >= 0
    if not np.array_equal(gamma, start):  # then it gave up no more than rounding asks for
        coin = (1 - math.exp(epsilon)) / 2
        beyond = 1 + 1e-9 + 1e-13 * math.exp(epsilon) / (delta - coin)
        assert brute_loss(gamma * beyond, points, epsilon, overlap) > delta


@pytest.mark.parametrize("shape", ["monotone", "free"])
@pytest.mark.parametrize(
    ("teachers", "points", "target", "overlap", "ordered"),
    [
        (3, [(0.1, 0.0)], (0.1, 0.0), 3, True),
        (3, [(1.0, 0.01)], (1.5, 0.015), 3, True),
        (4, [(0.2, 1e-4)], (0.3, 3e-4), 4, True),
        (5, [(0.1, 0.0)], (0.2, 0.0), 5, True),
        (5, [(1.0, 1e-5)], (2.0, 2e-5), 5, True),
        (5, [(1.0, 1e-5)], (2.0, 2e-5), 3, True),
        (7, [(0.1, 0.0)], (0.3, 0.0), 7, False),
        (7, [(0.1, 1e-5)], (0.3, 3e-5), 7, False),
        (9, [(0.5, 0.0)], (1.0, 0.0), 9, False),
        (9, [(0.1, 1e-5)], (0.3, 3e-5), 9, False),
        (8, [(math.inf, 0.0)], (0.4, 0.0), 2, False),
        (7, [(0.0, 0.0126), (0.0852, 3.78e-5)], (0.0852, 1e-4), 3, False),
    ],
)
def test_certified_noise_is_private_by_brute_force(
    teachers: int, points: Points, target: tuple[float, float], overlap: int, ordered: bool, shape: str
) -> None:
    noise = optimize_noise(
        teachers=teachers,
        teacher=PrivacyProfile.from_guarantee(*(PrivacyGuarantee(epsilon=e, delta=d) for e, d in points)),
        target=PrivacyGuarantee(epsilon=target[0], delta=target[1]),
        overlap=overlap,
        shape=shape,
    )
    assert brute_loss(noise.gamma, points, target[0], overlap, ordered=ordered) <= target[1]
    assert noise.certificate is not None
    assert not np.all(noise.gamma[teachers // 2 + 1 :] == 1)


def test_the_chain_is_not_enough_for_a_free_gamma() -> None:
    gamma = symmetric([1.0, 0.0, 1.0], 5)
    assert not is_monotone(gamma)
    chain = search(gamma, [(1.0, 0.05)], 0.5, 5, monotone=True).losses[0]
    assert brute_loss(gamma, [(1.0, 0.05)], 0.5, 5) > chain + 0.01


def test_reported_counts_have_the_reported_loss() -> None:
    for monotone, half in [(True, [0.3, 0.5, 0.9]), (False, [0.9, 0.1, 0.5])]:
        for points in ([(1.0, 0.05)], [(0.5, 0.0)], [(0.0, 0.3), (1.0, 0.01)]):
            gamma = symmetric(half, 6)
            found = search(gamma, points, 0.4, 4, monotone=monotone)
            here, there = found.votes(6)
            law = label_law(gamma)
            loss = [
                sum(
                    law[sum(votes)] * math.prod(p if v else 1 - p for p, v in zip(chances, votes, strict=True))
                    for votes in itertools.product((0, 1), repeat=6)
                )
                for chances in (here[0], there[0])
            ]
            assert loss[0] - math.exp(0.4) * loss[1] == pytest.approx(found.losses[0], abs=1e-13)


@pytest.mark.slow
def test_no_placement_of_many_teachers_is_worse() -> None:
    teachers, overlap, growth = 101, 60, 1.2
    region = Region(guarantees=(PrivacyGuarantee(epsilon=0.03, delta=0.003), PrivacyGuarantee(epsilon=0.1, delta=1e-5)))
    law = label_law(symmetric(np.linspace(0.1, 0.9, 51).tolist(), teachers))
    found = worst_losses(law, region=region, overlap=overlap, growth=growth, monotone=True)
    rng = np.random.default_rng(0)
    placed = [rng.dirichlet(np.full(len(region.chain), 0.3)) for _ in range(500)]
    others = Losses(
        region.chain,
        np.zeros(len(placed)),
        np.array([rng.multinomial(overlap, share) for share in placed]),
        rng.integers(0, teachers - overlap + 1, len(placed)),
    )
    worst, *losses = (
        float((here - growth * there) @ law)
        for cases in (found, others)
        for here, there in zip(*map(vote_law, cases.votes(teachers)), strict=True)
    )
    assert worst == pytest.approx(found.losses[0], abs=1e-13)
    assert worst >= max(losses) - 1e-13


def test_more_cases_come_worst_first() -> None:
    region = Region(guarantees=(PrivacyGuarantee(epsilon=0.1, delta=1e-5),))
    found = worst_losses(
        label_law(symmetric([0.5] * 6, 11)), region=region, overlap=11, growth=1.2, monotone=True, most=5
    )
    assert len(found.losses) == len(found.counts) == len(found.ones) == 5
    assert np.all(np.diff(found.losses) <= 0)
    assert np.all(found.counts.sum(axis=1) == 11)


def test_blocks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    gamma = symmetric([0.2, 0.9, 0.4, 0.7], 8)
    points = [(0.0, 0.3), (1.0, 0.01)]
    expected = [search(gamma, points, 0.4, 6, monotone=monotone) for monotone in (True, False)]
    monkeypatch.setattr("darrm_torch.noise.worst_case._BLOCK", 50)
    for monotone, before in zip((True, False), expected, strict=True):
        assert search(gamma, points, 0.4, 6, monotone=monotone).losses[0] == before.losses[0]


def test_a_search_too_large_is_declined() -> None:
    points = [(0.1 * k, 10.0**-k) for k in range(1, 9)]
    with pytest.raises(InvalidArgument, match=r"fewer corners, for 101 .* Give fewer guarantees"):
        search(np.ones(102), points, 1.0, 101, monotone=True)
    with pytest.raises(InvalidArgument, match='or use shape="monotone"'):
        search(np.ones(302), [(0.1, 1e-5)], 1.0, 301)


def test_label_law() -> None:
    assert label_law(np.array([1.0, 0.5, 0.5, 1.0])).tolist() == [0.0, 0.25, 0.75, 1.0]
    assert label_law(np.array([1.0, 0.7, 1.0])).tolist() == [0.0, 0.5, 1.0]
