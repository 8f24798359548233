"""The cost of labels of GNMax and ConfidentGNMax on the votes that they were drawn from.

A cost that depends on the votes is as secret as the votes. It is marked ``sensitive`` until it is released with noise
in proportion to its smooth sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from ..arguments import as_array, checked
from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, check_number
from ..noise.regions import check_target
from ..privacy.guarantees import PrivacyGuarantee, format_bound
from .confident import ConfidentGNMax
from .gnmax import GNMax, grid_step
from .pate_rdp import (
    ORDERS,
    VoteCosts,
    checked_renyi,
    gnmax_renyi,
    log_chance_of_other,
    release_parameters,
    smooth_release_renyi,
    standard_normal,
    worst_renyi,
)

__all__ = ["DataDependentGuarantee", "DataDependentLoss"]


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
        mechanism: the GNMax or ConfidentGNMax that labelled them; items without an answer count.
        counts: (Q, C) as in :meth:`Mechanism.aggregate`, one row for each label.

    >>> import numpy as np
    >>> loss = DataDependentLoss(mechanism=GNMax(sigma=40), counts=np.array([[250, 0, 0]] * 500))
    >>> str(loss.guarantee(delta=1e-5))
    '(0.387715, 1e-05)-DP on these votes; SENSITIVE, do not publish'
    """

    mechanism: GNMax | ConfidentGNMax
    counts: Any

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, (GNMax, ConfidentGNMax)):
            raise InvalidArgument("mechanism", "a GNMax or a ConfidentGNMax", self.mechanism)
        checked, _ = self.mechanism._checked(self.counts)
        if not len(checked):
            raise InvalidArgument("counts", "one row or more", checked.shape)
        object.__setattr__(self, "counts", checked)

    def __repr__(self) -> str:
        return f"DataDependentLoss(mechanism={self.mechanism!r}, counts=<{len(self.counts)} items>)"

    def renyi(self, orders: npt.ArrayLike) -> FloatArray:
        """The Renyi cost of all labels at each order above 1, (N,) float64: sensitive."""
        orders = as_array("orders", orders, "finite numbers above 1").astype(np.float64)
        if orders.ndim > 1 or not np.all((orders > 1) & np.isfinite(orders)):
            raise InvalidArgument("orders", "finite numbers above 1", orders)
        log_q = log_chance_of_other(self.counts, sigma=self.mechanism.sigma, step=grid_step(self.mechanism.sigma))
        costs = gnmax_renyi(log_q, orders, sigma=self.mechanism.sigma, overlap=self.mechanism.overlap)
        if isinstance(self.mechanism, ConfidentGNMax):
            highest, teachers = self.mechanism._checked_votes(self.counts)[:, None], int(self.counts[0].sum())
            costs = checked_renyi(self.mechanism, highest, costs, orders, teachers=teachers)
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
        released, release = self._release(order, share, failure)
        worst, rest = worst_renyi(self.mechanism, 1.0) * len(self.counts), -math.log(delta)

        def worst_epsilon(a: float) -> float:
            return float((worst * a + release(a) + rest / (a - 1)) * (1 + 2.0**-40))

        most = min(worst_epsilon(float(a)) for a in (order, *ORDERS) if math.isfinite(release(float(a))))
        epsilon = min(most, released + (release(order) + rest / (order - 1)))
        return DataDependentGuarantee(
            epsilon=math.ceil(epsilon * 2**20 + 1) / 2**20, delta=delta, order=order, sensitive=False, failure=failure
        )

    @checked
    def labels_within(self, target: PrivacyGuarantee, *, order: float, share: float = 0.1) -> IntArray | None:
        """The labels of all items if a released bound of their cost shows that they keep ``target``; otherwise None.

        Formal guarantee, for all votes: the result, None included, is ``target``-DP when one record changes up to r
        votes on each item. The cost f of the labels on these votes is released as in :meth:`sanitised`, with the figure
        too small with probability delta / 2, and the labels are drawn only where it is at most a public limit. With the
        limit, the cost of the release and log(2/delta) / (order - 1) add up to epsilon. If f is within the limit,
        figure and labels together are (epsilon, delta / 2)-DP at these votes, in Renyi composition. If it is not, the
        labels are drawn with probability delta / 2 at most, and without them the figure alone is (epsilon,
        delta / 2)-DP. The argument applies to both orders of two neighbouring votes, each with its own f. Where the
        bound for all votes keeps the target, the labels are drawn without a test.

        Ask once: a second question about the same votes is a second release. A ledger does not do this; it charges
        :meth:`Mechanism.guarantee`, which holds for labels that are requested adaptively, too.

        Args:
            target: of test and labels together; delta positive.
            order: as in :meth:`sanitised`; chosen without looking at the votes.
            share: as in :meth:`sanitised`.

        Returns:
            labels (Q,) int64 as from :meth:`Mechanism.aggregate`, or None.

        Raises:
            InvalidArgument: an argument out of range, or a target that the test alone exceeds.

        >>> mechanism = GNMax(sigma=40, insecure_seed=1)
        >>> loss = DataDependentLoss(mechanism=mechanism, counts=np.array([[249, 1, 0]] * 3000))
        >>> target = PrivacyGuarantee(epsilon=8, delta=1e-5)
        >>> mechanism.guarantee(labels=3000, delta=1e-5).epsilon > 9.5, loss.labels_within(target, order=5).shape
        (True, (3000,))
        """
        target = check_target(target)
        if target.delta < 1e-300:  # half of it, in the logarithm below, must be a number
            raise InvalidArgument("target", "one with a positive delta, 1e-300 or more", str(target))
        order = check_number("order", order, low=1.0, low_open=True, high=1e6)
        share = check_number("share", share, low=1e-6, high=1.0)
        if self.mechanism.guarantee(labels=len(self.counts), delta=target.delta).epsilon > target.epsilon:
            released, release = self._release(order, share, target.delta / 2)
            limit = target.epsilon * (1 - 2.0**-40) - release(order) + math.log(target.delta / 2) / (order - 1)
            if limit <= 0:
                cure = "The test alone costs that much: take another order, or a smaller share"
                raise InvalidArgument("target", f"an epsilon above {target.epsilon - limit:.6g}", str(target), cure)
            if released > limit:
                return None
        return np.asarray(self.mechanism.aggregate(self.counts))

    def _release(self, order: float, share: float, failure: float) -> tuple[Any, Callable[[float], float]]:
        """The Renyi cost at ``order``, released; and what the release costs at any order, infinite at high ones."""
        worst = len(self.counts) * worst_renyi(self.mechanism, order)
        offset = -float(special.ndtri(failure)) * (1 + 2.0**-40)
        smoothness, noise = release_parameters(order, share * worst, offset)
        votes = VoteCosts(self.mechanism, self.counts, order)
        spread = votes.smooth_sensitivity(smoothness) * noise
        normal = standard_normal(self.mechanism._bits)

        def cost(a: float) -> float:
            if a * -math.expm1(-2 * smoothness) >= 1:
                return math.inf
            return smooth_release_renyi(a, smoothness=smoothness, noise=noise, offset=offset)

        return min(worst, max(0.0, votes.loss() + spread * (normal + offset))), cost
