"""Votes that come from anywhere become labels at the same price, by the same ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import darrm_torch as dt

PROMISE = dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=0.5, delta=1e-5))


def labeler(count: int = 3, **how: Any) -> dt.PrivateLabeler:
    names = [f"site {number}" for number in range(count)]
    terms = {"teachers": names, "profiles": [PROMISE] * count, "overlap": 1, "classes": 2, "ledger": dt.PrivacyLedger()}
    return dt.PrivateLabeler(**{"mechanism": dt.NoiseFreeMajority(), **terms, **how})  # type: ignore[arg-type]


class Site:
    """A voter with a fixed answer, or an error."""

    def __init__(self, digest: str, answer: Any) -> None:
        self.digest, self.answer, self.asked = digest, answer, 0

    def vote(self, inputs: torch.Tensor) -> Any:
        self.asked += len(inputs)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(inputs) if callable(self.answer) else self.answer


def test_labels_of_votes_are_charged_once_and_kept() -> None:
    mine = labeler()
    votes = [[0, 1, 1], [1, 1, 0], [0, 1, 0]]
    assert mine.label([b"a", b"b", b"c"], votes).tolist() == [0, 1, 0]
    assert mine.ledger.count == 3
    assert mine.label([b"b"], [[0], [0], [0]]).tolist() == [1]
    assert mine.ledger.count == 3


def test_votes_may_come_from_a_function_which_is_called_for_new_keys_after_the_budget() -> None:
    asked: list[list[int]] = []

    def votes(rows: Sequence[int]) -> list[list[int]]:
        asked.append(list(rows))
        return [[row % 2 for row in rows]] * 3

    mine = labeler(ledger=dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=0.5, delta=1e-5)))
    assert mine.label([b"a", b"b"], votes).tolist() == [0, 1]
    assert mine.label([b"b", b"a"], votes).tolist() == [1, 0]
    assert mine.label([b"b", b"c"], votes).tolist() == [1, 1]
    with pytest.raises(dt.InvalidArgument, match="votes must be"):
        mine.label([b"d"], lambda rows: [[0]] * 2)
    assert (asked, mine.ledger.count) == ([[0, 1], [1]], 3)
    poor = labeler(ledger=dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=0.1)))
    with pytest.raises(dt.BudgetExceeded):
        poor.label([b"a"], votes)
    assert len(asked) == 2


def test_the_price_is_that_of_an_ensemble_with_the_same_promises() -> None:
    ensemble = dt.PrivateMajorityEnsemble(
        [nn.Linear(4, 2) for _ in range(3)],
        dt.NoiseFreeMajority(),
        profiles=[PROMISE] * 3,
        overlap=1,
        ledger=dt.PrivacyLedger(),
    )
    for count in (1, 7, 1000):
        mine, theirs = labeler().total_privacy(labels=count), ensemble.total_privacy(labels=count)
        assert (mine.guarantee, mine.routes) == (theirs.guarantee, theirs.routes)
        assert mine.assumptions[:-1] == theirs.assumptions
        assert mine.assumptions[-1].startswith("Origin of the votes")
    facts, others = labeler().privacy_report(as_dict=True), ensemble.privacy_report(as_dict=True)
    assert facts.keys() == others.keys()
    assert facts["assumptions"][:-1] == others["assumptions"]


def test_the_ledger_is_bound_to_teachers_promises_rules_and_mechanism() -> None:
    ledger = dt.PrivacyLedger()
    labeler(ledger=ledger)
    labeler(ledger=ledger)
    others: list[dict[str, Any]] = [
        {"teachers": ["site 0", "site 1", "another"]},
        {"profiles": [PROMISE, PROMISE, dt.PrivacyProfile.non_private()]},
        {"overlap": 2},
        {"classes": 3},
        {"rules": {"names": ["cat", "dog"]}},
        {"mechanism": dt.GNMax(sigma=3.0)},
    ]
    for other in others:
        with pytest.raises(dt.LedgerError, match="belongs to another ensemble"):
            labeler(ledger=ledger, **other)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"teachers": []}, "the number of teachers"),
        ({"teachers": ["a", "b", "a"]}, "teachers must be different ones, got '2 and 0 alike'"),
        ({"teachers": ["a", "b", ""]}, "for each teacher, got 'str for teacher 2'"),
        ({"teachers": ["a", "b", object()]}, "a name or digest, or a voter with a digest"),
        ({"profiles": [PROMISE]}, "one for each of the 3 teachers"),
        ({"overlap": 4}, "overlap"),
        ({"classes": 1}, "classes"),
        ({"mechanism": dt.NoiseFreeMajority(teachers=4)}, "built for 3 teachers, got 'one for 4'"),
        ({"mechanism": dt.DaRRM(dt.self_bounding_noise(teachers=3, allowance=1)), "classes": 3}, "2 of them"),
    ],
)
def test_contradictions_are_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(dt.InvalidArgument, match=message):
        labeler(**how)


@pytest.mark.parametrize(
    ("votes", "message"),
    [
        ([[0], [1]], r"integers of shape \(3, 1\)"),
        ([[0, 1], [1, 1], [0, 0]], r"integers of shape \(3, 1\)"),
        ([[0], [1], [2]], r"classes in 0\.\.1, or -1"),
        ([[0], [1], [-2]], r"classes in 0\.\.1, or -1"),
        ([[0.0], [1.0], [1.0]], "float64"),
        ([[0], [1, 1], [0]], "inhomogeneous"),
        ([["cat"], ["dog"], ["cat"]], "<U3"),
        ([[True], [False], [True]], "bool"),
        (None, "integers"),
    ],
)
def test_votes_that_are_none_cost_nothing(votes: Any, message: str) -> None:
    mine = labeler()
    with pytest.raises(dt.InvalidArgument, match=message):
        mine.label([b"a"], votes)
    assert mine.ledger.count == 0


def test_the_number_of_classes_is_never_read_from_the_votes() -> None:
    with pytest.raises(dt.InvalidArgument, match="classes must be given"):
        labeler(classes=None).label([b"a"], [[0], [1], [0]])


@dataclass(frozen=True, kw_only=True)
class WrittenCounts(dt.NoiseFreeMajority):
    """Its "label" is the row of counts, in base 6."""

    def _draw(self, counts: Any) -> Any:
        return counts @ np.array([1, 6, 36])


@given(st.lists(st.lists(st.integers(-1, 2), min_size=5, max_size=5), min_size=1, max_size=4))
def test_a_missing_vote_is_a_function_of_key_and_teacher_only(rows: list[list[int]]) -> None:
    """So the law of a label is the mechanism's for these votes, whatever else is in the batch."""
    votes, keys = np.array(rows).T, [f"{number}".encode() for number in range(len(rows))]
    how: dict[str, Any] = {"classes": 3, "mechanism": WrittenCounts()}
    together = labeler(5, **how).label(keys, votes)
    alone = [labeler(5, **how).label([key], votes[:, [row]])[0] for row, key in enumerate(keys)]
    assert together.tolist() == alone
    for row, label in zip(rows, together.tolist(), strict=True):
        counts = np.array([label % 6, label // 6 % 6, label // 36])
        assert counts.sum() == 5
        assert (counts >= np.bincount([vote for vote in row if vote >= 0], minlength=3)).all()
    assert (votes == np.array(rows).T).all()  # the caller's array is not changed


def test_missing_votes_are_spread_over_the_classes() -> None:
    """False alarm below 1e-6: each class has 3,000 expected votes of 9,000, standard deviation 45."""
    one = labeler(1, classes=3)
    labels = one.label([str(number).encode() for number in range(9000)], np.full((1, 9000), -1))
    assert (abs(np.bincount(labels, minlength=3) - 3000) < 5 * 45).all()


def test_voters_are_asked_for_new_inputs_only() -> None:
    sites = [Site(str(number), lambda inputs: (inputs[:, 0] > 0).long().numpy()) for number in range(3)]
    mine = labeler(teachers=sites)
    inputs = torch.tensor([[1.0], [-1.0], [1.0]])
    assert mine(inputs).tolist() == [1, 0, 1]
    assert mine(torch.cat([inputs, torch.tensor([[2.0]])])).tolist() == [1, 0, 1, 1]
    assert [site.asked for site in sites] == [3, 3, 3]


@pytest.mark.parametrize(
    "answer", [ValueError("down"), np.zeros(7, int), np.zeros(2), np.array([0, 5]), "nonsense", None, [[0, 0]]]
)
def test_a_voter_that_fails_is_named_to_the_owner_only(answer: Any) -> None:
    sites = [Site(str(number), [1, 1]) for number in range(4)]
    mine = labeler(5, teachers=[*sites, Site("4", answer)])
    assert mine(torch.rand(2, 3)).tolist() == [1, 1]
    assert mine.ledger.count == 2
    (event,) = mine.sensitive_events
    assert event.startswith("teacher 4 failed")
    assert "failed" not in mine.privacy_report()


def test_no_voter_is_asked_over_the_budget() -> None:
    sites = [Site(str(number), [0, 0]) for number in range(3)]
    mine = labeler(teachers=sites, ledger=dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=0.1)))
    with pytest.raises(dt.BudgetExceeded):
        mine(torch.rand(2, 3))
    assert not any(site.asked for site in sites)
    with pytest.raises(dt.InvalidArgument, match="finite"):
        mine(torch.full((2, 3), torch.nan))
    with pytest.raises(dt.InvalidArgument, match=r"label\(keys, votes\)"):
        labeler()(torch.rand(2, 3))


