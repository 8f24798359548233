"""Questions that depend on earlier labels: the best questioner of a small world gains no more than any route claims.

Every teacher is the worst one that keeps its promise, and takes one of four states. A question assigns a vote to each
state of each teacher. All questions are tried first, and after each label all questions again, so the questioner is the
best there is for two labels.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch.privacy.routes import RouteKey

Sides = tuple[np.ndarray, np.ndarray]
TEACHERS, LABELS, STATES = 3, 2, 4
PROMISE, PURE = dt.PrivacyGuarantee(epsilon=0.7, delta=0.01), dt.PrivacyGuarantee(epsilon=0.7)
BARE = dt.PrivacyGuarantee(epsilon=0.0, delta=1.0)  # promises nothing
VOTES = np.array([[state >= cut for state in range(STATES)] for cut in range(STATES + 1)] * 2, dtype=int)
VOTES[STATES + 1 :] ^= 1
VOTES = np.unique(VOTES, axis=0)  # the votes of one teacher by its state: all steps up and down
WORLD = np.stack([axis.ravel() for axis in np.indices((STATES,) * TEACHERS)])  # (teachers, worlds)
QUESTIONS = np.array(list(itertools.product(range(len(VOTES)), repeat=TEACHERS)))


def joint(*laws: np.ndarray) -> np.ndarray:
    """The law of the states of all teachers."""
    result = np.ones(())
    for law in laws:
        result = np.multiply.outer(result, law)
    return result.ravel()


def states(promise: dt.PrivacyGuarantee) -> np.ndarray:
    """A teacher's law with the record; reversed, that without it. Every pair that keeps the promise is a map of it."""
    likely = (1 - promise.delta) / (1 + math.exp(-promise.epsilon))
    return np.array([promise.delta, likely, 1 - promise.delta - likely, 0.0])


def changed(promise: dt.PrivacyGuarantee, affected: int) -> Sides:
    """The worlds with a record in the first teachers, and without it."""
    here, there = states(promise), states(promise)[::-1]
    return joint(*[here] * affected, *[there] * (TEACHERS - affected)), joint(*[there] * TEACHERS)


def allocated(promise: dt.PrivacyGuarantee) -> Sides:
    """The worlds with a record that drew one of the teachers, and without it."""
    here, there = states(promise), states(promise)[::-1]
    drawn = [joint(*[here if k == one else there for k in range(TEACHERS)]) for one in range(TEACHERS)]
    return np.mean(drawn, axis=0), joint(*[there] * TEACHERS)


def votes_of(question: np.ndarray) -> np.ndarray:
    """(teachers, worlds)."""
    return np.stack([VOTES[kind][states] for kind, states in zip(question, WORLD, strict=True)])


@cache
def answers(mechanism: dt.Mechanism) -> np.ndarray:
    """(questions, worlds, labels): the law of the label; a new jury for each label, if there is one."""
    if mechanism.jury is not None:
        return np.mean([one_voter(number) for number in range(TEACHERS)], axis=0)
    ones = np.stack([votes_of(question).sum(axis=0) for question in QUESTIONS])
    return mechanism.label_probabilities(np.stack([np.arange(TEACHERS, -1, -1), np.arange(TEACHERS + 1)], axis=1))[ones]


def one_voter(number: int) -> np.ndarray:
    """(questions, worlds, labels) where one teacher alone votes."""
    return np.eye(2)[np.stack([votes_of(question)[number] for question in QUESTIONS])]


def best_delta(sides: Sides, law: np.ndarray, epsilon: float, *, adaptive: bool = True) -> float:
    """The delta of the best questioner, who chooses the second question after the first label, or with the first."""
    first = law.transpose(0, 2, 1)  # (questions, labels, worlds)
    difference = first * (sides[0] - math.exp(epsilon) * sides[1])
    flat = first.reshape(-1, first.shape[2])
    gains = (difference.reshape(flat.shape) @ flat.T).reshape(*first.shape[:2], *first.shape[:2])
    after = np.maximum(gains, 0).sum(axis=3)  # (first question, first label, second question)
    return float(after.max(axis=2).sum(axis=1).max() if adaptive else after.sum(axis=1).max())


def best_fresh_delta(sides: Sides, law: np.ndarray, epsilon: float) -> float:
    """The same where each label has new teachers with the same promise."""
    one, other = np.unique(np.einsum("qzo,sz->qso", law, np.stack(sides)).round(14), axis=0).transpose(1, 0, 2)
    both = [side[:, None, :, None] * side[None, :, None] for side in (one, other)]
    return float(np.maximum(both[0] - math.exp(epsilon) * both[1], 0).sum(axis=3).max(axis=1).sum(axis=1).max())


