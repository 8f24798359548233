"""The bound from guesses: the published value, two other implementations, and coins that are given away as claimed."""

from __future__ import annotations

import importlib.util
import math
import sys
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from darrm_torch.auditing.one_run import epsilon_bound, least_caught, least_right, p_value

# coins, guesses, right, delta, risk, and the bound of jax_privacy 2.0.0 (`jax_privacy.auditing._epsilon_one_run`).
REFERENCE = [
    (1000, 100, 75, 1e-4, 0.05, 0.672985),  # 0.673 in appendix D of the paper
    (1000, 100, 100, 1e-5, 0.05, 3.465376),
    (2000, 500, 499, 1e-6, 0.00625, 4.225037),
    (10000, 625, 571, 1e-6, 0.05, 2.118887),
    (200, 200, 120, 0.0, 0.05, 0.159070),
    (5000, 5000, 2600, 1e-5, 0.001, 0.0),
]


@pytest.mark.parametrize(("coins", "guesses", "right", "delta", "risk", "expected"), REFERENCE)
def test_the_bound_is_that_of_the_published_code(
    coins: int, guesses: int, right: int, delta: float, risk: float, expected: float
) -> None:
    bound = epsilon_bound(delta, coins=coins, guesses=guesses, right=right, risk=risk)
    assert bound == pytest.approx(expected, abs=5e-6)


def jax_privacy_auditing() -> Any:
    """The module `jax_privacy.auditing`, loaded by itself: it needs NumPy and SciPy only, its package needs JAX."""
    package = importlib.util.find_spec("jax_privacy")
    if package is None or not package.submodule_search_locations:
        pytest.skip("jax_privacy is not installed")
    place = f"{package.submodule_search_locations[0]}/auditing.py"
    spec = importlib.util.spec_from_file_location("jax_privacy_auditing", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_bound_is_that_of_jax_privacy() -> None:
    theirs, generator = jax_privacy_auditing(), np.random.default_rng(1)
    for _ in range(100):
        coins = int(generator.integers(10, 3000))
        guesses = int(generator.integers(1, coins + 1))
        right = int(generator.binomial(guesses, generator.uniform(0.5, 1)))
        delta, risk = float(generator.choice([0.0, 1e-6, 1e-4])), float(generator.choice([0.05, 0.001]))
        ours = epsilon_bound(delta, coins=coins, guesses=guesses, right=right, risk=risk)
        assert ours == pytest.approx(theirs._epsilon_one_run(0.0, coins, guesses, right, risk, delta), abs=1e-5)


def test_the_p_value_by_its_definition() -> None:
    coins, guesses, right, delta = 40, 12, 9, 0.003
    for epsilon in (0.0, 0.7, 2.0):
        law = stats.binom(guesses, special.expit(epsilon))
        masses = [sum(law.pmf(k) for k in range(right - i, right)) / i for i in range(1, right + 1)]
        exact = min(1.0, law.sf(right - 1) + 2 * coins * delta * max(masses))
        assert p_value(epsilon, delta, coins=coins, guesses=guesses, right=right) == pytest.approx(exact, rel=1e-8)


def test_the_bound_grows_with_right_guesses_and_falls_with_delta_and_confidence() -> None:
    def bound(right: int, delta: float = 1e-6, risk: float = 0.05) -> float:
        return epsilon_bound(delta, coins=500, guesses=100, right=right, risk=risk)

    rights = [bound(right) for right in range(0, 101, 5)]
    assert rights == sorted(rights)
    assert bound(50) == 0.0 < bound(70)
    assert bound(90, delta=1e-3) < bound(90) < bound(90, delta=0.0)
    assert bound(90, risk=0.001) < bound(90)
    assert bound(100, delta=0.5) == 0.0
    assert epsilon_bound(0.0, coins=5, guesses=0, right=0, risk=0.05) == 0.0


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_coins_given_away_as_claimed_are_refuted_no_more_often_than_the_risk(epsilon: float) -> None:
    """Randomized response is the worst case for delta = 0: 4000 audits; five standard errors above 5 % are 6.7 %."""
    rights = np.random.default_rng(7).binomial(300, special.expit(epsilon), size=4000)
    refutes = least_right(epsilon, 0.0, coins=300, guesses=300, risk=0.05)
    assert refutes is not None
    assert 0.02 < np.mean(rights >= refutes) < 0.067
    assert epsilon_bound(0.0, coins=300, guesses=300, right=refutes, risk=0.05) >= epsilon
    assert epsilon_bound(0.0, coins=300, guesses=300, right=refutes - 1, risk=0.05) <= epsilon


def test_what_delta_allows_is_not_refuted() -> None:
    """Two mechanisms that are (0, delta)-DP in each coin: one shows each coin with probability delta, one shows all."""
    coins, delta, generator = 200, 0.05, np.random.default_rng(3)
    for guesses in (200, 50, 12):
        shown = np.minimum(generator.binomial(coins, delta, size=2000), guesses)
        rights = shown + generator.binomial(guesses - shown, 0.5)
        refutes = least_right(0.0, delta, coins=coins, guesses=guesses, risk=0.05)
        assert refutes is None or np.mean(rights >= refutes) < 0.067  # five standard errors above 5 %
        assert p_value(0.0, 0.01, coins=coins, guesses=guesses, right=guesses) >= 0.01


def test_power() -> None:
    least = least_caught(1.0, 0.0, coins=300, guesses=300, risk=0.05, power=0.9)
    refutes = least_right(1.0, 0.0, coins=300, guesses=300, risk=0.05)
    assert refutes is not None
    assert stats.binom.sf(refutes - 1, 300, special.expit(least)) == pytest.approx(0.9, abs=1e-4)
    assert 1.0 < least < 2.0
    assert math.isinf(least_caught(9.0, 0.0, coins=20, guesses=20, risk=0.05, power=0.9))
    assert least_right(9.0, 0.0, coins=20, guesses=20, risk=0.05) is None


def test_many_coins_take_no_time() -> None:
    bound = epsilon_bound(1e-8, coins=3 * 10**4, guesses=3 * 10**4, right=29_700, risk=0.05)
    assert 4.49 < bound < math.log(99)
