"""What labels cost when records were allocated to the shards at random and in secret, or read by a random jury.

Nobody knows which teacher to look at, so a record costs far less than a teacher. Proofs and preconditions:
`docs/theory/allocation.md`. Every function returns a proven upper bound, under adding or removing one unit.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np

from ..arguments import checked
from ..bisection import smallest_epsilon
from ..errors import InvalidArgument, check_integer, check_number
from .allocation import RandomAllocation
from .guarantees import PrivacyGuarantee
from .profiles import PrivacyProfile, as_profile
from .ratios import RatioLaw, pair_law, product_of
from .validation import PrivateValidation

__all__ = [
    "allocated_delta",
    "allocated_epsilon",
    "allocated_law",
    "distinct_voters",
    "for_draws",
    "jury_delta",
    "jury_epsilon",
    "self_bounding_delta",
    "self_bounding_epsilon",
]

_SLACK = 1 + 2.0**-40  # over the rounding of probabilities, sums of at most some thousand positive terms
_MOST_TEACHERS, _MOST_VOTERS, _MOST_STEPS = 2**31 - 1, 10**6, 10**8
_MOST_SPLITS = 400  # ways in which a jury falls into the blocks that are priced one by one
_SIZES = 16  # sizes of a jury that are priced one by one
_MEETINGS = 64  # numbers of a record's teachers on a jury that are priced one by one


@dataclass(frozen=True, eq=False)
class _Price:
    """A mean over public events, each with a law of the ratio: delta is at most the mean of theirs."""

    laws: tuple[tuple[float, RatioLaw], ...]

    def __call__(self, epsilon: float) -> float:
        removal = math.fsum(weight * law.removal(epsilon) for weight, law in self.laws)
        addition = math.fsum(weight * law.addition(epsilon) for weight, law in self.laws)
        return min(1.0, max(removal, addition) * _SLACK)


@checked
def allocated_delta(
    profile: PrivacyProfile | PrivacyGuarantee,
    allocation: RandomAllocation,
    epsilon: float,
    *,
    voters: int | Sequence[float] | None = None,
) -> float:
    """Delta at ``epsilon`` of everything that randomly allocated teachers can release: theorems 13, 14 and 18.

    Args:
        profile: what each trained teacher promises (the weakest of unlike ones, :meth:`PrivacyProfile.weakest`).
        allocation: how records were allocated.
        epsilon: in nats.
        voters: how many teachers are read, chosen without looking at data: a number, the probability of each number
            from 0 on (:func:`distinct_voters`), or ``None``: all of them. With given ``blocks``, probabilities are for
            juries drawn at random, with equal chances for all sets of one size.

    Raises:
        InvalidArgument: a value out of range.

    >>> teacher = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
    >>> allocated_delta(teacher, RandomAllocation(teachers=11), 0.0143) < 2.9e-4
    True
    """
    profile, epsilon = for_draws("profile", profile), check_number("epsilon", epsilon, low=0.0, high_open=True)
    price = _allocated(profile, allocation, _voters(voters, allocation.teachers))
    most = max(one.delta(epsilon) for one in _most(profile, allocation, voters))
    return min(max(term(epsilon) for term in price), most)


@checked
def allocated_epsilon(
    profile: PrivacyProfile | PrivacyGuarantee,
    allocation: RandomAllocation,
    delta: float,
    *,
    voters: int | Sequence[float] | None = None,
) -> float:
    """Epsilon at ``delta`` of everything that randomly allocated teachers can release; see :func:`allocated_delta`.

    >>> teacher = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
    >>> [round(allocated_epsilon(teacher, RandomAllocation(teachers=11, overlap=r), 3e-4), 4) for r in (1, 3)]
    [0.014, 0.0558]
    >>> validated = RandomAllocation(teachers=11, holdout=0.1, validation=PrivateValidation(epsilon=0.05))
    >>> round(allocated_epsilon(teacher, validated, 3e-4), 4)
    0.0146
    """
    profile, delta = for_draws("profile", profile), check_number("delta", delta, low=0.0, high=1.0)
    price = _allocated(profile, allocation, _voters(voters, allocation.teachers))
    most = max(one.epsilon(delta) for one in _most(profile, allocation, voters))
    return smallest_epsilon(lambda epsilon: max(term(epsilon) for term in price), delta, most=most)


def for_draws(name: str, promise: PrivacyProfile | PrivacyGuarantee) -> PrivacyProfile:
    """One promise as a profile, refused where it is about replacing a unit: then both records' shards change.

    Raises:
        InvalidArgument: ``promise`` is about replacing a unit, or is neither a guarantee nor a profile.
    """
    profile = as_profile(name, promise)
    if profile.unit.neighbours != "add/remove":
        cure = "Replacing a unit has another price (theory, sections 12 and 17)."
        raise InvalidArgument(name, "a promise about adding or removing a unit", str(profile.unit), cure)
    return profile


def allocated_law(profile: PrivacyProfile, allocation: RandomAllocation) -> RatioLaw:
    """The ratio that dominates all K randomly allocated teachers, without a validation: theorem 13."""
    allocation = replace(allocation, validation=None)
    ((_, law),) = _allocated(profile, allocation, _voters(None, allocation.teachers))[0].laws
    return law


@checked
def jury_delta(
    profile: PrivacyProfile | PrivacyGuarantee,
    epsilon: float,
    *,
    teachers: int,
    overlap: int | None = None,
    voters: int | Sequence[float],
) -> float:
    """Delta at ``epsilon`` of all labels by a jury drawn at random, without random allocation: theorem 14.

    Args:
        profile: what each trained teacher promises.
        epsilon: in nats.
        teachers: K.
        overlap: r, how many teachers a record influences; ``None``: all.
        voters: how many of the K teachers are read for all labels together, or the probability of each number from 0
            on. Each set of that size is equally likely; it may be published afterwards.

    Raises:
        InvalidArgument: a value out of range.

    >>> teacher = PrivacyGuarantee(epsilon=0.5, delta=1e-6)
    >>> one, all_of_them = (jury_delta(teacher, 0.1, teachers=11, overlap=1, voters=voters) for voters in (1, 11))
    >>> one < all_of_them
    True
    """
    epsilon = check_number("epsilon", epsilon, low=0.0, high_open=True)
    return _jury(as_profile("profile", profile), teachers, overlap, voters)(epsilon)


@checked
def jury_epsilon(
    profile: PrivacyProfile | PrivacyGuarantee,
    delta: float,
    *,
    teachers: int,
    overlap: int | None = None,
    voters: int | Sequence[float],
) -> float:
    """Epsilon at ``delta`` of all labels by a jury drawn at random, without allocation; see :func:`jury_delta`.

    >>> teacher = PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])
    >>> round(jury_epsilon(teacher, 3e-4, teachers=11, voters=distinct_voters(11, labels=2)), 3)
    0.093
    """
    delta = check_number("delta", delta, low=0.0, high=1.0)
    price = _jury(as_profile("profile", profile), teachers, overlap, voters)
    most = min(len(_voters(voters, teachers)) - 1, teachers if overlap is None else overlap)
    return smallest_epsilon(price, delta, most=as_profile("profile", profile).compose(most).epsilon(delta))


@checked
def distinct_voters(teachers: int, *, labels: int, jury: int = 1) -> tuple[float, ...]:
    """The probability that ``labels`` random juries, drawn one by one, have 0, 1, 2, ... different members in all.

    Rounded up: every tail is at least the true one.

    Args:
        teachers: K.
        labels: Q, the number of juries.
        jury: n, the size of each.

    Raises:
        InvalidArgument: a value out of range.

    >>> [round(chance, 3) for chance in distinct_voters(3, labels=2)]
    [0.0, 0.333, 0.667]
    >>> [round(chance, 3) for chance in distinct_voters(4, labels=2, jury=2)]
    [0.0, 0.0, 0.167, 0.667, 0.167]
    """
    teachers = check_integer("teachers", teachers, low=1, high=_MOST_TEACHERS)
    jury = check_integer("jury", jury, low=1, high=teachers)
    labels = check_integer("labels", labels, low=1, high=2**53)
    largest = check_integer("the number of voters", min(labels * jury, teachers), low=1, high=_MOST_VOTERS)
    many = labels * jury * teachers > _MOST_STEPS or jury * teachers > _MOST_STEPS // 16
    if labels == 1 or jury == teachers or labels * jury > 45 * teachers or many:
        # Exact, or everyone up to a chance of K exp(-45), or an upper bound where the law would take long.
        return (0.0,) * largest + (1.0,)
    seen, own = np.arange(teachers + 1.0), np.arange(jury + 1.0)[:, None]
    chances = np.zeros((jury + 1, teachers + 1))  # of so many members who were in none of the juries before
    chances[0] = 1.0
    for drawn in range(jury):
        fresh = chances * np.maximum(teachers - seen - own, 0.0) / (teachers - drawn)
        chances = chances * np.maximum(seen - drawn + own, 0.0) / (teachers - drawn)
        chances[1:] += fresh[:-1]
    law = np.zeros(teachers + 1)
    law[0] = 1.0
    for _ in range(labels):
        parts = [law * chance for chance in chances]
        law = np.sum([np.append(np.zeros(new), part[: teachers + 1 - new]) for new, part in enumerate(parts)], axis=0)
    tails = np.minimum(1.0, np.cumsum(law[::-1])[::-1] * (1 + labels * (jury + 1) * 2.0**-48))
    tails[0] = 1.0
    return tuple((tails - np.append(tails[1:], 0.0))[: largest + 1].tolist())


@checked
def self_bounding_delta(
    profile: PrivacyProfile | PrivacyGuarantee,
    allocation: RandomAllocation,
    epsilon: float,
    *,
    allowance: float,
    voters: int | None = None,
) -> float:
    """Delta at ``epsilon`` of self-bounding labels from teachers with ``overlap=1``: theorem 15.

    Args:
        profile: what each trained teacher promises; teachers are trained independently.
        allocation: how records were allocated; its validation is not in this price.
        epsilon: in nats.
        allowance: Q m, the sum of the self-bounding allowances of all labels, each for an overlap of all K teachers.
        voters: how many teachers are read; ``None``: all.

    Raises:
        InvalidArgument: a value out of range, or an allocation with ``overlap`` above 1 or with weights.

    >>> from darrm_torch import RandomAllocation
    >>> allocation = RandomAllocation(teachers=11)
    >>> self_bounding_delta(PrivacyGuarantee(epsilon=0.5), allocation, 0.5, allowance=1.0)
    0.0
    """
    epsilon = check_number("epsilon", epsilon, low=0.0, high_open=True)
    if allocation.overlap > 1 or allocation.weights:
        raise InvalidArgument("allocation", "one with overlap=1 and equal weights", allocation)
    return _Price(((1.0, _shared_law(for_draws("profile", profile), allocation, allowance, voters)),))(epsilon)


@checked
def self_bounding_epsilon(
    profile: PrivacyProfile | PrivacyGuarantee,
    allocation: RandomAllocation,
    delta: float,
    *,
    allowance: float,
    voters: int | None = None,
) -> float:
    """Epsilon at ``delta`` of self-bounding labels of randomly allocated records: theorems 15 and 16.

    The arguments are those of :func:`self_bounding_delta`.

    >>> teacher = PrivacyProfile.from_dp_sgd([(1.0, 0.05, 100)])
    >>> round(self_bounding_epsilon(teacher, RandomAllocation(teachers=11), 1e-5, allowance=1.0), 3)
    0.904
    """
    profile, delta = for_draws("profile", profile), check_number("delta", delta, low=0.0, high=1.0)
    if allocation.weights:
        raise InvalidArgument("allocation", "one with equal weights", allocation)
    if allocation.overlap > 1:
        return _self_bounding_blocks(profile, allocation, _read(allowance, voters), delta)
    price = _Price(((1.0, _shared_law(profile, allocation, allowance, voters)),))
    return smallest_epsilon(price, delta, most=profile.epsilon(delta))


def _shared_law(
    profile: PrivacyProfile, allocation: RandomAllocation, allowance: float, voters: int | None
) -> RatioLaw:
    share = min(1.0, _read(allowance, voters) / allocation.teachers * (1 + 2.0**-50))
    return pair_law(profile).affine(1 - share, share)


def _read(allowance: float, voters: int | None) -> float:
    allowance = check_number("allowance", allowance, low=0.0, low_open=True, high=math.inf)
    return allowance if voters is None else min(allowance, check_integer("voters", voters, low=1))


def _self_bounding_blocks(
    profile: PrivacyProfile, allocation: RandomAllocation, allowance: float, delta: float
) -> float:
    """Theorem 16, for r > 1: ``y epsilon e^epsilon`` at the point of the profile that suits ``delta``."""
    smallest = min(allocation.block_sizes)
    share, times = min(allocation.overlap, allowance / smallest), min(1.0, allowance / smallest) * allocation.overlap

    def cost(epsilon: float) -> float:
        return min(1.0, math.exp(min(700.0, share * epsilon)) * times * profile.delta(epsilon) * _SLACK)

    point = smallest_epsilon(cost, delta)
    return share * point * math.exp(min(point, 700.0)) * _SLACK if point < math.inf else math.inf


def _voters(voters: int | Sequence[float] | None, teachers: int) -> tuple[float, ...]:
    """The probability of each number of teachers read, from 0 on."""
    if voters is None:
        voters = teachers
    if isinstance(voters, Sequence):
        law = tuple(check_number("voters", chance, low=0.0, high=1.0) for chance in voters)
        if not 1 < len(law) <= teachers + 1 or abs(math.fsum(law) - 1) > 1e-9:
            raise InvalidArgument("voters", f"at most {teachers + 1} probabilities that add up to 1", voters)
        return (*law[:-1], law[-1] + max(0.0, 1 - math.fsum(law)))  # what rounding lost counts as the largest number
    return (0.0,) * check_integer("voters", voters, low=1, high=teachers) + (1.0,)


def _most(
    profile: PrivacyProfile, allocation: RandomAllocation, voters: int | Sequence[float] | None
) -> list[PrivacyProfile]:
    """Without secrecy: the record's r teachers, or those of them that can be read at most; or else the validation."""
    trained = profile.compose(min(allocation.overlap, len(_voters(voters, allocation.teachers)) - 1))
    return [trained] if allocation.validation is None else [trained, allocation.validation.profile]


