"""What a guarantee protects: a record or all records of a unit, added, removed or replaced; and groups in batches.

A unit with up to g records is in a batch with a random number of them. Theory: ``docs/theory/units.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal as D, localcontext
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from ..arrays import FloatArray
from ..errors import InvalidArgument, check_integer
from .guarantees import PrivacyGuarantee, times

__all__ = [
    "MOST_RECORDS",
    "RECORD",
    "GroupLoss",
    "Neighbours",
    "ProtectedUnit",
    "common_unit",
    "group_guarantee",
    "group_loss",
]

Neighbours = Literal["add/remove", "replace-one"]
MOST_RECORDS = 1000
_TABLE = 2**21  # numbers held at once
_TAIL = 1e-20  # probability of more records in a batch that may count as all of them


@dataclass(frozen=True, kw_only=True)
class ProtectedUnit:
    """What a guarantee protects: neighbouring data sets differ by one unit.

    Args:
        name: what a unit is, such as "record" or "patient".
        records: g, how many records a unit has at most in the data of one teacher.
        neighbours: whether the unit is added or removed, or replaced by another one.

    Raises:
        InvalidArgument: a value out of range.

    >>> str(ProtectedUnit(name="patient", records=4))
    'adding or removing one patient with at most 4 records in the data of a teacher'
    """

    name: str = "record"
    records: int = 1
    neighbours: Neighbours = "add/remove"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise InvalidArgument("unit", 'a word such as "record" or "patient"', self.name)
        object.__setattr__(self, "records", check_integer("records_per_unit", self.records, low=1, high=MOST_RECORDS))
        if self.records > 1 and self.name == "record":
            raise InvalidArgument("unit", 'a word such as "patient" for a unit with several records', self.name)
        if self.neighbours not in ("add/remove", "replace-one"):
            raise InvalidArgument("neighbours", '"add/remove" or "replace-one"', self.neighbours)

    def __str__(self) -> str:
        change = "adding or removing" if self.neighbours == "add/remove" else "replacing"
        several = f" with at most {self.records} records in the data of a teacher" if self.records > 1 else ""
        return f"{change} one {self.name}{several}"

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return {"name": self.name, "records": self.records, "neighbours": self.neighbours}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> ProtectedUnit:
        """The unit that :meth:`to_dict` described."""
        return cls(name=value["name"], records=value["records"], neighbours=value["neighbours"])


RECORD = ProtectedUnit()


def common_unit(units: Iterable[ProtectedUnit]) -> ProtectedUnit:
    """What all of several promises protect, with the most records that a unit has for any of them.

    Raises:
        InvalidArgument: they protect unlike units.
    """
    several = sorted(set(units), key=lambda unit: unit.records)
    if len({(unit.name, unit.neighbours) for unit in several}) > 1:
        listed = " and ".join(map(str, several))
        raise InvalidArgument("profiles", "promises to the same unit", listed, "Use PrivacyProfile.for_unit for each.")
    return several[-1]


def group_guarantee(guarantee: PrivacyGuarantee, records: int) -> PrivacyGuarantee:
    """Group privacy: what ``guarantee`` for one record promises to so many, rounded up."""
    epsilon = times(records, guarantee.epsilon)
    if epsilon > 600.0:
        return PrivacyGuarantee(epsilon=epsilon, delta=float(guarantee.delta > 0))
    grown = math.fsum(math.exp(n * guarantee.epsilon) for n in range(records)) * guarantee.delta * (1 + 2.0**-40)
    return PrivacyGuarantee(epsilon=epsilon, delta=min(1.0, grown))


@dataclass(frozen=True, eq=False)
class GroupLoss:
    """One Poisson-sampled Gaussian step with a unit of one or more records, against that step without the unit.

    The pair of laws is the mixture of N(j, noise**2), where j of the records are in the batch with probability
    ``chances[j]``, and N(0, noise**2). The loss ``log(mixture(x) / normal(x))`` increases with x.
    """

    noise: float
    counts: FloatArray
    chances: FloatArray
    absent: float  # the logarithm of chances[0], the smallest loss; -inf where some record is always there

    @property
    def top(self) -> float:
        """The largest number of records in a batch."""
        return float(self.counts[-1])

    def at(self, x: FloatArray | float) -> FloatArray:
        """The loss at ``x``."""
        logs = np.append(self.absent, np.log(self.chances[1:]))  # the logarithm of a number near 1 would lose digits
        terms = logs + self.counts * (np.asarray(x, dtype=np.float64)[..., None] - self.counts / 2) / self.noise**2
        return np.asarray(np.logaddexp.reduce(terms, axis=-1))

    def where(self, losses: npt.NDArray[np.floating[Any]]) -> FloatArray:
        """The x at which the loss is ``losses``; -inf at and below the smallest one."""
        return np.concatenate([self._where(part) for part in self._parts(losses)])

    def _parts(self, losses: npt.NDArray[np.floating[Any]]) -> list[npt.NDArray[np.floating[Any]]]:
        """Parts whose tables of all counts fit in memory."""
        return np.array_split(losses, max(1, math.ceil(len(losses) * len(self.counts) / _TABLE)))

    def _where(self, losses: npt.NDArray[np.floating[Any]]) -> FloatArray:
        present = self.counts > 0
        counts, logs = self.counts[present], np.log(self.chances[present])
        # e^loss - chances[0] is a sum of exponentials whose logarithm is convex and at least linear in x: from the
        # right, Newton's method converges. With one exponential, x is exact.
        with np.errstate(divide="ignore"):
            goals = losses + np.log(-np.expm1(np.minimum(self.absent - losses, 0.0)))
        x = ((goals[:, None] - logs) * (self.noise**2 / counts) + counts / 2).min(axis=1)
        live = np.isfinite(x)
        for _ in range(60 if len(counts) > 1 else 0):
            terms = logs + counts * (x[live, None] - counts / 2) / self.noise**2
            top = terms.max(axis=1, keepdims=True)
            weights = np.exp(terms - top)
            whole = weights.sum(axis=1)
            step = (top[:, 0] + np.log(whole) - goals[live]) * self.noise**2 * whole / (weights @ counts)
            x[live] -= step
            if not (np.abs(step) > 1e-14 * (1 + np.abs(x[live]))).any():
                break
        return np.where(live, x, -np.inf)

    def curve(self, epsilons: npt.NDArray[np.floating[Any]], added: bool) -> FloatArray:
        """The exact deltas at ``epsilons``, for a unit that is added or removed, up to a few units of rounding."""
        return np.concatenate([self._curve(part, added) for part in self._parts(epsilons)])

    def _curve(self, epsilons: npt.NDArray[np.floating[Any]], added: bool) -> FloatArray:
        x = self.where(-epsilons if added else epsilons)
        sign = 1.0 if added else -1.0  # the event is z <= x, or z >= x
        with np.errstate(over="ignore"):
            plain = special.ndtr(sign * x / self.noise)
            mixed = special.ndtr(sign * (x[:, None] - self.counts) / self.noise) @ self.chances
            here, there = (plain, mixed) if added else (mixed, plain)
            growth = np.exp(np.minimum(epsilons, 700.0))
        return np.asarray(np.clip(here - growth * there, -np.expm1(np.minimum(epsilons, 0.0)), 1.0))


@lru_cache(maxsize=64)
def group_loss(noise: float, rate: float, records: int) -> GroupLoss:
    """The loss of one step; numbers of records that hardly ever meet in a batch count as all of them."""
    with localcontext(Context(prec=60, rounding=ROUND_CEILING, Emin=-(10**9), Emax=10**9)):
        stay, chances = 1 - D(rate), []
        term = stay**records if stay else D(0)
        for count in range(records + 1):
            chances.append(D(1) if not stay and count == records else term)
            if stay:
                term = term * (records - count) / (count + 1) * D(rate) / stay
        left, last = D(0), records
        while last > 1 and left + chances[last] < D(_TAIL):
            left, last = left + chances[last], last - 1
        kept = [float(chance) for chance in chances[: last + 1]]
        absent = float(records * (stay.ln())) if stay else -math.inf
    counts = [float(count) for count in range(last + 1)]
    if left:  # all that is left counts as the whole unit
        kept, counts = [*kept, float(left)], [*counts, float(records)]
    chances_, places = np.array(kept), np.array(counts)
    keep = (chances_ > 0) | (places == 0)
    return GroupLoss(noise, places[keep], chances_[keep], absent)
