"""Which mechanism an ensemble takes: as strong as it may be, built for its overlap, that of its ledger.

A new solve can differ in the last digits, so the ledger keeps the noise; and it keeps which teachers are on the jury.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from ..errors import InvalidArgument, LedgerError, check_number
from ..mechanisms.base import Mechanism
from ..mechanisms.darrm import DaRRM
from ..mechanisms.noise_free import NoiseFree
from ..mechanisms.plurality import SelfBoundingPlurality, VotePrivatePlurality
from ..noise.function import NoiseFunction, self_bounding_noise
from ..noise.store import fetch_noise
from ..planning.families import check_kind, strongest_mechanism
from ..privacy.guarantees import PrivacyGuarantee
from ..privacy.profiles import PrivacyProfile
from ..privacy.units import RECORD
from .ledger import PrivacyLedger

__all__ = [
    "check_built_for",
    "check_strength",
    "described",
    "kept_jury",
    "kept_mechanism",
    "mechanism_for",
    "note_noise",
]

Tables = SelfBoundingPlurality | VotePrivatePlurality


def check_strength(
    mechanism: str | Mechanism | None,
    allowance: float | None,
    target: PrivacyGuarantee | None,
    *,
    noise: str,
    competing: tuple[int, ...] | None,
) -> None:
    """Check that one argument of ``from_opacus`` sets the strength of the noise, and that the classes have such noise.

    Raises:
        InvalidArgument: otherwise.
    """
    if isinstance(mechanism, str):
        check_kind(mechanism, "mechanism")
    if isinstance(mechanism, Mechanism) and (allowance is not None or target is not None):
        cure = "A mechanism that is built has its strength: leave out allowance and target."
        raise InvalidArgument("mechanism", "the name of a kind where allowance or target is given", mechanism, cure)
    if mechanism is None and (allowance is None) == (target is None):
        got = "neither" if target is None else "both"
        raise InvalidArgument("allowance", "given, or else target", got, "One of them sets the noise.")
    if allowance is not None:
        check_number("allowance", allowance, low=0, low_open=True, high_open=True)
    if mechanism is None and noise == "self-bounding" and allowance is None:
        raise InvalidArgument("allowance", "given with self-bounding noise", None)
    if mechanism is None and noise == "one-label" and competing is not None and len(competing) > 2:
        cure = (
            'DaRRM is binary. Pass noise="self-bounding" and allowance=..., or build the ensemble with another '
            "mechanism: SelfBoundingPlurality, GNMax, PermuteAndFlip, LNMax or NoiseFreeMajority"
        )
        raise InvalidArgument("classes", 'two class numbers with noise="one-label"', competing, cure)


def mechanism_for(
    profiles: Sequence[PrivacyProfile],
    kind: str | None,
    *,
    classes: int,
    delta: float,
    allowance: float | None,
    target: PrivacyGuarantee | None,
    overlap: int | None,
    noise: str,
    teacher_promise: str,
    on_progress: Callable[[float], None],
) -> Mechanism:
    """The mechanism that ``from_opacus`` builds for teachers that were read; see :func:`check_strength`.

    Args:
        profiles: what is promised of each teacher, for the neighbours that count.
        kind: a kind of :func:`~darrm_torch.strongest_mechanism`; ``None``: what ``noise`` says.
        classes: C.
        delta: the Delta at which the epsilons of the teachers are compared.
        allowance, target: how much a label may cost.
        overlap: r; ``None``: all.
        noise, teacher_promise, on_progress: see ``from_opacus``.

    Raises:
        InvalidArgument: there is none, see :func:`~darrm_torch.strongest_mechanism`.
    """
    count = len(profiles)
    if kind is not None:
        return strongest_mechanism(
            kind,
            teachers=count,
            classes=classes,
            teacher=profiles,
            overlap=overlap,
            allowance=allowance,
            label_target=target,
        )
    if noise == "self-bounding":
        assert allowance is not None
        if classes > 2:
            return SelfBoundingPlurality(teachers=count, classes=classes, allowance=allowance, overlap=overlap)
        return DaRRM(self_bounding_noise(teachers=count, allowance=allowance, overlap=overlap))
    as_stated = all(one.unit == RECORD for one in profiles)
    epsilon = max(one.reading.stated_epsilon if as_stated else one.epsilon(delta) for one in profiles)
    point = PrivacyGuarantee(epsilon=epsilon, delta=delta)
    if target is None:
        assert allowance is not None
        target = PrivacyGuarantee(epsilon=allowance * epsilon, delta=min(1.0, allowance * delta))
    profile = PrivacyProfile.weakest(profiles)
    if overlap == 1:  # one teacher's promise is then the whole cost, and m = 1 needs no noise
        profile = PrivacyProfile.from_guarantee(*profile.guarantees(), point)
    teacher = point if teacher_promise == "point" else profile
    return DaRRM(fetch_noise(teachers=count, teacher=teacher, target=target, overlap=overlap, on_progress=on_progress))


def check_built_for(mechanism: Mechanism, overlap: int, *, stated: bool) -> None:
    """Refuse a mechanism whose noise was calibrated for a smaller overlap; ``stated``: whether the user gave it."""
    parameter = mechanism.describe()["parameters"].get("overlap")
    built_for = parameter or getattr(mechanism.certificate, "overlap", overlap)
    if built_for < overlap:
        cure = "Pass overlap=... if the data were split so, or build the mechanism for the larger overlap."
        got = overlap if stated else f"{overlap} (all teachers, because no overlap was given)"
        raise InvalidArgument("overlap", f"at most {built_for}, for which the mechanism was built", got, cure)


def described(mechanism: Mechanism) -> str:
    """The part of a mechanism's description that decides its labels, without wording that versions may change."""
    description = mechanism.describe()
    kept = {name: description[name] for name in ("kind", "classes", "teachers", "parameters", "secure")}
    return json.dumps(kept, sort_keys=True)


