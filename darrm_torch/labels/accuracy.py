"""What a private validation found: an accuracy with its interval, kept in the ledger of the labels."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..arguments import checked
from ..errors import InvalidArgument, check_integer, check_number
from ..mechanisms.counts import accuracy_interval
from ..privacy.guarantees import format_bound
from .ledger import PrivacyLedger

__all__ = ["AccuracyEstimate", "keep_estimate", "kept_estimates"]


@checked
@dataclass(frozen=True, kw_only=True)
class AccuracyEstimate:
    """Private counts of right and wrong answers on held-out records, and what they say about the accuracy.

    The counts are the release; everything here is computed from them. ``float()`` gives the accuracy, so an estimate
    stands for a number in :func:`~darrm_torch.plan`: ``teacher_accuracy=(teachers, labels)``.

    Attributes:
        of: what was validated: "labels", "teachers" (one of them, drawn for each record) or "student".
        right, wrong: noisy counts, for each class of the records or for each of equal bins of confidence; a noisy count
            may be negative.
        epsilon: what the release costs a held-out record.
        by: how the counts are split: by "class", by "confidence", or "all": not at all.
        confidence: an interval covers the true accuracy with at least this probability (theory, section 18).

    Raises:
        InvalidArgument: a value out of range, or ``right`` and ``wrong`` differ in length.

    >>> AccuracyEstimate(of="labels", right=(480, 450), wrong=(31, 39), epsilon=0.5)
    label accuracy 0.930, 95 % interval 0.908 to 0.948, for (0.5, 0)-DP
    """

    of: Literal["labels", "teachers", "student"]
    right: tuple[int, ...]
    wrong: tuple[int, ...]
    epsilon: float
    by: Literal["class", "confidence", "all"] = "class"
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name in ("right", "wrong"):
            counts = tuple(check_integer(name, one, low=-(10**9), high=10**9) for one in getattr(self, name))
            object.__setattr__(self, name, counts)
        if not 0 < len(self.right) == len(self.wrong):
            raise InvalidArgument("wrong", f"{len(self.right)} counts, as many as right has", len(self.wrong))
        object.__setattr__(self, "epsilon", check_number("epsilon", self.epsilon, low=2.0**-12, high=64.0))
        level = check_number("confidence", self.confidence, low=0.0, high=1.0, low_open=True, high_open=True)
        object.__setattr__(self, "confidence", level)

    @property
    def accuracy(self) -> float:
        """The share of right answers among the noisy counts."""
        return self._of(self.right, self.wrong)[0]

    @property
    def interval(self) -> tuple[float, float]:
        """An interval that covers the accuracy, given that the counts are noisy and the records are a sample."""
        return self._of(self.right, self.wrong)[1:]

    @property
    def parts(self) -> tuple[tuple[float, float, float], ...]:
        """The accuracy and its interval for each class, or each bin of confidence; each interval covers by itself."""
        return tuple(self._of([right], [wrong]) for right, wrong in zip(self.right, self.wrong, strict=True))

    def _of(self, rights: Sequence[int], wrongs: Sequence[int]) -> tuple[float, float, float]:
        right, wrong, cells = sum(rights), sum(wrongs), len(rights)
        low, high = accuracy_interval(right, wrong, epsilon=self.epsilon, cells=cells, confidence=self.confidence)
        share = right / (right + wrong) if right + wrong > 0 else (low + high) / 2
        return min(max(share, low), high), low, high

    def __float__(self) -> float:
        return self.accuracy

    def __repr__(self) -> str:
        (low, high), level = self.interval, format_bound(100 * self.confidence, 4)
        what = self.of.removesuffix("s")
        cost = f"for ({format_bound(self.epsilon, 6)}, 0)-DP"
        return f"{what} accuracy {self.accuracy:.3f}, {level} % interval {low:.3f} to {high:.3f}, {cost}"

    def to_dict(self) -> dict[str, Any]:
        """The counts and what they say, ready for JSON."""
        counts = {"right": list(self.right), "wrong": list(self.wrong)}
        found = {"accuracy": self.accuracy, "interval": list(self.interval), "text": repr(self)}
        return asdict(self) | counts | found


def kept_estimates(ledger: PrivacyLedger) -> list[AccuracyEstimate]:
    """All estimates that were released with this ledger, the oldest first."""
    estimates: list[AccuracyEstimate] = []
    while (text := ledger.note(_slot(len(estimates)))) is not None:
        estimates.append(_estimate(text)[1])
    return estimates


def keep_estimate(
    ledger: PrivacyLedger, name: str, draw: Callable[[], AccuracyEstimate], *, releases: int
) -> AccuracyEstimate | None:
    """The first release of this name; ``None`` where so many others were released before.

    ``draw`` returns a new one. It is called only where there is none yet, and there is room for it.
    """
    drawn: str | None = None
    for number in range(releases):
        text = ledger.note(_slot(number))
        if text is None:
            drawn = drawn or json.dumps({"name": name, **asdict(draw())})
            text = ledger.note(_slot(number), drawn)  # that of another process, if it was first
        kept, found = _estimate(text or "")
        if kept == name:
            return found
    return None


def _slot(number: int) -> str:
    return f"validation {number + 1}"


def _estimate(text: str) -> tuple[str, AccuracyEstimate]:
    fields: dict[str, Any] = json.loads(text)
    return fields.pop("name"), AccuracyEstimate(**fields)