@dataclass(frozen=True, kw_only=True)
class Case:
    """A route in a small world: what it prices, and the laws that it claims to cover."""

    mechanism: dt.Mechanism
    sides: Sides
    overlap: int | None = None
    promise: dt.PrivacyGuarantee = PROMISE
    allocation: dt.RandomAllocation | None = None
    votes: Literal["fixed", "fresh"] = "fixed"
    delta: float = 0.05
    kept_jury: bool = False
    exact: bool = False

    def worst(self, epsilon: float) -> float:
        """The larger delta of the two directions."""
        law, sides = answers(self.mechanism), self.sides
        if self.kept_jury:  # one voter, drawn once, is part of the world
            law = np.concatenate([one_voter(number) for number in range(TEACHERS)], axis=1)
            sides = (np.tile(sides[0], TEACHERS) / TEACHERS, np.tile(sides[1], TEACHERS) / TEACHERS)
        delta = best_fresh_delta if self.votes == "fresh" else best_delta
        return max(delta(sides, law, epsilon), delta(sides[::-1], law, epsilon))


MAJORITY = dt.NoiseFreeMajority(classes=2)
JURY, REDRAWN = (dt.NoiseFreeMajority(classes=2, jury=1, redrawn=redrawn) for redrawn in (False, True))
SPREAD = dt.DaRRM(dt.self_bounding_noise(teachers=TEACHERS, allowance=1))
NOISY = dt.LNMax(scale=3, teachers=TEACHERS, classes=2)
CERTIFIED = dt.DaRRM(
    dt.optimize_noise(teachers=TEACHERS, teacher=PROMISE, target=dt.PrivacyGuarantee(epsilon=1.0, delta=0.02))
)
SECRET = dt.RandomAllocation(teachers=TEACHERS)
ONE, ALL, DRAWN = changed(PROMISE, 1), changed(PROMISE, TEACHERS), allocated(PROMISE)

CASES: dict[RouteKey, list[Case]] = {
    "publishing": [
        Case(mechanism=MAJORITY, sides=ONE, overlap=1, exact=True),
        Case(mechanism=MAJORITY, sides=ALL),
        Case(mechanism=MAJORITY, promise=PURE, sides=changed(PURE, TEACHERS), votes="fresh"),
        Case(mechanism=JURY, sides=ONE, overlap=1, kept_jury=True),
        Case(mechanism=REDRAWN, sides=ONE, overlap=1),
    ],
    "self-bounding": [
        Case(mechanism=SPREAD, sides=ALL),
        Case(mechanism=JURY, sides=ALL, kept_jury=True),
        Case(mechanism=REDRAWN, sides=ALL),
        Case(mechanism=SPREAD, sides=ALL, votes="fresh"),
    ],
    "certified": [Case(mechanism=CERTIFIED, sides=ALL, votes="fresh")],
    "label-curve": [Case(mechanism=SPREAD, promise=PURE, sides=changed(PURE, TEACHERS), votes="fresh")],
    "own-randomness": [
        Case(mechanism=mechanism, promise=BARE, sides=changed(BARE, 1), overlap=1, delta=delta)
        for mechanism, delta in ((NOISY, 0.0), (NOISY, 0.05), (dt.GNMax(sigma=2), 0.05))
    ],
    "private-votes": [
        Case(mechanism=NOISY, sides=ONE, overlap=1),
        Case(mechanism=NOISY, sides=ALL),
        Case(mechanism=NOISY, sides=ALL, votes="fresh"),
    ],
    "allocation": [
        Case(mechanism=MAJORITY, sides=DRAWN, allocation=SECRET, exact=True),
        Case(mechanism=JURY, sides=DRAWN, allocation=SECRET, kept_jury=True),
        Case(mechanism=REDRAWN, sides=DRAWN, allocation=SECRET),
    ],
    "allocation-self-bounding": [Case(mechanism=SPREAD, sides=DRAWN, allocation=SECRET)],
}


def epsilon_of(key: RouteKey, case: Case) -> float:
    """What the route says."""
    total = dt.total_privacy(
        teachers=[dt.PrivacyProfile.from_guarantee(case.promise)] * TEACHERS,
        mechanism=case.mechanism,
        labels=LABELS,
        votes=case.votes,
        delta=case.delta,
        overlap=case.overlap,
        allocation=case.allocation,
    )
    (route,) = [route for route in total.routes if route.key == key]
    assert route.applies
    assert route.epsilon < 10
    return route.epsilon


@pytest.mark.parametrize(
    ("key", "case"),
    [(key, case) for key, cases in CASES.items() for case in cases],
    ids=[f"{key}-{number}" for key, cases in CASES.items() for number in range(len(cases))],
)
def test_the_best_questioner_gains_no_more_than_the_route_claims(key: RouteKey, case: Case) -> None:
    epsilon = epsilon_of(key, case)
    assert case.worst(epsilon) <= case.delta + 1e-12
    if case.exact:
        assert case.worst(0.9 * epsilon) > case.delta  # a claim that is too low would be noticed


def test_looking_at_the_first_label_helps_the_questioner() -> None:
    law = answers(SPREAD)
    fixed, adaptive = (best_delta(ALL, law, 1.2, adaptive=adaptive) for adaptive in (False, True))
    assert (round(fixed, 4), round(adaptive, 4)) == (0.0254, 0.0306)


def test_every_route_has_a_case_and_a_reason_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs/theory/adaptive.md").read_text()
    assert set(CASES) == set(get_args(RouteKey))
    for key in get_args(RouteKey):
        assert f"| `{key}` | yes |" in page
