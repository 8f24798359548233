"""`PrivacyProfile`: the whole privacy curve delta(epsilon) of one or more releases."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ..arguments import checked
from ..errors import InvalidArgument, check_integer, check_number
from ..reprs import short_repr
from .fixed_batches import fixed_batches_curve
from .guarantees import LARGEST_EPSILON, PrivacyGuarantee, check_guarantee, drop_implied, round_up
from .largest import largest_cost
from .loss_distributions import DpSgdRun, composed_epsilon, composed_law, run_parts
from .units import MOST_RECORDS, RECORD, ProtectedUnit, common_unit, group_guarantee

__all__ = ["PrivacyProfile", "as_profile", "as_profiles", "largest_of"]

_DEFAULT_POINTS = (0.5, 0.1, 0.003)  # fractions of delta(0): over 95 % of the gain of eight points at K = 11
_NOTHING = (PrivacyGuarantee(epsilon=math.inf),)


@dataclass(frozen=True, kw_only=True)
class PrivacyProfile:
    """A whole privacy curve: the releases are (epsilon, delta(epsilon))-DP for every epsilon at once.

    A profile stores the releases themselves, not numbers computed from them. So profiles can be composed, compared and
    saved exactly, and the curve is computed on demand. It covers neighbours with one record more and with one record
    less, or what ``unit`` says. Every epsilon and delta is an upper bound: the privacy loss distributions of
    `dp_accounting` are rounded pessimistically, and an allowance covers the rounding errors of floating point and of
    Fourier transforms. If delta is so small that the allowance would dominate, Renyi accounting gives the epsilon.
    Create a profile with :meth:`from_dp_sgd`, :meth:`from_guarantee` or :func:`darrm_torch.read_privacy`.

    Attributes:
        dp_sgd: runs of Poisson-sampled Gaussian releases, each ``(noise_multiplier, sample_rate, steps)``, with the
            records of a unit as a fourth number where there are several.
        promises: ``(guarantees, count)`` entries: ``count`` releases, each with all of ``guarantees`` at once.
        reading: what :func:`darrm_torch.read_privacy` read, if it made the profile; ignored by comparisons.
        unlike: the profiles, one for each teacher, that :meth:`weakest` made this one from, if they differ.
        together: whether it is about all teachers of an ensemble as one release, such as those that won a tuning.
        unit: what the curve protects, a record unless :meth:`for_unit` or :meth:`for_replacement` made the profile;
            ignored by comparisons.

    Raises:
        InvalidArgument: a number is out of range.

    >>> teacher = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
    >>> round(teacher.epsilon(1e-4), 4), round(teacher.delta(0.0), 4)
    (0.0751, 0.0126)
    >>> round(teacher.compose(11).epsilon(1e-4), 3)
    0.291
    """

    dp_sgd: tuple[DpSgdRun, ...] = ()
    promises: tuple[tuple[tuple[PrivacyGuarantee, ...], int], ...] = ()
    reading: Any = field(default=None, compare=False, repr=False)
    unlike: tuple[PrivacyProfile, ...] = field(default=(), repr=False)
    unit: ProtectedUnit = field(default=RECORD, compare=False, repr=False)
    together: bool = field(default=False, repr=False)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        steps: Counter[tuple[float, float, int]] = Counter()
        for noise, rate, count, records in map(run_parts, self.dp_sgd):
            noise = check_number("noise_multiplier", noise, low=0.0, low_open=True, high_open=True)
            rate = check_number("sample_rate", rate, low=0.0, high=1.0, low_open=True)
            records = check_integer("records_per_unit", records, low=1, high=MOST_RECORDS)
            steps[noise, rate, records] += check_integer("steps", count, low=1)
        promises: Counter[tuple[PrivacyGuarantee, ...]] = Counter()
        for points, count in self.promises:
            useful = {point for point in points if math.isfinite(point.epsilon) and point.delta < 1.0}
            promises[tuple(sorted(useful, key=_order)) or _NOTHING] += check_integer("count", count, low=1)
        runs = (_run(noise, rate, steps[noise, rate, records], records) for noise, rate, records in sorted(steps))
        listed = sorted(promises.items(), key=lambda promise: [*map(_order, promise[0])])
        object.__setattr__(self, "dp_sgd", tuple(runs))
        object.__setattr__(self, "promises", tuple(listed))

    @classmethod
    def from_guarantee(cls, guarantee: PrivacyGuarantee, *more: PrivacyGuarantee) -> PrivacyProfile:
        """One release for which ``guarantee`` holds, and all of ``more`` at the same time.

        Raises:
            InvalidArgument: an argument is not a :class:`PrivacyGuarantee`.

        >>> PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.5)).compose(3).epsilon(0.0)
        1.5
        """
        points = tuple(check_guarantee("guarantee", one) for one in (guarantee, *more))
        return cls(promises=((points, 1),))

    @classmethod
    @checked
    def from_dp_sgd(cls, history: Iterable[tuple[float, float, int]]) -> PrivacyProfile:
        """DP-SGD with Poisson sampling, from an Opacus history: runs ``(noise_multiplier, sample_rate, steps)``.

        Raises:
            InvalidArgument: the history is empty, or a number is not finite or out of range.
        """
        runs = tuple(history)
        if not runs or any(not isinstance(run, Sequence) or len(run) != 3 for run in runs):
            raise InvalidArgument("history", "one or more runs (noise_multiplier, sample_rate, steps)", runs)
        return cls(dp_sgd=runs)

    @classmethod
    @checked
    def from_fixed_batches(
        cls, *, noise_multiplier: float, records: int, batch_size: int, steps: int
    ) -> PrivacyProfile:
        """DP-SGD on batches of fixed size, drawn without replacement; for neighbours that replace one record.

        Each step is bounded by the curve of Balle, Barthe and Gaboardi (2018, Theorem 11), and the steps are composed
        along it; where the Renyi accounting of `dp_accounting` is smaller, that holds. Replacing a record moves a sum
        of clipped gradients by up to twice the clipping bound, to which the noise multiplier refers.

        Args:
            noise_multiplier: standard deviation of the noise on the sum of gradients, over the clipping bound.
            records: how many records there are; public, as for all neighbours that replace one.
            batch_size: how many of them are in each batch, drawn uniformly and independently of other steps. Batches
                of one shuffled pass over the data are not.
            steps: the number of batches.

        Raises:
            InvalidArgument: a number is out of range.

        >>> teacher = PrivacyProfile.from_fixed_batches(noise_multiplier=4.0, records=5000, batch_size=100, steps=500)
        >>> round(teacher.epsilon(1e-5), 2), str(teacher.unit)
        (1.05, 'replacing one record')
        """
        noise = check_number("noise_multiplier", noise_multiplier, low=0.0, high=2.0**20, low_open=True)
        records = check_integer("records", records, low=1, high=2**53)
        size = check_integer("batch_size", batch_size, low=1, high=records)
        curve = fixed_batches_curve(noise, size / records, check_integer("steps", steps, low=1, high=2**53))
        points = [PrivacyGuarantee(epsilon=epsilon, delta=delta) for delta, epsilon in curve]
        return replace(
            cls.from_guarantee(*points) if points else cls.non_private(), unit=ProtectedUnit(neighbours="replace-one")
        )

    def for_unit(self, name: str, *, records: int) -> PrivacyProfile:
        """What these releases promise to a unit, such as a patient, with at most ``records`` records in these data.

        DP-SGD: exact, for a step in which any number of its records may be in the batch (theory: units). Guarantees:
        group privacy, ``(g epsilon, (1 + e^epsilon + ... + e^((g - 1) epsilon)) delta)``.

        Args:
            name: what a unit is.
            records: g, how many records it has at most in the data of this teacher.

        Raises:
            InvalidArgument: a value out of range, or a profile that is for units already or for a replacement.

        >>> teacher = PrivacyProfile.from_dp_sgd([(4.0, 0.01, 1000)])
        >>> [round(teacher.for_unit("patient", records=g).epsilon(1e-5), 2) for g in (1, 2, 4)]
        [0.27, 0.58, 1.24]
        """
        if self.unit != RECORD:
            cure = "Call for_unit first, for_replacement after it."
            raise InvalidArgument("profile", "one that protects single records, added or removed", str(self.unit), cure)
        unit = ProtectedUnit(name=name, records=records)
        promises = tuple((tuple(group_guarantee(g, unit.records) for g in points), n) for points, n in self.promises)
        return replace(
            self,
            dp_sgd=tuple((*run_parts(run)[:3], run_parts(run)[3] * unit.records) for run in self.dp_sgd),
            promises=promises,
            unlike=tuple(profile.for_unit(name, records=records) for profile in self.unlike),
            unit=unit,
        )

    def for_replacement(self) -> PrivacyProfile:
        """What these releases promise for neighbours that *replace* one unit, as one release.

        Through the data set without the unit, ``delta(2 epsilon) <= (1 + e^epsilon) delta_add_or_remove(epsilon)``.

        >>> promise = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.5)).for_replacement()
        >>> promise.epsilon(0.0), str(promise.unit)
        (1.0, 'replacing one record')
        """
        if self.unit.neighbours == "replace-one":
            return self
        points = []
        for delta in (0.0, *(10.0 ** (-power / 2) for power in range(1, 41))):
            epsilon = self.epsilon(delta)
            if epsilon < 300.0:
                grown = (1 + math.exp(epsilon)) * delta * (1 + 2.0**-50)
                points.append(PrivacyGuarantee(epsilon=2 * epsilon, delta=min(1.0, grown)))
        replaced = self.from_guarantee(*points) if points else self.non_private()
        unit = replace(self.unit, neighbours="replace-one")
        return replace(replaced, reading=self.reading, unit=unit, together=self.together)

    @classmethod
    def non_private(cls) -> PrivacyProfile:
        """A release without any privacy guarantee.

        >>> PrivacyProfile.non_private().epsilon(1e-5)
        inf
        """
        return cls.from_guarantee(PrivacyGuarantee(epsilon=math.inf))

    @classmethod
    @checked
    def weakest(cls, profiles: Iterable[PrivacyProfile | PrivacyGuarantee]) -> PrivacyProfile:
        """A profile that holds for each of ``profiles``, also after composition: a common bound for unlike teachers.

        It has, run by run, the least noise, the largest sample rate, the most steps and the most records of a unit of
        all ``profiles``, and the largest epsilon and delta of their guarantees. Its own :meth:`delta` and
        :meth:`epsilon` are the largest of any of ``profiles``, which may be less. DP-SGD is monotone in all four
        numbers: more noise and fewer steps are post-processing, a smaller sample rate mixes the output with that of the
        data set without the record, and fewer records leave some out.

        Raises:
            InvalidArgument: ``profiles`` is empty, an element is not a guarantee or a profile, or they protect unlike
                units.

        >>> profiles = [PrivacyProfile.from_dp_sgd([run]) for run in ((1.0, 0.02, 9), (1.0, 0.01, 10))]
        >>> PrivacyProfile.weakest(profiles)
        PrivacyProfile(dp_sgd=((1.0, 0.02, 10),), promises=())
        >>> unlike = [PrivacyGuarantee(epsilon=0.1, delta=1e-5), PrivacyGuarantee(epsilon=0.3)]
        >>> PrivacyProfile.weakest(unlike).guarantees()
        (PrivacyGuarantee(epsilon=0.3, delta=1e-05),)
        """
        several = tuple(as_profile("profiles", profile) for profile in profiles)
        distinct = list(dict.fromkeys(several))
        if not distinct:
            raise InvalidArgument("profiles", "one or more guarantees or profiles", distinct)
        unit = common_unit(profile.unit for profile in several)
        trained = [tuple(map(run_parts, profile.dp_sgd)) for profile in distinct if profile.dp_sgd]
        if len({len(runs) for runs in trained}) > 1:  # schedules of unlike length: every step counts as the weakest
            columns = [tuple(zip(*runs, strict=True)) for runs in trained]
            trained = [((min(noise), max(rate), sum(steps), max(group)),) for noise, rate, steps, group in columns]
        run_by_run = (zip(*runs, strict=True) for runs in zip(*trained, strict=True))
        dp_sgd = tuple((min(noise), max(rate), max(steps), max(group)) for noise, rate, steps, group in run_by_run)
        promises = distinct[0].promises
        if any(profile.promises != promises for profile in distinct):
            stated = [points[0] for profile in distinct for points, _ in profile.promises]
            worst = PrivacyGuarantee(epsilon=max(g.epsilon for g in stated), delta=max(g.delta for g in stated))
            promises = (((worst,), max(sum(count for _, count in profile.promises) for profile in distinct)),)
        unlike, together = several if len(distinct) > 1 else (), any(profile.together for profile in several)
        return cls(dp_sgd=dp_sgd, promises=promises, unlike=unlike, unit=unit, together=together)

    @property
    def is_private(self) -> bool:
        """Whether some epsilon is finite at some delta below 1."""
        return all(points != _NOTHING for points, _ in self.promises)

    def compose(self, other: PrivacyProfile | int) -> PrivacyProfile:
        """Adaptive composition with ``other``, or of ``other`` releases like this one, with independent randomness.

        Raises:
            InvalidArgument: the count is below 1, or the two protect unlike units.
        """
        if isinstance(other, PrivacyProfile):
            unit, together = common_unit((self.unit, other.unit)), self.together or other.together
            runs, promises = self.dp_sgd + other.dp_sgd, self.promises + other.promises
            return PrivacyProfile(dp_sgd=runs, promises=promises, unit=unit, together=together)
        times = check_integer("other", other, low=1, cure="It is a PrivacyProfile, or how many releases.")
        if times == 1:
            return self
        runs = tuple((noise, rate, steps * times, g) for noise, rate, steps, g in map(run_parts, self.dp_sgd))
        promises = tuple((points, count * times) for points, count in self.promises)
        return PrivacyProfile(dp_sgd=runs, promises=promises, unit=self.unit, together=self.together)

    def delta(self, epsilon: float) -> float:
        """The smallest proven delta at ``epsilon``, in ``[0, 1]``.

        Raises:
            InvalidArgument: ``epsilon`` is negative, infinite or NaN.
        """
        epsilon = check_number("epsilon", epsilon, low=0.0, high_open=True)
        if not self.is_private:
            return 1.0
        if self.unlike:
            return largest_of(self.unlike, lambda profile: profile.delta(epsilon))
        stated = min((g.delta for g in self._stated() if g.epsilon <= epsilon), default=1.0)
        if stated == 0.0 or not self._is_computable:
            return stated
        return min(stated, composed_law(self.dp_sgd, self.promises).delta(epsilon))

    def epsilon(self, delta: float) -> float:
        """The smallest proven epsilon at ``delta``, in nats; ``math.inf`` if there is none.

        Raises:
            InvalidArgument: ``delta`` is outside ``[0, 1]`` or NaN.
        """
        delta = check_number("delta", delta, low=0.0, high=1.0)
        if delta == 1.0:
            return 0.0
        if not self.is_private:
            return math.inf
        if self.unlike:
            return largest_of(self.unlike, lambda profile: profile.epsilon(delta))
        stated = min((g.epsilon for g in self._stated() if g.delta <= delta), default=math.inf)
        if stated == 0.0 or delta == 0.0 or not self._is_computable:
            return stated
        return min(stated, composed_epsilon(self.dp_sgd, self.promises, delta))

    @checked
    def guarantees(self, deltas: Sequence[float] | None = None) -> tuple[PrivacyGuarantee, ...]:
        """Points of the curve, all of which hold at once. The optimizer uses them for a ``teacher`` with a profile.

        Args:
            deltas: the deltas of the points. If omitted: the point at epsilon = 0 and up to three more, none of which
                another one implies.

        >>> [str(g) for g in PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)]).guarantees([1e-4])]
        ['(0.0751455, 0.0001)-DP']
        """
        if deltas is not None:
            return tuple(PrivacyGuarantee(epsilon=self.epsilon(delta), delta=delta) for delta in deltas)
        if not self.is_private:
            return _NOTHING
        if not self.dp_sgd and len(self.promises) == 1 and self.promises[0][1] == 1:
            return drop_implied(self.promises[0][0])
        at_zero = self.delta(0.0)
        points = [PrivacyGuarantee(epsilon=0.0, delta=at_zero)]
        for fraction in _DEFAULT_POINTS:
            if math.isfinite(epsilon := self.epsilon(fraction * at_zero)):
                points.append(PrivacyGuarantee(epsilon=epsilon, delta=fraction * at_zero))
        return drop_implied(points)

    @property
    def _is_computable(self) -> bool:
        # At every epsilon, delta is at least the probability that one of the releases reveals everything. Beyond the
        # limit below that is 1 up to rounding.
        revealing = sum(-count * math.log1p(-points[0].delta) for points, count in self.promises)
        return revealing < 30 and all(min(g.epsilon for g in points) <= LARGEST_EPSILON for points, _ in self.promises)

    def stated_sum(self) -> tuple[Fraction, Fraction] | None:
        """Simple composition of the first guarantees, exactly: (epsilon, delta); None for DP-SGD and no privacy."""
        if self.dp_sgd or not self.is_private:
            return None
        epsilon = sum((count * Fraction(points[0].epsilon) for points, count in self.promises), Fraction(0))
        return epsilon, sum((count * Fraction(points[0].delta) for points, count in self.promises), Fraction(0))

    def _stated(self) -> tuple[PrivacyGuarantee, ...]:
        """Guarantees that need no loss distribution: the points of a single promise, or simple composition."""
        if self.dp_sgd:
            return ()
        if len(self.promises) == 1 and self.promises[0][1] == 1:
            return self.promises[0][0]
        if not (total := self.stated_sum()):
            return ()
        epsilon, delta = total
        return (PrivacyGuarantee(epsilon=round_up(epsilon), delta=min(1.0, round_up(delta))),)

    def to_dict(self) -> dict[str, Any]:
        """The profile without its reading, ready for JSON; :meth:`from_dict` restores it exactly."""
        more: dict[str, Any] = {"unlike": [one.to_dict() for one in self.unlike]} if self.unlike else {}
        more |= {"together": True} if self.together else {}
        return {
            "dp_sgd": [list(run) for run in self.dp_sgd],
            "promises": [
                {
                    "guarantees": [[str(g.epsilon) if g.epsilon == math.inf else g.epsilon, g.delta] for g in points],
                    "count": count,
                }
                for points, count in self.promises
            ],
        } | (more if self.unit == RECORD else {**more, "unit": self.unit.to_dict()})

    @classmethod
    @checked
    def from_dict(cls, value: Mapping[str, Any]) -> PrivacyProfile:
        """The profile that :meth:`to_dict` wrote.

        Raises:
            InvalidArgument: ``value`` does not have that form.

        >>> profile = PrivacyProfile.from_dp_sgd([(1.0, 0.01, 100)]).compose(PrivacyProfile.non_private())
        >>> PrivacyProfile.from_dict(profile.to_dict()) == profile
        True
        """
        try:
            dp_sgd = tuple(_run(*run) for run in value["dp_sgd"])
            promises = tuple(
                (
                    tuple(PrivacyGuarantee(epsilon=math.inf if e == "inf" else e, delta=d) for e, d in p["guarantees"]),
                    p["count"],
                )
                for p in value["promises"]
            )
            unlike = tuple(map(cls.from_dict, value.get("unlike", ())))
            unit = ProtectedUnit.from_dict(value["unit"]) if "unit" in value else RECORD
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument("profile", "a dictionary written by PrivacyProfile.to_dict", value) from error
        return cls(dp_sgd=dp_sgd, promises=promises, unlike=unlike, unit=unit, together=bool(value.get("together")))


def _run(noise: float, rate: float, steps: int, records: int = 1) -> DpSgdRun:
    return (noise, rate, steps) if records == 1 else (noise, rate, steps, records)


def largest_of(profiles: Iterable[PrivacyProfile], cost: Callable[[PrivacyProfile], float]) -> float:
    """The largest ``cost`` of any of ``profiles``: an epsilon or a delta."""
    return largest_cost(sorted(set(profiles), key=lambda one: (one.dp_sgd, str(one.promises))), cost, _weakest)


_weakest = lru_cache(maxsize=1024)(lambda profiles: replace(PrivacyProfile.weakest(profiles), unlike=()))


def as_profile(name: str, promise: Any) -> PrivacyProfile:
    """One promise as a profile: ``promise`` is a guarantee or a profile.

    Raises:
        InvalidArgument: ``promise`` is anything else; the message calls it ``name``.
    """
    if isinstance(promise, PrivacyProfile):
        return promise
    expected = "a PrivacyGuarantee or a PrivacyProfile"
    return PrivacyProfile.from_guarantee(check_guarantee(name, promise, expected=expected))


def as_profiles(name: str, promises: Any) -> tuple[PrivacyProfile, ...]:
    """A sequence of promises, one for each teacher, as profiles; messages call it ``name``.

    Raises:
        InvalidArgument: ``promises`` is not a sequence, is empty, or has an element of another type.
    """
    if not isinstance(promises, Sequence) or isinstance(promises, str) or not promises:
        cure = "Several guarantees of one teacher are PrivacyProfile.from_guarantee(first, second, ...)"
        raise InvalidArgument(name, "a sequence with one guarantee or profile for each teacher", promises, cure)
    return tuple(as_profile(f"{name}[{place}]", promise) for place, promise in enumerate(promises))


def _order(guarantee: PrivacyGuarantee) -> tuple[float, float]:
    return guarantee.delta, guarantee.epsilon
