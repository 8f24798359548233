"""Auditing: what labels reveal in an experiment, compared with what is claimed."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

from ..arguments import checked
from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, PrivacyViolation, check_integer, check_number
from ..mechanisms.base import MOST_VOTES, Mechanism
from ..mechanisms.sampling import fair_argmax_law
from ..noise.certificate import Certificate, WorstCase
from ..noise.priors import vote_law
from ..privacy.guarantees import PrivacyGuarantee, check_guarantee

__all__ = ["Audit", "audit"]

_MOST_TEACHERS = 2000  # pairs of counts are compared up to this number
_MOST_CLASSES = 1000  # more take minutes, and their pairs of counts do not fit in memory
_LAW_ERROR = 2e-12  # twice what label_probabilities promises
_BLOCK = 2**18  # labels drawn at once
# Each round: its part of the draws, its part of the risk, and how many pairs of datasets go on to the next one.
_ROUNDS = ((0.02, 0.05, 3), (0.08, 0.05, 1), (0.9, 0.9, 1))
_FEW_DRAWS = 400_000  # the experiment does not end before
_WORTH_FINDING = 1.1  # a pair is given up once its epsilon is unlikely to exceed this many times the claim

Votes: TypeAlias = "list[FloatArray]"  # two (K, C) laws of the teachers' votes, on two neighbouring datasets


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The outcome of an experiment that did not refute the claim.

    Attributes:
        epsilon: a lower bound of the label's epsilon at ``claim.delta``, right with probability ``confidence``.
        claim: what was claimed of one label.
        draws: the number of labels drawn, on all datasets together.
        confidence: 1 minus the probability that a true claim is refuted.
        worst_case: a description of the two datasets that gave ``epsilon``.
    """

    epsilon: float
    claim: PrivacyGuarantee
    draws: int
    confidence: float
    worst_case: str


