"""Canaries: records that leave a strong trace in a trained model, and how clearly a release shows each of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..arguments import as_array
from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument, check_integer

__all__ = ["Canaries", "Strength", "as_records", "make_canaries", "scores_of"]

Strength = Literal["gradient", "far-out", "mislabelled"]

_FAR = 10.0  # times the root mean square norm of the private inputs
_USUAL = 500
_ALONE = 4  # models
_HARDLY_USED = 0.01  # part of the mean use of a direction
_ENOUGH = 10  # directions; with fewer quiet ones all are taken
_QUIET = 1024  # up to so many dimensions, the directions that the private inputs use least are computed
_MOST_CLASSES = 10**5
_RETURNS = "a function that returns models, answers to its queries, or a tuple of its own queries and their labels"


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """m records: ``inputs`` (m, ...) and ``labels`` (m,) below ``classes``."""

    inputs: Any
    labels: IntArray
    classes: int


def make_canaries(
    strength: Strength, inputs: Any, labels: IntArray, given: Any, generator: np.random.Generator
) -> Canaries:
    """The canaries that are given, or ``given`` many of this strength.

    Raises:
        InvalidArgument: they do not fit the private records.
    """
    classes = int(labels.max()) + 1
    if isinstance(given, (tuple, list)) and len(given) == 2:
        rows, targets = as_records(given[0], given[1], "canaries")
        if rows.shape[1:] != inputs.shape[1:] or targets.max() >= max(classes, 2):
            expected = f"inputs (m, *{inputs.shape[1:]}) and labels below {max(classes, 2)}"
            raise InvalidArgument("canaries", expected, f"arrays {rows.shape} and {targets.shape}")
        return Canaries(inputs=rows.astype(inputs.dtype), labels=targets, classes=max(classes, 2))
    if classes < 2:
        raise InvalidArgument("labels", "of two or more classes", f"{classes}")
    count = (
        None
        if given is None
        else check_integer("canaries", given, low=1, high=10**6, cure="Or give a pair of inputs and labels.")
    )
    if strength == "mislabelled":
        rows = generator.integers(len(inputs), size=count or _USUAL)
        wrong = (labels[rows] + generator.integers(1, classes, size=len(rows))) % classes
        return Canaries(inputs=inputs[rows], labels=wrong, classes=classes)
    if inputs.dtype.kind != "f":
        raise InvalidArgument("strength", '"mislabelled", for inputs that are no floating-point numbers', strength)
    flat = np.nan_to_num(inputs.reshape(len(inputs), -1).astype(np.float64), posinf=0.0, neginf=0.0)
    directions = _directions(strength, flat, count, generator)
    targets = generator.integers(classes, size=len(directions))
    length = _FAR * max(float(np.sqrt((flat**2).sum(axis=1).mean())), 1.0)
    centre = flat.mean(axis=0) if strength == "far-out" else 0.0
    far = (centre + length * directions).astype(inputs.dtype)
    return Canaries(inputs=far.reshape(len(far), *inputs.shape[1:]), labels=targets, classes=classes)


def as_records(inputs: Any, labels: Any, name: str | None = None) -> tuple[Any, IntArray]:
    """Inputs (N, ...) and labels (N,) as arrays; ``name`` is what the caller calls the two together.

    Raises:
        InvalidArgument: they are no such arrays.
    """
    try:
        inputs = as_array(name or "inputs", inputs, "an array (N, ...) of numbers")
        labels = as_array(name or "labels", labels, "integers from 0, (N,)", kinds="iu")
    except InvalidArgument as error:  # without the values, which are private
        raise InvalidArgument(error.name, error.expected, f"a value of type {type(error.got).__name__}") from None
    if inputs.ndim < 2 or not inputs.size:
        raise InvalidArgument(name or "inputs", "an array (N, ...) of numbers", f"one of shape {inputs.shape}")
    if labels.shape != (len(inputs),) or labels.min() < 0 or labels.max() >= _MOST_CLASSES:
        expected = f"integers from 0, one for each of the {len(inputs)} inputs"
        raise InvalidArgument(name or "labels", expected, f"an array of shape {labels.shape}")
    return inputs, labels.astype(np.int64)


def _directions(strength: Strength, flat: FloatArray, count: int | None, generator: np.random.Generator) -> FloatArray:
    """Unit vectors (m, d): random ones, or those that the private inputs use least, each for as few as possible."""
    size = flat.shape[1]
    if strength == "far-out" or size > _QUIET:
        drawn = generator.standard_normal((count or _USUAL, size))
        return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))
    used, vectors = np.linalg.eigh(flat.T @ flat)  # the least used ones first
    quiet = int((used <= _HARDLY_USED * used.mean()).sum())
    count = count or min(_USUAL, quiet if quiet >= _ENOUGH else size)
    blocks = [vectors.T]
    for _ in range((count - 1) // size):
        blocks.append(np.linalg.qr(generator.standard_normal((size, size)))[0])
    return np.concatenate(blocks)[:count]


# --- scores -----------------------------------------------------------------------------------------------------------


def scores_of(release: Any, canaries: Canaries, queries: Any) -> FloatArray:
    """Scores (statistics, m): how much the release alone suggests that each canary was in the training data.

    Models, or answers to the canaries as queries, are compared by their margins for the canary's label. For several
    models, the first statistic is their mean margin, and the second is how far the largest margin is above that mean.
    Up to four models also have a statistic each. A least-squares model is first fitted to labels of other queries.

    Raises:
        InvalidArgument: the release is none of these.
    """
    if callable(release):
        release = [release]
    if isinstance(release, (list, tuple)) and release and all(map(callable, release)):
        margins = np.stack([_margins(_answers(model, queries), canaries) for model in release])
        mean = margins.mean(axis=0)
        if len(margins) == 1:
            return margins
        return np.stack([mean, (margins - mean).max(axis=0), *(margins if len(margins) <= _ALONE else ())])
    if isinstance(release, tuple) and len(release) == 2:
        return _margins(_least_squares(*as_records(release[0], release[1], "pipeline"), canaries), canaries)[None]
    return _margins(as_array("pipeline", release, _RETURNS), canaries)[None]


def _margins(answers: Any, canaries: Canaries) -> FloatArray:
    """The margin of each canary's label (m,): answers are labels (m,), a logit of class 1 (m,), or logits (m, C)."""
    count, rows = len(canaries.labels), np.arange(len(canaries.labels))
    if answers.ndim == 2 and answers.shape[1] == 1:
        answers = answers[:, 0]
    if answers.shape == (count,) and answers.dtype.kind in "iu":
        return np.asarray(answers == canaries.labels, dtype=np.float64)
    if answers.shape == (count,) and canaries.classes <= 2:
        return np.asarray(answers * (2 * canaries.labels - 1), dtype=np.float64)
    if answers.ndim != 2 or len(answers) != count or answers.shape[1] < canaries.classes:
        expected = f"labels ({count},), or logits or counts ({count}, {canaries.classes}), for {count} queries"
        raise InvalidArgument("pipeline", f"a function whose answers are {expected}", f"{answers.shape}")
    others = answers.astype(np.float64)
    own = others[rows, canaries.labels].copy()
    others[rows, canaries.labels] = -np.inf
    return np.asarray(own - others.max(axis=1))


