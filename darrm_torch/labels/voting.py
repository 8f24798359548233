"""How teachers vote: the user's own networks, copied, frozen and asked for the class that each prefers."""

from __future__ import annotations

import copy
import hashlib
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import DarrmError, InvalidArgument, check_integer
from ..mechanisms import Mechanism
from ..teachers.checkpoints import unwrap_module
from ..teachers.stacking import LARGEST_BATCH, StackedNetworks

__all__ = ["VotingTeachers", "class_numbers", "input_digests"]


class VotingTeachers(nn.ModuleList):
    """Copies of K classifiers that vote, one vote for each input and teacher.

    The copies are unwrapped from Opacus, DDP and the like, frozen, and in eval mode whenever they vote. They vote in
    the precision of their own weights, whatever autocast says: one after another or, where that is quicker, in one
    pass (many small teachers of one architecture, small batches). The two ways agree up to the rounding of sums.

    Args:
        models: K classifiers ``(B, ...) -> (B, outputs)`` logits; one output means a sigmoid and two classes.
        classes: the numbers of the logits that compete; ``None``: all.
        mechanism: what the votes are for; it may be built for a certain number of classes.
    """

    def __init__(self, models: Iterable[nn.Module], *, classes: tuple[int, ...] | None, mechanism: Mechanism) -> None:
        super().__init__(_plain_copy(model) for model in models)
        self.requires_grad_(False)
        self._classes, self._mechanism = classes, mechanism
        self._stacked: tuple[list[Any], StackedNetworks | None] | None = None

    @torch.no_grad()
    def votes(self, inputs: Tensor, numbers: Sequence[int]) -> tuple[Tensor, int]:
        """Votes ``(len(numbers), B)`` int64 of these teachers, and how many classes they could vote for."""
        for module in self.modules():  # a parent may have been set to train, or a teacher may override train()
            if module.training:
                module.training = False
        together = self._in_one_pass(inputs, numbers)
        if together is not None:
            logits = self._competing("outputs of the teachers", together, (len(numbers), len(inputs)))
            return logits.argmax(dim=-1).to(inputs.device), logits.shape[-1]
        votes: list[Tensor] = []
        classes = 0
        for number in numbers:
            name = f"outputs of teacher {number}"
            try:
                outputs = _outputs(self[number], inputs)
            except (DarrmError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # the user's own network, or inputs that it does not take
                raise _mismatch(self[number], number, inputs, error) from error
            logits = self._competing(name, outputs, (len(inputs),))
            if votes and logits.shape[1] != classes:
                expected = f"logits of {classes} classes, like those of teacher {numbers[0]}"
                raise InvalidArgument(name, expected, logits.shape[1])
            classes = logits.shape[1]
            votes.append(logits.argmax(dim=1).to(inputs.device))
        return torch.stack(votes), classes

    def _in_one_pass(self, inputs: Tensor, numbers: Sequence[int]) -> Tensor | None:
        """Outputs ``(len(numbers), B, outputs)`` of all these teachers, or None where one by one is better."""
        if not 0 < len(inputs) <= LARGEST_BATCH:
            return None
        networks = [self[number] for number in numbers]
        # Moving or converting the teachers changes their first weight; nothing else changes any of them.
        state = [(numbers, weight.device, weight.dtype, weight.data_ptr()) for weight in networks[0].parameters()][:1]
        if self._stacked is None or self._stacked[0] != state:
            self._stacked = state, StackedNetworks.where_quicker(networks)
        stacked = self._stacked[1]
        if stacked is None:
            return None
        try:
            outputs = _outputs(stacked, inputs)
        except Exception:  # torch.func cannot run these networks, or each of them will raise by itself
            return None
        return outputs if isinstance(outputs, Tensor) else None

    def _competing(self, name: str, logits: Any, rows: tuple[int, ...]) -> Tensor:
        """The logits ``(*rows, C)`` of the classes that compete, checked."""
        if not isinstance(logits, Tensor) or logits.dim() < 1 or logits.shape[:-1] != rows or not logits.shape[-1]:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise InvalidArgument(name, f"logits of shape ({', '.join(map(str, rows))}, outputs)", shape)
        scores: Tensor = logits
        if scores.isnan().any():
            raise InvalidArgument(name, "numbers", "NaN", "Check the inputs and how the teacher was trained.")
        if scores.shape[-1] == 1:
            scores = torch.cat([torch.zeros_like(scores), scores], dim=-1)
        if self._classes is None:
            needed, outputs = self._mechanism.classes, scores.shape[-1]
            if needed not in (None, outputs):
                kind = type(self._mechanism).__name__
                expected = f"given, because the teachers have {outputs} outputs and {kind} is for {needed}"
                cure = f"Name the classes that compete, such as classes=(0, 1). {self._mechanism.alternatives}"
                raise InvalidArgument("classes", expected, None, cure)
            return scores
        if max(self._classes) >= scores.shape[-1]:
            raise InvalidArgument("classes", f"below the {scores.shape[-1]} outputs of the teachers", self._classes)
        return scores[..., list(self._classes)]


def class_numbers(classes: Sequence[int] | int | None) -> tuple[int, ...] | None:
    """The numbers of the logits that compete, checked; ``None``: all of them."""
    if classes is None:
        return None
    if isinstance(classes, int):
        return tuple(range(check_integer("classes", classes, low=2)))
    numbers = tuple(check_integer("classes", number, low=0) for number in classes)
    if len(numbers) < 2 or len(set(numbers)) < len(numbers):
        raise InvalidArgument("classes", "at least two different class numbers, or how many", classes)
    return numbers


def _plain_copy(model: nn.Module) -> nn.Module:
    """The user's own network, copied, without what DP-SGD left in it: hooks, and activations of training data."""
    with torch.no_grad():  # with gradients on, the copied weights of TorchScript are not leaves
        network = copy.deepcopy(unwrap_module(model))
    hooked = [module for module in network.modules() if "autograd_grad_sample_hooks" in vars(module)]
    for module in hooked:
        for handle in vars(module)["autograd_grad_sample_hooks"]:
            handle.remove()
        for part in module.modules():
            for name in ("autograd_grad_sample_hooks", "activations", "max_batch_len", "ft_compute_sample_grad"):
                vars(part).pop(name, None)
    return network


def _outputs(network: nn.Module | StackedNetworks, inputs: Tensor) -> Any:
    """What the network returns, on the device and in the precision of its own weights."""
    weight = next(iter(network.parameters()), inputs)
    kind = weight.dtype if inputs.is_floating_point() else inputs.dtype
    # A copy: what one teacher writes into its inputs must not reach another, whose vote is independent.
    inputs = inputs.to(weight.device, kind, copy=True)
    with torch.autocast(inputs.device.type, enabled=False):
        return network(inputs)


def _mismatch(network: nn.Module, number: int, inputs: Tensor, error: Exception) -> InvalidArgument:
    """An error that says what the teacher takes and what it was given."""
    weight = next(iter(network.parameters()), None)
    takes = f"what teacher {number} takes"
    if weight is not None:
        takes += f", whose first weights are {_type_and_shape(weight.shape, weight.dtype)}"
    reason = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"
    got = _type_and_shape(inputs.shape, inputs.dtype)
    return InvalidArgument("inputs", takes, got, textwrap.shorten(reason, 160))


def _type_and_shape(shape: torch.Size, kind: torch.dtype) -> str:
    return f"{str(kind).removeprefix('torch.')} of shape {tuple(shape)}"


def input_digests(inputs: Tensor) -> list[bytes]:
    """The ledger's key for each of the inputs ``(B, ...)``: a digest of its type, shape and numbers."""
    if not isinstance(inputs, Tensor) or not inputs.dim():
        raise InvalidArgument("inputs", "a tensor (B, ...)", type(inputs).__name__)
    kind = f"{inputs.dtype}:{tuple(inputs.shape[1:])}:".encode()
    contents = (row.reshape(-1).view(torch.uint8).numpy().tobytes() for row in inputs.detach().cpu().contiguous())
    return [hashlib.blake2b(kind + content, digest_size=16).digest() for content in contents]
