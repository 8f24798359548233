"""Losses on inputs without labels: a student should give the same answer where the answer should not change.

Public inputs without labels cost no privacy, so there may be many of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import v2

from ..arguments import is_dense
from ..errors import InvalidArgument, check_integer, check_number
from ..reprs import short_repr

__all__ = ["Consistency", "FixMatch", "VirtualAdversarialTraining"]

Transform = Callable[[Tensor], Tensor]
_positive = partial(check_number, low=0, low_open=True, high_open=True)
_weight = partial(check_number, low=0, high_open=True)


class Consistency(Protocol):
    """A loss on unlabelled inputs: any object with these two methods."""

    def augment(self, inputs: Tensor) -> Tensor:
        """Labelled inputs ``(B, ...)`` as the student should see them in training."""

    def loss(self, student: nn.Module, inputs: Tensor) -> Tensor:
        """The loss (a scalar) of unlabelled inputs ``(B, ...)``; ``student`` maps them to logits ``(B, classes)``."""


@dataclass(frozen=True, kw_only=True)
class VirtualAdversarialTraining:
    """VAT with entropy minimisation: predictions that are smooth near every input and decided; for inputs of any kind.

    The loss is ``weight KL(p(x) || p(x + r)) + entropy_weight H(p(x)) - balance_weight H(mean p)``, where r is the
    change of length ``radius`` that moves the prediction p most, found by power iteration (Miyato et al. 2018; PATE's
    student in Papernot et al. 2018).

    A student that predicts one class for everything is perfectly smooth and decided. Labels rule this out if a wrong
    prediction costs much. With the corrected loss of a noisy mechanism (``transition``) it does not, and training can
    end there. Then, if classes are about equally frequent, set ``balance_weight`` to 1: together with the entropy it
    maximises the information about the class (Krause, Perona, Gomes 2010; with VAT: Hu et al. 2017).

    Args:
        radius: Euclidean length of r: how far apart two inputs of one class can easily be. Miyato's epsilon.
        weight: of the divergence.
        entropy_weight: of the entropy, which pushes predictions away from the boundary.
        balance_weight: of the entropy of a batch's mean prediction, which is largest if classes are equally frequent.
        iterations: of the power method; one is usually enough.
        step: length of the difference quotient that replaces second derivatives; small against ``radius``, large
            against single precision.

    Raises:
        InvalidArgument: a number out of range.
    """

    radius: float = 2.0
    weight: float = 1.0
    entropy_weight: float = 1.0
    balance_weight: float = 0.0
    iterations: int = 1
    step: float = 1e-2

    def __post_init__(self) -> None:
        _positive("radius", self.radius)
        _weight("weight", self.weight)
        _weight("entropy_weight", self.entropy_weight)
        _weight("balance_weight", self.balance_weight)
        check_integer("iterations", self.iterations, low=1)
        _positive("step", self.step)

    def augment(self, inputs: Tensor) -> Tensor:
        """The inputs themselves."""
        return inputs

    def loss(self, student: nn.Module, inputs: Tensor) -> Tensor:
        """Mean over the batch.

        Raises:
            InvalidArgument: not a batch of floating-point inputs, or an empty one.
        """
        check_batch(inputs, "floats (B, ...), one input or more")
        if not inputs.is_floating_point() or inputs.dim() < 2:
            got = f"{inputs.dtype} of shape {tuple(inputs.shape)}"
            raise InvalidArgument("inputs", "floats (B, ...), one input or more", got)
        log_p = F.log_softmax(student(inputs), dim=1)
        with _statistics_kept(student):
            change = self.radius * self.direction(student, inputs, log_p.detach())
            divergence = _divergence(log_p.detach(), student(inputs + change))
        balance = _entropy(log_p.logsumexp(dim=0) - math.log(len(log_p)))
        return self.weight * divergence + self.entropy_weight * _entropy(log_p).mean() - self.balance_weight * balance

    def view(self, student: nn.Module, inputs: Tensor) -> Tensor:
        """The inputs ``(B, ...)`` after the change of length ``radius`` that moves the prediction most."""
        with torch.enable_grad():
            log_p = F.log_softmax(student(inputs), dim=1).detach()
            return inputs + self.radius * self.direction(student, inputs, log_p)

    def direction(self, student: nn.Module, inputs: Tensor, log_p: Tensor) -> Tensor:
        """Unit vectors ``(B, ...)`` along which the divergence from ``log_p`` grows fastest; zero where it is flat."""
        direction = _unit(torch.randn_like(inputs))
        for _ in range(self.iterations):
            probe = (self.step * direction).requires_grad_()
            (gradient,) = torch.autograd.grad(_divergence(log_p, student(inputs + probe)), probe)
            direction = _unit(gradient)
        return direction


def _divergence(log_p: Tensor, logits: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(logits, dim=1), log_p, reduction="batchmean", log_target=True)


def _entropy(log_law: Tensor) -> Tensor:
    return -(log_law.exp() * log_law).sum(dim=-1)


def _unit(rows: Tensor) -> Tensor:
    flat = rows.flatten(1)
    # First by the largest entry: squares of a small gradient would vanish.
    flat = flat / flat.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
    return F.normalize(flat).view_as(rows)


@contextmanager
def _statistics_kept(student: nn.Module) -> Iterator[None]:
    """Batch normalisation learns its statistics from real inputs, not from perturbed ones."""
    layers: list[Any] = [layer for layer in student.modules() if getattr(layer, "track_running_stats", False)]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


def _image(image: Tensor) -> Tensor:
    """The image, if the default transforms are built for it: others they would change into something else, silently."""
    colours = image.shape[0] if image.dim() == 3 else 0
    if colours not in (1, 3) or not image.is_floating_point() or not ((image >= 0) & (image <= 1)).all():
        cure = (
            "Divide bytes by 255. Give other images weak= and strong=; use VirtualAdversarialTraining for other inputs."
        )
        got = f"{image.dtype} of shape {tuple(image.shape)}"
        raise InvalidArgument("inputs", "images (B, 1 or 3, height, width), floats in [0, 1]", got, cure)
    return image


def _shift() -> Any:
    return v2.Compose([_image, v2.RandomAffine(degrees=0, translate=(0.125, 0.125))])


def _distortion() -> Any:
    cut_out = v2.RandomErasing(p=1.0, scale=(0.02, 0.25), ratio=(1.0, 1.0))
    return v2.Compose([_shift(), v2.RandAugment(num_ops=2), cut_out])


@dataclass(frozen=True, kw_only=True)
class FixMatch:
    """FixMatch (Sohn et al. 2020) for images: a confident prediction for a weakly changed image labels a distorted one.

    Where the student gives some class of the weakly changed image at least ``threshold``, that class is the label of
    the strongly changed one. Labelled images are weakly changed too. Each image is changed independently.

    Args:
        weak: image ``(channels, height, width)``, float in [0, 1], to one of the same kind; default: a shift of up to
            an eighth. Add ``v2.RandomHorizontalFlip`` where left and right do not matter.
        strong: default: the shift, two operations of RandAugment, and a square cut out.
        threshold: in [0, 1].
        weight: of this loss, relative to the loss of the labels.

    Raises:
        InvalidArgument: a number out of range.
    """

    weak: Transform = field(default_factory=_shift)
    strong: Transform = field(default_factory=_distortion)
    threshold: float = 0.95
    weight: float = 1.0
    __repr__ = short_repr

    def __post_init__(self) -> None:
        for name in ("weak", "strong"):
            if not callable(getattr(self, name)):
                raise InvalidArgument(name, "a function from an image to an image", getattr(self, name))
        check_number("threshold", self.threshold, low=0, high=1)
        _weight("weight", self.weight)

    def augment(self, inputs: Tensor) -> Tensor:
        """Weakly changed images."""
        return _each(self.weak, inputs)

    def view(self, student: nn.Module, inputs: Tensor) -> Tensor:
        """Strongly changed images."""
        return _each(self.strong, inputs)

    def loss(self, student: nn.Module, inputs: Tensor) -> Tensor:
        """Mean over the whole batch; images below the threshold count as zero."""
        with torch.no_grad():
            certainty, classes = student(_each(self.weak, inputs)).softmax(dim=1).max(dim=1)
        losses = F.cross_entropy(student(_each(self.strong, inputs)), classes, reduction="none")
        mean: Tensor = (losses * (certainty >= self.threshold)).mean()
        return self.weight * mean


def _each(transform: Transform, images: Tensor) -> Tensor:
    check_batch(images, "a batch of images, one or more")
    changed = [transform(image) for image in images]
    if not all(isinstance(one, Tensor) and one.shape == changed[0].shape for one in changed):
        got = sorted({type(one).__name__ for one in changed})
        raise InvalidArgument("weak and strong", "functions that return tensors of one shape", got)
    return torch.stack(changed)


def check_batch(inputs: Any, expected: str) -> None:
    """Refuse what is no batch of one dense, finite input or more: training on NaN would spoil the student silently."""
    if not isinstance(inputs, Tensor) or not is_dense(inputs) or not inputs.dim() or not len(inputs):
        got = type(inputs).__name__
        if isinstance(inputs, Tensor):
            dense = is_dense(inputs)
            got = f"{inputs.dtype}" + (
                f" of shape {tuple(inputs.shape)}" if dense else f", {inputs.layout}, {inputs.device}"
            )
        raise InvalidArgument("inputs", expected, got)
    if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
        raise InvalidArgument("inputs", "finite", "infinite numbers or NaN", "Check the data.")
