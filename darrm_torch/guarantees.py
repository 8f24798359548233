"""What someone promises: one (epsilon, delta) guarantee, or a whole privacy profile delta(epsilon)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import check_number

__all__ = ["PrivacyGuarantee"]


@dataclass(frozen=True, kw_only=True, order=False)
class PrivacyGuarantee:
    """(epsilon, delta)-differential privacy under adding or removing one record.

    Attributes:
        epsilon: in nats, ``>= 0``; ``math.inf`` means no privacy of its own.
        delta: in ``[0, 1]``.

    Raises:
        InvalidArgument: a number out of range, NaN or not a number.

    >>> PrivacyGuarantee(epsilon=0.0892, delta=1e-4)
    PrivacyGuarantee(epsilon=0.0892, delta=0.0001)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_number("epsilon", self.epsilon, low=0.0, high=math.inf))
        object.__setattr__(self, "delta", check_number("delta", self.delta, low=0.0, high=1.0))

    def __str__(self) -> str:
        return f"({self.epsilon:.6g}, {self.delta:.3g})-DP"
