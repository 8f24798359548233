"""Small worlds in which the true loss of labels is an exact sum, written from the documentation alone.

A world has K teachers. Each trained teacher is one of a few models; a record changes the law of the affected ones. A
public table says which class each model votes for on each question, and questions may depend on earlier labels.
Nothing here calls the package, except to look up a table of probabilities that defines a mechanism.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from scipy.special import gammaln, ndtr, xlogy

MOST_SEQUENCES = 3  # longer ones are counted by their labels
Law = dict[tuple[int, ...], np.ndarray]  # probabilities of the labels, by the counts of votes

# --- histograms ---


@cache
def histograms(votes: int, classes: int) -> tuple[tuple[int, ...], ...]:
    """All counts of ``votes`` votes for ``classes`` classes."""
    if classes == 1:
        return ((votes,),)
    return tuple((n, *rest) for n in range(votes + 1) for rest in histograms(votes - n, classes - 1))


def label_law(
    votes: int, classes: int, law_of_sorted: Callable[[tuple[int, ...]], Sequence[float]], *, alike: bool = True
) -> Law:
    """The law at all histograms of a rule, which treats all classes alike; the last entry may be 'no answer'."""
    cache: dict[tuple[int, ...], np.ndarray] = {}
    law: Law = {}
    if not alike:
        return {counts: np.asarray(law_of_sorted(counts), dtype=float) for counts in histograms(votes, classes)}
    for counts in histograms(votes, classes):
        order = sorted(range(classes), key=lambda c: -counts[c])
        descending = tuple(counts[c] for c in order)
        if descending not in cache:
            cache[descending] = np.asarray(law_of_sorted(descending), dtype=float)
        row = cache[descending].copy()
        row[order] = cache[descending][:classes]
        law[counts] = row
    return law


# --- mechanisms, from their definitions ---


def majority(counts: tuple[int, ...]) -> list[float]:
    """The class with the most votes, ties broken uniformly."""
    tied = [n == max(counts) for n in counts]
    return [t / sum(tied) for t in tied]


def randomized_majority(gamma: Sequence[float]) -> Callable[[tuple[int, ...]], list[float]]:
    """DaRRM: the majority of two classes with probability gamma(l), otherwise a fair coin."""

    def law(counts: tuple[int, ...]) -> list[float]:
        ones, teachers = counts[1], sum(counts)
        one = 0.5 + np.sign(2 * ones - teachers) * gamma[ones] / 2
        return [1 - one, one]

    return law


def randomized_response(epsilon: float) -> Callable[[tuple[int, ...]], list[float]]:
    """The plurality with probability e^epsilon / (e^epsilon + C - 1), else one of the other classes."""

    def law(counts: tuple[int, ...]) -> list[float]:
        classes, plain = len(counts), majority(counts)
        right = 1 / (1 + (classes - 1) * math.exp(-epsilon))
        return [p * right + (1 - p) * (1 - right) / (classes - 1) for p in plain]

    return law


def exponential(rate: float) -> Callable[[tuple[int, ...]], list[float]]:
    """Probability proportional to exp(rate n_c)."""

    def law(counts: tuple[int, ...]) -> list[float]:
        weights = [math.exp(rate * (n - max(counts))) for n in counts]
        return [weight / sum(weights) for weight in weights]

    return law


def permute_and_flip(rate: float) -> Callable[[tuple[int, ...]], list[float]]:
    """Goes through the classes in random order and takes the first that a coin of chance exp(-rate gap) accepts."""

    def law(counts: tuple[int, ...]) -> list[float]:
        accept, chances = [math.exp(-rate * (max(counts) - n)) for n in counts], [0.0] * len(counts)
        orders = list(itertools.permutations(range(len(counts))))
        for order in orders:
            left = 1 / len(orders)
            for c in order:
                chances[c] += left * accept[c]
                left *= 1 - accept[c]
        return chances

    return law


def noisy_argmax(pmf: np.ndarray, unit: int) -> Callable[[tuple[int, ...]], list[float]]:
    """argmax of counts plus independent noise; ``pmf`` is the noise at -R, ..., R, of which ``unit`` make one vote."""
    reach = len(pmf) // 2
    padded = np.concatenate([[0.0], pmf, [0.0]])
    below = np.concatenate([[0.0, 0.0], np.cumsum(pmf)])  # below[i]: Pr[noise < value number i of padded]

    def law(counts: tuple[int, ...]) -> list[float]:
        chances = []
        for c, own in enumerate(counts):
            values = np.arange(-reach, reach + 1)
            rivals = []
            for j, other in enumerate(counts):
                if j != c:
                    place = np.clip(values + unit * (own - other) + reach + 1, 0, len(padded) - 1)
                    past = values + unit * (own - other) > reach
                    rivals.append((np.where(past, below[-1], below[place]), padded[place]))
            wins = np.zeros(len(values))
            for ties in itertools.product((False, True), repeat=len(rivals)):
                factors = [level if tie else lower for tie, (lower, level) in zip(ties, rivals, strict=True)]
                wins += np.prod(factors, axis=0) / (1 + sum(ties))
            chances.append(float(pmf @ wins))
        return chances

    return law


def rounded_normal(sigma: float) -> tuple[np.ndarray, int]:
    """Normal noise rounded to multiples of 1, or of the largest 2^-k that is at most sigma / 16."""
    unit = 1
    while 1 / unit > sigma / 16 and sigma / 16 < 1:
        unit *= 2
    edges = (np.arange(math.ceil(10 * sigma * unit) + 2) - 0.5) / (unit * sigma)
    upper = ndtr(-edges)  # Pr[noise > edge]
    half = upper[:-1] - upper[1:]
    return np.concatenate([half[:0:-1], half]), unit


def geometric_noise(scale: float) -> tuple[np.ndarray, int]:
    """Pr[k] proportional to exp(-|k| / scale)."""
    reach = math.ceil(45 * scale) + 130  # twice as many votes and more: ratios in the tails have to be right as well
    weights = np.exp(-np.arange(reach + 1) / scale)
    weights *= math.tanh(1 / (2 * scale))
    return np.concatenate([weights[:0:-1], weights]), 1


def confident(
    threshold: float,
    check: tuple[np.ndarray, int],
    argmax: Callable[[tuple[int, ...]], list[float]],
    expected: Sequence[float] = (),
    otherwise: int = -1,
) -> Callable[[tuple[int, ...]], list[float]]:
    """``argmax`` if the highest count, less what is expected, plus noise reaches the threshold, else another."""
    pmf, unit = check
    values = np.arange(-(len(pmf) // 2), len(pmf) // 2 + 1) / unit

    def law(counts: tuple[int, ...]) -> list[float]:
        highest = max(np.subtract(counts, expected)) if len(expected) else max(counts)
        reached = values + highest >= threshold
        chances = [*(float(pmf[reached].sum()) * p for p in argmax(counts)), 0.0]
        chances[otherwise] += float(pmf[~reached].sum())
        return chances

    return law


def of_a_sample(
    size: int, law: Callable[[tuple[int, ...]], Sequence[float]]
) -> Callable[[tuple[int, ...]], np.ndarray]:
    """``law`` of ``size`` of the votes, drawn without replacement."""

    def mixture(counts: tuple[int, ...]) -> np.ndarray:
        total = np.zeros(len(counts))
        for drawn in histograms(size, len(counts)):
            ways = math.prod(math.comb(n, d) for n, d in zip(counts, drawn, strict=True))
            if ways:
                total += ways * np.asarray(law(drawn))
        return total / math.comb(sum(counts), size)

    return mixture


# --- teachers ---


@dataclass(frozen=True)
class Teacher:
    """A teacher with a few possible models: their law with the record, and without it.

    ``points`` are guarantees (epsilon, delta) that it keeps in both directions; instead, ``runs`` is a DP-SGD history,
    and ``parts`` are two independent teachers that are published as one.
    """

    here: np.ndarray
    there: np.ndarray
    points: tuple[tuple[float, float], ...] = ()
    runs: tuple[tuple[float, float, int], ...] = ()
    parts: tuple[Teacher, ...] = ()

    @property
    def order(self) -> np.ndarray:
        """The models, from the one that speaks most for the record to the one that speaks least."""
        return np.argsort(-np.log((self.here + 1e-300) / (self.there + 1e-300)), kind="stable")

    def chances(self, high: int) -> tuple[float, float]:
        """Probability, on both data sets, of the ``high`` models that speak most for the record."""
        return float(self.here[self.order[:high]].sum()), float(self.there[self.order[:high]].sum())

    @property
    def models(self) -> int:
        return len(self.here)


def response(epsilon: float, delta: float = 0.0) -> Teacher:
    """The most revealing (epsilon, delta)-DP teacher (Kairouz, Oh, Viswanath 2015)."""
    likely = (1 - delta) / (1 + math.exp(-epsilon))
    rest = (1 - delta) - likely
    if delta == 0:
        return Teacher(np.array([likely, rest]), np.array([rest, likely]), ((epsilon, 0.0),))
    return Teacher(np.array([delta, likely, rest, 0.0]), np.array([0.0, rest, likely, delta]), ((epsilon, delta),))


def both(one: Teacher, other: Teacher) -> Teacher:
    """Two independent models in one."""
    here, there = (np.outer(*sides).ravel() for sides in ((one.here, other.here), (one.there, other.there)))
    return Teacher(here, there, parts=(one, other))


def plain_teacher() -> Teacher:
    """No privacy: the record decides which model it is."""
    return Teacher(np.array([1.0, 0.0]), np.array([0.0, 1.0]), ((math.inf, 0.0),))


def tabulated(rng: np.random.Generator) -> Teacher:
    """Three models with laws drawn at random, and one to three points of the true profile of this pair."""
    there = rng.dirichlet(np.ones(3) * 2)
    here = there * np.exp(rng.normal(0, 10 ** rng.uniform(-1.5, 0.3), 3))
    here /= here.sum()
    largest = float(np.abs(np.log(here / there)).max())
    levels = rng.permutation([0.0, largest / 2, float(rng.uniform(0, largest)), largest])[: int(rng.integers(1, 4))]
    points = []
    for level in levels:
        both = hockey_stick(here, there, level), hockey_stick(there, here, level)
        points.append((float(level) * (1 + 1e-12), 0.0 if level == largest else float(max(both)) * (1 + 1e-12)))
    return Teacher(here, there, tuple(points))


def gaussian_teacher(noise: float, rate: float, steps: int, models: int, rng: np.random.Generator) -> Teacher:
    """DP-SGD whose final model shows only in which of a few intervals the likelihood ratio lies.

    With rate 1, or one step, from the normal distribution alone; two steps of a smaller rate on a grid of cells, whose
    probabilities are exact (cells are a post-processing, so this is a lower bound on what the model shows).
    """
    runs = ((noise, rate, steps),)
    if rate == 1.0:
        noise, steps = noise / math.sqrt(steps), 1
    edges = np.linspace(-8 * noise, 1 + 8 * noise, 400 if steps == 1 else 90)
    plain = np.diff(np.concatenate([[0.0], ndtr(edges / noise), [1.0]]))
    moved = np.diff(np.concatenate([[0.0], ndtr((edges - 1) / noise), [1.0]]))
    here, there = (1 - rate) * plain + rate * moved, plain
    for _ in range(steps - 1):
        here, there = np.outer(here, (1 - rate) * plain + rate * moved).ravel(), np.outer(there, plain).ravel()
    order = np.argsort(-here / np.maximum(there, 1e-300), kind="stable")
    here, there = here[order], there[order]
    cumulated = np.cumsum(here)
    marks = np.searchsorted(cumulated, np.sort(1 - 10 ** -rng.uniform(0.05, 3.5, models - 1)))
    if rng.random() < 0.5:
        marks = np.searchsorted(cumulated, np.sort(10 ** -rng.uniform(0.05, 3.5, models - 1)))
    marks = np.concatenate([[0], marks, [len(here)]])
    merged = [np.array([law[a:b].sum() for a, b in itertools.pairwise(marks)]) for law in (here, there)]
    return Teacher(*merged, runs=runs)


# --- the true loss ---


def hockey_stick(here: np.ndarray, there: np.ndarray, epsilon: float) -> np.ndarray:
    """sup over events of Pr_here - e^epsilon Pr_there, over the last axis."""
    return np.maximum(here - math.exp(min(epsilon, 700.0)) * there, 0.0).sum(axis=-1)


@dataclass
class Truth:
    """Laws of what is released on pairs of neighbouring data sets: rows of probabilities, one a pair."""

    pairs: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def add(self, here: np.ndarray, there: np.ndarray) -> None:
        """Both arrays (outcomes,) or (pairs, outcomes)."""
        self.pairs.append((np.atleast_2d(here), np.atleast_2d(there)))

    def delta(self, epsilon: float) -> float:
        """The largest over all pairs, both directions and all events."""
        return max(
            float(max(hockey_stick(p, q, epsilon).max(), hockey_stick(q, p, epsilon).max())) for p, q in self.pairs
        )

    def epsilon_of_pure(self) -> float:
        """The largest log ratio: the true epsilon at delta = 0."""
        worst = 0.0
        for p, q in self.pairs:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios = np.abs(np.log(p) - np.log(q))
            worst = max(worst, float(np.nanmax(ratios, initial=0.0)))  # 0 / 0: no such label
        return worst

    def exceeds(self, epsilon: float, delta: float, *, slack: float = 1e-9) -> bool:
        """Whether the claim (epsilon, delta) is false by more than rounding errors."""
        if delta == 0.0:
            return self.epsilon_of_pure() > epsilon * (1 + slack) + 1e-12
        return self.delta(epsilon) > delta * (1 + slack) + 2e-14


def same_votes(
    law: Law, base: tuple[int, ...], chances: Sequence[tuple[float, float]], labels: int, classes: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Transcripts of one question asked ``labels`` times.

    Each active teacher votes for ``classes[0]`` with probability ``chances[k][0]`` on the one data set and
    ``chances[k][1]`` on the other, else for ``classes[1]``; ``base`` are the votes of all others.
    """
    sides = []
    for side in (0, 1):
        number = np.ones(1)
        for pair in chances:
            number = np.convolve(number, [1 - pair[side], pair[side]])
        transcripts: np.ndarray | float = 0.0
        for agree, chance in enumerate(number):
            counts = list(base)
            counts[classes[0]] += agree
            counts[classes[1]] += len(chances) - agree
            one = law[tuple(counts)]
            transcripts = transcripts + chance * power(one, labels)
        sides.append(np.asarray(transcripts))
    return sides[0], sides[1]


