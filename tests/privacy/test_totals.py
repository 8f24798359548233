"""What many labels cost: every route, the cases in which a route must not be taken, and the exact reason why."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch import InvalidArgument, PrivacyGuarantee, PrivacyProfile
from darrm_torch.mechanisms.darrm import DaRRM
from darrm_torch.mechanisms.gnmax import GNMax
from darrm_torch.mechanisms.noise_free import NoiseFreeMajority
from darrm_torch.noise.function import NoiseFunction

PAPER = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
WEAKER = PrivacyProfile.from_dp_sgd([(12.0, 1 / 34, 180)])


@dataclass(frozen=True)
class Fake:
    """A mechanism that claims what a test wants it to."""

    allowance: float = math.inf
    certificate: Any = None
    promise: Any = None

    def self_bounding_allowance(self, *, teachers, overlap):
        return self.allowance

    def guarantee(self, *, labels, delta, overlap):
        return self.promise


@dataclass(frozen=True)
class FakeCertificate:
    teachers: int
    overlap: int
    teacher: tuple[PrivacyGuarantee, ...]
    target: PrivacyGuarantee


def by_name(total: dt.TotalPrivacy) -> dict[str, dt.PrivacyRoute]:
    return {route.name: route for route in total.routes}


# --- labels of the same teachers do not add up: the exact counterexamples ---


def loss_of(x: float, y: float) -> float:
    return 0.0 if x == y else abs(math.log(x / y))


def joint_loss(gamma, epsilon, types, constant=(0, 0)) -> float:
    """The largest loss of two labels over their four outcomes, exactly.

    A teacher's two votes are ``a`` with probability U and ``b`` with V under P, the other way round under P'.
    """
    teachers = len(gamma) - 1
    ones = (1 + np.sign(2 * np.arange(teachers + 1) - teachers) * gamma) / 2
    large, small = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    law = {}
    for p in (large, small):
        counts = np.zeros((teachers + 1, teachers + 1))
        counts[constant] = 1.0
        for (a1, a2), (b1, b2) in types:
            moved = np.zeros_like(counts)
            for (v1, v2), weight in (((a1, a2), p), ((b1, b2), 1 - p)):
                moved[v1:, v2:] += weight * counts[: teachers + 1 - v1, : teachers + 1 - v2]
            counts = moved
        law[p] = [
            sum(counts[i, j] * first[i] * second[j] for i in range(teachers + 1) for j in range(teachers + 1))
            for first in (ones, 1 - ones)
            for second in (ones, 1 - ones)
        ]
    return max(map(loss_of, law[large], law[small]))


def one_label_loss(gamma, epsilon) -> float:
    """The largest loss of one label, over all multisets of extreme pairs."""
    teachers = len(gamma) - 1
    types = [((a, a), (b, b)) for a in (0, 1) for b in (0, 1)]
    ones = (1 + np.sign(2 * np.arange(teachers + 1) - teachers) * gamma) / 2
    large, small, worst = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon)), 0.0
    for chosen in itertools.combinations_with_replacement(types, teachers):
        probability = []
        for p in (large, small):
            law = np.ones(1)
            for (a, _), (b, _) in chosen:
                vote = p * a + (1 - p) * b
                law = np.convolve(law, [1 - vote, vote])
            probability.append(float(law @ ones))
        worst = max(worst, loss_of(*probability), loss_of(*(1 - x for x in probability)))
    return worst


def test_two_labels_of_three_teachers_cost_more_than_twice_one():
    """K = 3, eps = 3, m = 1: the free optimum in closed form; one label costs exactly eps, two cost 2.016077 eps."""
    e = math.exp(3)
    gamma = np.array([(e * e - e + 1) / (e * e + e + 1), 1.0, 1.0, (e * e - e + 1) / (e * e + e + 1)])
    assert gamma[3] == pytest.approx(0.905372, abs=5e-7)
    assert one_label_loss(gamma, 3.0) == pytest.approx(3.0, abs=1e-12)
    types = [((0, 0), (1, 1)), ((0, 1), (1, 1)), ((1, 0), (1, 1))]
    loss = joint_loss(gamma, 3.0, types)
    assert loss / 3 == pytest.approx(2.016076762912724, abs=1e-9)
    noise = dt.optimize_noise(
        teachers=3, teacher=PrivacyGuarantee(epsilon=3.0), target=PrivacyGuarantee(epsilon=3.0), shape="free"
    )
    assert noise.gamma == pytest.approx(gamma, abs=1e-6)
    total = dt.total_privacy(teachers=[PrivacyGuarantee(epsilon=3.0)] * 3, mechanism=DaRRM(noise), labels=2, delta=0.0)
    assert total.epsilon >= loss
    assert not by_name(total)["certified label"].applies


def test_the_papers_own_setting_does_not_compose():
    """K = 11, eps = 0.1, Delta = 0, m = 3: two labels cost 6.23584 eps, where composition claims 6 eps."""
    teacher = PrivacyGuarantee(epsilon=0.1)
    noise = dt.optimize_noise(teachers=11, teacher=teacher, target=PrivacyGuarantee(epsilon=0.3), shape="free")
    types = [((0, 0), (1, 1))] + 3 * [((0, 1), (1, 1))] + 3 * [((1, 0), (1, 1))]
    loss = joint_loss(noise.gamma, 0.1, types, constant=(4, 4))
    assert loss / 0.1 == pytest.approx(6.23584, abs=1e-4)
    assert loss > 2 * noise.target.epsilon
    total = dt.total_privacy(teachers=[teacher] * 11, mechanism=DaRRM(noise), labels=2, delta=0.0)
    assert loss <= total.epsilon <= 1.1 + 1e-12


def worst_of_two_labels(gamma, epsilon) -> float:
    """The largest loss of "both labels 0" over all joint laws of two votes per teacher.

    Every pure-DP pair on {0,1}^2 is a post-processing of randomised response, so its extreme points are pairs of
    outcomes; other events follow by exchanging 0 and 1.
    """
    teachers = len(gamma) - 1
    zero = (1 - np.sign(2 * np.arange(teachers + 1) - teachers) * gamma) / 2
    large, small = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    outcomes = list(itertools.product((0, 1), repeat=2))
    types = list(itertools.product(outcomes, repeat=2))

    def mix(table, kind, p):
        size = len(table) - 1
        parts = [table[v1 : v1 + size, v2 : v2 + size] for v1, v2 in kind]
        return p * parts[0] + (1 - p) * parts[1]

    def walk(start, first, second):
        if len(first) == 1:
            return loss_of(first[0, 0], second[0, 0])
        return max(walk(t, mix(first, types[t], large), mix(second, types[t], small)) for t in range(start, len(types)))

    table = np.outer(zero, zero)
    return walk(0, table, table)


def test_the_search_over_joint_laws_finds_the_counterexample():
    e = math.exp(3)
    gamma = np.array([(e * e - e + 1) / (e * e + e + 1), 1.0, 1.0, (e * e - e + 1) / (e * e + e + 1)])
    assert worst_of_two_labels(gamma, 3.0) == pytest.approx(3 * 2.016076762912724, abs=1e-9)


@pytest.mark.parametrize(
    ("teachers", "allowance", "epsilon"),
    [(3, 1.0, 3.0), (3, 1.3, 1.0), (3, 2.0, 0.1)] + [(5, m, e) for m in (1.0, 1.5, 2.3) for e in (0.1, 1.0, 3.0)],
)
def test_self_bounding_noise_adds_up(teachers, allowance, epsilon):
    noise = dt.self_bounding_noise(teachers=teachers, allowance=allowance)
    loss = worst_of_two_labels(noise.gamma, epsilon)
    assert loss <= 2 * allowance * epsilon + 1e-9
    assert loss <= teachers * epsilon + 1e-9
    teacher = PrivacyGuarantee(epsilon=epsilon)
    total = dt.total_privacy(teachers=[teacher] * teachers, mechanism=DaRRM(noise), labels=2, delta=0.0)
    assert loss - 1e-9 <= total.epsilon <= min(2 * allowance, teachers) * epsilon * (1 + 1e-9)


# --- routes -----------------------------------------------------------------------------------------------------------


def test_the_noise_free_majority_meets_the_papers_budget():
    total = dt.total_privacy(teachers=[PAPER] * 11, mechanism=NoiseFreeMajority(), labels=1000, delta=3e-4)
    assert total.epsilon <= 0.2556
    assert total.epsilon == pytest.approx(0.254, abs=1e-3)
    assert total.route.name == "publishing the teachers"
    target = PrivacyGuarantee(epsilon=0.2556, delta=3e-4)
    with_profile = dt.optimize_noise(teachers=11, teacher=PAPER, target=target)
    assert with_profile.gamma[6:] == pytest.approx(1.0, abs=1e-9)
    one_point = dt.optimize_noise(teachers=11, teacher=PrivacyGuarantee(epsilon=0.0852, delta=1e-4), target=target)
    assert one_point.gamma[6:].min() < 0.9


def test_a_hundred_teachers_and_self_bounding_noise():
    teacher = PrivacyGuarantee(epsilon=0.5, delta=1e-6)
    mechanism = DaRRM(dt.self_bounding_noise(teachers=101, allowance=2))
    total = dt.total_privacy(teachers=[teacher] * 101, mechanism=mechanism, labels=3, delta=6e-6)
    routes = by_name(total)
    published = PrivacyProfile.from_guarantee(teacher).compose(101).epsilon(6e-6)
    assert routes["self-bounding noise"].epsilon == 3.0
    assert routes["publishing the teachers"].epsilon == published
    assert total.epsilon == min(3.0, published)
    assert routes["publishing the teachers"].applies
    later = dt.total_privacy(teachers=[teacher] * 101, mechanism=mechanism, labels=500, delta=1e-3)
    assert later.route.name == "publishing the teachers"


def test_disjoint_shards_cost_one_teacher_however_many_labels():
    teachers = [PAPER] * 10 + [WEAKER]
    for labels in (1, 10**6):
        total = dt.total_privacy(teachers=teachers, overlap=1, mechanism=Fake(), labels=labels, delta=1e-4)
        assert total.epsilon == WEAKER.epsilon(1e-4)


def test_overlap_takes_the_weakest_teachers():
    teachers = [PAPER] * 9 + [WEAKER] * 2
    epsilons = [
        dt.total_privacy(teachers=teachers, overlap=r, mechanism=Fake(), labels=1, delta=1e-4).epsilon
        for r in range(1, 12)
    ]
    assert epsilons == sorted(epsilons)
    assert epsilons[1] == pytest.approx(WEAKER.compose(2).epsilon(1e-4), rel=1e-3)
    assert epsilons[-1] == PAPER.compose(9).compose(WEAKER.compose(2)).epsilon(1e-4)
    for r in range(2, 11):
        worst = WEAKER.compose(2) if r == 2 else WEAKER.compose(2).compose(PAPER.compose(r - 2))
        assert epsilons[r - 1] >= worst.epsilon(1e-4) * (1 - 1e-3)


@pytest.mark.parametrize(
    ("allowance", "words"),
    [
        (1 - 2.0**-53, "costs no more than one teacher, and the costs of labels add up: 3 x 1 x ("),
        (0.5, "costs at most 0.5 times as much as one teacher, and"),
    ],
)
def test_an_allowance_in_words(allowance, words):
    total = dt.total_privacy(teachers=[PAPER] * 11, mechanism=Fake(allowance=allowance), labels=3, delta=1e-5)
    assert words in by_name(total)["self-bounding noise"].explanation


def test_a_certificate_counts_for_one_label():
    target = PrivacyGuarantee(epsilon=0.01, delta=1e-5)
    certificate = FakeCertificate(11, 11, (PrivacyGuarantee(epsilon=0.0, delta=PAPER.delta(0.0)),), target)
    mechanism = Fake(certificate=certificate)
    one = dt.total_privacy(teachers=[PAPER] * 11, mechanism=mechanism, labels=1, delta=1e-5)
    assert (one.epsilon, one.route.name) == (0.01, "certified label")
    two = by_name(dt.total_privacy(teachers=[PAPER] * 11, mechanism=mechanism, labels=2, delta=1e-3))
    assert not two["certified label"].applies
    assert "share" in two["certified label"].explanation
    fresh = dt.total_privacy(teachers=[PAPER] * 11, mechanism=mechanism, labels=20, votes="fresh", delta=1e-3)
    assert fresh.route.name == "certified label"
    assert fresh.epsilon == dt.optimal_composition(target, 20, delta=1e-3).epsilon


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"teachers": 9}, "9 teachers"),
        ({"overlap": 3}, "at most 3 teachers"),
        ({"teacher": (PrivacyGuarantee(epsilon=0.05),)}, "assumes"),
    ],
)
def test_a_certificate_for_something_else_does_not_count(change, word):
    values = {
        "teachers": 11,
        "overlap": 11,
        "teacher": (PrivacyGuarantee(epsilon=0.0, delta=PAPER.delta(0.0)),),
        "target": PrivacyGuarantee(epsilon=0.01),
    }
    mechanism = Fake(certificate=FakeCertificate(**(values | change)))
    route = by_name(dt.total_privacy(teachers=[PAPER] * 11, mechanism=mechanism, labels=1, delta=1e-4))[
        "certified label"
    ]
    assert not route.applies
    assert word in route.explanation


def test_weaker_teachers_than_the_certificate_assumes_are_noticed():
    noise = dt.optimize_noise(teachers=11, teacher=PAPER, target=PrivacyGuarantee(epsilon=0.15, delta=2e-4))
    for teachers, applies in (([PAPER] * 11, True), ([PAPER] * 10 + [WEAKER], False)):
        total = dt.total_privacy(teachers=teachers, mechanism=DaRRM(noise), labels=1, delta=2e-4)
        assert by_name(total)["certified label"].applies is applies


def test_teachers_without_privacy_leave_the_mechanisms_own_randomness():
    teachers = [PrivacyProfile.non_private()] * 250
    mechanism = GNMax(sigma=40.0)
    total = dt.total_privacy(teachers=teachers, overlap=1, mechanism=mechanism, labels=100, delta=1e-5)
    assert total.route.name == "the mechanism's own randomness"
    assert total.epsilon == mechanism.guarantee(labels=100, delta=1e-5, overlap=1).epsilon
    assert dt.total_privacy(teachers=teachers, overlap=1, mechanism=Fake(), labels=1, delta=1e-5).epsilon == math.inf


def test_promises_of_own_randomness_may_be_profiles_and_must_reach_the_delta():
    profile = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.5, delta=1e-6))
    for promise in (profile, PrivacyGuarantee(epsilon=0.5, delta=1e-6)):
        ask = {"teachers": [PrivacyProfile.non_private()], "mechanism": Fake(promise=promise), "labels": 1}
        assert dt.total_privacy(**ask, delta=1e-6).epsilon == 0.5
        assert dt.total_privacy(**ask, delta=1e-7).epsilon == math.inf


def test_fresh_votes_compose_over_the_rounds():
    teachers = [PrivacyGuarantee(epsilon=0.1, delta=1e-7)] * 5
    fixed = dt.total_privacy(teachers=teachers, mechanism=Fake(allowance=2.0), labels=10, delta=1e-5)
    fresh = dt.total_privacy(teachers=teachers, mechanism=Fake(allowance=2.0), labels=10, votes="fresh", delta=1e-5)
    published = PrivacyProfile.from_guarantee(teachers[0])
    assert by_name(fixed)["publishing the teachers"].epsilon == published.compose(5).epsilon(1e-5)
    assert by_name(fresh)["publishing the teachers"].epsilon == published.compose(50).epsilon(1e-5)
    one = PrivacyGuarantee(epsilon=0.2, delta=2e-7)
    assert by_name(fresh)["self-bounding noise"].epsilon == pytest.approx(
        dt.optimal_composition(one, 10, delta=1e-5).epsilon, rel=1e-6
    )


def test_the_papers_total_is_no_route():
    noise = NoiseFunction(gamma=np.array([1.0, 0.4, 0.4, 1.0]))
    total = dt.total_privacy(teachers=[PAPER] * 3, mechanism=DaRRM(noise, uncertified=True), labels=5, delta=1e-3)
    assert {route.name for route in total.routes} == {
        "publishing the teachers",
        "self-bounding noise",
        "certified label",
        "the label's own curve",
        "the mechanism's own randomness",
        "private votes, private randomness",
    }


# --- private votes, private randomness ---


def seen_through(epsilon: float, eta: float) -> float:
    """(e^(epsilon + eta) + 1) / (e^epsilon + e^eta), to 60 digits."""
    with mpmath.workdps(60):
        e, n = mpmath.mpf(epsilon), mpmath.mpf(eta)
        return mpmath.log((mpmath.exp(e + n) + 1) / (mpmath.exp(e) + mpmath.exp(n)))


@pytest.mark.parametrize("epsilon", [1e-7, 0.01, 0.5, 3.0, 20.0, 400.0])
@pytest.mark.parametrize("eta", [1e-9, 0.3, 2.9, 18.0, 300.0])
@pytest.mark.parametrize("overlap", [1, 3])
def test_private_votes_through_private_randomness(epsilon, eta, overlap):
    total = dt.total_privacy(
        teachers=[PrivacyGuarantee(epsilon=epsilon)] * 5,
        overlap=overlap,
        mechanism=Fake(promise=PrivacyGuarantee(epsilon=eta)),
        labels=1,
        delta=0.0,
    )
    route, exact = by_name(total)["private votes, private randomness"], overlap * seen_through(epsilon, eta)
    assert exact <= route.epsilon <= exact * (1 + 1e-12)
    assert route.epsilon <= by_name(total)["publishing the teachers"].epsilon * (1 + 1e-12)


def test_deltas_of_private_votes_shrink_through_private_randomness():
    """At delta = r Delta tanh(eta / 2) the leaks of r teachers are paid for, and not at less."""
    teacher, eta = PrivacyGuarantee(epsilon=0.5, delta=1e-3), 0.8
    for overlap in (1, 4):
        needed = overlap * 1e-3 * math.tanh(eta / 2)
        for delta, pays in ((needed * (1 + 1e-9), True), (needed * (1 - 1e-9), False)):
            total = dt.total_privacy(
                teachers=[teacher] * 4,
                overlap=overlap,
                mechanism=Fake(promise=PrivacyGuarantee(epsilon=eta)),
                labels=1,
                delta=delta,
            )
            found = by_name(total)["private votes, private randomness"].epsilon
            exact = overlap * float(seen_through(0.5, eta))
            assert found == pytest.approx(exact, rel=1e-9) if pays else found > 1.5 * exact


def test_gaussian_noise_on_private_teachers():
    teachers, mechanism = [PrivacyGuarantee(epsilon=1.0, delta=1e-7)] * 11, GNMax(sigma=20.0)
    ask = {"teachers": teachers, "mechanism": mechanism, "labels": 10, "delta": 1e-5}
    routes = by_name(dt.total_privacy(**ask, overlap=1))
    randomized = mechanism.guarantee(labels=10, delta=5e-6, overlap=1).epsilon
    route = routes["private votes, private randomness"]
    # A little less: the share of delta that the noise leaves lets the teachers' epsilon be a little less than 1.
    assert seen_through(1.0, randomized) * 0.999 <= route.epsilon <= seen_through(1.0, randomized)
    assert route.epsilon < min(1.0, routes["the mechanism's own randomness"].epsilon)
    assert not by_name(dt.total_privacy(**ask, overlap=2))["private votes, private randomness"].applies
    fresh = by_name(dt.total_privacy(**ask, overlap=1, votes="fresh"))["private votes, private randomness"]
    assert not fresh.applies


def test_fresh_votes_through_private_randomness_compose():
    teachers, mechanism = [PrivacyGuarantee(epsilon=0.4)] * 5, dt.PermuteAndFlip(epsilon=0.6, overlap=1)
    total = dt.total_privacy(teachers=teachers, overlap=2, mechanism=mechanism, labels=20, votes="fresh", delta=1e-5)
    label = PrivacyGuarantee(epsilon=2 * float(seen_through(0.4, 0.6)))
    expected = dt.optimal_composition(label, 20, delta=1e-5).epsilon
    assert by_name(total)["private votes, private randomness"].epsilon == pytest.approx(expected, rel=1e-9)
    assert total.route.name == "private votes, private randomness"


# --- the report -------------------------------------------------------------------------------------------------------


def test_the_report_says_what_holds_and_what_it_rests_on():
    total = dt.total_privacy(teachers=[PAPER] * 4, overlap=2, mechanism=NoiseFreeMajority(), labels=7, delta=1e-4)
    text, data = str(total), json.loads(json.dumps(total.to_dict(), allow_nan=False))
    assert text.startswith("7 labels together: (")
    one = dt.total_privacy(teachers=[PAPER] * 4, overlap=2, mechanism=NoiseFreeMajority(), labels=1, delta=1e-4)
    assert str(one).startswith("1 label: (")
    assert "does not apply" in text
    assert max(map(len, text.splitlines())) < 80
    assert all(assumption in " ".join(text.split()) for assumption in total.assumptions)
    assert data["epsilon"] == total.epsilon == min(r["epsilon"] for r in data["routes"] if r["applies"])
    assert data["route"] == total.route.name
    assert total.guarantee == PrivacyGuarantee(epsilon=total.epsilon, delta=1e-4)
    words = " ".join(data["assumptions"])
    for fact in (
        "at most 2 of the 4",
        "adding or removing one record",
        "Poisson",
        "share noise or batches",
        "same trained teachers",
    ):
        assert fact in words


def test_next_to_nothing_is_not_nothing():
    """1e-320 through randomness of 1e-6 is no number of double precision; 0 would claim perfect privacy."""
    teacher, randomized = PrivacyGuarantee(epsilon=1e-320), dt.RandomizedPlurality(epsilon=1e-6)
    total = dt.total_privacy(teachers=[teacher], mechanism=randomized, labels=1, delta=0.0)
    assert 0 < total.epsilon <= 1e-320


def test_randomness_that_can_be_predicted_is_an_assumption():
    noise = dt.self_bounding_noise(teachers=3, allowance=1.0)
    for seed, said in ((None, False), (7, True)):
        total = dt.total_privacy(teachers=[PAPER] * 3, mechanism=DaRRM(noise, insecure_seed=seed), labels=1, delta=1e-4)
        assert ("insecure_seed" in str(total)) is said


def test_infinity_is_null_in_json():
    total = dt.total_privacy(teachers=[PrivacyProfile.non_private()], mechanism=Fake(), labels=1, delta=0.0)
    assert json.loads(json.dumps(total.to_dict(), allow_nan=False))["epsilon"] is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("teachers", []),
        ("teachers", [0.1]),
        ("overlap", 0),
        ("overlap", 4),
        ("labels", 0),
        ("labels", 1.5),
        ("votes", "both"),
        ("delta", -0.1),
        ("delta", math.nan),
    ],
)
def test_bad_arguments_are_refused(name, value):
    values = {"teachers": [PAPER] * 3, "mechanism": Fake(), "labels": 1, "delta": 1e-4} | {name: value}
    with pytest.raises(InvalidArgument, match=name):
        dt.total_privacy(**values)


@pytest.mark.parametrize(
    "teachers", [PAPER, PrivacyGuarantee(epsilon=0.1), {PAPER}, {PAPER: 3}, iter([PAPER] * 3), 3, ""]
)
def test_teachers_are_a_sequence_of_one_promise_each(teachers: Any) -> None:
    with pytest.raises(InvalidArgument, match="teachers must be a sequence with one guarantee or profile for each"):
        dt.total_privacy(teachers=teachers, mechanism=Fake(), labels=1, delta=1e-4)


def test_the_teacher_of_the_wrong_type_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"teachers\[1\] must be .*, got \(8, 1e-05\). Write PrivacyGuarantee"):
        dt.total_privacy(teachers=[PAPER, (8, 1e-5)], mechanism=Fake(), labels=1, delta=1e-4)
    with pytest.raises(InvalidArgument, match=r"teachers\[0\] must be a PrivacyGuarantee or a PrivacyProfile"):
        dt.total_privacy(teachers=[[PAPER] * 3], mechanism=Fake(), labels=1, delta=1e-4)


def test_unlike_teachers_are_each_charged_for_what_they_promise() -> None:
    """Their epsilons add up; no teacher gets the benefit of the guarantee of another one."""
    unlike = [PrivacyGuarantee(epsilon=e, delta=d) for e, d in ((0.1, 1e-5), (0.3, 0.0), (0.2, 1e-6))]
    total = dt.total_privacy(teachers=unlike, mechanism=Fake(), labels=1, delta=1.2e-5)
    assert total.epsilon == pytest.approx(0.6, rel=1e-12)
    assert by_name(total)["publishing the teachers"].key == "publishing"


def test_every_route_has_a_key_of_its_own() -> None:
    total = dt.total_privacy(teachers=[PAPER], mechanism=Fake(), labels=1, delta=1e-4)
    keys = [route["key"] for route in total.to_dict()["routes"]]
    assert keys == ["publishing", "self-bounding", "certified", "label-curve", "own-randomness", "private-votes"]


# --- records allocated at random ---

ALLOCATION = dt.RandomAllocation(teachers=11)


def test_random_allocation_adds_routes_and_leaves_the_others_as_they_are():
    alone = dt.total_privacy(teachers=[PAPER] * 11, overlap=1, mechanism=NoiseFreeMajority(), labels=9, delta=3e-4)
    total = dt.total_privacy(
        teachers=[PAPER] * 11, mechanism=NoiseFreeMajority(), labels=9, delta=3e-4, allocation=ALLOCATION
    )
    assert total.routes[: len(alone.routes)] == alone.routes
    assert [route.key for route in total.routes[len(alone.routes) :]] == ["allocation", "allocation-self-bounding"]
    assert total.route.key == "allocation"
    assert 0.0139 < total.epsilon < 0.0141
    slices = " In equal slices of a list it is false: one more record moves others."
    left = {assumption.removesuffix(slices) for assumption in alone.assumptions}
    assert left | set(ALLOCATION.assumptions) == set(total.assumptions)


def test_self_bounding_labels_of_allocated_records():
    mechanism = DaRRM(dt.self_bounding_noise(teachers=11, allowance=1.0))
    strong = PrivacyProfile.from_dp_sgd([(1.0, 0.05, 100)])
    total = dt.total_privacy(teachers=[strong] * 11, mechanism=mechanism, labels=1, delta=1e-5, allocation=ALLOCATION)
    routes = {route.key: route.epsilon for route in total.routes}
    assert total.route.key == "allocation-self-bounding"
    assert routes["allocation-self-bounding"] == pytest.approx(0.904, rel=1e-3)
    assert routes["allocation"] == pytest.approx(1.3786, rel=1e-3)


def test_a_jury_of_allocated_teachers():
    whole, jury, alone = (
        dt.total_privacy(
            teachers=[PAPER] * 11,
            mechanism=NoiseFreeMajority(classes=2, jury=size),
            labels=9,
            delta=3e-4,
            allocation=allocation,
        )
        for size, allocation in ((11, ALLOCATION), (5, ALLOCATION), (5, None))
    )
    assert jury.epsilon == pytest.approx(0.00835, rel=1e-2)
    assert jury.epsilon < whole.epsilon
    assert alone.epsilon == pytest.approx(0.1612, rel=1e-2)
    assert any(assumption.startswith("Jury") for assumption in jury.assumptions)


def test_fresh_votes_from_the_same_shards_compose_before_they_are_allocated():
    total = dt.total_privacy(
        teachers=[PAPER] * 11,
        mechanism=NoiseFreeMajority(),
        labels=4,
        votes="fresh",
        delta=3e-4,
        allocation=ALLOCATION,
    )
    allocated = next(route for route in total.routes if route.key == "allocation")
    assert allocated.epsilon == dt.allocated_epsilon(PAPER.compose(4), ALLOCATION, 3e-4)


def test_unlike_teachers_cost_what_the_weakest_costs():
    total = dt.total_privacy(
        teachers=[PAPER] * 10 + [WEAKER],
        mechanism=NoiseFreeMajority(),
        labels=4,
        delta=3e-4,
        allocation=ALLOCATION,
    )
    assert total.epsilon == dt.allocated_epsilon(PrivacyProfile.weakest([PAPER, WEAKER]), ALLOCATION, 3e-4)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"allocation": dt.RandomAllocation(teachers=10)}, "allocation"),
        ({"overlap": 3}, "overlap"),
        ({"mechanism": NoiseFreeMajority(jury=12)}, "jury"),
    ],
)
def test_an_allocation_fits_the_teachers(options, name):
    situation = {"teachers": [PAPER] * 11, "mechanism": NoiseFreeMajority(), "labels": 1, "delta": 1e-4}
    with pytest.raises(InvalidArgument, match=name):
        dt.total_privacy(**{**situation, "allocation": ALLOCATION, **options})


@pytest.mark.slow
def test_replacing_a_record_costs_more_than_adding_one():
    """Slices of a list: overlap 1 holds for replacing a record only."""
    given = {"teachers": [PAPER] * 11, "overlap": 1, "mechanism": NoiseFreeMajority(), "labels": 9, "delta": 3e-4}
    added = dt.total_privacy(**given)
    replaced = dt.total_privacy(**given, neighbours="replace-one")
    assert added.epsilon < replaced.epsilon < 2.5 * added.epsilon
    # The truth: one teacher with the pair that replaces a record. At q = 1 it is two Gaussians at twice the distance.
    whole = dt.PrivacyProfile.from_dp_sgd([(8.0, 1.0, 1)])
    twice = dt.PrivacyProfile.from_dp_sgd([(4.0, 1.0, 1)])
    for delta in (1e-3, 1e-6):
        assert twice.epsilon(delta) <= whole.for_replacement().epsilon(delta) < 1.5 * twice.epsilon(delta)
    pure = {"teachers": [dt.PrivacyGuarantee(epsilon=0.3)] * 11, "delta": 0.0}
    pure = dt.total_privacy(**(given | pure), neighbours="replace-one")
    assert pure.epsilon == pytest.approx(0.6, rel=1e-9)
    assert "differ by replacing one record" in pure.assumptions[0]
    assert "slices" not in pure.assumptions[1]
    assert "In equal slices of a list it is false" in added.assumptions[1]
    nothing = dt.total_privacy(
        **(given | {"teachers": [dt.PrivacyProfile.non_private()] * 11}), neighbours="replace-one"
    )
    assert math.isinf(nothing.epsilon)


def test_neighbours_are_checked():
    given = {"teachers": [PAPER] * 11, "mechanism": NoiseFreeMajority(), "labels": 9, "delta": 3e-4}
    with pytest.raises(InvalidArgument, match='neighbours must be "add/remove" or "replace-one"'):
        dt.total_privacy(**given, neighbours="remove")
    with pytest.raises(InvalidArgument, match='neighbours must be "add/remove" with an allocation'):
        dt.total_privacy(**given, neighbours="replace-one", allocation=ALLOCATION)


@pytest.mark.parametrize("allocation", [None, dt.RandomAllocation(teachers=3)])
def test_labels_that_do_not_depend_on_the_votes_cost_nothing(allocation):
    coin = DaRRM(NoiseFunction(gamma=np.zeros(4)), uncertified=True)
    total = dt.total_privacy(teachers=[PAPER] * 3, mechanism=coin, labels=5, delta=0.0, allocation=allocation)
    assert (total.epsilon, total.route.key) == (0.0, "self-bounding")
