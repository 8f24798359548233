"""Exact draws from fresh bits: coins, ties and symmetric noise on a grid, compared as integers and never as floats.

Floating-point noise does not have the law that the privacy proof assumes (Mironov 2012). Here every draw has its exact
law. A uniform real number U in [0, 1) is represented by its first 63 bits, and the probability that it is compared with
by two integers that enclose it. Where the bits decide, the answer is exact. Where they do not (about once in 2**30
draws) more bits are drawn and the probability is computed to as many digits, until they do.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from fractions import Fraction
from typing import Any, Protocol

import mpmath
import numpy as np
from scipy import special

from ..arrays import FloatArray, IntArray, WordArray
from ..errors import check_integer

__all__ = [
    "GaussianTail",
    "GeometricTail",
    "Magnitudes",
    "RandomBits",
    "Tail",
    "arithmetic",
    "fair_argmax",
    "fair_argmax_law",
    "tie_quadrature",
]


_WORD = 63  # bits of the first comparison: a double below 1 times 2**63 fits an unsigned 64-bit integer
_FLOAT_ERROR = 2.0**-40  # far above the relative error of the double-precision tails; the tests compare with mpmath


class RandomBits:
    """Uniform 64-bit words from the operating system's generator.

    Args:
        insecure_seed: for tests only: words from a seeded generator, which an observer can predict.
    """

    def __init__(self, insecure_seed: int | None = None) -> None:
        self.secure = insecure_seed is None
        if insecure_seed is not None:
            seed = check_integer("insecure_seed", insecure_seed, low=0)
            self._generator = np.random.Generator(np.random.PCG64(seed))

    def words(self, *shape: int) -> WordArray:
        """One block of independent uniform words, ``shape`` uint64."""
        if self.secure:
            return np.frombuffer(os.urandom(8 * math.prod(shape)), dtype=np.uint64).reshape(shape)
        return self._generator.integers(0, 2**64, size=shape, dtype=np.uint64)

    def below(self, limits: IntArray) -> IntArray:
        """Independent uniform integers in ``[0, limits)``, ``limits`` (N,) >= 1; exact, by rejection."""
        draws = np.zeros(limits.shape, dtype=np.int64)
        open_rows = np.flatnonzero(limits > 1)
        while open_rows.size:
            limit = limits[open_rows].astype(np.uint64)
            word = self.words(open_rows.size)
            remainder = word % limit
            # The last, incomplete run of `limit` words would favour the small integers.
            accepted = word - remainder <= np.uint64(2**64 - 1) - (limit - np.uint64(1))
            draws[open_rows[accepted]] = remainder[accepted].astype(np.int64)
            open_rows = open_rows[~accepted]
        return draws


def fair_argmax(scores: IntArray, bits: RandomBits) -> IntArray:
    """The column of each row's maximum; ties are broken uniformly. ``scores`` (B, C) -> (B,) int64."""
    best = scores == scores.max(axis=1, keepdims=True)
    ties = best.sum(axis=1)
    labels: IntArray = best.argmax(axis=1).astype(np.int64)
    tied = np.flatnonzero(ties > 1)
    if tied.size:
        chosen = bits.below(ties[tied])
        labels[tied] = (np.cumsum(best[tied], axis=1) == chosen[:, None] + 1).argmax(axis=1)
    return labels


def fair_argmax_law(scores: IntArray) -> FloatArray:
    """The law of :func:`fair_argmax`, (B, C) -> (B, C): uniform over the maxima of each row."""
    best = scores == scores.max(axis=1, keepdims=True)
    return np.asarray(best / best.sum(axis=1, keepdims=True), dtype=np.float64)


