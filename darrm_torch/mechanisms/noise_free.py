"""The plain majority (plurality), told without noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, check_integer
from ..noise.self_bounding import self_bounding_allowance
from ..privacy.guarantees import PrivacyGuarantee
from .base import MOST_VOTES, Mechanism, check_request
from .sampling import fair_argmax

__all__ = ["NoiseFreeMajority"]


@dataclass(frozen=True, kw_only=True)
class NoiseFreeMajority(Mechanism):
    """The class with the most votes; a fair coin among the classes that tie for it.

    Guarantee: none of its own; all privacy comes from the teachers. It is self-bounding: with (eps, Delta)-DP teachers
    of which one record touches r, each label costs (m eps, m Delta) with m = :meth:`self_bounding_allowance`, and all
    labels together never cost more than publishing the r teachers. When that total already meets the budget, no
    other mechanism gives better labels.

    Args:
        classes: C, ``None`` for any; two classes have a smaller allowance than three or more.
        teachers: K, ``None`` for any.

    >>> import numpy as np
    >>> NoiseFreeMajority().aggregate(np.array([[1, 4], [3, 2]]))
    array([1, 0])
    >>> NoiseFreeMajority(classes=2).self_bounding_allowance(teachers=11)
    6.0
    """

    classes: int | None = None
    teachers: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes is not None:
            object.__setattr__(self, "classes", check_integer("classes", self.classes, low=2, high=MOST_VOTES))
        if self.teachers is not None:
            object.__setattr__(self, "teachers", check_integer("teachers", self.teachers, low=1, high=MOST_VOTES))

    def guarantee(
        self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None
    ) -> PrivacyGuarantee | None:
        """``None``: it tosses no coins that could hide a vote."""
        check_request(labels, delta, overlap)
        return None

    def self_bounding_allowance(self, *, teachers: int | None = None, overlap: int | None = None) -> float:
        """(K + 1)/2 for two classes and odd K (less for small r); with more classes ``min(r, K)``, or somewhat less.

        Two classes: that of the noise function gamma = 1. In general: each term of the definition's sum over the r
        teachers is at most Pr[c | votes], and three classes that tie attain it. Less where K votes cannot make three
        tie: with three classes, unless K is a multiple of 3.

        >>> [NoiseFreeMajority(classes=c).self_bounding_allowance(teachers=11) for c in (2, 3, 4)]
        [6.0, 7.0, 11.0]
        """
        known = self.teachers if teachers is None else check_integer("teachers", teachers, low=1, high=MOST_VOTES)
        if known is None or (self.teachers is not None and known != self.teachers):
            raise InvalidArgument("teachers", f"{self.teachers or 'K, how many teachers vote'}", teachers)
        if self.classes == 2:
            return self_bounding_allowance(np.ones(known + 1), teachers=known, overlap=overlap)
        touched = known if overlap is None else min(check_integer("overlap", overlap, low=1), known)
        return float(touched) if self.classes is None else _allowance_of_many(known, self.classes, touched)

    def _parameters(self) -> dict[str, Any]:
        return {}

    def _notes(self) -> list[str]:
        return ["tells the majority as it is: private only through the teachers"]

    def _draw(self, counts: IntArray) -> IntArray:
        return fair_argmax(counts, self._bits)

    def _law(self, counts: IntArray) -> FloatArray:
        best = counts == counts.max(axis=1, keepdims=True)
        return np.asarray(best / best.sum(axis=1, keepdims=True), dtype=np.float64)


def _allowance_of_many(teachers: int, classes: int, touched: int) -> float:
    """The smallest m for which the plurality of three or more classes is m-self-bounding; exact.

    How much of a class's chance q can each voter alone take away, at most, when the plurality has z votes?

    * It ties with two classes or more: all of q, whoever the voter is for; that is possible if 3 z <= K <= C z.
    * It ties with one: its voters and those of the classes behind all of it, K - z in all; the fewer z, the more, and
      K <= 2 z + (C - 2)(z - 1).
    * It is one vote ahead of two classes or more: its voters all, the others half, for they can make one of these tie.
      If no three can tie, z votes have K < 3 z, and z - 1 have K > C (z - 1), so K - 1 = C (z - 1): all are one behind.
    * It is one ahead of one class, or two ahead: (K + 1) / 2 and z / 2 in all, at most. That is no more than two that
      tie, for K >= 9 as K - z >= 2 K / 3 - 1, and for the few smaller K that come as far by trying them.
    """
    if -(-teachers // classes) <= teachers // 3:
        return float(touched)
    tied = min(touched, teachers - 1 - -(-(teachers - 2) // classes))
    behind, uneven = divmod(teachers - 1, classes)
    if uneven:
        return float(tied)
    return max(tied, min(touched, behind + 1) + max(touched - behind - 1, 0) / 2)
