"""The epsilons of Opacus' own accountants, for comparison with ours."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache

from .optimizers import History

__all__ = ["accountant_epsilon"]

_MOST_RUNS = {"prv": 20, "rdp": 200}  # beyond, Opacus' accountants take many seconds
_LEAST_NOISE = {"prv": 0.2, "rdp": 0.0}


@lru_cache(maxsize=256)
def accountant_epsilon(name: str, history: History, delta: float) -> tuple[float, str]:
    """The epsilon of an Opacus accountant for a copy of the history, and what went wrong."""
    from opacus.accountants import create_accountant

    if len(history) > _MOST_RUNS[name] or min(noise for noise, _, _ in history) < _LEAST_NOISE[name]:
        return math.nan, f"was not asked, as it would take long ({len(history)} runs)"
    accountant = create_accountant(name)
    accountant.history = list(history)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its range of orders
            epsilon = float(accountant.get_epsilon(delta))
    except Exception as error:  # it fails in many ways, and only serves for comparison
        return math.nan, f"failed ({type(error).__name__}: {error})"
    return epsilon, "" if epsilon >= 0 else f"returned {epsilon}"