def power(law: np.ndarray, labels: int) -> np.ndarray:
    """The law of independent labels, (..., outcomes) -> (..., sequences); of many, how often each label occurs.

    Sequences of the same labels in another order have the same ratio on two data sets, so nothing is lost.
    """
    if labels > MOST_SEQUENCES:
        often = np.array(histograms(labels, law.shape[-1]))
        ways = gammaln(labels + 1) - gammaln(often + 1).sum(axis=1)
        return np.exp(ways + xlogy(often, law[..., None, :]).sum(axis=-1))
    result = law
    for _ in range(labels - 1):
        result = (result[..., :, None] * law[..., None, :]).reshape(*law.shape[:-1], -1)
    return result


Table = np.ndarray  # votes: (active teachers, models)


def transcripts(
    law: Law,
    base: Callable[[tuple[int, ...]], tuple[int, ...]],
    table: Callable[[tuple[int, ...]], Table],
    joint: Sequence[np.ndarray],
    labels: int,
    classes: int,
    *,
    fresh: bool = False,
) -> list[np.ndarray]:
    """Laws of all label sequences, for each of several joint laws of the active teachers' models.

    ``base`` and ``table`` give, for the labels so far, the votes of the others and of each model of each teacher: the
    next question may depend on earlier labels. ``joint`` are arrays of shape (models,) * active.
    """
    models = joint[0].shape
    combinations = np.stack([axis.ravel() for axis in np.indices(models)], axis=1)  # (Z, active)
    start = [law_of_models.ravel() for law_of_models in joint]
    states = [((), start)]
    for _ in range(labels):
        following = []
        for history, weights in states:
            votes = np.take_along_axis(table(history).T, combinations, axis=0)  # (Z, active)
            counts = np.tile(np.array(base(history)), (len(votes), 1))
            for c in range(classes):
                counts[:, c] += (votes == c).sum(axis=1)
            codes = counts @ (64 ** np.arange(classes))
            _, first, where = np.unique(codes, return_index=True, return_inverse=True)
            chances = np.array([law[tuple(int(n) for n in counts[i])] for i in first])[where.reshape(-1)]
            for label in range(chances.shape[1]):
                if fresh:  # new models for each label: only the chance of the history is carried along
                    split = [w.sum() * (s @ chances[:, label]) * s for w, s in zip(weights, start, strict=True)]
                else:
                    split = [w * chances[:, label] for w in weights]
                following.append(((*history, label), split))
        states = following
    return [np.array([weights[side].sum() for _, weights in states]) for side in range(len(joint))]


