"""The epsilons of Opacus' own accountants, for comparison with ours."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache

from ..limits import MOST_CELLS
from .optimizers import History

__all__ = ["accountant_epsilon"]

_MOST_RUNS = {"prv": 20, "rdp": 100}  # beyond, Opacus' accountants take many seconds
_NOISE = {"prv": (0.2, 1000.0), "rdp": (0.0, 1000.0)}  # beyond, they take many seconds for one run


@lru_cache(maxsize=256)
def accountant_epsilon(name: str, history: History, delta: float) -> tuple[float, str]:
    """The epsilon of an Opacus accountant for a copy of the history, and why there is none.

    It is not asked where it would take long: nothing rests on it.
    """
    from opacus.accountants import create_accountant

    low, high = _NOISE[name]
    if len(history) > _MOST_RUNS[name] or not all(low <= noise <= high for noise, _, _ in history):
        return math.nan, "was not asked, as it would take long"
    accountant = create_accountant(name)
    accountant.history = list(history)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its range of orders
            if name == "prv" and (cells := _prv_cells(history, delta)) > MOST_CELLS // 2:
                return math.nan, f"was not asked, as its grid would have {cells:.1g} cells"
            epsilon = float(accountant.get_epsilon(delta))
    except Exception as error:  # it fails in many ways, and only serves for comparison
        return math.nan, f"failed ({type(error).__name__}: {error})"
    return epsilon, "" if 0 <= epsilon < math.inf else f"returned {epsilon}"


def _prv_cells(history: History, delta: float) -> float:
    """About how many cells the grid of Opacus' PRV accountant has, which it neither bounds nor reports beforehand."""
    from opacus.accountants import create_accountant

    renyi, steps = create_accountant("rdp"), sum(count for *_, count in history)
    renyi.history = list(history)
    width = 2 * (renyi.get_epsilon(delta / 4000) + 3)
    return float(width * math.sqrt(steps * math.log(12_000 / delta) / 2) / 0.01)
