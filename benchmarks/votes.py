"""Votes of teachers on public data, for the benchmarks that need real ones: small, quick, and never private.

Teachers are logistic regressions, trained in NumPy by DP-SGD (clipping, Gaussian noise, Poisson batches) or without
noise, because a benchmark needs hundreds of them. Nothing here protects anything: the seeds are known.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from recipes import data

RATE, STEPS = 1 / 35, 175  # of each teacher, as in the README
LEARNING_RATES = {True: 0.5, False: 0.2}  # with noise, without
TESTED = 2000  # test images of a pair


@functools.cache
def dataset(name: str) -> tuple[Any, Any, Any, Any]:
    """Training inputs and labels, test inputs and labels, of two classes.

    ``"fashion-mnist 2v4"``, ``"mnist-5000 3v8"`` and ``"mnist-5000 even-odd"`` are pictures of 14 by 14 pixels;
    ``"digits"`` and ``"cancer"`` are bundled with scikit-learn (even against odd digits; malignant or benign).
    """
    source, _, classes = name.partition(" ")
    if classes:
        task = data.load_task(source, classes=classes)
        images = [task.private_images, task.public_images, task.heldout_images]
        small = [part.numpy().reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196) for part in images]
        labels = [part.numpy() for part in (task.private_labels, task.public_labels, task.heldout_labels)]
        return small[0], labels[0], np.concatenate(small[1:]), np.concatenate(labels[1:])
    from sklearn import datasets

    if source == "digits":
        inputs, labels = datasets.load_digits(return_X_y=True)
        inputs, labels = inputs / 16, labels % 2
    else:
        inputs, labels = datasets.load_breast_cancer(return_X_y=True)
        inputs = np.tanh((inputs - inputs.mean(0)) / inputs.std(0))
    order = np.random.default_rng(0).permutation(len(inputs))
    train, test = order[: 2 * len(order) // 3], order[2 * len(order) // 3 :]
    inputs = inputs.astype(np.float32)
    return inputs[train], labels[train], inputs[test], labels[test]


def votes(
    name: str, *, teachers: int, overlap: int, noise: float | None, seed: int, folder: Path | None = None
) -> tuple[Any, Any]:
    """The votes of each teacher on the test items, ``(items, K)`` of 0 and 1, and the true classes.

    Each record is in the shards of ``overlap`` teachers drawn at random; ``noise`` is the multiplier, or None.

    Args:
        folder: where votes are kept, so that an interrupted benchmark goes on.
    """
    inputs, labels, tests, truth = dataset(name)
    file = None if folder is None else folder / f"{name}-{teachers}-{overlap}-{noise}-{seed}.npy".replace(" ", "-")
    if file is not None and file.is_file():
        return np.load(file), truth[:TESTED]
    rng = np.random.default_rng(seed)
    drawn = np.argsort(rng.random((len(inputs), teachers)), axis=1)[:, :overlap]
    nominal = len(inputs) * overlap / teachers
    inputs, tests = (np.c_[part, np.ones(len(part), np.float32)] for part in (inputs, tests[:TESTED]))
    given = []
    for teacher in range(teachers):
        own = np.flatnonzero((drawn == teacher).any(axis=1))
        weights = _trained(inputs[own], labels[own], noise=noise, batch=max(1.0, nominal * RATE), rng=rng)
        given.append(tests @ weights > 0)
    result = np.stack(given, axis=1).astype(np.int8)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, result)
    return result, truth[:TESTED]


def _trained(inputs: Any, labels: Any, *, noise: float | None, batch: float, rng: np.random.Generator) -> Any:
    """The weights of a logistic regression."""
    weights, lengths = np.zeros(inputs.shape[1], np.float32), np.linalg.norm(inputs, axis=1)
    for _ in range(STEPS):
        rows = np.flatnonzero(rng.random(len(inputs)) < RATE)
        errors = 1 / (1 + np.exp(-np.clip(inputs[rows] @ weights, -30, 30))) - labels[rows]
        if noise is not None:
            errors = errors * np.minimum(1, 1 / np.maximum(np.abs(errors) * lengths[rows], 1e-12))
        gradient = errors @ inputs[rows]
        if noise is not None:
            gradient = gradient + noise * rng.normal(size=len(weights))
        weights -= (LEARNING_RATES[noise is not None] * gradient / batch).astype(np.float32)
    return weights


def accuracies(given: Any, truth: Any) -> tuple[float, float]:
    """The mean accuracy of one teacher, and that of the majority of all (a tie counts half)."""
    right = (given == truth[:, None]).sum(axis=1)
    teachers = given.shape[1]
    return float(right.mean() / teachers), float(np.mean((2 * right > teachers) + 0.5 * (2 * right == teachers)))
