"""The library's own mechanisms, each as strong as a request allows, and why.

A builder takes a :class:`~darrm_torch.planning.request.Request` and returns the mechanism with the least noise that
keeps its targets, or raises :class:`~darrm_torch.errors.DarrmError` where there is none.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from ..bisection import last_true
from ..errors import InvalidArgument
from ..mechanisms.base import Mechanism, NoisyCounts
from ..mechanisms.darrm import DaRRM
from ..mechanisms.gnmax import GNMax
from ..mechanisms.noise_free import MeanProbabilities, NoiseFreeMajority
from ..mechanisms.plurality import SelfBoundingPlurality, VotePrivatePlurality
from ..noise.function import NoiseFunction, self_bounding_noise, subsampling_noise
from ..noise.histograms import votes_within
from ..noise.priors import IndependentVotes, Prior, SharedVotes, majority_lead
from ..noise.program import optimize_noise
from ..noise.regions import Region
from ..noise.self_bounding import SelfBoundingCertificate, certify_self_bounding
from ..privacy.guarantees import PrivacyGuarantee, drop_implied, format_bound
from ..privacy.profiles import PrivacyProfile
from .expectation import expected_agreement
from .request import SLACK, Promised, Request
from .strategies import Strategy

__all__ = [
    "Build",
    "Text",
    "adding_up",
    "agreement",
    "by_strength",
    "explain",
    "explain_noise_free",
    "gaussian",
    "gaussian_prices_the_label",
    "jury",
    "lists_quickly",
    "mean_probabilities",
    "noise_free",
    "one_label_by_point",
    "one_label_by_profile",
    "optimal",
    "profile_has_several_points",
    "self_bounding",
    "self_bounding_by_any_proof",
    "subsampling",
    "vote_private",
]

Build = Callable[[Request], Mechanism]
Text = Callable[[Request, Strategy], str]

_SEARCHED = 1_000_000  # compositions of corners up to which the whole profile is searched with all of its points
_SAMPLED = 350  # the most histograms of a sample that a table looks up
_LISTED = 1000  # the most histograms for which GNMax prices the label itself
_LEAST = 1e-6  # of an allowance
_NOT_PRIVATE = (PrivacyGuarantee(epsilon=math.inf),)  # what teachers promise that promise nothing
_QUICK = 100  # histograms, and ways to move votes, for which the curve of one label is quick
_GAIN = 2.0**-8  # of strength, by a price that takes long
_WORTHWHILE = 1e-3  # below that labels are coins: refused where a mechanism is asked for by name


# --- no noise ---------------------------------------------------------------------------------------------------------


def noise_free(request: Request) -> NoiseFreeMajority:
    """All teachers vote."""
    return NoiseFreeMajority(classes=request.classes, teachers=request.teachers)


def mean_probabilities(request: Request) -> MeanProbabilities:
    """The mean of all teachers' class probabilities."""
    return MeanProbabilities(classes=request.classes, teachers=request.teachers)


def jury(request: Request) -> NoiseFreeMajority:
    """The largest jury that keeps the targets without noise; one teacher where not even that does. Odd for two classes.

    One jury for all labels: its price does not grow with their number.
    """

    def part(count: int) -> NoiseFreeMajority:
        return NoiseFreeMajority(classes=request.classes, teachers=request.teachers, jury=count)

    sizes = request.sample_sizes(request.teachers)
    fitting = bisect_left(sizes, True, key=lambda count: not request.keeps(part(count)))
    return part(sizes[max(fitting - 1, 0)])


def explain_noise_free(request: Request, row: Strategy) -> str:
    """What publishing the teachers, or the plain labels, costs; and how that compares with the targets."""
    assert row.label is not None
    assert row.total is not None
    count = min(request.overlap, row.voters)
    affected = "the one teacher" if count == 1 else f"the {count} teachers"
    bound = row.label if request.label_target and row.label.epsilon > request.label_target.epsilon else row.total
    published = bound.route.key in ("publishing", "allocation")
    subject = f"labels by {request.winner} alone cost"
    if bound.route.key == "publishing":
        subject = f"publishing {affected} that one record can affect costs"
    elif bound.route.key == "allocation":
        voters = "the one teacher that votes" if row.voters == 1 else f"all {row.voters} teachers that vote"
        subject = f"publishing {voters} costs"
    cost = f"{subject} {bound.guarantee}"
    if row.meets:
        why = f"No noise is needed: {cost}, within the target"
        why += ", however many labels are released." if published else "."
    elif request.teacher.is_private:
        nearly = format_bound(bound.epsilon) in [format_bound(target.epsilon) for target in request.targets]
        why = f"Too expensive: {cost}" + " (slightly more than the target)" * nearly
        if math.isinf(bound.epsilon):
            why += ": their deltas alone add up to more. Give the DP-SGD settings, or promises at a smaller delta"
        why += "."
    else:
        why = "The teachers promise nothing, so noise is needed."
    if row.voters == request.teachers:
        return why
    who = "one of the teachers votes" if row.voters == 1 else f"{row.voters} of the teachers vote"
    return f"Only {who}, drawn at random, once. {why}"


