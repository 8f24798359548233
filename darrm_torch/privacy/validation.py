"""Private validation: what counts of right and wrong on held-out units cost, together with the training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..arguments import validate
from ..errors import InvalidArgument, check_integer
from .guarantees import PrivacyGuarantee
from .profiles import PrivacyProfile

__all__ = ["PrivateValidation", "Reads"]

Reads = Literal["labels", "teachers", "student"]


@dataclass(frozen=True, kw_only=True)
class PrivateValidation:
    """What will be released about units that no teacher is trained on; declared before anything is released.

    A unit is held out or trained on, never both. So training and validation together cost at most the larger of the
    two prices, not their sum (theory, section 17).

    Args:
        epsilon: what each release costs a held-out unit. It adds exact discrete Laplace noise to counts. A unit
            changes one of the counts by 1, so delta is 0.
        releases: the number of releases.
        reads: what they are computed from. "labels": labels that the teachers give to held-out inputs; "teachers": any
            of the K teachers; "student": only a model that learned from labels that are charged. "teachers" includes
            the other two, and "labels" the last.

    Raises:
        InvalidArgument: a value out of range.

    >>> two = PrivateValidation(epsilon=0.05, releases=2)
    >>> two.profile.epsilon(0.0)
    0.1
    """

    epsilon: float
    releases: int = 1
    reads: Reads = "labels"

    def __post_init__(self) -> None:
        validate(self, "epsilon", low=2.0**-12, high=64.0)
        validate(self, "releases", check_integer, low=1, high=1000)
        if not isinstance(self.reads, str) or self.reads not in ("labels", "teachers", "student"):
            raise InvalidArgument("reads", '"labels", "teachers" or "student"', self.reads)

    @property
    def profile(self) -> PrivacyProfile:
        """What all releases together promise a held-out unit."""
        return PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=self.epsilon)).compose(self.releases)
