"""``darrm ledger``, and how ``darrm label`` continues a ledger."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

import darrm_torch as dt

from ..errors import BudgetExceeded, InvalidArgument, LedgerError
from ..labels.ledger_file import is_ledger
from ..privacy.guarantees import format_bound
from ..reprs import wrapped
from .files import existing
from .parser import Command, option_name, typed
from .showing import print_json
from .values import read_guarantee

__all__ = ["COMMAND", "check_columns", "check_kept", "keep", "take_over", "too_expensive", "with_budget"]

# The options that a ledger was started with. Its file notes them, so that later runs may leave them out.
_KEPT = (
    "mechanism",
    "allowance",
    "label_target",
    "total_target",
    "labels",
    "jury",
    "overlap",
    "classes",
    "findings",
    "delta",
    "allocation",
    "unit",
    "records_per_unit",
    "neighbours",
)
_KEPT_OF_VOTES = ("class_names", "class_count", "keys")  # the ledger's rules hold them, so that others are refused


def _add_arguments(parser: Any) -> None:
    parser.add_argument("file", help="a file that `darrm label --ledger` or PrivacyLedger wrote; no models are needed")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(chosen: Any) -> int:
    file = existing("file", chosen.file)
    if not is_ledger(file):
        raise InvalidArgument("file", "a ledger, as `darrm label --ledger` writes it", str(file))
    ledger = dt.PrivacyLedger(chosen.file)
    mechanism = json.loads(ledger.bound("mechanism") or "{}")
    own_cost = _own_randomness_cost(mechanism, ledger.bound("rules"))
    if own_cost is not None:
        ledger = dt.PrivacyLedger(chosen.file, cost=own_cost)
    report, options = ledger.report(), _options(ledger)
    days, batches = Counter[str](), Counter[str]()
    for charge in ledger.charges:
        day = charge.time[:10]
        days[day] += charge.labels
        batches[day] += 1
    if chosen.json:
        by_day = [{"day": day, "labels": days[day], "batches": batches[day]} for day in days]
        print_json({**report, "mechanism": mechanism or None, "options": options, "days": by_day})
        return 0
    print(f"{_counted(report['labels'], 'label')} in {_counted(report['batches'], 'batch', 'batches')}.")
    for day in days:
        print(f"  {day} (UTC) {_counted(days[day], 'label'):>16} in {_counted(batches[day], 'batch', 'batches')}")
    print(f"Budget: {ledger.budget or 'none, so there is no limit'}.")
    if mechanism:
        numbers = [
            f", {name} {format_bound(value, 6)}" for name, value in mechanism["parameters"].items() if _is_number(value)
        ]
        print(wrapped(f"Noise: {mechanism['kind']}{''.join(numbers)}."))
    if options:
        print(wrapped(f"Started with: darrm label {typed(options)}"))
    if own_cost is not None:
        print(
            wrapped(
                f"Spent: {ledger.spent()}, by the mechanism's own randomness. The training of the teachers can only "
                "lower this."
            )
        )
        if ledger.budget is not None:
            left = ledger.left(_MANY)
            print(f"Left: {'over ' * (left == _MANY)}{_counted(left, 'label')}, by that randomness alone.")
    else:
        unknown = "Spent: not known from the file alone, because it depends on the teachers' guarantees."
        print(wrapped(f"{unknown} {_REPORT[bool(options)]}"))
    print(wrapped(f"Trust: {ledger.trust}"))
    return 0


def _own_randomness_cost(mechanism: dict[str, Any], rules: str | None) -> Callable[[int], dt.PrivacyGuarantee] | None:
    """The cost of N labels by the mechanism's own randomness, for any teachers; None if it is not known."""
    kind = getattr(dt, mechanism.get("kind", ""), None)
    if not isinstance(kind, type) or not issubclass(kind, dt.Mechanism) or rules is None:
        return None
    known = {**mechanism["parameters"], "teachers": mechanism["teachers"], "classes": mechanism["classes"]}
    needed = {field.name for field in fields(kind) if field.init} - {"insecure_seed"}
    if not mechanism["secure"] or not needed <= known.keys():  # noise functions and tables are not in the file
        return None
    request, rebuilt = json.loads(rules), kind(**{name: known[name] for name in needed})
    if rebuilt.guarantee(delta=request["delta"]) is None:
        return None

    def cost(labels: int) -> dt.PrivacyGuarantee:
        promise = rebuilt.guarantee(labels=labels, delta=request["delta"], overlap=request["overlap"])
        assert promise is not None
        return promise

    return cost


_MANY = 1_000_000
_REPORT = (
    "Build the same ensemble with this ledger in Python: its privacy_report() says what all labels cost.",
    "Run `darrm label` with this ledger, the same --models (and --build or --accountants) or --votes, and inputs that "
    "it has labels for: they are free, and the report says what all labels cost.",
)


def _counted(count: int, what: str, many: str = "") -> str:
    return f"{count} {what if count == 1 else many or what + 's'}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def keep(chosen: Any, ledger: dt.PrivacyLedger, columns: Sequence[str] | None) -> None:
    """Note the options, and the columns of a table of inputs, in a ledger, for the next run."""
    options = {name: getattr(chosen, name) for name in (*_KEPT, *_KEPT_OF_VOTES)}
    ledger.note("options", json.dumps({name: value for name, value in options.items() if value is not None}))
    if columns is not None:
        ledger.note("columns", json.dumps(columns))


