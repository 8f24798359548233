"""One teacher's training, in this process.

Sample rate, number of steps and the divisor of the noisy gradient are computed from declared public numbers, never from
the size of the shard, so a neighbouring data set is trained in exactly the same way, even on an empty shard. Every
teacher draws its noise from its own generator.
"""

from __future__ import annotations

import copy
import functools
import math
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ..arguments import checked, is_dense
from ..errors import InvalidArgument, UnprovenPrivacy, check_integer, check_number
from ..reprs import short_repr
from .checkpoints import FORMAT, FORMAT_KEY, held_tensors
from .clipping import (
    first_parameters,
    ghost_gradients,
    ghost_module,
    no_gradients,
    private_optimizer,
)
from .gradients import mend_gradients
from .optimizers import check_real
from .records import PoissonBatches, RowNumbers, batch_of, features_of, finite_rows, zeros_unless
from .secure import SECURE, SecureRandom
from .structures import as_arguments, call, logits_of

__all__ = ["TrainingSettings", "ignored_records", "losses_of", "train_mode", "train_teacher"]


@checked
@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How each teacher is trained: by DP-SGD, or without privacy if ``noise_multiplier`` is ``None``.

    None of these changes the guarantee, except ``noise_multiplier``, ``batch_size`` and ``epochs``. Functions are sent
    to other processes: give functions and classes of modules, or :func:`functools.partial` of them.

    Attributes:
        noise_multiplier: standard deviation of the noise divided by ``max_grad_norm``; ``None`` trains without privacy.
        max_grad_norm: L2 bound of one record's gradient.
        batch_size: expected (Poisson-sampled) batch size, also the divisor of the summed noisy gradient.
        epochs: passes over a shard of the nominal size.
        learning_rate: passed to ``optimizer`` as ``lr``.
        optimizer: makes the optimizer, ``optimizer(parameters, lr=...)``, such as ``torch.optim.Adam`` or
            ``partial(torch.optim.SGD, momentum=0.9)``; ``None``: SGD without momentum.
        schedule: makes a scheduler of the optimizer that is stepped after each step; ``None``: constant rates.
        loss: ``loss(outputs, targets)``, a number for each record ``(B,)``, such as
            ``nn.MSELoss(reduction="none")`` has for outputs ``(B,)``; ``None``: the cross-entropy of the logits.
        grad_sample_mode: how Opacus finds the records' gradients: ``"hooks"``, ``"functorch"``, or ``"ghost"`` for
            fast gradient clipping, which keeps only their norms. They are computed from the gradients, one layer at a
            time; norms from Gram products, as in Opacus' own ghost clipping, can be far too small in float32.
        max_physical_batch_size: a batch is split into parts of at most so many records, to fit in memory.
        keep_features: where the model is an ``nn.Sequential`` whose first modules are frozen, evaluate these once for
            each record. Set it to ``False`` if the data set's transforms are random.

    >>> settings = TrainingSettings(noise_multiplier=2.0, batch_size=32, epochs=3)
    >>> settings.steps_per_epoch(1000)
    32
    """

    noise_multiplier: float | None = 12.0
    max_grad_norm: float = 1.0
    batch_size: int = 32
    epochs: int = 5
    learning_rate: float = 0.05
    optimizer: Callable[..., Any] | None = None
    schedule: Callable[[Any], Any] | None = None
    loss: Callable[[Any, Any], Tensor] | None = None
    grad_sample_mode: Literal["hooks", "functorch", "ghost"] = "hooks"
    max_physical_batch_size: int | None = None
    keep_features: bool = True
    __repr__ = short_repr

    def __post_init__(self) -> None:
        if self.noise_multiplier is not None:
            check_number("noise_multiplier", self.noise_multiplier, low=0, low_open=True, high_open=True)
        check_number("max_grad_norm", self.max_grad_norm, low=0, low_open=True, high_open=True)
        check_integer("batch_size", self.batch_size, low=1)
        check_integer("epochs", self.epochs, low=1)
        check_number("learning_rate", self.learning_rate, low=0, low_open=True, high_open=True)
        if self.max_physical_batch_size is not None:
            check_integer("max_physical_batch_size", self.max_physical_batch_size, low=1)

    @checked
    def steps_per_epoch(self, shard_size: int) -> int:
        """Steps of one epoch over a shard of the declared size: the sample rate is its reciprocal."""
        return math.ceil(check_integer("shard_size", shard_size, low=1, high=2**53) / self.batch_size)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values; functions by their names."""
        return {name: _name_of(value) if callable(value) else value for name, value in asdict(self).items()}


