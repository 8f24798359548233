"""`PrivacyGuarantee`, one (epsilon, delta) pair, and helpers for such values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from fractions import Fraction
from typing import Any, TypeVar

from ..arguments import validate
from ..errors import InvalidArgument

__all__ = ["PrivacyGuarantee"]


_Class = TypeVar("_Class", bound=type)
LARGEST_EPSILON = 300.0  # e^(2 epsilon) is finite; larger epsilons are only added up
_ALARMING = 10.0  # beyond that the odds of a record may change 22,000-fold


def _built_by_name(kind: _Class) -> _Class:
    """Refuse positional arguments in a sentence: two numbers in a row are easily exchanged."""
    build = kind.__init__  # type: ignore[misc]

    @functools.wraps(build)
    def build_by_name(self: Any, *numbers: Any, **named: Any) -> None:
        if numbers:
            cure = "Write PrivacyGuarantee(epsilon=..., delta=...)."
            raise InvalidArgument("epsilon and delta", "given by name", numbers, cure)
        build(self, **named)

    kind.__init__ = build_by_name  # type: ignore[misc]
    return kind


@_built_by_name
@dataclass(frozen=True, kw_only=True, order=False)
class PrivacyGuarantee:
    """(epsilon, delta)-differential privacy under adding or removing one record.

    Attributes:
        epsilon: in nats, ``>= 0``; ``math.inf`` means no privacy.
        delta: in ``[0, 1]``.

    Raises:
        InvalidArgument: a number is out of range, or a value is NaN or not a number.

    >>> PrivacyGuarantee(epsilon=0.0892, delta=1e-4)
    PrivacyGuarantee(epsilon=0.0892, delta=0.0001)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        validate(self, "epsilon", low=0.0)
        validate(self, "delta", low=0.0, high=1.0)

    def __str__(self) -> str:
        return f"({format_bound(self.epsilon, 6)}, {format_bound(self.delta, 3)})-DP"


def check_guarantee(name: str, value: Any, *, expected: str = "a PrivacyGuarantee", cure: str = "") -> PrivacyGuarantee:
    """``value``, if it is a guarantee, otherwise :class:`InvalidArgument`; the message shows how to convert a pair."""
    if isinstance(value, PrivacyGuarantee):
        return value
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(one, int | float) for one in value):
        cure = f"Write PrivacyGuarantee(epsilon={value[0]!r}, delta={value[1]!r})"
    raise InvalidArgument(name, expected, value, cure)


def implied_by(weak: PrivacyGuarantee, strong: PrivacyGuarantee) -> bool:
    """Whether ``strong`` implies ``weak``: ``weak`` guarantees nothing, or neither of its numbers is smaller."""
    nothing = weak.epsilon == math.inf or weak.delta == 1.0
    return nothing or (weak.epsilon >= strong.epsilon and weak.delta >= strong.delta)


def drop_implied(points: Iterable[PrivacyGuarantee]) -> tuple[PrivacyGuarantee, ...]:
    """Drop guarantees that another one in ``points`` implies; all of them hold at once."""
    kept: list[PrivacyGuarantee] = []
    for point in points:
        if not any(implied_by(point, other) for other in kept):
            kept = [other for other in kept if not implied_by(other, point)] + [point]
    return tuple(kept)


def _is_corner(one: tuple[Any, ...], two: tuple[Any, ...], three: tuple[Any, ...]) -> bool:
    return bool((two[1] - one[1]) / (two[0] - one[0]) < (three[1] - two[1]) / (three[0] - two[0]))


