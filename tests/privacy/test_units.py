"""Units with several records, and replaced records: exact laws, dp-accounting, simulation."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.integrate import trapezoid
from scipy.stats import binom, norm

import darrm_torch as dt
from darrm_torch import InvalidArgument, PrivacyGuarantee, PrivacyProfile
from darrm_torch.privacy.allocation_prices import allocated_delta, allocated_epsilon
from darrm_torch.privacy.loss_distributions import grid_parts, grid_step
from darrm_torch.privacy.loss_grids import compose_grids
from darrm_torch.privacy.units import ProtectedUnit, group_loss
from darrm_torch.privacy.unlike import worst_epsilon

RUNS = [((1.0, 0.05, 100), 3), ((4.0, 0.01, 1000), 4), ((12.0, 1 / 35, 175), 2), ((2.0, 1.0, 5), 3)]


def patients(run, records):
    return PrivacyProfile.from_dp_sgd([run]).for_unit("patient", records=records)


@pytest.mark.slow
@pytest.mark.parametrize(("run", "records"), [*RUNS[:3], pytest.param(*RUNS[3], marks=pytest.mark.slow)])
def test_a_unit_costs_what_the_mixture_of_gaussians_costs(run, records):
    """dp-accounting's mixture, rounded to the other side, lies below; rounded to this side, at most 1 % from it."""
    noise, rate, steps = run
    counts = np.arange(records + 1.0)
    claim = patients(run, records).epsilon(1e-5)
    for pessimistic in (False, True):
        mixture = privacy_loss_distribution.from_mixture_gaussian_mechanism(
            noise,
            counts,
            binom.pmf(counts, records, rate),
            pessimistic_estimate=pessimistic,
            value_discretization_interval=2e-2 if noise < 3 else 1e-3,
        )
        other = mixture.self_compose(steps).get_epsilon_for_delta(1e-5)
        assert claim <= 1.01 * other if pessimistic else claim >= other * (1 - 1e-6)


@pytest.mark.parametrize(("noise", "rate", "records"), [(0.7, 0.3, 2), (1.5, 0.05, 5), (3.0, 0.9, 4), (1.0, 1.0, 3)])
def test_one_step_against_quadrature(noise, rate, records):
    """Both directions: the positive part of the difference of the densities, integrated."""
    x = np.linspace(-14 * noise, records + 14 * noise, 100_001)
    chances = binom.pmf(np.arange(records + 1), records, rate)
    without = norm.pdf(x, 0, noise)
    mixed = sum(chance * norm.pdf(x, count, noise) for count, chance in enumerate(chances))
    group = group_loss(noise, rate, records)
    for epsilon in (-1.0, -0.05, 0.0, 0.02, 0.5, 2.0):
        removed = trapezoid(np.maximum(mixed - math.exp(epsilon) * without, 0), x)
        added = trapezoid(np.maximum(without - math.exp(epsilon) * mixed, 0), x)
        assert group.curve(np.array([epsilon]), added=False)[0] == pytest.approx(removed, abs=1e-8)
        assert group.curve(np.array([epsilon]), added=True)[0] == pytest.approx(added, abs=1e-8)


def test_gradients_of_a_unit_that_point_in_any_direction_cost_no_more():
    """Two and three records with unlike gradients in the plane: simulation of one step, against the scalar mixture."""
    rng, noise, rate = np.random.default_rng(3), 0.8, 0.4
    z = rng.normal(0.0, noise, (100_000, 2))
    for angles, lengths in (((0.0, 1.0), (1, 1)), ((0.0, 3.1), (1, 1)), ((0.3, 1.2, 2.0), (1, 0.5, 0.9))):
        vectors = [length * np.array([math.cos(a), math.sin(a)]) for a, length in zip(angles, lengths, strict=True)]
        ratio = np.zeros(len(z))
        for chosen in itertools.product((0, 1), repeat=len(vectors)):
            moved = sum((v for v, c in zip(vectors, chosen, strict=True) if c), np.zeros(2))
            chance = math.prod(rate if c else 1 - rate for c in chosen)
            ratio += chance * np.exp((z @ moved - moved @ moved / 2) / noise**2)
        group = group_loss(noise, rate, len(vectors))
        for epsilon in (0.0, 0.5, 1.5):
            for gain, added in ((ratio - math.exp(epsilon), False), (1 - math.exp(epsilon) * ratio, True)):
                values = np.maximum(gain, 0.0)
                claim = group.curve(np.array([epsilon]), added)[0]
                assert values.mean() - 4 * values.std() / math.sqrt(len(z)) <= claim


