"""The privacy report: what was released, what it costs, by which argument, and what that rests on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from .. import __version__
from ..mechanisms.base import Mechanism
from ..privacy.guarantees import alarm, format_bound
from ..privacy.profiles import PrivacyProfile
from ..privacy.totals import TotalPrivacy
from ..privacy.units import RECORD
from ..reprs import wrapped
from .accuracy import kept_estimates
from .ledger import PrivacyLedger

__all__ = ["report_as_dict", "report_as_text"]


def report_as_dict(
    ledger: PrivacyLedger,
    *,
    mechanism: Mechanism,
    profiles: Sequence[PrivacyProfile],
    overlap: int,
    label: TotalPrivacy,
    total: TotalPrivacy | None,
    findings: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Everything that the report says, ready for JSON; ``label`` is the cost of one label, ``total`` of all so far.

    With findings, it counts the labels of each. All of an input are charged together, so there are equally many.
    """
    budget, readings = ledger.budget, [profile.reading for profile in profiles]
    return {
        "library": "darrm-torch",
        "version": __version__,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "ledger": {
            "file": ledger.path if ledger.path == ":memory:" else os.path.basename(ledger.path),
            "budget": None if budget is None else asdict(budget),
            "trust": ledger.trust,
        },
        "labels": ledger.count,
        "findings": None if findings is None else dict.fromkeys(findings, ledger.count // len(findings)),
        "teachers": len(profiles),
        "overlap": overlap,
        "mechanism": mechanism.describe(),
        "label": label.to_dict(),
        "total": None if total is None else total.to_dict(),
        "validation": [estimate.to_dict() for estimate in kept_estimates(ledger)],
        # A digest of the weights is an exact function of the training data: it stays with the ledger.
        "readings": [
            {"teacher": number, **{name: value for name, value in asdict(reading).items() if name != "digest"}}
            for number, reading in enumerate(readings)
            if reading is not None
        ],
        "assumptions": list(label.assumptions),
    }


def report_as_text(facts: Mapping[str, Any], *, markdown: bool = False) -> str:
    """The same for people: plain text at most 79 columns wide, or Markdown."""
    given, mechanism, budget = facts["labels"], facts["mechanism"], facts["ledger"]["budget"]
    released, one = mechanism["releases"], mechanism["releases"].removesuffix("s")
    numbers = [f"{name} {format_bound(n, 6)}" for name, n in mechanism["parameters"].items() if type(n) in (int, float)]
    strength = f" ({', '.join(numbers)})" if numbers else ""
    about = [f"randomness: {mechanism['randomness']}", *mechanism["notes"]]
    findings, about_each = facts["findings"], ""
    if findings:
        inputs = next(iter(findings.values()))
        about_each = f", one for each finding ({', '.join(findings)}) of {inputs} input{'s' * (inputs != 1)}"
    paragraphs = [
        f"Released: {given} {one if given == 1 else released}{about_each}, by {mechanism['kind']}{strength} from "
        f"{facts['teachers']} teachers. {' '.join(f'{note[0].upper()}{note[1:]}.' for note in about)}",
        _cost(f"One {one} is", facts["label"]),
    ]
    if given > 1:
        others = [r for r in facts["total"]["routes"] if r["applies"] and r["name"] != facts["total"]["route"]]
        paragraphs.append(
            _cost(f"All {given} {released} together are", facts["total"])
            + "".join(
                f" The bound by {other['name']} is no lower: epsilon {format_bound(other['epsilon'])}."
                for other in others
            )
        )
    paragraphs += [f"Validation: {one['text']}. The bounds above cover it." for one in facts["validation"]]
    limit = (
        "no budget"
        if budget is None
        else f"budget ({format_bound(budget['epsilon'], 6)}, {format_bound(budget['delta'], 3)})-DP"
    )
    paragraphs.append(
        f"Ledger: {facts['ledger']['file']}, {limit}. Reported by {facts['library']} {facts['version']} on "
        f"{facts['date']}. {facts['ledger']['trust']}"
    )
    if generators := _by_teacher((reading["teacher"], reading["randomness"]) for reading in facts["readings"]):
        listed = "; ".join(f"{whose}: {generator}" for generator, whose in generators.items())
        paragraphs.append(f"Generator of the noise in training: {listed}.")
    lists = {"Assumptions:": facts["assumptions"], "Findings about the teachers:": _findings(facts["readings"])}
    for title, items in lists.items():
        if items:
            lines = [title, *([""] if markdown else []), *(f"- {item}" for item in items)]
            paragraphs.append("\n".join(lines if markdown else map(wrapped, lines)))
    if markdown:
        return "\n\n".join(["# Privacy report", *paragraphs]) + "\n"
    return "\n".join(wrapped(paragraph) if "\n" not in paragraph else paragraph for paragraph in paragraphs)


def _cost(whose: str, total: Mapping[str, Any]) -> str:
    delta = format_bound(total["delta"], 3)
    if total["epsilon"] is None:
        return f"{whose} not proven to be private: no bound holds at delta {delta}."
    explanation = next(route["explanation"] for route in total["routes"] if route["name"] == total["route"])
    protects = "" if total["protects"] == str(RECORD) else f" for {total['protects']}"
    cost = f"{whose} ({format_bound(total['epsilon'], 6)}, {delta})-DP{protects}, by {total['route']}. {explanation}"
    others = [route["epsilon"] for route in total["routes"] if route["applies"] and "allocation" not in route["key"]]
    without = format_bound(min(others), 6) if others else "infinite"
    if any(route["key"].startswith("allocation") for route in total["routes"]):
        cost += f" Without random allocation the bound is {without}."
    return f"{cost} {alarm(total['epsilon'])}".rstrip()


def _findings(readings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each note of the readings once, with the numbers of the teachers that it is about."""
    notes = _by_teacher((reading["teacher"], note) for reading in readings for note in reading["notes"])
    return [f"{whose}: {note}" for note, whose in notes.items()]


def _by_teacher(facts: Iterable[tuple[int, str]]) -> dict[str, str]:
    """Each fact once, with the teachers that it is about in words."""
    teachers: dict[str, list[int]] = {}
    for teacher, fact in facts:
        teachers.setdefault(fact, []).append(teacher)
    return {fact: _numbered(numbers) for fact, numbers in teachers.items()}


def _numbered(numbers: Sequence[int]) -> str:
    """ "Teacher 3", "Teachers 0-4, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    listed = ", ".join("-".join(map(str, run)) for run in runs)
    return f"Teacher{'s' * (len(numbers) > 1)} {listed}"