@checked
def audit(
    mechanism: Mechanism,
    *,
    claim: PrivacyGuarantee | None = None,
    worst_case: WorstCase | tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    teachers: int | None = None,
    overlap: int | None = None,
    samples: int = 5_000_000,
    confidence: float = 0.999,
    seed: int | None = None,
) -> Audit:
    """Tries to refute a claim about one label, on pairs of neighbouring datasets.

    First the mechanism's own exact law is compared with the claim, without drawing. Then labels are drawn, which also
    finds a mechanism that does not follow its law: a few labels on several pairs of datasets, then more on the pairs
    that reveal most, each time with fresh draws. The experiment ends early when no pair is likely to exceed the claim
    by a tenth. An audit that passes proves nothing, but it would have noticed a grave mistake. Votes are drawn with an
    ordinary generator (``seed``), labels with the mechanism's own randomness.

    Where only the draws exceed the claim, rare labels set a limit: no test of 1e7 draws with confidence 0.999 notices
    an epsilon of 16.8 in place of 14 with a probability above 0.716 (Neyman-Pearson; derived in the tutorial).

    Args:
        mechanism: the mechanism to audit.
        claim: of one label; ``None``: its certificate's target, else what its own randomness promises for ``overlap``.
        worst_case: the two datasets. A :class:`WorstCase`, as a certificate or :func:`darrm_torch.certify` names it;
            or two (K, C) arrays, the probability that each teacher votes for each class, with rows that sum to 1.
            ``None``: the certificate's; else, if the mechanism's own randomness must keep the claim for any votes,
            pairs of counts of two and of three classes that differ in at most r votes.
        teachers: K, where neither the mechanism nor ``worst_case`` determines it.
        overlap: r, where it is not in the certificate; ``None``: the mechanism's own, or K.
        samples: the most labels to draw on each of two datasets; more are drawn on one of them if that reveals more.
        confidence: of the lower bound (Clopper-Pearson, with the risk divided among all comparisons).
        seed: of the votes.

    Raises:
        PrivacyViolation: the exact law violates the claim, or the lower bound exceeds it.
        InvalidArgument: a claim or a worst case is neither given nor known. A worst case must be given where the claim
            rests on the teachers: different counts are then not neighbours, because the votes are private themselves.

    >>> from darrm_torch import GNMax, PrivacyGuarantee
    >>> mechanism = GNMax.calibrated(PrivacyGuarantee(epsilon=1.0, delta=1e-5), teachers=11, insecure_seed=1)
    >>> 0.1 < audit(mechanism, seed=2).epsilon <= 1.0
    True
    """
    if mechanism.shares > 1:
        raise InvalidArgument("mechanism", "one that releases labels", type(mechanism).__name__)
    if claim is not None:
        check_guarantee("claim", claim)
    samples = check_integer("samples", samples, low=1, high=10**8)
    generator = np.random.default_rng(None if seed is None else check_integer("seed", seed, low=0))
    confidence = check_number("confidence", confidence, low=0.0, high=1.0, low_open=True, high_open=True)
    certificate = mechanism.certificate if isinstance(mechanism.certificate, Certificate) else None
    if claim is None:
        claim = certificate.target if certificate else mechanism.guarantee(overlap=overlap)
    if claim is None:
        raise InvalidArgument("claim", "given", None, "The mechanism's own randomness promises nothing")
    if worst_case is None and certificate is not None:
        worst_case = certificate.worst_case
    if worst_case is None:
        cases = _revealing_cases(mechanism, claim, teachers, overlap, samples)
    elif isinstance(worst_case, WorstCase):
        cases = {str(worst_case): _binary_votes(worst_case)}
    else:
        cases = {"two given laws of the votes": _check_votes(worst_case)}
    for text, votes in cases.items():
        _refute(claim, _law_epsilon(mechanism, votes, claim.delta), "by the mechanism's own exact law", text)
    epsilon, drawn, worst = 0.0, 0, ""
    attacks: list[Any] = [(text, None, 0.5) for text in cases]
    for part, trust, kept in _ROUNDS:
        outcomes = []
        for text, test, balance in attacks:
            draws = max(2, round(2 * samples * part / len(attacks)))
            sizes = np.array([[max(1, round(draws * balance))], [max(1, draws - round(draws * balance))]])
            drawn += int(sizes.sum())
            sides = zip(cases[text], sizes[:, 0].tolist(), strict=True)
            labels = np.array([_tally(mechanism, law, size, generator) for law, size in sides])
            hits = np.hstack([labels, sizes - labels])  # events: one label, or any other
            risk = (1 - confidence) * trust / len(attacks) / (1 if test else hits.size)
            bounds = _log_ratio(*_interval(hits, sizes, 0.1 * risk, 0.9 * risk), claim.delta)
            found = float(bounds[test] if test else bounds.max())
            if found >= epsilon:
                epsilon, worst = found, text
            low, high = _interval(hits, sizes, 0.16, 0.16)
            likely = _log_ratio(low, high, claim.delta)
            test = np.unravel_index(np.argmax(likely), likely.shape)
            hope = _log_ratio(high, low, claim.delta)[test]
            spread = np.sqrt((sizes - hits + 1) / (hits + 1))[:, test[1]]  # relative error, times the root of the draws
            outcomes.append((likely[test], hope, (text, test, np.clip(spread[0] / spread.sum(), 0.03, 0.97))))
        _refute(claim, epsilon, f"with confidence {confidence}, from {drawn} labels,", worst or text)
        ranked = sorted(outcomes, key=lambda outcome: -outcome[0])
        go_on = _WORTH_FINDING * claim.epsilon if drawn > _FEW_DRAWS else -math.inf
        attacks = [attack for _, hope, attack in ranked if hope > go_on][:kept]
        if not attacks:
            break
    return Audit(epsilon=epsilon, claim=claim, draws=drawn, confidence=confidence, worst_case=worst or text)


