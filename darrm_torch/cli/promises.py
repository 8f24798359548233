"""Options about the teachers: their guarantees, their votes and their files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import darrm_torch as dt

from ..errors import InvalidArgument, check_integer, check_number
from ..teachers.findings import FINDINGS
from .files import teacher_files
from .parser import one_of, option_names
from .values import checked_prior, guarantee, read_guarantee, read_rate

if TYPE_CHECKING:
    from ..privacy.units import Neighbours

__all__ = [
    "add_accept",
    "add_allocation",
    "add_common",
    "add_teacher",
    "add_unit",
    "checks",
    "for_stated_unit",
    "naming",
    "protected",
    "read_teacher",
    "stated_allocation",
    "stated_neighbours",
    "stated_unit",
    "terms_of_labels",
]


def add_teacher(parser: Any, title: str = "the guarantee of each teacher") -> None:
    """Options for the guarantee of each teacher: a pair (epsilon, delta), or the settings of DP-SGD."""
    group = parser.add_argument_group(title)
    group.add_argument("--teacher", type=guarantee, metavar="EPS,DELTA", help="its guarantee")
    group.add_argument("--noise-multiplier", type=float, metavar="S", help="DP-SGD: noise multiplier")
    group.add_argument("--sample-rate", type=read_rate, metavar="Q", help="DP-SGD: sample rate, such as 1/35")
    group.add_argument("--steps", type=int, metavar="N", help="DP-SGD: number of steps")


def add_unit(parser: Any, *, replaced: bool = True) -> None:
    """The options ``--unit``, ``--records-per-unit`` and, if it is ``replaced``, ``--neighbours``."""
    group = parser.add_argument_group("what is protected (default: one record, added or removed)")
    group.add_argument(
        "--unit", metavar="NAME", help="what a unit is, such as patient; --overlap then counts its teachers"
    )
    group.add_argument(
        "--records-per-unit",
        type=int,
        metavar="G",
        help="most records of a unit in the data of one teacher (default: 1)",
    )
    if replaced:
        group.add_argument(
            "--neighbours",
            type=one_of("add/remove", "replace-one"),
            metavar="KIND",
            help="add/remove, or replace-one: neighbouring data replace a unit by another one (default: add/remove)",
        )


def stated_unit(chosen: Any) -> dict[str, Any]:
    """The unit that the options name, as arguments of ``read_teachers``."""
    given = chosen.records_per_unit
    records = 1 if given is None else check_integer("--records-per-unit", given, low=1)
    if records > 1 and chosen.unit in (None, "record"):
        raise InvalidArgument("--unit", "given with --records-per-unit, such as patient", chosen.unit)
    return {"unit": chosen.unit or "record", "records_per_unit": records}


def stated_neighbours(chosen: Any) -> Neighbours:
    """The neighbours that the options name."""
    return "replace-one" if chosen.neighbours == "replace-one" else "add/remove"


def protected(chosen: Any, promise: Any) -> Any:
    """What ``promise``, of one teacher or of several, says for the unit and the neighbours that the options name."""
    from ..privacy.profiles import as_profile

    if (stated_unit(chosen)["unit"], stated_neighbours(chosen)) == ("record", "add/remove"):
        return promise
    if isinstance(promise, tuple):
        return tuple(protected(chosen, one) for one in promise)
    profile = dt.PrivacyProfile.non_private() if promise is None else as_profile("--teacher", promise)
    profile = for_stated_unit(chosen, profile)
    return profile.for_replacement() if stated_neighbours(chosen) == "replace-one" else profile


def for_stated_unit(chosen: Any, profile: dt.PrivacyProfile) -> dt.PrivacyProfile:
    """The profile for the unit that the options name."""
    unit = stated_unit(chosen)
    return profile if unit["unit"] == "record" else profile.for_unit(unit["unit"], records=unit["records_per_unit"])


def add_accept(parser: Any, *more: str) -> None:
    """The option ``--accept``, for findings about teachers and for ``more``."""
    parser.add_argument(
        "--accept",
        nargs="+",
        type=one_of(*FINDINGS, *more),
        default=[],
        metavar="FINDING",
        help=f"accept a finding that would be refused, and report it: {', '.join((*FINDINGS, *more))}",
    )
    parser.add_argument(
        "--initial",
        metavar="FILE",
        help="the weights that all teachers started from, if they started alike: their updates are compared",
    )


def checks(chosen: Any) -> dict[str, Any]:
    """What ``--delta``, ``--accept`` and ``--initial`` say to whatever reads teachers."""
    from ..teachers.checkpoints import Checkpoint

    initial = None if chosen.initial is None else Checkpoint.read(chosen.initial, name="--initial").weights
    accept = [finding for finding in chosen.accept if finding in FINDINGS]
    return {"delta": chosen.delta, "accept": accept, "initial": initial}


def read_teacher(chosen: Any) -> dt.PrivacyProfile | dt.PrivacyGuarantee | tuple[dt.PrivacyProfile, ...] | None:
    """The guarantee or the profiles of the teachers, from the options that were given; None without any."""
    run = {name: getattr(chosen, name) for name in ("noise_multiplier", "sample_rate", "steps")}
    given = [value for value in run.values() if value is not None]
    ways = [bool(given), chosen.teacher is not None, getattr(chosen, "teachers_folder", None) is not None]
    if sum(ways) > 1:
        raise InvalidArgument(
            "--teacher", "given once", "several ways", "Choose --teacher, or the settings of DP-SGD, or a folder."
        )
    if given and len(given) < 3:
        missing = option_names([name for name, value in run.items() if value is None])
        raise InvalidArgument("the settings of DP-SGD", "all three", f"no {missing}", "Give these as well.")
    if given:
        check_number("--noise-multiplier", run["noise_multiplier"], low=0.01)  # with less, dp-accounting takes hours
        return dt.PrivacyProfile.from_dp_sgd([(run["noise_multiplier"], run["sample_rate"], run["steps"])])
    if chosen.teacher is not None:
        return read_guarantee(chosen.teacher)
    if getattr(chosen, "teachers_folder", None) is None:
        return None
    with naming("--teachers-folder"):
        return dt.read_teachers(teacher_files("--teachers-folder", chosen.teachers_folder))


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Name the option ``name`` in errors about files that cannot be read."""
    try:
        yield
    except InvalidArgument as error:
        if error.name != "source":
            raise
        raise InvalidArgument(name, error.expected, error.got, error.cure) from None


