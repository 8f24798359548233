"""What several teachers have in common: one trunk in memory, evaluated once for each batch."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..teachers.checkpoints import equal_bits
from ..teachers.stacking import same_but_for_weights

__all__ = ["SharedParts", "copies_that_share"]


def copies_that_share(networks: Iterable[nn.Module]) -> list[nn.Module]:
    """Deep copies of the networks, in which weights that equal those of the first copy are the same tensors."""
    copies: list[nn.Module] = []
    first: dict[str, Tensor] = {}
    with torch.no_grad():  # with gradients on, the copied weights of TorchScript are not leaves
        for network in networks:
            mine = _tensors(network)
            memo = {
                id(value): first[name] for name, value in mine.items() if name in first and _alike(value, first[name])
            }
            copies.append(copy.deepcopy(network, memo))
            first = first or _tensors(copies[0])
    return copies


class SharedParts:
    """Within ``with shared:``, parts that all networks have in common run once for each input.

    Such a part is a submodule at the same place in every network, with the same attributes, whose weights are the same
    tensors and which has no hooks. Its output is kept and returned again where its input is equal. So a trunk that
    precedes K heads runs once. The arithmetic is that of each network alone.

    Args:
        networks: as :func:`copies_that_share` returns them. Their shared parts are changed, once and for all.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._running = threading.local()
        if len(networks) > 1 and not any(isinstance(network, torch.jit.ScriptModule) for network in networks):
            parts = [*_common("", networks)]
            if any(_tensors(modules[0]) for _, modules in parts):  # activations alone are not worth it
                for place, modules in parts:
                    for module in modules:
                        vars(module)["forward"] = _Once(module, place, self)

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._running = threading.local()

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedParts:
        other = memo[id(self)] = object.__new__(type(self))
        other._running = threading.local()
        return other

    def __enter__(self) -> SharedParts:
        self._running.outputs = {}
        return self

    def __exit__(self, *error: object) -> None:
        self._running.outputs = None

    @property
    def outputs(self) -> dict[str, Any] | None:
        """The outputs of this thread's parts so far; ``None`` outside ``with``."""
        return getattr(self._running, "outputs", None)


class _Once:
    """The ``forward`` of a shared part."""

    def __init__(self, module: nn.Module, place: str, shared: SharedParts) -> None:
        self._module, self._place, self._shared = module, place, shared

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        known = self._shared.outputs
        if known is None or kwargs or len(args) != 1 or not _can_be_kept(args[0]):
            return type(self._module).forward(self._module, *args, **kwargs)
        (given,) = args
        kept: _Kept | None = known.get(self._place)
        if kept is not None and kept.answers(given):
            output = kept.output_again()
            if output is not None:
                return output
        output = type(self._module).forward(self._module, given)
        if _can_be_kept(output) and output is not given:
            # What follows may write into the output. Where that was seen, a copy of it is kept.
            known[self._place] = _Kept(given, output, copied=kept is not None and kept.was_written_to())
        else:
            known.pop(self._place, None)
        return output


class _Kept:
    """An input and the output that belongs to it, with marks that show whether they were written to since."""

    def __init__(self, given: Tensor, output: Tensor, *, copied: bool) -> None:
        self._given, self._given_version = given, given._version
        self._output, self._copied = output.clone() if copied else output, copied
        self._output_version = self._output._version

    def was_written_to(self) -> bool:
        """Whether the output needs, or would have needed, a copy."""
        return self._copied or self._output._version != self._output_version

    def answers(self, given: Tensor) -> bool:
        if self._given._version != self._given_version:
            return False
        return given is self._given or equal_bits(given, self._given)

    def output_again(self) -> Tensor | None:
        if self._output._version != self._output_version:
            return None
        return self._output.clone() if self._copied else self._output


def _can_be_kept(value: Any) -> bool:
    return type(value) is Tensor and not value.is_inference() and value.layout == torch.strided


def _common(place: str, modules: Sequence[nn.Module]) -> Iterator[tuple[str, Sequence[nn.Module]]]:
    """The largest parts, by their place, that are the same in all these modules."""
    first, *others = modules
    if place and all(_is_same_part(first, other) for other in others):
        yield place, modules
    elif all(first._modules.keys() == other._modules.keys() for other in others):
        for name in first._modules:
            parts = [part for module in modules if (part := module._modules[name]) is not None]
            if len(parts) == len(modules):
                yield from _common(f"{place}.{name}", parts)


def _is_same_part(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = [*one.modules()], [*other.modules()]
    if len(mine) != len(theirs) or not all(same_but_for_weights(*pair) for pair in zip(mine, theirs, strict=True)):
        return False
    weights, others = _tensors(one), _tensors(other)
    return weights.keys() == others.keys() and all(equal_bits(weights[name], others[name]) for name in weights)


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    return dict([*network.named_parameters(), *network.named_buffers()])


def _alike(one: Tensor, other: Tensor) -> bool:
    return type(one) is type(other) and equal_bits(one, other)
