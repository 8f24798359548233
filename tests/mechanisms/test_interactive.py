"""InteractiveGNMax: its law against a plain sum, its guarantee and its costs against all neighbouring votes."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from darrm_torch import ConfidentGNMax, DataDependentLoss, GNMax, InteractiveGNMax, InvalidArgument, PrivacyGuarantee
from darrm_torch.mechanisms.pate_rdp import VoteCosts

GUESSES = [[0.8, 0.15, 0.05], [0.34, 0.33, 0.33], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]]
ORDERS = np.array([1.5, 2.0, 4.0])


def histograms(teachers: int) -> np.ndarray:
    return np.array([(a, b, teachers - a - b) for a in range(teachers + 1) for b in range(teachers + 1 - a)])


def pairs(votes: np.ndarray, overlap: int) -> zip:
    moved = np.abs(votes[:, None] - votes[None]).sum(axis=2) // 2
    return zip(*np.nonzero((moved <= overlap) & (moved > 0)), strict=True)


def test_the_law_is_that_of_the_published_algorithm() -> None:
    mechanism = InteractiveGNMax(threshold=3.0, sigma_check=16.0, sigma=16.0, confidence=0.7)
    votes = np.array([[9, 1, 0], [2, 7, 1], [0, 5, 5], [4, 3, 3]])
    law = mechanism.given(GUESSES).label_probabilities(votes)
    plain = GNMax(sigma=16.0).label_probabilities(votes)
    for row, (counts, guess) in enumerate(zip(votes, np.array(GUESSES), strict=True)):
        surplus = max(int(n) - round(10 * float(p)) for n, p in zip(counts, guess, strict=True))
        answered = stats.norm.sf(3 - 0.5 - surplus, scale=16.0)  # noise in whole votes
        expected = np.append(answered * plain[row], 0.0)
        expected[guess.argmax() if guess.max() >= 0.7 else 3] += 1 - answered
        np.testing.assert_allclose(law[row], expected, atol=1e-9)


def test_labels_follow_the_law() -> None:
    mechanism = InteractiveGNMax(threshold=2.0, sigma_check=2.0, sigma=2.0, confidence=0.7, insecure_seed=3)
    votes, draws = np.array([[5, 3, 2], [1, 8, 1], [3, 3, 4], [6, 2, 2]]), 4000
    law = mechanism.given(GUESSES).label_probabilities(votes)
    many = mechanism.given(np.repeat(GUESSES, draws, axis=0)).aggregate(np.repeat(votes, draws, axis=0))
    for row, labels in enumerate(many.reshape(len(votes), draws)):
        seen = np.bincount(np.where(labels < 0, 3, labels), minlength=4)
        possible = law[row] > 1e-12
        assert not seen[~possible].any()
        # False alarms: 4 in a million; the seed is fixed.
        assert stats.chisquare(seen[possible], draws * law[row][possible] / law[row][possible].sum()).pvalue > 1e-6


@pytest.mark.parametrize(("overlap", "labels"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("guess", GUESSES)
def test_the_guarantee_holds_for_any_guess(overlap: int, labels: int, guess: list[float]) -> None:
    votes = histograms(6)
    mechanism = InteractiveGNMax(threshold=2.5, sigma_check=2.0, sigma=1.5, overlap=overlap, confidence=0.6, delta=0.05)
    claim = mechanism.guarantee(labels=labels)
    law = mechanism.given([guess] * len(votes)).label_probabilities(votes)
    if labels == 2:  # the second guess is another one if the first label was class 0: an adaptive question
        others = mechanism.given([GUESSES[0]] * len(votes)).label_probabilities(votes)
        second = np.stack([others, law, law, law], axis=1)
        law = (law[:, :, None] * second).reshape(len(votes), -1)
    losses = [np.maximum(law[i] - math.exp(claim.epsilon) * law[j], 0).sum() for i, j in pairs(votes, overlap)]
    assert max(losses) <= claim.delta + 1e-12
    confident = ConfidentGNMax(threshold=2.5, sigma_check=2.0, sigma=1.5, overlap=overlap, delta=0.05)
    assert confident.guarantee(labels=labels) == claim  # guesses cost nothing, and buy nothing


@pytest.mark.parametrize("guess", GUESSES)
def test_costs_on_the_votes_are_no_less_than_the_exact_divergence(guess: list[float]) -> None:
    votes = histograms(7)
    mechanism = InteractiveGNMax(threshold=3.0, sigma_check=1.2, sigma=0.8, confidence=0.6)
    law = mechanism.given([guess] * len(votes)).label_probabilities(votes)
    costs = [DataDependentLoss(mechanism=mechanism.given([guess]), counts=[one]).renyi(ORDERS) for one in votes]
    for i, j in pairs(votes, 1):
        p, q = law[i] + 1e-30, law[j] + 1e-12
        assert np.all(np.log(((p / q) ** (ORDERS[:, None] - 1)) @ p) / (ORDERS - 1) <= costs[i] + 1e-9)


@pytest.mark.slow
def test_the_smooth_sensitivity_is_smooth_and_a_bound() -> None:
    votes, mechanism = histograms(8), InteractiveGNMax(threshold=3.5, sigma_check=1.2, sigma=0.7)
    for guess, smoothness in itertools.product(GUESSES[:2], (0.02, 0.3)):
        costs = [VoteCosts(mechanism.given([guess]), np.array([one]), 2.0) for one in votes]
        loss, smooth = [one.loss() for one in costs], [one.smooth_sensitivity(smoothness) for one in costs]
        assert max(loss) > min(loss)
        for i, j in pairs(votes, 1):
            assert abs(loss[i] - loss[j]) <= smooth[i] * (1 + 1e-9) + 1e-15
            assert smooth[i] <= math.exp(smoothness) * smooth[j] * (1 + 1e-9)


def test_teachers_that_agree_with_the_student_cost_little() -> None:
    votes = np.array([[245, 5]] * 300)
    mechanism = InteractiveGNMax(threshold=100, sigma_check=20, sigma=10, delta=1e-6)
    known, news = ([[0.97, 0.03]] * 300, [[0.03, 0.97]] * 300)
    agree, disagree = (
        DataDependentLoss(mechanism=mechanism.given(guesses), counts=votes).guarantee(delta=1e-6).epsilon
        for guesses in (known, news)
    )
    assert agree < 0.2 * mechanism.guarantee(labels=300).epsilon
    assert mechanism.given(known).aggregate(votes).tolist() == [0] * 300
    assert mechanism.given(news).aggregate(votes).tolist() == [0] * 300
    assert disagree < mechanism.guarantee(labels=300).epsilon


def test_without_guesses_it_is_confident_gnmax() -> None:
    shape = {"threshold": 5.5, "sigma_check": 2.0, "sigma": 2.0}
    votes = histograms(8)
    laws = [kind(**shape).label_probabilities(votes) for kind in (ConfidentGNMax, InteractiveGNMax)]
    np.testing.assert_array_equal(*laws)
    target = PrivacyGuarantee(epsilon=2, delta=1e-5)
    assert isinstance(InteractiveGNMax.calibrated(target, threshold=5.5, labels=10), InteractiveGNMax)


def test_what_is_assumed_about_guesses_stands_in_the_report() -> None:
    notes = InteractiveGNMax(threshold=5.5, sigma_check=2.0, sigma=2.0).describe()["notes"]
    assert any(note.startswith("assumed: guesses depend on") for note in notes)


def test_half_precision_and_torch() -> None:
    guesses = torch.softmax(torch.linspace(-3, 3, 40).reshape(4, 10), dim=1).half()
    mechanism = InteractiveGNMax(threshold=50, sigma_check=2.0, sigma=1.0).given(guesses)
    votes = torch.zeros(4, 10, dtype=torch.int64)
    votes[:, 3] = 100
    assert mechanism.aggregate(votes).tolist() == [3] * 4


@pytest.mark.parametrize(
    "wrong",
    [[[0.5, 0.6]], [[-0.1, 1.1]], [[math.nan, 1.0]], [[math.inf, 0.0]], [0.5, 0.5], [["a", "b"]], [[0.2, 0.3, 0.5]]],
)
def test_wrong_guesses(wrong) -> None:
    with pytest.raises(InvalidArgument, match=r"^guesses must be probabilities of shape"):
        InteractiveGNMax(threshold=5, sigma_check=2.0, sigma=1.0, classes=2).given(wrong)


def test_guesses_for_other_items() -> None:
    mechanism = InteractiveGNMax(threshold=5, sigma_check=2.0, sigma=1.0).given([[0.5, 0.5]])
    for votes in ([[1, 2], [2, 1]], [[1, 2, 0]]):
        with pytest.raises(InvalidArgument, match=r"^counts must be of shape \(1, 2\), the shape of the guesses"):
            mechanism.aggregate(votes)
