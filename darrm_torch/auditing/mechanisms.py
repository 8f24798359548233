"""Auditing: what labels betray in an experiment, against what is claimed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, PrivacyViolation, check_integer, check_number
from ..mechanisms.base import MOST_VOTES, Mechanism
from ..noise.certificate import Certificate, WorstCase
from ..privacy.guarantees import PrivacyGuarantee, check_guarantee

__all__ = ["Audit", "audit"]

_MOST_TEACHERS = 2000  # of which all pairs of counts are compared


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The outcome of an experiment that did not refute the claim.

    Attributes:
        epsilon: a lower bound of the label's epsilon at ``claim.delta``, right with probability ``confidence``.
        claim: what was claimed of one label.
        samples: labels drawn on each of the two neighbouring datasets.
        confidence: 1 - the chance that a true claim is called refuted.
        worst_case: the two datasets, in words.
    """

    epsilon: float
    claim: PrivacyGuarantee
    samples: int
    confidence: float
    worst_case: str


def audit(
    mechanism: Mechanism,
    *,
    claim: PrivacyGuarantee | None = None,
    worst_case: WorstCase | tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    teachers: int | None = None,
    overlap: int | None = None,
    samples: int = 200_000,
    confidence: float = 0.999,
    seed: int | None = None,
) -> Audit:
    """Draws labels on two neighbouring datasets and bounds epsilon from below; one label, two datasets.

    Passing proves nothing; it would have noticed a grave mistake. Votes are drawn with an ordinary generator
    (``seed``), the labels with the mechanism's own randomness.

    Args:
        mechanism: what draws the labels.
        claim: of one label; ``None``: its certificate's target, else what its own coins promise for ``overlap``.
        worst_case: the two datasets. A :class:`WorstCase`, as a certificate or :func:`darrm_torch.certify` names it;
            or two (K, C) arrays, the chance of each teacher to vote for each class, rows summing to 1. ``None``: the
            certificate's; else, if the mechanism's coins are to keep the claim whatever the votes, of all pairs of
            counts of two classes that differ in r votes the one that should show most.
        teachers: K, where the mechanism does not know it and ``worst_case`` does not say it.
        overlap: r, where it is not in the certificate; ``None``: the mechanism's own, or K.
        samples: labels to draw on each dataset.
        confidence: of the lower bound (Clopper-Pearson, shared out over labels and directions).
        seed: of the votes.

    Raises:
        PrivacyViolation: the lower bound exceeds the claim.
        InvalidArgument: a claim or a worst case is neither given nor known. It must be given where the claim rests on
            the teachers: counts that differ are then no neighbours, as votes are private by themselves.

    >>> from darrm_torch import GNMax, PrivacyGuarantee
    >>> mechanism = GNMax.calibrated(PrivacyGuarantee(epsilon=1.0, delta=1e-5), teachers=11, insecure_seed=1)
    >>> 0.1 < audit(mechanism, seed=2).epsilon <= 1.0
    True
    """
    if not isinstance(mechanism, Mechanism):
        raise InvalidArgument("mechanism", "a Mechanism", mechanism)
    if claim is not None:
        check_guarantee("claim", claim)
    samples = check_integer("samples", samples, low=1, high=10**8)
    seed = None if seed is None else check_integer("seed", seed, low=0)
    confidence = check_number("confidence", confidence, low=0.0, high=1.0, low_open=True, high_open=True)
    certificate = mechanism.certificate if isinstance(mechanism.certificate, Certificate) else None
    if claim is None:
        claim = certificate.target if certificate else mechanism.guarantee(overlap=overlap)
    if claim is None:
        raise InvalidArgument("claim", "given", None, "The mechanism's coins promise nothing by themselves")
    if worst_case is None and certificate is not None:
        worst_case = certificate.worst_case
    if worst_case is None:
        here, there = _telling_counts(mechanism, claim, teachers, overlap, samples)
        words = f"counts {here.tolist()} and {there.tolist()}"
        votes = [np.repeat(np.eye(len(counts)), counts, axis=0) for counts in (here, there)]
    elif isinstance(worst_case, WorstCase):
        words, votes = str(worst_case), _binary_votes(worst_case)
    else:
        words, votes = "two given laws of the votes", _check_votes(worst_case)
    generator = np.random.default_rng(seed)
    first, second = (_tally(mechanism, law, samples, generator) for law in votes)
    risk = (1 - confidence) / (4 * first.size)  # each label in both directions, two bounds in each
    bounds = [_shown(a, b, samples, claim.delta, risk) for a, b in ((first, second), (second, first))]
    epsilon = max(0.0, float(np.max(bounds)))
    if epsilon > claim.epsilon:
        raise PrivacyViolation(
            f"the labels are not {claim}: with confidence {confidence} epsilon is at least {epsilon:.6g} at delta "
            f"{claim.delta:g}, from {samples} labels on each of two neighbouring datasets: {words}"
        )
    return Audit(epsilon=epsilon, claim=claim, samples=samples, confidence=confidence, worst_case=words)