def test_more_records_cost_more_and_one_record_costs_the_same():
    run = (2.0, 0.02, 300)
    alone = PrivacyProfile.from_dp_sgd([run])
    several = [patients(run, records).epsilon(1e-5) for records in (1, 2, 3, 10, 100)]
    assert several[0] == alone.epsilon(1e-5)
    assert several == sorted(set(several))
    assert patients(run, 1) == alone
    # no more than group privacy of the whole training, and no less than one record at the largest rate of any
    assert several[2] <= 3 * alone.epsilon(1e-5 / (1 + math.exp(several[0]) + math.exp(2 * several[0])))


@pytest.mark.slow
def test_a_thousand_records_are_computed_in_seconds():
    profile = patients((20.0, 0.01, 100), 1000)
    assert 0 < profile.epsilon(1e-5) < math.inf
    certain = PrivacyProfile.from_dp_sgd([(20.0 / 10, 1.0, 100)])  # about ten of them in every batch
    assert 0.7 * certain.epsilon(1e-5) < profile.epsilon(1e-5) < 2.5 * certain.epsilon(1e-5)


@pytest.mark.parametrize(("run", "records"), RUNS)
def test_all_ways_to_compute_a_unit_agree(run, records):
    """The grids of our own (for long training) and the laws of ratios (for allocation), against ordinary sums."""
    profile, claim = patients(run, records), patients(run, records).epsilon(1e-5)
    step = grid_step(profile.dp_sgd, ())
    composed = [compose_grids(grid_parts(profile.dp_sgd, (), step, added), 1e-5) for added in (False, True)]
    assert max(one.epsilon(1e-5) for one in composed) == pytest.approx(claim, rel=2e-3)
    one = dt.RandomAllocation(teachers=1, unit="patient")
    assert allocated_delta(profile, one, claim) == pytest.approx(1e-5, rel=0.02)


def test_units_whose_delta_is_tiny_or_whose_training_is_long():
    long = patients((2.0, 1e-4, 10**5), 3)
    assert 0 < long.epsilon(1e-6) < 3 * PrivacyProfile.from_dp_sgd([(2.0, 1e-4, 10**5)]).epsilon(1e-9)
    assert long.epsilon(1e-6) < long.epsilon(1e-13) < math.inf


def test_promises_by_group_privacy():
    """Randomized response on each of three records: the exact law of the group is within its claim."""
    one = PrivacyGuarantee(epsilon=0.4, delta=1e-3)
    unit = PrivacyProfile.from_guarantee(one).for_unit("patient", records=3)
    assert unit.epsilon(1.0) == 0.0
    grown = (1 + math.exp(0.4) + math.exp(0.8)) * 1e-3
    assert [unit.epsilon(grown * (1 + 1e-9)), unit.delta(1.2001)] == pytest.approx([1.2, grown])
    assert PrivacyProfile.non_private().for_unit("patient", records=2).epsilon(0.5) == math.inf
    huge = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=300.0, delta=0.1)).for_unit("x", records=5)
    assert huge.epsilon(1e-3) == math.inf


def test_units_over_several_teachers():
    """r teachers hold up to g records of a patient each; unlike teachers, too."""
    teachers = [patients((3.0, 1 / n, 10 * n), 2) for n in range(6, 10)]
    total = dt.total_privacy(
        teachers=teachers, overlap=2, mechanism=dt.NoiseFreeMajority(), labels=7, delta=1e-5, neighbours="add/remove"
    )
    largest = max(a.compose(b).epsilon(1e-5) for a, b in itertools.combinations(teachers, 2))
    assert largest * (1 - 1e-3) <= total.epsilon <= largest * 1.02
    assert total.epsilon == pytest.approx(worst_epsilon(tuple(teachers), 2, 1, 1e-5))


def test_the_unit_is_named_wherever_an_epsilon_is_printed():
    unit = "adding or removing one patient with at most 2 records in the data of a teacher"
    teacher = patients((3.0, 0.1, 60), 2)
    total = dt.total_privacy(teachers=[teacher] * 3, overlap=1, mechanism=dt.NoiseFreeMajority(), labels=7, delta=1e-5)
    assert f"-DP for {unit}, by publishing the teachers." in " ".join(str(total).split())
    assert total.to_dict()["protects"] == unit == str(total.unit)
    assert any(line.startswith(f"Neighbours: two data sets that differ by {unit}.") for line in total.assumptions)
    assert any(line.startswith("Overlap: one patient affects at most 1 of the 3") for line in total.assumptions)
    assert "that one patient can affect" in total.route.explanation
    plain = dt.total_privacy(
        teachers=[PrivacyGuarantee(epsilon=1.0)], mechanism=dt.NoiseFreeMajority(), labels=1, delta=0
    )
    assert "for adding or removing one record" in str(plain)


