"""Whether several teachers are several: accountants, batches, noise, weights and records of their own."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from scipy.special import gammainccinv, gammaincinv

from ..arguments import checked
from ..errors import InvalidArgument, UnprovenPrivacy, check_integer, warn_caller
from .adapters import warn_of_idle_adapters
from .checkpoints import common_weights, named_weights, state_of, unwrap_module, weights_digest
from .findings import Finding, refuse_unless_accepted
from .loaders import generators_of, largest_overlap
from .packed import packed_weights

__all__ = ["check_different", "check_independent", "check_noise", "check_overlap", "check_weights", "largest_signal"]

_FALSE_ALARMS = 1e-6  # of honest ensembles, in the model of _least_distance
_UNKNOWN_SIGNAL = 1000.0  # in units of the noise: batches of 100 in 100 steps at noise multiplier 1
_ALIKE = 0.01  # 1 - correlation; teachers that are less alike are never refused, whatever they started from
_FEWEST_SUMS, _ROUNDED_SUMS = 4, 3e-6  # of one matrix; relative to its norm
_ROUNDING = 1e-6  # relative distance of one teacher from itself, in single precision
_SAME_NOISE = (
    "they were trained with the same noise, or started alike and hardly moved. Train each teacher with its own seed; "
    'give initial= if they started alike; accept=["seeds"] if their noise is known to be independent'
)
_COPIES = "they are copies of one teacher, which multiply the effect of its records. Train each teacher separately"
_NEVER_MOVED = (
    "teacher {} has the weights that training started from: nothing was trained. Check that its parameters require "
    "gradients and that the optimizer holds them (adapters may be disabled)"
)


@checked
def check_independent(
    sources: Iterable[Any] = (),
    *,
    modules: Iterable[Any] = (),
    optimizers: Iterable[Any] = (),
    data_loaders: Iterable[Any] = (),
    overlap: int | None = None,
    initial: Any = None,
    accept: Collection[Finding] = (),
) -> None:
    """Check that each of several teachers has its own accountant, batches, noise and weights.

    Teachers trained with one seed share their noise, so the difference of their weights shows the data without noise.
    Teachers trained on the same batches multiply the effect of a record that is drawn. Both are refused where they can
    be seen: shared loaders, samplers and generators, generators of equal seeds or states, and weights that correlate by
    more than 0.99 and are more alike than two independent noises allow, or whose sums over the outputs, which only
    noise moves, are equal. The comparison of weights is a test, not a proof: in its model it refuses one honest
    ensemble in a million, and it does not see all shared noise (`docs/accounting.md` states the rule). No guarantee
    rests on it: that seeds of Torch's global generator differ remains an assumption.

    Args:
        sources: engines, accountants, paths or histories. No two engines or accountants may be the same object or share
            a history list; plain lists of runs may be equal. With ``data_loaders``, engines and accountants also show
            how much of the weights can be signal, which makes the comparison of weights more powerful.
        modules: trained teachers or state dicts.
        optimizers: those that ``make_private`` returned; they hold their ``noise_generator``.
        data_loaders: those that ``make_private`` returned, one for each teacher.
        overlap: the number of teachers that one record is promised to be in at most.
        initial: the weights that all teachers started from, if they did: updates are compared instead of weights.
            Weights that are the same in all teachers, such as a frozen trunk, are found without it and not compared.
        accept: "seeds" admits correlated teachers, equal seeds, and shared loaders or generators, if you know that
            noise and batches are independent.

    Raises:
        UnprovenPrivacy: two of them are not independent, or one record is in more than ``overlap`` of the loaders.

    >>> from torch import nn
    >>> check_independent([[(12.0, 0.1, 10)], [(12.0, 0.1, 10)]])  # plain histories say nothing about noise
    >>> start = nn.Linear(4, 2)
    >>> check_independent(modules=[start, start])
    Traceback (most recent call last):
    ...
    darrm_torch.errors.UnprovenPrivacy: ...
    """
    sources, optimizers, data_loaders = list(sources), list(optimizers), list(data_loaders)
    accountants = [
        None if isinstance(s, (str, os.PathLike, list, tuple)) else getattr(s, "accountant", s) for s in sources
    ]
    histories = [getattr(accountant, "history", accountant) for accountant in accountants]
    for name, objects, needed in (
        ("sources", [history for history in histories if history is not None], "__getitem__"),
        ("optimizers", [one for one in optimizers if one is not None], "param_groups"),
        ("data_loaders", [one for one in data_loaders if one is not None], "dataset"),
    ):
        for one in objects:
            if not hasattr(one, needed):
                raise InvalidArgument(name, "those that Opacus returned, or None", one)
    if pair := _same_object(histories):
        raise UnprovenPrivacy(
            f"teachers {pair[0]} and {pair[1]} share one accountant or one history list: it adds up the steps of both, "
            "or changes when the other is trained. Use one PrivacyEngine for each teacher, and a copy of the state "
            "dict for each load_state_dict"
        )
    _check_batches(data_loaders, accept)
    _check_generators(optimizers, data_loaders, accept)
    if overlap is not None:
        _refuse_overlap(largest_overlap(loader for loader in data_loaders if loader is not None), overlap)
    if initial is not None:
        state_of(initial, "initial")
    modules = list(modules)
    signals: list[float | None] = [None] * len(modules)
    if len(histories) == len(data_loaders) == len(modules):
        records = [None if loader is None else len(loader.dataset) for loader in data_loaders]
        signals = [largest_signal(*pair) for pair in zip(histories, records, strict=True)]
    check_noise(modules, signals, initial=initial, accept=accept)


def check_overlap(profiles: Iterable[Any], overlap: int) -> None:
    """Check that ``overlap`` is not less than what the readings of ``profiles`` found.

    Raises:
        UnprovenPrivacy: it is less.
    """
    found = [profile.reading.overlap for profile in profiles if profile.reading is not None]
    _refuse_overlap(max((number for number in found if number is not None), default=1), overlap)


def check_weights(models: Sequence[Any], profiles: Sequence[Any]) -> None:
    """Check that the models hold the weights that their profiles were read with.

    Raises:
        UnprovenPrivacy: one of them does not.
    """
    for number, (model, profile) in enumerate(zip(models, profiles, strict=True)):
        if profile.reading is not None and profile.reading.digest not in (None, weights_digest(model)):
            raise UnprovenPrivacy(
                f"the weights of teacher {number} are not those that its profile was read with. Either the teacher "
                "was trained further or converted since, or the profiles are in another order. Read the teachers "
                "as they are now: read_teachers(..., modules=models)"
            )


def check_different(models: Sequence[Any]) -> None:
    """Check that no teacher occurs twice: as the same object, or with equal weights in any wrapping and precision.

    Names of weights do not matter, nor do buffers, where the models are modules.

    Models without weights are compared as objects only.

    Raises:
        InvalidArgument: two of them are the same teacher.
    """
    warn_of_idle_adapters(models)
    states = [_trained_weights(model) for model in models]
    kinds = {value.dtype for state in states for value in state.values() if _is_float(value)}
    coarsest = max(kinds, key=lambda kind: torch.finfo(kind).eps, default=torch.float32)
    first: dict[Any, int] = {}
    for number, (model, state) in enumerate(zip(models, states, strict=True)):
        rounded = [value.to(coarsest) if _is_float(value) else value for value in state.values()]
        digests = sorted(weights_digest({"": value}) for value in rounded)
        keys: list[Any] = [id(unwrap_module(model)), *([tuple(digests)] if digests else [])]
        for key in keys:
            if (earlier := first.setdefault(key, number)) != number:
                raise InvalidArgument(
                    "models",
                    "different teachers",
                    f"teachers {earlier} and {number} with the same weights",
                    "Train each teacher separately: copies of one teacher multiply the effect of its records.",
                )


def _trained_weights(model: Any) -> dict[str, Any]:
    """The parameters and packed weights of a module, or everything where it has none, by name."""
    state = {name: value for name, value in state_of(model).items() if isinstance(value, torch.Tensor)}
    bare = unwrap_module(model)
    parameters = {name for name, _ in bare.named_parameters()}
    parameters = (parameters | packed_weights(bare).keys()) & state.keys()
    return {name: value for name, value in state.items() if not parameters or name in parameters}


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _refuse_overlap(found: int, promised: int) -> None:
    if found > check_integer("overlap", promised, low=1):
        raise UnprovenPrivacy(
            f"one record is in the data loaders of {found} teachers, but overlap is {promised}. Opacus draws from the "
            "whole data set of a loader and drops samplers such as SubsetRandomSampler: give each teacher its own "
            f"torch.utils.data.Subset, or overlap={found}"
        )


def _same_object(objects: Sequence[Any]) -> tuple[int, int] | None:
    """The numbers of the first two that are one object."""
    first: dict[int, int] = {}
    for number, one in enumerate(objects):
        if one is not None and (earlier := first.setdefault(id(one), number)) != number:
            return earlier, number
    return None


def _check_batches(loaders: Sequence[Any], accept: Collection[Finding]) -> None:
    shared = {
        "data loader": loaders,
        "batch sampler": [getattr(loader, "batch_sampler", None) for loader in loaders],
        "sampler": [getattr(loader, "sampler", None) for loader in loaders],
    }
    for name, parts in shared.items():
        if pair := _same_object(parts):
            refuse_unless_accepted(
                "seeds",
                accept,
                f"teachers {pair[0]} and {pair[1]} share one {name}: if they were trained on the same batches, one "
                "record that is drawn reaches both at once, which costs more than independent batches. Give each "
                'teacher its own make_private and loader; accept=["seeds"] if their batches are known to be '
                "independent",
            )


def _check_generators(optimizers: Sequence[Any], loaders: Sequence[Any], accept: Collection[Finding]) -> None:
    generators = [(i, "noise", getattr(optimizer, "generator", None)) for i, optimizer in enumerate(optimizers)]
    generators += [(i, "sampler", generator) for i, loader in enumerate(loaders) for generator in generators_of(loader)]
    first: dict[Any, tuple[int, str, torch.Generator]] = {}
    for teacher, use, generator in generators:
        if not isinstance(generator, torch.Generator):
            continue
        # One noise generator that two teachers share goes on after the first. Two with one seed repeat themselves.
        for key in (generator.initial_seed(), generator.get_state().numpy().tobytes()):
            earlier, other_use, other = first.setdefault(key, (teacher, use, generator))
            if other is not generator or (use == other_use == "sampler" and teacher != earlier):
                how = "are one object" if other is generator else "began with the same seed or are in the same state"
                refuse_unless_accepted(
                    "seeds",
                    accept,
                    f"the {other_use} generator of teacher {earlier} and the {use} generator of teacher {teacher} "
                    f"{how}: noise or batches repeat, and what repeats protects nothing. Train each teacher with its "
                    'own seeds, from the operating system; accept=["seeds"] if noise and batches are known to be '
                    "independent",
                )


def largest_signal(history: Any, records: int | None) -> float | None:
    """How far gradients can move a teacher at most, in standard deviations of one weight's noise; ``None``: unknown.

    In ``T`` steps with sample rate ``q``, learning rates ``r_t`` and noise multiplier ``z``, N records move the weights
    by at most ``q N C sum(r_t)``, and the noise of one weight has the standard deviation ``z C sqrt(sum(r_t ** 2))``.
    By Cauchy and Schwarz, the ratio is at most ``q N sqrt(T) / z``, whatever the learning rates.
    """
    try:
        return None if records is None else records * math.hypot(*(rate / z * steps**0.5 for z, rate, steps in history))
    except (TypeError, ValueError, ArithmeticError):
        return None


@functools.lru_cache
def _least_distance(weights: int, signal: float, false_alarms: float) -> float:
    """``1 - correlation`` that two independent teachers exceed, except with probability ``false_alarms``.

    The model: a teacher's update is its signal, of norm ``signal`` at most, plus independent standard normal noise in
    each weight. The part of the first update that is orthogonal to the second is then, by Anderson's inequality, at
    least as long as the noise in ``weights - 1`` dimensions. Its whole norm is at most ``signal`` plus that of noise.
    """
    if weights < 2 or not math.isfinite(signal):
        return 0.0
    least = 2 * gammaincinv((weights - 1) / 2, false_alarms / 2)
    most = math.sqrt(2 * gammainccinv(weights / 2, false_alarms / 2))
    return float(least / (signal + most) ** 2 / 2)


def check_noise(
    modules: Sequence[Any], signals: Sequence[float | None], *, initial: Any, accept: Collection[Finding]
) -> None:
    """Check that no two teachers are alike by more than independent noise allows.

    Args:
        modules: trained teachers or state dicts.
        signals: :func:`largest_signal` of each, or ``None``.
        initial, accept: see :func:`check_independent`.

    Raises:
        UnprovenPrivacy: two of them are.
    """
    if pair := _same_object([one if isinstance(one, Mapping) else unwrap_module(one) for one in modules]):
        raise UnprovenPrivacy(f"teachers {pair[0]} and {pair[1]} are the same object. Train each teacher separately")
    warn_of_idle_adapters(modules)
    compared = _compared_names(modules)
    start, sizes = (None, None) if initial is None else _weight_vector(initial, compared)
    false_alarms = _FALSE_ALARMS / max(1, math.comb(len(modules), 2))
    only_biases = initial is None and bool(compared) and not _matrices(modules, compared or ())  # they started alike
    limits = [_UNKNOWN_SIGNAL if signal is None else signal for signal in signals]
    directions: list[torch.Tensor] = []
    norms: list[float] = []
    shapes: list[list[int]] = []
    for number, module in enumerate(modules):
        update, own = _weight_vector(module, compared)
        shapes.append(own)
        if start is not None:
            if own != sizes:
                cure = "Pass the weights of the whole network before training, frozen parts included."
                raise InvalidArgument("initial", "the weights that the teachers started from", "other shapes", cure)
            update = update - start
            if not update.any():
                warn_caller(_NEVER_MOVED.format(number))
        norms.append(float(update.norm()))
        directions.append(update / max(norms[number], 1e-30))
        for earlier in range(number):
            if shapes[earlier] != own or not norms[number] * norms[earlier]:
                continue
            one, other = directions[earlier], directions[number]
            correlation = float(one @ other)
            if 1 - correlation > _ALIKE + 1e-5:  # the product is rounded to single precision
                continue
            distance = float((one - other).norm())
            same = distance <= _ROUNDING and abs(norms[earlier] / norms[number] - 1) <= _ROUNDING
            origin = torch.zeros_like(one) if start is None else start
            parts = [*zip(*(vector.split_with_sizes(own) for vector in (one, other, origin)), strict=True)]
            signal = max(limits[earlier], limits[number])
            weights = "updates" if initial is not None else "weights"
            found = f"teachers {earlier} and {number} have {weights} that correlate by {correlation:.4f}"
            if same:
                raise UnprovenPrivacy(f"{found} and are equal up to rounding: {_COPIES}")
            if distance**2 / 2 < _ALIKE and (only_biases or _agree_beyond_noise(parts, signal, false_alarms)):
                refuse_unless_accepted("seeds", accept, f"{found}: {_SAME_NOISE}")
    if pair := _equal_sums(modules, compared, initial):
        one, other = (directions[number] for number in pair)
        found = f"teachers {pair[0]} and {pair[1]} have weights "
        found += f"that correlate by {float(one @ other):.4f} and have " if one.shape == other.shape else "with "
        refuse_unless_accepted(
            "seeds", accept, f"{found}equal sums over the outputs, which only noise moves: {_SAME_NOISE}"
        )


def _agree_beyond_noise(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], signal: float, false_alarms: float
) -> bool:
    """Whether two updates agree in one of their parts better than independent noise allows; with each part its start.

    Only within a part has noise one scale: learning rates, and those of Adam, differ among layers. Weight decay moves
    all teachers along their start, without noise, so this direction is left out.
    """
    for part in parts:
        one, other, start = (vector.double() for vector in part)
        start = start / max(float(start.norm()), 1e-30)
        one, other = (update - (update @ start) * start for update in (one, other))
        distance = float((one / one.norm() - other / other.norm()).norm()) ** 2 / 2  # NaN if one has not moved
        if distance < min(_ALIKE, _least_distance(len(one) - 1, signal, false_alarms / len(parts))):
            return True
    return False


def _equal_sums(modules: Sequence[Any], names: Collection[str] | None, initial: Any) -> tuple[int, int] | None:
    """Two teachers with a matrix whose sums over the outputs are equal up to rounding, and no zeros.

    Gradients of the cross-entropy sum to zero over the logits, because it does not change if all of them grow alike,
    and clipping does not change that. So only noise moves these sums, and the same noise leaves them equal. Sums that
    have not moved from those of ``initial`` show no noise.
    """
    starts = {} if initial is None else dict(named_weights(initial))
    matrices: dict[tuple[str, torch.Size], list[tuple[int, torch.Tensor, torch.Tensor, float]]] = {}
    for number, module in enumerate(modules):
        for name, value in named_weights(module):
            precise = value.dtype in (torch.float32, torch.float64) and (names is None or name in names)
            if precise and value.dim() == 2 and len(value) > 1 and value.shape[1] >= _FEWEST_SUMS:
                one = value.detach().cpu()
                total = one.sum(dim=0, dtype=torch.float64)
                if name in starts and starts[name].shape == one.shape:
                    total = total - starts[name].detach().cpu().sum(dim=0, dtype=torch.float64)
                matrices.setdefault((name, one.shape), []).append((number, total, one[0].double(), float(one.norm())))
    for rows in matrices.values():
        numbers, sums, firsts, norms = zip(*rows, strict=True)
        rounding, total, first = _ROUNDED_SUMS * torch.tensor(norms).double(), torch.stack(sums), torch.stack(firsts)
        known = rounding < total.norm(dim=1) / 10
        equal, frozen = (torch.cdist(part, part) <= rounding[:, None] for part in (total, first))
        for one_row, other_row in (known[:, None] & equal & ~frozen).triu(1).nonzero()[:1].tolist():
            return numbers[one_row], numbers[other_row]
    return None


def _compared_names(modules: Sequence[Any]) -> Collection[str] | None:
    """The weights in which teachers are compared, by name; ``None``: all matrices and kernels.

    Those that are the same in all teachers were not trained. Biases and scales start alike in every teacher, so they
    count only where nothing else was trained. Teachers that differ in no parameter at all are copies.
    """
    frozen = common_weights(modules)
    if not frozen:
        return None
    trained = {name for module in modules for name, value in named_weights(module) if value.is_floating_point()}
    return _matrices(modules, trained - frozen.keys()) or trained - frozen.keys() or None


def _matrices(modules: Sequence[Any], names: Collection[str]) -> set[str]:
    return {name for module in modules for name, value in named_weights(module) if name in names and value.dim() > 1}


def _weight_vector(module: Any, names: Collection[str] | None) -> tuple[torch.Tensor, list[int]]:
    """The weights with these names in one vector, all matrices and kernels for ``None``; and the size of each."""
    weights = [
        value.detach().cpu().float().reshape(-1)
        for name, value in named_weights(module)
        if value.is_floating_point() and (value.dim() > 1 if names is None else name in names)
    ]
    weights = weights or [torch.zeros(1)]
    return torch.cat(weights), [*map(len, weights)]