@lru_cache(maxsize=256)
def _allocated(profile: PrivacyProfile, allocation: RandomAllocation, voters: tuple[float, ...]) -> tuple[_Price, ...]:
    """Prices of which the largest counts."""
    if (validation := allocation.validation) is not None:
        trained = _allocated(profile, replace(allocation, validation=None), voters)
        return tuple(_Price(_validated(price, allocation.holdout, validation)) for price in trained)
    if allocation.weights:
        return (_Price(((1.0, _weighted_law(profile, allocation.weights)),)),)
    sizes = allocation.block_sizes
    juries = _rounded_up(voters, _SIZES) if len(sizes) <= _MOST_SPLITS else [(allocation.teachers, 1.0)]
    splits = {size: dict(itertools.islice(_splits(sizes, size), _MOST_SPLITS + 1)) for size, _ in juries}
    if len(set().union(*splits.values())) > _MOST_SPLITS:
        juries, splits = [(allocation.teachers, 1.0)], {allocation.teachers: {sizes: 1.0}}
    laws = {
        split: _blocks_law(profile, tuple(sorted(zip(sizes, split, strict=True))))
        for split in set().union(*splits.values())
    }
    if allocation.blocks and len(juries) == 1:  # of a constant jury nobody knows how it falls into the blocks
        return tuple(_Price(((1.0, law),)) for law in laws.values())
    return (
        _Price(
            tuple((chance * weight, laws[split]) for size, chance in juries for split, weight in splits[size].items())
        ),
    )


