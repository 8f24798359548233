"""Certificates: what is accepted, what is refused, and that the difference is as small as promised."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from darrm_torch import (
    InvalidArgument,
    PrivacyGuarantee,
    PrivacyProfile,
    PrivacyViolation,
    certify,
    double_subsampling_noise,
    label_profile,
    optimize_noise,
    self_bounding_noise,
)
from darrm_torch.noise.certificate import certify_scaled
from darrm_torch.noise.grid import on_grid
from darrm_torch.noise.regions import Region
from tests.processes import processor_seconds

PAPER = {
    "teachers": 11,
    "teacher": PrivacyGuarantee(epsilon=0.1, delta=1e-5),
    "target": PrivacyGuarantee(epsilon=0.3, delta=1 - (1 - 1e-5) ** 3),
}


def symmetric(half: list[float]) -> np.ndarray:
    return np.array([*half[::-1], *half])


@pytest.mark.parametrize("shape", ["monotone", "free"])
def test_a_gamma_a_billionth_beyond_the_bound_is_refused(shape: str) -> None:
    noise = optimize_noise(**PAPER, shape=shape)
    certificate = certify(noise.gamma, **PAPER)
    assert certificate.margin >= 0
    assert certificate.loss <= certificate.bound == PAPER["target"].delta
    assert certificate.shape == shape
    beyond = np.minimum(noise.gamma * (1 + 1e-9), 1.0)
    with pytest.raises(PrivacyViolation, match=r"one label is not \(0\.3, 3e-05\)-DP"):
        certify(beyond, **PAPER)
    with pytest.raises(PrivacyViolation):
        certify(beyond, **PAPER, rigorous=True)


def test_the_violation_names_the_worst_case() -> None:
    teacher = PrivacyGuarantee(epsilon=0.5)
    with pytest.raises(PrivacyViolation) as caught:
        certify(np.ones(12), teachers=11, teacher=teacher, target=teacher, overlap=2)
    text = str(caught.value)
    assert "2 teachers that vote 1 with probability 0.622459 and 0.377541" in text
    assert "4 that always vote 1 and 5 that never do" in text
    here, there = ((grown / (1 + math.exp(0.5))) ** 2 for grown in (math.exp(0.5), 1))  # both must vote 1 for six
    assert f"Pr[label 1] = {here:.12g} and {there:.12g}" in text
    assert "must not exceed delta = 0" in text


def test_the_certificate_states_what_was_checked() -> None:
    noise = optimize_noise(**PAPER)
    certificate = certify(noise.gamma, **PAPER)
    assert (certificate.teachers, certificate.overlap, certificate.teacher) == (11, 11, (PAPER["teacher"],))
    assert certificate.target == PAPER["target"]
    assert (
        certificate.worst_case.ones
        + certificate.worst_case.zeros
        + sum(count for _, _, count in certificate.worst_case.corners)
        == 11
    )
    worst = certificate.worst_case
    reached = worst.here - math.exp(0.3) * worst.there
    assert 0 <= certificate.loss - reached <= 1e-13
    assert certificate.rounding_error == pytest.approx(certificate.loss - reached, abs=1e-15)
    with pytest.raises(PrivacyViolation, match="cannot say loss"):
        replace(certificate, loss=certificate.bound + 1e-9)


def test_rigorous_mode_proves_no_less() -> None:
    noise = optimize_noise(**PAPER, shape="free")
    quick, rigorous = certify(noise.gamma, **PAPER), certify(noise.gamma, **PAPER, rigorous=True)
    assert rigorous.rigorous
    assert rigorous.loss < quick.loss  # the same maximum with less allowance for rounding
    assert rigorous.rounding_error < quick.rounding_error


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["monotone", "free"])
def test_rigorous_mode_at_its_largest(shape: str) -> None:
    arguments = {
        "teachers": 101,
        "teacher": PrivacyGuarantee(epsilon=0.1),
        "target": PrivacyGuarantee(epsilon=2.0),
    }
    noise = optimize_noise(**arguments, shape=shape)
    assert certify(noise.gamma, **arguments, rigorous=True).margin >= 0


@pytest.mark.parametrize("m", [1, 2, 3, 5, 6])
def test_what_composition_proves_is_not_lost_to_rounding(m: int) -> None:
    # m * 0.1 is below or above the true m/10 by rounding; the theorem holds for the exact product of the doubles only.
    teacher = PrivacyGuarantee(epsilon=0.125)
    target = PrivacyGuarantee(epsilon=m * 0.125)
    noise = double_subsampling_noise(teachers=11, allowance=m)
    certificate = certify(noise.gamma, teachers=11, teacher=teacher, target=target)
    assert certificate.margin >= 0
    with pytest.raises(PrivacyViolation):
        certify(
            double_subsampling_noise(teachers=11, allowance=min(m + 1, 6)).gamma if m < 6 else np.ones(12),
            teachers=11,
            teacher=teacher,
            target=PrivacyGuarantee(epsilon=min(m, 5.999) * 0.125),
        )


def test_overlap_one_needs_no_noise() -> None:
    teacher = PrivacyGuarantee(epsilon=0.1, delta=1e-5)
    certificate = certify(np.ones(12), teachers=11, teacher=teacher, target=teacher, overlap=1)
    assert (certificate.method, certificate.loss) == ("composition", 1e-5)


def test_r_teachers_compose() -> None:
    teacher = PrivacyGuarantee(epsilon=0.25, delta=0.01)
    lost = 1 - (1 - Fraction(0.01)) ** 2
    target = PrivacyGuarantee(epsilon=0.5, delta=math.nextafter(float(lost), 1))
    assert certify(np.ones(4), teachers=3, teacher=teacher, target=target, overlap=2).margin >= 0


def test_a_delta_below_the_rounding_leaves_only_the_coin() -> None:
    """epsilon = 0 and a delta below the error of any computed loss: the fair coin has that, by theorem."""
    target = PrivacyGuarantee(epsilon=0.0, delta=1e-15)
    region = Region(guarantees=(PrivacyGuarantee(epsilon=1e-300),))
    gamma, certificate = certify_scaled(on_grid(np.ones(6)), region=region, overlap=5, target=target)
    assert (gamma.max(), certificate.method) == (0.0, "composition")


def test_certify_scaled_gives_up_only_what_it_must() -> None:
    region = Region(guarantees=(PrivacyGuarantee(epsilon=0.2, delta=1e-6),))
    target = PrivacyGuarantee(epsilon=0.3, delta=1e-6)
    for half in ([1.0, 1.0, 1.0], [0.9, 0.2, 1.0]):
        gamma, certificate = certify_scaled(on_grid(symmetric(half)), region=region, overlap=5, target=target)
        assert certificate.margin >= 0
        share = gamma[-1] / half[-1]
        assert np.allclose(gamma, share * symmetric(half), rtol=1e-15)
        with pytest.raises(PrivacyViolation):
            certify(
                np.minimum(gamma * (1 + 1e-11), 1),
                teachers=5,
                teacher=PrivacyProfile.from_guarantee(*region.guarantees),
                target=target,
            )


def test_no_budget_leaves_the_coin() -> None:
    region = Region(guarantees=(PrivacyGuarantee(epsilon=0.2),))
    gamma, certificate = certify_scaled(
        on_grid(np.ones(4)), region=region, overlap=3, target=PrivacyGuarantee(epsilon=0.0)
    )
    assert not gamma.any()
    assert certificate.method == "composition"


# --- profile -----------------------------------------------------------------------------------------------------


def test_profile_of_one_teacher_without_noise_is_the_teachers_own() -> None:
    profile = label_profile([1, 1], teachers=1, teacher=PrivacyGuarantee(epsilon=1.0))
    for epsilon in (0.0, 0.3, 0.9):
        exact = (math.e - math.exp(epsilon)) / (math.e + 1)
        assert exact <= profile(epsilon) <= exact + 1e-14
    assert profile(1.0) == profile(2.0) == profile(math.inf) == 0.0


def test_profile_is_what_certify_accepts() -> None:
    noise = optimize_noise(**PAPER, shape="free")
    profile = label_profile(noise.gamma, teachers=11, teacher=PAPER["teacher"])
    for epsilon in (0.0, 0.05, 0.2, 0.4):
        delta = profile(epsilon)
        target = PrivacyGuarantee(epsilon=epsilon, delta=delta)
        assert certify(noise.gamma, teachers=11, teacher=PAPER["teacher"], target=target).margin >= 0
        with pytest.raises(PrivacyViolation):
            certify(
                noise.gamma,
                teachers=11,
                teacher=PAPER["teacher"],
                target=PrivacyGuarantee(epsilon=epsilon, delta=delta * (1 - 1e-9)),
            )
    assert profile(PAPER["target"].epsilon) <= PAPER["target"].delta
    for bad in (-0.1, math.nan, "1"):
        with pytest.raises(InvalidArgument, match="epsilon must be"):
            profile(bad)  # type: ignore[arg-type]


def test_profile_never_exceeds_one() -> None:
    profile = label_profile(np.ones(4), teachers=3, teacher=PrivacyGuarantee(epsilon=math.inf))
    assert profile(0.0) == profile(5.0) == 1.0


# --- input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gamma",
    [
        [1, 0.5, 0.5],
        [[1, 0.5, 0.5, 1]],
        [1, 0.5, 0.5, math.nan],
        [1.5, 0.5, 0.5, 1.5],
        [1, -0.5, -0.5, 1],
        [1, 0.5, 0.4, 1],
        "gamma",
        None,
        [1, "x", "x", 1],
    ],
)
def test_no_gamma(gamma: object) -> None:
    with pytest.raises(InvalidArgument, match="gamma must be"):
        certify(gamma, teachers=3, teacher=PrivacyGuarantee(epsilon=1.0), target=PrivacyGuarantee(epsilon=1.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("teachers", 0),
        ("teachers", 3.0),
        ("teachers", True),
        ("teacher", None),
        ("target", 0.1),
        ("overlap", 0),
        ("overlap", 4),
        ("overlap", 1.5),
    ],
)
def test_bad_arguments_are_named(name: str, value: object) -> None:
    arguments: dict[str, object] = {
        "teachers": 3,
        "teacher": PrivacyGuarantee(epsilon=1.0),
        "target": PrivacyGuarantee(epsilon=1.0),
        name: value,
    }
    with pytest.raises(InvalidArgument, match=f"{name} must be"):
        certify([1, 0, 0, 1], **arguments)  # type: ignore[arg-type]


def test_certificates_as_text() -> None:
    teacher = PrivacyGuarantee(epsilon=0.1, delta=1e-5)
    label = certify([0.9, 0.3, 0.3, 0.9], teachers=3, teacher=teacher, target=PrivacyGuarantee(epsilon=0.2, delta=1e-4))
    words = str(label)
    assert "one label of 3 teachers that are (0.1, 1e-05)-DP is (0.2, 0.0001)-DP" in words
    assert "if each record is in the training data of at most 3." in words
    assert str(label.worst_case) in words
    noise = self_bounding_noise(teachers=11, allowance=3, overlap=2)
    assert "with m = 3, if each record is in the training data of at most 2." in str(noise.certificate)
    assert str(noise.certificate).endswith("m = 2 as well, the smallest for this noise.")
    assert "as well" not in str(self_bounding_noise(teachers=11, allowance=3).certificate)


@pytest.mark.parametrize("name", ["teacher", "target"])
def test_a_pair_of_numbers_is_no_guarantee(name: str) -> None:
    wrong: Any = {"teacher": PrivacyGuarantee(epsilon=0.1), "target": PrivacyGuarantee(epsilon=0.1)} | {name: (8, 1e-5)}
    for call in (optimize_noise, functools.partial(certify, [1.0] * 4)):
        with pytest.raises(InvalidArgument, match=rf"{name} must .* Write PrivacyGuarantee\(epsilon=8, delta=1e-05\)"):
            call(teachers=3, **wrong)


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3, 0.04, 0.2, 1.0])
@pytest.mark.parametrize("gamma", [[0.9, 0.3, 0.3, 0.9], [1.0] * 4, [0.0] * 4])
def test_epsilon_is_the_inverse_of_the_profile(gamma: list[float], delta: float) -> None:
    profile = label_profile(gamma, teachers=3, teacher=PrivacyGuarantee(epsilon=0.4, delta=1e-4))
    epsilon = profile.epsilon(delta)
    if epsilon == math.inf:
        assert delta < profile(500.0)
        return
    assert profile(epsilon) <= delta
    assert epsilon == 0.0 or profile(epsilon * (1 - 2e-6)) > delta


def test_epsilon_is_found_where_rounding_hides_the_root() -> None:
    """A delta that is one but for rounding, of a label that is not private at a delta below one."""
    profile = label_profile([0.0, 1, 1, 0.0], teachers=3, teacher=PrivacyGuarantee(epsilon=0.4, delta=1 - 2**-53))
    assert processor_seconds(lambda: profile.epsilon(1 - 2**-53), below=2) < 2


def test_epsilon_of_a_label_that_is_not_private() -> None:
    profile = label_profile([1, 1], teachers=1, teacher=PrivacyGuarantee(epsilon=math.inf))
    assert profile.epsilon(0.5) == math.inf
    assert profile.epsilon(1.0) == 0.0
    with pytest.raises(InvalidArgument, match="delta must be"):
        profile.epsilon(math.nan)


CHANGES: list[dict[str, object]] = [
    {"target": PrivacyGuarantee(epsilon=0.01, delta=1.0)},
    {"teacher": (PrivacyGuarantee(epsilon=9.0),)},
    {"teachers": 5},
    {"overlap": 1},
    {"loss": 0.0},
    {"worst_case": None},
    {"rigorous": True},
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_certificate_cannot_be_changed(change: dict[str, object]) -> None:
    teacher = PrivacyGuarantee(epsilon=0.1, delta=1e-5)
    proof = certify([0.9, 0.3, 0.3, 0.9], teachers=3, teacher=teacher, target=PrivacyGuarantee(epsilon=0.2, delta=1e-4))
    with pytest.raises(PrivacyViolation, match="cannot be changed: certify the noise again"):
        replace(proof, **change)  # type: ignore[arg-type]
    assert replace(proof, optimality_gap=0.5).target == proof.target
    assert copy.deepcopy(proof) == pickle.loads(pickle.dumps(proof)) == proof


@pytest.mark.parametrize("change", [{"allowance": 9.0}, {"smallest": 0.0}, {"overlap": 1}, {"teachers": 5}])
def test_a_self_bounding_certificate_cannot_be_changed(change: dict[str, float]) -> None:
    proof = self_bounding_noise(teachers=11, allowance=3).certificate
    with pytest.raises(PrivacyViolation, match="cannot be changed: certify the noise again"):
        replace(proof, **change)


def test_the_premise_of_a_certificate_is_not_rounded() -> None:
    """Teachers who keep what is printed keep what was used."""
    teacher = PrivacyGuarantee(epsilon=0.1234567890123, delta=1.23456789e-5)
    proof = certify([0.0] * 4, teachers=3, teacher=teacher, target=PrivacyGuarantee(epsilon=0.2))
    assert "teachers that are (0.1234567890123, 1.23456789e-05)-DP is (0.2, 0)-DP" in str(proof)
