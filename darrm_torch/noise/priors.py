"""Priors on the votes for two classes: the laws and weights that the objective needs.

A prior decides where a noise function has little noise. It never affects privacy. Take it from public knowledge, never
from the teachers' votes on secret data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from scipy import special

from ..arguments import validate
from ..arrays import FloatArray
from ..errors import InvalidArgument

__all__ = [
    "BetaVotes",
    "IndependentVotes",
    "MajorityPrior",
    "Prior",
    "SharedVotes",
    "check_prior",
    "majority_lead",
    "vote_law",
]


class Prior(Protocol):
    """The interface of priors: what the objective needs about the votes of K teachers."""

    def law(self, teachers: int) -> FloatArray:
        """Pr[L = l] for the number L of votes for 1: ``(K + 1,)``, exact."""

    def lead_weights(self, teachers: int) -> FloatArray | None:
        """E |alpha_l - alpha_{K-l}| for l > K/2 if the sign is the same for all l, otherwise None."""


@dataclass(frozen=True, kw_only=True)
class IndependentVotes:
    """The teachers' probabilities p_i of voting 1 are independent with this mean, so L is exactly Binomial(K, mean).

    The expected error depends on more than the mean; there p_i is uniform on the widest interval around the mean. The
    mean 0.75 is the paper's uniform prior on [1/2, 1], 0.85 its prior on [0.7, 1], 0.5 the uniform prior on [0, 1].

    Raises:
        InvalidArgument: a mean outside [0, 1].

    >>> IndependentVotes(mean=0.75).law(3).round(3).tolist()  # of 0, 1, 2 and 3 votes for class 1
    [0.016, 0.141, 0.422, 0.422]
    """

    mean: float = 0.75

    def __post_init__(self) -> None:
        validate(self, "mean", low=0.0, high=1.0)

    def law(self, teachers: int) -> FloatArray:
        """Binomial(K, mean): averaged over its own p_i, each vote is Bernoulli(mean)."""
        return _binomial_law(teachers, self.mean)

    def lead_weights(self, teachers: int) -> FloatArray | None:
        """Known if all p_i lie on one side of 1/2: alpha_l - alpha_{K-l} then has one sign for all l > K/2."""
        one_sided = min(self.mean, 1 - self.mean) <= 0.25
        return np.abs(majority_lead(self.law(teachers))) if one_sided else None

    def sample(self, teachers: int, count: int, rng: np.random.Generator) -> FloatArray:
        """``(count, K)`` draws of the teachers' probabilities of voting 1."""
        half = min(self.mean, 1 - self.mean)
        return rng.uniform(self.mean - half, self.mean + half, (count, teachers))


