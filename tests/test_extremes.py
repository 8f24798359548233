"""Numbers at the ends of what a float can hold: every public callable answers or refuses them, by name and in time.

The calls are those of the matrix of wrong inputs. A number may be in range and extreme: a sample rate of 5e-324, a
noise multiplier of 1e300, a delta just below one. Nothing may raise an error of Python's, return NaN, or take long.
"""

from __future__ import annotations

import itertools
import logging
import math
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import darrm_torch as dt
from tests.test_wrong_inputs import CALLS, PLACES, SLOW_CALLS, network, outcome, signature

TINY, LARGEST, ALMOST_ONE = 5e-324, sys.float_info.max, 1 - 2**-53
NUMBERS = [TINY, 1e-320, 1e-300, 1e-30, ALMOST_ONE, 1e30, 1e300, LARGEST]
PROMISES = [
    dt.PrivacyGuarantee(epsilon=epsilon, delta=delta)
    for epsilon, delta in itertools.product((TINY, 1e-17, 50.0, 1e300), (0.0, TINY, 1e-320, ALMOST_ONE))
]
HISTORIES = [
    [(noise, rate, steps)]
    for noise, rate, steps in itertools.product(
        (TINY, 1e-300, 2.0, 1e300, LARGEST), (TINY, 1e-300, ALMOST_ONE), (1, 1000)
    )
]
BY_NAME: dict[str, list[Any]] = {
    "history": HISTORIES,
    "source": HISTORIES,
    "sources": [[history] * 2 for history in HISTORIES],
    "engines": [[history] * 3 for history in HISTORIES],
    "deltas": [[number] for number in NUMBERS],
}
# Searches over many mechanisms or votes, which take seconds for ordinary numbers too.
SEARCHES = {"design", "plan", "Plan.at", "Plan.costs", "Plan.teachers_needed"}
SEARCHES |= {"PrivateMajorityEnsemble", "PrivateMajorityEnsemble.from_opacus"}


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Path) -> Iterator[None]:
    np.save(tmp_path / "votes.npy", np.zeros((3, 5), dtype=np.int64))
    torch.save(network().state_dict(), tmp_path / "weights.pt")
    places = {name: tmp_path / name for name in ("cache", "key", "teachers", "private", "votes-folder")}
    before = dict(PLACES)
    PLACES.update(places, votes=tmp_path / "votes.npy", weights=tmp_path / "weights.pt")
    logging.disable(logging.WARNING)  # dp_accounting speaks about tiny divergences
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)
    PLACES.clear()
    PLACES.update(before)


def extremes_for(parameter: Any) -> list[Any]:
    """The extreme values that a parameter may take, by its name and annotation."""
    annotation = str(parameter.annotation)
    values = list(BY_NAME.get(parameter.name, ()))
    if "float" in annotation and "Array" not in annotation:
        values += NUMBERS
    if any(kind in annotation for kind in ("PrivacyGuarantee", "PrivacyProfile", "Promise")):
        values += PROMISES
    return values


def problem(name: str, parameter: str, value: Any) -> str:
    """What is wrong with the outcome; empty for an answer or an error of the library's."""
    found = outcome(name, parameter, value)
    if found.startswith("accepted"):
        return found if "nan" in found.lower() else ""
    return found if found.startswith("raw" if name in SEARCHES else ("raw", "takes more")) else ""


ROWS = [
    pytest.param(name, parameter.name, id=f"{name}-{parameter.name}", marks=marks)
    for name in CALLS
    if name not in SLOW_CALLS
    for marks in [[pytest.mark.slow, *([pytest.mark.long] if name in SEARCHES else [])]]
    for parameter in signature(name)
    if extremes_for(parameter)
]


@pytest.mark.parametrize(("name", "parameter"), ROWS)
def test_extreme_numbers_are_answered_or_refused(name: str, parameter: str) -> None:
    (one,) = (each for each in signature(name) if each.name == parameter)
    found = {str(value): problem(name, parameter, value) for value in extremes_for(one)}
    assert not {value: text for value, text in found.items() if text}


@pytest.mark.parametrize("rate", [TINY, 1e-320, 1e-300, 1e-30])
@pytest.mark.parametrize("noise", [TINY, 1e-300, 1e-3, 2.0, 1e300, LARGEST])
def test_extreme_trainings_have_a_price(noise: float, rate: float) -> None:
    """An epsilon at every delta, which does not rise with delta; none where there is next to no noise."""
    profile = dt.PrivacyProfile.from_dp_sgd([(noise, rate, 1)])
    epsilons = [profile.epsilon(delta) for delta in (0.0, TINY, 1e-320, 1e-300, 1e-5, ALMOST_ONE)]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[0] == math.inf
    assert epsilons[-2] < 1e-3 or noise < 1e-2
    assert 0 <= profile.delta(1e-300) <= profile.delta(TINY) <= 1


@pytest.mark.slow
def test_a_sample_rate_of_next_to_nothing_is_calibrated() -> None:
    total = dt.PrivacyGuarantee(epsilon=1.0, delta=1e-5)
    assert dt.calibrate_noise(total, sample_rate=TINY, steps=1) < 1
    noise_free = dt.PrivacyProfile.from_fixed_batches(noise_multiplier=TINY, records=10, batch_size=1, steps=1)
    assert noise_free.epsilon(0.5) == math.inf


def test_an_allowance_of_too_much_is_named() -> None:
    with pytest.raises(dt.InvalidArgument, match="allowance must be below 100000, for a label whose delta is below 1"):
        outcome_of_allowance(1e30)


def outcome_of_allowance(allowance: float) -> object:
    arguments = CALLS["PrivateMajorityEnsemble.from_opacus"]()[1]
    return dt.PrivateMajorityEnsemble.from_opacus(**(arguments | {"allowance": allowance}))