def test_allocation_names_its_unit_and_drops_the_sentence_about_slices():
    allocation = dt.RandomAllocation(teachers=11, unit="person")
    teacher = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
    asked = {"mechanism": dt.NoiseFreeMajority(), "labels": 9, "delta": 3e-4}
    total = dt.total_privacy(teachers=[teacher] * 11, allocation=allocation, **asked)
    assert not any("one record" in line for line in total.assumptions)
    assert not any("equal slices" in line for line in total.assumptions)
    assert "one person" in str(total)
    beside = dt.total_privacy(teachers=[teacher] * 11, overlap=1, **asked)
    assert any("equal slices of a list it is false" in line for line in beside.assumptions)
    several = teacher.for_unit("person", records=2)
    allocated = dt.total_privacy(teachers=[several] * 11, allocation=allocation, **asked)
    assert total.epsilon < allocated.epsilon < allocated_epsilon(several, dt.RandomAllocation(teachers=1), 3e-4)
    with pytest.raises(InvalidArgument, match="allocation must be one in which each patient draws"):
        dt.total_privacy(teachers=[patients((12.0, 0.1, 9), 2)] * 11, allocation=allocation, **asked)


def test_units_survive_composition_replacement_and_json():
    teacher = patients((3.0, 0.1, 60), 2)
    for profile in (teacher, teacher.compose(3), teacher.for_replacement(), PrivacyProfile.weakest([teacher])):
        again = PrivacyProfile.from_dict(json.loads(json.dumps(profile.to_dict())))
        assert (again, again.unit) == (profile, profile.unit)
        assert profile.unit.records == 2
    assert teacher.for_replacement().for_replacement() == teacher.for_replacement()
    more = PrivacyProfile.weakest([teacher, patients((3.0, 0.1, 50), 5)])
    assert more.dp_sgd == ((3.0, 0.1, 60, 5),)
    assert more.unit == ProtectedUnit(name="patient", records=5)
    assert "unit" not in PrivacyProfile.from_dp_sgd([(3.0, 0.1, 60)]).to_dict()


@pytest.mark.parametrize(
    "mix",
    [
        lambda: patients((3.0, 0.1, 60), 2).compose(PrivacyProfile.from_dp_sgd([(3.0, 0.1, 60)])),
        lambda: PrivacyProfile.weakest([patients((3.0, 0.1, 60), 2), PrivacyGuarantee(epsilon=1.0)]),
        lambda: dt.total_privacy(
            teachers=[patients((3.0, 0.1, 60), 1), PrivacyProfile.from_dp_sgd([(3.0, 0.1, 60)])],
            mechanism=dt.NoiseFreeMajority(),
            labels=1,
            delta=1e-5,
        ),
    ],
)
def test_promises_to_unlike_units_do_not_mix(mix):
    with pytest.raises(InvalidArgument, match="promises to the same unit"):
        mix()


def test_what_is_for_a_replacement_is_priced_for_one():
    fixed = PrivacyProfile.from_fixed_batches(noise_multiplier=4.0, records=5000, batch_size=100, steps=500)
    asked = {"teachers": [fixed] * 3, "overlap": 1, "mechanism": dt.NoiseFreeMajority(), "labels": 5, "delta": 1e-5}
    with pytest.raises(InvalidArgument, match=r'neighbours must be "replace-one", as the teachers promise'):
        dt.total_privacy(**asked)
    total = dt.total_privacy(neighbours="replace-one", **asked)
    assert total.epsilon == fixed.epsilon(1e-5)
    assert "replacing one record" in str(total)
    assert any("replacing one record" in line for line in total.assumptions)


@pytest.mark.parametrize("wrong", [{"records": 0}, {"records": 1001}, {"records": 1.5}, {"name": " "}, {"name": 3}])
def test_units_are_checked(wrong):
    with pytest.raises(InvalidArgument, match="unit"):
        PrivacyProfile.from_dp_sgd([(3.0, 0.1, 60)]).for_unit(**{"name": "patient", "records": 2, **wrong})
    with pytest.raises(InvalidArgument, match='a word such as "patient"'):
        PrivacyProfile.from_dp_sgd([(3.0, 0.1, 60)]).for_unit("record", records=2)
    with pytest.raises(InvalidArgument, match="single records"):
        patients((3.0, 0.1, 60), 2).for_unit("hospital", records=2)
