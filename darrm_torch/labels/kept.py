"""A ledger keeps the mechanism that it was started with: a new solve can differ in the last digits."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import Any

from ..mechanisms import DaRRM, Mechanism
from ..noise.function import NoiseFunction
from .ledger import PrivacyLedger

__all__ = ["described", "differ_by_rounding", "kept_mechanism"]


def described(mechanism: Mechanism) -> str:
    """The part of a mechanism's description that decides its labels, without wording that versions may change."""
    description = mechanism.describe()
    kept = {name: description[name] for name in ("kind", "classes", "teachers", "parameters", "secure")}
    return json.dumps(kept, sort_keys=True)


def kept_mechanism(ledger: PrivacyLedger, mechanism: Mechanism) -> Mechanism:
    """The mechanism that the ledger was started with, if this one differs from it only by rounding; else this one."""
    kept, given = ledger.bound("mechanism"), described(mechanism)
    if kept is None or kept == given or not differ_by_rounding(json.loads(kept), json.loads(given)):
        return mechanism
    if isinstance(mechanism, DaRRM):
        noise = ledger.note("noise")
        return mechanism if noise is None else replace(mechanism, noise=NoiseFunction.from_json(noise))
    parameters = json.loads(kept)["parameters"]
    return replace(mechanism, **{one.name: parameters[one.name] for one in fields(mechanism) if one.name in parameters})


def differ_by_rounding(one: Any, other: Any) -> bool:
    """Whether two descriptions are equal but for the last digits of their numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(differ_by_rounding(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(differ_by_rounding, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)
    return type(one) is type(other) and bool(one == other)
