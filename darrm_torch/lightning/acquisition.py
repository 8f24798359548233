"""Which inputs to label next: scores by a student that has learned from the labels so far.

A student depends on private data through released labels alone, so its scores do too. See docs/theory/adaptive.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InvalidArgument
from ..teachers.structures import Structure, evaluating, mapped, size_of

__all__ = ["Acquire", "disagreement", "margin", "scores_of"]

Acquire = Literal["margin", "disagreement"] | Callable[[Any, Any], Tensor]
_VIEWS = 4


def margin(student: nn.Module, inputs: Structure) -> Tensor:
    """Minus the difference between the probabilities of the two most likely classes ``(B,)``; the mean over findings.

    >>> margin(nn.Identity(), torch.tensor([[3.0, 0.0], [1.0, 0.0]])).double().round(decimals=2).tolist()
    [-0.91, -0.46]
    """
    best: Tensor = student(inputs).softmax(dim=-1).topk(2, dim=-1).values
    return (best[..., 1] - best[..., 0]).reshape(len(best), -1).mean(dim=1)


def disagreement(student: nn.Module, inputs: Structure) -> Tensor:
    """How much predictions for changed inputs differ from that for the input: the mean divergence ``(B,)``.

    With findings, it is the mean over them, too.

    Raises:
        InvalidArgument: a student without ``consistency``, which says how inputs may change.
    """
    view = getattr(getattr(student, "consistency", None), "view", None)
    if view is None:
        cure = 'Give it FixMatch() or VirtualAdversarialTraining(), or use acquire="margin".'
        raise InvalidArgument("student", 'one with views of its inputs, for acquire="disagreement"', student, cure)
    log_law = F.log_softmax(student(inputs), dim=-1)
    changed = (F.log_softmax(student(view(student, inputs)), dim=-1) for _ in range(_VIEWS))
    divergences = torch.stack([(log_law.exp() * (log_law - other)).sum(dim=-1) for other in changed])
    return divergences.mean(dim=0).reshape(len(log_law), -1).mean(dim=1)


_NAMED: dict[Any, Callable[[Any, Any], Tensor]] = {"margin": margin, "disagreement": disagreement}


def scores_of(acquire: Acquire, student: nn.Module, batches: Iterable[Structure], *, seed: int) -> Tensor:
    """The scores ``(N,)`` float64 of all inputs, by the student in eval mode; random views depend on the seed only.

    Raises:
        InvalidArgument: scores that are not one finite number for each input.
    """
    score = _NAMED[acquire] if isinstance(acquire, str) else acquire
    device = next((weights.device for weights in student.parameters()), torch.device("cpu"))
    parts = []
    with evaluating(student), torch.random.fork_rng(device_type=device.type if device.type != "cpu" else "cuda"):
        torch.manual_seed(seed)
        for inputs in batches:
            scores = score(student, mapped(inputs, lambda part: part.to(device)))
            shape = (size_of(inputs),)
            if not isinstance(scores, Tensor) or scores.shape != shape or not bool(scores.isfinite().all()):
                got = f"{tuple(scores.shape)}, or not finite" if isinstance(scores, Tensor) else scores
                raise InvalidArgument("acquire", f"a function that returns finite scores {shape}", got)
            parts.append(scores.double().cpu())
    return torch.cat(parts)
