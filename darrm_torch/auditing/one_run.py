"""From guesses about many coins to a lower bound of epsilon: the audit with one training (arXiv 2305.08846).

A mechanism takes m independent fair coins and is (epsilon, delta)-DP in each of them. Somebody sees its output, guesses
``guesses`` of the coins, a number fixed in advance, and abstains from the others. Theorem 5.2 there bounds the
probability that many guesses are right. Several runs with coins of their own are one mechanism of all their coins, in
which one coin changes one run only, so their guesses may be pooled as they are.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
from scipy import special, stats

from ..bisection import last_true

__all__ = ["epsilon_bound", "least_caught", "least_right", "p_value"]

_LARGEST = 30.0  # beyond what any number of guesses can show
_SLACK = 1 + 1e-9  # errors of the binomial tails


def p_value(epsilon: float, delta: float, *, coins: int, guesses: int, right: int) -> float:
    """An upper bound on Pr[``right`` or more right guesses], if the mechanism is (epsilon, delta)-DP in each coin.

    With W binomial of ``guesses`` trials and success probability e^epsilon / (1 + e^epsilon):
    P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i.

    >>> round(p_value(0.0, 0.0, coins=10, guesses=10, right=10), 6) == round(2.0**-10, 6)
    True
    """
    chance = float(special.expit(epsilon))
    tail = float(stats.binom.sf(right - 1, guesses, chance))
    worst, span = 0.0, 64
    while delta > 0 and right > 0:
        steps = np.arange(1, min(right, span) + 1)
        worst = float(((stats.binom.sf(right - steps - 1, guesses, chance) - tail) / steps).max())
        if span >= right or worst * span >= 1:  # the rest is at most 1 / span
            break
        span *= 8
    return min(1.0, (tail + 2 * coins * delta * worst) * _SLACK)


def epsilon_bound(delta: float, *, coins: int, guesses: int, right: int, risk: float) -> float:
    """The largest epsilon that ``right`` right guesses refute; this is wrong with probability at most ``risk``.

    >>> round(epsilon_bound(1e-4, coins=1000, guesses=100, right=75, risk=0.05), 3)  # the paper, appendix D
    0.673
    """

    def refuted(epsilon: float) -> bool:
        return p_value(epsilon, delta, coins=coins, guesses=guesses, right=right) <= risk

    return last_true(refuted, 0.0, _LARGEST, tolerance=1e-6) if guesses and refuted(0.0) else 0.0


def least_right(epsilon: float, delta: float, *, coins: int, guesses: int, risk: float) -> int | None:
    """The smallest number of right guesses that refutes (epsilon, delta); ``None`` if even ``guesses`` do not."""

    def refutes(right: int) -> bool:
        return p_value(epsilon, delta, coins=coins, guesses=guesses, right=right) <= risk

    return bisect_left(range(guesses), True, key=refutes) if refutes(guesses) else None


def least_caught(epsilon: float, delta: float, *, coins: int, guesses: int, risk: float, power: float) -> float:
    """The smallest true epsilon at which an audit with this many guesses refutes the claim of ``epsilon``.

    At a true epsilon t, each guess is right with probability e^t / (1 + e^t), as if randomized response had released
    each coin; the claim is then refuted with probability ``power``. ``math.inf`` if no number of right guesses refutes
    it.
    """
    needed = least_right(epsilon, delta, coins=coins, guesses=guesses, risk=risk)
    if not needed:
        return math.inf

    def caught(truth: float) -> bool:
        return float(stats.binom.sf(needed - 1, guesses, special.expit(truth))) >= power

    return last_true(caught, _LARGEST, 0.0, tolerance=1e-6)
