"""Noise for a total: the figures of the theory, never above the target, hardly below."""

from __future__ import annotations

import pytest

from darrm_torch import (
    InvalidArgument,
    PrivacyGuarantee,
    PrivacyProfile,
    RandomAllocation,
    allocated_epsilon,
    calibrate_noise,
)

RUN = {"sample_rate": 1 / 35, "steps": 175}


@pytest.mark.parametrize(
    ("epsilon", "teachers", "overlap", "sigma"),
    [(0.1, 11, 1, 3.62), (0.25, 11, 1, 1.73), (0.25, 12, 3, 4.466), (1.0, 12, 4, 1.829), (4.0, 12, 4, 0.871)],
)
@pytest.mark.slow
def test_the_figures_with_random_allocation(epsilon: float, teachers: int, overlap: int, sigma: float) -> None:
    allocation = RandomAllocation(teachers=teachers, overlap=overlap)
    noise = calibrate_noise(PrivacyGuarantee(epsilon=epsilon, delta=1e-5), allocation=allocation, **RUN)
    assert noise == pytest.approx(sigma, rel=0.03)
    profile = PrivacyProfile.from_dp_sgd([(noise, 1 / 35, 175)])
    assert 0.99 * epsilon < allocated_epsilon(profile, allocation, 1e-5) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "overlap", "sigma"), [(0.1, 1, 11.8), (0.25, 1, 5.19), (1.0, 1, 1.691)])
def test_the_figures_without(epsilon: float, overlap: int, sigma: float) -> None:
    noise = calibrate_noise(PrivacyGuarantee(epsilon=epsilon, delta=1e-5), overlap=overlap, **RUN)
    assert noise == pytest.approx(sigma, rel=0.03)
    profile = PrivacyProfile.from_dp_sgd([(noise, 1 / 35, 175)]).compose(overlap)
    assert 0.99 * epsilon < profile.epsilon(1e-5) <= epsilon


def test_wrong_arguments() -> None:
    with pytest.raises(InvalidArgument, match="one that some noise keeps"):
        calibrate_noise(PrivacyGuarantee(epsilon=0.0), **RUN)
    for wrong in ({"sample_rate": 0.0}, {"steps": 0}, {"steps": 10**7 + 1}, {"overlap": 0}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            calibrate_noise(PrivacyGuarantee(epsilon=1.0, delta=1e-5), **(RUN | wrong))
    with pytest.raises(InvalidArgument, match="validation must be None without runs"):
        calibrate_noise(PrivacyGuarantee(epsilon=1.0, delta=1e-5), validation=PrivacyProfile.non_private(), **RUN)
