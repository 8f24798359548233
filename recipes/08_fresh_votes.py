"""Fresh votes: every question is answered with fresh randomness, so the costs of labels compose.

    python -m recipes.08_fresh_votes

31 hospitals hold 450 breast cancer patients, each patient in one hospital. Ten questions ask whether a measurement is
higher in malignant cases. A hospital answers by randomized response: with probability e^eps / (1 + e^eps) the sign that
its own patients show, otherwise the opposite, with new randomness for each question. Labels of teachers that were
trained once share the randomness of that training. These labels share none, so composition theorems apply to them.

The collector of the answers is trusted; only the labels are released. They form a classifier without any training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

import darrm_torch as dt

QUESTIONS = 10  # the means of ten measurements


def signs(measured: NDArray[np.float64], malignant: NDArray[np.int64]) -> NDArray[np.int64]:
    """1 for each measurement whose correlation with malignancy is positive among one hospital's patients."""
    centred = malignant - malignant.mean()
    return (centred @ measured > 0).astype(np.int64)


def main(*, hospitals: int = 31, answer_epsilon: float = 0.5, label_epsilon: float = 0.25) -> dict[str, float]:
    """Ask, label, and compare cost and accuracy; returns the numbers that it prints."""
    measured, benign = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(benign))
    measured, malignant = measured[order, :QUESTIONS], 1 - benign[order]
    # A patient is in one hospital and can change the answers of one: overlap 1. Which one is no secret: the seed stands
    # for the real hospitals, and nothing is gained from a random allocation.
    shards = dt.assign_shards(450, teachers=hospitals, insecure_seed=0)
    shown = np.array([signs(measured[shard], malignant[shard]) for shard in shards])

    # Randomized response is DaRRM with one teacher that is not private: certified, and drawn exactly.
    answer = dt.PrivacyGuarantee(epsilon=answer_epsilon)
    sign_as_it_is = dt.PrivacyGuarantee(epsilon=math.inf)
    response = dt.DaRRM(dt.optimize_noise(teachers=1, teacher=sign_as_it_is, target=answer))
    right = float(response.label_probabilities(np.array([[0, 1]]))[0, 1])
    majority = dt.DaRRM(
        dt.optimize_noise(
            teachers=hospitals,
            teacher=answer,
            target=dt.PrivacyGuarantee(epsilon=label_epsilon),
            overlap=1,
            prior=dt.IndependentVotes(mean=right),
        )
    )

    def total(labels: int, mechanism: dt.Mechanism = majority) -> dt.TotalPrivacy:
        return dt.total_privacy(
            teachers=[answer] * hospitals, overlap=1, mechanism=mechanism, labels=labels, votes="fresh", delta=1e-6
        )

    def ask(questions: Sequence[int]) -> list[int]:
        """Fresh answers to some questions, and the majority label of each."""
        counts = np.array([[1 - sign, sign] for question in questions for sign in shown[:, question]])
        votes = response.aggregate(counts).reshape(len(questions), hospitals).sum(axis=1)
        return list(majority.aggregate(np.stack([hospitals - votes, votes], axis=1)))

    ledger = dt.PrivacyLedger(budget=total(QUESTIONS).guarantee, cost=lambda labels: total(labels).guarantee)
    labels = ledger.answer([f"measurement {number}".encode() for number in range(QUESTIONS)], ask)

    rest, truth = measured[450:], malignant[450:]
    standard = (rest - rest.mean(axis=0)) / rest.std(axis=0)
    malignant_like = standard @ (2 * np.array(labels) - 1) > 0
    spent, published = total(QUESTIONS), total(QUESTIONS, dt.NoiseFreeMajority(classes=2))
    print(f"One answer is {answer}, right with probability {right:.3f}; one label is {total(1).guarantee}.")
    print(f"{QUESTIONS} labels from fresh votes: {spent.guarantee}, by {spent.route.name}.")
    print(f"Without noise on the majority: {published.guarantee}, by {published.route.name}.")
    print(
        f"The classifier from these {QUESTIONS} signs is right on {(malignant_like == truth).mean():.3f} of 119 others."
    )
    return {
        "total": spent.epsilon,
        "published": published.epsilon,
        "right": right,
        "accuracy": float((malignant_like == truth).mean()),
    }


if __name__ == "__main__":
    main()
