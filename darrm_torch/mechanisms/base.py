"""The protocol of every mechanism: counts of votes in, private labels out, with the exact law of the label."""

from __future__ import annotations

import functools
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ..arguments import is_inflated
from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, check_integer, check_number
from ..privacy.guarantees import PrivacyGuarantee
from ..privacy.profiles import PrivacyProfile
from .gaussian import pure_composition
from .label_curves import composed_epsilon, worst_curve
from .sampling import RandomBits

__all__ = ["MOST_LABELS", "MOST_VOTES", "AnyVotes", "Mechanism", "NoisyCounts", "PureLabels", "check_request"]

MOST_VOTES = 2**31 - 1
MOST_LABELS = 2**53  # every integer up to this is a float
_CURE = "Pass integer counts of shape (items, classes): column c says how many teachers voted for class c"


def _uncompiled(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """``method``, hidden from torch.compile: compilation would change the exact draws and the source of random bits."""

    @functools.wraps(method)
    def plain(self: Any, counts: Any) -> Any:
        dynamo = sys.modules.get("torch._dynamo")  # torch.compile has imported it
        return method(self, counts) if dynamo is None else dynamo.disable(method)(self, counts)

    return plain


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """Turns votes into labels; the base class of every mechanism.

    ``counts`` is an integer array or tensor of shape (B, C): row b counts the votes on item b, column c those for class
    c. The votes are those of all K teachers, or of a ``jury``. Rows are labelled independently. NumPy arrays give NumPy
    arrays; Torch tensors give tensors on the same device.

    A new mechanism is a frozen dataclass that derives from this class (or from :class:`AnyVotes`, :class:`NoisyCounts`
    or :class:`PureLabels`, which add the usual fields) and implements four methods:

    * :meth:`guarantee`: what its own randomness promises, with the proof in the docstring;
    * ``_draw(counts)``: the labels (B,) int64, drawn with ``self._bits`` only and compared as integers, not as floats;
    * ``_law(counts)``: their exact law, (B, C) float64 with rows that sum to 1, plus a column for "no answer" if the
      mechanism may decline;
    * ``_parameters()``: what defines it, as JSON values.

    ``counts`` is already checked there: (B, C) int64, where B may be 0 and all rows sum to the same K >= 1. It may also
    override the properties below, :meth:`proof`, :meth:`self_bounding_allowance` and ``_notes()``. A kind of
    the planner (``planning/families.py``) is tested by ``tests/mechanisms/test_conformance.py``; any other mechanism
    needs an entry in ``MECHANISMS`` there.

    Attributes:
        insecure_seed: ``None``: fresh bits from the operating system for each batch. A number, for tests only: a seeded
            generator, which anyone who knows the seed can predict. Then no guarantee holds and ``secure`` is false.
        alternatives: what to use for another number of classes, for error messages; empty if it takes any number.
        shares: how many equal shares a teacher may split its vote into; 1: a vote goes to one class. Rows of ``counts``
            then count shares.
        releases: what it returns, in the plural, for reports.

    The vote of one teacher, chosen at random for each item:

    >>> @dataclass(frozen=True, kw_only=True)
    ... class RandomTeacher(Mechanism):
    ...     def guarantee(self, *, labels=1, delta=None, overlap=None):
    ...         return None  # all privacy comes from the teachers
    ...
    ...     def self_bounding_allowance(self, *, teachers=None, overlap=None):
    ...         return 1.0
    ...
    ...     def _draw(self, counts):
    ...         vote = self._bits.below(counts.sum(axis=1))
    ...         return (np.cumsum(counts, axis=1) <= vote[:, None]).sum(axis=1)
    ...
    ...     def _law(self, counts):
    ...         return counts / counts.sum(axis=1, keepdims=True)
    ...
    ...     def _parameters(self):
    ...         return {}
    >>> RandomTeacher().label_probabilities([[3, 1], [0, 4]]).tolist()
    [[0.75, 0.25], [0.0, 1.0]]
    """

    alternatives: ClassVar[str] = ""
    shares: ClassVar[int] = 1
    releases: ClassVar[str] = "labels"
    insecure_seed: int | None = None
    _bits: RandomBits = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_bits", RandomBits(self.insecure_seed))
        if self.insecure_seed is not None:
            object.__setattr__(self, "insecure_seed", _Seed(self.insecure_seed))

    @property
    def classes(self) -> int | None:
        """C, the number of classes that it is built for; ``None``: any number."""
        return None

    @property
    def teachers(self) -> int | None:
        """K, the number of teachers that it is built for; ``None``: any number."""
        return None

    @property
    def jury(self) -> int | None:
        """n, how many of the K teachers vote, drawn at random; ``None``: all of them."""
        return None

    @property
    def redrawn(self) -> bool:
        """Whether each label has a new jury; otherwise one jury votes on all labels."""
        return False

    @property
    def certificate(self) -> Any:
        """The certificate of its noise; ``None`` where the proof is the mechanism's own theorem."""
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
        checked, restore = self._checked(counts)
        return restore(self._draw(checked))

    @_uncompiled
    def label_probabilities(self, counts: Any) -> Any:
        """The exact law of the label of each row of ``counts`` (B, C), to within 1e-12: (B, C) float64.

        The law depends on the votes and is as sensitive as they are: for analysis and tests, not for release.

        Raises:
            InvalidArgument: as :meth:`aggregate`.
        """
        checked, restore = self._checked(counts)
        return restore(self._law(checked))

    @abstractmethod
    def guarantee(
        self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None
    ) -> PrivacyGuarantee | None:
        """What the mechanism's own randomness promises for ``labels`` labels together, with the votes as its data.

        The guarantee holds whatever the teachers promise, if one record changes the votes of at most ``overlap``
        teachers, also for labels that are requested adaptively. ``None``: its own randomness promises nothing, and
        privacy must come from the teachers.

        Args:
            labels: Q >= 1, the number of labels.
            delta: the delta at which to state it; ``None``: the one that the mechanism was calibrated to, or 0.
            overlap: r; ``None``: the one that the mechanism was built for.

        Raises:
            InvalidArgument: an argument out of range.
        """

    def proof(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> str:
        """A phrase that names the proof of what :meth:`guarantee` returns for the same arguments."""
        labels, _, _ = check_request(labels, delta, overlap)
        theorem = f"by the theorem of {type(self).__name__}"
        return theorem if labels == 1 else f"{theorem} for one label, and composition of {labels}"

    def self_bounding_allowance(self, *, teachers: int | None = None, overlap: int | None = None) -> float:
        """The smallest proven m for which the mechanism is m-self-bounding, ``math.inf`` if none is known.

        With (eps, Delta)-DP teachers, Q labels of an m-self-bounding mechanism are (Q m eps, Q m Delta)-DP together,
        also when all of them come from the same teachers.

        Args:
            teachers: K; may be left out where the mechanism knows it.
            overlap: r, the largest number of teachers that have a record in their training data; ``None``: all K.
        """
        check_request(1, None, overlap)
        if teachers is not None:
            self._teacher_count(teachers)
        return math.inf

    def label_promise(
        self, *, teacher: PrivacyProfile, teachers: int, overlap: int, labels: int, delta: float
    ) -> PrivacyProfile | None:
        """One label as a release of teachers that promise ``teacher`` each; ``None`` if nothing is known.

        Args:
            teacher: what each teacher promises.
            teachers: K.
            overlap: r.
            labels: how many labels, each of votes of its own, are to be composed; it decides which points are useful.
            delta: of all labels together.
        """
        return None

    def describe(self) -> dict[str, Any]:
        """The mechanism as JSON values: kind, parameters, source of randomness, notes."""
        return {
            "kind": type(self).__name__,
            "releases": self.releases,
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

    def _validate(self, name: str, check: Callable[..., Any] = check_number, **limits: Any) -> None:
        """Replace a field by what ``check`` makes of it: a float or an integer within ``limits``."""
        object.__setattr__(self, name, check(name, getattr(self, name), **limits))

    def _teacher_count(self, teachers: Any) -> int:
        """K, as given or as the mechanism knows it; the two must agree."""
        count = self.teachers if teachers is None else check_integer("teachers", teachers, low=1, high=MOST_VOTES)
        if count is None or self.teachers not in (None, count):
            raise InvalidArgument("teachers", f"{self.teachers or 'K, the number of teachers'}", teachers)
        return count

    def _checked(self, counts: Any) -> tuple[IntArray, Callable[[Any], Any]]:
        """``counts`` as a checked (B, C) int64 array, and a function that turns a result into the caller's type."""
        torch = sys.modules.get("torch")  # imported by any caller who holds a tensor; no one else pays for the import
        restore: Callable[[Any], Any] = _same
        if torch is not None and isinstance(counts, torch.Tensor):
            device = counts.device
            if counts.is_floating_point() or counts.is_complex():
                raise InvalidArgument("counts", "integers", str(counts.dtype), _CURE)

            def restore(result: Any) -> Any:
                return torch.from_numpy(result).to(device)

            try:
                counts = counts.detach().cpu().numpy()
            except (TypeError, RuntimeError):  # sparse, or without data
                raise InvalidArgument("counts", "a dense tensor", f"{counts.layout} on {device}", _CURE) from None
        if np.ma.is_masked(counts):
            raise InvalidArgument("counts", "without masked entries", counts, _CURE)
        if is_inflated(counts):
            raise InvalidArgument("counts", "stored whole, not an expanded or broadcast array", counts, _CURE)
        try:
            array = np.asarray(counts)
        except Exception:  # a list of arrays may raise any
            raise InvalidArgument("counts", "rows of equal length", counts, _CURE) from None
        if array.dtype.kind not in "iu":
            raise InvalidArgument("counts", "integers", str(array.dtype), _CURE)
        if array.ndim != 2 or array.shape[1] < 2:
            raise InvalidArgument("counts", "of shape (items, classes), two classes or more", array.shape, _CURE)
        if self.classes is not None and array.shape[1] != self.classes:
            raise InvalidArgument("counts", f"of shape (items, {self.classes})", array.shape, self.alternatives)
        if array.size and (array.min() < 0 or array.max() > MOST_VOTES * self.shares):
            most = "2**31" if self.shares == 1 else f"2**31 * {self.shares}"
            raise InvalidArgument("counts", f"in [0, {most})", "others", _CURE)
        checked = array.astype(np.int64)
        sums = checked.sum(axis=1)
        if sums.size:
            votes = self.jury or self.teachers or int(sums[0]) // self.shares
            wrong = np.flatnonzero(sums != votes * self.shares)
            if wrong.size or votes < 1:
                row = int(wrong[0]) if wrong.size else 0
                expected = f"rows that sum to {f'the {votes} teachers' if votes else 'one teacher or more'}"
                expected += f" times {self.shares} shares" * (self.shares > 1)
                raise InvalidArgument("counts", expected, f"row {row} with sum {sums[row]}", _CURE)
        return checked, restore


class _Seed(int):
    """A seed that is not printed: anyone who knows it can predict the noise."""

    def __repr__(self) -> str:
        return "<hidden>"


def _same(result: Any) -> Any:
    return result


@dataclass(frozen=True, kw_only=True)
class AnyVotes(Mechanism):
    """A mechanism for any number of teachers and classes, unless they are given.

    Args:
        teachers: K, ``None`` for any number; other counts are refused.
        classes: C, ``None`` for any number; other counts are refused.
    """

    teachers: int | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low in (("teachers", 1), ("classes", 2)):
            if getattr(self, name) is not None:
                self._validate(name, check_integer, low=low, high=MOST_VOTES)


@dataclass(frozen=True, kw_only=True)
class NoisyCounts(AnyVotes):
    """A mechanism that protects the counts by its own randomness, treats classes alike and is built for an overlap.

    Args:
        overlap: r, the largest number of teachers that have a record in their training data: 1 for disjoint shards.
        teachers, classes: as in :class:`AnyVotes`.
    """

    overlap: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._validate("overlap", check_integer, low=1, high=MOST_VOTES)

    @property
    def _terms(self) -> float:
        """How many values of the noise its law sums over, roughly."""
        return 1.0

    def _listed_epsilon(self, labels: int, delta: float, overlap: int, beyond: PrivacyGuarantee) -> float:
        """Epsilon of ``labels`` labels by the worst curve of one label; infinite where it cannot be listed.

        Args:
            labels: Q.
            delta: of all labels.
            overlap: r.
            beyond: a guarantee of one label, see :func:`worst_curve`.
        """
        return composed_epsilon(_listed(self, overlap, beyond), labels, delta) if delta > 0 else math.inf


@functools.lru_cache(maxsize=64)
def _listed(mechanism: NoisyCounts, overlap: int, beyond: PrivacyGuarantee) -> tuple[PrivacyGuarantee, ...]:
    teachers, classes = mechanism.teachers, mechanism.classes
    if teachers is None or classes is None:
        return ()
    limits: dict[str, Any] = {"overlap": overlap, "beyond": beyond, "terms": mechanism._terms}
    return worst_curve(mechanism._law, teachers=teachers, classes=classes, **limits)


class PureLabels(Mechanism):
    """A mechanism each of whose labels is epsilon-DP with delta = 0, and ``_zcdp`` * epsilon**2-zCDP."""

    _zcdp: ClassVar[float] = 1 / 2  # true of every epsilon-DP mechanism (Bun & Steinke 2016, Prop. 1.4)

    def guarantee(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> PrivacyGuarantee:
        """(Q epsilon, 0) for ``labels`` labels together, or a smaller epsilon at a positive ``delta``."""
        labels, delta, overlap = check_request(labels, delta, overlap)
        epsilon = self._label_epsilon(overlap)
        total = pure_composition(epsilon, self._zcdp * epsilon**2, labels=labels, delta=delta or 0.0)
        if not isinstance(self, NoisyCounts):
            return total
        one = PrivacyGuarantee(epsilon=epsilon)
        listed = self._listed_epsilon(labels, total.delta, overlap or self.overlap, one)
        return PrivacyGuarantee(epsilon=min(total.epsilon, listed), delta=total.delta)

    @abstractmethod
    def _label_epsilon(self, overlap: int | None) -> float:
        """The epsilon of one label when one record changes at most ``overlap`` votes; ``None``: as it was built."""


def check_request(labels: Any, delta: Any, overlap: Any) -> tuple[int, float | None, int | None]:
    """The arguments of :meth:`Mechanism.guarantee`, checked."""
    return (
        check_integer("labels", labels, low=1, high=MOST_LABELS),
        None if delta is None else check_number("delta", delta, low=0.0, high=1.0, high_open=True),
        None if overlap is None else check_integer("overlap", overlap, low=1, high=MOST_VOTES),
    )
