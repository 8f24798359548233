"""The oracle: the worst pair of neighbouring datasets for a noise function, found exactly.

A label that is 1 with probability q(l) when l teachers vote 1 is (E, d)-DP, for all teachers within their region, iff

    loss = max over feasible (p, p') of   E_p[q(L)] - e^E E_p'[q(L)]   <=  d

(label 0 is the mirror image: q(K - l) = 1 - q(l) and the region is symmetric). The loss is affine in each teacher's
pair, so the maximum is at corners: counts n_i of affected teachers at each corner of the region, and ``ones`` of the
unaffected ones voting 1. T(c; n) = E[q(c + sum_i Bin(n_i, p_i))] obeys

    T(c; n + e_i) = p_i T(c + 1; n) + (1 - p_i) T(c; n),

so all counts are walked once, vectorised over c. On the region's upper chain, which is all that matters for a monotone
q, a walk needs one number for each way to place the teachers, see :func:`_search_chain`.

Rounding: every number is a sum of products of non-negative numbers, each known to relative accuracy u = 2^-53, and each
step adds at most three roundings. There is one step for each affected teacher, and on the chain a second one for a
teacher between its ends. So E_p[q] is known to relative accuracy (6 r + a few) u however small it is, and the returned
losses include that allowance. In rigorous mode the walk runs in ball arithmetic instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..arrays import FloatArray, IntArray
from ..errors import DarrmError, InvalidArgument
from .regions import Corner, Region

__all__ = ["Losses", "worst_losses"]

Numbers: TypeAlias = npt.NDArray[Any]  # float64, or objects that are balls

_BLOCK = 1 << 20  # numbers held at once in one block of the walk
_LARGEST_WALK = 2e10  # about ten times the steps of a walk; larger walks take minutes each
_UNDERFLOW = 1e-100  # above all that underflow can lose, see regions


class Losses(NamedTuple):
    """Bad cases, worst first.

    Attributes:
        corners: the corners that ``counts`` refers to.
        losses: ``(m,)`` upper bounds of E_p[q] - e^E E_p'[q].
        counts: ``(m, len(corners))`` affected teachers at each corner.
        ones: ``(m,)`` unaffected teachers that vote 1; the remaining ones vote 0.
    """

    corners: tuple[Corner, ...]
    losses: FloatArray
    counts: IntArray
    ones: IntArray

    def votes(self, teachers: int) -> tuple[FloatArray, FloatArray]:
        """Each case as the teachers' chances of voting 1, here and there: two arrays ``(m, K)``."""
        here, there = np.zeros((2, len(self.losses), teachers))
        for row, (counts, ones) in enumerate(zip(self.counts, self.ones, strict=True)):
            affected = counts.sum()
            here[row, :affected] = np.repeat([float(c.here) for c in self.corners], counts)
            there[row, :affected] = np.repeat([float(c.there) for c in self.corners], counts)
            here[row, affected : affected + ones] = there[row, affected : affected + ones] = 1.0
        return here, there


def worst_losses(
    law: FloatArray,
    *,
    region: Region,
    overlap: int,
    growth: float,
    monotone: bool,
    most: int = 1,
    rigorous: bool = False,
) -> Losses:
    """The worst cases of a label, worst first.

    Args:
        law: ``(K + 1,)`` Pr[label 1] for each number of votes for 1, with ``law[l] + law[K - l] == 1``.
        region: where each affected teacher's pair lives.
        overlap: r, the largest number of teachers whose training data one record is in.
        growth: e^E, rounded down.
        monotone: ``law`` is nondecreasing; then only the region's upper chain matters (theory, section 4).
        most: the number of cases to return; they come from different parts of the search.
        rigorous: evaluate in ball arithmetic.

    Returns:
        Up to ``most`` cases. The first is the maximum over all; its loss is a proven upper bound.

    Raises:
        InvalidArgument: the search would take too long.
        DarrmError: ``rigorous`` without python-flint.
    """
    arithmetic = _Balls() if rigorous else _Floats(overlap)
    corners, cases = (region.chain, _search_chain) if monotone else (region.tilted, _search_corners)
    found: list[tuple[FloatArray, IntArray, IntArray]] = []
    with arithmetic.context():
        for losses, counts, ones in cases(arithmetic, law, corners, overlap, growth):
            worst = np.argsort(-losses, kind="stable")[:most]
            found.append((losses[worst], counts[worst], ones[worst]))
    losses, counts, ones = (np.concatenate(part) for part in zip(*found, strict=True))
    worst = np.argsort(-losses, kind="stable")[:most]
    return Losses(corners, losses[worst] + _UNDERFLOW, counts[worst], ones[worst])