def note_noise(ledger: PrivacyLedger, mechanism: Mechanism) -> None:
    """Keep in the ledger what a solver found for this mechanism, if it was not kept before."""
    if isinstance(mechanism, DaRRM):
        ledger.note("noise", mechanism.noise.to_json())
    elif isinstance(mechanism, Tables):
        ledger.note("noise", json.dumps(mechanism.table.shares.tolist()))


def kept_jury(ledger: PrivacyLedger, mechanism: Mechanism, *, teachers: int) -> tuple[int, ...] | None:
    """The teachers on the one jury that votes on all labels of this ledger; None: there is none. Drawn only once.

    Raises:
        LedgerError: the ledger's jury is not one for this mechanism.
    """
    if not isinstance(mechanism, NoiseFree) or mechanism.jury is None or mechanism.redrawn:
        return None
    kept = ledger.note("jury")
    if kept is None:
        drawn = mechanism.draw_juries(teachers=teachers, items=1)[0]
        kept = ledger.note("jury", json.dumps(sorted(drawn.tolist())))
    try:
        jury = tuple(operator.index(number) for number in json.loads(kept or ""))
    except (TypeError, ValueError):
        jury = ()
    if len(set(jury)) != mechanism.jury or not set(jury) <= set(range(teachers)):
        raise LedgerError(f"{ledger.path} has no jury of {mechanism.jury} of {teachers} teachers")
    return jury


def kept_mechanism(ledger: PrivacyLedger, mechanism: Mechanism) -> Mechanism:
    """The mechanism that the ledger was started with, if this one differs from it only by rounding; else this one."""
    kept, noise = ledger.bound("mechanism"), ledger.note("noise")
    if kept is None or kept == described(mechanism):
        return mechanism
    was, now = json.loads(kept), json.loads(described(mechanism))
    if isinstance(mechanism, Tables):  # the digest of a table says nothing about how near another one is
        was["parameters"].pop("table", None), now["parameters"].pop("table")
    if not _nearly_equal(was, now) or (noise is None and isinstance(mechanism, DaRRM | Tables)):
        return mechanism
    if isinstance(mechanism, DaRRM):
        assert noise is not None
        return replace(mechanism, noise=NoiseFunction.from_json(noise))
    parameters = was["parameters"]
    same = replace(mechanism, **{one.name: parameters[one.name] for one in fields(mechanism) if one.name in parameters})
    if isinstance(mechanism, Tables) and isinstance(same, Tables):
        assert noise is not None
        same = same.with_shares(json.loads(noise))
        # Solvers may stop at different tables that are equally good; a table for another prior is less good.
        if same.expected_accuracy(same.prior) < mechanism.expected_accuracy(mechanism.prior) - 1e-6:
            return mechanism
    return same


def _nearly_equal(one: Any, other: Any) -> bool:
    """Whether two descriptions are equal but for the last digits of their numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_nearly_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_nearly_equal, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)
    return type(one) is type(other) and bool(one == other)
