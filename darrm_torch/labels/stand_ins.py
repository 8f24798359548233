"""What shared parts return before they are computed: stand-ins for tensors, equal ones for equal questions."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..teachers.checkpoints import equal_bits, weights_digest
from ..teachers.stacking import own_attributes, same_attributes

__all__ = ["CannotShare", "Habits", "OutOfOrder", "Run", "State", "leaves", "looked_at", "returns_tensors"]

_PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device)


class _Part(Protocol):
    place: str

    @property
    def state(self) -> State: ...

    def forward(self, *args: Any, **kwargs: Any) -> Any: ...


class OutOfOrder(BaseException):
    """A network would notice that a part runs later than it is called. It must not catch this as its own error."""


class CannotShare(Exception):
    """These arguments cannot be compared with those of other networks."""


class Habits(NamedTuple):
    """What a part does when it runs."""

    returns_tensor: bool  # or a structure of tensors
    reuses_inputs: bool  # writes into them, or returns their memory


class _Value:
    """What a part returns for one network, before it is computed, or an input.

    Attributes:
        number: equal values have equal numbers, in the order in which they were first asked for.
        source: an input.
        call: what else it is, a call of a part.
        own: this network's copy, once something looked at it.
        uses: how many calls of parts it is an argument of.
        reused: one of these parts reuses its memory, which nothing else may look at.
    """

    def __init__(self, run: Run, number: int, source: Any = None, call: Any = None) -> None:
        self.run, self.number, self.source, self.call = run, number, source, call
        self.own: Any = None
        self.uses, self.reused = 0, False
        self._stand_in: Any = None

    def stand_in(self) -> _StandIn:
        """The tensor that a network gets."""
        made: _StandIn = Tensor._make_wrapper_subclass(_StandIn, (0,), dispatch_sizes_strides_policy="sizes")
        made.stands_for, self._stand_in = self, weakref.ref(made)
        return made

    @property
    def is_out_of_reach(self) -> bool:
        """Whether the network holds it no more, and it goes to one part only."""
        return self.uses == 1 and self._stand_in() is None

    def look(self) -> Tensor:
        """The tensor."""
        if self.own is None:
            if self.reused and not self.run.over:
                raise self.run.breaks()
            self.own = self.run.computed(self)
        own: Tensor = self.own
        return own


class _Call(NamedTuple):
    """A call of a part that has not run."""

    part: _Part
    arguments: tuple[Any, Any]  # with values in place of tensors
    state: State
    modes: tuple[Any, ...]

    def run(self, argument: Callable[[Any], Any], run: Run) -> Any:
        """What the part returns; ``argument`` returns the tensor of a value."""
        if not run.over and (self.modes != _modes() or not self.state.is_intact()):
            raise run.breaks()
        args, kwargs = _mapped(self.arguments, argument)
        output = self.part.forward(*args, **kwargs)
        if not run.over and not (returns_tensors(output) and self.state.is_current()):
            raise run.breaks()
        return output


class _StandIn(Tensor):
    """A tensor that is computed when something looks at it."""

    stands_for: _Value

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*_mapped(args, looked_at), **_mapped(kwargs or {}, looked_at))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # Torch declares it without the function
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # TorchScript looks past __torch_function__.
        raise next(one.stands_for.run.breaks() for one in leaves((args, kwargs or {})) if isinstance(one, _StandIn))


def looked_at(value: Any) -> Any:
    """The value itself, in place of its stand-in."""
    return value.stands_for.look() if isinstance(value, _StandIn) else value


class Run:
    """One batch of inputs for all networks, one after another."""

    def __init__(self) -> None:
        self.broken = self.over = False
        self.only_parts_ran = True  # in this network, so far
        self._numbers: dict[Any, int] = {}  # of what was asked for
        self._computed: dict[int, Any] = {}
        self._lent: dict[Any, tuple[Tensor, _Value]] = {}
        self._given: dict[Any, _Value] = {}  # copies of tensors that are no stand-ins
        self._first: dict[str, State] = {}  # of the first network that calls a part

    def breaks(self) -> OutOfOrder:
        """An error that ends this run; the networks then run one by one."""
        self.broken = True
        return OutOfOrder()

    def lent(self, inputs: Tensor, device: torch.device, kind: torch.dtype) -> Tensor:
        """The stand-in of an input for a network, whose turn begins."""
        self.only_parts_ran = True
        key = (id(inputs), device, kind)
        if key not in self._lent:
            self._lent[key] = inputs, _Value(self, self._number_of(key), inputs.to(device, kind))
        _, value = self._lent[key]
        return _Value(self, value.number, value.source).stand_in()

    def _number_of(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def call(self, part: _Part, given: tuple[Any, Any], habits: Habits) -> Any:
        """What the part returns, or its stand-in.

        Raises:
            CannotShare: its state or its arguments cannot be compared.
        """
        state = part.state
        if not state.equals(self._first.setdefault(part.place, state)):
            raise CannotShare
        arguments = _mapped(given, self._kept_for(part.place, habits))
        modes = _modes()
        number = self._number_of((part.place, modes, _key(arguments)))
        for one in leaves(arguments):
            one.uses += 1
            one.reused |= habits.reuses_inputs
        value = _Value(self, number, call=_Call(part, arguments, state, modes))
        return value.stand_in() if habits.returns_tensor else self.computed(value)

    def _kept_for(self, place: str, habits: Habits) -> Callable[[Tensor], _Value]:
        """A function that returns the value of an argument."""
        count = 0

        def kept(given: Tensor) -> _Value:
            nonlocal count
            if isinstance(given, _StandIn) and given.stands_for.run is self and given.stands_for.own is None:
                if given.stands_for.reused:
                    raise self.breaks()
                return given.stands_for
            given = looked_at(given)
            # After its own weights came in, a network shares nothing but what it asked for before.
            if not self.only_parts_ran or habits.reuses_inputs or not _can_be_kept(given):
                raise CannotShare
            count += 1
            slot = (place, count)
            if slot not in self._given or not equal_bits(given, self._given[slot].source):
                number = self._number_of((slot, len(self._numbers)))
                self._given[slot] = _Value(self, number, given.clone())
            return self._given[slot]

        return kept

    def computed(self, wanted: _Value) -> Any:
        """A copy of the value for its network."""
        if wanted.source is not None:
            return wanted.source.clone()
        missing: dict[int, _Value] = {}
        stack = [wanted]
        while stack:
            value = stack.pop()
            if value.source is None and value.number not in missing and value.number not in self._computed:
                missing[value.number] = value
                stack += leaves(value.call.arguments)

        def argument(value: _Value) -> Any:
            if value.source is not None:
                return value.source.clone()
            if value.is_out_of_reach and value.number in missing:
                return self._computed.pop(value.number)
            return self._computed[value.number].clone()

        for number in sorted(missing):
            self._computed[number] = missing[number].call.run(argument, self)
        return _copied(self._computed[wanted.number])


class State:
    """What the output of a part depends on besides its inputs, at one time: attributes, weights and buffers."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        self._parts, self._objects = parts, _objects(parts)
        self._lists = [(value, [*value]) for value in self._objects if type(value) is list]
        self._tensors = [value for value in self._objects if isinstance(value, Tensor)]
        self._counting = [value for value in self._tensors if not value.is_inference()]
        self._marks = self._versions()
        self._buffers = self._digest()
        self._like: State | None = None  # another network's that it equals

    def is_current(self) -> bool:
        """Whether the modules have the same attributes still, and nothing wrote into their tensors."""
        now = _objects(self._parts)
        return (
            len(now) == len(self._objects)
            and all(map(is_, now, self._objects))
            and all(len(value) == len(then) and all(map(is_, value, then)) for value, then in self._lists)
            and self._versions() == self._marks
        )

    def _versions(self) -> list[int]:
        return [value._version for value in self._counting] + [value.data_ptr() for value in self._tensors]

    def is_intact(self) -> bool:
        """Whether this is so, and buffers have the same bits: a network can write into them past Torch's counter."""
        return self.is_current() and self._digest() == self._buffers

    def _digest(self) -> str:
        buffers = [value for part in self._parts for value in part._buffers.values() if value is not None]
        return weights_digest({str(number): value for number, value in enumerate(buffers)})

    def equals(self, other: State) -> bool:
        """Whether the attributes are equal, and the tensors bit for bit."""
        if other is not self and other is not self._like:
            same = (
                other.is_current()
                and len(self._parts) == len(other._parts)
                and all(map(_same_attributes, self._parts, other._parts))
                and len(self._tensors) == len(other._tensors)
                and all(map(equal_bits, self._tensors, other._tensors))
            )
            self._like = other if same else None
        return other is self or other is self._like


