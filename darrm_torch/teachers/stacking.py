"""Many small networks of one architecture in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from .structures import Structure, as_arguments, logits_of

__all__ = ["LARGEST_BATCH", "StackedNetworks", "own_attributes", "same_attributes", "same_but_for_weights"]

# One pass only saves the overhead of starting each layer of each network. For many small linear layers and small
# batches it was up to 26 times as fast, and never slower within these bounds. Beyond them it often is slower; with
# convolutions it ran at down to a fifth of the speed (python -m benchmarks labelling). Layer types and sizes decide,
# not a timer, so that equal inputs are always answered by the same arithmetic.
LEAST_NETWORKS = 32
LARGEST_BATCH = 32

_OWN_TO_TORCH = set(vars(nn.Module()))
_HOOKS = tuple(name for name in _OWN_TO_TORCH if name.endswith("_hooks"))
_PLAIN = (int, float, str, bytes, bool, type(None), torch.dtype, torch.device)


class StackedNetworks:
    """The outputs of K networks for the same inputs, by one batched pass (``torch.func``).

    They equal the outputs of the networks one by one, except that sums are rounded in another order. A vote can differ
    where two logits are that close.

    Args:
        networks: K networks that differ only in their weights. The weights are copied.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._first = networks[0]
        self._state = stack_module_state(list(networks))

    @classmethod
    def where_quicker(cls, networks: Sequence[nn.Module]) -> StackedNetworks | None:
        """Stack ``networks``, or None if they differ, are few, or have weights outside linear layers."""
        return cls(networks) if len(networks) >= LEAST_NETWORKS and _alike(networks) else None

    def parameters(self) -> Iterator[Tensor]:
        """The stacked weights, ``(K, ...)`` each."""
        return iter(self._state[0].values())

    def __call__(self, inputs: Structure, logits: Callable[[Any], Any] | None = None) -> Any:
        """Logits ``(K, B, ...)`` of B inputs; ``logits`` finds them in the outputs."""

        def outputs(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Any:
            return logits_of(
                functional_call(self._first, (parameters, buffers), *as_arguments(self._first, inputs)), logits
            )

        return torch.vmap(outputs)(*self._state)


def _alike(networks: Sequence[nn.Module]) -> bool:
    first = [*networks[0].modules()]
    if any(any(getattr(module, name) for name in _HOOKS) for module in first):
        return False
    if any(module._parameters or module._buffers for module in first if type(module) is not nn.Linear):
        return False
    expected = [*map(_signature, networks[0].named_parameters())]
    return all(
        len(others := [*network.modules()]) == len(first)
        and all(same_but_for_weights(*pair) for pair in zip(first, others, strict=True))
        and [*map(_signature, network.named_parameters())] == expected
        for network in networks[1:]
    )


def _signature(named: tuple[str, Tensor]) -> tuple[Any, ...]:
    name, weight = named
    return name, weight.shape, weight.dtype, weight.device


def same_but_for_weights(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules, without their submodules, differ in nothing but weights; modules with hooks never do."""
    return (
        type(one) is type(other)
        and one._modules.keys() == other._modules.keys()
        and not any(getattr(module, name) for module in (one, other) for name in _HOOKS)
        and same_attributes(own_attributes(one), own_attributes(other))
    )


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module that Torch does not give to every module; lists are copied."""
    return {k: list(v) if type(v) is list else v for k, v in vars(module).items() if k not in _OWN_TO_TORCH}


def same_attributes(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether two modules have the same attributes, with values that are plain and equal, or one object."""
    return mine.keys() == theirs.keys() and all(_same(value, theirs[name]) for name, value in mine.items())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(_same, one, other))
    return one is other or (isinstance(one, _PLAIN) and type(one) is type(other) and bool(one == other))
