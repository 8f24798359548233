"""Data-dependent Renyi privacy of GNMax: the cost of its labels on the votes that they were drawn from.

Where nearly all teachers agree, a label costs much less than in the worst case (Papernot et al. 2018, Theorem 6). But a
cost that depends on the votes is as secret as the votes. It is marked ``sensitive`` until it is released with noise in
proportion to its smooth sensitivity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from ..arguments import as_array, checked
from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, check_number
from ..privacy.guarantees import format_bound
from .gnmax import GNMax, grid_step
from .sampling import RandomBits, arithmetic

__all__ = [
    "DataDependentGuarantee",
    "DataDependentLoss",
    "gnmax_renyi",
    "log_chance_of_other",
    "smooth_release_renyi",
]

_ROWS = 8192  # labels, or points of a grid, whose tables are in memory at once
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


@dataclass(frozen=True, kw_only=True)
class DataDependentGuarantee:
    """(epsilon, delta) of labels on the votes that they came from, not on all votes.

    Attributes:
        epsilon: in nats.
        delta: of the labels.
        order: the Renyi order that it was derived at; ``None``: the bound for all votes was no larger.
        sensitive: true: ``epsilon`` itself reveals the votes and must not be published.
        failure: the probability that the noise of the release made ``epsilon`` too small; 0 where there is no noise.
    """

    epsilon: float
    delta: float
    order: float | None
    sensitive: bool
    failure: float = 0.0

    def __str__(self) -> str:
        text = f"({format_bound(self.epsilon, 6)}, {format_bound(self.delta, 3)})-DP on these votes"
        if self.sensitive:
            return f"{text}; SENSITIVE, do not publish"
        return f"{text}, except with chance {format_bound(self.failure, 1)}"


@checked
@dataclass(frozen=True, kw_only=True, repr=False)
class DataDependentLoss:
    """The cost, on these votes, of the labels that ``mechanism`` gave for ``counts``.

    It bounds the divergence of the labels on these votes from those on neighbouring votes, not the reverse (so do
    Papernot et al.). The items must have been chosen without looking at the labels, because costs that depend on the
    votes do not add up along an adaptive sequence.

    Args:
        mechanism: the GNMax that labelled them; its sigma, overlap and grid are used.
        counts: (Q, C) as in :meth:`Mechanism.aggregate`, one row for each label.

    >>> import numpy as np
    >>> loss = DataDependentLoss(mechanism=GNMax(sigma=40), counts=np.array([[250, 0, 0]] * 500))
    >>> str(loss.guarantee(delta=1e-5))
    '(0.387715, 1e-05)-DP on these votes; SENSITIVE, do not publish'
    """

    mechanism: GNMax
    counts: Any

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, GNMax):
            raise InvalidArgument("mechanism", "a GNMax", self.mechanism)
        checked, _ = self.mechanism._checked(self.counts)
        if not len(checked):
            raise InvalidArgument("counts", "one row or more", checked.shape)
        object.__setattr__(self, "counts", checked)

    def __repr__(self) -> str:
        return f"DataDependentLoss(mechanism={self.mechanism!r}, counts=<{len(self.counts)} items>)"

    def renyi(self, orders: npt.ArrayLike) -> FloatArray:
        """The Renyi cost of all labels at each order above 1, (N,) float64: sensitive."""
        orders = as_array("orders", orders, "finite numbers above 1").astype(np.float64)
        if not np.all((orders > 1) & np.isfinite(orders)):
            raise InvalidArgument("orders", "finite numbers above 1", orders)
        log_q = log_chance_of_other(self.counts, sigma=self.mechanism.sigma, step=grid_step(self.mechanism.sigma))
        costs = gnmax_renyi(log_q, orders, sigma=self.mechanism.sigma, overlap=self.mechanism.overlap)
        return np.asarray(costs.sum(axis=0))

    @checked
    def guarantee(self, *, delta: float) -> DataDependentGuarantee:
        """The smallest epsilon at ``delta`` over many orders, or the mechanism's own for all votes: sensitive."""
        delta = check_number("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True)
        epsilons = (self.renyi(ORDERS) - math.log(delta) / (ORDERS - 1)) * (1 + 2.0**-40)
        best = int(np.argmin(epsilons))
        epsilon: float = float(epsilons[best])
        order: float | None = float(ORDERS[best])
        worst_case = self.mechanism.guarantee(labels=len(self.counts), delta=delta).epsilon
        if worst_case <= epsilon:
            epsilon, order = worst_case, None
        return DataDependentGuarantee(epsilon=epsilon, delta=delta, order=order, sensitive=True)

    @checked
    def sanitised(
        self, *, delta: float, order: float, share: float = 0.1, failure: float = 1e-6
    ) -> DataDependentGuarantee:
        """An upper bound of the cost that may be published; it includes the cost of publishing it.

        The Renyi cost f of the labels at ``order`` is released as f + S s (Z + z), with Z standard normal, S a smooth
        upper bound of f's sensitivity, s a public factor and z the quantile of ``failure``, so that it is at least f
        except with probability ``failure``. It is cut off at the worst case, which is public. The cost of its release,
        :func:`smooth_release_renyi`, and log(1/delta) / (order - 1) are added. The result is never larger than the cost
        of labels and release on the worst votes, at the best order for them. ``epsilon`` is rounded up to a multiple of
        2**-20 from many more digits: noise on a grid in proportion to S would reveal S, and f, whatever its law. f and
        S are computed in floating point; S is slightly larger than necessary to cover the rounding.

        Args:
            delta: of the labels.
            order: chosen without looking at the votes: about 1 + sqrt(log(1/delta) / (c Q)) sigma / r if the labels
                are expected to cost a fraction c of their worst case.
            share: the cost of the release, as a fraction of the worst case of all labels at this order.
            failure: probability that the figure is too small.

        Raises:
            InvalidArgument: an argument out of range.
        """
        delta = check_number("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True)
        order = check_number("order", order, low=1.0, low_open=True, high=1e6)
        share = check_number("share", share, low=1e-6, high=1.0)
        failure = check_number("failure", failure, low=0.0, low_open=True, high=0.5)
        mechanism = self.mechanism
        worst = len(self.counts) * order * (mechanism.overlap / mechanism.sigma) ** 2
        offset = -float(special.ndtri(failure)) * (1 + 2.0**-40)
        smoothness, noise = _release_parameters(order, share * worst, offset)
        cost = smooth_release_renyi(order, smoothness=smoothness, noise=noise, offset=offset)
        votes = _OnALine(mechanism, self.counts, order)
        spread = votes.smooth_sensitivity(smoothness) * noise
        normal = _normal(mechanism._bits)
        released = min(worst, max(0.0, votes.loss() + spread * (normal + offset)))

        def worst_epsilon(a: float) -> float:
            release = smooth_release_renyi(a, smoothness=smoothness, noise=noise, offset=offset)
            return (worst / order * a + release - math.log(delta) / (a - 1)) * (1 + 2.0**-40)

        most = min(worst_epsilon(float(a)) for a in (order, *ORDERS) if _mixed(a, math.exp(-smoothness)) > 0)
        epsilon = min(most, released + (cost - math.log(delta) / (order - 1)))
        return DataDependentGuarantee(
            epsilon=math.ceil(epsilon * 2**20 + 1) / 2**20, delta=delta, order=order, sensitive=False, failure=failure
        )


def _normal(bits: RandomBits) -> Any:
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


def _release_parameters(order: float, cost: float, offset: float) -> tuple[float, float]:
    """Smoothness and noise whose release costs ``cost``: about half of the shift for f, half for the offset."""
    smoothness = math.log1p(1 / (order - 1)) / 4  # half of the largest with finite cost
    while smooth_release_renyi(order, smoothness=smoothness, noise=math.inf, offset=offset) > cost / 4:
        smoothness /= 1.25
    low, high = math.exp(-smoothness), math.exp(smoothness)
    less = math.sqrt(2 * (cost - _scale(order, low)) * _mixed(order, low) / order) - offset * (1 - low)
    more = math.sqrt(2 * (cost - _scale(order, high)) / order) - offset * (high - 1)
    return smoothness, 1 / min(less / low, more)


class _OnALine:
    """The cost of each label as a function of one number, on which a neighbour is at most ``pace`` away.

    Write q = (C - 1)/2 erfc(z) for the union bound q = 1/2 sum_j erfc(x_j), x_j = (gap_j - step) / (2 sigma). One
    record moves the sorted counts by at most r each, all x_j by at most r / sigma, and hence z by at most r / sigma:
    the map erfc(x) -> erfc(x - s) is concave for s >= 0 and convex for s <= 0, so Jensen's inequality bounds the mean
    over j by the value at the mean (Papernot et al. 2018, Propositions 11 and 12). The cost at an order is the smallest
    bound among Theorem 6, over a public set of higher orders, and the worst case. So it is nonincreasing in z, and its
    changes can be bounded cell by cell on a public grid of z.
    """

    _CELLS = 32  # per pace

    def __init__(self, mechanism: GNMax, counts: IntArray, order: float) -> None:
        sigma, overlap, others = mechanism.sigma, mechanism.overlap, counts.shape[1] - 1
        self._width, self._order, self._log_others = sigma / overlap, order, math.log(others)
        pace = overlap / sigma
        self._cell = pace / self._CELLS
        farthest = int(counts[0].sum()) / (2 * sigma)
        # Public higher orders, up to the best one at the farthest z.
        top = self._width * math.sqrt(max(0.0, -self._log_q(np.array([farthest]))[0]))
        low = max(order - 1, 1.0 + 1e-9)
        self._seconds = np.geomspace(low, max(top, low), 256)
        step = grid_step(sigma)
        log_mean = _log_union(counts, sigma, step) - self._log_others  # log of erfc(z) / 2
        self._z = -special.ndtri_exp(log_mean) / math.sqrt(2)
        self._start = -(step / (2 * sigma) + 2 * pace)
        cells = math.ceil((farthest + 3 * pace - self._start) / self._cell)
        grid: FloatArray = self._start + self._cell * np.arange(cells + self._CELLS + 2, dtype=np.float64)
        values = self._at(grid)
        # On the cell [v_k, v_(k+1)] the fall of the cost over one pace is at most this.
        self._falls = values[:cells] - values[self._CELLS + 1 : self._CELLS + 1 + cells]

    def _log_q(self, z: FloatArray) -> FloatArray:
        return np.asarray(special.log_ndtr(-z * math.sqrt(2)) + self._log_others)

    def _at(self, z: FloatArray) -> FloatArray:
        """The cost of a label at each z, (N,): nonincreasing; the worst case at z <= 0."""
        worst, bounds = self._order / self._width**2, []
        for log_q in np.array_split(self._log_q(z), math.ceil(z.size / _ROWS)):  # a table of 256 orders for each
            bound = _theorem_6(log_q[:, None], np.asarray(self._order), self._seconds[None, :], self._width)
            bounds.append(bound.min(axis=1))
        return np.where(z > 0, np.minimum(worst, np.concatenate(bounds)), worst)

    def loss(self) -> float:
        """The total over the labels."""
        return float(self._at(self._z).sum())

    def smooth_sensitivity(self, smoothness: float) -> float:
        """max over distances d of exp(-smoothness d) times a bound of the total's sensitivity at distance d."""
        cells = self._falls.size
        at, items = np.unique(np.floor((self._z - self._start) / self._cell).astype(np.int64), return_counts=True)
        left, right = at, at + 1
        best, discount = 0.0, 1.0
        whole = float(self._falls.max()) * len(self._z)
        # At distance d from z, the next neighbour is one pace further: falls from z - (d + 1) pace to z + d pace count.
        # A pace counts as one cell more: if z lies on the edge of a cell, rounding may move a neighbour into the next.
        while discount * whole > best:
            left = left - (self._CELLS + 1)
            windows = [self._falls[max(a, 0) : min(b + 1, cells)] for a, b in zip(left, right, strict=True)]
            best = max(best, discount * float(items @ [w.max(initial=0.0) for w in windows]))
            right = right + (self._CELLS + 1)
            discount *= math.exp(-smoothness)
        # A public constant keeps it smooth, and covers the rounding errors of the loss.
        return best + 2.0**-32 * len(self._z) * self._order / self._width**2