@functools.lru_cache(maxsize=16)
def tie_quadrature(classes: int) -> tuple[FloatArray, FloatArray]:
    """Nodes in (0, 1) and weights that integrate the chance of a fair choice among up to ``classes`` classes.

    It is a polynomial in t with non-negative coefficients, so its relative error is at most the largest of t**m, m <
    ``classes``. Half as many Gauss-Legendre nodes are exact; of many classes so few leave a relative error below 1e-14,
    as t**m lies within about 1 / m of 1, where nodes are dense.
    """
    nodes, weights = np.polynomial.legendre.leggauss(min((classes + 1) // 2, 8 + math.ceil(3 * math.sqrt(classes))))
    return (nodes + 1) / 2, weights / 2


class _OwnArithmetic(threading.local):
    def __init__(self) -> None:
        self.mp = mpmath.MPContext()


_OWN = _OwnArithmetic()


def arithmetic(bits: int) -> Any:
    """mpmath with ``bits`` bits of precision, for this thread until its next call.

    It is not the context that mpmath shares: that has one precision for all threads, so that one thread would finish a
    computation with the precision of another.
    """
    _OWN.mp.prec = bits
    return _OWN.mp


class Tail(Protocol):
    """The survival function ``S(g) = Pr[G >= g]`` of a non-negative integer G, ``S(0) = 1``."""

    def floats(self, g: FloatArray) -> FloatArray:
        """``S(g)`` for ``g >= 1`` with a relative error below 2**-40."""

    def enclosure(self, g: int, bits: int) -> tuple[int, int]:
        """Integers ``(low, high)`` with ``low <= S(g) * 2**bits <= high``."""


class GaussianTail:
    """G = |round(Z / step)| for Z normal with mean 0 and standard deviation ``sigma``."""

    def __init__(self, sigma: float, step: float) -> None:
        self.sigma, self.step = sigma, step

    def floats(self, g: FloatArray) -> FloatArray:
        """See :class:`Tail`."""
        return np.asarray(special.erfc((g - 0.5) * self.step / (self.sigma * math.sqrt(2))), dtype=np.float64)

    def enclosure(self, g: int, bits: int) -> tuple[int, int]:
        """See :class:`Tail`."""
        mp = arithmetic(2 * bits + 64)
        edge = mp.mpf(2 * g - 1) / 2 * self.step / (self.sigma * mp.sqrt(2))
        scaled = int(mp.floor(mp.ldexp(mp.erfc(edge), bits)))
        return scaled - 1, scaled + 2


class GeometricTail:
    """``S(g) = first * ratio**g`` for g >= 1.

    ``first = 1``: the number of successes before the first failure. ``first = 2 / (1 + ratio)``: the magnitude of the
    two-sided geometric ("discrete Laplace") law, ``Pr[Z = k]`` proportional to ``ratio**|k|``.
    """

    def __init__(self, ratio: Fraction, first: Fraction) -> None:
        self.ratio, self.first = ratio, first

    def floats(self, g: FloatArray) -> FloatArray:
        """See :class:`Tail`."""
        return float(self.first) * np.exp(g * math.log(self.ratio))

    def enclosure(self, g: int, bits: int) -> tuple[int, int]:
        """See :class:`Tail`."""
        # Squares and products in fixed point, rounded outward: an exact power has 53 g bits and would take minutes.
        places = bits + 64
        unit = 1 << places
        low, high = unit, unit
        below, above = math.floor(self.ratio * unit), math.ceil(self.ratio * unit)
        while g:
            if g & 1:
                low, high = low * below >> places, -(-high * above >> places)
            below, above, g = below * below >> places, -(-above * above >> places), g >> 1
        return math.floor(self.first * low / 2**64), math.ceil(self.first * high / 2**64)


class Magnitudes:
    """Exact draws of the non-negative integer G with a given tail, with a random sign on request.

    Attributes:
        survival: (R + 2,) ``S(0), ..., S(R), 0`` as floats; values beyond R have probability below 2**-64.
    """

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        size = 64
        while tail.floats(np.array([float(size)]))[0] >= 2.0**-64:
            size *= 2
        inner = tail.floats(np.arange(1.0, size + 1))
        inner = inner[: int(np.count_nonzero(inner >= 2.0**-64))]
        self.survival: FloatArray = np.concatenate([[1.0], inner, [0.0]])
        # Enclosures of S(R), ..., S(1), in ascending order for searchsorted.
        ascending = inner[::-1] * 2.0**_WORD
        self._low = np.floor(ascending * (1 - _FLOAT_ERROR)).astype(np.uint64)
        self._high = np.ceil(ascending * (1 + _FLOAT_ERROR)).astype(np.uint64)

    @property
    def reach(self) -> int:
        """R, the largest tabulated magnitude."""
        return self.survival.size - 2

    def symmetric_law(self) -> FloatArray:
        """Probabilities (2 R + 1,) of the values -R..R that :meth:`signed` draws."""
        mass = -np.diff(self.survival)
        return np.concatenate([mass[:0:-1] / 2, mass[:1], mass[1:] / 2])

    def signed(self, bits: RandomBits, *shape: int) -> IntArray:
        """Independent draws of G with a fair sign, ``shape`` int64."""
        words = bits.words(*shape)
        magnitude = self._magnitude(words, bits)
        return np.where(words & np.uint64(1), -magnitude, magnitude)

    def draw(self, bits: RandomBits, *shape: int) -> IntArray:
        """Independent draws of G, ``shape`` int64."""
        return self._magnitude(bits.words(*shape), bits)

    def _magnitude(self, words: WordArray, bits: RandomBits) -> IntArray:
        uniform = words >> np.uint64(1)
        # U < S(g) certainly if its word is below the lower end, and possibly if it is below the upper end.
        surely = self._low.size - np.searchsorted(self._low, uniform, side="right")
        perhaps = self._high.size - np.searchsorted(self._high, uniform, side="right")
        magnitude = surely.astype(np.int64)
        # Word 0 stands for all U below 2**-63, which include the magnitudes beyond the table.
        for index in np.flatnonzero((surely != perhaps) | (uniform == 0)):
            magnitude.flat[index] = _refine(self._tail, int(surely.flat[index]), int(uniform.flat[index]), bits)
        return magnitude


def _refine(tail: Tail, magnitude: int, uniform: int, bits: RandomBits) -> int:
    """G, known to be ``>= magnitude``, for a ``U`` in ``[uniform, uniform + 1) * 2**-63``, decided by further bits."""
    known = _WORD
    while True:
        low, high = tail.enclosure(magnitude + 1, known)
        if uniform + 1 <= low:
            magnitude += 1
        elif uniform >= high:
            return magnitude
        else:
            uniform, known = uniform << 64 | int(bits.words(1)[0]), known + 64
