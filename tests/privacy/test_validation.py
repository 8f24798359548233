"""Training and validation together: the pair of theorem 18 against enumeration of everything that is released."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from darrm_torch import (
    DaRRM,
    InvalidArgument,
    MeanProbabilities,
    NoiseFreeMajority,
    PermuteAndFlip,
    PrivacyGuarantee,
    PrivacyProfile,
    PrivateValidation,
    RandomAllocation,
    RandomRuns,
    TotalPrivacy,
    allocated_delta,
    allocated_epsilon,
    self_bounding_noise,
    total_privacy,
    tuning_epsilon,
)
from darrm_torch.arrays import FloatArray

TEACHER = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.8))
HIGH, LOW = math.exp(0.8) / (1 + math.exp(0.8)), 1 / (1 + math.exp(0.8))
VALIDATION = PrivateValidation(epsilon=0.3)
MOST = 60  # noise beyond this counts as this


def noise(epsilon: float, shift: int) -> FloatArray:
    """The law of ``shift`` plus discrete Laplace noise, from -MOST to MOST; what is outside is at the ends."""
    a, places = math.exp(-epsilon), np.arange(-MOST, MOST + 1) - shift
    law = (1 - a) / (1 + a) * a ** np.abs(places)
    law[0], law[-1] = a ** -places[0] / (1 + a), a ** places[-1] / (1 + a)
    assert abs(law.sum() - 1) < 1e-12
    return law


def joint(
    overlap: int, teachers: int, read: int, holdout: float, epsilon: float, releases: int
) -> tuple[FloatArray, FloatArray]:
    """Everything that is released, with the unit and without it: bits of the teachers, then counts, by enumeration.

    Only the first ``read`` teachers are released, and the counts look at these.

    The first count is of how often the majority of the teachers is right. The second looks at the first: it is of
    another group of held-out records if the first was positive.
    """
    sets = list(itertools.combinations(range(teachers), overlap))

    def counts(models: tuple[int, ...], unit: bool) -> FloatArray:
        others = sum(models)  # other held-out records, whose answers depend on the teachers
        right = int(2 * sum(models) >= read)
        law = noise(epsilon, others + (right if unit else 0))
        if releases == 1:
            return law
        seconds = [noise(epsilon, others * swap + (right if unit else 0)) for swap in (0, 1)]
        positive = (np.arange(-MOST, MOST + 1) > 0).astype(int)
        return np.concatenate([law[i] * seconds[positive[i]] for i in range(len(law))])

    with_unit, without = [], []
    for models in itertools.product((0, 1), repeat=read):
        base = [HIGH if one == 0 else LOW for one in models]
        trained = np.mean([
            math.prod((LOW if one == 0 else HIGH) if k in chosen else base[k] for k, one in enumerate(models))
            for chosen in sets
        ])  # fmt: skip
        without.append(math.prod(base) * counts(models, unit=False))
        with_unit.append(
            (1 - holdout) * trained * counts(models, unit=False) + holdout * math.prod(base) * counts(models, unit=True)
        )
    return np.concatenate(with_unit), np.concatenate(without)


def true_delta(laws: tuple[FloatArray, FloatArray], epsilon: float) -> float:
    """The larger hockey-stick divergence of the two directions."""
    one, two = laws
    return float(max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((one, two), (two, one))))


@pytest.mark.parametrize(
    ("teachers", "overlap", "read", "holdout", "epsilon", "releases"),
    [
        (2, 1, 2, 0.5, 0.4, 1),
        (3, 1, 3, 0.2, 1.5, 1),
        (3, 2, 3, 0.3, 0.7, 1),
        (4, 2, 4, 0.1, 2.5, 1),
        (3, 1, 3, 0.4, 0.5, 2),
        (4, 1, 2, 0.3, 0.8, 1),
        (4, 2, 3, 0.3, 0.6, 1),
    ],
)
def test_no_joint_release_costs_more_than_its_claim(
    teachers: int, overlap: int, read: int, holdout: float, epsilon: float, releases: int
) -> None:
    laws = joint(overlap, teachers, read, holdout, epsilon, releases)
    allocation = RandomAllocation(teachers=teachers, overlap=overlap, holdout=holdout)
    validation = PrivateValidation(epsilon=epsilon, releases=releases)
    both = replace(allocation, validation=validation)
    for level in (0.1, 0.3, 0.6):
        alone = allocated_delta(TEACHER, allocation, level, voters=read)
        claim = allocated_delta(TEACHER, both, level, voters=read)
        assert true_delta(laws, level) <= claim * (1 + 1e-9)
        assert claim <= (1 - holdout) * alone + holdout * validation.profile.delta(level) + 1e-12  # and so the larger
    for delta in (0.0, 1e-3):
        claim = allocated_epsilon(TEACHER, both, delta, voters=read)
        trained = allocated_epsilon(TEACHER, allocation, delta, voters=read)
        assert claim <= max(trained, validation.profile.epsilon(delta)) + 1e-9
        assert true_delta(laws, claim) <= delta + 1e-12
    claim = allocated_epsilon(TEACHER, both, 0.0, voters=read)
    if overlap == 1:  # blocks are an upper bound for uniform sets
        assert true_delta(laws, 0.9 * claim) > 1e-6  # ten percent less would be wrong


def total(mechanism: object, reads: str, teacher: PrivacyProfile = TEACHER, **rest: object) -> TotalPrivacy:
    settings = {"labels": 1, "delta": 1e-6, "validation": PrivateValidation(epsilon=0.3, reads=reads)} | rest
    return total_privacy(teachers=[teacher] * 5, mechanism=mechanism, **settings)  # type: ignore[arg-type]


def test_which_routes_price_a_validation() -> None:
    mechanism = DaRRM(self_bounding_noise(teachers=5, allowance=1))
    allocation = RandomAllocation(teachers=5, holdout=0.2)
    alone = total(mechanism, "labels", allocation=allocation, validation=None)
    everything = {route.key for route in alone.routes if route.applies}
    assert {"self-bounding", "own-randomness", "allocation-self-bounding"} < everything
    published = {"publishing", "allocation"}
    for reads, keys in (("labels", published), ("teachers", published), ("student", everything)):
        found = total(mechanism, reads, allocation=allocation)
        stated = replace(allocation, validation=PrivateValidation(epsilon=0.3, reads=reads))  # type: ignore[arg-type]
        assert found.to_dict() == total(mechanism, reads, allocation=stated, validation=None).to_dict()
        assert {route.key for route in found.routes if route.applies} == keys
        for with_it, without in zip(found.routes, alone.routes, strict=True):
            assert not with_it.applies or with_it.epsilon <= max(without.epsilon, 0.3) * (1 + 1e-9)
            if with_it.applies and with_it.key != "allocation":
                assert with_it.epsilon == max(without.epsilon, VALIDATION.profile.epsilon(1e-6))
        assert any("Validation:" in one for one in found.assumptions)
        assert not any("Validation:" in one for one in alone.assumptions)


def test_a_jury_covers_the_validation_of_its_labels_only() -> None:
    mean = total(MeanProbabilities(jury=2), "labels").epsilon
    assert (
        mean
        == total(MeanProbabilities(jury=2), "student").epsilon
        < total(MeanProbabilities(jury=2), "teachers").epsilon
    )
    redrawn = MeanProbabilities(jury=2, redrawn=True)
    assert total(redrawn, "student").epsilon < total(redrawn, "labels").epsilon == total(redrawn, "teachers").epsilon
    assert total(redrawn, "labels").epsilon == total(MeanProbabilities(), "labels").epsilon


def test_plain_teachers_have_no_price_and_could_not() -> None:
    # Randomised answers of one plain teacher, and twenty held-out rows that one trained record flips all at once.
    plain, mechanism = PrivacyProfile.non_private(), PermuteAndFlip(epsilon=0.5, teachers=5)
    assert total(mechanism, "student", plain).epsilon < 4
    assert math.isinf(total(mechanism, "labels", plain).epsilon)
    assert true_delta((noise(0.3, 20), noise(0.3, 0)), 4.0) > 0.1


def test_labels_of_held_out_questions_are_labels() -> None:
    # A random dictator of three teachers, m = 1: one label costs one teacher, counts of twelve labels cost more.
    def counted(chances: Callable[[int], float]) -> FloatArray:
        law = np.zeros(2 * MOST + 1)
        for models in itertools.product((0, 1), repeat=3):
            chance = math.prod(chances(k) if one else 1 - chances(k) for k, one in enumerate(models))
            for right in range(13):
                share = sum(models) / 3
                law += chance * math.comb(12, right) * share**right * (1 - share) ** (12 - right) * noise(0.5, right)
        return law

    laws = counted(lambda k: HIGH), counted(lambda k: LOW)
    assert true_delta(laws, 0.8) > 0.03  # where max(m epsilon, 0.5) = 0.8
    mechanism = DaRRM(self_bounding_noise(teachers=5, allowance=1))
    assert not next(r for r in total(mechanism, "labels").routes if r.key == "self-bounding").applies


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": 0.1, "releases": 0}, "releases"),
        ({"epsilon": 0.1, "reads": "votes"}, "reads"),
    ],
)
def test_impossible_validations_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        PrivateValidation(**settings)  # type: ignore[arg-type]


def test_what_the_theorem_does_not_cover_is_refused() -> None:
    for validation, holdout in ((VALIDATION, 0.0), (0.3, 0.1)):
        with pytest.raises(InvalidArgument, match="validation must be a PrivateValidation"):
            RandomAllocation(teachers=5, holdout=holdout, validation=validation)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="a PrivateValidation with a holdout above 0"):
        total(NoiseFreeMajority(), "labels", allocation=RandomAllocation(teachers=5))
    with pytest.raises(InvalidArgument, match="without a validation, which is an argument of its own"):
        tuning_epsilon(
            TEACHER,
            1e-6,
            runs=RandomRuns(mean=2),
            allocation=RandomAllocation(teachers=5, holdout=0.1, validation=VALIDATION),
        )
    with pytest.raises(InvalidArgument, match="Replacing a unit has another price"):
        total(NoiseFreeMajority(), "labels", neighbours="replace-one")
    with pytest.raises(InvalidArgument, match="draw one by one"):
        total(NoiseFreeMajority(), "labels", TEACHER.for_unit("patient", records=3))
    with pytest.raises(InvalidArgument, match="validation must be"):
        total(NoiseFreeMajority(), "labels", validation=0.3)
