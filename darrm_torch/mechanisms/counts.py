"""Private counts of right and wrong, and what they say about an accuracy: exact noise, valid intervals."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, xlog1py, xlogy

from ..arguments import as_array, checked
from ..arrays import FloatArray, IntArray
from ..bisection import last_true
from ..errors import InvalidArgument, check_integer, check_number
from .laplace import geometric
from .sampling import RandomBits

__all__ = ["accuracy_interval", "private_counts"]

_LEAST, _MOST = 2.0**-12, 64.0  # of epsilon: less is noise of thousands, more would be none
_SHARE = 0.1  # of what an interval may miss: that the number of units is outside its bounds
_MOST_COUNT = 10**9


@checked
def private_counts(counts: npt.ArrayLike, *, epsilon: float, insecure_seed: int | None = None) -> IntArray:
    """The counts with independent noise of the discrete Laplace law in every cell; int64, of the same shape.

    Formal guarantee: (``epsilon``, 0)-DP where one unit changes one cell by one. Pr[noise = z] is proportional to
    a**|z| with a = exp(-epsilon) rounded up, and is drawn exactly. Noisy counts may be negative.

    Args:
        counts: integers from 0 to 2**53, an array of one or more dimensions.
        epsilon: in nats, from 2**-12 to 64.
        insecure_seed: for tests: anyone who knows it knows the noise.

    Raises:
        InvalidArgument: counts that are not such integers, or an argument out of range.

    >>> private_counts([[90, 10], [80, 20]], epsilon=0.5).shape
    (2, 2)
    """
    expected = "an array of integers from 0 to 2**53"
    try:
        table = as_array("counts", counts, expected, kinds="iu")
    except InvalidArgument:  # whose text shows them
        raise InvalidArgument("counts", expected, type(counts).__name__) from None
    if not table.ndim or (table < 0).any() or (table > 2**53).any():  # larger ones would wrap
        raise InvalidArgument("counts", expected, "others")
    noise = geometric(check_number("epsilon", epsilon, low=_LEAST, high=_MOST), two_sided=True)
    drawn = noise.signed(RandomBits(insecure_seed), max(1, table.size))[: table.size]
    return table.astype(np.int64) + drawn.reshape(table.shape)


@checked
def accuracy_interval(
    right: int, wrong: int, *, epsilon: float, cells: int = 1, confidence: float = 0.95
) -> tuple[float, float]:
    """An interval that covers an accuracy with probability at least ``confidence``, from private counts.

    What is random: the units behind the counts, a sample of unknown size from the population that the accuracy is
    about, each right with that probability; and the noise. Both are accounted for exactly: an accuracy is in the
    interval unless the counts would be too good or too bad for it, with their joint law, at every number of units that
    is plausible after the noise (theory, section 18). The size of the sample may depend on anything but the answers.

    Args:
        right, wrong: counts from :func:`private_counts`, or sums of them; they may be negative.
        epsilon: the epsilon of that release.
        cells: how many noisy cells were added up to ``right``, and how many to ``wrong``.
        confidence: in (0, 1).

    Raises:
        InvalidArgument: an argument out of range.

    >>> low, high = accuracy_interval(930, 70, epsilon=0.5)
    >>> round(low, 3), round(high, 3)
    (0.91, 0.947)
    """
    right = check_integer("right", right, low=-_MOST_COUNT, high=_MOST_COUNT)
    wrong = check_integer("wrong", wrong, low=-_MOST_COUNT, high=_MOST_COUNT)
    epsilon = check_number("epsilon", epsilon, low=_LEAST, high=_MOST)
    cells = check_integer("cells", cells, low=1, high=10**4)
    miss = 1 - check_number("confidence", confidence, low=0.0, high=1.0, low_open=True, high_open=True)
    both = _noise(epsilon, 2 * cells)
    reach = len(both) // 2
    doubt = int(np.searchsorted(both, 1 - _SHARE * miss / 2)) - reach  # noise of the total that is still plausible
    units = max(0, right + wrong - doubt), max(0, right + wrong + doubt)
    tail, noise = (1 - _SHARE) * miss / 2, _noise(epsilon, cells)
    low = _lowest(right, wrong, units, tail, noise)
    high = 1 - _lowest(wrong, right, units, tail, noise)
    return min(low, high), max(low, high)


def _lowest(good: int, bad: int, units: tuple[int, int], tail: float, noise: FloatArray) -> float:
    """The lowest chance of a good answer for which counts this good are plausible.

    The test looks at the rarer answer, which is least in doubt where the number of units is: at the bad ones from a
    chance of one half on, at the good ones below.
    """
    least, most = units

    def few_bad(chance: float) -> bool:
        return _at_most(bad, least, 1 - chance, noise) >= tail

    def many_good(chance: float) -> bool:
        return 1 - _at_most(good - 1, most, chance, noise) >= tail

    plausible, ends = (many_good, (0.0, 0.5)) if many_good(0.5) else (few_bad, (0.5, 1.0))
    low, high = ends
    if plausible(low):
        return low
    if not plausible(high):
        return high
    return max(0.0, last_true(plausible, high, low, tolerance=1e-6) - 1e-6)  # rounded outward


def _at_most(count: int, units: int, chance: float, noise: FloatArray) -> float:
    """Pr[B + Z <= count] for B binomial and Z with this distribution function."""
    mean, reach = units * chance, len(noise) // 2
    spread = 10 * np.sqrt(mean * (1 - chance)) + 40
    hits = np.arange(max(0, int(mean - spread)), min(units, int(mean + spread)) + 1)
    logs = gammaln(units + 1) - gammaln(hits + 1) - gammaln(units - hits + 1)
    masses = np.exp(logs + xlogy(hits, chance) + xlog1py(units - hits, -chance))
    places = np.clip(count - hits + reach, -1, len(noise) - 1)
    return float(masses @ np.where(places < 0, 0.0, noise[places]) / masses.sum())


@lru_cache(maxsize=8)  # of up to 160 MB
def _noise(epsilon: float, cells: int) -> FloatArray:
    """The distribution function of the sum of the noise of so many cells, from -reach to reach."""
    one = geometric(epsilon, two_sided=True).symmetric_law()
    reach = int((60 + 12 * np.sqrt(2 * cells)) / epsilon) + len(one) // 2
    size = 1 << int(2 * reach).bit_length()
    centred = np.zeros(size)
    centred[np.arange(-(len(one) // 2), len(one) // 2 + 1)] = one
    total = np.fft.irfft(np.fft.rfft(centred).real ** cells, size)  # of a symmetric law it is real
    law = np.maximum(total[np.arange(-reach, reach + 1)], 0.0)
    return np.asarray(np.minimum(1.0, law.cumsum()), dtype=np.float64)
