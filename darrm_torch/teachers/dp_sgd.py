"""One teacher's training, in this process.

Sample rate, number of steps and the divisor of the noisy gradient are computed from declared public numbers, never from
the size of the shard, so a neighbouring data set is trained in exactly the same way, even on an empty shard. Every
teacher draws its noise from its own generator.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ..arguments import checked
from ..errors import InvalidArgument, UnprovenPrivacy, check_integer, check_number
from .checkpoints import FORMAT, FORMAT_KEY
from .secure import SECURE, SecureRandom

__all__ = ["TrainingSettings", "ignored_records", "train_teacher"]


@checked
@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How each teacher is trained: by DP-SGD, or by plain SGD if ``noise_multiplier`` is ``None``.

    Attributes:
        noise_multiplier: standard deviation of the noise divided by ``max_grad_norm``; ``None`` trains without privacy.
        max_grad_norm: L2 bound of one record's gradient.
        batch_size: expected (Poisson-sampled) batch size, also the divisor of the summed noisy gradient.
        epochs: passes over a shard of the nominal size.
        learning_rate: of SGD without momentum.

    >>> settings = TrainingSettings(noise_multiplier=2.0, batch_size=32, epochs=3)
    >>> settings.steps_per_epoch(1000)
    32
    """

    noise_multiplier: float | None = 12.0
    max_grad_norm: float = 1.0
    batch_size: int = 32
    epochs: int = 5
    learning_rate: float = 0.05

    def __post_init__(self) -> None:
        if self.noise_multiplier is not None:
            check_number("noise_multiplier", self.noise_multiplier, low=0, low_open=True, high_open=True)
        check_number("max_grad_norm", self.max_grad_norm, low=0, low_open=True, high_open=True)
        check_integer("batch_size", self.batch_size, low=1)
        check_integer("epochs", self.epochs, low=1)
        check_number("learning_rate", self.learning_rate, low=0, low_open=True, high_open=True)

    @checked
    def steps_per_epoch(self, shard_size: int) -> int:
        """Steps of one epoch over a shard of the declared size: the sample rate is its reciprocal."""
        return math.ceil(check_integer("shard_size", shard_size, low=1, high=2**53) / self.batch_size)


@checked
def ignored_records(inputs: Tensor, labels: Tensor, *, classes: int) -> Tensor:
    """The positions (n,) int64 of records that contribute nothing to a training, as private as the records themselves.

    These are records with a NaN or infinity, and records whose label is no number from 0 to ``classes - 1``. Training
    never complains about them, because whether it did would depend on single records. Check your data with this
    function beforehand, and do not publish what it returns.

    Args:
        inputs: ``(N, ...)``, the private records.
        labels: ``(N,)`` integers.
        classes: the number of outputs of the network.

    Raises:
        InvalidArgument: tensors of different lengths.

    >>> ignored_records(torch.tensor([[0.5], [float("nan")], [1.0]]), torch.tensor([1, 0, 7]), classes=2).tolist()
    [1, 2]
    """
    if not inputs.dim() or labels.dim() != 1 or len(inputs) != len(labels):
        raise InvalidArgument("labels", "(N,), as long as inputs (N, ...)", f"{tuple(labels.shape)}")
    finite = inputs.isfinite()
    finite = finite.flatten(1).all(dim=1) if inputs.dim() > 1 else finite
    known = (labels >= 0) & (labels < check_integer("classes", classes, low=1, high=2**31))
    return (~(finite & known)).nonzero().reshape(-1)


class _Batches(TensorDataset):
    """Fetches a whole batch, even an empty one, with one indexing operation instead of record by record."""

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, ...]:
        return tuple(tensor[rows] for tensor in self.tensors)


class _PoissonBatches:
    """Poisson samples of ``count`` records, perhaps none, at rate 1 / ``steps``; ``steps`` an epoch.

    Without ``random`` they are those of Opacus' sampler, which refuses an empty data set.
    """

    def __init__(self, random: SecureRandom | None, *, count: int, steps: int) -> None:
        self._random, self._count, self._steps = random, count, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        rate = 1 / self._steps
        for _ in range(self._steps):
            if self._random is not None:
                yield self._random.sample(self._count, rate).tolist()
            else:
                yield (torch.rand(self._count) < rate).nonzero().reshape(-1).tolist()


def _identity(batch: Any) -> Any:
    return batch


@contextmanager
def _without_known_warnings() -> Iterator[None]:
    """Silence warnings of Opacus and Torch about things that are as they should be."""
    with warnings.catch_warnings():
        for message in (
            "Secure RNG turned off",  # it needs torchcsprng, which is no longer published
            "Full backward hook is firing",
            "grad and param do not obey the gradient layout contract",
        ):
            warnings.filterwarnings("ignore", message=message)
        yield