def _name_of(function: Any) -> str:
    """A name that is the same in every process."""
    if isinstance(function, functools.partial):
        given = [*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items())]
        return f"{_name_of(function.func)}({', '.join(given)})"
    named = hasattr(function, "__qualname__")
    return f"{function.__module__}.{function.__qualname__}" if named else repr(function)


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
    for name, tensor in (("inputs", inputs), ("labels", labels)):
        if not is_dense(tensor):
            raise InvalidArgument(name, "a dense tensor of real numbers", type(tensor).__name__)
    if not inputs.dim() or labels.dim() != 1 or len(inputs) != len(labels):
        raise InvalidArgument("labels", "(N,), as long as inputs (N, ...)", f"{tuple(labels.shape)}")
    finite = inputs.isfinite()
    finite = finite.flatten(1).all(dim=1) if inputs.dim() > 1 else finite
    known = (labels >= 0) & (labels < check_integer("classes", classes, low=1, high=2**31))
    return (~(finite & known)).nonzero().reshape(-1)


@contextmanager
def _without_known_warnings() -> Iterator[None]:
    """Silence warnings of Opacus and Torch about things that are as they should be."""
    with warnings.catch_warnings():
        for message in (
            "Secure RNG turned off",  # it needs torchcsprng, which is no longer published
            "Full backward hook is firing",
            "grad and param do not obey the gradient layout contract",
            "In CPU autocast",  # Opacus' functorch mode, with inputs of integers
        ):
            warnings.filterwarnings("ignore", message=message)
        yield


def _prepared(build_model: Callable[[], nn.Module], device: str) -> nn.Module:
    # A copy: a function that returns one object twice must not hand the weights of one teacher to the next.
    model = copy.deepcopy(build_model()).to(device)
    if all(parameter.dim() < 5 for parameter in model.parameters()):
        # Convolutions and pooling are faster in this layout; nothing else changes.
        model = model.to(memory_format=torch.channels_last)
    for part in model.modules():
        if getattr(part, "inplace", False):
            part.inplace = False  # type: ignore[assignment]  # the same results; Opacus' hooks cannot be with it
    return model


def _batch_generator(seed: int) -> torch.Generator:
    """The generator that draws batches. It continues Torch's own, which starts again from another seed.

    A function that builds a network may call ``torch.manual_seed(0)``, and so may a data set or a network each time
    that it reads a record. Were batches drawn from Torch's own generator, anyone could then repeat the draws, and
    sampling would amplify nothing.
    """
    generator = torch.Generator()
    fresh, other = (int(word) >> 1 for word in np.random.SeedSequence(seed).generate_state(2, np.uint64))
    if torch.initial_seed() == seed:
        generator.set_state(torch.get_rng_state())
    else:
        generator.manual_seed(fresh)
    torch.manual_seed(other)
    return generator


def _trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def train_mode(model: nn.Module) -> None:
    """Train mode, except for frozen parts, which must not change: their batch statistics would be private."""
    model.train()
    for part in model.modules():
        if not _trained(part) and any(True for _ in (*part.parameters(), *part.buffers())):
            part.eval()


def _split(model: nn.Module) -> tuple[nn.Module | None, nn.Module]:
    """The frozen modules at the beginning of a Sequential, if they hold weights, and the rest."""
    if type(model).forward is not nn.Sequential.forward:
        return None, model
    parts = [*model.children()]
    frozen = next((number for number, part in enumerate(parts) if _trained(part)), 0)
    trunk, rest = nn.Sequential(*parts[:frozen]), nn.Sequential(*parts[frozen:])
    return (trunk.eval(), rest) if any(True for _ in trunk.parameters()) else (None, model)


def losses_of(loss: Callable[[Any, Any], Tensor] | None, outputs: Any, targets: Any, kept: Tensor) -> Tensor:
    """The loss of each record ``(B,)``, zero for those that are not kept or whose label is no class."""
    if loss is None:
        logits = logits_of(outputs)
        if logits.shape[-1] < 2:
            cure = "Cross-entropy of a single output is zero: return a logit for each class, or pass loss=."
            raise InvalidArgument("build_model", "a function that returns a classifier", "one with one output", cure)
        if not targets.is_floating_point():
            kept = kept.to(targets.device) & (targets >= 0) & (targets < logits.shape[-1])
            targets = torch.where(kept, targets, 0)
        losses = nn.functional.cross_entropy(logits, targets, reduction="none")
    else:
        losses = loss(outputs, targets)
    if not isinstance(losses, Tensor) or losses.shape != kept.shape:
        got = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise InvalidArgument(
            "loss", "a function that returns one number for each record", got, 'Pass reduction="none".'
        )
    return torch.where(kept.to(losses.device), losses, 0)


