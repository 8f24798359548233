"""The problems that are solved, and the same ones by writing every constraint down."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize

from darrm_torch import IndependentVotes, PrivacyGuarantee, PrivacyProfile, subsampling_noise
from darrm_torch.noise.priors import majority_lead, vote_law
from darrm_torch.noise.regions import Region

POINT = PrivacyGuarantee(epsilon=0.1, delta=1e-5)  # the paper's simulations
PURE = PrivacyGuarantee(epsilon=0.1)
PROFILE = PrivacyProfile.from_guarantee(
    *(
        PrivacyGuarantee(epsilon=epsilon, delta=delta)
        for epsilon, delta in [(0.0, 0.0126), (0.02, 0.005), (0.05, 0.001), (0.0751, 1e-4)]
    )
)
TWO = PrivacyProfile.from_guarantee(
    PrivacyGuarantee(epsilon=0.03, delta=0.003), PrivacyGuarantee(epsilon=0.0852, delta=3.78e-5)
)


def times(point: PrivacyGuarantee, allowance: float) -> PrivacyGuarantee:
    """m times a guarantee, with delta as the paper composes it."""
    return PrivacyGuarantee(epsilon=allowance * point.epsilon, delta=1 - (1 - point.delta) ** allowance)


def smooth_noise(teachers: int) -> Any:
    """A monotone noise function that is quick to compute at any size: the majority of three."""
    return subsampling_noise(teachers=teachers, allowance=3).gamma


def weights(teachers: int) -> Any:
    """The paper's objective: weights of gamma(l) for l > K/2."""
    return majority_lead(IndependentVotes(mean=0.75).law(teachers))


def enumerate_all(teachers: int, target: PrivacyGuarantee) -> dict[str, Any]:
    """The free optimum for :data:`POINT` with every multiset of corners as a constraint, in three ways, each timed.

    "library": one multiset after another, with SciPy's Poisson binomial, as the paper's authors do. "loop": one after
    another, with lean arithmetic. "vectorised": that arithmetic for all multisets at once.
    """
    # Imported here because it is large, and the solver's memory is measured in processes that import this module.
    from scipy import stats

    start = time.process_time()
    corners = np.array([(0, 0), (1, 1), *Region(guarantees=(POINT,)).tilted], dtype=np.float64)
    chosen = np.array(list(itertools.combinations_with_replacement(range(len(corners)), teachers)))
    shared = time.process_time() - start
    votes, growth = np.arange(teachers + 1), math.exp(target.epsilon)

    def rows(law: Callable[[Any], Any], multisets: Any) -> Any:
        here, there = (majority_lead(law(corners[:, side][multisets])) for side in (0, 1))
        return here - growth * there

    def library(chances: Any) -> Any:
        return stats.poisson_binom.pmf(votes, chances)

    ways = {
        "library": lambda: np.array([rows(library, multiset) for multiset in chosen]),
        "loop": lambda: np.array([rows(vote_law, multiset) for multiset in chosen]),
        "vectorised": lambda: rows(vote_law, chosen),
    }
    limit = math.expm1(target.epsilon) + 2 * target.delta
    seconds, values = {}, {}
    for way, write_down in ways.items():
        start = time.process_time()
        matrix = write_down() / limit
        best = optimize.linprog(-weights(teachers), A_ub=matrix, b_ub=np.ones(len(matrix)), bounds=(0, 1))
        seconds[way], values[way] = shared + time.process_time() - start, -float(best.fun)
    return {"constraints": len(chosen), "seconds": seconds, "values": values}
