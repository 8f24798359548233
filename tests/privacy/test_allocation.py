"""RandomAllocation: what it takes, and the two ways of allocating records that void its price."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from darrm_torch import InvalidArgument, PrivacyProfile, PrivateValidation, RandomAllocation, allocated_epsilon


@pytest.mark.parametrize(
    "fields",
    [
        {"teachers": 11},
        {"teachers": 11, "overlap": 3, "unit": "person", "holdout": 0.1, "source": "made by the library"},
        {"teachers": 11, "holdout": 0.1, "validation": PrivateValidation(epsilon=0.1, reads="student")},
        {"teachers": 11, "overlap": 2, "blocks": (6, 5)},
        {"teachers": 3, "weights": (0.5, 0.3, 0.2)},
    ],
)
def test_round_trip(fields):
    allocation = RandomAllocation(**fields)
    assert RandomAllocation.from_dict(json.loads(json.dumps(allocation.to_dict()))) == allocation
    assert hash(allocation) == hash(RandomAllocation(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"teachers": 0}, "teachers"),
        ({"teachers": 3, "overlap": 4}, "overlap"),
        ({"teachers": 3, "overlap": 2, "blocks": (3,)}, "blocks"),
        ({"teachers": 3, "overlap": 2, "blocks": (2, 2)}, "blocks"),
        ({"teachers": 3, "unit": " "}, "unit"),
        ({"teachers": 3, "holdout": 1.0}, "holdout"),
        ({"teachers": 3, "holdout": math.nan}, "holdout"),
        ({"teachers": 3, "source": "guessed"}, "source"),
        ({"teachers": 3, "weights": (0.5, 0.5)}, "weights"),
        ({"teachers": 3, "weights": (0.5, 0.5, 0.5)}, "weights"),
        ({"teachers": 3, "overlap": 2, "weights": (0.5, 0.3, 0.2)}, "weights"),
    ],
)
def test_values_are_checked(fields, message):
    with pytest.raises(InvalidArgument, match=message):
        RandomAllocation(**fields)


@pytest.mark.parametrize("value", [{}, {"version": 2}, {**RandomAllocation(teachers=2).to_dict(), "key": 1}, None])
def test_other_descriptions_are_refused(value):
    with pytest.raises(InvalidArgument, match=r"(allocation|value) must be a"):
        RandomAllocation.from_dict(value)


def test_blocks_are_as_equal_as_possible():
    assert [RandomAllocation(teachers=11, overlap=r).block_sizes for r in (1, 3, 4)] == [(11,), (4, 4, 3), (3, 3, 3, 2)]


def test_equal_weights_are_none():
    assert RandomAllocation(teachers=4, weights=(0.25,) * 4) == RandomAllocation(teachers=4)


def test_assumptions_name_who_answers_for_the_draws():
    stated = RandomAllocation(teachers=11, overlap=3, unit="person")
    assert "not checked" in stated.assumptions[0]
    assert "each person drew its 3 shards" in stated.assumptions[0]
    made = RandomAllocation(teachers=11, source="made by the library")
    assert "made by the library" in made.assumptions[0]


# --- what voids the price: teachers that release a Gaussian, mu per record ---


def gaussian(mu: float) -> PrivacyProfile:
    return PrivacyProfile.from_dp_sgd([(1 / mu, 1.0, 1)])


def delta_of(ratio, epsilon: float) -> tuple[float, float]:
    """Delta of P against P', and its standard error, from the likelihood ratio at draws of P."""
    values = np.maximum(1 - math.exp(epsilon) / ratio, 0.0)
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def density(mu: float, z: np.ndarray) -> np.ndarray:
    """N(mu, 1) over N(0, 1)."""
    return np.exp(mu * z - mu**2 / 2)


@pytest.mark.parametrize(("mu", "claim", "truth"), [(0.5, 0.353, 0.730), (1.0, 1.15, 3.02)])
def test_two_rows_of_a_person_that_share_a_draw_cost_more_than_one_row(mu, claim, truth):
    """The unit that draws is the unit that is accounted for: here the person draws and rows are counted."""
    assert allocated_epsilon(gaussian(mu), RandomAllocation(teachers=11), 1e-3) == pytest.approx(claim, rel=0.01)
    z = np.random.default_rng(1).normal(size=(400_000, 11))
    z[:, 0] += 2 * mu
    ratio = density(2 * mu, z).mean(axis=1) / density(mu, z).mean(axis=1)
    lower, error = delta_of(ratio, claim)
    assert lower - 6 * error > 1.5e-3
    near, error = delta_of(ratio, truth)
    assert near == pytest.approx(1e-3, abs=5 * error + 3e-5)


@pytest.mark.parametrize(("mu", "alone", "truth"), [(0.5, 1.352, 1.772), (1.0, 3.14, 6.34)])
def test_balanced_shards_cost_more_than_a_whole_teacher(mu, alone, truth):
    """Shards of fixed sizes, cut from a random permutation: one record more moves others, and two teachers change.

    Every other record pulls by +mu and the new one by -mu. The extra place is in shard 0. If the new record is
    elsewhere, shard 0 has one more of the others, and the new record's shard has one fewer.
    """
    assert gaussian(mu).epsilon(1e-3) == pytest.approx(alone, rel=0.01)
    rng, teachers, count = np.random.default_rng(2), 11, 400_000
    z, shard = rng.normal(size=(count, teachers)), rng.integers(0, teachers, count)
    z[:, 0] += np.where(shard == 0, -mu, mu)
    z[np.arange(count)[shard > 0], shard[shard > 0]] -= 2 * mu
    here = density(-mu, z[:, 0])
    elsewhere = density(mu, z[:, 0])[:, None] * density(-2 * mu, z[:, 1:])
    ratio = (here + elsewhere.sum(axis=1)) / teachers
    lower, error = delta_of(ratio, alone)
    assert lower - 6 * error > 1.5e-3
    near, error = delta_of(ratio, truth)
    assert near == pytest.approx(1e-3, abs=5 * error + 3e-5)
    assert allocated_epsilon(gaussian(mu), RandomAllocation(teachers=teachers), 1e-3) < alone / 2
