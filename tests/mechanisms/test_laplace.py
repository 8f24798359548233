"""Laplace noise on the counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from darrm_torch import InvalidArgument, LNMax, PrivacyGuarantee


def test_a_target_that_no_laplace_noise_keeps() -> None:
    with pytest.raises(InvalidArgument, match=r"^target must be one that a scale of 65536 votes keeps"):
        LNMax.calibrated(PrivacyGuarantee(epsilon=1e-5))
    with pytest.raises(InvalidArgument, match=r"^labels must be"):
        LNMax.calibrated(PrivacyGuarantee(epsilon=1.0), labels=0)


def test_a_calibrated_scale_suffices_and_a_smaller_one_does_not() -> None:
    for epsilon, labels, overlap in ((0.3, 1, 1), (2.0, 10, 1), (1.0, 50, 3)):
        target = PrivacyGuarantee(epsilon=epsilon, delta=1e-5)
        mechanism = LNMax.calibrated(target, labels=labels, overlap=overlap)
        assert mechanism.guarantee(labels=labels, delta=1e-5).epsilon <= epsilon
        smaller = LNMax(scale=0.98 * mechanism.scale, overlap=overlap)
        assert smaller.guarantee(labels=labels, delta=1e-5).epsilon > epsilon


def test_the_claim_is_tight_for_neighbouring_counts() -> None:
    """r changed votes change two counts by r each: (2 r / scale, 0)-DP, which counts that differ much almost attain."""
    mechanism = LNMax(scale=6.0, overlap=1)
    counts = np.array([[150, 0], [149, 1]])
    ratio = math.log(np.divide(*mechanism.label_probabilities(counts)[::-1, 1]))
    assert 0.95 * mechanism.guarantee().epsilon < ratio <= mechanism.guarantee().epsilon
