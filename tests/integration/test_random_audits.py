"""Claims of the public API against the true loss in thousands of random worlds (see `auditing_worlds`).

An audit is one setting: teachers, an overlap, a mechanism, labels and a delta. Every epsilon that the package claims
for it is compared with exact losses over neighbouring data sets, questions and events. No claim may be below the truth;
so that this means something, for every route and every mechanism some audits must notice a claim 10 % too low.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest
from scipy.special import ndtr

import darrm_torch as dt
from darrm_torch.mechanisms.base import NoisyCounts
from darrm_torch.privacy.totals import RouteKey
from tests.integration import auditing_worlds as worlds
from tests.integration.auditing_worlds import Law, Teacher, Truth

AUDITS_OF_A_MECHANISM, AUDITS_OF_A_ROUTE = 100, 60
NOTICED = 3  # audits that have to notice a claim 10 % too low, at least
LAW_ERROR = 1e-11  # between the law that is written down here and `label_probabilities`


def guarantee(epsilon: float, delta: float = 0.0) -> dt.PrivacyGuarantee:
    return dt.PrivacyGuarantee(epsilon=epsilon, delta=delta)


def promise(teacher: Teacher) -> dt.PrivacyProfile:
    if teacher.parts:
        first, second = (promise(part) for part in teacher.parts)
        return first.compose(second)
    if teacher.runs:
        return dt.PrivacyProfile.from_dp_sgd(teacher.runs)
    return dt.PrivacyProfile.from_guarantee(*(guarantee(*point) for point in teacher.points))


@dataclass
class Setting:
    """What is drawn before the mechanism, which may change ``delta`` to one at which its claim can be attained."""

    teachers: int
    classes: int
    overlap: int
    labels: int
    fresh: bool
    delta: float
    kinds: list[Teacher]  # one for each teacher, all with as many models
    mechanism: Any = None
    law: Law = field(default_factory=dict)
    calibrated: dt.PrivacyGuarantee | None = None  # what the mechanism was calibrated to, for all labels
    guess: np.ndarray | None = None  # of a student, for all items

    @property
    def promises(self) -> list[dt.PrivacyProfile]:
        return [promise(teacher) for teacher in self.kinds]

    @property
    def epsilon_of_a_teacher(self) -> float:
        """Some finite epsilon in the range of what a teacher promises."""
        points = [epsilon for epsilon, _ in self.kinds[0].points if 0 < epsilon < math.inf]
        return max(points, default=0.5)


# --- settings ---


def some_delta(rng: np.random.Generator) -> float:
    return 0.0 if rng.random() < 0.35 else float(10 ** rng.uniform(-6, -1))


GAUSSIAN = [(1.0, 1.0, 1), (2.0, 1.0, 4), (0.7, 0.3, 1), (1.5, 0.5, 1), (1.0, 0.2, 2)]


def some_teacher(rng: np.random.Generator, models: int = 4) -> Teacher:
    epsilon = float(10 ** rng.uniform(-1.7, 0.3))
    kind = rng.choice(
        ["response", "delta", "tabulated", "gaussian", "composed", "plain"], p=[0.35, 0.18, 0.18, 0.12, 0.1, 0.07]
    )
    if kind == "delta" and models >= 4:
        return worlds.response(epsilon, float(10 ** rng.uniform(-5, -1)))
    if kind == "tabulated" and models >= 3:
        return worlds.tabulated(rng)
    if kind == "gaussian":
        return worlds.gaussian_teacher(
            *GAUSSIAN[rng.integers(len(GAUSSIAN))], int(rng.integers(2, min(models, 3) + 1)), rng
        )
    if kind == "composed" and models >= 4:
        return worlds.both(worlds.response(epsilon), some_teacher(rng, models=2))
    return worlds.plain_teacher() if kind == "plain" else worlds.response(epsilon)


def many_teachers(rng: np.random.Generator, setting: Setting) -> None:
    """Two classes and votes so far apart that a label shows nearly all that the noisy counts show."""
    setting.teachers, setting.classes, setting.overlap = int(rng.integers(12, 61)), 2, int(rng.integers(1, 3))
    setting.labels, setting.fresh = 1, False
    setting.kinds = [worlds.plain_teacher()] * setting.teachers


def some_setting(rng: np.random.Generator, classes: int | None = None) -> Setting:
    teachers = int(rng.integers(1, 8))
    overlap = int(rng.choice([1, teachers, int(rng.integers(1, teachers + 1))]))
    labels = int(rng.choice([1, 2, 3], p=[0.6, 0.25, 0.15]))
    kinds = [some_teacher(rng)] * teachers
    if rng.random() < 0.12:  # unlike teachers
        pool = [some_teacher(rng, models=2) for _ in range(3)]
        kinds = [pool[i] for i in rng.integers(0, 3, teachers)]
    classes = int(rng.integers(2, 5)) if classes is None else classes
    if classes == 2 and rng.random() < 0.2:
        labels = int(rng.integers(4, 25))
    return Setting(
        teachers=teachers,
        classes=classes,
        overlap=overlap,
        labels=labels,
        fresh=labels > 1 and bool(rng.random() < 0.35),
        delta=some_delta(rng),
        kinds=kinds,
    )


# --- mechanisms: each builder returns the mechanism and its law, from its definition ---

Builder = Callable[[np.random.Generator, Setting], tuple[Any, Callable[[tuple[int, ...]], Any]]]


def weakest(setting: Setting) -> Any:
    """What `optimize_noise` asks for: one promise, or one for each teacher."""
    promises = setting.promises
    return promises[0] if len(set(promises)) == 1 else promises


def build_optimal(rng: np.random.Generator, setting: Setting, shape: str) -> Any:
    if shape == "free":  # its worst cases are many
        setting.overlap = min(setting.overlap, 5)
    epsilon = float(setting.epsilon_of_a_teacher * rng.uniform(0.2, 2.5))
    setting.delta = target = 0.0 if setting.delta == 0.0 else setting.delta * float(rng.uniform(0.5, 1))
    if setting.labels > 1:
        target /= 2 * setting.labels
    noise = dt.optimize_noise(
        teachers=setting.teachers,
        teacher=weakest(setting),
        target=guarantee(epsilon, target),
        overlap=setting.overlap,
        shape=shape,
    )
    return dt.DaRRM(noise), worlds.randomized_majority(noise.gamma)


def build_public(rng: np.random.Generator, setting: Setting) -> Any:
    target = guarantee(float(10 ** rng.uniform(-1.3, 0.5)), setting.delta / setting.labels)
    public = guarantee(math.inf)
    noise = dt.optimize_noise(teachers=setting.teachers, teacher=public, target=target, overlap=setting.overlap)
    return dt.DaRRM(noise), worlds.randomized_majority(noise.gamma)


def build_self_bounding(rng: np.random.Generator, setting: Setting) -> Any:
    allowance = float(rng.choice([1.0, rng.uniform(0.2, 1), rng.uniform(1, setting.teachers + 0.5)]))
    noise = dt.self_bounding_noise(teachers=setting.teachers, allowance=allowance, overlap=setting.overlap)
    return dt.DaRRM(noise), worlds.randomized_majority(noise.gamma)


def build_subsampling(rng: np.random.Generator, setting: Setting) -> Any:
    double = rng.random() < 0.5
    most = (setting.teachers + 1) // 2 if double else setting.teachers
    rule = dt.double_subsampling_noise if double else dt.subsampling_noise
    noise = rule(teachers=setting.teachers, allowance=int(rng.integers(1, most + 1)))
    return dt.DaRRM(noise, uncertified=True), worlds.randomized_majority(noise.gamma)


def build_any(rng: np.random.Generator, setting: Setting) -> Any:
    """Any noise function, constant, falling towards ties or neither: `label_profile` has to know what it costs."""
    teachers = setting.teachers
    half = rng.uniform(0, 1, teachers // 2 + 1)  # by the number of minority votes
    kind = rng.choice(["constant", "monotone", "free"])
    half = np.full_like(half, half[0]) if kind == "constant" else -np.sort(-half) if kind == "monotone" else half
    votes = np.arange(teachers + 1)
    noise = dt.NoiseFunction(gamma=half[np.minimum(votes, teachers - votes)])
    return dt.DaRRM(noise, uncertified=True), worlds.randomized_majority(noise.gamma)


def attained_delta(rng: np.random.Generator, setting: Setting, sigma: float) -> float:
    """A delta at which the noisy counts' epsilon is that of the label where ``lead`` votes become ``lead - 2 r``."""
    overlap, teachers = setting.overlap, setting.teachers
    mu, lead = overlap * math.sqrt(2) / sigma, teachers - 2 * int(rng.integers(0, max(1, (teachers - overlap) // 2)))
    epsilon = overlap * (lead - overlap) / sigma**2
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(min(epsilon, 600)) * ndtr(-mu / 2 - epsilon / mu))


CONFIDENT = ("threshold", "sigma_check", "sigma", "overlap", "delta")


def build_gaussian(rng: np.random.Generator, setting: Setting, kind: str) -> Any:
    if kind != "label" and rng.random() < 0.3:
        many_teachers(rng, setting)
    sigma = float(setting.overlap * rng.uniform(0.6, 4.0))
    setting.delta = float(10 ** rng.uniform(-6, -1))
    if rng.random() < 0.6 and 1e-9 < (delta := attained_delta(rng, setting, sigma)) < 0.5:
        setting.labels, setting.fresh, setting.delta = 1, False, delta
    known = {"teachers": setting.teachers, "classes": setting.classes} if kind == "label" else {}
    if known:
        setting.overlap = 1
    overlap, target = setting.overlap, None
    if rng.random() < 0.25:
        target = guarantee(float(10 ** rng.uniform(-0.5, 0.7)), setting.delta)
    if kind in ("confident", "interactive"):
        ratio, threshold = float(rng.choice([1.0, 4.0])), float(rng.choice([-99.0, setting.teachers * rng.random()]))
        mechanism: Any = dt.ConfidentGNMax(
            threshold=threshold, sigma_check=ratio * sigma, sigma=sigma, overlap=overlap, delta=1e-6
        )
        if target is not None:
            mechanism = dt.ConfidentGNMax.calibrated(
                target, threshold=threshold, ratio=ratio, labels=setting.labels, overlap=overlap
            )
    else:
        mechanism = dt.GNMax(sigma=sigma, overlap=overlap, delta=1e-6, **known)
        if target is not None:
            method = "label" if known else str(rng.choice(["analytic", "rdp"]))
            mechanism = dt.GNMax.calibrated(target, method=method, labels=setting.labels, overlap=overlap, **known)
    setting.calibrated = target
    argmax = worlds.noisy_argmax(*worlds.rounded_normal(mechanism.sigma))
    check = worlds.rounded_normal(mechanism.sigma_check) if kind in ("confident", "interactive") else None
    if kind == "confident":
        argmax = worlds.confident(mechanism.threshold, check, argmax)
    if kind == "interactive":
        setting.guess = rng.dirichlet(np.full(setting.classes, 0.5))
        own = int(setting.guess.argmax()) if setting.guess.max() >= 0.8 else -1
        surplus = np.rint(setting.guess * setting.teachers)
        argmax = worlds.confident(mechanism.threshold, check, argmax, surplus, own)
        mechanism = dt.InteractiveGNMax(confidence=0.8, **{name: getattr(mechanism, name) for name in CONFIDENT})
    return mechanism, argmax


def build_laplace(rng: np.random.Generator, setting: Setting) -> Any:
    if rng.random() < 0.3:
        many_teachers(rng, setting)
    mechanism = dt.LNMax(scale=float(rng.uniform(0.3, 4) * setting.overlap), overlap=setting.overlap)
    if rng.random() < 0.25:
        setting.calibrated = guarantee(float(10 ** rng.uniform(-0.5, 0.7)), setting.delta)
        mechanism = dt.LNMax.calibrated(setting.calibrated, labels=setting.labels, overlap=setting.overlap)
    return mechanism, worlds.noisy_argmax(*worlds.geometric_noise(mechanism.scale))


def build_selection(rng: np.random.Generator, setting: Setting, kind: str) -> Any:
    if rng.random() < 0.15:
        many_teachers(rng, setting)
    epsilon = float(10 ** rng.uniform(-1, 0.7))
    cls, law = {
        "exponential": (dt.ExponentialMechanism, worlds.exponential),
        "permute-and-flip": (dt.PermuteAndFlip, worlds.permute_and_flip),
    }[kind]
    return cls(epsilon=epsilon, overlap=setting.overlap), law(epsilon / (2 * setting.overlap))


def build_response(rng: np.random.Generator, setting: Setting) -> Any:
    epsilon = float(10 ** rng.uniform(-1, 0.7))
    return dt.RandomizedPlurality(epsilon=epsilon), worlds.randomized_response(epsilon)


def build_plurality(rng: np.random.Generator, setting: Setting, kind: str) -> Any:
    common = {"teachers": setting.teachers, "classes": setting.classes, "overlap": setting.overlap}
    if rng.random() < 0.2:
        common["sample"] = int(rng.integers(1, setting.teachers + 1))
    if kind == "self-bounding":
        allowance = float(rng.choice([1.0, 2.0, rng.uniform(0.3, setting.teachers)]))
        mechanism: Any = dt.SelfBoundingPlurality(allowance=allowance, **common)
    else:
        mechanism = dt.VotePrivatePlurality(epsilon=float(setting.overlap * 10 ** rng.uniform(-1, 0.3)), **common)
    table = mechanism.table
    return mechanism, worlds.of_a_sample(
        table.space.votes, lambda counts: table.label_probabilities(np.array([counts]))[0]
    )


def build_plain(rng: np.random.Generator, setting: Setting, fixed: bool) -> Any:
    if fixed:
        return dt.NoiseFreeMajority(teachers=setting.teachers, classes=setting.classes), worlds.majority
    classes = setting.classes if rng.random() < 0.7 else None
    return dt.NoiseFreeMajority(classes=classes), worlds.majority


MECHANISMS: dict[str, tuple[Builder, int | None]] = {  # and the number of classes, where it has only one
    "darrm-monotone": (partial(build_optimal, shape="monotone"), 2),
    "darrm-free": (partial(build_optimal, shape="free"), 2),
    "darrm-public": (build_public, 2),
    "darrm-self-bounding": (build_self_bounding, 2),
    "darrm-subsampling": (build_subsampling, 2),
    "darrm-any": (build_any, 2),
    "gnmax": (partial(build_gaussian, kind="counts"), None),
    "gnmax-label": (partial(build_gaussian, kind="label"), None),
    "confident-gnmax": (partial(build_gaussian, kind="confident"), None),
    "interactive-gnmax": (partial(build_gaussian, kind="interactive"), None),
    "lnmax": (build_laplace, None),
    "permute-and-flip": (partial(build_selection, kind="permute-and-flip"), None),
    "exponential": (partial(build_selection, kind="exponential"), None),
    "randomized-plurality": (build_response, None),
    "self-bounding-plurality": (partial(build_plurality, kind="self-bounding"), None),
    "vote-private-plurality": (partial(build_plurality, kind="vote-private"), None),
    "noise-free": (partial(build_plain, fixed=False), None),
    "noise-free-fixed": (partial(build_plain, fixed=True), None),
}


def build(rng: np.random.Generator, name: str) -> Setting:
    """A setting with its mechanism, whose law as the package states it must be the one that is written down here."""
    builder, classes = MECHANISMS[name]
    setting = some_setting(rng, classes)
    setting.mechanism, definition = builder(rng, setting)
    if isinstance(setting.mechanism, NoisyCounts) and setting.mechanism.classes is None and rng.random() < 0.5:
        # With all histograms known, labels compose along their worst curve.
        setting.mechanism = replace(setting.mechanism, teachers=setting.teachers, classes=setting.classes)
    setting.law = worlds.label_law(setting.teachers, setting.classes, definition, alike=setting.guess is None)
    asked = setting.mechanism
    if setting.guess is not None:
        asked = asked.given([setting.guess] * len(setting.law))
    stated = asked.label_probabilities(np.array(list(setting.law)))
    assert np.abs(stated - np.stack(list(setting.law.values()))).max() < LAW_ERROR, name
    return setting


# --- what is true ---


def truth_of_labels(rng: np.random.Generator, setting: Setting) -> Truth:
    """Losses of the labels of private teachers, on data sets that differ in what up to r teachers were trained on."""
    law, teachers, classes, labels = setting.law, setting.teachers, setting.classes, setting.labels
    truth = Truth()
    cases = [
        (active, base)
        for active in range(1, setting.overlap + 1)
        for base in worlds.histograms(teachers - active, classes)
    ]
    if len(cases) > 70:
        cases = [cases[i] for i in rng.choice(len(cases), 70, replace=False)]
    models = setting.kinds[0].models
    for active, base in cases:
        for high in range(1, models):
            chances = [setting.kinds[k].chances(high) for k in range(active)]
            sides = worlds.same_votes(law, base, chances, 1 if setting.fresh else labels, (0, 1))
            truth.add(*(worlds.power(side, labels) if setting.fresh else side for side in sides))
    for base, table, active in some_questions(rng, setting) if labels <= worlds.MOST_SEQUENCES else ():
        joint = [worlds.product(getattr(setting.kinds[k], side) for k in range(active)) for side in ("here", "there")]
        truth.add(*worlds.transcripts(law, base, table, joint, labels, classes, fresh=setting.fresh))
    return truth


def some_questions(rng: np.random.Generator, setting: Setting) -> Iterator[tuple[Any, Any, int]]:
    """Questions that depend on earlier labels: random ones, and one that asks each teacher in turn."""
    teachers, classes = setting.teachers, setting.classes
    models = setting.kinds[0].models
    active = min(setting.overlap, 5 if models < 4 else 4)
    rest = teachers - active
    for _ in range(2 if setting.labels > 1 else 0):
        seed = int(rng.integers(2**32))

        def table(history: tuple[int, ...], seed: int = seed) -> np.ndarray:
            return np.random.default_rng([seed, 1, *history]).integers(0, classes, (active, models))

        def base(history: tuple[int, ...], seed: int = seed) -> np.ndarray:
            votes = np.random.default_rng([seed, 2, *history]).integers(0, classes, rest)
            return np.bincount(votes, minlength=classes)

        yield base, table, active

    def one_at_a_time(history: tuple[int, ...]) -> np.ndarray:
        votes = np.tile((np.arange(active) % 2)[:, None], (1, models))
        votes[np.arange(active) > len(history) % active] ^= 1  # the others cancel out
        votes[len(history) % active] = np.arange(models) >= models // 2
        return votes

    def balanced(history: tuple[int, ...]) -> np.ndarray:
        others = one_at_a_time(history)[np.arange(active) != len(history) % active]
        ones = int(others[:, 0].sum()) if len(others) else 0
        counts = np.zeros(classes, dtype=int)
        counts[1] = min(rest, max(0, (teachers - 1) // 2 - ones))
        counts[0] = rest - counts[1]
        return counts

    yield balanced, one_at_a_time, active


def truth_of_own_randomness(rng: np.random.Generator, setting: Setting) -> Truth:
    """Losses when the votes themselves are the data, of which up to r change: all pairs of counts."""
    rows = np.array(list(setting.law))
    law = np.stack(list(setting.law.values()))
    moved = np.abs(rows[:, None] - rows[None]).sum(axis=2) // 2
    left, right = np.nonzero((moved <= setting.overlap) & (moved > 0) & np.tri(len(rows), k=-1, dtype=bool))
    truth = Truth()
    if len(left) == 0:
        return truth
    kept = np.arange(len(left)) if len(left) < 1500 else rng.choice(len(left), 1500, replace=False)
    sides = [law[left[kept]], law[right[kept]]]
    truth.add(*(worlds.power(side, setting.labels) for side in sides))
    for _ in range(2 if 1 < setting.labels <= worlds.MOST_SEQUENCES else 0):  # other counts after each label
        here, there = np.ones(1), np.ones(1)
        for _ in range(setting.labels):
            chosen = rng.integers(0, len(left), len(here))
            flip = rng.random(len(here)) < 0.5
            one = law[np.where(flip, left[chosen], right[chosen])]
            two = law[np.where(flip, right[chosen], left[chosen])]
            here, there = (here[:, None] * one).ravel(), (there[:, None] * two).ravel()
        truth.add(here, there)
    return truth


# --- audits ---


LARGEST = 700.0  # nats: beyond it e^epsilon is no float, and the probabilities that it is compared with underflow


@dataclass
class Tally:
    """What audits found, by claim: how many, how many notice a claim 10 % too low, and what was violated."""

    audits: Counter[str] = field(default_factory=Counter)
    caught: Counter[str] = field(default_factory=Counter)
    violated: list[str] = field(default_factory=list)
    worst: float = -math.inf  # the largest true delta minus the claimed one
    settings: int = 0

    def check(self, name: str, truth: Truth, epsilon: float, delta: float, setting: Any) -> None:
        if not epsilon < LARGEST or delta >= 1 or not truth.pairs:
            return
        self.audits[name] += 1
        self.worst = max(self.worst, truth.delta(epsilon) - delta)
        if truth.exceeds(epsilon, delta):
            self.violated.append(f"{name}: ({epsilon!r}, {delta!r}) claimed, {truth.delta(epsilon)!r} true: {setting}")
        self.caught[name] += epsilon > 1e-9 and truth.exceeds(0.9 * epsilon, delta)


def audit(rng: np.random.Generator, setting: Setting, tally: Tally) -> set[str]:
    """Checks all that is claimed for a setting; returns the names of the claims."""
    before = tally.audits.copy()
    labels, delta, overlap = setting.labels, setting.delta, setting.overlap
    promises, mechanism = setting.promises, setting.mechanism
    truth, own = truth_of_labels(rng, setting), truth_of_own_randomness(rng, setting)
    total = dt.total_privacy(
        teachers=promises,
        overlap=overlap,
        mechanism=mechanism,
        labels=labels,
        votes="fresh" if setting.fresh else "fixed",
        delta=delta,
    )
    tally.check("total", truth, total.epsilon, delta, setting)
    for route in total.routes:
        if route.applies:
            tally.check(route.key, truth, route.epsilon, delta, setting)
            if route.key == "own-randomness":
                tally.check(route.key, own, route.epsilon, delta, setting)
    if isinstance(mechanism, dt.DaRRM | dt.SelfBoundingPlurality | dt.NoiseFreeMajority):
        # Their own randomness promises nothing, or not much: the sum of the allowances is the theorem.
        allowance = labels * mechanism.self_bounding_allowance(teachers=setting.teachers, overlap=overlap)
        for point in setting.kinds[0].points if len(set(promises)) == 1 else ():
            tally.check("allowance", truth, allowance * point[0], min(1.0, allowance * point[1]), setting)
    if (own_claim := mechanism.guarantee(labels=labels, delta=delta, overlap=overlap)) is not None:
        tally.check("guarantee", own, own_claim.epsilon, own_claim.delta, setting)
    if (target := setting.calibrated) is not None:
        tally.check("calibrated", own, target.epsilon, target.delta, setting)
    if isinstance(mechanism, dt.DaRRM) and labels == 1:
        profile = dt.label_profile(
            mechanism.noise.gamma, teachers=setting.teachers, teacher=weakest(setting), overlap=overlap
        )
        epsilon = setting.epsilon_of_a_teacher * float(rng.uniform(0.05, 1.5))
        tally.check("label-profile", truth, epsilon, profile(epsilon), setting)
        if isinstance(mechanism.certificate, dt.Certificate) and math.isfinite(
            mechanism.certificate.teacher[0].epsilon
        ):
            target = mechanism.certificate.target
            tally.check("certificate", truth, target.epsilon, target.delta, setting)
    return {name for name in tally.audits if tally.audits[name] > before[name]}


def audit_mechanism(name: str, audits: int) -> Tally:
    """So many settings of one mechanism for which something finite is claimed."""
    rng, tally = np.random.default_rng([17, *name.encode()]), Tally()
    while tally.settings < audits:
        tally.settings += bool(audit(rng, build(rng, name), tally))
    return tally


ROUTES = {
    "publishing": list(MECHANISMS),
    "self-bounding": ["darrm-self-bounding", "self-bounding-plurality", "noise-free", "darrm-subsampling", "lnmax"],
    "certified": ["darrm-monotone", "darrm-free", "darrm-public"],
    "label-curve": ["darrm-monotone", "darrm-free", "darrm-any", "noise-free", "darrm-self-bounding"],
    "own-randomness": ["darrm-public", "gnmax", "lnmax", "permute-and-flip", "exponential", "confident-gnmax"],
    "private-votes": ["vote-private-plurality", "permute-and-flip", "randomized-plurality", "darrm-any", "lnmax"],
}


def audit_route(route: str, audits: int) -> Tally:
    """So many settings, of several mechanisms, in which the route proves a finite epsilon."""
    rng, tally = np.random.default_rng([18, *route.encode()]), Tally()
    names = itertools.cycle(ROUTES[route])
    while tally.settings < audits:
        tally.settings += route in audit(rng, build(rng, next(names)), tally)
    return tally


# --- records allocated at random, and juries ---


def small_teacher(rng: np.random.Generator, teachers: int) -> Teacher:
    """A private teacher; with few models where there are many teachers."""
    while True:
        teacher = some_teacher(rng, models=4 if teachers <= 5 else 2)
        if teacher.models**teachers <= 2000 and math.inf not in dict(teacher.points):
            return teacher


def some_allocation(rng: np.random.Generator, *, disjoint: bool = False) -> tuple[dt.RandomAllocation, list[Any]]:
    """An allocation, and the subsets of teachers with their chances."""
    teachers = int(rng.integers(1, 8))
    overlap = 1 if disjoint or rng.random() < 0.5 else int(rng.integers(1, teachers + 1))
    if not disjoint and overlap == 1 and rng.random() < 0.3:
        weights = tuple(rng.dirichlet(np.ones(teachers)).tolist())
        return (
            dt.RandomAllocation(teachers=teachers, weights=weights),
            [(weight, (k,)) for k, weight in enumerate(weights)],
        )
    if rng.random() < 0.4:
        cuts = np.sort(rng.choice(np.arange(1, teachers), overlap - 1, replace=False))
        blocks = tuple(int(n) for n in np.diff([0, *cuts, teachers]))
        return (
            dt.RandomAllocation(teachers=teachers, overlap=overlap, blocks=blocks),
            worlds.one_of_each(blocks),
        )
    return dt.RandomAllocation(teachers=teachers, overlap=overlap), worlds.uniform_subsets(teachers, overlap)


def some_voters(rng: np.random.Generator, teachers: int) -> int | tuple[float, ...] | None:
    choice = rng.choice(["all", "fixed", "random", "votes"])
    if choice == "fixed":
        return int(rng.integers(1, teachers + 1))
    if choice == "random":
        return (0.0, *(float(x) for x in rng.dirichlet(np.ones(teachers))))
    if choice == "votes":  # one random vote for each of a few labels; counted out, not computed by the package
        labels, law = int(rng.integers(1, 4)), np.zeros(teachers + 1)
        for voters in itertools.product(range(teachers), repeat=labels):
            law[len(set(voters))] += teachers**-labels
        assert (
            np.abs(np.pad(dt.distinct_voters(teachers, labels=labels), (0, teachers))[: teachers + 1] - law).max()
            < 1e-12
        )
        return tuple(law.tolist())
    return None


def juries(voters: int | tuple[float, ...] | None, teachers: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    """All juries, with their chances when they are drawn at random."""
    sizes = [0.0] * teachers + [1.0] if voters is None else voters
    if isinstance(sizes, int):
        sizes = [0.0] * sizes + [1.0]
    for size, chance in enumerate(sizes):
        for jury in itertools.combinations(range(teachers), size):
            yield chance / math.comb(teachers, size), jury


def audit_allocation(rng: np.random.Generator, tally: Tally) -> None:
    allocation, subsets = some_allocation(rng)
    teachers = allocation.teachers
    teacher, delta, voters = small_teacher(rng, teachers), some_delta(rng), some_voters(rng, teachers)
    sides = worlds.allocated(teacher, teachers, subsets)
    truth = Truth()
    if isinstance(voters, int) and allocation.blocks:  # a constant jury
        for _, jury in juries(voters, teachers):
            truth.add(*(worlds.read(side, jury).ravel() for side in sides))
    else:  # the jury is drawn and published
        parts = [(chance, jury) for chance, jury in juries(voters, teachers) if chance > 0]
        if allocation.blocks is None and allocation.weights is None:  # all juries of one size are alike
            drawn = {len(jury): jury for _, jury in parts}.values()
            parts = [(sum(c for c, other in parts if len(other) == len(jury)), jury) for jury in drawn]
        truth.add(*(np.concatenate([c * worlds.read(side, j).ravel() for c, j in parts]) for side in sides))
    setting = (allocation, teacher, voters)
    profile = promise(teacher)
    claim = dt.allocated_epsilon(profile, allocation, delta, voters=voters)
    tally.check("allocation-price", truth, claim, delta, setting)
    epsilon = float(rng.uniform(0.2, 1.0)) * min(claim, 3.0) if claim > 0 else float(rng.uniform(0, 0.1))
    tally.check(
        "allocation-price-delta",
        truth,
        epsilon,
        dt.allocated_delta(profile, allocation, epsilon, voters=voters),
        setting,
    )


def audit_jury(rng: np.random.Generator, tally: Tally) -> None:
    teachers = int(rng.integers(1, 8))
    overlap, voters = int(rng.integers(1, teachers + 1)), some_voters(rng, teachers)
    teacher, delta = small_teacher(rng, teachers), some_delta(rng)
    met: Counter[int] = Counter()
    for chance, jury in juries(voters, teachers):
        met[sum(k < overlap for k in jury)] += chance  # type: ignore[assignment]
    truth = Truth()
    sides = [
        np.concatenate([chance * worlds.product([law] * n).ravel() for n, chance in met.items()])
        for law in (teacher.here, teacher.there)
    ]
    truth.add(*sides)
    profile, asked = promise(teacher), {"teachers": teachers, "overlap": overlap, "voters": voters or teachers}
    setting = (asked, teacher)
    claim = dt.jury_epsilon(profile, delta, **asked)
    tally.check("jury-price", truth, claim, delta, setting)
    epsilon = float(rng.uniform(0.2, 1.0)) * min(claim, 3.0)
    tally.check("jury-price-delta", truth, epsilon, dt.jury_delta(profile, epsilon, **asked), setting)


@dataclass
class OfJury:
    """A mechanism for the votes of a jury, as ``total_privacy`` sees it."""

    mechanism: Any
    jury: int
    redrawn: bool = False
    certificate: None = None

    def self_bounding_allowance(self, *, teachers: int, overlap: int) -> float:
        return self.mechanism.self_bounding_allowance(teachers=self.jury, overlap=min(overlap, self.jury))

    def guarantee(self, *, labels: int, delta: float, overlap: int) -> Any:
        return self.mechanism.guarantee(labels=labels, delta=delta, overlap=min(overlap, self.jury))

    @property
    def secure(self) -> bool:
        return self.mechanism.secure


def audit_allocated_labels(rng: np.random.Generator, names: Sequence[str], tally: Tally) -> set[str]:
    """Labels of randomly allocated records, by all teachers or by a jury: every route, and the prices by themselves."""
    before = tally.audits.copy()
    allocation, subsets = some_allocation(rng)
    teachers = allocation.teachers
    voters = None if rng.random() < 0.6 else int(rng.integers(1, teachers + 1))
    jury = tuple(range(voters or teachers))
    teacher, labels = small_teacher(rng, teachers), int(rng.choice([1, 2, 3], p=[0.6, 0.2, 0.2]))
    name = str(rng.choice(names))
    setting = Setting(
        teachers=len(jury),
        classes=MECHANISMS[name][1] or int(rng.integers(2, 4)),
        overlap=min(allocation.overlap, len(jury)),
        labels=labels,
        fresh=labels > 1 and bool(rng.random() < 0.25),
        delta=some_delta(rng),
        kinds=[teacher] * len(jury),
    )
    setting.mechanism, definition = MECHANISMS[name][0](rng, setting)
    setting.law = worlds.label_law(len(jury), setting.classes, definition)
    truth = Truth()
    for base, table in questions_to_all(rng, setting):
        if setting.fresh:  # new votes for each label, but the same shards
            laws = [worlds.allocated(teacher, teachers, [(1.0, subset)])[0] for _, subset in [*subsets, (0.0, ())]]
            laws = [worlds.read(law, jury) for law in laws]
            *with_record, without = worlds.transcripts(
                setting.law, base, table, laws, labels, setting.classes, fresh=True
            )
            truth.add(sum(c * law for (c, _), law in zip(subsets, with_record, strict=True)), without)
        else:
            joint = [worlds.read(side, jury) for side in worlds.allocated(teacher, teachers, subsets)]
            truth.add(*worlds.transcripts(setting.law, base, table, joint, labels, setting.classes))
    profile = promise(teacher)
    total = dt.total_privacy(
        teachers=[profile] * teachers,
        mechanism=setting.mechanism if voters in (None, teachers) else OfJury(setting.mechanism, len(jury)),
        labels=labels,
        votes="fresh" if setting.fresh else "fixed",
        delta=setting.delta,
        allocation=allocation,
    )
    for route in total.routes:
        if route.applies:
            tally.check(route.key, truth, route.epsilon, setting.delta, (allocation, voters, setting))
    allowance = labels * setting.mechanism.self_bounding_allowance(teachers=len(jury), overlap=len(jury))
    if allocation.weights or setting.fresh or math.isinf(allowance):
        return {claim for claim in tally.audits if tally.audits[claim] > before[claim]}
    asked = {"allowance": allowance, "voters": voters}
    claim = dt.self_bounding_epsilon(profile, allocation, setting.delta, **asked)
    tally.check("self-bounding-price", truth, claim, setting.delta, (allocation, setting, asked))
    if allocation.overlap == 1:
        epsilon = float(rng.uniform(0.2, 1.0)) * min(claim, 3.0)
        delta = dt.self_bounding_delta(profile, allocation, epsilon, **asked)
        tally.check("self-bounding-price-delta", truth, epsilon, delta, (allocation, setting, asked))
        if voters is None and len(teacher.points) == 1:
            audit_exact(rng, truth, setting, allowance, allocated=True, tally=tally)
    return {claim for claim in tally.audits if tally.audits[claim] > before[claim]}


def questions_to_all(rng: np.random.Generator, setting: Setting) -> Iterator[tuple[Any, Any]]:
    """Questions to a whole jury: all that show whether a model speaks for the record, and a random one."""
    nobody, teachers, models = np.zeros(setting.classes, dtype=int), setting.teachers, setting.kinds[0].models
    for high in range(1, models):
        same = np.tile(np.isin(np.arange(models), setting.kinds[0].order[:high]).astype(int), (teachers, 1))
        some = same * (rng.random((teachers, 1)) < 0.7)
        for table in (same, 1 - same, some, 1 - some):
            yield (lambda _: nobody), (lambda _, votes=table: votes)
    seed = int(rng.integers(2**32))

    def random(past: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng([seed, *past]).integers(0, setting.classes, (teachers, models))

    yield (lambda _: nobody), random


def audit_exact(
    rng: np.random.Generator, truth: Truth, setting: Setting, allowance: float, *, allocated: bool, tally: Tally
) -> None:
    """The exact price of self-bounding labels of K teachers, for teachers with one promise each."""
    point = guarantee(*setting.kinds[0].points[0])
    asked = {"teachers": setting.teachers, "allowance": allowance, "allocated": allocated}
    delta = max(setting.delta, 1e-7)
    claim = dt.exact_self_bounding_epsilon(point, delta, **asked)
    tally.check("exact-price", truth, claim, delta, (setting, asked))
    epsilon = float(rng.uniform(0.2, 1.0)) * min(claim, 3.0)
    delta = dt.exact_self_bounding_delta(point, epsilon, **asked)
    tally.check("exact-price-delta", truth, epsilon, delta, (setting, asked))


def audit_exact_price(rng: np.random.Generator, tally: Tally) -> None:
    name = str(rng.choice(SELF_BOUNDING))
    setting = some_setting(rng, MECHANISMS[name][1])
    teacher = worlds.response(float(10 ** rng.uniform(-1.7, 0.3)), float(rng.choice([0.0, 1e-3, 0.02])))
    setting.overlap, setting.fresh, setting.kinds = setting.teachers, False, [teacher] * setting.teachers
    setting.mechanism, definition = MECHANISMS[name][0](rng, setting)
    if isinstance(setting.mechanism, NoisyCounts) and setting.mechanism.classes is None and rng.random() < 0.5:
        # With all histograms known, labels compose along their worst curve.
        setting.mechanism = replace(setting.mechanism, teachers=setting.teachers, classes=setting.classes)
    setting.law = worlds.label_law(setting.teachers, setting.classes, definition)
    allowance = setting.labels * setting.mechanism.self_bounding_allowance(teachers=setting.teachers)
    audit_exact(rng, truth_of_labels(rng, setting), setting, allowance, allocated=False, tally=tally)


SELF_BOUNDING = ["darrm-self-bounding", "self-bounding-plurality", "noise-free", "darrm-subsampling"]
ALLOCATED_ROUTES = {
    "allocation": ["noise-free", "noise-free-fixed", "darrm-any", "randomized-plurality", "vote-private-plurality"],
    "allocation-self-bounding": SELF_BOUNDING,
}
PRICES = {
    "allocation-price": audit_allocation,
    "jury-price": audit_jury,
    "self-bounding-price": lambda rng, tally: audit_allocated_labels(rng, SELF_BOUNDING, tally),
    "exact-price": audit_exact_price,
}


def audit_allocated_route(route: str, audits: int) -> Tally:
    """As :func:`audit_route`, for routes that need a random allocation."""
    rng, tally = np.random.default_rng([20, *route.encode()]), Tally()
    while tally.settings < audits:
        tally.settings += route in audit_allocated_labels(rng, ALLOCATED_ROUTES[route], tally)
    return tally


def audit_price(price: str, audits: int) -> Tally:
    rng, tally = np.random.default_rng([19, *price.encode()]), Tally()
    while tally.settings < audits:
        before = tally.audits[price]
        PRICES[price](rng, tally)
        tally.settings += tally.audits[price] > before
    return tally


# --- tests ---

CLAIM_OF = {  # the claim that shows a mechanism's own strength
    "darrm-monotone": "certificate",
    "darrm-free": "certificate",
    "darrm-any": "label-profile",
    "darrm-self-bounding": "allowance",
    "darrm-subsampling": "allowance",
    "self-bounding-plurality": "allowance",
    "noise-free": "allowance",
    "noise-free-fixed": "allowance",
}


def check(tally: Tally, audits: int, *claims: str) -> None:
    """Nothing violated, and claims 10 % lower are: an audit that could not fail would prove nothing."""
    assert tally.settings >= audits
    assert tally.violated == []
    for claim in claims:
        assert tally.caught[claim] >= NOTICED, (claim, tally.caught)


def test_there_are_enough_audits() -> None:
    assert min(AUDITS_OF_A_MECHANISM, AUDITS_OF_A_ROUTE) >= 50
    assert len(MECHANISMS) * AUDITS_OF_A_MECHANISM + len({**ROUTES, **ALLOCATED_ROUTES}) * AUDITS_OF_A_ROUTE >= 2000
    assert set(get_args(RouteKey)) == {*ROUTES, *ALLOCATED_ROUTES}  # a new route needs audits


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_no_claim_about_a_mechanism_is_below_the_truth(name: str) -> None:
    check(audit_mechanism(name, AUDITS_OF_A_MECHANISM), AUDITS_OF_A_MECHANISM, "total", CLAIM_OF.get(name, "guarantee"))


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_no_route_is_below_the_truth(route: str) -> None:
    check(audit_route(route, AUDITS_OF_A_ROUTE), AUDITS_OF_A_ROUTE, route)


@pytest.mark.slow
@pytest.mark.parametrize("route", ALLOCATED_ROUTES)
def test_no_route_of_allocated_records_is_below_the_truth(route: str) -> None:
    check(audit_allocated_route(route, AUDITS_OF_A_ROUTE), AUDITS_OF_A_ROUTE, route)


@pytest.mark.slow
@pytest.mark.parametrize("price", PRICES)
def test_no_price_of_allocation_or_juries_is_below_the_truth(price: str) -> None:
    check(audit_price(price, AUDITS_OF_A_ROUTE), AUDITS_OF_A_ROUTE, price, f"{price}-delta")


def test_a_few_audits_of_everything() -> None:
    kinds, tally = set(), Tally()
    for name in MECHANISMS:
        setting = build(np.random.default_rng([21, *name.encode()]), name)
        audit(np.random.default_rng(22), setting, tally)
        kinds.add(type(setting.mechanism).__name__)
    for price in PRICES:
        PRICES[price](np.random.default_rng([23, *price.encode()]), tally)
    assert tally.violated == []
    classes = {name for name in dt.__all__ if isinstance(getattr(dt, name), type)}
    exported = {name for name in classes if issubclass(getattr(dt, name), dt.Mechanism)}
    # A new mechanism needs audits. Mean probabilities are a function of the teachers, whose own prices are audited.
    assert kinds == exported - {"Mechanism", "MeanProbabilities"}


def test_the_truth_of_two_labels_exceeds_composition() -> None:
    """The known counterexample: one label of this noise is 3-DP, two labels of the same teachers are not 6-DP."""
    law = worlds.label_law(3, 2, worlds.randomized_majority([0.905372, 1.0, 1.0, 0.905372]))
    votes = [np.array([[0, 1], [0, 1], [1, 1]]), np.array([[0, 1], [1, 1], [0, 1]])]
    teacher = worlds.response(3.0)
    joint = [worlds.product([side] * 3) for side in (teacher.here, teacher.there)]
    for labels, epsilon in ((1, 3.0), (2, 6.048231)):
        truth = Truth()
        truth.add(*worlds.transcripts(law, lambda _: (0, 0), lambda past: votes[len(past)], joint, labels, 2))
        assert math.isclose(truth.epsilon_of_pure(), epsilon, rel_tol=2e-6)