# --- the optimum for one label of two classes -------------------------------------------------------------------------


def one_label_by_profile(request: Request) -> DaRRM:
    """The optimum for one label against all points of the teachers' profile that the search can take."""
    return _optimum(request, request.one_label, _profile_points(request))


def one_label_by_point(request: Request) -> DaRRM:
    """The optimum for one label against one point of the teachers' profile, the one that suits the target."""
    return _optimum(request, request.one_label, (_suitable_point(request.teacher, request.one_label, request.overlap),))


def optimal(request: Request) -> DaRRM:
    """The best majority that protects votes by its own randomness, and by the teachers' training where that is stated.

    Without it noise is calibrated on the r votes that one record can affect. With it each vote is protected by itself,
    and the training behind it protects the record. The better of the two is returned.
    """
    target, count = request.one_label, request.overlap
    if request.teacher.is_private:
        alone = optimal(replace(request, teacher=PrivacyProfile.non_private(), allocation=None))
        try:
            epsilon = request.strongest(lambda e: Promised(vote_epsilon=e), 1e-4, 50.0)
        except InvalidArgument:
            return alone
        counted = _optimum(replace(request, overlap=1), PrivacyGuarantee(epsilon=epsilon), _NOT_PRIVATE)
        return max(counted, alone, key=lambda one: agreement(request, one)[0])
    if request.labels > 1 and request.total_target is not None:
        low = min(target.epsilon / labels for labels, target in request.requirements) * SLACK**2
        epsilon = request.strongest(lambda e: Promised(vote_epsilon=e / count), low, target.epsilon)
        target = PrivacyGuarantee(epsilon=epsilon)
    return _optimum(request, target, _NOT_PRIVATE)


def profile_has_several_points(request: Request) -> bool:
    """Whether a search can use more of the teachers' profile than one point, and a label has a target of its own.

    Many labels of such noise cost what publishing the teachers does, so no noise is better; the search takes longest.
    """
    one = request.labels == 1 or request.label_target is not None
    return one and request.teacher.is_private and len(_profile_points(request)) > 1


def _profile_points(request: Request) -> tuple[PrivacyGuarantee, ...]:
    """Points of the teachers' profile that hold at once: as many as can be searched with. Any of them are sound."""
    return _searchable_points(request.teacher, request.one_label, request.teachers, request.overlap)


@functools.lru_cache(maxsize=256)
def _searchable_points(
    teacher: PrivacyProfile, target: PrivacyGuarantee, teachers: int, overlap: int
) -> tuple[PrivacyGuarantee, ...]:
    points = teacher.guarantees()
    if teacher.dp_sgd:
        points = drop_implied((_suitable_point(teacher, target, overlap), *points))
    while len(points) > 1:
        corners = len(Region(guarantees=points).chain)
        if math.comb(overlap + corners - 1, corners - 1) * (teachers - overlap + 1) <= _SEARCHED:
            break
        points = points[:-1]
    return points


@functools.lru_cache(maxsize=256)
def _suitable_point(teacher: PrivacyProfile, target: PrivacyGuarantee, overlap: int) -> PrivacyGuarantee:
    """(E / m, d / m) for the largest m at which the teachers keep it; a promise stays as it is."""
    if not teacher.dp_sgd:
        return teacher.guarantees()[0]

    def fits(m: float) -> bool:
        return m * teacher.epsilon(min(1.0, target.delta / m)) <= target.epsilon

    m = float(overlap)
    if not fits(m):
        m = last_true(fits, _LEAST, m, tolerance=2.0**-40, geometric=True) if fits(_LEAST) else 1.0
    delta = min(1.0, target.delta / m)
    return PrivacyGuarantee(epsilon=teacher.epsilon(delta), delta=delta)


def _optimum(request: Request, target: PrivacyGuarantee, points: tuple[PrivacyGuarantee, ...]) -> DaRRM:
    prior, objective = _goal(request)
    noise = optimize_noise(
        teachers=request.teachers,
        teacher=PrivacyProfile.from_guarantee(*points) if len(points) > 1 else points[0],
        target=target,
        overlap=request.overlap,
        prior=prior,
        objective=objective,
    )
    return DaRRM(noise)


def _goal(request: Request) -> tuple[Prior, str]:
    """The prior and the objective of the search: the paper's, unless the prior favours no class."""
    prior = request.majority_prior
    law = prior.law(request.teachers)
    if np.abs(majority_lead(law)).max() > 1e-9 * law.max():
        return prior, "surrogate"
    # Independent votes would have to be sampled, which is slow; any prior that favours no class has the same optimum.
    return SharedVotes(low=0.0, high=1.0) if isinstance(prior, IndependentVotes) else prior, "expected_error"


