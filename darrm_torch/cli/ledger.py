"""``darrm ledger``; and what ``darrm label`` asks of a ledger that was started before."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..errors import BudgetExceeded, InvalidArgument, LedgerError
from .files import existing
from .parser import Command, option_name, typed
from .showing import fill, print_json
from .values import read_guarantee

if TYPE_CHECKING:
    from ..labels.ledger import PrivacyLedger
    from ..privacy.guarantees import PrivacyGuarantee

__all__ = ["COMMAND", "check_kept", "keep", "take_over", "too_dear", "with_budget"]

# Options that say what a ledger is for. Its file notes them, so that later they need not be given.
_KEPT = ("mechanism", "allowance", "label_target", "total_target", "labels", "overlap", "classes", "delta")


def _add_arguments(parser: Any) -> None:
    parser.add_argument("file", help="what `darrm label --ledger` or PrivacyLedger wrote")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _run(chosen: Any) -> int:
    from ..labels.ledger import PrivacyLedger, is_ledger
    from ..privacy.guarantees import format_bound

    file = existing("file", chosen.file)
    if not is_ledger(file):
        raise InvalidArgument("file", "a ledger, as `darrm label --ledger` makes it", str(file))
    ledger = PrivacyLedger(chosen.file)
    identity = ledger.report()["identity"]
    coins = _own_randomness(identity)
    if coins is not None:
        ledger = PrivacyLedger(chosen.file, cost=coins)
    told, options = ledger.report(), _options(ledger)
    days, batches = Counter[str](), Counter[str]()
    for charge in json.loads(ledger.export_json())["charges"]:
        day = charge["time"][:10]
        days[day] += charge["labels"]
        batches[day] += 1
    if chosen.json:
        by_day = [{"day": day, "labels": days[day], "batches": batches[day]} for day in days]
        print_json({**told, "options": options, "days": by_day})
        return 0
    print(f"{_counted(told['labels'], 'label')} in {_counted(told['batches'], 'batch', 'batches')}.")
    for day in days:
        print(f"  {day} (UTC) {_counted(days[day], 'label'):>16} in {_counted(batches[day], 'batch', 'batches')}")
    print(f"Budget: {ledger.budget or 'none, so there is no limit'}.")
    if identity is not None:
        mechanism = json.loads(identity["mechanism"])
        numbers = [
            f", {name} {format_bound(value)}" for name, value in mechanism["parameters"].items() if _is_number(value)
        ]
        print(fill(f"Noise: {mechanism['kind']}{''.join(numbers)}."))
    if options:
        print(fill(f"Started with: darrm label {typed(options)}"))
    if coins is not None:
        print(
            fill(f"Spent: {ledger.spent()}, by the mechanism's own randomness; less if the teachers' training counts.")
        )
        if ledger.budget is not None:
            left = ledger.left(_MANY)
            print(f"Left: {'over ' * (left == _MANY)}{_counted(left, 'label')}, by the coins alone.")
    else:
        words = (
            "Spent: the file does not tell, for that depends on what the teachers promise. Ask with `darrm label`, the "
            "same models and this ledger for labels that are in it: they are free, and the report says what all cost."
        )
        print(fill(words))
    return 0


def _own_randomness(identity: dict[str, str] | None) -> Callable[[int], PrivacyGuarantee] | None:
    """What so many labels cost by the coins of the mechanism alone, whatever the teachers are; None: not known."""
    from .. import mechanisms

    described = json.loads((identity or {}).get("mechanism", "{}"))
    if described.get("kind") not in _COINS or not described["secure"]:
        return None
    kind, rules = getattr(mechanisms, described["kind"]), json.loads((identity or {})["rules"])
    known = {**described["parameters"], "teachers": described["teachers"], "classes": described["classes"]}
    mechanism = kind(**{field.name: known[field.name] for field in fields(kind) if field.name in known})

    def cost(labels: int) -> PrivacyGuarantee:
        proven: PrivacyGuarantee = mechanism.guarantee(labels=labels, delta=rules["delta"], overlap=rules["overlap"])
        return proven

    return cost


# Of these the description is all that there is to know.
_COINS = ("GNMax", "PermuteAndFlip", "ExponentialMechanism", "RandomizedPlurality")
_MANY = 1_000_000


def _counted(count: int, what: str, many: str = "") -> str:
    return f"{count} {what if count == 1 else many or what + 's'}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def keep(chosen: Any, ledger: PrivacyLedger) -> None:
    """Note the options in a ledger, for the next time."""
    ledger.note(
        "options", json.dumps({name: getattr(chosen, name) for name in _KEPT if getattr(chosen, name) is not None})
    )


def take_over(chosen: Any, ledger: PrivacyLedger) -> None:
    """What a ledger was started with, for what was left out; nothing else may be given."""
    kept = _options(ledger)
    for name in _KEPT if kept else ():
        given, was = getattr(chosen, name), kept.get(name)
        if given is None:
            setattr(chosen, name, was)
        elif _value(name, given) != _value(name, was):
            expected = f"left out, or as {chosen.ledger} was started ({typed(kept)})"
            raise InvalidArgument(option_name(name), expected, given, "Other noise needs another --ledger.")


def _options(ledger: PrivacyLedger) -> dict[str, Any]:
    """What it was started with; nothing if it was not by `darrm label`."""
    return dict(json.loads(ledger.note("options") or "{}"))


def _value(name: str, value: Any) -> Any:
    return read_guarantee(value) if value is not None and name.endswith("_target") else value


def with_budget(ledger: PrivacyLedger, budget: PrivacyGuarantee | None, option: str) -> PrivacyLedger:
    """The ledger with the budget that ``option`` gave: its own, or its first."""
    from ..labels.ledger import PrivacyLedger

    if budget is not None and ledger.budget is None and not ledger.count:
        return PrivacyLedger(ledger.path, budget)
    if budget is not None and ledger.budget != budget:
        was = "left out" if ledger.budget is None else f"left out, or {ledger.budget}"
        raise InvalidArgument(option, f"{was}, as the ledger was started", str(budget), "Or start another --ledger.")
    return ledger


def check_kept(ledger: PrivacyLedger, identity: dict[str, str]) -> None:
    """That it was kept for these teachers, this noise and these rules."""
    kept = ledger.report()["identity"] or identity
    other = [words for name, words in _OTHERS.items() if kept.get(name) != identity[name]]
    if other:
        raise LedgerError(
            f"{ledger.path} was kept for {' and '.join(other)}. Give them as the first time, or start another ledger: "
            "one is for one group of teachers and one noise, and teachers trained anew are other teachers"
        )


_OTHERS = {
    "teachers": "other networks, or in another order (--models)",
    "promises": "teachers that promise something else (--accountants)",
    "mechanism": "another noise (--mechanism, --allowance or a target, --labels, --overlap, --delta)",
    "rules": "other rules (--overlap, --classes, --delta, a target)",
}


def too_dear(error: BudgetExceeded, ensemble: Any, option: str | None) -> str:
    """Why nothing was asked, and what to do; ``option`` set the budget of a new ledger, None: an old one keeps its."""
    ledger = ensemble.ledger
    where = "the ledger's budget: a ledger keeps its budget" if option is None else f"{option}: raise it"
    if ledger.left(1):
        return f"{error}. Label no more new inputs than fit, or see {where}"
    count = ledger.count
    what = f"one more label after {count}" if count else "one label alone"
    price = ensemble.total_privacy(labels=count + 1).guarantee
    return f"{what} is too dear: {price}, over the budget of {ledger.budget}. Take more noise, or see {where}"


COMMAND = Command(
    summary="What a ledger holds: labels, batches, budget, noise.",
    example="darrm ledger labels.sqlite",
    add_arguments=_add_arguments,
    run=_run,
)
