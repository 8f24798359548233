"""Whether several teachers are several: accountants, weights and noise of their own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable
from typing import Any

import torch

from ..errors import UnprovenPrivacy
from .checkpoints import named_weights
from .findings import Finding, refuse_unless_accepted

__all__ = ["check_independent"]

_SAME_NOISE = 0.99  # correlation of two teachers' updates
_SAME_WEIGHTS = 1 - 1e-6  # one teacher twice, in single precision


def check_independent(
    sources: Iterable[Any] = (),
    *,
    modules: Iterable[Any] = (),
    optimizers: Iterable[Any] = (),
    initial: Any = None,
    accept: Collection[Finding] = (),
) -> None:
    """Check that each of several teachers has its own accountant, weights and noise.

    Teachers trained with one seed share their noise, so the difference of their weights shows the data without noise.
    Two teachers are refused if their updates correlate by more than 0.99 or if their noise generators started from the
    same seed.

    Args:
        sources: engines, accountants or histories. No two may be the same object or share a history list.
        modules: trained teachers or state dicts.
        optimizers: those that ``make_private`` returned; they hold their ``noise_generator``.
        initial: the weights that all teachers started from, if they did: updates are compared instead of weights.
        accept: "seeds" admits correlated teachers and equal seeds, if you know that the noise is independent.

    Raises:
        UnprovenPrivacy: two of them are not independent.
    """
    live = [getattr(source, "accountant", source) for source in sources if not isinstance(source, (str, os.PathLike))]
    histories = [getattr(accountant, "history", accountant) for accountant in live]
    for (i, one), (j, other) in itertools.combinations(enumerate(histories), 2):
        if one is other:
            raise UnprovenPrivacy(
                f"teachers {i} and {j} share one accountant or one history list: it adds up the steps of both, or "
                "changes when the other is trained. Use one PrivacyEngine for each teacher, and a copy of the state "
                "dict for each load_state_dict"
            )
    generators = [
        (number, optimizer.generator)
        for number, optimizer in enumerate(optimizers)
        if isinstance(getattr(optimizer, "generator", None), torch.Generator)
    ]
    for (i, one), (j, other) in itertools.combinations(generators, 2):
        # One generator that two teachers share goes on after the first; two of one seed repeat the same noise.
        if one is not other and one.initial_seed() == other.initial_seed():
            refuse_unless_accepted(
                "seeds",
                accept,
                f"the noise_generators of teachers {i} and {j} began with the same seed: their noise is the same, and "
                "their difference shows the data. Train each teacher with its own seed, from the operating system; "
                'accept=["seeds"] if their noise is known to be independent',
            )
    _check_weights(list(modules), initial, accept)


def _check_weights(modules: list[Any], initial: Any, accept: Collection[Finding]) -> None:
    for (i, one), (j, other) in itertools.combinations(enumerate(modules), 2):
        if one is other or getattr(one, "_module", one) is getattr(other, "_module", other):
            raise UnprovenPrivacy(f"teachers {i} and {j} are the same object. Train each teacher on its own")
    start = None if initial is None else _weight_vector(initial)
    updates: list[torch.Tensor] = []
    for number, module in enumerate(modules):
        update = _weight_vector(module)
        if start is not None:
            update = update - start
        updates.append(update / max(float(update.norm()), 1e-30))
        for earlier in range(number):
            if updates[earlier].shape != updates[number].shape:
                continue
            correlation = float(updates[earlier] @ updates[number])
            if correlation > _SAME_NOISE:
                refuse_unless_accepted(
                    "seeds",
                    accept if correlation < _SAME_WEIGHTS else (),
                    f"teachers {earlier} and {number} have {'updates' if initial is not None else 'weights'} that "
                    f"correlate by {correlation:.4f}: they were trained with the same noise, or started alike and "
                    "hardly moved. Train each teacher with its own seed; give initial= if they started alike; "
                    'accept=["seeds"] if their noise is known to be independent',
                )


def _weight_vector(module: Any) -> torch.Tensor:
    """Weight matrices and kernels in one vector; biases and scales start alike in every teacher."""
    weights = [
        value.detach().cpu().float().reshape(-1)
        for _, value in named_weights(module)
        if value.is_floating_point() and value.dim() > 1
    ]
    return torch.cat(weights) if weights else torch.zeros(1)
