"""What every mechanism offers: counts of votes in, private labels out, with the exact law of the label."""

from __future__ import annotations

import functools
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, check_integer, check_number
from ..privacy.guarantees import PrivacyGuarantee
from .sampling import RandomBits

__all__ = ["Mechanism"]

MOST_VOTES = 2**31 - 1
MOST_LABELS = 2**53  # all of them are floats
_CURE = "Pass integer counts of shape (items, classes): column c says how many teachers voted for class c"


def _uncompiled(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Kept from torch.compile, which would rewrite the exact draws and cannot read the system's random bits."""

    @functools.wraps(method)
    def plain(self: Any, counts: Any) -> Any:
        dynamo = sys.modules.get("torch._dynamo")  # whoever compiles has imported it
        return method(self, counts) if dynamo is None else dynamo.disable(method)(self, counts)

    return plain


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """Turns votes into labels; the base of every mechanism.

    ``counts`` is (B, C) integers, a NumPy array or a Torch tensor: row b says how the K teachers voted on item b,
    column c how many of them for class c. Rows are labelled independently. What goes in as a tensor comes out as one,
    on the same device.

    Attributes:
        insecure_seed: ``None``: fresh bits of the operating system for each batch. A number, for tests only: a seeded
            generator, which whoever knows the seed can predict. No guarantee holds then, and ``secure`` is false.
    """

    insecure_seed: int | None = None
    _bits: RandomBits = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_bits", RandomBits(self.insecure_seed))

    @property
    def classes(self) -> int | None:
        """How many classes it is made for; ``None``: any number."""
        return None

    @property
    def teachers(self) -> int | None:
        """K, when it is made for one K; ``None``: any."""
        return None

    @property
    def certificate(self) -> Any:
        """The proof that comes with its noise; ``None`` where the proof is the mechanism's own theorem."""
        return None

    @property
    def secure(self) -> bool:
        """Whether the labels are drawn with bits that nobody can predict."""
        return self._bits.secure

    @_uncompiled
    def aggregate(self, counts: Any) -> Any:
        """One label for each row of ``counts`` (B, C).

        Returns:
            labels (B,) int64; -1 means "no answer", for mechanisms that may decline.

        Raises:
            InvalidArgument: ``counts`` is no integer matrix, has a negative entry, the wrong number of columns, or rows
                that do not sum to the number of teachers.
        """
        checked, give_back = self._read(counts)
        return give_back(self._draw(checked))

    @_uncompiled
    def label_probabilities(self, counts: Any) -> Any:
        """The exact law of the label of each row of ``counts`` (B, C), to within 1e-12: (B, C) float64.

        It depends on the votes and is as sensitive as they are: for analysis and tests, not for release.

        Raises:
            InvalidArgument: as :meth:`aggregate`.
        """
        checked, give_back = self._read(counts)
        return give_back(self._law(checked))

    @abstractmethod
    def guarantee(
        self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None
    ) -> PrivacyGuarantee | None:
        """What the mechanism's own randomness promise for ``labels`` labels together when only votes change.

        It holds whatever the teachers promise, if one record changes the votes of at most ``overlap`` teachers; labels
        may be asked adaptively. ``None``: its coins alone promise nothing, and privacy must come from the teachers.

        Args:
            labels: how many labels, Q >= 1.
            delta: the delta to state it at; ``None``: the one it was calibrated to, or 0.
            overlap: r; ``None``: the one that the mechanism was built for.
        """

    def proof(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> str:
        """By which argument :meth:`guarantee` holds for the same arguments, in a few words."""
        theorem = f"by the theorem of {type(self).__name__}"
        return theorem if labels == 1 else f"{theorem} for one label, and composition of {labels}"

    def self_bounding_allowance(self, *, teachers: int | None = None, overlap: int | None = None) -> float:
        """The smallest proven m for which the mechanism is m-self-bounding, ``math.inf`` if none is known.

        With (eps, Delta)-DP teachers, Q labels of an m-self-bounding mechanism are (Q m eps, Q m Delta)-DP together,
        also when all are asked of the same teachers.

        Args:
            teachers: K; may be left out where the mechanism knows it.
            overlap: r, how many teachers one record can touch; ``None``: all K.
        """
        return math.inf

    def describe(self) -> dict[str, Any]:
        """What it is, in values that JSON can hold: kind, parameters, source of randomness, notes."""
        return {
            "kind": type(self).__name__,
            "classes": self.classes,
            "teachers": self.teachers,
            "parameters": self._parameters(),
            "randomness": "operating system" if self.secure else "INSECURE seed: no guarantee holds",
            "secure": self.secure,
            "notes": self._notes(),
        }

    @abstractmethod
    def _parameters(self) -> dict[str, Any]: ...

    def _notes(self) -> list[str]:
        return []

    @abstractmethod
    def _draw(self, counts: IntArray) -> IntArray: ...

    @abstractmethod
    def _law(self, counts: IntArray) -> FloatArray: ...

    def _read(self, counts: Any) -> tuple[IntArray, Callable[[Any], Any]]:
        """``counts`` as a checked (B, C) int64 array, and the way back to where it came from."""
        torch = sys.modules.get("torch")  # whoever holds a tensor has imported it; others need not pay for it
        give_back: Callable[[Any], Any] = _same
        if torch is not None and isinstance(counts, torch.Tensor):
            device = counts.device
            if counts.is_floating_point() or counts.is_complex():
                raise InvalidArgument("counts", "integers", str(counts.dtype), _CURE)

            def give_back(result: Any) -> Any:
                return torch.from_numpy(result).to(device)

            try:
                counts = counts.detach().cpu().numpy()
            except (TypeError, RuntimeError):  # sparse, or without data
                raise InvalidArgument("counts", "a dense tensor", f"{counts.layout} on {device}", _CURE) from None
        if np.ma.is_masked(counts):
            raise InvalidArgument("counts", "without masked entries", counts, _CURE)
        try:
            array = np.asarray(counts)
        except ValueError:
            raise InvalidArgument("counts", "rows of equal length", counts, _CURE) from None
        if array.dtype.kind not in "iu":
            raise InvalidArgument("counts", "integers", str(array.dtype), _CURE)
        if array.ndim != 2 or array.shape[1] < 2:
            raise InvalidArgument("counts", "of shape (items, classes), two classes or more", array.shape, _CURE)
        if self.classes is not None and array.shape[1] != self.classes:
            raise InvalidArgument("counts", f"of shape (items, {self.classes})", array.shape, self._classes_cure())
        if array.size and (array.min() < 0 or array.max() > MOST_VOTES):
            raise InvalidArgument("counts", "in [0, 2**31)", f"[{array.min()}, {array.max()}]", _CURE)
        checked = array.astype(np.int64)
        sums = checked.sum(axis=1)
        if sums.size:
            teachers = self.teachers or int(sums[0])
            wrong = np.flatnonzero(sums != teachers)
            if wrong.size or teachers < 1:
                row = int(wrong[0]) if wrong.size else 0
                expected = f"rows that sum to {f'the {teachers} teachers' if teachers else 'one teacher or more'}"
                raise InvalidArgument("counts", expected, f"row {row} with sum {sums[row]}", _CURE)
        return checked, give_back

    def _classes_cure(self) -> str:
        return ""


@dataclass(frozen=True, kw_only=True)
class NoisyCounts(Mechanism):
    """A mechanism that protects the counts by its own coins, and is calibrated to an overlap.

    Args:
        overlap: r, how many teachers one record can touch: 1 for disjoint shards.
        teachers: K, ``None`` for any.
    """

    overlap: int = 1
    teachers: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "overlap", check_integer("overlap", self.overlap, low=1, high=MOST_VOTES))
        if self.teachers is not None:
            object.__setattr__(self, "teachers", check_integer("teachers", self.teachers, low=1, high=MOST_VOTES))

    def _check(self, name: str, **limits: Any) -> float:
        """Replace a field by its value as a float in the limits of :func:`check_number`."""
        value = check_number(name, getattr(self, name), **limits)
        object.__setattr__(self, name, value)
        return value


def _same(result: Any) -> Any:
    return result


def check_request(labels: Any, delta: Any, overlap: Any) -> tuple[int, float | None, int | None]:
    """The arguments of :meth:`Mechanism.guarantee`, checked."""
    return (
        check_integer("labels", labels, low=1, high=MOST_LABELS),
        None if delta is None else check_number("delta", delta, low=0.0, high=1.0, high_open=True),
        None if overlap is None else check_integer("overlap", overlap, low=1, high=MOST_VOTES),
    )
