"""What the teachers say, released without noise: the majority (plurality), or the mean of their probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, check_integer
from ..noise.label_prices import label_promise
from ..noise.self_bounding import self_bounding_allowance
from ..privacy.guarantees import PrivacyGuarantee
from ..privacy.profiles import PrivacyProfile
from .base import MOST_VOTES, AnyVotes, check_request
from .sampling import fair_argmax, fair_argmax_law

__all__ = ["MeanProbabilities", "NoiseFree", "NoiseFreeMajority", "split_votes"]

_SHARES = 2**24


@dataclass(frozen=True, kw_only=True)
class NoiseFree(AnyVotes):
    """A mechanism without noise: all privacy comes from the teachers that are read, which may be a jury.

    A jury is drawn uniformly at random, without looking at data, by the ensemble. Labels reveal no more than the
    teachers that are read for all of them together (theory, section 13). One jury for all labels therefore has one
    price for any number of labels. A new jury for each label reads more teachers with every label.

    Args:
        jury: n, how many of the K teachers vote; ``None``: all.
        redrawn: draw a new jury for each label, which stays secret, instead of one for all labels.
        teachers, classes: K and C, ``None`` for any.

    Raises:
        InvalidArgument: a jury larger than K, or ``redrawn`` without a jury.
    """

    jury: int | None = None
    redrawn: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.redrawn, bool) or (self.redrawn and self.jury is None):
            raise InvalidArgument("redrawn", "False, or True with a jury", self.redrawn)
        if self.jury is not None:
            self._validate("jury", check_integer, low=1, high=self.teachers or MOST_VOTES)

    def draw_juries(self, *, teachers: int, items: int) -> IntArray:
        """Independent juries ``(items, n)``: the numbers of n different teachers of K, every set equally likely.

        Raises:
            InvalidArgument: K smaller than the jury, or there is no jury.

        >>> sorted(NoiseFreeMajority(jury=3).draw_juries(teachers=3, items=1)[0].tolist())
        [0, 1, 2]
        """
        items = check_integer("items", items, low=0, high=MOST_VOTES)
        if self.jury is None or self.jury > self._teacher_count(teachers):
            raise InvalidArgument("jury", f"at most the {teachers} teachers", self.jury)
        numbers, rows = np.tile(np.arange(teachers), (items, 1)), np.arange(items)
        for place in range(self.jury):  # the first n steps of a Fisher-Yates shuffle
            other = place + self._bits.below(np.full(items, teachers - place))
            numbers[rows, place], numbers[rows, other] = numbers[rows, other], numbers[rows, place]
        return numbers[:, : self.jury]

    def guarantee(
        self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None
    ) -> PrivacyGuarantee | None:
        """``None``: it has no randomness that could hide a vote."""
        check_request(labels, delta, overlap)
        return None

    def _parameters(self) -> dict[str, Any]:
        return {} if self.jury is None else {"jury": self.jury, "redrawn": self.redrawn}

    def _notes(self) -> list[str]:
        if self.jury is None:
            return []
        return [f"{'a new jury for each label' if self.redrawn else 'one jury for all labels'}, drawn at random, votes"]


@dataclass(frozen=True, kw_only=True)
class NoiseFreeMajority(NoiseFree):
    """The class with the most votes; ties are broken uniformly at random.

    Guarantee: none of its own; all privacy comes from the teachers. It is self-bounding: with (eps, Delta)-DP teachers,
    r of which have a record in their training data, each label costs (m eps, m Delta) with m =
    :meth:`self_bounding_allowance`, and all labels together never cost more than publishing the r teachers. Where that
    total already meets the budget, no other mechanism gives better labels.

    Args:
        classes: C, ``None`` for any; two classes have a smaller allowance than three or more.
        teachers: K, ``None`` for any.
        jury, redrawn: see :class:`NoiseFree`; ``counts`` are then those of the jury.

    >>> import numpy as np
    >>> NoiseFreeMajority().aggregate(np.array([[1, 4], [3, 2]]))
    array([1, 0])
    >>> NoiseFreeMajority(classes=2).self_bounding_allowance(teachers=11)
    6.0
    >>> NoiseFreeMajority(classes=2, jury=3).self_bounding_allowance(teachers=11)
    2.0
    """

    def self_bounding_allowance(self, *, teachers: int | None = None, overlap: int | None = None) -> float:
        """(K + 1)/2 for two classes and odd K (less for small r); with more classes ``min(r, K)``, or somewhat less.

        For two classes it is the allowance of the noise function gamma = 1. In general each term of the definition's
        sum over the r teachers is at most Pr[c | votes], and three classes that tie attain it. It is less where K votes
        cannot make three classes tie: with three classes, unless K is a multiple of 3.

        For a jury, n stands for K and min(r, n) for r. If q_J is the chance that jury J gives the label, each teacher
        can take at most q_J away, those outside J nothing, and the falls of the mean of q_J are at most the means of
        the falls.

        >>> [NoiseFreeMajority(classes=c).self_bounding_allowance(teachers=11) for c in (2, 3, 4)]
        [6.0, 7.0, 11.0]
        """
        count = self._teacher_count(teachers)
        if self.jury is not None:
            if self.jury > count:
                raise InvalidArgument("teachers", f"at least the jury of {self.jury}", count)
            count = self.jury
            overlap = None if overlap is None else min(check_integer("overlap", overlap, low=1), count)
        if self.classes == 2:
            return self_bounding_allowance(np.ones(count + 1), teachers=count, overlap=overlap)
        affected = count if overlap is None else min(check_integer("overlap", overlap, low=1), count)
        return float(affected) if self.classes is None else _allowance_of_many(count, self.classes, affected)

    def label_promise(
        self, *, teacher: PrivacyProfile, teachers: int, overlap: int, labels: int, delta: float
    ) -> PrivacyProfile | None:
        """The exact curve of the majority of two classes; see :meth:`Mechanism.label_promise`. None for a jury."""
        if self.classes != 2 or self.jury is not None:
            return None
        gamma = np.ones(self._teacher_count(teachers) + 1)
        return label_promise(gamma, teacher=teacher, overlap=overlap, labels=labels, delta=delta)

    def _notes(self) -> list[str]:
        return ["reports the majority without noise: private only through the teachers", *super()._notes()]

    def _draw(self, counts: IntArray) -> IntArray:
        return fair_argmax(counts, self._bits)

    def _law(self, counts: IntArray) -> FloatArray:
        return fair_argmax_law(counts)


@dataclass(frozen=True, kw_only=True)
class MeanProbabilities(NoiseFree):
    """The mean of the class probabilities of the teachers, or of a jury: a soft label, (C,) float32, for each item.

    Guarantee: none of its own; all privacy comes from the teachers. It is priced by what the teachers that are read
    reveal: by publishing them, by random allocation, and by the draw of a jury. Nothing else applies. The mean is exact
    in every teacher, so it is not self-bounding for any allowance, and there is no noise to certify.

    A teacher splits its vote into 2**24 equal shares, so that the mean is exact and does not depend on the order of the
    teachers. ``counts`` (B, C) int64 are sums of :func:`split_votes`. The mean is computed in float64 and rounded once,
    to float32: the same counts give the same bytes on every machine.

    Args:
        classes: C, ``None`` for any.
        teachers: K, ``None`` for any.
        jury, redrawn: see :class:`NoiseFree`; ``counts`` are then those of the jury.

    >>> import numpy as np
    >>> one, other = split_votes([[0.9, 0.1]]), split_votes([[0.4, 0.6]])
    >>> MeanProbabilities().aggregate(one + other)
    array([[0.65, 0.35]], dtype=float32)
    """

    shares: ClassVar[int] = _SHARES
    releases: ClassVar[str] = "soft labels"

    def _notes(self) -> list[str]:
        return [
            "releases mean class probabilities, rounded to float32, without noise: private only through the teachers",
            *super()._notes(),
        ]

    def _draw(self, counts: IntArray) -> Any:
        return self._law(counts).astype(np.float32)

    def _law(self, counts: IntArray) -> FloatArray:
        return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def split_votes(probabilities: Any) -> IntArray:
    """Shares ``(..., C)`` int64 for each class, which sum to 2**24, from probabilities ``(..., C)``.

    Probabilities are rounded down to whole shares; what is left goes to the most likely class, the first of equals.
    Rows with an entry that is not finite count as the uniform row, whatever the rest of them says.

    Raises:
        InvalidArgument: fewer than two classes. Nothing that depends on the numbers is refused: they are private.

    >>> split_votes([0.75, 0.25]).tolist(), split_votes([float("nan"), 1.0]).tolist()
    ([12582912, 4194304], [8388608, 8388608])
    """
    rows = np.array(probabilities, dtype=np.float64)
    if rows.ndim < 1 or rows.shape[-1] < 2:
        raise InvalidArgument("probabilities", "of shape (..., classes), two classes or more", rows.shape)
    rows[~np.isfinite(rows).all(axis=-1)] = 1.0
    rows = np.clip(rows, 0.0, 1.0)
    sums = rows.sum(axis=-1, keepdims=True)
    rows = np.where(sums > 0, rows / np.where(sums > 0, sums, 1.0), 1 / rows.shape[-1])
    whole = np.floor(rows * _SHARES).astype(np.int64)
    most = rows.argmax(axis=-1)[..., None]
    left = _SHARES - whole.sum(axis=-1, keepdims=True)
    np.put_along_axis(whole, most, np.take_along_axis(whole, most, axis=-1) + left, axis=-1)
    return whole


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
