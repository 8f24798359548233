"""How teachers are believed to vote: the defaults, and what stated accuracies say.

A belief is public knowledge. It decides which strategy is recommended and where noise is small, and never affects
privacy. Never take it from votes on private data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsFloat, TypeAlias

import numpy as np

from ..bisection import last_true
from ..errors import InvalidArgument, check_number
from ..noise.plurality_priors import VAGUE_VOTES, PluralityVotes, check_plurality_prior
from ..noise.priors import BetaVotes, MajorityPrior, Prior, check_prior

__all__ = ["Accuracy", "Belief", "check_any_prior", "stated_beliefs", "typical_votes"]

Belief: TypeAlias = Prior | tuple[PluralityVotes, ...]
Accuracy: TypeAlias = float | SupportsFloat | Sequence[float | SupportsFloat]
"""The accuracy of one teacher, or a pair: that of one teacher and that of all; numbers or private estimates."""

# `python -m benchmarks beliefs` chose these numbers on public data; docs/api/planning.rst says how.
_TYPICAL, _CONCENTRATION = 0.8, 2.0
_PLAIN_CONCENTRATION = 0.5  # plain teachers err on the same items: their majority is hardly better than one of them
_VAGUE_CONCENTRATION = 3.0  # of many classes, as in VAGUE_VOTES
_LEAST, _MOST = 0.02, 2_000.0  # concentrations among which one is searched


def typical_votes(classes: int, *, plain: bool = False) -> Belief:
    """What is believed where nothing is stated, of private teachers or of ``plain`` ones (trained without privacy).

    For two classes votes are nearly unanimous: a private teacher is right with chance 0.8, and all share the items that
    are easy and those that are hard (``BetaVotes(a=1.6, b=0.4)``). Plain teachers are right as often as the majority of
    many such private teachers, and more unanimous. For more classes both are vague.

    >>> typical_votes(2)
    BetaVotes(a=1.6, b=0.4)
    """
    if classes > 2:
        return VAGUE_VOTES
    private = _beta(_TYPICAL, _CONCENTRATION)
    return _beta(round(_accuracy_of_many(private), 2), _PLAIN_CONCENTRATION) if plain else private


def stated_beliefs(
    *,
    teachers: int,
    classes: int,
    is_private: bool,
    prior: Any = None,
    plain_prior: Any = None,
    teacher_accuracy: Any = None,
    plain_accuracy: Any = None,
) -> tuple[Belief, Belief]:
    """How the teachers are believed to vote, and how teachers trained without privacy would; all arguments checked.

    Where only one of the two is stated, the other follows from it: plain teachers are taken to be as accurate as the
    majority of many private ones. A ``prior`` without a ``plain_prior`` stands for both.

    Args:
        is_private: whether the teachers promise anything; if not, what is stated of the teachers is of plain ones.

    Raises:
        InvalidArgument: a prior or an accuracy that is none, or both for the same teachers.
    """
    private = _stated("prior", prior, "teacher_accuracy", teacher_accuracy, teachers, classes)
    plain = _stated("plain_prior", plain_prior, "plain_accuracy", plain_accuracy, teachers, classes)
    if plain is None:
        if private is not None and (prior is not None or not is_private):
            plain = private
        elif private is not None and classes == 2:
            plain = _beta(min(_accuracy_of_many(private), 0.999), _PLAIN_CONCENTRATION)
        else:
            plain = private or typical_votes(classes, plain=True)
    if private is None:
        private = _less_accurate(plain) if plain_accuracy is not None and classes == 2 else typical_votes(classes)
    return private, plain


def check_any_prior(prior: Any, classes: int, name: str = "prior") -> Belief:
    """``prior`` as it is stored: one for two classes as it is, one or several for many classes as a tuple."""
    return prior if classes == 2 and isinstance(prior, MajorityPrior) else check_plurality_prior(prior, name)


def _stated(name: str, prior: Any, other: str, accuracy: Any, teachers: int, classes: int) -> Belief | None:
    if accuracy is None:
        if prior is None:
            return None
        return check_prior(prior, name) if classes == 2 else check_plurality_prior(prior, name)
    if prior is not None:
        raise InvalidArgument(other, f"None where {name} is given", accuracy, "State one of them.")
    several = isinstance(accuracy, Sequence) and not isinstance(accuracy, str)
    if several and len(accuracy) not in (1, 2):
        cure = "State the accuracy of one teacher, or a pair: of one teacher, and of the majority of all."
        raise InvalidArgument(other, "a number, or two", accuracy, cure)
    one, *together = (
        check_number(other, number, low=1 / classes, high=1.0, high_open=True, low_open=True)
        for number in (accuracy if several else [accuracy])
    )
    if not together or teachers < 3:
        usual = _PLAIN_CONCENTRATION if name == "plain_prior" else _CONCENTRATION
        return _of_concentration(one, usual if classes == 2 else _VAGUE_CONCENTRATION, classes)

    def too_unanimous(concentration: float) -> bool:
        return _accuracy_together(_of_concentration(one, concentration, classes), teachers, classes) <= together[0]

    if not too_unanimous(_LEAST):
        return _of_concentration(one, _LEAST, classes)
    concentration = last_true(too_unanimous, _LEAST, _MOST, tolerance=1e-3, geometric=True)
    return _of_concentration(one, concentration, classes)


def _of_concentration(accuracy: float, concentration: float, classes: int) -> Belief:
    if classes == 2:
        return _beta(accuracy, concentration)
    return (PluralityVotes(accuracy=accuracy, concentration=concentration),)


def _beta(accuracy: float, concentration: float) -> BetaVotes:
    """Each item has its own chance that a teacher is right: with this mean, and apart for small concentrations."""
    a, b = (max(round(part * concentration, 6), 1e-6) for part in (accuracy, 1 - accuracy))
    return BetaVotes(a=a, b=b)


def _accuracy_of_many(belief: Belief) -> float:
    """The accuracy that the majority of more and more teachers tends to."""
    return _accuracy_together(belief, 1_001)


def _less_accurate(plain: Belief) -> Belief:
    """Votes whose majority of many teachers is as accurate as one of the ``plain`` ones."""
    wanted = float(plain.law(1)[1]) if not isinstance(plain, tuple) else plain[0].accuracy

    def too_low(accuracy: float) -> bool:
        return _accuracy_of_many(_beta(accuracy, _CONCENTRATION)) <= wanted

    return _beta(last_true(too_low, 0.5, wanted, tolerance=1e-4), _CONCENTRATION)


def _accuracy_together(belief: Belief, teachers: int, classes: int = 2) -> float:
    """How often the majority of so many teachers is right, exactly; of many classes the plurality, by 4,000 draws."""
    if isinstance(belief, tuple):
        rng, (part,) = np.random.default_rng(0), belief
        counts = part.sample(votes=teachers, classes=classes, count=4_000, rng=rng)
        first = counts == counts.max(axis=1, keepdims=True)
        return float((first[:, 0] / first.sum(axis=1)).mean())
    law, ones = belief.law(teachers), np.arange(teachers + 1)
    return float(law @ ((2 * ones > teachers) + 0.5 * (2 * ones == teachers)) / law.sum())