def lower_hull(points: Iterable[tuple[Any, ...]], is_corner: Callable[..., bool] = _is_corner) -> list[tuple[Any, ...]]:
    """The corners of the largest convex function below ``points``, which come in order of their first number.

    ``is_corner`` says of three points in order whether the slope rises at the second.
    """
    hull: list[tuple[Any, ...]] = []
    for point in points:
        while len(hull) > 1 and not is_corner(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


@functools.lru_cache(maxsize=128)
def curve_corners(points: tuple[PrivacyGuarantee, ...]) -> list[tuple[Fraction, Fraction]]:
    """The corners (e^epsilon, delta) of the curve of the worst release that keeps all ``points``; exact.

    As a function of ``t = e^epsilon`` its curve is convex, falls from 1 at t = 0 and respects the points and their
    mirror images ``(1/t, 1 - (1 - delta) / t)``: it is their lower convex hull. For one point this is randomized
    response that reveals everything with probability delta (Kairouz, Oh, Viswanath 2015).
    """
    least: dict[float, float] = {}
    for point in points:
        if point.epsilon <= LARGEST_EPSILON:
            t = math.exp(point.epsilon)
            least[t] = min(point.delta, least.get(t, 1.0))
    right = []  # homogeneous coordinates: integers (x, y, w) for (x / w, y / w) are much quicker than fractions
    for t, delta in sorted(least.items()):
        (above, below), (part, whole) = t.as_integer_ratio(), delta.as_integer_ratio()
        right.append((above * whole, part * below, below * whole))
    left = [(w, x - w + y, x) for x, y, w in reversed(right) if x > w]
    lowest, falling = (0, 1, 1), [(0, 1, 1)]
    for x, y, w in [*left, *right]:
        if y * lowest[2] > lowest[1] * w:
            falling.append((x * lowest[2], lowest[1] * w, w * lowest[2]))
        else:
            falling.append(lowest := (x, y, w))
    return [(Fraction(x, w), Fraction(y, w)) for x, y, w in lower_hull(falling, _turns_left)]


def _turns_left(one: tuple[int, ...], two: tuple[int, ...], three: tuple[int, ...]) -> bool:
    """:func:`_is_corner` in homogeneous coordinates with positive weights: their determinant is positive."""
    (a, b, c), (d, e, f), (g, h, i) = one, two, three
    return a * (e * i - f * h) + b * (f * g - d * i) + c * (d * h - e * g) > 0


def format_bound(bound: float, digits: int = 4) -> str:
    """An upper bound in decimals, rounded up, so that the printed number is an upper bound too (up to 1e-12, relative).

    >>> format_bound(0.25431), format_bound(0.1), format_bound(math.inf), format_bound(3 * 1e-4)
    ('0.2544', '0.1', 'inf', '0.0003')
    """
    if not math.isfinite(bound) or bound == 0:
        return f"{bound:g}"
    with localcontext(Context(prec=40)):  # independent of the caller's context
        exact = Decimal(bound) * (1 - Decimal("1e-12"))
        unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
        return f"{float(exact.quantize(unit, rounding=ROUND_CEILING)):.{digits}g}"


def round_up(value: Fraction) -> float:
    """The smallest float ``>= value``; ``math.inf`` if ``value`` is too large for a float."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def times(count: int | Fraction, number: float) -> float:
    """``count * number``, rounded up."""
    return round_up(count * Fraction(number)) if number < math.inf else math.inf


def multiple(guarantee: PrivacyGuarantee, count: int | Fraction) -> PrivacyGuarantee:
    """(``count`` epsilon, ``count`` delta), rounded up."""
    return PrivacyGuarantee(epsilon=times(count, guarantee.epsilon), delta=min(1.0, times(count, guarantee.delta)))


def alarm(epsilon: float) -> str:
    """A sentence about a total that promises next to nothing, and what to change; empty up to an epsilon of 10.

    >>> alarm(10.0), alarm(936.0)[:71]
    ('', 'An epsilon of 936 promises next to nothing: what is released may be e^9')
    """
    if not _ALARMING < epsilon < math.inf:
        return ""
    number = format_bound(epsilon)
    odds = f"e^{number}" if epsilon > 30 else f"{math.exp(epsilon):.2g}"
    return (
        f"An epsilon of {number} promises next to nothing: what is released may be {odds} times as likely with a "
        "record as without it. Release fewer labels, use more noise, put each record into the training data of fewer "
        "teachers, or train them with more noise."
    )
