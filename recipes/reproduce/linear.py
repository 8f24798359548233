"""DP-SGD for softmax regression on fixed features: much faster than networks, with the same guarantee.

The gradient of one record for the weight matrix is the outer product of its features x and its residual p - y, so its
norm is |x| |p - y| and no gradient of a record is ever built. Sampling, clipping, noise and divisor are those of
:func:`darrm_torch.train_teachers`, against which a test checks the steps. All models are trained in one pass.

Features fixed without looking at any private record are the usual remedy for DP-SGD's noise, which grows with the
number of trained weights (Tramer and Boneh, ICLR 2021). These are histograms of oriented gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

BINS, CELL, DIRECTIONS = 8, 4, 60


def features(images: Tensor) -> Tensor:
    """``(N, 1, 28, 28)`` images as ``(N, 392)`` unit vectors: 8 directions of edges in each of 7x7 cells."""
    return torch.cat([_features(part) for part in images.split(2000)])


def _features(images: Tensor) -> Tensor:
    across = functional.pad(images, (1, 1, 0, 0), mode="replicate")
    along = functional.pad(images, (0, 0, 1, 1), mode="replicate")
    x, y = across[..., 2:] - across[..., :-2], along[..., 2:, :] - along[..., :-2, :]
    angle = torch.atan2(y, x) % math.pi * (BINS / math.pi)
    lower, size = angle.floor(), (x * x + y * y).sqrt()
    share, first = angle - lower, lower.long() % BINS
    edges = torch.zeros(len(images), BINS, *images.shape[2:])
    edges.scatter_add_(1, first, size * (1 - share))
    edges.scatter_add_(1, (first + 1) % BINS, size * share)
    return functional.normalize(functional.avg_pool2d(edges, CELL).flatten(1), dim=1)


def main_directions(found: Tensor) -> Tensor:
    """``(features, DIRECTIONS)``: an orthonormal basis that keeps as much of ``found`` as possible."""
    _, directions = torch.linalg.eigh(found.T @ found)
    return directions[:, -DIRECTIONS:]


@dataclass(frozen=True, kw_only=True)
class LinearModel:
    """How one model is trained.

    Attributes:
        rows: the positions of its records.
        noise: the noise multiplier; 0 trains without privacy.
        learning_rate: of SGD.
        size: its declared number of records, which fixes the divisor of the gradient.
    """

    rows: np.ndarray
    noise: float
    learning_rate: float
    size: int


def train(
    inputs: Tensor,
    labels: Tensor,
    models: Sequence[LinearModel],
    *,
    classes: int,
    sample_rate: float,
    steps: int,
    clip: float = 1.0,
    seed: int,
    start: Tensor | None = None,
) -> Tensor:
    """The weights ``(models, features, classes)`` after ``steps`` steps, each on its own Poisson sample.

    They start from ``start``, ``(features, classes)`` for all models, or else from zero.

    Formal guarantee: model k is the output of DP-SGD with noise multiplier ``models[k].noise``, ``sample_rate`` and
    ``steps`` for adding or removing one record. ``seed`` repeats a run: for studies only.
    """
    random = torch.Generator().manual_seed(seed)
    count, width = len(models), max(1, *(len(model.rows) for model in models))
    nobody = len(inputs)
    records = torch.full((count, width), nobody)
    for number, model in enumerate(models):
        records[number, : len(model.rows)] = torch.from_numpy(model.rows)
    inputs = torch.cat([inputs, torch.zeros(1, inputs.shape[1])])  # the last record is nobody: it has no gradient
    targets = functional.one_hot(torch.cat([labels, torch.zeros(1, dtype=torch.int64)]), classes).float()
    lengths = inputs.norm(dim=1)
    noise = torch.tensor([model.noise * clip for model in models])[:, None, None]
    pace = torch.tensor([model.learning_rate / (sample_rate * model.size) for model in models])[:, None, None]
    weights = torch.zeros(count, inputs.shape[1], classes)
    weights += 0.0 if start is None else start
    noisy = bool((noise > 0).any())
    for _ in range(steps):
        sampled = torch.rand(records.shape, generator=random) < sample_rate
        which, place = sampled.nonzero(as_tuple=True)
        sizes = sampled.sum(dim=1)
        batch = torch.full((count, int(sizes.max())), nobody)
        batch[which, torch.arange(len(which)) - (sizes.cumsum(0) - sizes)[which]] = records[which, place]
        x = inputs[batch]
        residual = torch.softmax(x @ weights, dim=2) - targets[batch]
        norm = (residual.norm(dim=2) * lengths[batch]).clamp_min(1e-12)
        gradient = x.transpose(1, 2) @ (residual * (clip / norm).clamp_max(1.0)[..., None])
        if noisy:
            gradient += noise * torch.randn(gradient.shape, generator=random)
        weights -= pace * gradient
    return weights


def probabilities(weights: Tensor, inputs: Tensor) -> Tensor:
    """``(models, N, classes)``: each model's class probabilities."""
    return torch.softmax(inputs @ weights, dim=2)


def student(inputs: Tensor, targets: Tensor, *, steps: int = 30) -> Tensor:
    """Weights ``(features, classes)`` of a softmax regression on public inputs and ``(N, classes)`` label weights."""
    weights = torch.zeros(inputs.shape[1], targets.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], lr=0.5, max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(inputs @ weights, targets) + 1e-3 * weights.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weights.detach()