def _validated(price: _Price, holdout: float, validation: PrivateValidation) -> tuple[tuple[float, RatioLaw], ...]:
    """Theorem 18: ``(1 - h) X + h Y``, one law of X for each of the few values of Y."""
    other = pair_law(validation.profile)

    def shifted(law: RatioLaw, value: float) -> RatioLaw:
        law = law.affine(holdout * value, 1 - holdout)
        return replace(law, value_error=law.value_error + other.value_error)

    return tuple(
        (weight * mass * (1 + other.mass_error), shifted(law, value))
        for weight, law in price.laws
        for value, mass in zip(other.values.tolist(), other.masses.tolist(), strict=True)
    )


def _rounded_up(voters: Sequence[float], most: int) -> list[tuple[int, float]]:
    """Sizes of juries and their chances, small sizes counted as larger ones where they are more than ``most``."""
    sizes = [size for size, chance in enumerate(voters) if chance > 0]
    kept = sizes[:: -max(1, math.ceil(len(sizes) / most))][::-1]
    chances: Counter[int] = Counter()
    for size in sizes:
        chances[next(larger for larger in kept if larger >= size)] += voters[size]  # type: ignore[assignment]
    return sorted(chances.items())


def _splits(sizes: tuple[int, ...], voters: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """How many of ``voters`` random teachers are in each block, with the probability of that."""
    if len(sizes) == 1 or voters == sum(sizes):
        yield (voters,) if len(sizes) == 1 else sizes, 1.0
        return
    others = sum(sizes[1:])
    for here in range(max(0, voters - others), min(sizes[0], voters) + 1):
        ways = math.comb(sizes[0], here) * math.comb(others, voters - here)
        for rest, chance in _splits(sizes[1:], voters - here):
            yield (here, *rest), ways / math.comb(sizes[0] + others, voters) * chance


@lru_cache(maxsize=256)
def _blocks_law(profile: PrivacyProfile, blocks: tuple[tuple[int, int], ...]) -> RatioLaw:
    """One shard in each block of ``size``, of which ``voters`` are read: the product of the blocks' ratios."""
    kinds = Counter(block for block in blocks if block[1])
    laws = [_block_law(profile, size, voters).power(count) for (size, voters), count in kinds.items()]
    return product_of(laws)


@lru_cache(maxsize=256)
def _block_law(profile: PrivacyProfile, size: int, voters: int) -> RatioLaw:
    return pair_law(profile).total(voters).affine(1 - voters / size, 1 / size)


@lru_cache(maxsize=64)
def _weighted_law(profile: PrivacyProfile, weights: tuple[float, ...]) -> RatioLaw:
    law, whole = pair_law(profile), math.fsum(weights)
    kinds = sorted(Counter(weight / whole for weight in weights if weight).items())
    return reduce(RatioLaw.sum, (law.total(count).affine(0.0, weight) for weight, count in kinds))


@lru_cache(maxsize=256)
def _jury_price(profile: PrivacyProfile, teachers: int, overlap: int, voters: tuple[float, ...]) -> _Price:
    chances = [0.0] * (overlap + 1)
    for size, chance in enumerate(voters):
        for met in range(max(0, size + overlap - teachers), min(size, overlap) + 1):
            ways = math.comb(overlap, met) * math.comb(teachers - overlap, size - met) / math.comb(teachers, size)
            chances[met] += chance * ways
    met_often = _rounded_up(chances, _MEETINGS)
    return _Price(tuple((chance, pair_law(profile).power(met)) for met, chance in met_often if met))


def _jury(profile: PrivacyProfile, teachers: int, overlap: int | None, voters: int | Sequence[float]) -> _Price:
    teachers = check_integer("teachers", teachers, low=1, high=_MOST_TEACHERS)
    overlap = teachers if overlap is None else check_integer("overlap", overlap, low=1, high=teachers)
    return _jury_price(profile, teachers, overlap, _voters(voters, teachers))