def test_what_a_voter_writes_into_its_inputs_does_not_reach_another() -> None:
    def spoils(inputs: torch.Tensor) -> Any:
        inputs.fill_(-1.0)
        return [0, 0]

    seen: list[torch.Tensor] = []
    voters = [Site("a", spoils), Site("b", lambda inputs: seen.append(inputs.clone()) or [1, 1]), Site("c", [1, 1])]
    labeler(teachers=voters)(torch.ones(2, 3) * torch.tensor([[1.0], [2.0]]))
    assert seen[0].tolist() == [[1.0] * 3, [2.0] * 3]


# --- guesses of a student ---

SURE = dt.InteractiveGNMax(threshold=25, sigma_check=0.5, sigma=0.5, delta=1e-5, confidence=0.9)


def opinions(*ones: int) -> np.ndarray:
    """Votes of 50 teachers, of which so many say 1 about each input."""
    return (np.arange(50)[:, None] < np.array(ones)).astype(np.int64)


def test_guesses_decide_where_the_teachers_add_nothing() -> None:
    mine = labeler(50, mechanism=SURE)
    keys, votes = [b"agree", b"unsure", b"news"], opinions(49, 30, 2)
    guesses = torch.tensor([[0.01, 0.99], [0.4, 0.6], [0.01, 0.99]])
    assert mine.label(keys, votes, guesses=guesses).tolist() == [1, -1, 0]
    assert mine.ledger.count == 3  # items without an answer of the teachers count, too
    assert mine.label(keys[::-1], votes[:, ::-1], guesses=1 - guesses).tolist() == [0, -1, 1]  # as they were
    assert mine.label([b"agree", b"new"], opinions(0, 0), guesses=[[0.5, 0.5], [0.02, 0.98]]).tolist() == [1, 0]
    assert mine.ledger.count == 4
    assert mine.total_privacy(labels=4) == labeler(50, mechanism=SURE).total_privacy(labels=4)


