"""Random allocation, juries, self-bounding labels: against enumeration, programs over all rules and simulation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import hypergeom, norm

from darrm_torch import (
    InvalidArgument,
    PrivacyGuarantee,
    PrivacyProfile,
    RandomAllocation,
    allocated_delta,
    allocated_epsilon,
    distinct_voters,
    jury_delta,
    jury_epsilon,
    self_bounding_epsilon,
)

PAPER = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
STRONG = PrivacyProfile.from_dp_sgd([(1.0, 0.05, 100)])


# --- figures that were derived twice, by Fourier transforms and by simulation ---


@pytest.mark.parametrize(
    ("profile", "delta", "teachers", "overlap", "figure"),
    [
        (PAPER, 3e-4, 11, 1, 0.0140),
        (PAPER, 3e-4, 11, 3, 0.0558),
        (PAPER, 3e-4, 101, 1, 0.0029),
        (PAPER, 3e-4, 101, 3, 0.0138),
        (STRONG, 1e-5, 11, 1, 1.3785),
        (STRONG, 1e-5, 51, 1, 0.5188),
    ],
)
def test_figures(profile, delta, teachers, overlap, figure):
    epsilon = allocated_epsilon(profile, RandomAllocation(teachers=teachers, overlap=overlap), delta)
    assert figure * 0.99 < epsilon < figure * 1.03
    assert allocated_delta(profile, RandomAllocation(teachers=teachers, overlap=overlap), epsilon) <= delta


@pytest.mark.parametrize(("epsilon", "figure"), [(0.010, 7.25e-4), (0.0143, 2.81e-4), (0.020, 6.27e-5)])
def test_figures_of_delta(epsilon, figure):
    assert 0.998 * figure < allocated_delta(PAPER, RandomAllocation(teachers=11), epsilon) < 1.01 * figure


@pytest.mark.parametrize(("labels", "figure"), [(2, 0.0929), (3, 0.1151), (10, 0.1947)])
def test_figures_of_one_random_vote_a_label(labels, figure):
    voters = distinct_voters(11, labels=labels)
    assert 0.99 * figure < jury_epsilon(PAPER, 3e-4, teachers=11, voters=voters) < 1.01 * figure


@pytest.mark.parametrize(
    ("voters", "alone", "allocated"),
    [(1, 0.0626, 0.0026), (2, 0.0944, None), (5, 0.1612, 0.0084), (9, None, 0.0124), (11, 0.2543, 0.0141)],
)
def test_figures_of_juries(voters, alone, allocated):
    if alone:
        assert 0.99 * alone < jury_epsilon(PAPER, 3e-4, teachers=11, voters=voters) < 1.01 * alone
    if allocated:
        epsilon = allocated_epsilon(PAPER, RandomAllocation(teachers=11), 3e-4, voters=voters)
        assert 0.98 * allocated < epsilon < 1.01 * allocated


@pytest.mark.slow
@pytest.mark.parametrize(
    ("total", "teachers", "overlap", "noise"),
    [
        (0.1, 11, 1, 3.62),
        (0.25, 11, 1, 1.73),
        *zip([0.25] * 6, [12] * 6, (1, 2, 3, 4, 6, 12), (1.672, 3.033, 4.466, 5.902, 8.827, 17.883), strict=True),
        *zip([1.0] * 6, [12] * 6, (1, 2, 3, 4, 6, 12), (0.921, 1.148, 1.467, 1.829, 2.598, 4.997), strict=True),
        *zip([4.0] * 6, [12] * 6, (1, 2, 3, 4, 6, 12), (0.683, 0.746, 0.807, 0.871, 1.024, 1.609), strict=True),
    ],
)
def test_noise_that_a_total_needs(total, teachers, overlap, noise):
    allocation = RandomAllocation(teachers=teachers, overlap=overlap)

    def epsilon(multiplier):
        return allocated_epsilon(PrivacyProfile.from_dp_sgd([(multiplier, 1 / 35, 175)]), allocation, 1e-5)

    assert epsilon(1.03 * noise) <= total < epsilon(0.97 * noise)


def test_self_bounding_figure():
    epsilon = self_bounding_epsilon(STRONG, RandomAllocation(teachers=11), 1e-5, allowance=1.0)
    assert 0.895 < epsilon < 0.905


# --- randomised response: all outcomes, one by one ---


def response(epsilon, delta):
    """The laws of one teacher with the record and without it: high, low, only with, only without."""
    high = math.exp(epsilon) / (1 + math.exp(epsilon))
    one = (1 - delta) * np.array([high, 1 - high]), (1 - delta) * np.array([1 - high, high])
    return np.array([*one[0], delta, 0.0]), np.array([*one[1], 0.0, delta])


def outcomes(laws) -> np.ndarray:
    joint = np.ones(1)
    for law in laws:
        joint = np.multiply.outer(joint, law).ravel()
    return joint


def pair(epsilon, delta, read, draws) -> tuple[np.ndarray, np.ndarray]:
    """The votes of the first ``read`` teachers with a record that draws each of ``draws`` with equal chance."""
    a, b = response(epsilon, delta)
    if delta == 0:
        a, b = a[:2], b[:2]
    chances: dict[frozenset[int], float] = {}
    for draw in draws:
        seen = frozenset(k for k in draw if k in read)
        chances[seen] = chances.get(seen, 0.0) + 1 / len(draws)
    mixture = sum(chance * outcomes([a if k in seen else b for k in read]) for seen, chance in chances.items())
    return np.asarray(mixture), outcomes([b] * len(read))


def worst(p, q, epsilon):
    return max(np.maximum(p - math.exp(epsilon) * q, 0).sum(), np.maximum(q - math.exp(epsilon) * p, 0).sum())


def block_draws(sizes):
    starts = np.cumsum([0, *sizes])
    return list(itertools.product(*(range(a, b) for a, b in itertools.pairwise(starts.tolist()))))


@pytest.mark.parametrize(
    ("epsilon", "delta", "sizes"),
    [
        (0.1, 0.0, (9,)),
        (0.5, 1e-3, (7,)),
        (3.0, 0.01, (5,)),
        (10.0, 0.0, (4,)),
        (1.0, 0.0, (3, 3, 3)),
        (0.3, 1e-4, (4, 3)),
        (2.0, 0.02, (3, 2)),
        (0.7, 1e-3, (1, 1, 1)),
        (1.5, 0.1, (1,)),
    ],
)
def test_all_outcomes_of_random_allocation(epsilon, delta, sizes):
    teacher, teachers = PrivacyGuarantee(epsilon=epsilon, delta=delta), sum(sizes)
    p, q = pair(epsilon, delta, range(teachers), block_draws(sizes))
    allocation = RandomAllocation(teachers=teachers, overlap=len(sizes), blocks=sizes)
    for share in (0.0, 0.05, 0.3, 0.6, 0.9, 1.0, 1.5):
        truth = worst(p, q, share * epsilon)
        assert truth - 1e-12 <= allocated_delta(teacher, allocation, share * epsilon) <= truth + 1e-6


@pytest.mark.parametrize(("teachers", "overlap"), [(4, 2), (5, 2), (5, 3), (6, 5), (7, 3)])
def test_uniform_subsets_cost_at_most_blocks_of_any_sizes(teachers, overlap):
    p, q = pair(0.8, 1e-3, range(teachers), list(itertools.combinations(range(teachers), overlap)))
    default = RandomAllocation(teachers=teachers, overlap=overlap)
    uneven = RandomAllocation(
        teachers=teachers, overlap=overlap, blocks=(1,) * (overlap - 1) + (teachers - overlap + 1,)
    )
    for epsilon in (0.0, 0.2, 0.8, 1.6):
        truth = worst(p, q, epsilon)
        for allocation in (default, uneven):
            assert truth - 1e-12 <= allocated_delta(PrivacyGuarantee(epsilon=0.8, delta=1e-3), allocation, epsilon)


@pytest.mark.parametrize(("epsilon", "delta", "sizes", "voters"), [(0.5, 1e-3, (6,), 2), (1.0, 0.0, (4, 3), 3)])
def test_all_outcomes_of_a_jury_of_allocated_teachers(epsilon, delta, sizes, voters):
    teacher, teachers = PrivacyGuarantee(epsilon=epsilon, delta=delta), sum(sizes)
    juries = list(itertools.combinations(range(teachers), voters))
    blocks = RandomAllocation(teachers=teachers, overlap=len(sizes), blocks=sizes)
    uniform = RandomAllocation(teachers=teachers, overlap=len(sizes))
    for at in (0.0, 0.3, 1.0):
        truth = [worst(*pair(epsilon, delta, jury, block_draws(sizes)), at) for jury in juries]
        claim = allocated_delta(teacher, blocks, at, voters=voters)
        assert max(truth) - 1e-12 <= claim <= max(truth) + 1e-6
        drawn = allocated_delta(teacher, uniform, at, voters=voters)
        subsets = list(itertools.combinations(range(teachers), len(sizes)))
        assert worst(*pair(epsilon, delta, range(voters), subsets), at) - 1e-12 <= drawn <= claim + 1e-12
        if len(sizes) == 1:
            assert drawn <= truth[0] + 1e-6


@pytest.mark.parametrize(("epsilon", "delta", "teachers", "overlap"), [(0.5, 1e-3, 6, 6), (1.0, 0.0, 7, 3)])
def test_all_outcomes_of_random_juries(epsilon, delta, teachers, overlap):
    teacher = PrivacyGuarantee(epsilon=epsilon, delta=delta)
    whole = {n: pair(epsilon, delta, range(n), [tuple(range(n))]) for n in range(1, overlap + 1)}
    for at in (0.0, 0.4, 1.3):
        for voters in (1, 3, 5):
            law = hypergeom(teachers, overlap, voters)
            truth = sum(law.pmf(n) * worst(*whole[n], at) for n in whole)
            claim = jury_delta(teacher, at, teachers=teachers, overlap=overlap, voters=voters)
            assert truth - 1e-12 <= claim <= truth + 1e-6
    labels, voters = 3, distinct_voters(teachers, labels=3)
    count = dict.fromkeys(range(labels + 1), 0)
    for draw in itertools.product(range(teachers), repeat=labels):
        count[len(set(draw))] += 1
    assert np.allclose(voters, [count[n] / teachers**labels for n in range(len(voters))], atol=1e-15)


def test_unequal_weights():
    weights = (0.5, 0.3, 0.2)
    a, b = response(1.0, 0.01)
    p = sum(w * outcomes([a if k == one else b for k in range(3)]) for one, w in enumerate(weights))
    allocation = RandomAllocation(teachers=3, weights=weights)
    for epsilon in (0.0, 0.3, 0.8):
        truth = worst(p, outcomes([b] * 3), epsilon)
        claim = allocated_delta(PrivacyGuarantee(epsilon=1.0, delta=0.01), allocation, epsilon)
        assert truth - 1e-12 <= claim <= truth + 2e-4


# --- everything that is made with one draw (theory, section 12, point 9) ---


def shared_draw(with_record, without, teachers) -> tuple[np.ndarray, np.ndarray]:
    """All outcomes of teachers of which one, drawn at random, follows ``with_record``."""
    joint = [outcomes([with_record if k == one else without for k in range(teachers)]) for one in range(teachers)]
    return np.mean(joint, axis=0), outcomes([without] * teachers)


def test_two_trainings_with_one_draw_compose_first():
    """Each teacher and its counterpart change together. Prices of two separate draws would be too low."""
    first, second = PrivacyGuarantee(epsilon=0.7, delta=1e-3), PrivacyGuarantee(epsilon=0.4, delta=1e-3)
    one, other = response(0.7, 1e-3), response(0.4, 1e-3)
    p, q = shared_draw(outcomes([one[0], other[0]]), outcomes([one[1], other[1]]), 3)
    separate = [shared_draw(*laws, 3) for laws in (one, other)]
    allocation = RandomAllocation(teachers=3)
    both = PrivacyProfile.from_guarantee(first).compose(PrivacyProfile.from_guarantee(second))
    for epsilon in (0.0, 0.3, 0.8):
        truth = worst(p, q, epsilon)
        assert truth - 1e-12 <= allocated_delta(both, allocation, epsilon) <= truth + 1e-5
        assert worst(*(outcomes(laws) for laws in zip(*separate, strict=True)), epsilon) < 0.999 * truth


@pytest.mark.parametrize("strengths", [(1.0, 0.0, 0.0), (1.0, 1.0, 1.0), (0.3, 1.0, 0.6)])
def test_another_release_from_the_same_shards_composes_with_the_allocation(strengths):
    """Votes of plain teachers, say: the draw decides how the release changes, and it is priced for the worst draw."""
    (a, b), (c, d) = response(0.7, 1e-3), response(0.5, 1e-2)
    alone, without = shared_draw(a, b, 3)
    p = sum(
        np.multiply.outer(outcomes([a if k == one else b for k in range(3)]), strength * c + (1 - strength) * d).ravel()
        for one, strength in enumerate(strengths)
    )
    q = outcomes([without, d])
    for epsilon in (0.0, 0.3, 0.8, 1.1):
        claim = worst(outcomes([alone, c]), q, epsilon)
        assert worst(p / 3, q, epsilon) <= claim + 1e-12
        if epsilon < 0.5:
            assert worst(p / 3, q, epsilon) > worst(alone, without, epsilon)  # it is not free


# --- what always holds ---

runs = st.tuples(st.floats(0.6, 20.0), st.floats(0.001, 1.0), st.integers(1, 300))


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(run=runs, teachers=st.integers(1, 40), overlap=st.integers(1, 4), delta=st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_never_more_than_without_secrecy_and_monotone(run, teachers, overlap, delta):
    noise, rate, steps = run
    overlap = min(overlap, teachers)

    def epsilon(noise=noise, rate=rate, steps=steps, teachers=teachers, overlap=overlap):
        profile = PrivacyProfile.from_dp_sgd([(noise, rate, steps)])
        return allocated_epsilon(profile, RandomAllocation(teachers=teachers, overlap=overlap), delta)

    profile = PrivacyProfile.from_dp_sgd([run])
    assert epsilon() <= profile.compose(overlap).epsilon(delta)
    most = epsilon() * 1.005 + 1e-6  # the grids of two prices are not the same
    assert epsilon(noise=1.2 * noise) <= most
    assert epsilon(rate=0.8 * rate) <= most
    assert epsilon(steps=max(1, steps // 2)) <= most
    assert epsilon(teachers=teachers + 1) <= most
    assert epsilon() <= epsilon(overlap=min(overlap + 1, teachers)) * 1.005 + 1e-6


@settings(max_examples=8, deadline=None)
@given(low=st.floats(0, 3), more=st.floats(0, 3), teachers=st.integers(1, 30), voters=st.integers(1, 30))
@pytest.mark.slow
def test_delta_falls_with_epsilon_and_grows_with_the_jury(low, more, teachers, voters):
    allocation, voters = RandomAllocation(teachers=teachers), min(voters, teachers)
    assert allocated_delta(STRONG, allocation, low + more) <= allocated_delta(STRONG, allocation, low) * (1 + 1e-12)
    jury = allocated_delta(STRONG, allocation, low, voters=voters)
    assert jury <= allocated_delta(STRONG, allocation, low) * (1 + 1e-3) + 1e-13


@settings(max_examples=8, deadline=None)
@given(
    points=st.lists(st.tuples(st.floats(0, 400), st.floats(0, 1)), min_size=1, max_size=2),
    count=st.sampled_from([1, 2, 15, 300]),
    teachers=st.sampled_from([1, 3, 40, 1500]),
    delta=st.floats(0, 1),
)
def test_any_promise_has_a_price(points, count, teachers, delta):
    promises = [PrivacyGuarantee(epsilon=e, delta=d) for e, d in points]
    profile = PrivacyProfile.from_guarantee(*promises).compose(count)
    allocation = RandomAllocation(teachers=teachers)
    epsilon = allocated_epsilon(profile, allocation, delta)
    assert 0 <= epsilon <= profile.epsilon(delta)
    assert 0 <= allocated_delta(profile, allocation, 1.0) <= 1


def test_many_teachers_that_may_reveal_everything():
    """Each of many teachers reveals the record with probability Delta, if it was trained on it."""
    teacher = PrivacyGuarantee(epsilon=0.0, delta=0.01)
    for teachers in (10, 1000):
        assert allocated_delta(teacher, RandomAllocation(teachers=teachers), 0.0) == pytest.approx(0.01, rel=1e-6)
    hopeless = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=4.0)).compose(300)
    assert allocated_delta(hopeless, RandomAllocation(teachers=400), 1.0) > 0.99


@pytest.mark.parametrize("profile", [PrivacyProfile.from_dp_sgd([(0.01, 1.0, 50)]), PrivacyProfile.non_private()])
@pytest.mark.parametrize("overlap", [1, 3])
def test_no_privacy_left(profile, overlap):
    allocation = RandomAllocation(teachers=9, overlap=overlap)
    assert allocated_delta(profile, allocation, 5.0) == pytest.approx(1.0)
    assert allocated_epsilon(profile, allocation, 1e-5) > 300


def test_no_promise_no_price():
    allocation = RandomAllocation(teachers=5)
    assert allocated_epsilon(PrivacyProfile.non_private(), allocation, 1e-5) == math.inf
    assert allocated_delta(PrivacyProfile.non_private(), allocation, 1.0) == 1.0


@pytest.mark.parametrize("shape", [{}, {"overlap": 2}, {"weights": (0.5, 0.3, 0.2)}])
def test_a_release_without_privacy_beside_a_private_one(shape):
    profile, allocation = STRONG.compose(PrivacyProfile.non_private()), RandomAllocation(teachers=3, **shape)
    assert allocated_delta(profile, allocation, 1.0) == 1.0
    assert allocated_epsilon(profile, allocation, 1e-5) == math.inf
    read = allocated_delta(profile, RandomAllocation(teachers=4), 5.0, voters=2)
    assert 0.5 <= read < 0.5 + 1e-9  # with probability 1/2 the record's teacher is read


def test_releases_of_nothing_cost_nothing():
    assert allocated_epsilon(PrivacyProfile(), RandomAllocation(teachers=3), 0.0) == 0.0
    assert jury_epsilon(PrivacyProfile(), 0.0, teachers=3, voters=2) == 0.0


def test_juries_without_a_member_reveal_nothing():
    pure, allocation = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=1.0)), RandomAllocation(teachers=3)
    half = allocated_delta(pure, allocation, 0.1, voters=(0.5, 0.0, 0.5))
    assert half == pytest.approx(0.5 * allocated_delta(pure, allocation, 0.1, voters=2), rel=1e-9)
    assert allocated_epsilon(pure, allocation, 0.0, voters=(1.0, 0.0)) < 1e-12


def test_probabilities_that_rounding_left_below_one():
    pure, voters = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=1.0)), (1 - 1e-9, 0.0)
    missing = 1e-9 * (math.e - 1) / (math.e + 1)
    assert jury_delta(pure, 0.0, teachers=1, voters=voters) >= missing * (1 - 1e-6)
    assert allocated_delta(pure, RandomAllocation(teachers=1), 0.0, voters=voters) >= missing * (1 - 1e-6)
    rounded = RandomAllocation(teachers=3, weights=(0.5, 0.3, 0.2 - 1e-9))
    exact = RandomAllocation(teachers=3, weights=(0.5, 0.3, 0.2))
    weak = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=1e-9))
    assert allocated_delta(weak, rounded, 0.0) == pytest.approx(allocated_delta(weak, exact, 0.0), rel=1e-4)


@pytest.mark.parametrize("voters", [None, 7])
def test_a_thousand_blocks(voters):
    pure = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.1))
    epsilon = allocated_epsilon(pure, RandomAllocation(teachers=2000, overlap=1000), 1e-5, voters=voters)
    assert 0 < epsilon <= pure.compose(voters or 1000).epsilon(1e-5)


def test_a_thousand_teachers():
    epsilon = allocated_epsilon(PAPER, RandomAllocation(teachers=1001), 3e-4)
    assert 2.0e-4 < epsilon < 2.2e-4


@pytest.mark.parametrize("voters", [0, 12, (1.0,), (0.5, 0.4), (0.0,) * 12 + (1.0,)])
def test_voters_are_checked(voters):
    with pytest.raises(InvalidArgument, match="voters"):
        allocated_epsilon(PAPER, RandomAllocation(teachers=11), 1e-5, voters=voters)


# --- simulation at the exact dominating pair ---


class Simulation:
    """Draws from tilted laws of the exact pair: blocks, of each of which the first teachers are read.

    A draw follows the law without the record, or a tilted law (another sample rate, another shift) of one teacher in
    each block, or of all teachers. All laws count in the density, so no weight is large.
    """

    def __init__(self, rng, noise, rate, steps, weights):
        self.rng, self.noise, self.rate, self.steps, self.weights = rng, noise, rate, steps, weights
        more, unit = min(1.0, max(3 * rate, 1.5 / steps)), noise / math.sqrt(steps)
        everyone = unit / math.sqrt(sum(len(w) for w in weights))
        self.tilts = [
            (rate, 1.0, 1.0),
            (more, 1.0, 1.5 * everyone),
            (more, max(1.0, 2.2 * unit), 2.5 * everyone),
            (more, max(1.0, 3.3 * unit), 3.5 * everyone),
        ]

    def draw(self, count):
        """Likelihood ratio of the pair, and density of what was drawn, both over that without the record."""
        sizes = [len(w) for w in self.weights]
        starts = np.cumsum([0, *sizes[:-1]])
        z = self.rng.normal(0.0, self.noise, (sum(sizes), self.steps, count))
        kind = self.rng.integers(0, 2 * len(self.tilts) + 1, count)
        for tilt, (rate, shift, shift_of_all) in enumerate(self.tilts):
            one, everyone = np.flatnonzero(kind == 2 * tilt), np.flatnonzero(kind == 2 * tilt + 1)
            for start, weights in zip(starts, self.weights, strict=True):
                chosen = start + self.rng.choice(len(weights), len(one), p=weights / weights.sum())
                z[chosen, :, one] += shift * (self.rng.random((len(one), self.steps)) < rate)
            z[:, :, everyone] += shift_of_all * (self.rng.random((sum(sizes), self.steps, len(everyone))) < rate)
        growth = {}  # by shift

        def ratios(rate, shift):
            if shift not in growth:
                growth[shift] = np.exp((z - shift / 2) * (shift / self.noise**2))
            return (1 - rate + rate * growth[shift]).prod(axis=1)

        ratio, density = np.ones(count), np.ones(count)
        for tilt, (rate, shift, shift_of_all) in enumerate(self.tilts):
            x, single = ratios(rate, shift), np.ones(count)
            for start, weights in zip(starts, self.weights, strict=True):
                part = weights @ x[start : start + len(weights)]
                single *= part / weights.sum()
                if tilt == 0:
                    ratio *= 1 - weights.sum() + part
            density += single + ratios(rate, shift_of_all).prod(axis=0)
        return ratio, density / (2 * len(self.tilts) + 1)


def settings_at_random(rng) -> Iterator[tuple[PrivacyProfile, RandomAllocation, int | None, list[np.ndarray], tuple]]:
    while True:
        teachers = int(rng.integers(1, 10))
        kind = rng.choice(["one", "one", "blocks", "jury", "weights"])
        noise, rate = float(rng.uniform(0.7, 4.0)), float(rng.choice([1.0, rng.uniform(0.02, 0.6)]))
        steps = int(rng.integers(1, 5))
        profile, voters = PrivacyProfile.from_dp_sgd([(noise, rate, steps)]), None
        allocation = RandomAllocation(teachers=teachers)
        weights = [np.full(teachers, 1 / teachers)]
        if kind == "blocks" and teachers > 1:
            allocation = RandomAllocation(teachers=teachers, overlap=int(rng.integers(2, min(3, teachers) + 1)))
            allocation = RandomAllocation(teachers=teachers, overlap=allocation.overlap, blocks=allocation.block_sizes)
            weights = [np.full(size, 1 / size) for size in allocation.block_sizes]
        elif kind == "jury":
            voters = int(rng.integers(1, teachers + 1))
            weights = [weights[0][:voters]]
        elif kind == "weights":
            weights = [rng.dirichlet(np.full(teachers, 3.0))]
            allocation = RandomAllocation(teachers=teachers, weights=tuple(weights[0].tolist()))
        yield profile, allocation, voters, weights, (noise, rate, steps)


def simulated(simulation, epsilons, batches):
    """Estimates of delta at ``epsilons`` and their standard errors, of the direction with the larger estimate."""
    sums = np.zeros((2, 2, len(epsilons)))
    drawn = 0
    for batch in range(batches):
        ratio, density = simulation.draw(4000)
        drawn += len(ratio)
        for place, epsilon in enumerate(epsilons):
            for way, gain in enumerate((ratio - math.exp(epsilon), 1 - math.exp(epsilon) * ratio)):
                values = np.maximum(gain, 0.0) / density
                sums[way, 0, place] += values.sum()
                sums[way, 1, place] += (values**2).sum()
        means = sums[:, 0] / drawn
        errors = np.sqrt(np.maximum(sums[:, 1] / drawn - means**2, 0.0) / drawn)
        larger = means.argmax(axis=0)
        estimate = means[larger, range(len(epsilons))], errors[larger, range(len(epsilons))]
        if batch >= 2 and (estimate[1] < 0.008 * estimate[0]).all():
            break
    return estimate


def compare_with_simulation(count, seed, batches=40):
    """How many comparisons are decided, and in how many of these a claim 10 % lower would be found out."""
    rng = np.random.default_rng(seed)
    sigmas = norm.isf(0.001 / (2 * 500))  # joint false-alarm rate of 500 comparisons in two directions
    decided = caught = 0
    for profile, allocation, voters, weights, run in itertools.islice(settings_at_random(rng), count):
        largest = allocated_delta(profile, allocation, 0.0, voters=voters)
        delta = largest * float(np.exp(rng.uniform(math.log(3e-4), math.log(0.1))))
        epsilon = allocated_epsilon(profile, allocation, delta, voters=voters)
        mean, error = simulated(Simulation(rng, *run, weights), (epsilon, 0.9 * epsilon), batches)
        assert mean[0] - sigmas * error[0] <= delta, (allocation, voters, run, delta)
        if error[1] < 0.02 * mean[1]:
            decided += 1
            caught += mean[1] - sigmas * error[1] > delta
    return decided, caught


@pytest.mark.slow
def test_simulation():
    decided, caught = compare_with_simulation(6, seed=1)
    assert decided >= 4
    assert caught == decided


@pytest.mark.slow
@pytest.mark.long
def test_simulation_of_five_hundred_settings():
    decided, caught = compare_with_simulation(500, seed=2)
    assert decided >= 400
    assert caught >= 0.95 * decided


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1e-3, 1e-4, 1e-5])
def test_a_single_step_at_a_low_rate(rate):
    """Where the spread of the loss is far smaller than its range, the price stays within 3 % of a simulation."""
    noise, teachers, rng = 1.0, 11, np.random.default_rng(5)
    y = np.expm1((rng.normal(0.0, noise, (400_000, teachers)) - 0.5) / noise**2).mean(axis=1)  # L - 1 = rate y
    profile, allocation = PrivacyProfile.from_dp_sgd([(noise, rate, 1)]), RandomAllocation(teachers=teachers)
    for epsilon in (0.0, 0.5 * rate, rate):
        both = [
            np.maximum(rate * y - math.expm1(epsilon), 0.0),
            np.maximum(-math.exp(epsilon) * (1 + rate * y) + 1, 0.0),
        ]
        values = max(both, key=np.mean)
        claim = allocated_delta(profile, allocation, epsilon)
        assert values.mean() - 4 * values.std() / 632 <= claim <= 1.03 * values.mean() + 4 * values.std() / 632


@pytest.mark.parametrize(("noise", "teachers", "delta"), [(1.0, 11, 1e-5), (2.0, 11, 1e-3)])
def test_a_second_opinion(noise, teachers, delta):
    """Another package bounds the price of allocated Gaussians from both sides; it is optional."""
    other = pytest.importorskip("PLD_accounting")
    upper, lower = other.gaussian_allocation_epsilon_range(sigma=noise, num_steps=teachers, delta=delta)
    profile = PrivacyProfile.from_dp_sgd([(noise, 1.0, 1)])
    assert lower <= allocated_epsilon(profile, RandomAllocation(teachers=teachers), delta) <= upper
