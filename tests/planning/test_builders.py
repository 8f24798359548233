"""Builders: each uses what the targets allow, by whichever proof allows the most."""

from __future__ import annotations

from typing import Any

import numpy as np

from darrm_torch import (
    PluralityVotes,
    PrivacyGuarantee,
    PrivacyProfile,
    strongest_mechanism,
    subsampling_noise,
    total_privacy,
)

POINT = PrivacyGuarantee(epsilon=0.1, delta=1e-5)


def test_every_route_counts_for_self_bounding_noise() -> None:
    """For many labels its own randomness and the teachers' training prove more than its allowance."""
    teacher = PrivacyProfile.from_dp_sgd([(4.0, 0.1, 40)])
    target = PrivacyGuarantee(epsilon=0.2, delta=1e-4)
    mechanism = strongest_mechanism(
        "self-bounding", teachers=11, classes=2, teacher=teacher, overlap=1, labels=200, total_target=target
    )
    total = total_privacy(teachers=[teacher] * 11, overlap=1, mechanism=mechanism, labels=200, delta=target.delta)
    assert 0.99 * target.epsilon <= total.epsilon <= target.epsilon
    assert total.route.key != "self-bounding"


def test_subsampling_asks_the_largest_sample_that_fits() -> None:
    for allowance, sample in ((1, 1), (1.99, 1), (2, 3), (2.5, 3), (3, 5), (6, 11), (20, 11)):
        mechanism = strongest_mechanism("subsampling", teachers=11, classes=2, allowance=allowance)
        assert np.array_equal(mechanism.noise.gamma, subsampling_noise(teachers=11, allowance=sample).gamma)
        assert (sample + 1) // 2 - 1e-12 < mechanism.certificate.allowance <= (sample + 1) // 2
    doubled = PrivacyGuarantee(epsilon=0.2, delta=2e-5)
    mechanism = strongest_mechanism("subsampling", teachers=11, classes=2, teacher=POINT, label_target=doubled)
    assert round(mechanism.certificate.allowance) == 2  # exactly what the target is


def test_tables_follow_the_prior_that_is_given() -> None:
    target = PrivacyGuarantee(epsilon=0.5, delta=1e-5)
    asked: dict[str, Any] = {"teachers": 7, "classes": 3, "overlap": 1, "label_target": target}
    for accuracy in (0.4, 0.9):
        prior = PluralityVotes(accuracy=accuracy)
        own = strongest_mechanism("vote-private", **asked, prior=prior)
        assert own.expected_accuracy(prior) >= strongest_mechanism("vote-private", **asked).expected_accuracy(prior)
        assert own.prior == (prior,)
