"""What is to be released, and the teachers behind it: what every bound on the total is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .allocation import RandomAllocation
from .allocation_prices import distinct_voters
from .guarantees import PrivacyGuarantee
from .profiles import PrivacyProfile, largest_of
from .units import ProtectedUnit
from .validation import PrivateValidation

__all__ = ["PricedMechanism", "Release"]


class PricedMechanism(Protocol):
    """What :func:`total_privacy` needs to know about a mechanism (see :mod:`darrm_torch.mechanisms`).

    It may also have ``jury`` and ``redrawn``, as :class:`~darrm_torch.Mechanism` has; without them all teachers vote.
    """

    @property
    def certificate(self) -> Any:
        """The certificate of its noise function, or None."""

    def self_bounding_allowance(self, *, teachers: int, overlap: int) -> float:
        """The allowance m of theory section 9; ``math.inf`` if there is none."""

    def guarantee(self, *, labels: int, delta: float, overlap: int) -> PrivacyGuarantee | PrivacyProfile | None:
        """The guarantee that its own randomness gives when only votes change; None if it gives none."""


@dataclass(frozen=True)
class Release:
    """The labels to be released and the teachers behind them: what every bound is computed from."""

    profiles: tuple[PrivacyProfile, ...]
    affected: int
    mechanism: PricedMechanism
    labels: int
    fresh: bool
    delta: float
    allocation: RandomAllocation | None
    unit: ProtectedUnit
    validation: PrivateValidation | None = None

    @property
    def rounds(self) -> int:
        """How many times the teachers release something of their own."""
        return self.labels if self.fresh else 1

    @property
    def readers(self) -> str:
        """Which teachers a jury reads, in words."""
        members = f"random jury of {getattr(self.mechanism, 'jury', None)}"
        return f"a new {members} for each label" if self.redrawn else f"one {members}"

    @property
    def redrawn(self) -> bool:
        """Whether each label has a jury of its own."""
        return bool(getattr(self.mechanism, "redrawn", False))

    @property
    def voters(self) -> tuple[float, ...] | None:
        """The probability of each number of teachers that are read for all labels, from 0 on; None: all of them."""
        jury, teachers = getattr(self.mechanism, "jury", None), len(self.profiles)
        if jury is None or jury == teachers:
            return None
        reads = self.validation and self.validation.reads
        if reads == "teachers" or (reads == "labels" and self.redrawn):
            return None  # juries that label held-out inputs read further teachers
        return distinct_voters(teachers, labels=self.labels if self.redrawn else 1, jury=jury)

    @property
    def affected_teachers(self) -> str:
        """The teachers that one unit can affect, in words."""
        teachers = "the one teacher" if self.affected == 1 else f"the {self.affected} teachers"
        return f"{teachers} that one {self.unit.name} can affect"

    def teacher_epsilon(self, delta: float) -> float:
        """The largest epsilon of any single teacher at ``delta``."""
        return largest_of(self.profiles, lambda profile: profile.epsilon(min(delta, 1.0)))

    def teacher_delta(self, epsilon: float) -> float:
        """The largest delta of any single teacher at ``epsilon``."""
        return largest_of(self.profiles, lambda profile: profile.delta(epsilon))