def _answers(model: Callable[[Any], Any], inputs: Any) -> Any:
    if "torch" in sys.modules:
        from torch import nn

        from ..teachers.structures import evaluating, logits_of

        with evaluating(model) if isinstance(model, nn.Module) else contextlib.nullcontext():
            outputs = logits_of(model(inputs))
    else:
        outputs = model(inputs)
    return as_array("pipeline", outputs, "a function that returns models of arrays")


def _least_squares(queries: Any, labels: IntArray, canaries: Canaries) -> FloatArray:
    """Scores (m, C) of a linear model of the public queries and their labels."""
    classes = max(canaries.classes, int(labels.max()) + 1)
    flat = queries.reshape(len(queries), -1).astype(np.float64)
    far = canaries.inputs.reshape(len(canaries.labels), -1)
    if flat.shape[1] != far.shape[1]:
        raise InvalidArgument("pipeline", f"a function with queries of {far.shape[1]} numbers", flat.shape[1])
    centre, ridge = flat.mean(axis=0), 1e-3 * max(float(flat.var(axis=0).mean()), 1e-12) * len(flat)
    flat = flat - centre
    weights = np.linalg.solve(flat.T @ flat + ridge * np.eye(flat.shape[1]), flat.T @ np.eye(classes)[labels])
    return np.asarray((far - centre) @ weights)