def _first_parameters(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """The smallest parameter of each layer that no other trained layer precedes.

    DP-SGD takes each record's gradient from Opacus' hooks and discards Torch's own sums, which cost a fifth of the
    work. If only the gradients of these parameters are requested, Torch still walks back through every layer, and all
    hooks run.
    """
    parameters: list[Tensor] = []

    def add_first(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        own = [parameter for parameter in layer.parameters(recurse=False) if parameter.requires_grad]
        if own and not any(isinstance(value, Tensor) and value.requires_grad for value in inputs):
            parameters.append(min(own, key=Tensor.numel))

    hooks = [layer.register_forward_pre_hook(add_first) for layer in model.modules()]
    model.eval()(inputs)
    model.train()
    for hook in hooks:
        hook.remove()
    return parameters


def _private_optimizer(optimizer: Any, expected_batch_size: int, random: SecureRandom | None) -> Any:
    """Opacus' optimizer with a public divisor, a rule for gradients that are not finite, and secure noise on request.

    The divisor is the expected batch size; Opacus computes it from the true size of the shard. And a record whose
    gradient is not finite contributes zero, silently: otherwise one record could make the whole teacher NaN.
    """
    from opacus.optimizers import DPOptimizer

    class FiniteOptimizer(DPOptimizer):  # type: ignore[misc] # Opacus has no types
        def clip_and_accumulate(self) -> None:
            super().clip_and_accumulate()
            if all(bool(parameter.summed_grad.isfinite().all()) for parameter in self.params):
                return
            gradients = [sample.reshape(len(sample), -1) for sample in self.grad_samples]
            finite = torch.stack([gradient.isfinite().all(dim=1) for gradient in gradients]).all(dim=0)
            for parameter in self.params:
                kept = finite.reshape(-1, *[1] * parameter.dim())
                parameter.grad_sample = torch.where(kept, self._get_flat_grad_sample(parameter), 0.0)
                parameter.summed_grad = None
            super().clip_and_accumulate()

        def add_noise(self) -> None:
            if random is None:
                super().add_noise()
                return
            for parameter in self.params:
                noise = random.normal(parameter.summed_grad, self.noise_multiplier * self.max_grad_norm)
                parameter.grad = (parameter.summed_grad + noise).view_as(parameter)

    private = FiniteOptimizer(
        optimizer.original_optimizer,
        noise_multiplier=optimizer.noise_multiplier,
        max_grad_norm=optimizer.max_grad_norm,
        expected_batch_size=expected_batch_size,
        generator=optimizer.generator,
    )
    private.attach_step_hook(optimizer.step_hook)
    return private


def _with_known_labels(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Records with another label than a class of the model become NaN, which makes their gradients NaN."""
    with torch.no_grad():
        outputs = model.eval()(inputs.new_zeros(1, *inputs.shape[1:])).shape[-1]
    model.train()
    ignored = ignored_records(inputs, labels, classes=outputs).to(labels.device)
    if not len(ignored):
        return inputs, labels
    return inputs.index_fill(0, ignored, math.nan), labels.index_fill(0, ignored, 0)


def _drop_batch_unless_finite(model: nn.Module) -> None:
    """Without privacy: a batch whose gradient is not finite contributes zero."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if not all(bool(gradient.isfinite().all()) for gradient in gradients):
        for gradient in gradients:
            gradient.zero_()


@_without_known_warnings()
def train_teacher(
    build_model: Callable[[], nn.Module],
    inputs: Tensor,
    labels: Tensor,
    *,
    shard_size: int,
    settings: TrainingSettings,
    seeds: tuple[int, int],
    secure: bool = False,
    device: str = "cpu",
    on_step: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train one teacher in this process and return the content of its file (see :func:`load_teacher`).

    ``shard_size`` is the declared size, see :func:`~darrm_torch.train_teachers`; ``inputs`` may hold no record at all.
    A record of :func:`ignored_records`, and one whose gradient is not finite, contributes zero to every step.

    Raises:
        UnprovenPrivacy: training with privacy changed a buffer of the model.
    """
    from opacus import PrivacyEngine

    torch.manual_seed(seeds[0])
    # Convolutions and pooling are faster in this layout; nothing else changes.
    model = build_model().to(device).to(memory_format=torch.channels_last).train()
    for part in model.modules():
        if getattr(part, "inplace", False):
            part.inplace = False  # type: ignore[assignment]  # the same results; Opacus' hooks cannot be with it
    random = SecureRandom() if secure else None
    inputs, labels = _with_known_labels(model, inputs, labels)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
    criterion = nn.CrossEntropyLoss()
    steps = settings.steps_per_epoch(shard_size)
    dataset = _Batches(inputs, labels)
    accountant = first_parameters = None
    trained: nn.Module = model
    if settings.noise_multiplier is None:
        shuffle = len(dataset) > 0  # Torch's sampler refuses an empty data set
        loader = DataLoader(dataset, batch_size=settings.batch_size, shuffle=shuffle, collate_fn=_identity)
    else:
        first_parameters = _first_parameters(model, inputs.new_zeros(1, *inputs.shape[1:]))
        engine = PrivacyEngine(accountant="prv")
        batches = _PoissonBatches(random, count=len(dataset), steps=steps)
        trained, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(dataset, batch_sampler=batches, collate_fn=_identity),
            noise_multiplier=settings.noise_multiplier,
            max_grad_norm=settings.max_grad_norm,
            noise_generator=torch.Generator(device=device).manual_seed(seeds[1]),
            poisson_sampling=False,  # the loader draws Poisson samples already
        )
        trained.forbid_grad_accumulation()  # type: ignore[operator] # Opacus does so with its own samplers
        optimizer = _private_optimizer(optimizer, settings.batch_size, random)
        accountant = engine.accountant
    for _ in range(settings.epochs):
        for images, targets in loader:
            optimizer.zero_grad()
            criterion(trained(images), targets).backward(inputs=first_parameters)
            if accountant is None:
                _drop_batch_unless_finite(model)
            optimizer.step()
            on_step()
    for name, buffer in model.named_buffers():
        if accountant is not None and not torch.equal(buffer, buffers[name]):
            raise UnprovenPrivacy(
                f"training changed the buffer {name}, which then holds statistics of raw batches that no accountant "
                "counts. Use layers without running statistics, such as GroupNorm"
            )
    return {
        FORMAT_KEY: FORMAT,
        "module_state_dict": {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()},
        "privacy_accountant_state_dict": None if accountant is None else accountant.state_dict(),
        "sampling": "shuffled" if accountant is None else "poisson",
        "randomness": SECURE if secure else "Torch's generator",
        "watched": True,  # nothing changes the noise or the clipping bound here
        "settings": asdict(settings),
        "shard_size": shard_size,
    }
