"""What an optimizer of Opacus shows about its training: steps, noise, clipping, and the accountant it reports to."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from ..errors import InvalidArgument, UnprovenPrivacy, check_integer
from .checkpoints import unlike, unwrap_module
from .findings import Notes
from .loaders import GUESSED, guessed_seed

__all__ = ["History", "check_optimizer", "check_real", "counted_steps", "is_private", "source_of_noise"]

History = tuple[tuple[float, float, int], ...]


def is_private(optimizer: Any) -> bool:
    """Whether an optimizer is one of Opacus, which can report its steps to an accountant."""
    return hasattr(optimizer, "attach_step_hook")


def check_real(weights: Iterable[Any]) -> None:
    """Refuse complex weights: each of the two parts of Torch's complex noise has half the variance.

    Raises:
        UnprovenPrivacy: a weight is complex.
    """
    if any(weight.is_complex() for weight in weights):
        raise UnprovenPrivacy(
            "noise on complex weights has half the variance in their real and imaginary parts, so it is less than the "
            "accountant counts. Train the two parts as real weights"
        )


def counted_steps(history: History, optimizer: Any, steps: int | None) -> bool:
    """Check the recorded steps against every other count; False if there is none.

    Args:
        history: what the accountant recorded.
        optimizer: the optimizer, or its state dict from a file.
        steps: the number of steps that the caller knows.

    Raises:
        UnprovenPrivacy: they differ.
    """
    recorded = sum(count for *_, count in history)
    if steps is not None and check_integer("steps", steps, low=0) != recorded:
        raise UnprovenPrivacy(
            f"the accountant recorded {recorded} steps, but {steps} were taken. A training run that was resumed "
            "without its accountant's state forgets the steps before: load the state dict of the accountant too"
        )
    counters = [
        int(values["step"]) for values in _states(optimizer) if isinstance(values, Mapping) and "step" in values
    ]
    if max(counters, default=0) > recorded:
        raise UnprovenPrivacy(
            f"the optimizer took {max(counters)} steps, the accountant recorded {recorded}: some steps had no privacy. "
            "Keep the accountant's state with the optimizer's, and do not call original_optimizer.step()"
        )
    return steps is not None or any(counters)


def _states(optimizer: Any) -> Collection[Any]:
    """What an optimizer, or its state dict, remembers of each weight."""
    state = optimizer.get("state") if isinstance(optimizer, Mapping) else getattr(optimizer, "state", None)
    return state.values() if isinstance(state, Mapping) else ()


def _count(step: Any) -> int:
    """A counter of steps, which may come from a file; zero for anything else."""
    single = isinstance(step, int | float) or (isinstance(step, torch.Tensor) and step.numel() == 1)
    return int(step) if single and math.isfinite(step) else 0


def check_optimizer(
    source: Any, module: Any, optimizer: Any, history: History, *, initial: Any, notes: Notes
) -> float | None:
    """The sample rate that the optimizer reports for each batch, where it can be seen.

    Raises:
        InvalidArgument: it is no optimizer of Opacus.
        UnprovenPrivacy: it contradicts the accountant, or does what no accountant counts.
    """
    if optimizer is None:
        return None
    if not is_private(optimizer):
        raise InvalidArgument("optimizer", "the one that make_private returned", type(optimizer).__name__)
    if hasattr(optimizer, "unclipped_num_std") or hasattr(optimizer, "_adjusted_noise_multiplier"):
        raise UnprovenPrivacy(
            "adaptive clipping divides its noisy count of unclipped gradients by the exact size of the batch, which "
            "reveals more than the accountant counts: its theorem divides by a constant. Train again with "
            'clipping="flat" or "per_layer"'
        )
    accountant = getattr(source, "accountant", source)
    hooked: list[Any] = []
    if hasattr(accountant, "step"):
        hook = getattr(optimizer, "step_hook", None)
        hooked = [cell.cell_contents for cell in getattr(hook, "__closure__", None) or ()]
        if not any(value is accountant for value in hooked):
            raise UnprovenPrivacy(
                "this optimizer does not report its steps to this accountant (another step hook replaced it, or "
                "another engine made the optimizer). Give the engine whose make_private made it, and attach no other "
                "step hook"
            )
    trained = {id(weight) for group in getattr(optimizer, "param_groups", ()) for weight in group["params"]}
    network = module if isinstance(module, torch.nn.Module) else getattr(module, "_module", None)
    if isinstance(network, torch.nn.Module):
        if not trained <= {id(weight) for weight in network.parameters()}:
            raise UnprovenPrivacy(
                "this optimizer trained other weights than this teacher's. Give the module, the engine and the "
                "optimizer of one make_private together"
            )
        _note_other_weights(network, trained, initial, notes)
    check_real(getattr(optimizer, "params", ()))
    if not type(optimizer).__module__.startswith(("opacus.", "lightning.")):
        notes.append(
            f"The optimizer is a {type(optimizer).__name__}, which is no class of Opacus: that it clips and adds noise "
            "as it reports is assumed."
        )
    if "NoOp" in type(module).__name__:
        notes.append('The training computed the gradients of single records itself ("no_op"): that it did is assumed.')
    if guessed_seed(getattr(optimizer, "generator", None)):
        note = "The caller vouches that nobody can find the seed of the noise."
        notes.vouched("seeds", GUESSED.format("noise"), note)
    if getattr(optimizer, "_step_skip_queue", None):
        notes.vouched(
            "sampling",
            "the optimizer waits for the rest of a batch: a loop over BatchMemoryManager was left in the middle of it. "
            "If training went on, parts of two batches were added up in one step, and a record may be in both. Leave "
            'such a loop at the end of a batch; accept=["sampling"] if training ended there',
            "The caller vouches that training ended where a loop over BatchMemoryManager was left.",
        )
    noise, (recorded, *_) = getattr(optimizer, "noise_multiplier", None), history[-1]
    if noise is not None and noise != recorded:
        raise UnprovenPrivacy(
            f"the optimizer's noise_multiplier is {noise}, the accountant last recorded {recorded}. Give the "
            "accountant of this optimizer; if a scheduler changed the noise after the last step, set it back"
        )
    bound, clipped = getattr(optimizer, "max_grad_norm", None), getattr(module, "max_grad_norm", None)
    if bound is not None and clipped is not None and bound != clipped:
        raise UnprovenPrivacy(
            f"the module clips gradients to {clipped}, the optimizer scales its noise to {bound}: ghost clipping does "
            "not support schedules of the bound. Train again with a constant max_grad_norm"
        )
    layers = getattr(optimizer, "max_grad_norms", None)
    if bound is not None and layers is not None and bound < math.hypot(*layers) * (1 - 1e-6):
        raise UnprovenPrivacy(
            f"the layers' gradients are clipped to {math.hypot(*layers):.6g} together, but the optimizer scales its "
            f"noise to {bound:.6g}: clipping per layer does not support schedules of the bound. Train again "
            "with constant bounds"
        )
    return next((value for value in hooked if isinstance(value, float)), None)


def _note_other_weights(network: torch.nn.Module, trained: Collection[int], initial: Any, notes: Notes) -> None:
    """Weights that the optimizer does not train: are they those that training started from?"""
    others = {name: weight for name, weight in unwrap_module(network).named_parameters() if id(weight) not in trained}
    names = unlike(network, initial, others)
    if free := [name for name in names if others[name].requires_grad]:
        notes.vouched(
            "buffers",
            f"the optimizer does not train {free[0]}, which requires a gradient: another optimizer may have trained it "
            "without privacy. Freeze what is not trained (requires_grad_(False)), or give initial= to show that it did "
            'not change; accept=["buffers"] if it comes from public data alone',
            f"The caller vouches that {', '.join(free)} come from public data alone.",
        )
    elif names:
        notes.append(
            f"The optimizer does not train {len(names)} of the weights, such as {names[0]}: that they come from public "
            "data alone is assumed. To have it checked, pass initial= to read_privacy."
        )


def source_of_noise(record: Mapping[str, Any], optimizer: Any) -> str:
    """The generator that a file of ``train_teachers`` names, or that an optimizer of Opacus draws its noise from."""
    if optimizer is None:
        return str(record.get("randomness", "unknown"))
    return "Opacus' secure mode" if getattr(optimizer, "secure_mode", False) else "Torch's generator"
