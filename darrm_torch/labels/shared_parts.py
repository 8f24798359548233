"""What several teachers have in common: one trunk in memory, evaluated once for each batch."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..teachers.checkpoints import equal_bits
from ..teachers.stacking import same_but_for_weights
from .stand_ins import CannotShare, Habits, OutOfOrder, Run, State, leaves, returns_tensors

__all__ = ["SharedParts", "copies_that_share"]

Result = TypeVar("Result")


def copies_that_share(networks: Iterable[nn.Module]) -> list[nn.Module]:
    """Deep copies of the networks, in which parameters that equal those of the first copy are the same tensors.

    Each copy has its own buffers: a network may write into them when it votes, which must not reach another teacher.
    """
    copies: list[nn.Module] = []
    first: dict[str, nn.Parameter] = {}
    with torch.no_grad():  # with gradients on, the copied weights of TorchScript are not leaves
        for network in networks:
            mine = dict(network.named_parameters())
            memo: dict[int, Any] = {
                id(value): first[name] for name, value in mine.items() if name in first and _alike(value, first[name])
            }
            copies.append(copy.deepcopy(network, memo | _without_training_hooks(network)))
            first = first or dict(copies[0].named_parameters())
    return copies


def _without_training_hooks(network: nn.Module) -> dict[int, Any]:
    """A memo with which a copy lacks the hooks of DP-SGD: they hold the wrapper, which holds the network again."""
    memo: dict[int, Any] = {}
    for module in network.modules():
        handles = vars(module).get("autograd_grad_sample_hooks")
        if handles is not None:
            memo[id(handles)] = []
        for handle in handles or ():
            if (hooks := handle.hooks_dict_ref()) is not None:
                kept = memo.get(id(hooks), hooks)
                memo[id(hooks)] = type(hooks)((key, hook) for key, hook in kept.items() if key != handle.id)
    return memo


class SharedParts:
    """Parts that all networks have in common run once for each input, not once for each network.

    Such a part is a submodule at the same place in every network, with the same attributes and equal weights, which has
    no hooks. Within :meth:`run`, a part does not run when it is called: it returns a stand-in, which is computed when
    something other than a part looks at it. What was computed for one network is copied for every network that calls
    the same parts with the same inputs. So a trunk before K heads runs once, whether it is one module or many, and only
    its last output is kept. The arithmetic is that of each network alone.

    A part is shared only if :meth:`learn` saw that it leaves its attributes and buffers as they are, draws no random
    numbers, and returns tensors. A network that would notice that its parts run later is found out, and from then on
    each network runs by itself.

    Args:
        networks: as :func:`copies_that_share` returns them. Their modules are changed, once and for all.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self.__setstate__({})
        scripted = any(isinstance(part, torch.jit.ScriptModule) for network in networks for part in network.modules())
        parts = [] if scripted or len(networks) < 2 else [*_common("", networks)]
        if not any(_tensors(modules[0]) for _, modules in parts):  # activations alone are not worth it
            return
        common = {id(part) for _, modules in parts for module in modules for part in module.modules()}
        for place, modules in parts:
            for module in modules:
                vars(module)["forward"] = _Part(module, place, self)
        for network in networks:
            for name, module in network.named_modules():
                own = {**module._parameters, **module._buffers}
                if name and own and id(module) not in common and "forward" not in vars(module):
                    vars(module)["forward"] = _Different(module, self)

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._thread = threading.local()
        self.habits: dict[str, Habits | None] = {}  # by place; None: it is not shared
        self._off = False

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedParts:
        return self  # it knows no weights

    @property
    def current(self) -> Run | _Lesson | None:
        """What this thread does with the parts now."""
        return getattr(self._thread, "current", None)

    def learn(self, work: Callable[[], Result]) -> Result:
        """The result of ``work()``, in which copies of the networks show what their parts do."""
        return self._during(_Lesson(), work)

    def run(self, work: Callable[[], Result]) -> Result:
        """The result of ``work()``, in which networks share their parts."""
        if not self._off and any(self.habits.values()):
            run = Run()
            with contextlib.suppress(OutOfOrder):
                result = self._during(run, work)
                run.over = True
                if not run.broken:
                    return result
            run.over = self._off = True
        return work()

    def _during(self, current: Run | _Lesson, work: Callable[[], Result]) -> Result:
        before, self._thread.current = self.current, current
        try:
            return work()
        finally:
            self._thread.current = before

    def lent(self, inputs: Tensor, device: torch.device, kind: torch.dtype) -> Tensor:
        """The inputs for a network whose turn begins: what it writes into them does not reach another, whose vote is
        independent."""
        run = self.current
        return run.lent(inputs, device, kind) if isinstance(run, Run) else inputs.to(device, kind, copy=True)

    @property
    def is_broken(self) -> bool:
        """Whether this thread's run will be repeated with each network by itself."""
        return isinstance(self.current, Run) and self.current.broken


class _Lesson:
    """What copies of the networks do is watched."""


class _Part:
    """The ``forward`` of a part that all networks have in common."""

    def __init__(self, module: nn.Module, place: str, shared: SharedParts) -> None:
        self._module, self.place, self._shared = module, place, shared
        self._state: State | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_state": None}

    @property
    def state(self) -> State:
        """The state of the part now; the same object until it changes."""
        if self._state is None or not self._state.is_current():
            self._state = State([*self._module.modules()])
        return self._state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        current, habits = self._shared.current, self._shared.habits.get(self.place)
        if isinstance(current, _Lesson):
            return self._watched(*args, **kwargs)
        if current is not None and habits is not None:
            try:
                return current.call(self, (args, kwargs), habits)
            except CannotShare:
                pass
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module itself returns."""
        return type(self._module).forward(self._module, *args, **kwargs)

    def _watched(self, *args: Any, **kwargs: Any) -> Any:
        given, random = [*leaves((args, kwargs))], torch.get_rng_state()
        before, versions = self.state, [one._version for one in given]
        output = self.forward(*args, **kwargs)
        habits: Habits | None = None
        if returns_tensors(output) and before.is_current() and torch.equal(random, torch.get_rng_state()):
            memory = {one.untyped_storage().data_ptr() for one in given}
            reuses = any(one.untyped_storage().data_ptr() in memory for one in leaves(output))
            habits = Habits(isinstance(output, Tensor), reuses or versions != [one._version for one in given])
        seen = self._shared.habits.setdefault(self.place, habits)
        if seen is not None and habits is not None and seen.returns_tensor == habits.returns_tensor:
            habits = Habits(seen.returns_tensor, seen.reuses_inputs or habits.reuses_inputs)
        else:
            habits = None
        self._shared.habits[self.place] = habits
        return output


class _Different:
    """The ``forward`` of a module with weights of its own."""

    def __init__(self, module: nn.Module, shared: SharedParts) -> None:
        self._module, self._shared = module, shared

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self._shared.current, Run):
            self._shared.current.only_parts_ran = False
        return type(self._module).forward(self._module, *args, **kwargs)


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
    if any("forward" in vars(part) for part in (*mine, *theirs)):
        return False  # of its own, which would be lost
    if len(mine) != len(theirs) or not all(same_but_for_weights(*pair) for pair in zip(mine, theirs, strict=True)):
        return False
    weights, others = _tensors(one), _tensors(other)
    return weights.keys() == others.keys() and all(equal_bits(weights[name], others[name]) for name in weights)


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    return dict([*network.named_parameters(), *network.named_buffers()])


def _alike(one: Tensor, other: Tensor) -> bool:
    return type(one) is type(other) and equal_bits(one, other)
