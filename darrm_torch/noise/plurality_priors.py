"""Priors on the votes over more than two classes.

A prior never affects privacy. It says where a table should be good.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy import special

from ..arguments import validate
from ..arrays import FloatArray, IntArray
from ..errors import InvalidArgument
from .histograms import Standings

__all__ = ["VAGUE_VOTES", "PluralityPrior", "PluralityVotes", "check_plurality_prior", "standing_weights"]


@dataclass(frozen=True, kw_only=True)
class PluralityVotes:
    """A teacher votes for the true class with probability ``accuracy``; the wrong classes share the rest equally.

    These probabilities vary from item to item, in the same way for all teachers. They follow a Dirichlet distribution
    with these means and this concentration, so the votes are Dirichlet-multinomial. The prior decides where a table has
    little noise and never affects privacy. Take it from public knowledge, not from votes on secret data.

    Args:
        accuracy: in (0, 1), and at least 1 / C for C classes.
        concentration: > 0. When it is small, all teachers err on the same hard items; when it is infinite, teachers err
            independently.

    Raises:
        InvalidArgument: a number out of range.

    >>> from darrm_torch import SelfBoundingPlurality
    >>> table = SelfBoundingPlurality(teachers=3, classes=3, allowance=2.0, prior=PluralityVotes(accuracy=0.7))
    >>> 0.6 < table.expected_accuracy(PluralityVotes(accuracy=0.7)) < 0.8
    True
    """

    accuracy: float
    concentration: float = math.inf

    def __post_init__(self) -> None:
        validate(self, "accuracy", low=0.0, high=1.0, low_open=True, high_open=True)
        validate(self, "concentration", low=0.0, low_open=True)

    def weights(self, space: Standings) -> FloatArray:
        """The probability that each standing is that of the true class: (N,), they sum to 1.

        Raises:
            InvalidArgument: an accuracy below 1 / C.
        """
        classes = space.classes
        if self.accuracy * classes < 1:
            raise InvalidArgument(
                "accuracy", f"at least 1/{classes}, the accuracy of guessing among {classes} classes", self.accuracy
            )
        counts = np.zeros((len(space.own), classes))  # the true class first
        counts[:, 0] = space.own
        for row, others in zip(counts, space.others, strict=True):
            row[1 : 1 + len(others)] = others
        log = special.gammaln(classes) + special.gammaln(space.votes + 1) - special.gammaln(counts + 1).sum(axis=1)
        for votes in range(space.votes + 1):  # in how many ways the other classes can have these votes
            log -= special.gammaln((counts[:, 1:] == votes).sum(axis=1) + 1)
        means = self._means(classes)
        if math.isinf(self.concentration):
            log += counts @ np.log(means)
        else:
            prior = self.concentration * means
            log += (special.gammaln(prior + counts) - special.gammaln(prior)).sum(axis=1)
            log -= special.gammaln(self.concentration + space.votes) - special.gammaln(self.concentration)
        return np.asarray(np.exp(log))

    def sample(self, *, votes: int, classes: int, count: int, rng: np.random.Generator) -> IntArray:
        """``(count, classes)`` histograms of ``votes`` votes, the true class first."""
        means = self._means(classes)
        if math.isfinite(self.concentration):
            means = rng.dirichlet(self.concentration * means, size=count)
        return rng.multinomial(votes, means, size=count)

    def _means(self, classes: int) -> FloatArray:
        """The mean probability of a vote for each class, the true class first."""
        return np.array([self.accuracy, *[(1 - self.accuracy) / (classes - 1)] * (classes - 1)])


PluralityPrior: TypeAlias = PluralityVotes | Sequence[PluralityVotes]
"""One prior, or several that are equally likely."""

VAGUE_VOTES: tuple[PluralityVotes, ...] = (
    PluralityVotes(accuracy=0.5),
    PluralityVotes(accuracy=0.7),
    PluralityVotes(accuracy=0.9),
    PluralityVotes(accuracy=0.7, concentration=3.0),
)
"""Weak, average and good teachers with independent errors, and teachers that err on the same items."""


def check_plurality_prior(prior: Any, name: str = "prior") -> tuple[PluralityVotes, ...]:
    """``prior`` as a tuple.

    Raises:
        InvalidArgument: not a prior for more than two classes.
    """
    parts = (prior,) if isinstance(prior, PluralityVotes) else prior
    if not isinstance(parts, Sequence) or not parts or not all(isinstance(part, PluralityVotes) for part in parts):
        raise InvalidArgument(name, "PluralityVotes, or a sequence of them", prior)
    return tuple(parts)


def standing_weights(space: Standings, prior: PluralityPrior) -> FloatArray:
    """The chance that each standing is that of the true class, averaged over the prior's parts: (N,)."""
    return np.asarray(np.mean([part.weights(space) for part in check_plurality_prior(prior)], axis=0))