def _refute(claim: PrivacyGuarantee, epsilon: float, how: str, text: str) -> None:
    if epsilon > claim.epsilon:
        raise PrivacyViolation(
            f"the labels are not {claim}: {how} epsilon is at least {epsilon:.6g} at delta {claim.delta:g} on two "
            f"neighbouring datasets: {text}"
        )


def _interval(hits: Any, sizes: Any, below: float, above: float) -> tuple[FloatArray, FloatArray]:
    """Clopper-Pearson bounds of probabilities: wrong with probability ``below`` and ``above``."""
    low = np.nan_to_num(stats.beta.ppf(below, hits, sizes - hits + 1), nan=0.0)  # NaN: never
    return low, np.nan_to_num(stats.beta.isf(above, hits + 1, sizes - hits), nan=1.0)  # NaN: always


def _log_ratio(here: FloatArray, there: FloatArray, delta: float) -> FloatArray:
    """log((p - delta) / p') in both directions: p from ``here`` (2, ...), p' from the other side of ``there``."""
    return np.asarray(np.log(np.maximum(here - delta, 1e-300) / np.maximum(there[::-1], 1e-300)))


def _law_epsilon(mechanism: Mechanism, votes: Votes, delta: float) -> float:
    """A lower bound of epsilon from the exact law; 0 for random votes for more than two classes."""
    laws = []
    for side in votes:
        if np.all((side == 0) | (side == 1)):
            laws.append(mechanism.label_probabilities(side.sum(axis=0).astype(np.int64)[None])[0])
        elif side.shape[1] == 2:
            ones = np.arange(len(side) + 1)
            laws.append(
                vote_law(side[:, 1]) @ mechanism.label_probabilities(np.stack([len(side) - ones, ones], axis=1))
            )
        else:
            return 0.0
    events = np.array([np.concatenate([law, 1 - law]) for law in laws])
    return float(_log_ratio(events - _LAW_ERROR, events + _LAW_ERROR, delta).max())


def _revealing_cases(
    mechanism: Mechanism, claim: PrivacyGuarantee, teachers: int | None, overlap: int | None, samples: int
) -> dict[str, Votes]:
    """Pairs of counts that differ in at most r votes, by their description.

    For each number of classes that get votes: the pair on which the law promises the best lower bound, and one on which
    the plurality changes, which reveals a mechanism that forgets its noise.
    """
    known = mechanism.teachers if teachers is None else check_integer("teachers", teachers, low=1)
    if known is None:
        raise InvalidArgument("teachers", "given", None, "The mechanism does not know how many teachers vote")
    if mechanism.classes is not None and mechanism.classes > _MOST_CLASSES:
        raise InvalidArgument("worst_case", f"given for more than {_MOST_CLASSES} classes", None)
    if known > _MOST_TEACHERS:
        raise InvalidArgument("worst_case", f"given for more than {_MOST_TEACHERS} teachers", None)
    own: Any = getattr(mechanism, "overlap", None) or known
    near = own if overlap is None else check_integer("overlap", overlap, low=1, high=MOST_VOTES)
    promise = mechanism.guarantee(delta=claim.delta, overlap=near)
    if (promise is None or promise.epsilon > claim.epsilon) and math.isfinite(
        mechanism.self_bounding_allowance(teachers=known, overlap=near)
    ):
        cure = "Its own randomness promises less, so the claim rests on the teachers: give what they may vote on two"
        raise InvalidArgument("worst_case", "given", None, f"{cure} neighbouring datasets, as certify(...).worst_case")
    cases: dict[str, Votes] = {}
    for classes in (mechanism.classes,) if mechanism.classes else (2, 3):
        here, there = pairs = _neighbouring_counts(known, classes, min(near, known))
        laws = np.array([mechanism.label_probabilities(side) for side in pairs])
        hits = samples * np.concatenate([laws, 1 - laws], axis=2)
        promised = _log_ratio(*_interval(hits, samples, 1e-3, 1e-3), claim.delta)[0].max(axis=1)
        moved = np.abs(fair_argmax_law(here) - fair_argmax_law(there)).max(axis=1)
        voted = np.count_nonzero(here + there, axis=1)
        for number, score in itertools.product(np.unique(voted), (promised, moved)):
            best = int(np.argmax(np.where(voted == number, score, -np.inf)))
            text = f"counts {here[best].tolist()} and {there[best].tolist()}"
            cases[text] = [np.repeat(np.eye(classes), side[best], axis=0) for side in pairs]
    return cases


