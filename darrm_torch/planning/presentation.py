"""A plan as text for 80 columns, and as values for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..privacy.guarantees import PrivacyGuarantee, alarm, format_bound
from ..privacy.units import RECORD
from ..reprs import wrapped
from .beliefs import Belief
from .one_model import OneModel
from .request import Request
from .strategies import Strategy

__all__ = ["plan_text", "plan_values", "round_down"]

_POOR = 0.1  # above the accuracy of a label drawn at random
_SOFT = (
    "For a student, if the teachers give probabilities: MeanProbabilities of the same teachers costs the same, however "
    "many labels there are, and its soft labels teach more."
)


def plan_values(request: Request, rows: Sequence[Strategy], best: Strategy | None) -> dict[str, Any]:
    """A plan, ready for JSON."""
    return {
        "teachers": request.teachers,
        "classes": request.classes,
        "teacher": request.teacher.to_dict(),
        "overlap": request.overlap,
        "labels": request.labels,
        "label_target": _pair(request.label_target),
        "total_target": _pair(request.total_target),
        "prior": repr(request.prior),
        "plain_prior": repr(request.plain_prior),
        "allocation": None if request.allocation is None else request.allocation.to_dict(),
        "recommendation": None if best is None else best.name,
        "strategies": [row.to_dict() for row in rows],
    }


def plan_text(
    request: Request,
    rows: Sequence[Strategy],
    best: Strategy | None,
    juries_win_from: float | None = None,
    one_model: OneModel | None = None,
) -> str:
    """A plan for a screen of 80 columns: the question, a table, the recommendation, and why not the others."""
    paragraphs = [_question(request), "", *_table(request, rows), "", *_notes(request, rows), ""]
    if request.allocation is not None:
        paragraphs += [*_with_and_without(request, rows, juries_win_from), ""]
    if best is None:
        paragraphs.append("Recommendation: none of these keeps the target. Reasons:")
    else:
        paragraphs += [f"Recommendation: {best.name}. {best.reason}", f"In Python: mechanism={best.code}"]
        if request.allocation is not None:
            paragraphs.insert(-1, _price_of_leaks(request, best))
        if best.kind in ("noise-free", "jury") and best.total and best.total.route.key in ("publishing", "allocation"):
            paragraphs.append(_SOFT)
        if (best.accuracy or 0.0) < 1 / request.classes + _POOR:
            chance = "a coin" if request.classes == 2 else "guessing"
            paragraphs.append(
                f"That is hardly better than {chance}: train teachers with more privacy of their own, put each record "
                "into the training data of fewer teachers, or allow more."
            )
    if best is not None and best.total is not None and (warning := alarm(best.total.epsilon)):
        paragraphs.append(warning)
    paragraphs += [] if one_model is None else [str(one_model)]
    if best is not None and len(rows) > 1:
        paragraphs += ["", "The others:"]
    paragraphs += [f"- {row.name}: {row.reason}" for row in rows if row is not best]
    return "\n".join(map(wrapped, paragraphs))  # rows of the table are shorter, and stay as they are


def round_down(share: float) -> float:
    """Three digits, rounded down: what is less than 1, by more than rounding, is not shown as 1."""
    return math.floor(share * 1000 + 1e-5) / 1000


def _question(request: Request) -> str:
    label = f"label{'s' * (request.labels > 1)}" + f", of {request.classes} classes" * (request.classes > 2)
    targets = [] if request.label_target is None else [f"one label {request.label_target}"]
    targets += [] if request.total_target is None else [f"all labels {request.total_target}"]
    unit = request.teacher.unit
    affected = f"one {unit.name} affects at most {request.overlap} of them"
    if request.allocation is not None:
        stated = ", as stated by the user" * (request.allocation.source == "stated")
        affected = f"each {request.allocation.unit} drew {request.overlap} of them at random and in secret{stated}"
    votes = _belief(request.belief if request.teacher.is_private else request.plain_prior)
    if request.teacher.is_private and request.plain_prior not in (None, request.prior):
        votes += f"; of teachers trained without privacy: {_belief(request.plain_prior)}"
    affected += "" if unit == RECORD else f"; protected: {unit}"
    return (
        f"{request.teachers} teachers, {_promise(request)}; {affected}; "
        f"{request.labels} {label}. Target: {' and '.join(targets)}. Votes: {votes}."
    )


def _table(request: Request, rows: Sequence[Strategy]) -> list[str]:
    many = request.labels > 1
    names = [row.name + " *" * row.own_randomness for row in rows]
    wide = max(31, *map(len, names))
    head = (
        f"  {'strategy':<{wide}}{'accuracy':>9}{'agreement':>10}{'eps of one':>11}{'of all' * many:>{9 * many}}  kept"
    )
    lines = [head]
    for name, row in zip(names, rows, strict=True):
        numbers = ""
        for share, width in ((row.accuracy, 9), (row.agreement, 10)):
            numbers += ("none" if share is None else f"{round_down(share):.3f}").rjust(width)
        for bound, width in ((row.label, 11), (row.total, 9))[: 1 + many]:
            numbers += ("none" if bound is None else format_bound(bound.epsilon)).rjust(width)
        lines.append(f"  {name:<{wide}}{numbers}  {'yes' if row.meets else 'no'}")
    return lines


def _with_and_without(request: Request, rows: Sequence[Strategy], juries_win_from: float | None) -> list[str]:
    """What all labels cost with random allocation and without it, and where juries win, where noise."""
    priced = [
        (row, row.total.epsilon, row.without_allocation)
        for row in rows
        if row.rests_on != "randomness" and row.total is not None and row.without_allocation is not None
    ]
    what = f"all {request.labels} labels" if request.labels > 1 else "the label"
    lines = [
        "Random allocation of the records, and the price without it (or if the draws leak):",
        f"  {'epsilon of ' + what:<36}{'with':>12}{'without':>12}",
    ]
    for row, secret, leaked in priced:
        lines.append(f"  {row.name:<36}{format_bound(secret):>12}{format_bound(leaked):>12}")
    if not request.teacher.is_private:
        return lines
    everyone = next(cost for row, cost, _ in priced if row.kind == "noise-free" and row.voters == request.teachers)
    text = (
        f"Where which wins: from epsilon {format_bound(everyone)} on, all {request.teachers} teachers "
        "vote without noise, however many labels are released. Below that "
    )
    if juries_win_from is None:
        text += "self-bounding noise agrees at least as often as a jury (fewer teachers, no noise) of the same price."
    else:
        where = "at every price"
        if juries_win_from:
            where = (
                f"from about {format_bound(juries_win_from)} on, and noise agrees at least as often as a jury below it"
            )
        text += (
            f"a jury (fewer teachers, no noise) agrees more often than self-bounding noise {where}. The price of a "
            "jury does not grow with the number of labels; the price of noise does."
        )
    return [*lines, text]


def _price_of_leaks(request: Request, best: Strategy) -> str:
    assert best.total is not None
    assert best.without_allocation is not None
    if best.without_allocation <= best.total.epsilon:
        return "This price does not need the random allocation: it holds even if the draws leak."
    pair = PrivacyGuarantee(epsilon=best.without_allocation, delta=best.total.delta)
    what = f"all {request.labels} labels" if request.labels > 1 else "the label"
    return f"Price of {what} with random allocation: {best.total.guarantee}. Without it, or if the draws leak: {pair}."


def _notes(request: Request, rows: Sequence[Strategy]) -> list[str]:
    error = max(row.standard_error for row in rows)
    exactness = f"to a standard error of {error:.1g}" if error else "exact"
    deltas = dict.fromkeys(format_bound(bound.delta, 3) for bound in (rows[0].label, rows[0].total) if bound)
    notes = [
        f"Accuracy: how often a label is the true class. Agreement: with the {request.winner} of all teachers. Both "
        f"are expected under the stated votes, {exactness}."
        + (f" Epsilons in nats, at delta {', '.join(deltas)}." if deltas else ""),
        "* Rests on the mechanism's own randomness alone, another assumption: the teachers may be trained without "
        "privacy (the accuracy is that of such teachers), but must themselves stay secret for ever.",
    ]
    if any(row.rests_on == "both" for row in rows):
        notes.append(
            "+ training: rests on the mechanism's own randomness and on the teachers' training, counted together."
        )
    if request.teacher.unlike and request.overlap < request.teachers:
        notes.append(
            "The promises differ, and the weakest set the price of all labels. Plan again without them: choose "
            "teachers by their promises or sizes, never by their votes."
        )
    return notes


def _promise(request: Request) -> str:
    if not request.teacher.is_private:
        return "without privacy of their own"
    if request.teacher.dp_sgd:
        delta = request.targets[0].delta
        promise = f"({format_bound(request.teacher.epsilon(delta))}, {format_bound(delta, 3)})-DP"
    else:
        promise = " and ".join(map(str, request.teacher.guarantees()))
    return f"each {promise}{' or better' * bool(request.teacher.unlike)}"


def _belief(belief: Belief | None) -> str:
    if not isinstance(belief, tuple):
        return str(belief)
    parts = [
        f"{one.accuracy:g}" + f" (concentration {one.concentration:g})" * math.isfinite(one.concentration)
        for one in belief
    ]
    return f"teachers are right with chance {' or '.join(parts)}{', equally likely' * (len(parts) > 1)}"


def _pair(target: PrivacyGuarantee | None) -> list[float] | None:
    return None if target is None else [target.epsilon, target.delta]
