"""Data-dependent Renyi privacy of GNMax and ConfidentGNMax, its smooth sensitivity, and the cost of releasing it.

Where nearly all teachers agree, a label costs much less than in the worst case (Papernot et al. 2018, Theorem 6).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage, special

from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument
from .confident import ConfidentGNMax
from .gnmax import GNMax, grid_step
from .sampling import RandomBits, arithmetic

__all__ = [
    "ORDERS",
    "VoteCosts",
    "checked_renyi",
    "gnmax_renyi",
    "log_chance_of_other",
    "release_parameters",
    "smooth_release_renyi",
    "standard_normal",
    "worst_renyi",
]

_ROWS = 8192  # labels, or points of a grid, whose tables are in memory at once
_MOST_PLACES = 2**22  # of the grid of a ConfidentGNMax: seconds
ORDERS: FloatArray = np.concatenate([np.arange(1.25, 10, 0.25), np.arange(10, 100, 1.0), np.geomspace(100, 2000, 60)])


def log_chance_of_other(counts: IntArray, *, sigma: float, step: float = 0.0) -> FloatArray:
    """log of an upper bound of Pr[label != plurality] under Gaussian noise, for each row of ``counts`` (B, C).

    The union bound over the other classes, or 1 - 1/C (Papernot et al. 2018, Proposition 7). Rounding noise to
    multiples of ``step`` moves each of two noisy counts by at most half of it, which acts as if gaps were ``step``
    smaller.
    """
    return np.minimum(_log_union(counts, sigma, step), math.log1p(-1 / counts.shape[1]))


def _log_union(counts: IntArray, sigma: float, step: float) -> FloatArray:
    gaps = np.sort(counts.max(axis=1, keepdims=True) - counts, axis=1)[:, 1:] - step
    return np.asarray(special.logsumexp(special.log_ndtr(-gaps / (sigma * math.sqrt(2))), axis=1))


def gnmax_renyi(log_q: npt.ArrayLike, orders: npt.ArrayLike, *, sigma: float, overlap: int = 1) -> FloatArray:
    """Renyi privacy of one GNMax label whose plurality fails with probability at most ``exp(log_q)``.

    The smaller of the worst case, a r**2 / sigma**2 at order a, and Theorem 6 of Papernot et al. 2018 with the two
    higher orders of their Proposition 10.

    Args:
        log_q: of shape (B,).
        orders: of shape (N,), above 1.
        sigma: standard deviation of the noise.
        overlap: r.

    Returns:
        (B, N) float64.
    """
    width = sigma / overlap  # Theorem 6 depends on the noise only through the Renyi curve a / width**2
    log_q = np.asarray(log_q, dtype=np.float64)[:, None]
    orders = np.asarray(orders, dtype=np.float64)
    second = width * np.sqrt(-log_q)
    return np.minimum(orders / width**2, _theorem_6(log_q, orders, second, width))


def _theorem_6(log_q: FloatArray, orders: FloatArray, second: FloatArray, width: float) -> FloatArray:
    """Theorem 6 at the higher orders mu_1 = ``second`` + 1 and mu_2 = ``second``; infinite where it does not apply.

    For fixed higher orders it is nondecreasing in q where it applies (their Lemma 9), which is for all q up to some q.
    """
    with np.errstate(all="ignore"):  # values outside the theorem's range are replaced below
        first = second + 1
        rdp_1, rdp_2 = first / width**2, second / width**2
        limit = (second - 1) * rdp_2 - second * (np.log1p(1 / (first - 1)) + np.log1p(1 / (second - 1)))
        applies = (second > 1) & (first >= orders) & (log_q <= limit) & (-log_q > rdp_2)
        log_p = _log_complement(log_q)
        log_a = log_p - _log_complement((log_q + rdp_2) * (1 - 1 / second))
        log_b = rdp_1 - log_q / (first - 1)
        total = np.logaddexp(log_p + (orders - 1) * log_a, log_q + (orders - 1) * log_b)
        return np.where(applies, np.maximum(total / (orders - 1), 0.0), np.inf)


def _log_complement(log_x: FloatArray) -> FloatArray:
    """log(1 - x), accurate for small x and for x near 1."""
    return np.where(log_x < -1, np.log1p(-np.exp(log_x)), np.log(-np.expm1(log_x)))


def checked_renyi(
    mechanism: ConfidentGNMax, highest: npt.ArrayLike, label: npt.ArrayLike, order: npt.ArrayLike, *, teachers: int
) -> FloatArray:
    """Renyi privacy of one item of a ConfidentGNMax: the check, and the label where the check passes.

    With P the chances on these votes, P' those on neighbouring votes and D a bound of the label's divergence, the
    divergence of both steps at order a is log(P[silent]**a P'[silent]**(1 - a) + P[answered]**a P'[answered]**(1 - a)
    exp((a - 1) D)) / (a - 1). A normal distribution function is log-concave, so the sum is convex in the highest count
    of the neighbour, and largest where that count moves by all of r.

    Args:
        mechanism: its check and overlap are used.
        highest: the highest counts.
        label: bounds of the divergence of the label alone.
        order: above 1. These three broadcast.
        teachers: K, the most that the neighbour's highest count can be.
    """
    order, highest = np.asarray(order, dtype=np.float64), np.asarray(highest, dtype=np.float64)
    unit = 1 / grid_step(mechanism.sigma_check)
    level = (math.ceil(mechanism.threshold * unit) - 0.5) / unit  # noise is rounded to the grid before it is compared
    total: FloatArray = np.full((), -np.inf)
    for moved in (np.maximum(highest - mechanism.overlap, 0), np.minimum(highest + mechanism.overlap, teachers)):
        silent, answered = (
            (own + other) + 2.0**-46 * (np.abs(own) + np.abs(other))
            for own, other in (
                (
                    order * special.log_ndtr(sign * (highest - level) / mechanism.sigma_check),
                    (1 - order) * special.log_ndtr(sign * (moved - level) / mechanism.sigma_check),
                )
                for sign in (-1, 1)
            )
        )
        total = np.maximum(total, np.logaddexp(silent, answered + (order - 1) * np.asarray(label)))
    return np.asarray(np.minimum(np.maximum(total, 0.0) / (order - 1), worst_renyi(mechanism, order)))


def worst_renyi(mechanism: GNMax | ConfidentGNMax, order: Any) -> Any:
    """Renyi privacy of one label on the worst votes."""
    return order * mechanism.overlap**2 * mechanism._squared_mu() / 2


def standard_normal(bits: RandomBits) -> Any:
    """A standard normal number with 60 digits, from 512 bits (Box & Muller 1958): an mpmath number."""
    mp = arithmetic(320)
    one, two = (mp.ldexp(sum(int(w) << 64 * i for i, w in enumerate(half)) + 0.5, -256) for half in bits.words(2, 4))
    return mp.sqrt(-2 * mp.log(one)) * mp.cospi(2 * two)


def smooth_release_renyi(order: float, *, smoothness: float, noise: float, offset: float = 0.0) -> float:
    """Renyi privacy, at ``order``, of f + S * noise * (Z + offset), Z normal, S beta-smooth above f's sensitivity.

    On neighbours S differs by a factor t in [e**-beta, e**beta], f by at most the smaller S, and the means by that and
    by the offset's part, S * noise * offset * |1 - t|. So with a = ``order`` the exact divergence of two normal laws is
    largest at t = e**-beta or, split in two terms, at t = 1 and t = e**beta. The bound a e**(2 beta)/noise**2 +
    (a beta - log(1 - 2 a beta)/2)/(a - 1) of Papernot et al. 2018 (Theorem 23) is smaller than that and does not hold:
    at a = 10, beta = 0.049, noise = 5 it gives 0.713 where the divergence is 2.823.

    Args:
        order: a > 1.
        smoothness: beta > 0, with a (1 - e**(-2 beta)) < 1.
        noise: s > 0.
        offset: z >= 0, in standard deviations.

    >>> round(smooth_release_renyi(10, smoothness=0.049, noise=5), 3)
    2.823
    """
    low, high = math.exp(-smoothness), math.exp(smoothness)
    if _mixed(order, low) <= 0:
        raise InvalidArgument("smoothness", f"below log(a / (a - 1)) / 2 at a = {order}", smoothness)
    less = order * (low / noise + offset * (1 - low)) ** 2 / (2 * _mixed(order, low)) + _scale(order, low)
    more = order * (1 / noise + offset * (high - 1)) ** 2 / 2 + _scale(order, high)
    return max(less, more)


def _mixed(order: float, t: float) -> float:
    return order * t * t + 1 - order


def _scale(order: float, t: float) -> float:
    """Renyi divergence of two centred normal laws, the second t times as wide."""
    return math.log(t) + math.log(t * t / _mixed(order, t)) / (2 * (order - 1))


def release_parameters(order: float, cost: float, offset: float) -> tuple[float, float]:
    """Smoothness and noise whose release costs ``cost``: about half of the shift for f, half for the offset."""
    smoothness = math.log1p(1 / (order - 1)) / 4  # half of the largest with finite cost
    while smooth_release_renyi(order, smoothness=smoothness, noise=math.inf, offset=offset) > cost / 4:
        smoothness /= 1.25
    low, high = math.exp(-smoothness), math.exp(smoothness)
    less = math.sqrt(2 * (cost - _scale(order, low)) * _mixed(order, low) / order) - offset * (1 - low)
    more = math.sqrt(2 * (cost - _scale(order, high)) / order) - offset * (high - 1)
    return smoothness, 1 / min(less / low, more)


class VoteCosts:
    """The cost of each label as a function of a number z, and of the highest count where there is a check of it.

    Write q = (C - 1)/2 erfc(z) for the union bound q = 1/2 sum_j erfc(x_j), x_j = (gap_j - step) / (2 sigma). One
    record moves the sorted counts by at most r each, all x_j by at most r / sigma, and hence z by at most one pace, r /
    sigma: the map erfc(x) -> erfc(x - s) is concave for s >= 0 and convex for s <= 0, so Jensen's inequality bounds the
    mean over j by the value at the mean (Papernot et al. 2018, Propositions 11 and 12). The cost at an order is the
    smallest bound among Theorem 6, over a public set of higher orders, and the worst case, put through
    :func:`checked_renyi` where there is a check. So it is nonincreasing in z for each highest count, and its changes
    can be bounded cell by cell on a public grid of z.
    """

    def __init__(self, mechanism: GNMax | ConfidentGNMax, counts: IntArray, order: float) -> None:
        sigma, overlap, others = mechanism.sigma, mechanism.overlap, counts.shape[1] - 1
        self._mechanism, self._order, self._log_others = mechanism, order, math.log(others)
        self._width, self._teachers = sigma / overlap, int(counts[0].sum())
        pace, farthest = overlap / sigma, self._teachers / (2 * sigma)
        checks = isinstance(mechanism, ConfidentGNMax)
        self._highest: IntArray = np.zeros(len(counts), dtype=np.int64)
        columns = np.zeros(1, dtype=np.int64)
        if isinstance(mechanism, ConfidentGNMax):
            self._highest, columns = mechanism._checked_votes(counts), np.arange(self._teachers + 1)
        # Cells per pace: fewer where the grid would be large.
        paces = farthest / pace + 6
        if columns.size * paces > _MOST_PLACES:
            raise InvalidArgument("counts", "of fewer teachers for a ConfidentGNMax", self._teachers)
        self._cells = min(32, math.ceil(_MOST_PLACES / (columns.size * paces))) if checks else 32
        self._cell = pace / self._cells
        # Public higher orders, up to the best one at the farthest z.
        top = self._width * math.sqrt(max(0.0, -self._log_q(np.array([farthest]))[0]))
        low = max(order - 1, 1.0 + 1e-9)
        self._seconds = np.geomspace(low, max(top, low), 256)
        step = grid_step(sigma)
        log_mean = _log_union(counts, sigma, step) - self._log_others  # log of erfc(z) / 2
        self._z = -special.ndtri_exp(log_mean) / math.sqrt(2)
        self._start = -(step / (2 * sigma) + 2 * pace)
        cells = math.ceil((farthest + 3 * pace - self._start) / self._cell)
        grid: FloatArray = self._start + self._cell * np.arange(cells + self._cells + 2, dtype=np.float64)
        values = self._at(grid[:, None], columns)
        # On the cell [v_k, v_(k+1)] the fall of the cost over one pace is at most this, wherever the count moves.
        self._reach = min(overlap, self._teachers) if checks else 0
        after = values[self._cells + 1 : self._cells + 1 + cells]
        self._falls = values[:cells] - ndimage.minimum_filter1d(after, 2 * self._reach + 1, axis=1, mode="nearest")

    def _log_q(self, z: FloatArray) -> FloatArray:
        return np.asarray(special.log_ndtr(-z * math.sqrt(2)) + self._log_others)

    def _at(self, z: FloatArray, highest: IntArray) -> FloatArray:
        """The cost of a label at each z and highest count, which broadcast; the worst case at z <= 0."""
        worst, bounds = self._order / self._width**2, []
        for log_q in np.array_split(self._log_q(z.ravel()), math.ceil(z.size / _ROWS)):  # 256 orders for each
            bounds.append(_theorem_6(log_q[:, None], np.asarray(self._order), self._seconds, self._width).min(axis=1))
        label = np.where(z > 0, np.minimum(worst, np.concatenate(bounds).reshape(z.shape)), worst)
        if not isinstance(self._mechanism, ConfidentGNMax):
            return label
        return checked_renyi(self._mechanism, highest, label, self._order, teachers=self._teachers)

    def loss(self) -> float:
        """The total over the labels."""
        return float(self._at(self._z, self._highest).sum())

    def smooth_sensitivity(self, smoothness: float) -> float:
        """max over distances d of exp(-smoothness d) times a bound of the total's sensitivity at distance d."""
        at = np.floor((self._z - self._start) / self._cell).astype(np.int64)
        places, items = np.unique(np.stack([at, self._highest]), axis=1, return_counts=True)
        best, discount = 0.0, 1.0
        whole = float(self._falls.max()) * len(self._z)
        # At distance d from z, the next neighbour is one pace further: falls from z - (d + 1) pace to z + d pace count,
        # and highest counts up to (d + 1) r away.
        # A pace counts as one cell more: if z lies on the edge of a cell, rounding may move a neighbour into the next.
        pace = self._cells + 1
        near = _widest(self._falls, pace, 1, self._reach)
        while discount * whole > best:
            best = max(best, discount * float(items @ near[tuple(places)]))
            near = _widest(near, pace, pace, self._reach)
            discount *= math.exp(-smoothness)
        # A public constant keeps it smooth, and covers the rounding errors of the loss.
        rounding = worst_renyi(self._mechanism, self._order)
        return best + 2.0**-32 * len(self._z) * float(rounding)


def _widest(values: FloatArray, before: int, after: int, aside: int) -> FloatArray:
    """The largest in the window of ``before`` to ``after`` places along axis 0, ``aside`` to each side along axis 1."""
    size = before + after + 1
    along = ndimage.maximum_filter1d(values, size, axis=0, origin=before - size // 2, mode="constant", cval=0.0)
    return np.asarray(ndimage.maximum_filter1d(along, 2 * aside + 1, axis=1, mode="constant", cval=0.0))