def _drop_batch_unless_finite(model: nn.Module) -> None:
    """Without privacy: a batch whose gradient is not finite contributes zero."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if not all(bool(gradient.isfinite().all()) for gradient in gradients):
        for gradient in gradients:
            gradient.zero_()


def _constants(model: nn.Module) -> dict[str, Tensor]:
    """What training must not change: buffers, attributes, and what else the model's state dict would save."""
    saved = {
        name: value for name, value in model.state_dict(keep_vars=True).items() if not isinstance(value, nn.Parameter)
    }
    return held_tensors(model) | saved


def _check_constants(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    for name, buffer in _constants(model).items():
        if not (name in before and torch.equal(buffer, before[name])):
            raise UnprovenPrivacy(
                f"training changed the buffer {name}, which then holds statistics of raw batches that no accountant "
                "counts. Use layers without running statistics, such as GroupNorm"
            )


@_without_known_warnings()
def train_teacher(
    build_model: Callable[[], nn.Module],
    dataset: Any,
    *,
    shard_size: int,
    settings: TrainingSettings,
    seeds: tuple[int, int] | None = None,
    secure: bool = False,
    device: str = "cpu",
    on_step: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train one teacher in this process and return the content of its file (see :func:`load_teacher`).

    ``shard_size`` is the declared size, see :func:`~darrm_torch.train_teachers`; ``dataset`` may hold no record at all.
    A record of :func:`ignored_records`, and one whose gradient is not finite or longer than 1e18, contributes zero to
    every step.

    Args:
        seeds: for initial weights and batches, and for the noise; ``None``: from the operating system. Torch's own
            generators are left as they were, so nothing drawn later shows what was drawn here.

    Raises:
        UnprovenPrivacy: training with privacy changed a buffer of the model, or reading a batch one of its weights; or
            one record's gradient depends on the others'; or weights are trained in half precision.
    """
    with torch.random.fork_rng(range(torch.cuda.device_count()) if device.startswith("cuda") else []):
        first, second = seeds or (secrets.randbits(63), secrets.randbits(63))
        torch.manual_seed(first)
        given = (first, second)
        return _train(
            build_model, dataset, shard_size, settings, given, SecureRandom() if secure else None, device, on_step
        )


def _train(
    build_model: Callable[[], nn.Module],
    dataset: Any,
    shard_size: int,
    settings: TrainingSettings,
    seeds: tuple[int, int],
    random: SecureRandom | None,
    device: str,
    on_step: Callable[[], None],
) -> dict[str, Any]:
    model = _prepared(build_model, device)
    generator = _batch_generator(seeds[0])
    trunk, network = _split(model)
    if isinstance(dataset, TensorDataset):
        dataset = TensorDataset(*(tensor.to(device) for tensor in dataset.tensors))
    most = settings.max_physical_batch_size or 2**53
    if trunk is not None and settings.keep_features:
        features = features_of(trunk, dataset, device=device, size=min(most, settings.batch_size))
        trunk, dataset = (trunk, dataset) if features is None else (None, features)
    train_mode(network)
    constants = {name: value.clone() for name, value in _constants(model).items()}
    weights = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer: Any = (settings.optimizer or torch.optim.SGD)(weights, lr=settings.learning_rate)
    schedule = None if settings.schedule is None else settings.schedule(optimizer)
    steps, rows = settings.steps_per_epoch(shard_size), RowNumbers(len(dataset))
    accountant, private, ghost = None, network, settings.grad_sample_mode == "ghost"
    if settings.noise_multiplier is None:
        shuffle = len(rows) > 0  # Torch's sampler refuses an empty data set
        loader = DataLoader(rows, settings.batch_size, shuffle=shuffle, collate_fn=list, generator=generator)
    else:
        accountant, private, optimizer = _made_private(network, optimizer, steps, settings, seeds[1], random)
        batches = PoissonBatches(random or generator, count=len(rows), steps=steps)
        loader = DataLoader(rows, batch_sampler=batches, collate_fn=list, generator=generator)
    first: list[Tensor] = []  # those whose batch gradients are computed

    def losses_at(rows: list[int]) -> Tensor:
        inputs, targets = batch_of(dataset, rows, device)
        kept = finite_rows((inputs, targets), len(rows)).to(device)
        if not bool(kept.all()):
            inputs, targets = zeros_unless(kept, (inputs, targets))
        if trunk is not None:
            with torch.no_grad():
                inputs = call(trunk, inputs)
        if accountant is not None and settings.grad_sample_mode == "hooks" and not first:
            first.extend(first_parameters(network, inputs))
            train_mode(private)
        positional, named = as_arguments(network, inputs)  # the wrapper would take anything
        versions = {name: parameter._version for name, parameter in network.named_parameters()}
        outputs = private(*positional, **named)
        for name, parameter in network.named_parameters():
            if accountant is not None and parameter._version != versions[name]:
                raise UnprovenPrivacy(
                    f"the network changes its weight {name} when it reads a batch, which no accountant counts. Leave "
                    "max_norm out of embeddings"
                )
        return losses_of(settings.loss, outputs, targets, kept)

    def add_gradients(part: list[int], batch: list[int]) -> None:
        if accountant is None:
            (losses_at(part).sum() / len(batch)).backward()  # type: ignore[no-untyped-call]
        elif ghost:
            ghost_gradients(private, optimizer, losses_at, part)
        elif not part:
            no_gradients(optimizer, ghost=False)
        else:
            losses_at(part).mean().backward(inputs=first or None)  # type: ignore[no-untyped-call]

    for _ in range(settings.epochs):
        for batch in loader:
            optimizer.zero_grad()
            *parts, last = [batch[start : start + most] for start in range(0, len(batch), most)] or [[]]
            for part in parts:
                add_gradients(part, batch)
                if accountant is not None:
                    optimizer.signal_skip_step()  # this one only clips and adds
                    optimizer.step()
                    optimizer.zero_grad()
            add_gradients(last, batch)
            if accountant is None:
                _drop_batch_unless_finite(network)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            on_step()
    if accountant is not None:
        _check_constants(model, constants)
    return {
        FORMAT_KEY: FORMAT,
        # Copies: a view would take the whole tensor of which it is a part into the file.
        "module_state_dict": {
            name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, value in model.state_dict().items()
        },
        "privacy_accountant_state_dict": None if accountant is None else accountant.state_dict(),
        "sampling": "shuffled" if accountant is None else "poisson",
        "randomness": "Torch's generator" if random is None else SECURE,
        "watched": True,  # nothing changes the noise or the clipping bound here
        "settings": settings.to_dict(),
        "shard_size": shard_size,
    }


def _made_private(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    settings: TrainingSettings,
    seed: int,
    random: SecureRandom | None,
) -> tuple[Any, Any, Any]:
    """An accountant, the network with Opacus' hooks, and the optimizer that clips, adds noise and reports its steps."""
    from opacus.accountants import create_accountant
    from opacus.grad_sample.utils import wrap_model
    from opacus.validators import ModuleValidator

    ModuleValidator.validate(network, strict=True)
    check_real(network.parameters())
    ghost = settings.grad_sample_mode == "ghost"
    if ghost and any(getattr(part, "scale_grad_by_freq", False) for part in network.modules()):
        raise UnprovenPrivacy(
            "with scale_grad_by_freq, the gradient of a record depends on the others of its batch, which ghost "
            'clipping does not see. Leave it out, or use grad_sample_mode="hooks"'
        )
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise UnprovenPrivacy(
                f"the weight {name} is trained in {str(parameter.dtype).removeprefix('torch.')}, whose rounding lets "
                "one record move the sum of gradients further than the noise covers. Train it in float32"
            )
    if ghost:
        private = ghost_module(network)
    else:
        private = wrap_model(network, settings.grad_sample_mode, batch_first=True, loss_reduction="mean")
        private.forbid_grad_accumulation()  # Opacus does so with its own samplers
    mend_gradients(private)
    accountant = create_accountant("prv")
    optimizer = private_optimizer(
        optimizer,
        noise_multiplier=float(settings.noise_multiplier or 0.0),
        max_grad_norm=settings.max_grad_norm,
        expected_batch_size=settings.batch_size,
        generator=torch.Generator(device=next(network.parameters()).device).manual_seed(seed),
        random=random,
        ghost=ghost,
    )
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=1 / steps))  # type: ignore[attr-defined]
    return accountant, private, optimizer