class _Floats:
    """Double precision; the allowance for rounding is (6 r + 12) u, relative (see the module's docstring)."""

    def __init__(self, overlap: int) -> None:
        self._slack = (6 * overlap + 12) * 2.0**-53

    def context(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def array(self, law: FloatArray) -> Numbers:
        return law

    def pair(self, probability: Any) -> tuple[Any, Any]:
        return float(1 - probability), float(probability)

    def upper(self, numbers: Numbers) -> FloatArray:
        return np.asarray(numbers * (1 + self._slack))

    def lower(self, numbers: Numbers) -> FloatArray:
        return np.asarray(numbers * (1 - self._slack))


class _Balls:
    """Ball arithmetic with 128 bits (python-flint); its ends become doubles, with room for the steps that follow."""

    def __init__(self) -> None:
        try:
            import flint
        except ImportError:
            raise DarrmError("rigorous=True needs python-flint: pip install 'darrm-torch[exact]'") from None
        self._flint = flint
        self._upper = np.frompyfunc(lambda x: float(flint.arb(x).upper()), 1, 1)
        self._lower = np.frompyfunc(lambda x: float(flint.arb(x).lower()), 1, 1)

    def context(self) -> AbstractContextManager[Any]:
        return self._flint.ctx.workprec(128)  # type: ignore[no-any-return]

    def array(self, law: FloatArray) -> Numbers:
        # A double (1 + gamma) / 2 may have lost the last bit of gamma; 1 - law[K - l] has not.
        half = len(law) // 2
        exact = [self._flint.arb(float(value)) for value in law]
        exact[-half:] = [1 - value for value in exact[half - 1 :: -1]]
        return np.array(exact, dtype=object)

    def pair(self, probability: Any) -> tuple[Any, Any]:
        exact = self._flint.fmpq(probability.numerator, probability.denominator)
        return self._flint.arb(1 - exact), self._flint.arb(exact)

    def upper(self, numbers: Numbers) -> FloatArray:
        return np.asarray(self._upper(numbers), dtype=np.float64) * (1 + 2.0**-50)

    def lower(self, numbers: Numbers) -> FloatArray:
        return np.maximum(np.asarray(self._lower(numbers), dtype=np.float64), 0.0) * (1 - 2.0**-50)


_Cases: TypeAlias = "Iterator[tuple[FloatArray, IntArray, IntArray]]"


def _step(numbers: Numbers, pair: tuple[Any, Any]) -> Numbers:
    """One more teacher, who votes 1 with probability ``pair[1]``; the last axis (the count so far) gets one shorter."""
    stay, move = pair
    moved: Numbers = numbers[..., 1:] * move
    moved += numbers[..., :-1] * stay
    return moved


def _joined(numbers: Numbers, pair: tuple[Any, Any], most: int) -> Iterator[Numbers]:
    """After 0, 1, .., most further teachers."""
    yield numbers
    for _ in range(most):
        numbers = _step(numbers, pair)
        yield numbers


def _powers(numbers: Numbers, pair: tuple[Any, Any], most: int) -> Numbers:
    """:func:`_joined` as a new axis before the last; what does not exist is zero."""
    powers = np.zeros((*numbers.shape[:-1], most + 1, numbers.shape[-1]), dtype=numbers.dtype)
    for n, joined in enumerate(_joined(numbers, pair, most)):
        powers[..., n, : joined.shape[-1]] = joined
    return powers


class _Block(NamedTuple):
    """Partial counts that are walked together: ``here`` and ``there`` are (b, rows, c)."""

    here: Numbers
    there: Numbers
    left: IntArray  # (b,) affected teachers still to be placed
    counts: IntArray  # (b, corners so far)


def _walk_all(steps: list[tuple[Any, Any]], begin: _Block, teachers: int) -> Iterator[_Block]:
    """:func:`_walk`, unless it would take too long."""
    overlap = int(begin.left[0])
    if math.comb(overlap + len(steps), len(steps)) * begin.here.size > _LARGEST_WALK:
        raise InvalidArgument(
            "teacher",
            f"a promise with fewer corners, for {teachers} teachers and overlap {overlap}",
            f"{len(steps)} corners to combine",
            'Give fewer guarantees (any subset is sound), or use shape="monotone".',
        )
    yield from _walk(steps, begin)


def _walk(steps: list[tuple[Any, Any]], block: _Block) -> Iterator[_Block]:
    """All ways to place up to ``left`` teachers at the corners in ``steps``, in blocks of bounded size."""
    if not steps:
        yield block
        return
    (here_pair, there_pair), rest = steps[0], steps[1:]
    here, there, left, counts = block
    pending: list[_Block] = []
    for n in range(int(left.max()) + 1):
        if n:
            keep = left > 0
            if not keep.all():
                here, there, left, counts = here[keep], there[keep], left[keep], counts[keep]
            left = left - 1
            rows = int(left.max()) + 1
            here, there = _step(here[:, :rows], here_pair), _step(there[:, :rows], there_pair)
        reached = _Block(here, there, left, np.column_stack([counts, np.full(len(left), n)]))
        if not rest:
            yield reached
            continue
        pending.append(reached)
        if sum(part.here.size for part in pending) > _BLOCK:
            for part in _regroup(pending):
                yield from _walk(rest, part)
            pending = []
    for part in _regroup(pending):
        yield from _walk(rest, part)


def _regroup(blocks: list[_Block]) -> Iterator[_Block]:
    """The same partial counts, those with about as many teachers left together: the fewer, the smaller their arrays."""
    if not blocks:
        return
    top = max(int(block.left.max()) for block in blocks)
    groups = 4 if sum(block.here.size for block in blocks) > _BLOCK // 16 else 1  # each group costs calls
    for group in range(groups):
        chosen = [np.flatnonzero(block.left * groups // (top + 1) == group) for block in blocks]
        parts = [
            _Block(block.here[index], block.there[index], block.left[index], block.counts[index])
            for block, index in zip(blocks, chosen, strict=True)
            if len(index)
        ]
        if parts:
            left = np.concatenate([part.left for part in parts])
            rows, width = blocks[0].here.shape[1:]  # the first has placed the fewest teachers
            rows, width = min(rows, int(left.max()) + 1), width - top + int(left.max())
            yield _Block(
                _stack([part.here for part in parts], rows, width),
                _stack([part.there for part in parts], rows, width),
                left,
                np.concatenate([part.counts for part in parts]),
            )


def _stack(arrays: list[Numbers], rows: int, width: int) -> Numbers:
    """Concatenated along the first axis, each cut or filled up with zeros to ``(rows, width)``."""
    stacked: Numbers = np.zeros((sum(len(array) for array in arrays), rows, width), dtype=arrays[0].dtype)
    start = 0
    for array in arrays:
        kept = array[:, :rows, :width]
        stacked[start : start + len(kept), : kept.shape[1], : kept.shape[2]] = kept
        start += len(kept)
    return stacked


def _search_chain(
    arithmetic: _Floats | _Balls, law: FloatArray, corners: tuple[Corner, ...], overlap: int, growth: float
) -> _Cases:
    """All r affected teachers on the chain: one number here and one there for each way to place them.

    The first corner is (Delta, 0) and the last (1, 1 - Delta). On either dataset the chance at a corner between them is
    a mixture of theirs, so a teacher there votes as if it were at one of the two at random. Blocks hold, for each count
    of ones, all numbers at the first corner (here) or at the last (there), the others at the opposite one; a step
    places one teacher at a corner between.
    """
    start, spare = arithmetic.array(law), len(law) - 1 - overlap
    first, last = corners[0], corners[-1]
    ones = np.arange(spare + 1)
    # Here the teachers at the last corner all vote 1; there those at the first all vote 0.
    firsts = enumerate(_joined(start, arithmetic.pair(first.here), overlap))
    here = np.stack([numbers[ones + overlap - n] for n, numbers in firsts], axis=1)
    there = np.stack([numbers[ones] for numbers in _joined(start, arithmetic.pair(last.there), overlap)], axis=1)
    steps = [
        (arithmetic.pair((1 - corner.here) / (1 - first.here)), arithmetic.pair(corner.there / last.there))
        for corner in corners[1:-1]
    ]
    begin = _Block(here[:, None], there[:, None], np.full(spare + 1, overlap), ones[:, None])
    for block in _walk_all(steps, begin, len(law) - 1):
        lasts = block.left[:, None] - np.arange(int(block.left.max()) + 1)
        loss = arithmetic.upper(block.here[:, 0])
        loss -= growth * arithmetic.lower(np.take_along_axis(block.there[:, 0], np.maximum(lasts, 0), axis=1))
        loss[lasts < 0] = -np.inf
        n_first = loss.argmax(axis=1)
        one, between = block.counts[:, 0], block.counts[:, 1:]
        counts = np.column_stack([n_first, between, block.left - n_first]) if len(corners) > 1 else block.left[:, None]
        yield loss[np.arange(len(loss)), n_first], counts.astype(np.int64), one.astype(np.int64)


def _search_corners(
    arithmetic: _Floats | _Balls, law: FloatArray, corners: tuple[Corner, ...], overlap: int, growth: float
) -> _Cases:
    """Up to r affected teachers at any tilted corners; at (0, 0) or (1, 1) they are like unaffected ones.

    The first corner may be (Delta, 0); the second then is (0, Delta). The number at the first affects only one
    dataset, the number at the second only the other, and both share the remaining teachers: running extremes over each
    save a factor r.
    """
    start, spare = arithmetic.array(law), len(law) - 1 - overlap
    split = bool(corners) and corners[0].there == 0
    here = _powers(start, arithmetic.pair(corners[0].here if split else Fraction(0)), overlap if split else 0)
    steps = [(arithmetic.pair(c.here), arithmetic.pair(c.there)) for c in (corners[2:] if split else corners)]
    begin = _Block(here[None], here[None], np.array([overlap]), np.empty((1, 0), dtype=np.int64))
    for block in _walk_all(steps, begin, len(law) - 1):
        above, below = arithmetic.upper(block.here), arithmetic.lower(block.there)
        ones = np.arange(above.shape[2])
        room = block.left[:, None] + spare - ones  # for the first two corners, and for unaffected zeros
        both = np.minimum(block.left[:, None], room) if split else np.minimum(room, 0)
        b, first = np.arange(len(room))[:, None, None], np.arange(above.shape[1])[:, None]
        second = both[:, None, :] - first
        loss = np.maximum.accumulate(above, axis=1)
        loss = loss - growth * np.minimum.accumulate(below, axis=1)[b, np.maximum(second, 0), ones]
        loss[second < 0] = -np.inf
        flat = loss.reshape(len(loss), -1)
        best = flat.argmax(axis=1)
        most, one = np.unravel_index(best, loss.shape[1:])
        b, first = b[:, 0, 0], first[:, 0]
        counts = block.counts
        if split:
            n_first = np.where(first <= most[:, None], above[b, :, one], -np.inf).argmax(axis=1)
            n_second = np.where(first <= second[b, most, one][:, None], below[b, :, one], np.inf).argmin(axis=1)
            counts = np.column_stack([n_first, n_second, counts])
        yield flat[b, best], counts, np.asarray(one, dtype=np.int64)
