"""How teachers vote: the user's own networks, copied, frozen and asked for the class that each prefers."""

from __future__ import annotations

import copy
import itertools
import math
import textwrap
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..arrays import BoolArray, IntArray
from ..errors import InvalidArgument
from ..mechanisms.base import Mechanism
from ..mechanisms.noise_free import split_votes
from ..teachers.checkpoints import unwrap_module
from ..teachers.stacking import LARGEST_BATCH, StackedNetworks
from ..teachers.structures import (
    Structure,
    call,
    class_logits,
    device_of,
    form_of,
    logits_of,
    mapped,
    rows_of,
    size_of,
    tensors_of,
)
from .close_votes import Leads, Rounding
from .identity import checked_inputs
from .questions import logits_by_finding
from .shared_parts import SharedParts, copies_that_share
from .stand_ins import looked_at

__all__ = ["VotingTeachers", "equal_weights"]


class VotingTeachers(nn.ModuleList):
    """Copies of K classifiers that vote, one vote for each input and teacher; F votes if there are F findings.

    The copies are unwrapped from Opacus, DDP and the like, frozen, and in eval mode whenever they vote. They vote in
    the precision of their own weights, whatever autocast says: one after another or, where that is quicker, in one
    pass (many small teachers of one architecture, small batches). The two ways agree up to the rounding of sums.

    Whether a question is answered must not depend on the teachers' weights: an error would be an answer without a
    charge. :meth:`check` therefore runs the inputs through a copy of each architecture whose weights are constants, so
    that its errors depend on public things only. It refuses inputs that no teacher takes and outputs that cannot vote.
    After that :meth:`votes` always returns a vote: a teacher whose logits are NaN, or that raises, votes for the first
    class; where votes are split, it counts as the uniform row. Only ``events`` shows that it happened, and it is as
    sensitive as the votes.

    Args:
        models: K classifiers ``(B, ...) -> (B, outputs)`` logits; one output means a sigmoid and two classes.
        findings: the names of F findings that each input is asked about; ``None``: one question. Votes, counts and
            juries have a further dimension F after that of the inputs.
        classes: the numbers of the logits that compete; ``None``: all.
        mechanism: what the votes are for; it may be built for a certain number of classes.
        logits: finds the logits in what a teacher returns, see ``darrm_torch.teachers.structures.logits_of``.
    """

    def __init__(
        self,
        models: Iterable[nn.Module],
        findings: tuple[str, ...] | None = None,
        *,
        classes: tuple[int, ...] | None,
        mechanism: Mechanism,
        logits: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(map(_without_leftovers, copies_that_share(unwrap_module(model, "models") for model in models)))
        self._shared = SharedParts(list(self))
        self.requires_grad_(False)
        # Kept, because walking through them again for each batch takes long. Itself among them would be a cycle.
        self._each_module = [module for module in self.modules() if module is not self]
        self._classes, self._mechanism, self._logits = classes, mechanism, logits
        self._findings = None if findings is None else len(findings)
        self._takes: dict[Any, tuple[int, IntArray, IntArray]] = {}  # forms that passed: classes, extremes of integers
        self._stacked: tuple[Any, StackedNetworks | None] | None = None
        self._known: tuple[Any, dict[tuple[int, int], Rounding]] | None = None
        self.events: deque[str] = deque(maxlen=1000)

    @torch.no_grad()
    def check(self, inputs: Structure, numbers: Sequence[int]) -> int:
        """Check that these teachers can vote on the inputs; returns the number of classes. Reads no trained weight.

        Inputs of a form that passed before pass again, and so do integers between those that passed.

        Raises:
            InvalidArgument: no architecture takes the inputs, or the outputs cannot vote or differ between teachers.
        """
        form = (
            tuple(numbers),
            self._state(numbers),
            *((name, part.shape, part.dtype, part.device) for name, part in tensors_of(inputs)),
        )
        lowest, highest = _extremes(inputs)
        if form in self._takes:
            passed, low, high = self._takes[form]
            if (low <= lowest).all() and (highest <= high).all():
                return passed
            lowest, highest = np.minimum(low, lowest), np.maximum(high, highest)
        classes, problems = 0, []
        for number in self._first_of_each_architecture(numbers):
            name = f"outputs of teacher {number}"
            try:
                double = _with_constant_weights(self[number])
                with torch.inference_mode(False), torch.no_grad():
                    outputs = self._shared.learn(partial(self._outputs, double, inputs))
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # the user's own network, or inputs that it does not take
                problems.append((number, error))
                continue
            found = self._competing(name, outputs, (size_of(inputs),)).shape[-1]
            alone = outputs.numel() == self._questions(inputs)
            if (alone or self._mechanism.shares > 1) and self._are_probabilities(self[number], inputs, alone=alone):
                got = "numbers of one sign" if alone else "numbers in [0, 1]"
                wrong = "sigmoid, so all votes are equal" if alone else "softmax, which would be applied twice"
                cure = f"They seem to end in a {wrong}: return logits."
                raise InvalidArgument(name, "logits, of any sign", f"{got}, whatever the weights", cure)
            if classes not in (0, found):
                raise InvalidArgument(name, f"logits of {classes} classes, like those of the teachers before", found)
            classes = found
        if not classes:
            first, reason = problems[0]
            raise _mismatch(self[first], first, inputs, reason) from reason
        self._takes = {**dict(list(self._takes.items())[-63:]), form: (classes, lowest, highest)}
        return classes

    def _state(self, numbers: Sequence[int]) -> Any:
        """What changes when the teachers are moved or converted: nothing else changes any of them."""
        weights = [next(iter(self[number].parameters()), None) for number in numbers]
        return tuple(None if weight is None else (weight.device, weight.dtype) for weight in weights)

    def _first_of_each_architecture(self, numbers: Sequence[int]) -> Iterable[int]:
        first: dict[Any, int] = {}
        for number in numbers:
            weights = self[number].state_dict().items()
            form = [(name, value.shape, value.dtype) for name, value in weights if isinstance(value, Tensor)]
            first.setdefault((repr(self[number]), tuple(form)), number)
        return first.values()

    def votes(self, inputs: Structure, numbers: Sequence[int]) -> Tensor:
        """Votes ``(len(numbers), B)`` int64 of these teachers; a vote for each of them, whatever they return."""
        votes = torch.stack([vote.to(device_of(inputs)) for vote in self._votes(inputs, numbers)])
        return votes.reshape(len(numbers), *self._shape(inputs))

    def counts(
        self, inputs: Structure, numbers: Sequence[int], *, classes: int, juries: BoolArray | None = None
    ) -> Tensor:
        """Votes per class, or shares of votes, ``(B, C)`` int64, of these teachers.

        Args:
            inputs: ``(B, ...)``.
            numbers: the teachers.
            classes: C, as :meth:`check` returned it.
            juries: ``(B, len(numbers))``, which of the teachers vote on which input; ``None``: all of them.
        """
        device = device_of(inputs)
        total = torch.zeros(self._questions(inputs), classes, dtype=torch.int64, device=device)
        juries = None if juries is None else juries.reshape(len(total), len(numbers))
        split = self._mechanism.shares > 1
        ballots: list[Tensor] = []
        if len(numbers):
            ballots = self._ballots(inputs, numbers, self._split, classes) if split else self._votes(inputs, numbers)
        for place, ballot in enumerate(ballots):
            part = ballot.to(device) if split else nn.functional.one_hot(ballot.to(device), classes)
            total += part if juries is None else part * torch.from_numpy(juries[:, place, None]).to(device)
        return total.reshape(*self._shape(inputs), classes)

    def _shape(self, inputs: Structure) -> tuple[int, ...]:
        """``(B,)``, or ``(B, F)`` with findings."""
        return (size_of(inputs),) if self._findings is None else (size_of(inputs), self._findings)

    def _questions(self, inputs: Structure) -> int:
        """How many questions there are about these inputs."""
        return math.prod(self._shape(inputs))

    def _votes(self, inputs: Structure, numbers: Sequence[int]) -> list[Tensor]:
        """The votes of each of these teachers, input by input; where one is close, the vote on this input alone."""
        ballots = torch.stack([ballot.cpu() for ballot in self._ballots(inputs, numbers, self._preferred)])
        votes, leads, sizes = ballots.unbind(dim=-1)  # (len(numbers), rows)
        # Which votes a teacher casts again depends on its own votes alone: no vote may depend on another teacher.
        roundings = self._roundings(numbers, size_of(inputs))
        sampled = [rounding.sample(leads.shape[1]) for rounding in roundings]
        close = leads < torch.tensor([rounding.margin for rounding in roundings])[:, None] * sizes
        close |= torch.arange(leads.shape[1]) < torch.tensor(sampled)[:, None]
        for row in close.any(dim=0).nonzero().flatten().tolist():
            places = [
                place
                for place in close[:, row].nonzero().flatten().tolist()
                if row < sampled[place] or leads[place, row] < roundings[place].margin * sizes[place, row]
            ]  # a margin may be smaller by now
            if not places:
                continue
            number, finding = divmod(row, self._findings or 1)
            teachers = [numbers[place] for place in places]
            again = self._ballots(rows_of(inputs, [number]), teachers, self._preferred, together=False)
            for place, ballot in zip(places, again, strict=True):
                vote, lead, _ = ballot[finding].cpu()
                before = leads[place, row] if vote == votes[place, row] else -leads[place, row]
                roundings[place].learn(float((before - lead).abs() / sizes[place, row]))
                votes[place, row] = vote
        return [vote.long() for vote in votes]

    def _roundings(self, numbers: Sequence[int], rows: int) -> list[Rounding]:
        """What is known about rounding errors of these teachers, as they are now, in batches of about as many rows."""
        state, size = self._state(range(len(self))), rows.bit_length()
        if self._known is None or self._known[0] != state:
            self._known = state, {}
        known = self._known[1]
        for number in numbers:
            if (number, size) not in known:
                weights = self[number].parameters()
                known[number, size] = Rounding(weight.dtype for weight in weights if weight.is_floating_point())
        return [known[number, size] for number in numbers]

    @torch.no_grad()
    def _ballots(
        self,
        inputs: Structure,
        numbers: Sequence[int],
        ballot: Callable[[Tensor, str], Tensor],
        classes: int = 2,
        *,
        together: bool = True,
    ) -> list[Tensor]:
        """What ``ballot`` makes of the logits of each of these teachers, whose name is for the events."""
        checked_inputs(inputs)
        for module in (self, *self._each_module):  # a parent may be in train mode, or a teacher may override train()
            if module.training:
                module.training = False
        outputs = self._in_one_pass(inputs, numbers) if together else None
        if outputs is not None:
            logits = self._competing("outputs of the teachers", outputs, (len(numbers), size_of(inputs)))
            return list(ballot(logits, "some teachers"))
        return self._shared.run(lambda: [self._ballot(number, inputs, ballot, classes) for number in numbers])

    def _ballot(self, number: int, inputs: Structure, ballot: Callable[[Tensor, str], Tensor], classes: int) -> Tensor:
        """What ``ballot`` makes of the logits of one teacher, or of NaN where it raises."""
        try:
            outputs = self._outputs(self[number], inputs)
            logits = self._competing(f"outputs of teacher {number}", outputs, (size_of(inputs),))
            return ballot(logits, f"teacher {number}")
        except torch.OutOfMemoryError:
            raise  # depends on sizes, which are public
        except Exception as error:
            if not self._shared.is_broken:
                self.events.append(f"teacher {number} raised {type(error).__name__}: {error}")
            return ballot(torch.full((self._questions(inputs), classes), torch.nan), "")

    def _preferred(self, logits: Tensor, whose: str) -> Tensor:
        """The class of the largest logit, the first of equals, its lead, and the size of the logits ``(..., 3)``.

        It is the first class where a logit is NaN.
        """
        broken = logits.isnan().any(dim=-1)
        if whose and broken.any():
            self.events.append(f"{whose} returned NaN for {int(broken.sum())} votes")
        return torch.stack([logits.argmax(dim=-1).masked_fill(broken, 0).double(), *Leads.of(logits)], dim=-1)

    def _split(self, logits: Tensor, whose: str) -> Tensor:
        """The shares of a vote ``(..., C)`` int64 in proportion to the probabilities; equal ones if not all are finite.

        Probabilities are computed in float64 on the CPU, whatever the precision of the teacher.
        """
        logits = logits.cpu().double()
        broken = ~logits.isfinite().all(dim=-1)
        if whose and broken.any():
            self.events.append(f"{whose} returned numbers that are not finite for {int(broken.sum())} votes")
        probabilities = logits.softmax(dim=-1).masked_fill(broken[..., None], torch.nan)
        return torch.from_numpy(split_votes(probabilities.numpy()))

    def _in_one_pass(self, inputs: Structure, numbers: Sequence[int]) -> Tensor | None:
        """Outputs ``(len(numbers), B, outputs)`` of all these teachers, or None where one by one is better."""
        if not 0 < size_of(inputs) <= LARGEST_BATCH:
            return None
        networks = [self[number] for number in numbers]
        # Moving or converting the teachers changes their first weight; nothing else changes any of them.
        first = next(networks[0].parameters(), None)
        state = None if first is None else (numbers, first.device, first.dtype, first.data_ptr())
        if self._stacked is None or self._stacked[0] != state:
            self._stacked = state, StackedNetworks.where_quicker(networks)
        stacked = self._stacked[1]
        if stacked is None:
            return None
        try:
            outputs = self._outputs(stacked, inputs)
            dimensions = (3,) if self._findings is None else (3, 4)
            fits = outputs.shape[:2] == (len(numbers), size_of(inputs)) and outputs.dim() in dimensions
        except Exception:  # torch.func cannot run these networks, or each of them will raise by itself
            return None
        return outputs if fits else None

    def _outputs(self, network: nn.Module | StackedNetworks, inputs: Structure) -> Any:
        """The logits of a network, on the device and in the precision of its own weights."""
        weight = next((one for one in network.parameters() if one.is_floating_point()), None)
        device = device_of(inputs) if weight is None else weight.device

        def own(part: Tensor) -> Tensor:
            kind = weight.dtype if weight is not None and part.is_floating_point() else part.dtype
            return self._shared.lent(part, device, kind)

        with torch.autocast(device.type, enabled=False):
            if isinstance(network, StackedNetworks):
                return network(mapped(inputs, own), self._logits)
            return looked_at(logits_of(call(network, mapped(inputs, own)), self._logits))

    def _are_probabilities(self, network: nn.Module, inputs: Structure, *, alone: bool) -> bool:
        """Whether a network's outputs have one sign (``alone``) or are those of a softmax, whatever its weights are."""
        # A last layer with or without a bias would change the sign with its weights.
        flips = (0, 1, 2) if alone else (0,)
        any_sign = alone and any(one.is_floating_point() for one in network.parameters())
        seen: list[Tensor] = []
        try:
            for value, flipped in itertools.product((-2.0, 0.5, 2.0), flips):
                seen.append(self._outputs(_with_constant_weights(network, value, flipped), inputs))
                outputs = torch.cat(seen)
                if any_sign:
                    fit = bool((outputs >= 0).all() or (outputs <= 0).all())
                else:
                    sums = alone or bool(((outputs.double().sum(dim=-1) - 1).abs() < 1e-2).all())
                    fit = sums and bool(((outputs >= 0) & (outputs <= 1)).all())
                if not fit:
                    return False
        except Exception:  # the user's own network
            return False
        return bool((outputs != 0).any())

    def _competing(self, name: str, logits: Any, rows: tuple[int, ...]) -> Tensor:
        """The logits ``(*rows, C)`` of the classes that compete, checked; a row for each question."""
        if self._findings is not None:
            return logits_by_finding(name, logits, rows, self._findings).flatten(-3, -2)
        if not isinstance(logits, Tensor) or logits.dim() < 1 or logits.shape[:-1] != rows or not logits.shape[-1]:
            expected = f"logits of shape ({', '.join(map(str, rows))}, outputs)"
            cure = "Inputs are a batch: one alone is inputs[None]. Single logits are a column, (B, 1)."
            raise InvalidArgument(name, expected, form_of(logits), cure)
        scores = class_logits(logits)
        if self._classes is None:
            needed, outputs = self._mechanism.classes, scores.shape[-1]
            if needed not in (None, outputs):
                kind = type(self._mechanism).__name__
                expected = f"given, because the teachers have {outputs} outputs and {kind} is for {needed}"
                cure = f"Name the classes that compete, such as classes=(0, 1). {self._mechanism.alternatives}"
                if needed > outputs:
                    cure = f"Build it for {outputs} classes."
                raise InvalidArgument("classes", expected, None, cure)
            return scores
        if max(self._classes) >= scores.shape[-1]:
            raise InvalidArgument("classes", f"below the {scores.shape[-1]} outputs of the teachers", self._classes)
        return scores[..., list(self._classes)]


def _without_leftovers(network: nn.Module) -> nn.Module:
    """A copy of the user's own network, without what DP-SGD left in it, such as activations of training data."""
    # One may hold another, where the wrapper is inside the user's own module.
    for module in [part for part in network.modules() if "autograd_grad_sample_hooks" in vars(part)]:
        for part in module.modules():
            for name in ("autograd_grad_sample_hooks", "activations", "max_batch_len", "ft_compute_sample_grad"):
                vars(part).pop(name, None)
    return network


def _with_constant_weights(network: nn.Module, value: float = 0.5, flipped: int = 0) -> nn.Module:
    """A copy whose parameters and buffers of floating point are all ``value``; its parameters share their memory.

    The last ``flipped`` parameters have the other sign.
    """
    halves: dict[Any, Tensor] = {}
    memo: dict[int, Any] = {}
    for weight in sorted(_floats(network), key=Tensor.numel, reverse=True):
        if not isinstance(weight, nn.Parameter):  # the network may write into it
            memo[id(weight)] = torch.full_like(weight, value)
            continue
        kind = (weight.dtype, weight.device)
        if kind not in halves:
            halves[kind] = torch.full((weight.numel(),), value, dtype=weight.dtype, device=weight.device)
        memo[id(weight)] = nn.Parameter(halves[kind][: weight.numel()].view(weight.shape), requires_grad=False)
    double = copy.deepcopy(network, memo).eval()
    for weight in _floats(double):
        if not bool((weight == value).all()):  # TorchScript copies its weights in its own way
            weight.fill_(value)
    for weight in [one for one in double.parameters() if one.is_floating_point()][-flipped:] if flipped else []:
        weight.data = -weight
    return double


def _floats(network: nn.Module) -> list[Tensor]:
    return [value for value in (*network.parameters(), *network.buffers()) if value.is_floating_point()]


def _mismatch(network: nn.Module, number: int, inputs: Structure, error: Exception) -> InvalidArgument:
    """An error that says what the teacher takes and what it was given."""
    weight = next(iter(network.parameters()), None)
    takes = f"what teacher {number} takes"
    if weight is not None:
        takes += f", whose first weights are {_type_and_shape(weight)}"
    lines = str(error).splitlines() if "TorchScript" in str(error) else []  # whose last line says what went wrong
    reason = lines[-1] if lines else f"{type(error).__name__}: {str(error) or 'no message'}"
    parts = dict(tensors_of(inputs))
    got = [
        _type_and_shape(part) if name == "inputs" else f"{name} {_type_and_shape(part)}"
        for name, part in itertools.islice(parts.items(), 4)
    ]
    got += [f"{len(parts) - len(got)} more"] if len(parts) > len(got) else []
    cure = "A batch is one tensor, such as torch.stack(inputs). " if isinstance(inputs, list) else ""
    if "type" in reason and not any(part.is_floating_point() for part in parts.values()):
        cure = "Convert them as in training, such as inputs.float() / 255 for images of bytes. "
    return InvalidArgument("inputs", takes, ", ".join(got), cure + textwrap.shorten(reason, 160))


def _type_and_shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _extremes(inputs: Structure) -> tuple[IntArray, IntArray]:
    """The least and the largest number of each tensor of integers."""
    parts = [part for _, part in tensors_of(inputs) if not part.is_floating_point() and part.numel()]
    pairs = [[int(end) for end in part.to(torch.int64).aminmax()] for part in parts]
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return ends[:, 0], ends[:, 1]


def equal_weights(mine: Any, given: Any) -> bool:
    """Whether these are the same numbers, where either may have been stored in a lower precision."""
    if not (isinstance(mine, Tensor) and isinstance(given, Tensor)) or mine.shape != given.shape:
        return True  # Torch raises an error of its own
    one, other = (weight.detach().cpu() for weight in (mine, given))
    if not (one.is_floating_point() and other.is_floating_point()):
        return torch.equal(one, other)
    return any(
        torch.equal(exact.to(kind).double(), rounded.double())
        for kind in {one.dtype, other.dtype, torch.float32, torch.float16, torch.bfloat16}
        for exact, rounded in ((one, other), (other, one))
    )