def add_allocation(parser: Any, recorded: str) -> None:
    """The option ``--allocation``; ``recorded`` names what may have recorded it."""
    parser.add_argument(
        "--allocation",
        type=one_of("random"),
        metavar="random",
        help="each record drew its --overlap shards (by default 1) at random and in secret (default: what "
        f"{recorded} recorded)",
    )


def stated_allocation(chosen: Any, teachers: int) -> dt.RandomAllocation | None:
    """What ``--allocation`` and ``--overlap`` state of so many teachers."""
    unit = chosen.unit or "record"
    return chosen.allocation and dt.RandomAllocation(teachers=teachers, overlap=chosen.overlap or 1, unit=unit)


def terms_of_labels(
    chosen: Any,
    strength: Mapping[str, Any],
    ledger: dt.PrivacyLedger,
    *,
    teachers: int,
    classes: int,
    profiles: Sequence[dt.PrivacyProfile] | None,
) -> dict[str, Any]:
    """What ``PrivateLabeler`` and ``PrivateMajorityEnsemble`` both take, by keyword, as the options ask for it.

    The mechanism is the strongest of the kind ``--mechanism``, with the jury that ``--jury`` asks for. The allocation
    is the one that is stated, or that the teachers' files record. The total is stated at the delta of the budget, or of
    one label.

    Raises:
        UnprovenPrivacy: an allocation is stated of teachers whose constants may show the draws, and that was not
            accepted.
    """
    from ..teachers.allocations import check_constants, settled_allocation

    allocation, neighbours = stated_allocation(chosen, teachers), stated_neighbours(chosen)
    if profiles is None:  # the mechanism's own randomness protects, so no secret is needed
        overlap, allocation = chosen.overlap if allocation is None else allocation.overlap, None
    else:
        check_constants(allocation, profiles, accept=chosen.accept)
        allocation, overlap = settled_allocation(profiles, allocation, chosen.overlap, neighbours)
    replaced = profiles is not None and neighbours == "replace-one"
    mechanism = dt.strongest_mechanism(
        chosen.mechanism,
        teachers=teachers,
        classes=classes,
        teacher=tuple(profile.for_replacement() for profile in profiles or ()) if replaced else profiles,
        overlap=overlap,
        allocation=None if "allowance" in strength else allocation,
        labels=1 if chosen.labels is None else chosen.labels,
        **strength,
    )
    if chosen.jury is not None:
        assert isinstance(mechanism, dt.NoiseFreeMajority | dt.MeanProbabilities)
        mechanism = replace(mechanism, jury=check_integer("--jury", chosen.jury, low=1, high=teachers))
    promise = ledger.budget or strength.get("label_target")
    delta = min(1.0, strength.get("allowance", 1) * chosen.delta) if promise is None else promise.delta
    return {
        "mechanism": mechanism,
        "profiles": profiles,
        "overlap": overlap,
        "allocation": allocation,
        "neighbours": neighbours,
        "ledger": ledger,
        "delta": delta,
    }


def add_common(parser: Any, *, prior: str | None, default: str) -> None:
    """The options ``--overlap`` and ``--prior``, whose value is ``prior`` unless it is given; ``default`` says it."""
    parser.add_argument(
        "--overlap", type=int, metavar="R", help="most teachers that one record can affect (default: all)"
    )
    parser.add_argument(
        "--prior",
        type=checked_prior,
        default=prior,
        metavar="P",
        help=f"the expected votes: independent:MEAN, shared:LOW,HIGH or beta:A,B (default: {default})",
    )