def product(laws: Iterable[np.ndarray]) -> np.ndarray:
    """The joint law of independent models."""
    result = np.ones(())
    for law in laws:
        result = np.multiply.outer(result, law)
    return result


def allocated(
    teacher: Teacher, teachers: int, subsets: Sequence[tuple[float, tuple[int, ...]]]
) -> tuple[np.ndarray, np.ndarray]:
    """All models with a record that was given to a random set of teachers, and without it."""
    here = sum(
        chance * product(teacher.here if k in subset else teacher.there for k in range(teachers))
        for chance, subset in subsets
    )
    return np.asarray(here), product([teacher.there] * teachers)


def uniform_subsets(teachers: int, size: int) -> list[tuple[float, tuple[int, ...]]]:
    """All sets of ``size`` teachers, equally likely."""
    sets = list(itertools.combinations(range(teachers), size))
    return [(1 / len(sets), subset) for subset in sets]


def one_of_each(blocks: Sequence[int]) -> list[tuple[float, tuple[int, ...]]]:
    """One teacher of each block of consecutive teachers."""
    starts = np.cumsum([0, *blocks])
    choices = list(itertools.product(*(range(a, b) for a, b in itertools.pairwise(starts.tolist()))))
    return [(1 / len(choices), choice) for choice in choices]


def read(joint: np.ndarray, jury: Sequence[int]) -> np.ndarray:
    """The law of the models in the jury alone."""
    others = tuple(k for k in range(joint.ndim) if k not in jury)
    return joint.sum(axis=others)
