"""The noise that training needs for a total: the designer's question turned round."""

from __future__ import annotations

import functools

from ..arguments import checked
from ..bisection import last_within, relative_excess
from ..errors import InvalidArgument, check_integer, check_number
from .allocation import RandomAllocation
from .allocation_prices import allocated_delta
from .guarantees import PrivacyGuarantee, check_guarantee
from .profiles import PrivacyProfile
from .tuning_prices import RandomRuns, tuning_delta
from .units import RECORD, ProtectedUnit

__all__ = ["MOST_STEPS", "calibrate_noise"]

_LARGEST = 2.0**20
MOST_STEPS = 10**7  # for more, the search takes minutes


@checked
def calibrate_noise(
    total: PrivacyGuarantee,
    *,
    sample_rate: float,
    steps: int,
    overlap: int = 1,
    allocation: RandomAllocation | None = None,
    unit: ProtectedUnit = RECORD,
    runs: RandomRuns | None = None,
    validation: PrivacyProfile | None = None,
) -> float:
    """The smallest noise multiplier of DP-SGD with which all teachers together cost no more than ``total``.

    Found by bisection; the total is proven at the multiplier returned, which is at most 0.1 % above the smallest.

    Args:
        total: the guarantee of everything that the teachers can release, for adding or removing one unit.
        sample_rate: the probability with which a record enters a batch.
        steps: the number of steps of one teacher.
        overlap: r, the number of teachers that one record can affect; ignored with an ``allocation``.
        allocation: how records were allocated to the teachers' shards, if at random and in secret.
        unit: what is protected, such as a patient with several records in the data of one teacher.
        runs: if the teachers are the best of so many runs, see :func:`tuning_epsilon`; with an ``allocation``, each run
            then draws its own.
        validation: what the score of a run promises to held-out units, with ``runs``.

    Raises:
        InvalidArgument: an argument is out of range, a ``validation`` is given without ``runs``, or no noise is enough.

    >>> total = PrivacyGuarantee(epsilon=0.25, delta=1e-5)
    >>> round(calibrate_noise(total, sample_rate=1 / 35, steps=175), 2)
    5.19
    """
    check_guarantee("total", total)
    if not isinstance(unit, ProtectedUnit) or unit.neighbours != "add/remove":
        raise InvalidArgument("unit", "a ProtectedUnit that is added or removed", unit)
    if validation is not None and runs is None:
        cure = "What is released about held-out units is declared in the allocation."
        raise InvalidArgument("validation", "None without runs", type(validation).__name__, cure)
    sample_rate = check_number("sample_rate", sample_rate, low=0.0, high=1.0, low_open=True)
    steps, overlap = (
        check_integer("steps", steps, low=1, high=MOST_STEPS),
        check_integer("overlap", overlap, low=1, high=10**6),
    )

    @functools.cache
    def excess(noise: float) -> float:
        profile = PrivacyProfile.from_dp_sgd([(noise, sample_rate, steps)])
        profile = profile if unit == RECORD else profile.for_unit(unit.name, records=unit.records)
        if runs is not None:
            spent = tuning_delta(
                profile, total.epsilon, runs=runs, overlap=overlap, allocation=allocation, validation=validation
            )
        elif allocation is not None:
            spent = allocated_delta(profile, allocation, total.epsilon)
        else:
            spent = profile.compose(overlap).delta(total.epsilon)
        return relative_excess(spent, total.delta)

    enough = 1.0
    while excess(enough) > 0:
        enough *= 2
        if enough > _LARGEST:
            raise InvalidArgument("total", "one that some noise keeps", total, "Increase epsilon or delta.")
    too_little = enough / 2
    while too_little > 1 / 16 and excess(too_little) <= 0:
        enough, too_little = too_little, too_little / 2
    return last_within(excess, enough, too_little, tolerance=1e-3, geometric=True)