# --- labels that add up -----------------------------------------------------------------------------------------------


def self_bounding(request: Request, *, tolerance: float = 2.0**-40) -> Mechanism:
    """The least noise with which the labels add up to within the targets; its allowance is exact to ``tolerance``."""
    built, unmet = [], request.unmet()
    for overlap in request.allowance_overlaps:
        try:
            m = request.allowance or _largest_allowance(request, overlap, tolerance)
        except InvalidArgument as error:
            unmet = error
        else:
            built.append(adding_up(request, m, overlap))
    if not built:
        raise unmet
    return built[0] if len(built) == 1 else max(built, key=lambda one: agreement(request, one)[0])


def adding_up(request: Request, allowance: float, overlap: int) -> Mechanism:
    """The least noise with which a label costs what ``allowance`` of any ``overlap`` teachers do."""
    build = _self_bounding_noise if request.classes == 2 else _table
    return build(request, allowance, overlap)


def agreement(request: Request, mechanism: Mechanism) -> tuple[float, float]:
    """How often a label is what most teachers say, and the standard error of that: :func:`expected_agreement`."""
    return expected_agreement(mechanism, teachers=request.teachers, classes=request.classes, prior=request.belief)


def _largest_allowance(request: Request, overlap: int, tolerance: float) -> float:
    """The largest allowance, for an overlap of ``overlap``, at which the labels keep the targets."""

    def promised(m: float) -> Promised:
        return Promised(allowance=m, overlap=overlap)

    m = request.strongest(promised, _LEAST, float(overlap), tolerance=tolerance, slack=1.0)
    whole = float(round(m))  # a search comes near a whole number without reaching it
    return whole if abs(m - whole) < 1e-6 and whole and request.keeps(promised(whole)) else m


def self_bounding_by_any_proof(request: Request) -> Mechanism:
    """Less noise still, for two classes, where more is proven than that labels add up: by the noise on the votes."""
    adding_up = self_bounding(request)
    m, overlap = adding_up.certificate.allowance, adding_up.certificate.overlap
    most = float(overlap)
    if request.allowance is not None:
        return adding_up
    if m < _WORTHWHILE:
        raise request.unmet()
    if not isinstance(adding_up, DaRRM) or m >= most:
        return adding_up

    def noise(m: float) -> DaRRM:
        return _self_bounding_noise(request, m, overlap)

    if not request.keeps(noise(min(1.001 * m, most)), SLACK):
        return adding_up
    return noise(request.strongest(noise, m, most))


def _self_bounding_noise(request: Request, m: float, overlap: int) -> DaRRM:
    return DaRRM(self_bounding_noise(teachers=request.teachers, allowance=m, overlap=overlap))


def subsampling(request: Request) -> Mechanism:
    """The majority, or the plurality, of the largest sample whose labels keep the targets; for two classes odd."""
    few = votes_within(_SAMPLED, votes=request.teachers, classes=request.classes)  # as many as a table can look up
    sizes = request.sample_sizes(request.teachers if request.classes == 2 else few)
    overlap = request.allowance_overlaps[0]

    def of(sample: int) -> Mechanism:
        if request.classes > 2:
            return _table(request, float(sample), overlap, sample)  # so many teachers' worth: without noise
        return DaRRM(subsampling_noise(teachers=request.teachers, allowance=sample), uncertified=True)

    def nearly(sample: int) -> Mechanism | Promised:
        # Three times the double 0.1 is more than the double 0.3: slightly more noise is worth two more votes.
        plain = of(sample)
        if isinstance(plain, DaRRM):
            return DaRRM(NoiseFunction(gamma=plain.noise.gamma * SLACK**2), uncertified=True)
        return Promised(allowance=plain.self_bounding_allowance(overlap=overlap) * SLACK**2, overlap=overlap)

    fitting = bisect_left(sizes, True, key=lambda sample: not request.keeps(nearly(sample)))
    if not fitting:
        raise request.unmet()
    sample = sizes[fitting - 1]
    mechanism = of(sample)
    if not request.keeps(mechanism):
        noisier = nearly(sample)
        mechanism = _table(request, noisier.allowance, overlap, sample) if isinstance(noisier, Promised) else noisier
    if not isinstance(mechanism, DaRRM):
        return mechanism
    gamma, cost = mechanism.noise.gamma, mechanism.self_bounding_allowance(overlap=overlap)
    proof = certify_self_bounding(gamma, overlap=overlap, allowance=cost)
    return DaRRM(NoiseFunction(gamma=gamma, certificate=proof))


