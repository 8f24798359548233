"""The cost of N labels, and whether it fits in a budget; exact in decimals."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction

from ..errors import BudgetExceeded, InvalidArgument
from ..privacy.guarantees import PrivacyGuarantee

__all__ = ["Cost", "Price", "fits", "guarantee_of", "plain_guarantee", "total_cost"]

Cost = PrivacyGuarantee | Callable[[int], PrivacyGuarantee]


class Price:
    """The cost of labels, if it is known, against a budget that stays the same.

    Finding a price can take long. Fewer labels than are known to fit do fit, so few prices are needed.
    """

    def __init__(self, cost: Cost | None) -> None:
        if not (cost is None or isinstance(cost, PrivacyGuarantee) or callable(cost)):
            raise InvalidArgument("cost", "a PrivacyGuarantee of one label or a function of the number of labels", cost)
        self.cost = cost
        self._fitting = 0  # so many labels are known to fit in the budget,
        self._too_many: int | None = None  # and so many are known not to

    def of(self, labels: int) -> PrivacyGuarantee | None:
        """The cost of so many labels together; ``None`` if it is not known."""
        return None if self.cost is None else total_cost(self.cost, labels)

    def left(self, count: int, most: int, budget: PrivacyGuarantee | None) -> int:
        """How many labels, up to ``most``, fit in the budget beside ``count``."""
        if budget is None:
            return most
        return bisect_left(range(most), True, key=lambda more: not self._fits(count + more + 1, budget))

    def check(self, count: int, new: int, budget: PrivacyGuarantee | None) -> None:
        """Check that ``new`` labels fit in the budget beside ``count``.

        Raises:
            BudgetExceeded: they do not.
        """
        total = count + new
        while budget is not None and total > self._fitting:
            guess = 2 * total if self._too_many is None else max(total, (total + self._too_many) // 2)
            if self._fits(guess, budget):
                self._fitting = guess
            elif guess > total:
                self._too_many = guess
            else:
                left = self.left(count, new, budget)
                raise BudgetExceeded(
                    f"{total} label{'s' * (total > 1)} would cost {self.of(total)}, over the budget of {budget}. "
                    f"Nothing was given out; {left} more label{'s fit' if left != 1 else ' fits'}"
                )

    def _fits(self, labels: int, budget: PrivacyGuarantee) -> bool:
        if self.cost is None:
            cure = "Build the ensemble of the ledger with it, or pass a cost to the ledger or to bind()."
            raise InvalidArgument("cost", "given, to price the labels", None, cure)
        return fits(self.cost, labels, budget)


def fits(cost: Cost, labels: int, budget: PrivacyGuarantee) -> bool:
    """Whether ``labels`` labels cost at most the budget."""
    if not isinstance(cost, PrivacyGuarantee):
        total = total_cost(cost, labels)
        return total.epsilon <= budget.epsilon and total.delta <= budget.delta
    pairs = ((cost.epsilon, budget.epsilon), (cost.delta, budget.delta))
    return all(exact_multiple(labels, one) <= exact_multiple(1, most) for one, most in pairs)


def total_cost(cost: Cost, labels: int) -> PrivacyGuarantee:
    """The cost of ``labels`` labels together; nothing for none."""
    if labels == 0:
        return PrivacyGuarantee(epsilon=0.0)
    if not isinstance(cost, PrivacyGuarantee):
        total = cost(labels)
        if not (hasattr(total, "epsilon") and hasattr(total, "delta")):
            raise InvalidArgument("cost", "a function that returns a PrivacyGuarantee", total)
        return total
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