def test_guesses_about_several_findings() -> None:
    mine = labeler(50, mechanism=SURE, findings=["edema", "effusion"])
    votes = np.stack([opinions(49, 2), opinions(30, 2)], axis=2)
    guesses = [[[0.01, 0.99], [0.4, 0.6]], [[0.01, 0.99], [0.95, 0.05]]]
    assert mine.label([b"one", b"two"], votes, guesses=guesses).tolist() == [[1, -1], [0, 0]]


@pytest.mark.parametrize(
    ("mechanism", "guesses", "message"),
    [
        (dt.NoiseFreeMajority(), [[0.5, 0.5]] * 2, "only InteractiveGNMax uses them"),
        (SURE, [[0.5, 0.5]], "one row for each of the 2 questions"),
        (SURE, [[0.5, 0.6]] * 2, "rows that sum to 1"),
        (SURE, [[0.2, 0.3, 0.5]] * 2, "as the guesses are|classes"),
        (SURE, "sure", "probabilities"),
        (SURE, 0.5, "one row for each"),
    ],
)
def test_wrong_guesses_cost_nothing(mechanism: dt.Mechanism, guesses: Any, message: str) -> None:
    mine = labeler(50, mechanism=mechanism)
    with pytest.raises(dt.InvalidArgument, match=message):
        mine.label([b"a", b"b"], opinions(49, 2), guesses=guesses)
    assert mine.ledger.count == 0


def test_an_ensemble_takes_the_guesses_of_a_student() -> None:
    torch.manual_seed(0)
    teachers = [nn.Linear(2, 2) for _ in range(50)]
    for teacher in teachers:
        teacher.weight.data += 20 * torch.eye(2)
    ensemble = dt.PrivateMajorityEnsemble(teachers, SURE, overlap=1, ledger=dt.PrivacyLedger())
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert ensemble(inputs, guesses=torch.tensor([[0.98, 0.02], [0.98, 0.02]])).tolist() == [0, 1]
    assert ensemble(inputs).tolist() == [0, 1]
    assert ensemble.ledger.count == 2
