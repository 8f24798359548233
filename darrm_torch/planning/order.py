"""In which order a plan lists its strategies, and how each compares with the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..noise.priors import BetaVotes
from .beliefs import typical_votes
from .expectation import expected_accuracy
from .presentation import round_down
from .request import Request
from .strategies import Strategy

__all__ = ["compared", "ordered"]

_STATED_ERROR = 0.005  # of accuracies: the standard error on about 2,000 items


def ordered(question: Request, rows: Iterable[Strategy]) -> list[Strategy]:
    """The strategies that are worth a row, the recommendation first: those that keep the targets, by accuracy."""
    every = list(rows)
    kept = [row for row in every if row.rests_on != "both" or _gains(row, every)]
    kept.sort(key=lambda row: (not row.meets, row.accuracy is None, -round(row.accuracy or 0.0, 3)))
    _settle_near_tie(question, kept)
    return kept


def _settle_near_tie(question: Request, rows: list[Strategy]) -> None:
    """Move the row to the front that is best under typical votes, of those that are best under the stated ones.

    What is stated was measured on other data. Differences of less than its error say nothing.
    """
    typical = [typical_votes(2, plain=plain) for plain in (False, True)]
    beliefs = [question.prior, question.plain_prior]
    measured = all(isinstance(belief, BetaVotes) for belief in beliefs)  # what stated accuracies become
    if not measured or beliefs == typical or not rows[0].meets:
        return

    def usual(row: Strategy) -> float:
        assert row.mechanism is not None
        prior = typical[row.own_randomness]
        return round(expected_accuracy(row.mechanism, teachers=row.voters, classes=2, prior=prior)[0], 3)

    least = (rows[0].accuracy or 0.0) - _STATED_ERROR
    near = [row for row in rows if row.meets and row.accuracy is not None and row.accuracy >= least]
    if len(near) > 1:
        best = max(near, key=usual)
        rows.remove(best)
        rows.insert(0, best)


def _gains(row: Strategy, rows: Sequence[Strategy]) -> bool:
    """Whether counting the teachers' training, too, is worth a row: the mechanism alone is right less often."""
    alone = [one.accuracy or 0.0 for one in rows if one.own_randomness and type(one.mechanism) is type(row.mechanism)]
    return row.meets and round(row.accuracy or 0.0, 3) > round(max(alone, default=0.0), 3)


def compared(row: Strategy, rows: Sequence[Strategy]) -> str:
    """How a strategy that keeps the targets compares with the best, and the best with the next."""
    best = rows[0]
    if not row.meets or row.accuracy is None or best.accuracy is None:
        return ""
    if row is not best:
        if round(best.accuracy, 3) > round(row.accuracy, 3):
            return (
                f" It keeps the target but is right less often than {best.name}, by {best.accuracy - row.accuracy:.3f}."
            )
        if round(best.accuracy, 3) < round(row.accuracy, 3):
            return f" It is right as often as {best.name}, within what stated votes can say."
        return f" It is right as often as {best.name}, which needs less."
    second = next((other for other in rows[1:] if other.meets), None)
    if second is None:
        return ""
    text = f" Next best: {second.name}, {round_down(second.accuracy or 0):.3f}."
    free = next((one for one in rows if one.kind == "noise-free" and not one.meets), None)
    if free is not None and free.total is not None and math.isfinite(free.total.epsilon):
        text += f" Without noise all teachers would cost {free.total.guarantee}."
    return text
