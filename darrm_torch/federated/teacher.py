"""A network as a site's teacher: copied, frozen, and voting by the rules of the ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
from torch import Tensor, nn

from ..arguments import checked
from ..arrays import IntArray
from ..labels.identity import as_tensors, checked_inputs
from ..labels.questions import class_numbers
from ..labels.voting import VotingTeachers
from ..mechanisms.noise_free import NoiseFreeMajority
from ..teachers.checkpoints import weights_digest

__all__ = ["LocalTeacher"]


class LocalTeacher:
    """A classifier that votes at a site: a copy without its Opacus wrapper, frozen and in eval mode.

    The class of the largest logit is the vote. Where a logit is NaN, the vote is for the first class.

    Args:
        model: a classifier ``(B, ...) -> (B, outputs)`` logits; one output means a sigmoid and two classes.
        classes: the numbers of the logits that compete, or how many; ``None``: all.

    Attributes:
        digest: of the weights.

    >>> import torch
    >>> teacher = LocalTeacher(nn.Linear(4, 2))
    >>> teacher.vote(torch.zeros(3, 4)).shape
    (3,)
    """

    @checked
    def __init__(self, model: nn.Module, *, classes: Sequence[int] | int | None = None) -> None:
        self._voting = VotingTeachers([model], classes=class_numbers(classes), mechanism=NoiseFreeMajority())
        self.digest = weights_digest(model)

    def __repr__(self) -> str:
        return f"<LocalTeacher: {type(self._voting[0]).__name__}>"

    def vote(self, inputs: Tensor | npt.NDArray[Any]) -> IntArray:
        """Votes ``(B,)`` int64.

        Raises:
            InvalidArgument: inputs that the network does not take.
        """
        questions = checked_inputs(as_tensors(inputs))
        self._voting.check(questions, [0])
        votes: IntArray = self._voting.votes(questions, [0])[0].numpy()
        return votes
