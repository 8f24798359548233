"""The plain majority (plurality), reported without noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import FloatArray, IntArray
from ..errors import check_integer
from ..noise.label_prices import label_promise
from ..noise.self_bounding import self_bounding_allowance
from ..privacy.guarantees import PrivacyGuarantee
from ..privacy.profiles import PrivacyProfile
from .base import AnyVotes, check_request
from .sampling import fair_argmax, fair_argmax_law

__all__ = ["NoiseFreeMajority"]


@dataclass(frozen=True, kw_only=True)
class NoiseFreeMajority(AnyVotes):
    """The class with the most votes; ties are broken uniformly at random.

    Guarantee: none of its own; all privacy comes from the teachers. It is self-bounding: with (eps, Delta)-DP teachers,
    r of which have a record in their training data, each label costs (m eps, m Delta) with m =
    :meth:`self_bounding_allowance`, and all labels together never cost more than publishing the r teachers. Where that
    total already meets the budget, no other mechanism gives better labels.

    Args:
        classes: C, ``None`` for any; two classes have a smaller allowance than three or more.
        teachers: K, ``None`` for any.

    >>> import numpy as np
    >>> NoiseFreeMajority().aggregate(np.array([[1, 4], [3, 2]]))
    array([1, 0])
    >>> NoiseFreeMajority(classes=2).self_bounding_allowance(teachers=11)
    6.0
    """

    def guarantee(
        self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None
    ) -> PrivacyGuarantee | None:
        """``None``: it has no randomness that could hide a vote."""
        check_request(labels, delta, overlap)
        return None

    def self_bounding_allowance(self, *, teachers: int | None = None, overlap: int | None = None) -> float:
        """(K + 1)/2 for two classes and odd K (less for small r); with more classes ``min(r, K)``, or somewhat less.

        For two classes it is the allowance of the noise function gamma = 1. In general each term of the definition's
        sum over the r teachers is at most Pr[c | votes], and three classes that tie attain it. It is less where K votes
        cannot make three classes tie: with three classes, unless K is a multiple of 3.

        >>> [NoiseFreeMajority(classes=c).self_bounding_allowance(teachers=11) for c in (2, 3, 4)]
        [6.0, 7.0, 11.0]
        """
        count = self._teacher_count(teachers)
        if self.classes == 2:
            return self_bounding_allowance(np.ones(count + 1), teachers=count, overlap=overlap)
        affected = count if overlap is None else min(check_integer("overlap", overlap, low=1), count)
        return float(affected) if self.classes is None else _allowance_of_many(count, self.classes, affected)

    def label_promise(
        self, *, teacher: PrivacyProfile, teachers: int, overlap: int, labels: int, delta: float
    ) -> PrivacyProfile | None:
        """The exact curve of the majority of two classes; see :meth:`Mechanism.label_promise`."""
        if self.classes != 2:
            return None
        gamma = np.ones(self._teacher_count(teachers) + 1)
        return label_promise(gamma, teacher=teacher, overlap=overlap, labels=labels, delta=delta)

    def _parameters(self) -> dict[str, Any]:
        return {}

    def _notes(self) -> list[str]:
        return ["reports the majority without noise: private only through the teachers"]

    def _draw(self, counts: IntArray) -> IntArray:
        return fair_argmax(counts, self._bits)

    def _law(self, counts: IntArray) -> FloatArray:
        return fair_argmax_law(counts)


def _allowance_of_many(teachers: int, classes: int, affected: int) -> float:
    """The smallest m for which the plurality of three or more classes is m-self-bounding; exact.

    Let the plurality have z votes. How much of a class's probability q can each voter alone take away, at most?

    * The class ties with two or more others: all of q, whatever the vote; possible if 3 z <= K <= C z.
    * It ties with one: its voters and those of the classes behind can take all of q, K - z voters altogether; that is
      most for the smallest z, and K <= 2 z + (C - 2)(z - 1).
    * It is one vote ahead of two classes or more: its voters can take all of q, the others half, because they can make
      one of these classes tie. If no three classes can tie, z votes have K < 3 z, and z - 1 have K > C (z - 1), so
      K - 1 = C (z - 1): all others are one behind.
    * It is one ahead of one class, or two ahead: (K + 1) / 2 and z / 2 altogether, at most. That is no more than for
      two that tie, for K >= 9 because K - z >= 2 K / 3 - 1, and for the few smaller K that come as far by enumeration.
    """
    if -(-teachers // classes) <= teachers // 3:
        return float(affected)
    tied = min(affected, teachers - 1 - -(-(teachers - 2) // classes))
    behind, uneven = divmod(teachers - 1, classes)
    if uneven:
        return float(tied)
    return max(tied, min(affected, behind + 1) + max(affected - behind - 1, 0) / 2)
