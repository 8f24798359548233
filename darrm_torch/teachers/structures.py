"""Inputs and outputs of any structure: tensors, and tuples, lists and mappings of them, nested; how networks take them.

A mapping is what tokenizers of ``transformers`` return. Its values become keyword arguments, as those of a tuple become
positional ones, where the network's ``forward`` takes them so; otherwise it is passed as one argument.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ..errors import InvalidArgument

__all__ = [
    "Rows",
    "Structure",
    "as_arguments",
    "batches_of",
    "call",
    "checked_device",
    "class_logits",
    "device_of",
    "evaluating",
    "form_of",
    "logits_of",
    "mapped",
    "probabilities_of",
    "rows_of",
    "size_of",
    "tensors_of",
]

Structure = Any  # a tensor, or a tuple, a list or a mapping of structures
_DEEPEST = 16


def tensors_of(inputs: Structure, name: str = "inputs", *, depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a structure with their names, in an order that does not depend on the order of keys.

    Raises:
        InvalidArgument: something else than tensors, tuples, lists and mappings with strings as keys; or nothing.

    >>> [place for place, _ in tensors_of({"mask": torch.ones(1), "ids": (torch.ones(1), torch.ones(1))})]
    ["inputs['ids'][0]", "inputs['ids'][1]", "inputs['mask']"]
    """
    if isinstance(inputs, Tensor) and not inputs.is_nested:
        yield name, inputs
        return
    expected = "a tensor (B, ...), or a tuple or a mapping of tensors"
    if not isinstance(inputs, Mapping | tuple | list) or depth > _DEEPEST:
        cure = (
            "Of a table take torch.tensor(table.to_numpy(), dtype=torch.float32), of a list of arrays np.stack first."
        )
        raise InvalidArgument(name, expected, type(inputs).__name__, cure)
    if isinstance(inputs, Mapping) and not all(isinstance(key, str) for key in inputs):
        raise InvalidArgument(name, "a mapping with strings as keys", "other keys")
    parts = sorted(inputs.items()) if isinstance(inputs, Mapping) else [*enumerate(inputs)]
    if not parts:
        raise InvalidArgument(name, expected, f"an empty {type(inputs).__name__}")
    for key, part in parts:
        yield from tensors_of(part, f"{name}[{key!r}]", depth=depth + 1)


def mapped(inputs: Structure, function: Callable[[Tensor], Any]) -> Structure:
    """The same structure with ``function`` applied to each tensor. Mappings become dictionaries."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {name: mapped(part, function) for name, part in inputs.items()}
    parts = [mapped(part, function) for part in inputs]
    return inputs._make(parts) if hasattr(inputs, "_make") else type(inputs)(parts)  # named tuples


def size_of(inputs: Structure) -> int:
    """B, the number of inputs."""
    return len(next(tensors_of(inputs))[1])


def checked_device(device: str) -> str:
    """The device, or the CPU in place of a GPU where there is no CUDA.

    Raises:
        InvalidArgument: Torch knows no such device.
    """
    try:
        torch.device(device)
    except RuntimeError:
        raise InvalidArgument("device", "cpu or cuda", device) from None
    return "cpu" if device.startswith("cuda") and not torch.cuda.is_available() else device


def device_of(inputs: Structure) -> torch.device:
    """Where the inputs are, and where their labels go."""
    return next(tensors_of(inputs))[1].device


def rows_of(inputs: Structure, rows: int | Sequence[int]) -> Structure:
    """Some of the inputs, or the one input with this number."""
    return mapped(inputs, lambda part: part[rows if isinstance(rows, int) else list(rows)])


def batches_of(inputs: Structure, size: int) -> Iterator[Structure]:
    """The inputs in batches of at most ``size``."""
    for start in range(0, size_of(inputs), size):
        yield mapped(inputs, lambda part, start=start: part[start : start + size])  # type: ignore[misc]


class Rows(Dataset[Any]):
    """The inputs one by one, as a map-style data set.

    >>> Rows({"ids": torch.arange(6).reshape(3, 2)})[1]
    {'ids': tensor([2, 3])}
    """

    def __init__(self, inputs: Structure) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return size_of(self.inputs)

    def __getitem__(self, index: int) -> Structure:
        return rows_of(self.inputs, index)


def as_arguments(network: Any, inputs: Structure) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments with which a network takes these inputs.

    >>> class Pair(nn.Module):
    ...     def forward(self, left, right): ...
    >>> [len(part) for part in as_arguments(Pair(), {"right": torch.ones(2), "left": torch.ones(2)})]
    [0, 2]
    >>> [len(part) for part in as_arguments(nn.Identity(), (torch.ones(2), torch.ones(2)))]
    [1, 0]
    """
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    positional, named = ((), {**inputs}) if isinstance(inputs, Mapping) else (tuple(inputs), {})
    try:
        inspect.signature(network.forward).bind(*positional, **named)
    except TypeError:
        return (inputs,), {}
    except ValueError:  # TorchScript shows no signature
        pass
    return positional, named


def logits_of(outputs: Any, logits: Callable[[Any], Any] | None = None) -> Any:
    """The logits among a network's outputs: what the function returns, ``outputs.logits``, or the first of a tuple."""
    if logits is not None:
        return logits(outputs)
    if isinstance(outputs, Mapping) and "logits" in outputs:
        return outputs["logits"]
    if not isinstance(outputs, Tensor) and hasattr(outputs, "logits"):
        return outputs.logits
    if isinstance(outputs, tuple | list) and outputs:
        return logits_of(outputs[0])
    return outputs


def class_logits(logits: Tensor) -> Tensor:
    """Logits ``(..., C)`` of two classes or more: one output stands for two, of which the first has the logit 0."""
    return torch.cat([torch.zeros_like(logits), logits], dim=-1) if logits.shape[-1] == 1 else logits


def probabilities_of(logits: Tensor) -> Tensor:
    """``(B, C)``; one output stands for two classes, and what is not finite becomes 0."""
    return class_logits(logits).softmax(dim=-1).nan_to_num()


def form_of(value: Any) -> tuple[int, ...] | str:
    """What an error says of outputs in a wrong form: the shape of a tensor, or the type of anything else."""
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


@contextlib.contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """The network in eval mode and without gradients; afterwards every module is in the mode that it was in before."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def call(network: nn.Module, inputs: Structure) -> Any:
    """What the network returns for the inputs."""
    positional, named = as_arguments(network, inputs)
    return network(*positional, **named)