def _objects(parts: Sequence[nn.Module]) -> list[Any]:
    """Everything that the modules hold: without names, because this is looked at for every batch."""
    objects: list[Any] = []
    for part in parts:
        own = vars(part)
        objects += own.values()
        objects += own["_parameters"].values()
        objects += own["_buffers"].values()
        objects += own["_modules"].values()
    return objects


def _same_attributes(one: nn.Module, other: nn.Module) -> bool:
    pairs = [
        {name: value for name, value in own_attributes(part).items() if name != "forward"} for part in (one, other)
    ]
    return type(one) is type(other) and same_attributes(*pairs)


def _modes() -> tuple[Any, ...]:
    """Settings of Torch that the output of a part depends on."""
    autocast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """The arguments with ``function`` applied to their tensors, or to what is in place of them."""
    if isinstance(value, Tensor | _Value):
        return function(value)
    if type(value) is dict:
        return {name: _mapped(part, function) for name, part in value.items()}
    return type(value)([_mapped(part, function) for part in value]) if type(value) in (tuple, list) else value


def leaves(value: Any) -> Iterator[Any]:
    """The tensors of arguments or outputs, or what is in place of them."""
    if isinstance(value, Tensor | _Value):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from leaves(part)


def _key(arguments: Any) -> Any:
    """What the arguments are, to be looked up."""
    if isinstance(arguments, _Value):
        return arguments.number
    if type(arguments) is dict:
        return tuple((name, _key(part)) for name, part in arguments.items())
    if type(arguments) in (tuple, list):
        return (type(arguments), *map(_key, arguments))
    if not isinstance(arguments, _PLAIN):
        raise CannotShare
    return type(arguments), repr(arguments)


def returns_tensors(output: Any) -> bool:
    """Whether a part returns a tensor, or a structure with tensors, that can be copied."""
    tensors = [*leaves(output)]
    return bool(tensors) and all(map(_can_be_kept, tensors))


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def _can_be_kept(value: Any) -> bool:
    return type(value) is Tensor and value.layout == torch.strided