def check_columns(ledger: dt.PrivacyLedger, columns: Sequence[str] | None) -> None:
    """Refuse a table of inputs whose columns are not those of the first table, in the same order."""
    first = json.loads(ledger.note("columns") or "null")
    if columns is None or first in (None, columns):
        return
    number = next((place for place, (was, now) in enumerate(zip(first, columns, strict=False)) if was != now), None)
    expected, got = f"a table of {len(first)} columns", str(len(columns))
    if number is not None:
        expected, got = f"a table whose column {number + 1} is {first[number]!r}", columns[number]
    cure = "Networks know columns by their place: give them the same names in the same order."
    raise InvalidArgument("--inputs", f"{expected}, as when {ledger.path} was started", got, cure)


def take_over(chosen: Any, ledger: dt.PrivacyLedger) -> None:
    """Fill in the options that a ledger was started with; other values are refused."""
    kept = _options(ledger)
    for name in _KEPT if kept else ():
        given, was = getattr(chosen, name), kept.get(name)
        if given is None:
            setattr(chosen, name, was)
        elif _value(name, given) != _value(name, was):
            expected = f"left out, or as when {chosen.ledger} was started ({typed(kept)})"
            raise InvalidArgument(option_name(name), expected, given, "Other noise needs another --ledger.")
    if chosen.votes is not None:
        if chosen.class_names is None and chosen.class_count is None:
            chosen.class_names, chosen.class_count = kept.get("class_names"), kept.get("class_count")
        chosen.keys = kept.get("keys") if chosen.keys is None else chosen.keys


def _options(ledger: dt.PrivacyLedger) -> dict[str, Any]:
    """The options that it was started with; none if `darrm label` did not start it."""
    return dict(json.loads(ledger.note("options") or "{}"))


def _value(name: str, value: Any) -> Any:
    return read_guarantee(value) if value is not None and name.endswith("_target") else value


def with_budget(ledger: dt.PrivacyLedger, budget: dt.PrivacyGuarantee | None, option: str) -> dt.PrivacyLedger:
    """The ledger, with the budget that ``option`` gave if it has none yet."""
    if budget is not None and ledger.budget is None and not ledger.count:
        return dt.PrivacyLedger(ledger.path, budget)
    if budget is not None and ledger.budget != budget:
        kept = "left out" if ledger.budget is None else f"left out, or {ledger.budget}"
        raise InvalidArgument(option, f"{kept}, as in the ledger", str(budget), "Or start another --ledger.")
    return ledger


def check_kept(ledger: dt.PrivacyLedger, ensemble: dt.PrivateMajorityEnsemble | dt.PrivateLabeler) -> None:
    """Check that the ledger belongs to these teachers, this noise and these rules."""
    from ..labels.kept import described, kept_mechanism

    mechanism = kept_mechanism(ledger, ensemble.mechanism)  # it may have been solved on another machine
    names = ledger.differences(ensemble.identity | {"mechanism": described(mechanism)})
    mine, facts = json.loads(ensemble.identity["rules"]), list[str]()
    with suppress(ValueError, AttributeError):  # a ledger that Python bound to other rules
        kept = json.loads(ledger.bound("rules") or "{}")
        facts = [name for name in _DIFFERENT if kept.get(name) != mine.get(name)]
    different = [_DIFFERENT.get(name, name) for name in names if name != "rules" or not facts]
    different += [_DIFFERENT[name] for name in facts]
    if different:
        raise LedgerError(
            f"{ledger.path} belongs to {' and '.join(different)}. Give the same ones as when it was started, or start "
            "another ledger: one ledger is for one group of teachers and one noise. Retrained teachers are a new group"
        )


_DIFFERENT = {
    "teachers": "other teachers, or to the same in another order (--models, --votes, --accountants)",
    "promises": "teachers with other guarantees (--accountants)",
    "mechanism": "another noise (--mechanism, --allowance or a target, --labels, --jury, --overlap, --delta)",
    "rules": "other rules (--overlap, --classes, --delta, a target, --unit, --records-per-unit, --neighbours)",
    "findings": "other findings, or the same in another order (--findings)",
    "names": "other classes (--class-names)",
    "keys": "another column of keys (--keys)",
    "columns": "teachers with other names in --votes",
    "votes": "other votes (--votes; without --keys a row is known by its number only, so no row may change or move)",
}


def too_expensive(error: BudgetExceeded, ensemble: Any, option: str | None) -> str:
    """Why nothing was labelled, and what to do. ``option`` set the budget of a new ledger; None: an old ledger."""
    ledger = ensemble.ledger
    cure = "start another ledger: this one keeps its budget" if option is None else f"raise {option}"
    if ledger.left(1):
        return f"{error}. Label no more new inputs than fit, or {cure}"
    count = ledger.count
    what = f"one more label after {count}" if count else "one label alone"
    price = ensemble.total_privacy(labels=count + 1).guarantee
    return f"{what} costs too much: {price}, over the budget of {ledger.budget}. Use more noise, or {cure}"


COMMAND = Command(
    summary="Show a ledger: labels, batches, budget, noise.",
    example="darrm ledger labels.ledger",
    add_arguments=_add_arguments,
    run=_run,
)