def _neighbouring_counts(teachers: int, classes: int, overlap: int) -> tuple[IntArray, IntArray]:
    """Pairs of counts (N, C), in both orders: at most ``overlap`` of the votes for one class moved to another.

    All counts of two classes, and some of three that lie close enough together, the closer to a tie.
    """
    rows = []
    for third in (0,) if classes == 2 else sorted({0, 1, teachers // 4, teachers // 3, teachers // 2}):
        rest = teachers - third
        grid = np.linspace(0, rest, min(rest, _MOST_TEACHERS if classes == 2 else 24) + 1)
        second = np.unique(np.concatenate([grid, rest / 2 + np.arange(-3, 4)]).clip(0, rest).astype(np.int64))
        rows.append(np.stack([rest - second, second, np.full_like(second, third)], axis=1))
    counts = np.zeros((sum(map(len, rows)), max(classes, 3)), dtype=np.int64)
    counts[:, :3] = np.concatenate(rows)
    one = np.eye(counts.shape[1], dtype=np.int64)
    sizes = sorted({overlap, *(2**i for i in range(overlap.bit_length()))})
    pairs = []
    for size, (giver, taker) in itertools.product(sizes, itertools.permutations(range(min(classes, 3)), 2)):
        moved = np.minimum(counts[:, giver], size)[:, None]
        changed = counts + moved * (one[taker] - one[giver])
        pairs.append(np.stack([counts, changed])[:, moved[:, 0] > 0, :classes])
    here, there = np.concatenate(pairs, axis=1)
    return np.concatenate([here, there]), np.concatenate([there, here])


def _binary_votes(case: WorstCase) -> Votes:
    fixed = [1.0] * case.ones + [0.0] * case.zeros
    here = np.array([p for p, _, n in case.corners for _ in range(n)] + fixed)
    there = np.array([p for _, p, n in case.corners for _ in range(n)] + fixed)
    return [np.stack([1 - p, p], axis=1) for p in (here, there)]


def _check_votes(laws: Any) -> Votes:
    try:
        votes = np.array([np.asarray(law, dtype=np.float64) for law in laws])
    except Exception:  # ragged lists, tensors without data: each has its own error
        votes = np.empty(0)
    if (
        votes.ndim != 3
        or len(votes) != 2
        or not (np.all(votes >= 0) and np.allclose(votes.sum(axis=2), 1.0, rtol=0, atol=1e-9))
    ):
        raise InvalidArgument("worst_case", "a WorstCase or two (K, C) arrays whose rows are probabilities", laws)
    return list(votes)


def _tally(mechanism: Mechanism, votes: FloatArray, draws: int, generator: np.random.Generator) -> IntArray:
    """How often each label was drawn; the last entry is "no answer"."""
    classes, tally = votes.shape[1], np.zeros(votes.shape[1] + 1, dtype=np.int64)
    fixed = bool(np.all((votes == 0) | (votes == 1)))
    for start in range(0, draws, _BLOCK):
        size = min(_BLOCK, draws - start)
        counts = np.tile(votes.sum(axis=0).astype(np.int64) if fixed else np.zeros(classes, dtype=np.int64), (size, 1))
        for teacher in () if fixed else np.cumsum(votes, axis=1)[:, :-1]:
            counts[np.arange(size), np.searchsorted(teacher, generator.random(size), side="right")] += 1
        labels = mechanism.aggregate(counts)
        tally += np.bincount(np.where(labels < 0, classes, labels), minlength=classes + 1)
    return tally
