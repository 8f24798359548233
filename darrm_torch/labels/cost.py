"""The cost of N labels, and whether it fits in a budget; exact in decimals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from ..privacy.guarantees import PrivacyGuarantee

__all__ = ["Cost", "fits", "guarantee_of", "plain_guarantee", "total_cost"]

Cost = PrivacyGuarantee | Callable[[int], PrivacyGuarantee]


def fits(cost: Cost, labels: int, budget: PrivacyGuarantee) -> bool:
    """Whether ``labels`` labels cost at most the budget."""
    if not isinstance(cost, PrivacyGuarantee):
        total = cost(labels)
        return total.epsilon <= budget.epsilon and total.delta <= budget.delta
    pairs = ((cost.epsilon, budget.epsilon), (cost.delta, budget.delta))
    return all(exact_multiple(labels, one) <= exact_multiple(1, most) for one, most in pairs)


def total_cost(cost: Cost, labels: int) -> PrivacyGuarantee:
    """The cost of ``labels`` labels together; nothing for none."""
    if labels == 0:
        return PrivacyGuarantee(epsilon=0.0)
    if not isinstance(cost, PrivacyGuarantee):
        return cost(labels)
    epsilon, delta = (float(exact_multiple(labels, one)) for one in (cost.epsilon, cost.delta))
    return PrivacyGuarantee(epsilon=epsilon, delta=min(1.0, delta))


def exact_multiple(count: int, number: float) -> Fraction | float:
    """A multiple of the number as it is written, exact in whatever decimal context; infinity stays."""
    return count * Fraction(repr(number)) if math.isfinite(number) else number


def guarantee_of(pair: Sequence[float] | None) -> PrivacyGuarantee | None:
    """The guarantee that a pair of numbers in a ledger stands for."""
    return None if pair is None else PrivacyGuarantee(epsilon=pair[0], delta=pair[1])


def plain_guarantee(guarantee: PrivacyGuarantee | None) -> dict[str, float | None] | None:
    """The guarantee ready for JSON; an infinite epsilon is ``None``."""
    if guarantee is None:
        return None
    return {"epsilon": guarantee.epsilon if math.isfinite(guarantee.epsilon) else None, "delta": guarantee.delta}