@dataclass(frozen=True, kw_only=True)
class SharedVotes:
    """All teachers have the same probability p of voting 1, uniform on [low, high]: items differ, teachers do not.

    Raises:
        InvalidArgument: an end outside [0, 1], or ``low > high``.

    >>> SharedVotes(low=0.0, high=1.0).law(3).round(3).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    low: float = 0.5
    high: float = 1.0

    def __post_init__(self) -> None:
        validate(self, "low", low=0.0, high=1.0)
        validate(self, "high", low=self.low, high=1.0)

    def _part(self, teachers: int, low: float, high: float) -> FloatArray:
        """The integral of Binom(K, p)(l) over p in [low, high], divided by the width of the whole interval."""
        ones = np.arange(teachers + 1)
        zeros = teachers - ones
        mass = special.betainc(ones + 1, zeros + 1, high) - special.betainc(ones + 1, zeros + 1, low)
        return np.asarray(np.maximum(mass, 0.0) / ((teachers + 1) * (self.high - self.low)))

    def law(self, teachers: int) -> FloatArray:
        """The Binomial law averaged over p."""
        if self.low == self.high:
            return _binomial_law(teachers, self.low)
        return self._part(teachers, self.low, self.high)

    def lead_weights(self, teachers: int) -> FloatArray:
        """The sign is that of p - 1/2, so each side of 1/2 is integrated separately."""
        if self.low == self.high:
            return np.abs(majority_lead(self.law(teachers)))
        above = self._part(teachers, max(self.low, 0.5), max(self.high, 0.5))
        below = self._part(teachers, min(self.low, 0.5), min(self.high, 0.5))
        return majority_lead(above) - majority_lead(below)


@dataclass(frozen=True, kw_only=True)
class BetaVotes:
    """All teachers have the same probability p of voting 1, p ~ Beta(a, b), so L is Beta-binomial.

    Args:
        a, b: the parameters of the Beta law. Its mean is a / (a + b); the larger they are, the less p varies.

    Raises:
        InvalidArgument: a parameter that is not positive and finite.

    >>> BetaVotes(a=1.0, b=1.0).law(3).round(3).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    a: float
    b: float

    def __post_init__(self) -> None:
        for name in ("a", "b"):
            validate(self, name, low=0.0, low_open=True, high_open=True)

    def law(self, teachers: int) -> FloatArray:
        """The Beta-binomial law."""
        ones = np.arange(teachers + 1)
        log_mass = special.betaln(self.a + ones, self.b + teachers - ones) - special.betaln(self.a, self.b)
        return np.asarray(np.exp(_log_binomials(teachers) + log_mass))

    def lead_weights(self, teachers: int) -> FloatArray:
        """Given L = l, p is Beta(a + l, b + K - l): the sign of p - 1/2 splits the law."""
        ones = np.arange(teachers + 1)
        below = special.betainc(self.a + ones, self.b + teachers - ones, 0.5)
        return majority_lead(self.law(teachers) * (1 - 2 * below))


MajorityPrior: TypeAlias = IndependentVotes | SharedVotes | BetaVotes
"""Any prior for two classes."""


def check_prior(prior: Any, name: str = "prior") -> Prior:
    """``prior`` itself.

    Raises:
        InvalidArgument: not a prior for two classes.
    """
    if not isinstance(prior, MajorityPrior):
        raise InvalidArgument(name, "IndependentVotes, SharedVotes or BetaVotes", prior)
    return prior


def majority_lead(law: FloatArray) -> FloatArray:
    """law(l) - law(K - l) for l > K/2, along the last axis: ``(..., K + 1)`` to ``(..., (K + 1) // 2)``."""
    first = law.shape[-1] // 2 + law.shape[-1] % 2
    return law[..., first:] - law[..., ::-1][..., first:]


def vote_law(probabilities: FloatArray) -> FloatArray:
    """The law of the number of votes for 1 (Poisson binomial).

    Args:
        probabilities: ``(..., K)``, each teacher's probability of voting 1.

    Returns:
        ``(..., K + 1)``. The entries are sums of products of non-negative numbers; each has a relative error of at
        most a few K units in the last place.
    """
    teachers = probabilities.shape[-1]
    law = np.zeros((*probabilities.shape[:-1], teachers + 1))
    rows = tuple(range(probabilities.ndim - 1))
    certain = (probabilities == 1.0).all(axis=rows)  # they shift the law; teachers that never vote 1 do not change it
    first = int(certain.sum())
    law[..., first] = 1.0
    for k, teacher in enumerate(np.flatnonzero(probabilities.any(axis=rows) & ~certain), start=first):
        p = probabilities[..., teacher, None]
        moved = law[..., : k + 1] * p
        law[..., : k + 1] *= 1 - p
        law[..., 1 : k + 2] += moved
    return law


def _log_binomials(teachers: int) -> FloatArray:
    ones = np.arange(teachers + 1)
    return np.asarray(-special.betaln(teachers - ones + 1, ones + 1) - math.log(teachers + 1))


def _binomial_law(teachers: int, mean: float) -> FloatArray:
    ones = np.arange(teachers + 1)
    log_mass = special.xlogy(ones, mean) + special.xlog1py(teachers - ones, -mean)
    return np.asarray(np.exp(_log_binomials(teachers) + log_mass))
