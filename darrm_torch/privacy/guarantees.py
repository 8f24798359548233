"""What someone promises: one (epsilon, delta) guarantee, or a whole privacy profile delta(epsilon)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from ..errors import InvalidArgument, check_integer, check_number

__all__ = ["PrivacyGuarantee", "PrivacyProfile"]


@dataclass(frozen=True, kw_only=True, order=False)
class PrivacyGuarantee:
    """(epsilon, delta)-differential privacy under adding or removing one record.

    Attributes:
        epsilon: in nats, ``>= 0``; ``math.inf`` means no privacy of its own.
        delta: in ``[0, 1]``.

    Raises:
        InvalidArgument: a number out of range, NaN or not a number.

    >>> PrivacyGuarantee(epsilon=0.0892, delta=1e-4)
    PrivacyGuarantee(epsilon=0.0892, delta=0.0001)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_number("epsilon", self.epsilon, low=0.0, high=math.inf))
        object.__setattr__(self, "delta", check_number("delta", self.delta, low=0.0, high=1.0))

    def __str__(self) -> str:
        return f"({shown(self.epsilon, 6)}, {shown(self.delta, 3)})-DP"


@dataclass(frozen=True, kw_only=True)
class PrivacyProfile:
    """A whole curve delta(epsilon): what is released is (epsilon, delta(epsilon))-DP for every epsilon at once.

    It is kept as what happened, not as numbers: so it can be composed, compared and stored without loss, and the curve
    is computed when it is asked for. Both directions, a record added and a record removed, are covered, and every
    number is an upper bound: the privacy loss distributions of `dp_accounting` are rounded pessimistically, and an
    allowance covers the rounding of floating point and of Fourier transforms. Where delta is so small that the
    allowance would dominate, Renyi accounting takes over. Make one with :meth:`from_dp_sgd`, :meth:`from_guarantee`,
    :meth:`non_private`, or :func:`darrm_torch.read_privacy`.

    Attributes:
        dp_sgd: ``(noise_multiplier, sample_rate, steps)``: Poisson-sampled Gaussian releases.
        promises: ``(guarantees, count)``: ``count`` releases, each of which keeps all of ``guarantees`` at once.
        reading: where it was read, if it was; no part of its value.

    >>> teacher = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
    >>> round(teacher.epsilon(1e-4), 4), round(teacher.delta(0.0), 4)
    (0.0751, 0.0126)
    >>> round(teacher.compose(11).epsilon(1e-4), 3)
    0.291
    """

    dp_sgd: tuple[tuple[float, float, int], ...] = ()
    promises: tuple[tuple[tuple[PrivacyGuarantee, ...], int], ...] = ()
    reading: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        steps: Counter[tuple[float, float]] = Counter()
        for noise, rate, count in self.dp_sgd:
            noise = check_number("noise_multiplier", noise, low=0.0, low_open=True, high_open=True)
            rate = check_number("sample_rate", rate, low=0.0, high=1.0, low_open=True)
            steps[noise, rate] += check_integer("steps", count, low=1)
        promises: Counter[tuple[PrivacyGuarantee, ...]] = Counter()
        for points, count in self.promises:
            useful = {point for point in points if math.isfinite(point.epsilon) and point.delta < 1.0}
            promises[tuple(sorted(useful, key=_order)) or _NOTHING] += check_integer("count", count, low=1)
        object.__setattr__(self, "dp_sgd", tuple((*run, steps[run]) for run in sorted(steps)))
        object.__setattr__(
            self, "promises", tuple(sorted(promises.items(), key=lambda promise: [*map(_order, promise[0])]))
        )

    @classmethod
    def from_guarantee(cls, guarantee: PrivacyGuarantee, *more: PrivacyGuarantee) -> PrivacyProfile:
        """One release that keeps ``guarantee``, and all of ``more`` at the same time.

        >>> PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.5)).compose(3).epsilon(0.0)
        1.5
        """
        points = tuple(check_guarantee("guarantee", one) for one in (guarantee, *more))
        return cls(promises=((points, 1),))

    @classmethod
    def from_dp_sgd(cls, history: Iterable[tuple[float, float, int]]) -> PrivacyProfile:
        """DP-SGD with Poisson sampling, in ``(noise_multiplier, sample_rate, steps)`` runs: an Opacus history.

        Raises:
            InvalidArgument: an empty history, or a number that is not finite or out of range.
        """
        runs = tuple(history)
        if not runs or any(len(run) != 3 for run in runs):
            raise InvalidArgument("history", "one or more (noise_multiplier, sample_rate, steps)", runs)
        return cls(dp_sgd=runs)

    @classmethod
    def non_private(cls) -> PrivacyProfile:
        """A release without privacy of its own.

        >>> PrivacyProfile.non_private().epsilon(1e-5)
        inf
        """
        return cls.from_guarantee(PrivacyGuarantee(epsilon=math.inf))

    @classmethod
    def weakest(cls, profiles: Iterable[PrivacyProfile | PrivacyGuarantee]) -> PrivacyProfile:
        """A profile that holds for each of ``profiles``, also after composition: what unlike teachers all keep.

        It has, run by run, the least noise, the largest sample rate and the most steps, and of promises the largest
        epsilon and delta. DP-SGD is monotone in all three: more noise and fewer steps are post-processing, and a
        smaller sample rate mixes the output with that of the data set without the record.

        >>> profiles = [PrivacyProfile.from_dp_sgd([run]) for run in ((1.0, 0.02, 9), (1.0, 0.01, 10))]
        >>> PrivacyProfile.weakest(profiles)
        PrivacyProfile(dp_sgd=((1.0, 0.02, 10),), promises=())
        >>> unlike = [PrivacyGuarantee(epsilon=0.1, delta=1e-5), PrivacyGuarantee(epsilon=0.3)]
        >>> PrivacyProfile.weakest(unlike).guarantees()
        (PrivacyGuarantee(epsilon=0.3, delta=1e-05),)
        """
        each = (one if isinstance(one, PrivacyProfile) else cls.from_guarantee(one) for one in profiles)
        together = list(dict.fromkeys(each))
        if not together:
            raise InvalidArgument("profiles", "one or more profiles", together)
        trained = [profile.dp_sgd for profile in together if profile.dp_sgd]
        if len({len(runs) for runs in trained}) > 1:  # unlike schedules: all steps as the weakest
            columns = [tuple(zip(*runs, strict=True)) for runs in trained]
            trained = [((min(noise), max(rate), sum(steps)),) for noise, rate, steps in columns]
        run_by_run = (zip(*runs, strict=True) for runs in zip(*trained, strict=True))
        dp_sgd = tuple((min(noise), max(rate), max(steps)) for noise, rate, steps in run_by_run)
        promises = together[0].promises
        if any(profile.promises != promises for profile in together):
            stated = [points[0] for profile in together for points, _ in profile.promises]
            worst = PrivacyGuarantee(epsilon=max(g.epsilon for g in stated), delta=max(g.delta for g in stated))
            promises = (((worst,), max(sum(count for _, count in profile.promises) for profile in together)),)
        return cls(dp_sgd=dp_sgd, promises=promises)

    @property
    def is_private(self) -> bool:
        """Whether it promises anything: a finite epsilon at some delta below 1."""
        return all(points != _NOTHING for points, _ in self.promises)

    def compose(self, other: PrivacyProfile | int) -> PrivacyProfile:
        """Both releases together, or this one ``other`` times: independent noise, each may depend on the ones before.

        Raises:
            InvalidArgument: a count below 1.
        """
        if isinstance(other, PrivacyProfile):
            return PrivacyProfile(dp_sgd=self.dp_sgd + other.dp_sgd, promises=self.promises + other.promises)
        times = check_integer("count", other, low=1)
        return PrivacyProfile(
            dp_sgd=tuple((noise, rate, steps * times) for noise, rate, steps in self.dp_sgd),
            promises=tuple((points, count * times) for points, count in self.promises),
        )

    def delta(self, epsilon: float) -> float:
        """The smallest delta in ``[0, 1]`` that is proven at ``epsilon``.

        Raises:
            InvalidArgument: ``epsilon`` negative, infinite or NaN.
        """
        epsilon = check_number("epsilon", epsilon, low=0.0, high_open=True)
        if not self.is_private:
            return 1.0
        stated = min((g.delta for g in self._stated() if g.epsilon <= epsilon), default=1.0)
        if stated == 0.0 or not self._is_computable:
            return stated
        return min(stated, _distribution(self.dp_sgd, self.promises).delta(epsilon))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon, in nats, that is proven at ``delta``; ``math.inf`` if there is none.

        Raises:
            InvalidArgument: ``delta`` outside ``[0, 1]`` or NaN.
        """
        delta = check_number("delta", delta, low=0.0, high=1.0)
        if delta == 1.0:
            return 0.0
        if not self.is_private:
            return math.inf
        stated = min((g.epsilon for g in self._stated() if g.delta <= delta), default=math.inf)
        if stated == 0.0 or delta == 0.0 or not self._is_computable:
            return stated
        return min(stated, _distribution(self.dp_sgd, self.promises).epsilon(delta))

    def guarantees(self, deltas: Sequence[float] | None = None) -> tuple[PrivacyGuarantee, ...]:
        """Points of the curve, all of which hold at once: what the optimizer takes as ``teacher``.

        Args:
            deltas: one point for each; when omitted, epsilon = 0 and three more, none of which follows from another.

        >>> [str(g) for g in PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)]).guarantees([1e-4])]
        ['(0.0751455, 0.0001)-DP']
        """
        if deltas is not None:
            return tuple(PrivacyGuarantee(epsilon=self.epsilon(delta), delta=delta) for delta in deltas)
        if not self.is_private:
            return _NOTHING
        if not self.dp_sgd and len(self.promises) == 1 and self.promises[0][1] == 1:
            return essential(self.promises[0][0])
        at_zero = self.delta(0.0)
        points = [PrivacyGuarantee(epsilon=0.0, delta=at_zero)]
        for fraction in _DEFAULT_POINTS:
            if math.isfinite(epsilon := self.epsilon(fraction * at_zero)):
                points.append(PrivacyGuarantee(epsilon=epsilon, delta=fraction * at_zero))
        return essential(points)

    @property
    def _is_computable(self) -> bool:
        # Whatever the epsilon, delta is at least the chance that one of the releases reveals everything: 1, but for
        # rounding, beyond the limit below.
        revealing = sum(-count * math.log1p(-points[0].delta) for points, count in self.promises)
        return revealing < 30 and all(min(g.epsilon for g in points) <= _LARGEST for points, _ in self.promises)

    def _stated(self) -> tuple[PrivacyGuarantee, ...]:
        """What the promises say without further computation: each point of a single one, and simple composition."""
        if self.dp_sgd:
            return ()
        if len(self.promises) == 1 and self.promises[0][1] == 1:
            return self.promises[0][0]
        epsilon = sum((count * Fraction(points[0].epsilon) for points, count in self.promises), Fraction(0))
        delta = sum((count * Fraction(points[0].delta) for points, count in self.promises), Fraction(0))
        return (PrivacyGuarantee(epsilon=round_up(epsilon), delta=min(1.0, round_up(delta))),)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the reading, ready for JSON; :meth:`from_dict` gives it back exactly."""
        return {
            "dp_sgd": [list(run) for run in self.dp_sgd],
            "promises": [
                {
                    "guarantees": [[str(g.epsilon) if g.epsilon == math.inf else g.epsilon, g.delta] for g in points],
                    "count": count,
                }
                for points, count in self.promises
            ],
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> PrivacyProfile:
        """The profile that :meth:`to_dict` described.

        Raises:
            InvalidArgument: not such a description.

        >>> profile = PrivacyProfile.from_dp_sgd([(1.0, 0.01, 100)]).compose(PrivacyProfile.non_private())
        >>> PrivacyProfile.from_dict(profile.to_dict()) == profile
        True
        """
        try:
            dp_sgd = tuple((noise, rate, steps) for noise, rate, steps in value["dp_sgd"])
            promises = tuple(
                (
                    tuple(PrivacyGuarantee(epsilon=math.inf if e == "inf" else e, delta=d) for e, d in p["guarantees"]),
                    p["count"],
                )
                for p in value["promises"]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument("profile", "a description written by PrivacyProfile.to_dict", value) from error
        return cls(dp_sgd=dp_sgd, promises=promises)


def check_guarantee(name: str, value: Any, *, expected: str = "a PrivacyGuarantee", cure: str = "") -> PrivacyGuarantee:
    """``value`` itself, or :class:`InvalidArgument` when it is no guarantee; says how a pair of numbers becomes one."""
    if isinstance(value, PrivacyGuarantee):
        return value
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(one, int | float) for one in value):
        cure = f"Write PrivacyGuarantee(epsilon={value[0]!r}, delta={value[1]!r})"
    raise InvalidArgument(name, expected, value, cure)


def follows(weak: PrivacyGuarantee, strong: PrivacyGuarantee) -> bool:
    """Whether whoever keeps ``strong`` keeps ``weak``: it promises nothing, or neither of its numbers is smaller."""
    nothing = weak.epsilon == math.inf or weak.delta == 1.0
    return nothing or (weak.epsilon >= strong.epsilon and weak.delta >= strong.delta)


def essential(points: Iterable[PrivacyGuarantee]) -> tuple[PrivacyGuarantee, ...]:
    """Of guarantees that hold at once those that say something: none follows from another by itself."""
    kept: list[PrivacyGuarantee] = []
    for point in points:
        if not any(follows(point, other) for other in kept):
            kept = [other for other in kept if not follows(other, point)] + [point]
    return tuple(kept)


def shown(bound: float, digits: int = 4) -> str:
    """An upper bound in decimals, rounded up, so that what is read is one too (to one part in 10**12).

    >>> shown(0.25431), shown(0.1), shown(math.inf), shown(3 * 1e-4)
    ('0.2544', '0.1', 'inf', '0.0003')
    """
    if not math.isfinite(bound) or bound == 0:
        return f"{bound:g}"
    with localcontext(Context(prec=40)):  # whatever the caller's own is
        exact = Decimal(bound) * (1 - Decimal("1e-12"))
        unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
        return f"{float(exact.quantize(unit, rounding=ROUND_CEILING)):.{digits}g}"


def round_up(value: Fraction) -> float:
    """The smallest float that is no less than ``value``, which may be infinity."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


_NOTHING = (PrivacyGuarantee(epsilon=math.inf),)


def _order(guarantee: PrivacyGuarantee) -> tuple[float, float]:
    return guarantee.delta, guarantee.epsilon


# --- privacy loss distributions -----------------------------------------------------------------------------------

_DEFAULT_POINTS = (0.5, 0.1, 0.003)  # of delta(0): over 95 % of the gain of eight points at K = 11
_CELLS = 16  # grid cells per standard deviation of one release: the variance grows by less than 1 / (4 * 16**2)
_MOST_CELLS = 2**17
_FINEST = 1e-6  # a finer grid would show the rounding of the curve
_TAIL = 1e-15  # probability that dp_accounting may move to an infinite loss, per composition
_LARGEST = 300.0  # e^(2 epsilon) is a float; what is larger is only added up
_UNIT = 2.0**-53

_DpSgd = tuple[tuple[float, float, int], ...]
_Promises = tuple[tuple[tuple[PrivacyGuarantee, ...], int], ...]


@dataclass(frozen=True)
class _Distribution:
    """The composed privacy loss, one probability mass function for each direction."""

    pmfs: tuple[Any, ...]
    allowance: float
    dp_sgd: _DpSgd | None  # when Renyi accounting can help out

    def delta(self, epsilon: float) -> float:
        return min(1.0, max(float(pmf.get_delta_for_epsilon(epsilon)) for pmf in self.pmfs) + self.allowance)

    def epsilon(self, delta: float) -> float:
        epsilon, slack = math.inf, 1e-12
        if delta > self.allowance:
            with np.errstate(over="ignore"):  # divides by the mass of the far tail, which may be next to nothing
                epsilon = max(float(pmf.get_epsilon_for_delta(delta - self.allowance)) for pmf in self.pmfs)
            while math.isfinite(epsilon) and self.delta(epsilon) > delta:  # it adds up the losses, with rounding
                epsilon, slack = epsilon + slack * max(1.0, epsilon), 2 * slack
        if self.dp_sgd and delta < 16 * self.allowance:
            epsilon = min(epsilon, _renyi_epsilon(self.dp_sgd, delta))
        return epsilon


@lru_cache(maxsize=128)
def _distribution(dp_sgd: _DpSgd, promises: _Promises) -> _Distribution:
    from dp_accounting.pld import pld_pmf

    step = _grid_step(dp_sgd, promises)
    pmfs, widest = [], 1
    for added in (False, True):
        parts = [(_dp_sgd_step(noise, rate, step, added), count) for noise, rate, count in dp_sgd]
        parts += [(_promise(points, step), count) for points, count in promises]
        widest = max(widest, *(pmf.size for pmf, _ in parts))
        composed = [pmf.self_compose(count, _TAIL) if count > 1 else pmf for pmf, count in parts]
        pmfs.append(reduce(lambda a, b: pld_pmf.compose_pmfs(a, b, _TAIL), composed))
    # Rounding, as an error of delta at any epsilon. One release: its curve is off by a few units, and so is each of its
    # masses, `widest` in all; n releases, exchanged one by one, n times that. The n-th power of a discrete Fourier
    # transform of length N is off by a few n log2(N) units in the 2-norm (Higham 2002, Theorem 24.2), a sum over its N
    # entries by sqrt(N) times that. Reading off adds N units. "A few" is at most 16.
    releases = sum(count for *_, count in dp_sgd) + sum(count for _, count in promises) + len(dp_sgd) + len(promises)
    cells = max(pmf.size for pmf in pmfs)
    units = 16 * (releases * (widest + math.log2(2 * cells) * math.sqrt(cells)) + cells)
    return _Distribution(tuple(pmfs), units * _UNIT, dp_sgd if not promises else None)


def _renyi_epsilon(dp_sgd: _DpSgd, delta: float) -> float:
    """From the Renyi accountant of `dp_accounting`: looser, but without sums in which a tiny delta drowns."""
    epsilon = float(_renyi_accountant(dp_sgd).get_epsilon(delta))
    # Each step's divergence is the logarithm of a number near 1, known to about 1e-15. Where that decides, the
    # accountant says 0: no answer.
    rounding = 1e-12 * sum(steps for *_, steps in dp_sgd)
    return epsilon + rounding if epsilon > rounding else math.inf


@lru_cache(maxsize=128)
def _renyi_accountant(dp_sgd: _DpSgd) -> Any:
    from dp_accounting import dp_event, rdp

    accountant = rdp.RdpAccountant()
    for noise, rate, steps in dp_sgd:
        accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
    return accountant


def _grid_step(dp_sgd: _DpSgd, promises: _Promises) -> float:
    """The distance of grid points; any is sound, a finer one is tighter."""
    epsilons = {g.epsilon for points, _ in promises for g in points if 0 < g.epsilon <= _LARGEST}
    if not dp_sgd and len(epsilons) < 2:
        return max(epsilons, default=1.0)  # the losses are then exactly on the grid
    variance, widest, releases = 0.0, 0.0, 0
    for noise, rate, count in dp_sgd:
        # Plain quadrature of the loss of one step over its noise.
        x = np.linspace(-12 * noise, 1 + 12 * noise, 20001)
        stay = math.log1p(-rate) if rate < 1 else -math.inf
        loss = np.logaddexp(stay, math.log(rate) + (x - 0.5) / noise**2)
        weight = np.exp(-0.5 * (x / noise) ** 2)
        weight /= weight.sum()
        variance += count * float(weight @ (loss - weight @ loss) ** 2)
        widest, releases = max(widest, float(np.ptp(loss))), releases + count
    for points, count in promises:
        largest = max(g.epsilon for g in points if g.epsilon <= _LARGEST)
        variance += count * largest**2
        widest, releases = max(widest, 2 * largest), releases + count
    return max(math.sqrt(variance / releases) / _CELLS, 2 * widest / _MOST_CELLS, _FINEST)


@lru_cache(maxsize=128)
def _dp_sgd_step(noise: float, rate: float, step: float, added: bool) -> Any:
    """One Poisson-sampled Gaussian release, a record added or removed, as `dp_accounting` discretises it."""
    from dp_accounting.pld import pld_pmf, privacy_loss_mechanism

    direction = privacy_loss_mechanism.AdjacencyType.ADD if added else privacy_loss_mechanism.AdjacencyType.REMOVE
    loss = privacy_loss_mechanism.GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=direction)
    bounds = loss.connect_dots_bounds()
    low, high = math.floor(bounds.epsilon_lower / step), math.ceil(bounds.epsilon_upper / step)
    curve = loss.get_delta_for_epsilon(np.arange(low, high + 1) * step)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, low, high, curve)


def _promise(points: tuple[PrivacyGuarantee, ...], step: float) -> Any:
    """The worst release that keeps all ``points``, the same in both directions.

    In ``t = e^epsilon`` its curve is convex, falls from 1 at t = 0 and keeps the points and their mirror images
    ``(e^-epsilon, 1 - (1 - delta) e^-epsilon)``: it is their lower convex hull. For one point that is randomised
    response with a revealing part (Kairouz, Oh, Viswanath 2015).
    """
    from dp_accounting.pld import pld_pmf

    finite = [(g.epsilon, g.delta) for g in points if g.epsilon <= _LARGEST]
    corners = {math.exp(e): d for e, d in sorted(finite, reverse=True)}
    corners |= {math.exp(-e): 1 - (1 - d) * math.exp(-e) for e, d in finite if e > 0}
    hull = [(0.0, 1.0)]
    for t, y in sorted(corners.items()):
        if y >= hull[-1][1]:
            continue
        while len(hull) > 1:
            (t0, y0), (t1, y1) = hull[-2:]
            if (y1 - y0) / (t1 - t0) < (y - y1) / (t - t1):
                break
            hull.pop()
        hull.append((t, y))
    losses = [sign * e / step for e, _ in finite for sign in (-1, 1)]
    rounded = np.array(sorted({int(side(loss)) for loss in losses for side in (math.floor, math.ceil)}))
    curve = np.interp(np.exp(rounded * step), [t for t, _ in hull], [y for _, y in hull])
    curve = np.maximum(curve, 0.0)  # interpolation may end a unit below it
    return pld_pmf.create_pmf_pessimistic_connect_dots(step, rounded, curve)
