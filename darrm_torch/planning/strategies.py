"""One way of releasing labels, with its price and its worth: a row of a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeAlias

from ..mechanisms.base import Mechanism
from ..privacy.profiles import PrivacyProfile
from ..privacy.totals import TotalPrivacy
from ..privacy.units import RECORD

__all__ = ["RestsOn", "Strategy", "in_python"]

RestsOn: TypeAlias = Literal["teachers", "randomness", "both"]
"""What protects: the teachers' private training, the mechanism's own randomness, or both counted together."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way of releasing labels.

    Attributes:
        kind: what :func:`darrm_torch.strongest_mechanism` and ``darrm label --mechanism`` call it.
        name: what a plan calls it.
        rests_on: "randomness": the mechanism's own randomness protects, whatever the teachers are. "teachers": the
            teachers' private training does. "both": they are counted together.
        mechanism: ready to use, as strong as the target allows; None where there is none.
        voters: how many of the teachers vote.
        label, total: the proven cost of one label, and of all; None without a mechanism.
        accuracy: the chance under the prior that a label is the true class; None without a mechanism. The prior is that
            of teachers trained without privacy where ``rests_on`` is "randomness".
        agreement: the chance under that prior that a label is the majority, or the plurality, of all K teachers' votes
            (where classes tie for it, each of them counts); None without a mechanism.
        meets: whether it keeps every target.
        reason: why it wins, loses or fails.
        code: how to build it in Python (``dt`` is this package); empty without a mechanism.
        standard_error: of ``accuracy`` and ``agreement``, the larger; 0 where they are exact, as always for two
            classes.
    """

    kind: str
    name: str
    rests_on: RestsOn
    mechanism: Mechanism | None
    voters: int
    label: TotalPrivacy | None
    total: TotalPrivacy | None
    accuracy: float | None
    agreement: float | None
    meets: bool
    reason: str
    code: str = ""
    standard_error: float = 0.0

    def __repr__(self) -> str:
        worth = "" if self.agreement is None else f", agreement {self.agreement:.3f}"
        cost = "" if self.total is None else f", epsilon {self.total.epsilon:.4g} at delta {self.total.delta:.3g}"
        return f"<Strategy {self.name}{worth}{cost}, {'keeps' if self.meets else 'misses'} the target>"

    @property
    def own_randomness(self) -> bool:
        """Whether it protects whatever the teachers are."""
        return self.rests_on == "randomness"

    @property
    def without_allocation(self) -> float | None:
        """Epsilon of all labels by the bounds that need no secret allocation of the records; None without a mechanism.

        It holds even if the draws leak.
        """
        if self.total is None:
            return None
        return min(
            route.epsilon
            for route in self.total.routes
            if route.applies and route.key not in ("allocation", "allocation-self-bounding")
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "kind": self.kind,
            "strategy": self.name,
            "meets": self.meets,
            "accuracy": self.accuracy,
            "agreement": self.agreement,
            "standard_error": self.standard_error,
            "rests_on": self.rests_on,
            "own_randomness": self.own_randomness,
            "voters": self.voters,
            "mechanism": None if self.mechanism is None else self.mechanism.describe(),
            "label": None if self.label is None else self.label.to_dict(),
            "total": None if self.total is None else self.total.to_dict(),
            "reason": self.reason,
            "code": self.code,
        }


def in_python(value: Any) -> str:
    """The Python expression of a value: numbers, guarantees, profiles, priors, and tuples of them.

    >>> from darrm_torch import PrivacyGuarantee, SharedVotes
    >>> in_python((PrivacyGuarantee(epsilon=0.5), SharedVotes(low=0.6)))
    '(dt.PrivacyGuarantee(epsilon=0.5), dt.SharedVotes(low=0.6),)'
    """
    if isinstance(value, PrivacyProfile) and not value.promises:
        unit, runs = value.unit, tuple(run[:3] for run in value.dp_sgd)
        several = f".for_unit({unit.name!r}, records={unit.records})" if unit != RECORD else ""
        return f"dt.PrivacyProfile.from_dp_sgd({in_python(runs)}){several}"
    if isinstance(value, PrivacyProfile) and not value.dp_sgd and len(value.guarantees()) == 1:
        return in_python(value.guarantees()[0])
    if isinstance(value, tuple):
        return f"({''.join(f'{in_python(one)}, ' for one in value).rstrip()})"
    if not is_dataclass(value):
        return "math.inf" if value == math.inf else repr(value)
    pairs = [(field, getattr(value, field.name)) for field in fields(value) if field.init]
    given = [f"{field.name}={in_python(number)}" for field, number in pairs if number != field.default]
    return f"dt.{type(value).__name__}({', '.join(given)})"