def _shown(here: npt.NDArray[Any], there: npt.NDArray[Any], samples: int, delta: float, risk: float) -> FloatArray:
    """log((p - delta) / p') at the Clopper-Pearson bounds of the two chances, from how often each label came."""
    least = np.nan_to_num(stats.beta.ppf(risk, here, samples - here + 1), nan=0.0)  # NaN: never
    most = np.nan_to_num(stats.beta.isf(risk, there + 1, samples - there), nan=1.0)  # NaN: always
    shown: FloatArray = np.log(np.maximum(least - delta, 1e-300) / most)
    return shown


def _telling_counts(
    mechanism: Mechanism, claim: PrivacyGuarantee, teachers: int | None, overlap: int | None, samples: int
) -> tuple[IntArray, IntArray]:
    """Of all counts of two classes that differ in r votes, the pair on which the samples are expected to show most."""
    known = mechanism.teachers if teachers is None else check_integer("teachers", teachers, low=1)
    if known is None:
        raise InvalidArgument("teachers", "given", None, "The mechanism does not know how many teachers vote")
    if known > _MOST_TEACHERS:
        raise InvalidArgument("worst_case", f"given for more than {_MOST_TEACHERS} teachers", None)
    own: Any = getattr(mechanism, "overlap", None) or known
    near = own if overlap is None else check_integer("overlap", overlap, low=1, high=MOST_VOTES)
    coins = mechanism.guarantee(delta=claim.delta, overlap=near)
    if (coins is None or coins.epsilon > claim.epsilon) and math.isfinite(
        mechanism.self_bounding_allowance(teachers=known, overlap=near)
    ):
        cure = "Its coins promise less, so the claim rests on the teachers: give what they may vote on two neighbouring"
        raise InvalidArgument("worst_case", "given", None, f"{cure} datasets, such as certify(...).worst_case")
    ones = np.arange(known + 1)
    counts = np.zeros((known + 1, mechanism.classes or 2), dtype=np.int64)
    counts[:, 0], counts[:, 1] = known - ones, ones
    expected = samples * np.asarray(mechanism.label_probabilities(counts))
    shown = _shown(expected[:, None, :], expected[None, :, :], samples, claim.delta, 1e-3).max(axis=2)
    shown[np.abs(ones[:, None] - ones) > near] = -math.inf
    here, there = np.unravel_index(np.argmax(shown), shown.shape)
    return counts[here], counts[there]


def _binary_votes(case: WorstCase) -> list[FloatArray]:
    fixed = [1.0] * case.ones + [0.0] * case.zeros
    here = np.array([p for p, _, n in case.corners for _ in range(n)] + fixed)
    there = np.array([p for _, p, n in case.corners for _ in range(n)] + fixed)
    return [np.stack([1 - p, p], axis=1) for p in (here, there)]


def _check_votes(laws: Any) -> list[FloatArray]:
    try:
        votes = np.array([np.asarray(law, dtype=np.float64) for law in laws])
    except (TypeError, ValueError, RuntimeError):
        votes = np.empty(0)
    if (
        votes.ndim != 3
        or len(votes) != 2
        or not (np.all(votes >= 0) and np.allclose(votes.sum(axis=2), 1.0, rtol=0, atol=1e-9))
    ):
        raise InvalidArgument("worst_case", "a WorstCase or two (K, C) arrays whose rows are chances", laws)
    return list(votes)


def _tally(mechanism: Mechanism, votes: FloatArray, samples: int, generator: np.random.Generator) -> IntArray:
    """How often each label was given; the last entry is "no answer"."""
    steps = np.cumsum(votes, axis=1)[:, :-1]
    counts = np.zeros((samples, votes.shape[1]), dtype=np.int64)
    for teacher in steps:
        choice = np.searchsorted(teacher, generator.random(samples), side="right")
        counts[np.arange(samples), choice] += 1
    labels = mechanism.aggregate(counts)
    return np.bincount(np.where(labels < 0, votes.shape[1], labels), minlength=votes.shape[1] + 1)
