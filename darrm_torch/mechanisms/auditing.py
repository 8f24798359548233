"""Auditing: what labels betray in an experiment, against what is claimed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from ..certificate import Certificate, WorstCase
from ..errors import InvalidArgument, PrivacyViolation, check_integer, check_number
from ..guarantees import PrivacyGuarantee
from .base import Mechanism
from .sampling import Floats, Integers

__all__ = ["Audit", "audit"]


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
    (``seed``), the labels with the mechanism's own coins.

    Args:
        mechanism: what draws the labels.
        claim: of one label; ``None``: its certificate's target, else what its own coins promise for ``overlap``.
        worst_case: the two datasets. A :class:`WorstCase`, as a certificate or :func:`darrm_torch.certify` names it;
        or two
            (K, C) arrays, the chance of each teacher to vote for each class, rows summing to 1. ``None``: the
            certificate's, else of all pairs of two-class counts that differ in r votes the pair whose exact laws are
            farthest apart.
        teachers: K, where the mechanism does not know it and ``worst_case`` does not say it.
        overlap: r, where it is not in the certificate; ``None``: the mechanism's own, or K.
        samples: labels to draw on each dataset.
        confidence: of the lower bound (Clopper-Pearson, shared out over labels and directions).
        seed: of the votes.

    Raises:
        PrivacyViolation: the lower bound exceeds the claim.
        InvalidArgument: a claim or a worst case is neither given nor known.

    >>> from darrm_torch import GNMax, PrivacyGuarantee
    >>> mechanism = GNMax.calibrated(PrivacyGuarantee(epsilon=1.0, delta=1e-5), teachers=11, insecure_seed=1)
    >>> 0.1 < audit(mechanism, seed=2).epsilon <= 1.0
    True
    """
    samples = check_integer("samples", samples, low=1)
    confidence = check_number("confidence", confidence, low=0.0, high=1.0, low_open=True, high_open=True)
    certificate = mechanism.certificate if isinstance(mechanism.certificate, Certificate) else None
    if claim is None:
        claim = certificate.target if certificate else mechanism.guarantee(overlap=overlap)
    if claim is None:
        raise InvalidArgument("claim", "given", None, "The mechanism's coins promise nothing by themselves")
    if worst_case is None and certificate is not None:
        worst_case = certificate.worst_case
    if worst_case is None:
        here, there = _farthest_counts(mechanism, teachers, overlap, claim.delta)
        words = f"counts {here.tolist()} and {there.tolist()}"
        votes = [np.repeat(np.eye(2), counts, axis=0) for counts in (here, there)]
    elif isinstance(worst_case, WorstCase):
        words, votes = str(worst_case), _binary_votes(worst_case)
    else:
        words, votes = "two given laws of the votes", [_check_votes(law) for law in worst_case]
    generator = np.random.default_rng(seed)
    tallies = [_tally(mechanism, law, samples, generator) for law in votes]
    tests = 2 * len(tallies[0])  # each label, in both directions
    risk = (1 - confidence) / (2 * tests)  # two bounds in each test
    epsilon = max(
        _log_ratio(stats.beta.ppf(risk, p, samples - p + 1), stats.beta.isf(risk, q + 1, samples - q), claim.delta)
        for first, second in (tallies, tallies[::-1])
        for p, q in zip(first, second, strict=True)
    )
    if epsilon > claim.epsilon:
        raise PrivacyViolation(
            f"the labels are not {claim}: with confidence {confidence} epsilon is at least {epsilon:.6g} at delta "
            f"{claim.delta:g}, from {samples} labels on each of two neighbouring datasets: {words}"
        )
    return Audit(epsilon=epsilon, claim=claim, samples=samples, confidence=confidence, worst_case=words)


def _log_ratio(least: float, most: float, delta: float) -> float:
    """log of ``(least - delta) / most``, or 0 where that says nothing; SciPy gives NaN for the bounds 0 and 1."""
    least, most = (0.0 if math.isnan(least) else least), (1.0 if math.isnan(most) else most)
    return max(0.0, math.log((least - delta) / most)) if least > delta else 0.0


def _farthest_counts(
    mechanism: Mechanism, teachers: int | None, overlap: int | None, delta: float
) -> tuple[Integers, Integers]:
    known = mechanism.teachers if teachers is None else check_integer("teachers", teachers, low=1)
    if known is None:
        raise InvalidArgument("teachers", "given", None, "The mechanism does not know how many teachers vote")
    own: Any = getattr(mechanism, "overlap", known)
    near = own if overlap is None else check_integer("overlap", overlap, low=1)
    ones = np.arange(known + 1)
    counts = np.stack([known - ones, ones], axis=1)
    law: Floats = mechanism.label_probabilities(counts)
    ratio = (law[:, None, :] - delta) / np.maximum(law[None, :, :], 1e-300)
    ratio[np.abs(ones[:, None] - ones) > near] = 0.0
    here, there, _ = np.unravel_index(np.argmax(ratio), ratio.shape)
    return counts[here], counts[there]


def _binary_votes(case: WorstCase) -> list[Floats]:
    fixed = [1.0] * case.ones + [0.0] * case.zeros
    here = np.array([p for p, _, n in case.corners for _ in range(n)] + fixed)
    there = np.array([p for _, p, n in case.corners for _ in range(n)] + fixed)
    return [np.stack([1 - p, p], axis=1) for p in (here, there)]


def _check_votes(law: npt.ArrayLike) -> Floats:
    votes = np.asarray(law, dtype=np.float64)
    if votes.ndim != 2 or not (np.all(votes >= 0) and np.allclose(votes.sum(axis=1), 1.0, rtol=0, atol=1e-9)):
        raise InvalidArgument("worst_case", "a WorstCase or two (K, C) arrays whose rows are chances", votes)
    return votes


def _tally(mechanism: Mechanism, votes: Floats, samples: int, generator: np.random.Generator) -> Integers:
    """How often each label was given; the last entry is "no answer"."""
    steps = np.cumsum(votes, axis=1)[:, :-1]
    counts = np.zeros((samples, votes.shape[1]), dtype=np.int64)
    for teacher in steps:
        choice = np.searchsorted(teacher, generator.random(samples), side="right")
        counts[np.arange(samples), choice] += 1
    labels = mechanism.aggregate(counts)
    return np.bincount(np.where(labels < 0, votes.shape[1], labels), minlength=votes.shape[1] + 1)
