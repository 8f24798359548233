"""Whether a step adds up the clipped gradients of single records, tried on random numbers in place of the records."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UnprovenPrivacy
from .dp_sgd import TrainingSettings, losses_of, train_mode, train_teacher
from .records import batch_of
from .structures import call, evaluating, mapped

__all__ = ["check_additive"]

_RATE = 1e6  # steps so long that the rounding of the weights before them does not show
_FREE, _SHORT = 1e9, 1e-3  # clipping bounds that change nothing, and that change everything


def check_additive(network: nn.Module, example: Any, settings: TrainingSettings) -> None:
    """Check on public numbers that a step moves the weights by the sum of what single records contribute.

    Every accountant takes for granted that a step releases the sum of gradients, each of one record alone and clipped,
    and noise. It is false if a layer or a loss mixes the records of a batch, if a layer sees other rows than records,
    and if the network remembers what it has read. Steps without noise on three, five and eight random records show it,
    with a clipping bound that is never reached and with one that always is. Weights are moved at random before, so that
    no part of the network is silent. Where the network draws random numbers, a part of the batch is exchanged instead.

    A trial is no proof: what depends on special values of the records, or on larger batches, stays unseen.

    Args:
        network: an untrained network, which stays as it is.
        example: the result of :func:`~darrm_torch.teachers.records.example_of`.
        settings: those of a training with privacy.

    Raises:
        UnprovenPrivacy: one of these is the case.
    """
    generator = torch.Generator().manual_seed(0)
    moved = copy.deepcopy(network)
    with torch.no_grad():
        for weight in moved.parameters():
            if weight.requires_grad:
                size = weight[0].numel() if weight.dim() > 1 else 1
                weight.add_(0.1 / size**0.5 * torch.randn(weight.shape, generator=generator).to(weight))
    for kinds in ((True, True), (True, False), (False, False)):  # zeros where the network takes nothing else
        records = [mapped(example[0], lambda part: _public(part, *kinds, generator)) for _ in range(16)]  # noqa: B023
        try:
            _check(moved, records, settings)
            return
        except UnprovenPrivacy:
            raise
        except Exception:
            if not any(kinds):
                raise


def _public(part: Tensor, reals: bool, integers: bool, generator: torch.Generator) -> Tensor:
    """Random numbers that most networks take: between 0 and 1, and any of an image's bytes."""
    if part.is_floating_point() and reals:
        return torch.rand(part.shape, generator=generator).to(part)
    if integers and not (part.is_floating_point() or part.is_complex()):
        most = 256 if part.dtype == torch.uint8 else 2
        return torch.randint(most, part.shape, generator=generator).to(part)
    return torch.zeros_like(part)


def _check(network: nn.Module, records: list[Any], settings: TrainingSettings) -> None:
    def moves(*chosen: Any, bound: float = _FREE, seed: int = 0, network: nn.Module = network) -> Tensor:
        """The noiseless sum of the clipped gradients of these records."""
        step = replace(
            settings,
            noise_multiplier=1e-30,
            max_grad_norm=bound,
            batch_size=len(records),
            epochs=1,
            learning_rate=_RATE * len(records),
            optimizer=None,
            schedule=None,
        )
        record = train_teacher(lambda: network, [*chosen], shard_size=len(records), settings=step, seeds=(seed, 0))
        after = record["module_state_dict"]
        return torch.cat(
            [
                (weight.detach().double() - after[name].double()).flatten() / _RATE
                for name, weight in network.named_parameters()
                if weight.requires_grad
            ]
        )

    a, b, c, d = records[:3], records[3:8], records[8:13], records[13:]  # odd numbers: two classes cannot balance
    both = moves(*a, *b)
    reader = copy.deepcopy(network)
    train_mode(reader)
    with torch.no_grad(), torch.random.fork_rng([]):
        call(reader, batch_of(c, range(len(c)), "cpu")[0])
    same = all(map(torch.equal, reader.parameters(), network.parameters()))
    if not (same and _alike(both, moves(*a, *b, network=reader))):
        raise UnprovenPrivacy(
            "the network remembers what it has read: tried on random records, a batch changes the gradients of the "
            "next one, which no accountant counts. Keep no statistics of batches in the network, and draw random "
            "numbers with Torch's generator"
        )
    one = moves(records[0])
    clipped = one * min(1.0, _SHORT / (float(one.norm()) + 1e-6))
    if not _alike(moves(records[0], bound=_SHORT), clipped):
        raise UnprovenPrivacy(
            "tried on a random record, training does not clip its gradient to the bound: layers see rows that are no "
            "records, as after x.reshape(-1, features) or where time comes before the batch, or use weights of other "
            "layers with ghost clipping. Keep one row for each record in the inputs of every layer"
        )
    if _alike(both, moves(*a, *b, seed=1)):
        mixed = not _alike(both, moves(*a) + moves(*b))
        mixed = mixed or not _alike(moves(*a, *b, bound=_SHORT), moves(*a, bound=_SHORT) + moves(*b, bound=_SHORT))
    else:  # the network draws random numbers
        mixed = not _alike(both + moves(*d, *c), moves(*a, *c) + moves(*d, *b))
        whole, again = (_losses(network, [*a, *b], settings, seed) for seed in (0, 1))
        if _alike(whole, again):  # unless it draws them in eval mode, too
            mixed = mixed or not _alike(_losses(network, a, settings, 0), whole[:3])
    if mixed:
        raise UnprovenPrivacy(
            "tried on random records, the gradient of one depends on the others of its batch, or on their number: a "
            "layer or the loss mixes records, and no accountant covers that. Use GroupNorm or LayerNorm in place of "
            "statistics of batches, and a loss of each record alone"
        )


def _losses(network: nn.Module, records: list[Any], settings: TrainingSettings, seed: int) -> Tensor:
    """The losses ``(B,)`` in eval mode, in which most networks draw no random numbers."""
    inputs, targets = batch_of(records, range(len(records)), "cpu")
    with evaluating(network), torch.random.fork_rng([]):
        torch.manual_seed(seed)
        losses = losses_of(settings.loss, call(network, inputs), targets, torch.ones(len(records), dtype=torch.bool))
    return losses.nan_to_num()


def _alike(one: Tensor, other: Tensor) -> bool:
    """Equal up to rounding; not if there is a NaN."""
    return float((one - other).norm()) <= 1e-4 * max(float(one.norm()), float(other.norm())) + 1e-9
