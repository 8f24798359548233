"""InteractiveGNMax: answers only where the teachers disagree with the student or the student is unsure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import as_array, checked
from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument
from .base import Mechanism
from .confident import ConfidentGNMax

__all__ = ["InteractiveGNMax", "informed"]


def informed(mechanism: Mechanism, guesses: Any, items: int) -> Callable[[Sequence[int]], Mechanism]:
    """Returns a function: the mechanism for the items at these positions, with their guesses if there are any.

    Raises:
        InvalidArgument: guesses for another number of items, or for a mechanism that does not use them.
    """
    if guesses is None:
        return lambda rows: mechanism
    if not isinstance(mechanism, InteractiveGNMax):
        raise InvalidArgument("guesses", "None, because only InteractiveGNMax uses them", type(mechanism).__name__)
    table = as_array("guesses", guesses, _EXPECTED)
    table = table.reshape(-1, *table.shape[-1:])  # those of several findings: (items, findings, 2)
    if len(table) != items:
        raise InvalidArgument("guesses", f"one row for each of the {items} questions", len(table))
    normalized = mechanism.given(table)._guesses
    assert normalized is not None
    return lambda rows: mechanism._with(normalized[list(rows)])


@checked
@dataclass(frozen=True, kw_only=True)
class InteractiveGNMax(ConfidentGNMax):
    """Interactive-GNMax (Papernot et al. 2018, Algorithm 2): ConfidentGNMax on what the teachers add to a guess.

    The student guesses the class probabilities p of each item. With K teachers, K p is what their votes would be if
    they agreed with it. The teachers answer where the noisy highest surplus, max over the classes of count - K p,
    reaches the threshold; K p is rounded to whole votes. Where they do not, the label is the student's own class if its
    probability is at least ``confidence``, which reinforces it, and otherwise -1, no answer.

    Guarantee: that of :class:`ConfidentGNMax`, for guesses that depend on earlier labels and public data only, such as
    those of a student. Proof: given the guesses, which are constants, r changed votes change each surplus by at most r,
    so the check is the same Gaussian mechanism, and the rest is post-processing. Guesses that depend on earlier labels
    are adaptive questions, which the composition of Gaussian mechanisms covers; :class:`DataDependentLoss` does not,
    and needs guesses that were fixed beforehand. An item without an answer of the teachers counts as a label.

    Without guesses it is ConfidentGNMax.

    Args:
        threshold: T, in votes of surplus. Teachers that agree with a sure guess have none.
        confidence: the student's own class is the label where it has at least this probability; at most 2, and above 1:
            never.
        sigma_check, sigma, overlap, teachers, classes, delta: as in :class:`ConfidentGNMax`.

    Raises:
        InvalidArgument: an argument out of range.

    >>> mechanism = InteractiveGNMax(threshold=100, sigma_check=10, sigma=4, confidence=0.9, delta=1e-5)
    >>> guesses = [[0.98, 0.02], [0.98, 0.02], [0.6, 0.4], [0.3, 0.7]]
    >>> mechanism.given(guesses).aggregate([[250, 0], [10, 240], [150, 100], [250, 0]]).tolist()
    [0, 1, -1, 0]
    """

    confidence: float = 0.9
    _guesses: FloatArray | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._validate("confidence", low=0.0, high=2.0)

    def given(self, guesses: npt.ArrayLike) -> InteractiveGNMax:
        """The same mechanism for items with these guesses.

        Args:
            guesses: ``(B, C)``, probabilities with rows that sum to 1 (to within 1e-3, for half precision); row b
                belongs to row b of ``counts``.

        Raises:
            InvalidArgument: guesses that are not such probabilities.
        """
        table = as_array("guesses", guesses, _EXPECTED).astype(np.float64)
        if table.ndim != 2 or table.shape[1] != (self.classes or table.shape[1]):
            raise InvalidArgument("guesses", _EXPECTED, f"shape {table.shape}")
        if not (np.all(table >= 0) and np.all(np.abs(table.sum(axis=1) - 1) < 1e-3)):  # NaN is refused, too
            raise InvalidArgument("guesses", _EXPECTED, "others", "Apply softmax to logits.")
        return self._with(table / table.sum(axis=1, keepdims=True))

    def _with(self, guesses: FloatArray) -> InteractiveGNMax:
        informed = copy.copy(self)
        object.__setattr__(informed, "_guesses", guesses)
        return informed

    def _checked_votes(self, counts: IntArray) -> IntArray:
        """The highest surplus of each row of ``counts``, (B,) integers in 0..K."""
        if self._guesses is None:
            return super()._checked_votes(counts)
        expected = np.rint(self._guesses * counts.sum(axis=1, keepdims=True)).astype(np.int64)
        # A row of ``expected`` sums to K + C/2 at most, so the mean surplus is at least -1/2, the highest at least 0.
        return np.asarray((counts - expected).max(axis=1))

    def _checked(self, counts: Any) -> tuple[IntArray, Callable[[Any], Any]]:
        checked, restore = super()._checked(counts)
        if self._guesses is not None and self._guesses.shape != checked.shape:
            raise InvalidArgument("counts", f"of shape {self._guesses.shape}, the shape of the guesses", checked.shape)
        return checked, restore

    def _draw(self, counts: IntArray) -> IntArray:
        labels = super()._draw(counts)
        return labels if self._guesses is None else np.where(labels < 0, self._own_class(self._guesses), labels)

    def _law(self, counts: IntArray) -> FloatArray:
        law = super()._law(counts)
        if self._guesses is not None:
            own = self._own_class(self._guesses)
            rows = np.flatnonzero(own >= 0)
            law[rows, own[rows]] += law[rows, -1]
            law[rows, -1] = 0.0
        return law

    def _own_class(self, guesses: FloatArray) -> IntArray:
        """The student's class where it is confident, otherwise -1."""
        return np.where(guesses.max(axis=1) >= self.confidence, guesses.argmax(axis=1), -1)

    def _parameters(self) -> dict[str, Any]:
        return {**super()._parameters(), "confidence": self.confidence}

    def _notes(self) -> list[str]:
        own = "where the teachers do not answer, a confident guess of the student is the label"
        return [*super()._notes(), own, "assumed: guesses depend on earlier labels and public data only"]

    def _listed_epsilon(self, *request: Any) -> float:
        return float("inf")  # the law depends on the guesses, too


_EXPECTED = "probabilities of shape (items, classes), with rows that sum to 1"
