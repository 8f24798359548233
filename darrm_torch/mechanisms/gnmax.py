"""GNMax: the class with the most votes after Gaussian noise.

The noise is a normal number rounded to a grid, not the discrete Gaussian of Canonne, Kamath and Steinke (2020):
rounding is post-processing, so the exact figures of the Gaussian hold for every overlap, number of classes and number
of labels, where the discrete Gaussian has figures of its own that depend on which votes move. Both can be drawn
exactly.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from ..arrays import FloatArray, IntArray
from ..bisection import last_true
from ..errors import InvalidArgument, check_integer, check_number
from ..noise.histograms import standings, votes_within
from ..noise.regions import check_target
from ..privacy.guarantees import PrivacyGuarantee
from .base import MOST_LABELS, MOST_VOTES, NoisyCounts, check_request
from .gaussian import gaussian_epsilon, gaussian_mu, rdp_mu
from .sampling import GaussianTail, Magnitudes, RandomBits, fair_argmax

__all__ = ["GNMax"]

SMALLEST_SIGMA = 2.0**-20  # the grid of the noise stays coarse enough for 64-bit sums
LARGEST_SIGMA = 2.0**17  # the table of noise has about 9 sigma entries
_MOST_HISTOGRAMS, _LARGEST_LABEL_SIGMA = 1000, 2.0**10  # for which label_renyi takes seconds
_METHODS = {"analytic": gaussian_mu, "rdp": rdp_mu}
_ORDERS: FloatArray = np.concatenate([np.arange(1.25, 10, 0.25), np.geomspace(10, 1000, 40)])


@dataclass(frozen=True, kw_only=True)
class GaussianCounts(NoisyCounts):
    """What GNMax and ConfidentGNMax share: all their noise is Gaussian, so any number of labels is one Gaussian.

    Args:
        delta: where :meth:`guarantee` is stated unless asked otherwise.
    """

    delta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta is not None:
            self._check("delta", low=0.0, high=1.0, low_open=True, high_open=True)

    def guarantee(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> PrivacyGuarantee:
        """The exact (epsilon, ``delta``) of ``labels`` rounds of noisy counts, an upper bound for the labels.

        Args:
            labels: Q.
            delta: ``None``: the one it was built with.
            overlap: r; ``None``: the one it was built with.

        Raises:
            InvalidArgument: no delta here or there.
        """
        labels, delta, overlap = check_request(labels, delta, overlap)
        spent = self.delta if delta is None else delta
        if spent is None:
            raise InvalidArgument("delta", "given", None, "No delta was given when it was built: guarantee(delta=...)")
        mu = (overlap or self.overlap) * math.sqrt(labels * self._squared_mu()) * (1 + 2.0**-48)
        return PrivacyGuarantee(epsilon=gaussian_epsilon(spent, mu), delta=spent)

    def proof(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> str:
        """By which argument :meth:`guarantee` holds."""
        return f"by the Gaussian mechanism on the counts, {self._strength()}"

    def _strength(self) -> str:
        numbers = {name: value for name, value in self._parameters().items() if name not in ("overlap", "delta")}
        return ", ".join(f"{name} = {value:.6g}" for name, value in numbers.items())

    @abstractmethod
    def _squared_mu(self) -> float:
        """mu**2 of one label when r = 1."""

    @staticmethod
    def _largest_mu(target: PrivacyGuarantee, *, labels: int, overlap: int, method: str = "analytic") -> float:
        """The root of the largest :meth:`_squared_mu` that keeps ``target`` for all labels, rounded down."""
        check_target(target)
        epsilon = check_number("target.epsilon", target.epsilon, low=0.0, low_open=True, high_open=True)
        delta = check_number("target.delta", target.delta, low=0.0, high=1.0, low_open=True, high_open=True)
        labels = check_integer("labels", labels, low=1, high=MOST_LABELS)
        overlap = check_integer("overlap", overlap, low=1, high=MOST_VOTES)
        return _METHODS[method](epsilon, delta) / (overlap * math.sqrt(labels)) * (1 - 2.0**-41)


@dataclass(frozen=True, kw_only=True)
class GNMax(GaussianCounts):
    """GNMax (Papernot et al. 2018): argmax of the counts, each with its own Gaussian noise; any number of classes.

    Guarantee, whatever the teachers promise: one record that touches at most r teachers changes the counts by at most
    r sqrt(2) in L2. Proof: one vote that moves from class a to b changes the counts by e_b - e_a, of norm sqrt(2);
    r votes by a sum of r such vectors, and all r moving alike attain r sqrt(2). So the noisy counts are a Gaussian
    mechanism with mu = r sqrt(2) / sigma, the label is a function of them, and Q labels, asked adaptively, are one
    Gaussian mechanism with mu = r sqrt(2 Q) / sigma (Dong, Roth, Su 2022, Cor. 3.3). Its epsilon and delta are exact:
    Balle & Wang 2018, Theorem 8.

    Noise: normal, rounded to a grid on which the integer counts lie (step 1, finer below sigma = 16). Rounding the
    noise is rounding the noisy counts, a post-processing, so the guarantee of the continuous Gaussian holds as it
    stands; and unlike floating-point noise the rounded noise is drawn exactly, from the operating system's bits. Ties
    are broken by a fair coin.

    Args:
        sigma: standard deviation of the noise, in votes.
        overlap: r, how many teachers one record can touch: 1 for disjoint shards.
        delta: where :meth:`guarantee` is stated unless asked otherwise.
        teachers: K, ``None`` for any.
        classes: C, ``None`` for any; with K it lets :meth:`guarantee` look at the label itself.

    Raises:
        InvalidArgument: an argument out of range.

    >>> mechanism = GNMax.calibrated(PrivacyGuarantee(epsilon=0.2556, delta=3e-4))
    >>> round(mechanism.sigma, 2), str(mechanism.guarantee(labels=1))
    (13.43, '(0.2556, 0.0003)-DP')
    """

    sigma: float
    classes: int | None = None
    calibration: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("sigma", low=SMALLEST_SIGMA, high=LARGEST_SIGMA)
        if self.classes is not None:
            object.__setattr__(self, "classes", check_integer("classes", self.classes, low=2, high=MOST_VOTES))

    @classmethod
    def calibrated(
        cls,
        target: PrivacyGuarantee,
        *,
        method: str = "analytic",
        labels: int = 1,
        overlap: int = 1,
        teachers: int | None = None,
        classes: int | None = None,
        insecure_seed: int | None = None,
    ) -> GNMax:
        """The smallest noise that keeps ``target`` for ``labels`` labels together, rounded up.

        Args:
            target: of all labels together; epsilon and delta positive.
            method: ``"analytic"``, the exact condition for noisy counts; ``"rdp"``, the Renyi bound at its best order:
                what the DaRRM paper uses for GNMax, with up to 1.8 times the noise; or ``"label"``, the Renyi bound of
                what is released, the label, which asks for as little as half the noise. That one needs ``teachers``,
                ``classes`` and overlap 1, and few of both: all histograms of the votes are gone through.
            labels: Q.
            overlap: r.
            teachers: K, ``None`` for any.
            classes: C, ``None`` for any.
            insecure_seed: see :class:`Mechanism`.

        Raises:
            InvalidArgument: a target that no Gaussian noise keeps, or that needs none; histograms that are unknown or
                too many for ``"label"``.
        """
        if not isinstance(method, str) or method not in (*_METHODS, "label"):
            raise InvalidArgument("method", f"one of {sorted((*_METHODS, 'label'))}", method)
        mu = cls._largest_mu(target, labels=labels, overlap=overlap, method="analytic" if method == "label" else method)
        mechanism = cls(
            sigma=math.sqrt(2) / mu,
            overlap=overlap,
            delta=target.delta,
            teachers=teachers,
            classes=classes,
            calibration=f"{method}: {target} for {labels} label(s), overlap {overlap}",
            insecure_seed=insecure_seed,
        )
        if method != "label":
            return mechanism
        if not mechanism._histograms_are_few or overlap > 1:
            raise InvalidArgument(
                "method",
                '"analytic" or "rdp"',
                f"{method} with teachers={teachers}, classes={classes}, overlap={overlap}",
                f"The label's own bound needs overlap 1 and few teachers and classes: {_MOST_HISTOGRAMS} histograms of "
                "votes at most",
            )

        def keeps(sigma: float) -> bool:
            return replace(mechanism, sigma=sigma).guarantee(labels=labels).epsilon <= target.epsilon

        enough, less = mechanism.sigma, mechanism.sigma / 2
        while keeps(less):
            enough, less = less, less / 2
        return replace(mechanism, sigma=last_true(keeps, enough, less, tolerance=2.0**-10))

    def guarantee(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> PrivacyGuarantee:
        """The exact (epsilon, ``delta``) of ``labels`` rounds of noisy counts, an upper bound for the labels.

        Or, where ``teachers`` and ``classes`` are given and few and one record touches one teacher, the Renyi bound of
        the labels themselves, if that is smaller: see ``label_renyi``.

        Args:
            labels: Q.
            delta: ``None``: the one it was built with.
            overlap: r; ``None``: the one it was built with.

        Raises:
            InvalidArgument: no delta here or there.
        """
        labels, delta, overlap = check_request(labels, delta, overlap)
        counts = super().guarantee(labels=labels, delta=delta, overlap=overlap)
        return replace(counts, epsilon=min(counts.epsilon, self._of_labels(labels, counts.delta, overlap)))

    def proof(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> str:
        """Which of the two bounds of :meth:`guarantee` is the smaller."""
        counts = super().guarantee(labels=labels, delta=delta, overlap=overlap)
        if counts.epsilon <= self._of_labels(labels, counts.delta, overlap):
            return super().proof()
        return (
            f"by the Renyi bound of the label itself, over all votes of {self.teachers} teachers for {self.classes} "
            f"classes, {self._strength()}"
        )

    def _of_labels(self, labels: int, delta: float, overlap: int | None) -> float:
        """Epsilon by the Renyi bound of the labels themselves; infinite where it is not known."""
        if (self.overlap if overlap is None else overlap) > 1 or not self._histograms_are_few or delta == 0:
            return math.inf
        assert self.teachers is not None
        assert self.classes is not None
        total = labels * label_renyi(self.sigma, self.teachers, self.classes)
        # (a, t)-RDP is (t + log(1 - 1/a) - (log delta + log a)/(a - 1), delta)-DP (Canonne, Kamath, Steinke 2020,
        # Prop. 12), and Renyi bounds of adaptive labels add up (Mironov 2017, Prop. 1).
        epsilons = total + np.log1p(-1 / _ORDERS) - (math.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1)
        return max(float(epsilons.min()), 0.0) * (1 + 2.0**-40) + 2.0**-40

    @property
    def _histograms_are_few(self) -> bool:
        return (
            self.teachers is not None
            and self.classes is not None
            and self.sigma <= _LARGEST_LABEL_SIGMA
            and votes_within(_MOST_HISTOGRAMS, votes=self.teachers, classes=self.classes) == self.teachers
        )

    def _parameters(self) -> dict[str, Any]:
        return {"sigma": self.sigma, "overlap": self.overlap, "delta": self.delta}

    def _notes(self) -> list[str]:
        calibration = [] if self.calibration is None else [f"calibrated by {self.calibration}"]
        return [*calibration, f"noise: normal rounded to multiples of {grid_step(self.sigma)}, drawn exactly"]

    def _squared_mu(self) -> float:
        return 2 / self.sigma**2

    def _draw(self, counts: IntArray) -> IntArray:
        return noisy_argmax(counts, *gaussian_noise(self.sigma), self._bits)

    def _law(self, counts: IntArray) -> FloatArray:
        return noisy_argmax_law(counts, *gaussian_noise(self.sigma))


def grid_step(sigma: float) -> float:
    """The grid of the noise: 1, or the largest 2**-k that is at most sigma / 16."""
    return min(1.0, 2.0 ** math.floor(math.log2(sigma / 16)))


@functools.lru_cache(maxsize=16)
def gaussian_noise(sigma: float) -> tuple[Magnitudes, int]:
    """Noise in units of the grid, and how many of these units a vote is."""
    step = grid_step(sigma)
    return Magnitudes(GaussianTail(sigma, step)), round(1 / step)


def noisy_argmax(counts: IntArray, noise: Magnitudes, unit: int, bits: RandomBits) -> IntArray:
    """argmax of ``unit * counts`` plus independent signed noise, fair at ties: (B, C) -> (B,)."""
    return fair_argmax(unit * counts + noise.signed(bits, *counts.shape), bits)


def noisy_argmax_law(counts: IntArray, noise: Magnitudes, unit: int) -> FloatArray:
    """The law of :func:`noisy_argmax`, (B, C) -> (B, C): a finite sum, no sampling; the error is below 1e-12.

    Class c draws noise k with probability p(k) and then wins with probability E[1/(1 + ties)]: each rival j is below
    with probability F_j and level with p_j, so that is the integral over t in [0, 1] of prod_j (F_j + t p_j), a
    polynomial in t that Gauss-Legendre integrates exactly. Left out is what lies beyond the tabulated noise, below
    2**-63 for each class.
    """
    rows, inverse = np.unique(counts, axis=0, return_inverse=True)
    return _argmax_law(rows, noise.symmetric_law(), unit)[inverse.reshape(-1)]


def _argmax_law(rows: IntArray, noise: FloatArray, unit: int) -> FloatArray:
    """For noise with these chances of the values -R, ..., R: sums of products of non-negative numbers only."""
    law = np.append(noise, 0.0)  # index -1: no such value
    below = np.concatenate([[0.0], np.cumsum(law[:-1])])  # below[i]: Pr[noise < its value number i]
    nodes, weights = np.polynomial.legendre.leggauss((rows.shape[1] + 1) // 2)
    index = np.arange(law.size - 1)
    result = np.empty(rows.shape)
    for row, votes in enumerate(rows):
        levels, which, sizes = np.unique(votes, return_inverse=True, return_counts=True)
        for own, level in enumerate(levels):
            product = np.ones((nodes.size, index.size))
            for rival, size in enumerate(sizes - (np.arange(sizes.size) == own)):
                at = index + unit * (level - levels[rival])
                tie = law[np.where((at >= 0) & (at < index.size), at, -1)]
                product *= (below[np.clip(at, 0, index.size)] + (nodes[:, None] + 1) / 2 * tie) ** size
            result[row, which == own] = weights / 2 @ product @ law[:-1]
    return result


@functools.lru_cache(maxsize=64)
def label_renyi(sigma: float, teachers: int, classes: int) -> FloatArray:
    """The Renyi divergence of one GNMax label, at each of many orders, at most; one teacher's vote may change.

    Formal guarantee: for each order a and any two histograms of ``teachers`` votes over ``classes`` classes that differ
    in one vote, log(sum over labels of p**a q**(1 - a)) / (a - 1) is at most this. All pairs are gone through, up to
    the names of the classes. Their laws are finite sums of products of non-negative numbers: noise beyond 10 sigma and
    more is left out, which makes q smaller, and its whole chance is added to p; rounding is a matter of relative
    errors, which are added.
    """
    space, step = standings(teachers, classes), grid_step(sigma)
    before, after = space.neighbours
    width = min(10 + 2 * teachers / sigma, 37.0)  # of the noise, in sigmas: beyond 37 the chances are no doubles
    reach = math.ceil(width * sigma / step)
    nodes, weights = np.polynomial.legendre.leggauss(12)  # the density over each cell of the grid
    places = (np.arange(-reach, reach + 1)[:, None] + nodes / 2) * (step / sigma)
    noise = np.exp(-places * places / 2) @ weights * (step / sigma / 2 / math.sqrt(2 * math.pi))
    chance = space.per_standing(_argmax_law(space.counts, noise, round(1 / step)))
    left_out = 2 * classes * float(special.ndtr(-width)) * (1 + 2.0**-20)
    rounding = classes * noise.size * 2.0**-47  # relative, of each chance: sums of so many, products of so many
    with np.errstate(divide="ignore"):
        p, q = np.log(chance[before] + left_out), np.log(chance[after])
    worst = np.array([special.logsumexp(a * p + (1 - a) * q, axis=1).max() for a in _ORDERS])
    return np.asarray((np.maximum(worst, 0.0) + 2 * rounding * _ORDERS) / (_ORDERS - 1))