def _table(request: Request, allowance: float, overlap: int, sample: int | None = None) -> SelfBoundingPlurality:
    return SelfBoundingPlurality(
        teachers=request.teachers,
        classes=request.classes,
        allowance=allowance,
        overlap=overlap,
        prior=request.plurality_prior,
        sample=sample,
    )


# --- the mechanism's own randomness -----------------------------------------------------------------------------------


def lists_quickly(request: Request) -> bool:
    """Whether the curve of one label over all neighbouring histograms takes a fraction of a second."""
    few, classes = votes_within(_QUICK, votes=request.teachers, classes=request.classes), request.classes
    return few >= request.teachers and (classes == 2 or (classes * (classes - 1)) ** request.overlap <= _QUICK)


def by_strength(make: Callable[[Request, float], Mechanism], low: float, high: float) -> Build:
    """Builds the strongest of the mechanisms that ``make`` returns, one for each number in [low, high].

    The search is by the closed form of composition first, then shortly by the curve of a label, which takes longer.
    """

    def build(request: Request) -> Mechanism:
        def closed(number: float) -> Mechanism:
            mechanism = make(request, number)
            return replace(mechanism, classes=None) if isinstance(mechanism, NoisyCounts) else mechanism

        number = request.strongest(closed, low, high)
        exact = partial(make, request)
        if closed(number) == exact(number):  # there is no other price
            return exact(number)
        if number < high and request.keeps(exact(number * (1 + _GAIN)), SLACK):
            number = request.strongest(exact, number * (1 + _GAIN), high, tolerance=_GAIN / 4)
        return exact(number)

    return build


def vote_private(request: Request) -> Mechanism:
    """The best table that protects votes by its own randomness."""
    # The target's delta is of little use to one label, see VotePrivatePlurality.
    each = request.strongest(lambda epsilon: Promised(vote_epsilon=epsilon), 1e-4, 50.0)
    return VotePrivatePlurality(
        teachers=request.teachers,
        classes=request.classes,
        epsilon=each * request.overlap,
        overlap=request.overlap,
        prior=request.plurality_prior,
    )


def gaussian(method: str) -> Build:
    """Builds GNMax: ``method`` is "analytic", by its noisy counts, or "label", by the Renyi bound of the label."""

    def build(request: Request) -> GNMax:
        if method == "label" and request.overlap > 1:
            cure = "The label's own bound is proven for records that affect one teacher."
            raise InvalidArgument("overlap", "1", request.overlap, cure)
        classes = request.classes if method == "label" else None
        if not all(target.delta for target in request.targets):
            raise request.unmet()
        enough = max(
            (
                GNMax.calibrated(
                    target,
                    method=method,
                    labels=count,
                    overlap=request.overlap,
                    teachers=request.teachers,
                    classes=classes,
                )
                for count, target in request.requirements
            ),
            key=lambda one: one.sigma,
        )
        if not request.teacher.is_private:
            return enough

        def make(strength: float) -> GNMax:
            return replace(enough, sigma=1 / strength)

        return make(request.strongest(make, SLACK / enough.sigma, 16.0, tolerance=2.0**-10))

    return build


def gaussian_prices_the_label(request: Request) -> bool:
    """Whether GNMax can price the label itself: records that affect one teacher, and few histograms of the votes."""
    return request.overlap == 1 and votes_within(_LISTED, votes=request.teachers, classes=request.classes) == (
        request.teachers
    )


def explain(request: Request, row: Strategy) -> str:
    """What a mechanism's guarantee, or its certificate, says of each label."""
    assert row.mechanism is not None
    proof, label = row.mechanism.certificate, "Each label"
    if isinstance(row.mechanism, GNMax):
        label = f"Gaussian noise of {row.mechanism.sigma:.3g} votes on each count: each label"
    if row.rests_on != "teachers":
        keeps = row.mechanism.guarantee(labels=1, overlap=request.overlap)
        alone = " alone." if row.own_randomness else ", and the teachers' own privacy adds to that."
        text = f"{label} is {keeps} by the mechanism's own randomness{alone}"
    elif isinstance(proof, SelfBoundingCertificate):
        cost = "one teacher does" if proof.allowance == 1 else f"m = {format_bound(proof.allowance, 3)} teachers do"
        text = f"Labels add up, and each costs what {cost}."
        if row.total is not None and row.total.route.key == "allocation-self-bounding":
            m = format_bound(proof.allowance, 3)
            text = f"Labels add up with m = {m} of {request.teachers} teachers, and random allocation hides the record."
    else:
        more = f" and {len(proof.teacher) - 1} more points of their profile" * (len(proof.teacher) > 1)
        text = f"The best noise for one label, certified for teachers that are {proof.teacher[0]}{more}."
    sample = getattr(row.mechanism, "sample", request.teachers)
    return text + f" Each label looks at {sample} of the votes, drawn afresh." * (sample < request.teachers)
