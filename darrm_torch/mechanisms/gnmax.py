"""GNMax: the class with the most votes after Gaussian noise.

The noise is a normal number rounded to a grid, not the discrete Gaussian of Canonne, Kamath and Steinke (2020).
Rounding is post-processing, so the exact figures of the Gaussian hold for every overlap, number of classes and number
of labels; the figures of the discrete Gaussian depend on which votes move. Both can be drawn exactly.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import fft, special

from ..arguments import checked
from ..arrays import FloatArray, IntArray
from ..bisection import last_within, relative_excess
from ..errors import InvalidArgument, check_integer, check_number
from ..noise.histograms import standings, votes_within
from ..noise.regions import check_target
from ..privacy.guarantees import PrivacyGuarantee
from .base import MOST_LABELS, MOST_VOTES, NoisyCounts, check_request
from .gaussian import gaussian_epsilon, gaussian_mu, rdp_mu
from .sampling import GaussianTail, Magnitudes, RandomBits, fair_argmax, tie_quadrature

__all__ = ["GNMax"]

SMALLEST_SIGMA = 2.0**-20  # the grid of the noise stays coarse enough for 64-bit sums
LARGEST_SIGMA = 2.0**17  # the table of noise has about 9 sigma entries
_MOST_HISTOGRAMS, _LARGEST_LABEL_SIGMA = 1000, 2.0**10  # up to these, label_renyi takes seconds
_MANY_ROWS = 256  # of two classes, for each of which a sum over all noise is too slow
_MOST_NUMBERS = 2**16  # read from one array at a time: more is slower
_LARGEST_ARRAY = 2**19
_OF_COUNTS = "the Gaussian mechanism on the counts"
_METHODS = {"analytic": gaussian_mu, "rdp": rdp_mu, "label": gaussian_mu}
_ORDERS: FloatArray = np.concatenate([np.arange(1.25, 10, 0.25), np.geomspace(10, 1000, 40)])


@dataclass(frozen=True, kw_only=True)
class GaussianCounts(NoisyCounts):
    """What GNMax and ConfidentGNMax share: all their noise is Gaussian, so any number of labels is one Gaussian.

    Args:
        delta: the delta at which :meth:`guarantee` is stated by default.
    """

    delta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta is not None:
            self._validate("delta", low=0.0, high=1.0, low_open=True, high_open=True)

    def guarantee(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> PrivacyGuarantee:
        """(epsilon, ``delta``) of ``labels`` labels: the smallest of up to three bounds.

        The exact figure of noisy counts, which the labels are a function of. With few known teachers and classes: the
        composition of the worst curve of one label over all neighbouring histograms and, for a :class:`GNMax` with
        overlap 1, the Renyi bound of the labels (``label_renyi``).

        Args:
            labels: Q.
            delta: ``None``: the one that the mechanism was built with.
            overlap: r; ``None``: the one that the mechanism was built with.

        Raises:
            InvalidArgument: no delta given here or when the mechanism was built.
        """
        delta, epsilons = self._bounds(labels, delta, overlap)
        return PrivacyGuarantee(epsilon=min(epsilons.values()), delta=delta)

    def proof(self, *, labels: int = 1, delta: float | None = None, overlap: int | None = None) -> str:
        """A phrase that names the smallest of the bounds of :meth:`guarantee`."""
        _, epsilons = self._bounds(labels, delta, overlap)
        bound = min(epsilons, key=epsilons.__getitem__)
        if bound != _OF_COUNTS:
            bound += f", over all votes of {self.teachers} teachers for {self.classes} classes"
        strength = {name: value for name, value in self._parameters().items() if name not in ("overlap", "delta")}
        return ", ".join([f"by {bound}", *(f"{name} = {value:.6g}" for name, value in strength.items())])

    def _bounds(self, labels: int, delta: float | None, overlap: int | None) -> tuple[float, dict[str, float]]:
        """delta, and at this delta an epsilon by each argument."""
        labels, delta, overlap = check_request(labels, delta, overlap)
        delta, overlap = self.delta if delta is None else delta, overlap or self.overlap
        if delta is None:
            raise InvalidArgument("delta", "given", None, "No delta was given when it was built: guarantee(delta=...)")
        one = overlap * math.sqrt(self._squared_mu()) * (1 + 2.0**-48)
        mu = overlap * math.sqrt(labels * self._squared_mu()) * (1 + 2.0**-48)
        bounds = {
            _OF_COUNTS: gaussian_epsilon(delta, mu),
            "the Renyi bound of the label itself": self._epsilon_of_labels(labels, delta, overlap),
        }
        if delta > 0:
            rest = delta / labels / 1024
            beyond = PrivacyGuarantee(epsilon=gaussian_epsilon(rest, one), delta=rest)
            bounds["the worst curve of the label itself"] = self._listed_epsilon(labels, delta, overlap, beyond)
        return delta, bounds

    @abstractmethod
    def _squared_mu(self) -> float:
        """mu**2 of one label when r = 1."""

    def _epsilon_of_labels(self, labels: int, delta: float, overlap: int) -> float:
        """Epsilon by an argument about the labels themselves; infinite where none is known."""
        return math.inf

    @staticmethod
    def _largest_mu(target: PrivacyGuarantee, *, labels: int, overlap: int, method: str = "analytic") -> float:
        """The root of the largest :meth:`_squared_mu` that keeps ``target`` for all labels, rounded down."""
        check_target(target)
        epsilon = check_number("target.epsilon", target.epsilon, low=0.0, low_open=True, high_open=True)
        delta = check_number("target.delta", target.delta, low=0.0, high=1.0, low_open=True, high_open=True)
        labels = check_integer("labels", labels, low=1, high=MOST_LABELS)
        overlap = check_integer("overlap", overlap, low=1, high=MOST_VOTES)
        return _METHODS[method](epsilon, delta) / (overlap * math.sqrt(labels)) * (1 - 2.0**-41)

    @staticmethod
    def _checked_sigma(target: PrivacyGuarantee, wanted: float, mu: float, *, ratio: float = 1.0) -> float:
        """``wanted / mu``, the noise for ``target``; refused where it, or ``ratio`` times it, is out of range."""
        sigma = wanted / mu if mu else math.inf
        if not SMALLEST_SIGMA <= sigma * min(ratio, 1.0) <= sigma * max(ratio, 1.0) <= LARGEST_SIGMA:
            expected = f"one that noise of {SMALLEST_SIGMA:.2g} to {LARGEST_SIGMA:g} votes keeps"
            cure = f"It needs noise of {sigma:.3g} votes. " + ("Buy fewer labels, or allow more." if sigma > 1 else "")
            raise InvalidArgument("target.epsilon", expected, target.epsilon, cure.strip())
        return sigma


@checked
@dataclass(frozen=True, kw_only=True)
class GNMax(GaussianCounts):
    """GNMax (Papernot et al. 2018): argmax of the counts, each with its own Gaussian noise; any number of classes.

    Guarantee, whatever the teachers promise: one record changes the votes of at most r teachers, and hence the counts
    by at most r sqrt(2) in L2. Proof: one vote that moves from class a to b changes the counts by e_b - e_a, of norm
    sqrt(2); r votes by a sum of r such vectors, and r votes that move alike attain r sqrt(2). So the noisy counts are a
    Gaussian mechanism with mu = r sqrt(2) / sigma, the label is a function of them, and Q labels, requested adaptively,
    are one Gaussian mechanism with mu = r sqrt(2 Q) / sigma (Dong, Roth, Su 2022, Cor. 3.3). Its epsilon and delta are
    exact: Balle & Wang 2018, Theorem 8.

    Noise: normal, rounded to a grid on which the integer counts lie (step 1, finer below sigma = 16). Rounding the
    noise is rounding the noisy counts, a post-processing, so the guarantee of the continuous Gaussian holds unchanged.
    Unlike floating-point noise the rounded noise is drawn exactly, from the operating system's bits. Ties are broken
    uniformly at random.

    Args:
        sigma: standard deviation of the noise, in votes.
        overlap: r, the largest number of teachers that have a record in their training data: 1 for disjoint shards.
        delta: the delta at which :meth:`guarantee` is stated by default.
        teachers: K, ``None`` for any number.
        classes: C, ``None`` for any number; with K it allows :meth:`guarantee` to bound the label itself.

    Raises:
        InvalidArgument: an argument out of range.

    >>> mechanism = GNMax.calibrated(PrivacyGuarantee(epsilon=0.2556, delta=3e-4))
    >>> round(mechanism.sigma, 2), str(mechanism.guarantee(labels=1))
    (13.43, '(0.2556, 0.0003)-DP')
    """

    sigma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._validate("sigma", low=SMALLEST_SIGMA, high=LARGEST_SIGMA)

    @classmethod
    @checked
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
            method: ``"analytic"``: the exact condition for noisy counts. ``"rdp"``: the Renyi bound at its best order,
                which the DaRRM paper uses for GNMax, with up to 1.8 times the noise. ``"label"``: the Renyi bound of
                the label, which is all that is released, with as little as half the noise; it needs ``teachers``,
                ``classes`` and overlap 1, and few of both, because it enumerates all histograms of the votes.
            labels: Q.
            overlap: r.
            teachers: K, ``None`` for any number.
            classes: C, ``None`` for any number.
            insecure_seed: see :class:`Mechanism`.

        Raises:
            InvalidArgument: a target that no Gaussian noise in range keeps, or that needs none; histograms that are
                unknown or too many for ``"label"``.
        """
        if not isinstance(method, str) or method not in _METHODS:
            raise InvalidArgument("method", f"one of {sorted(_METHODS)}", method)
        mechanism = cls(
            sigma=cls._checked_sigma(
                target, math.sqrt(2), cls._largest_mu(target, labels=labels, overlap=overlap, method=method)
            ),
            overlap=overlap,
            delta=target.delta,
            teachers=teachers,
            classes=classes,
            insecure_seed=insecure_seed,
        )
        if method != "label":
            return mechanism
        if not mechanism._knows_label_bound(overlap):
            raise InvalidArgument(
                "method",
                '"analytic" or "rdp"',
                f"{method} with teachers={teachers}, classes={classes}, overlap={overlap}",
                f"The label's own bound needs overlap 1 and few teachers and classes: {_MOST_HISTOGRAMS} histograms of "
                "votes at most",
            )

        @functools.cache
        def excess(sigma: float) -> float:
            tried = replace(mechanism, sigma=sigma)
            epsilon = tried._epsilon_of_labels(labels, target.delta, overlap)
            if epsilon > target.epsilon:  # the guarantee is the smallest of several bounds, some of them expensive
                epsilon = tried.guarantee(labels=labels).epsilon
            return relative_excess(epsilon, target.epsilon)

        enough = mechanism.sigma
        while excess(enough / 2) <= 0:
            enough /= 2
        return replace(mechanism, sigma=last_within(excess, enough, enough / 2, tolerance=2.0**-10))

    def _epsilon_of_labels(self, labels: int, delta: float, overlap: int) -> float:
        """Epsilon by the Renyi bound of the labels themselves; infinite where it is not known."""
        if delta == 0 or not self._knows_label_bound(overlap):
            return math.inf
        assert self.teachers is not None
        assert self.classes is not None
        total = labels * label_renyi(self.sigma, self.teachers, self.classes)
        # (a, t)-RDP is (t + log(1 - 1/a) - (log delta + log a)/(a - 1), delta)-DP (Canonne, Kamath, Steinke 2020,
        # Prop. 12), and Renyi bounds of adaptive labels add up (Mironov 2017, Prop. 1).
        epsilons = total + np.log1p(-1 / _ORDERS) - (math.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1)
        return max(float(epsilons.min()), 0.0) * (1 + 2.0**-40) + 2.0**-40

    def _knows_label_bound(self, overlap: int) -> bool:
        """Whether the label's own bound is known, which may still be infinite where there is hardly any noise."""
        if self.teachers is None or self.classes is None or overlap > 1 or self.sigma > _LARGEST_LABEL_SIGMA:
            return False
        return votes_within(_MOST_HISTOGRAMS, votes=self.teachers, classes=self.classes) == self.teachers

    def _parameters(self) -> dict[str, Any]:
        return {"sigma": self.sigma, "overlap": self.overlap, "delta": self.delta}

    def _notes(self) -> list[str]:
        return [f"noise: normal rounded to multiples of {grid_step(self.sigma)}, drawn exactly"]

    def _squared_mu(self) -> float:
        return 2 / self.sigma**2

    @property
    def _terms(self) -> float:
        return 20 * self.sigma / grid_step(self.sigma)

    def _draw(self, counts: IntArray) -> IntArray:
        return noisy_argmax(counts, *gaussian_noise(self.sigma), self._bits)

    def _law(self, counts: IntArray) -> FloatArray:
        return gaussian_argmax_law(counts, self.sigma)


def grid_step(sigma: float) -> float:
    """The grid of the noise: 1, or the largest 2**-k that is at most sigma / 16."""
    return min(1.0, 2.0 ** math.floor(math.log2(sigma / 16)))


@functools.lru_cache(maxsize=16)
def gaussian_noise(sigma: float) -> tuple[Magnitudes, int]:
    """Noise in units of the grid, and the number of these units in one vote."""
    step = grid_step(sigma)
    return Magnitudes(GaussianTail(sigma, step)), round(1 / step)


def gaussian_stride(sigma: float, classes: int) -> int:
    """h, where every h-th value of Gaussian noise suffices for its law: the others change it by less than 1e-12.

    The summand is an entire function of the noise k. With s = ``sigma`` in units of the grid, each of its C factors
    grows by at most exp(y**2 / (2 s**2)) where k has the imaginary part y. So h times the sum over every h-th k differs
    from the integral by about 2 exp(-2 pi**2 s**2 / (C h**2)) at most (trapezoidal rule; Trefethen and Weideman 2014,
    theorem 5.1, at the best y): 1e-13 at h = 0.8 s / sqrt(C). The second bound of h keeps enough values of wide noise
    to average their rounding errors.
    """
    units = sigma / grid_step(sigma)
    return max(1, math.floor(min(0.8 * units / math.sqrt(classes), 2.0**20 / units)))


def noisy_argmax(counts: IntArray, noise: Magnitudes, unit: int, bits: RandomBits) -> IntArray:
    """argmax of ``unit * counts`` plus independent signed noise, ties broken uniformly: (B, C) -> (B,)."""
    return fair_argmax(unit * counts + noise.signed(bits, *counts.shape), bits)


def noisy_argmax_law(counts: IntArray, noise: Magnitudes, unit: int, stride: int = 1) -> FloatArray:
    """The law of :func:`noisy_argmax`, (B, C) -> (B, C): a finite sum, no sampling; the error is below 1e-12.

    The sum takes every ``stride``-th value of the noise, see :func:`gaussian_stride`; 1 is for any noise.

    Class c draws noise k with probability p(k) and then wins with probability E[1/(1 + ties)]: each rival j is below
    with probability F_j and level with p_j, so that is the integral over t in [0, 1] of prod_j (F_j + t p_j), see
    :func:`tie_quadrature`. Noise beyond the table is left out: less than 2**-63 for each class.
    """
    rows, inverse = np.unique(counts, axis=0, return_inverse=True)
    if rows.shape[1] == 2 and len(rows) > _MANY_ROWS:
        return _law_of_two(rows, noise.symmetric_law(), unit)[inverse.reshape(-1)]
    order = np.argsort(counts, axis=1)  # classes are alike
    rows, inverse = np.unique(np.take_along_axis(counts, order, axis=1), axis=0, return_inverse=True)
    law = np.empty(counts.shape)
    np.put_along_axis(law, order, _argmax_law(rows, noise.symmetric_law(), unit, stride)[inverse.reshape(-1)], axis=1)
    return law


def gaussian_argmax_law(counts: IntArray, sigma: float) -> FloatArray:
    """The law of :func:`noisy_argmax` with Gaussian noise, (B, C) -> (B, C); the error is below 1e-12."""
    return noisy_argmax_law(counts, *gaussian_noise(sigma), gaussian_stride(sigma, counts.shape[1]))


def _law_of_two(rows: IntArray, noise: FloatArray, unit: int) -> FloatArray:
    """The law for two classes, from that of the difference of their noise: the same but for rounding, at once."""
    size = 2 * noise.size - 1
    cells = fft.next_fast_len(size, real=True)
    difference = np.maximum(fft.irfft(fft.rfft(noise, cells) ** 2, cells)[:size], 0.0)  # of symmetric noise: the sum
    below = np.concatenate([[0.0], np.cumsum(difference)])
    at = noise.size - 1 + unit * (rows[:, 0] - rows[:, 1])
    tie = np.append(difference, 0.0)[np.where((at >= 0) & (at < size), at, -1)]
    first = below[np.clip(at, 0, size)] + tie / 2
    return np.stack([first, np.maximum(below[-1] - first, 0.0)], axis=1)


def _argmax_law(rows: IntArray, noise: FloatArray, unit: int, stride: int = 1) -> FloatArray:
    """The law for noise with these probabilities of -R, ..., R: sums of products of non-negative numbers only.

    The winner's noise takes every ``stride``-th of these values, which stands for as many.
    """
    size = noise.size
    far = (
        min(size, unit * int(np.ptp(rows))) if rows.size else 0
    )  # a rival's factor at another level is a slice, this far away at most
    sums = np.cumsum(noise)  # Pr[noise <= its value]
    below = np.concatenate([np.zeros(far + 1), sums[:-1], np.full(far, sums[-1])])
    tie = np.concatenate([np.zeros(far), noise, np.zeros(far)])
    nodes, weights = tie_quadrature(rows.shape[1])
    own_noise = stride * noise[::stride]
    levels_of = [np.unique(votes, return_inverse=True, return_counts=True) for votes in rows]
    at_once = max(1, min(_MOST_NUMBERS * stride, _LARGEST_ARRAY) // below.size)
    result = np.zeros(rows.shape)
    for first in range(0, nodes.size, at_once):
        chosen = slice(first, first + at_once)
        powers = {1: below + nodes[chosen, None] * tie}

        def power(count: int, powers: dict[int, FloatArray] = powers) -> FloatArray:
            if count not in powers:
                powers[count] = power(count // 2) * power(count - count // 2)
            return powers[count]

        for row, (levels, which, sizes) in enumerate(levels_of):
            for own, level in enumerate(levels):
                product = np.ones((powers[1].shape[0], own_noise.size))
                for rival, count in enumerate((sizes - (np.arange(sizes.size) == own)).tolist()):
                    start = far + max(-far, min(far, unit * int(level - levels[rival])))
                    if count:
                        product *= power(count)[:, start : start + size : stride]
                result[row, which == own] += weights[chosen] @ product @ own_noise
    return result


@functools.lru_cache(maxsize=64)
def label_renyi(sigma: float, teachers: int, classes: int) -> FloatArray:
    """Upper bounds of the Renyi divergence of one GNMax label when one vote changes, for each order in ``_ORDERS``.

    Formal guarantee: for each order a and any two histograms of ``teachers`` votes over ``classes`` classes that differ
    in one vote, log(sum over labels of p**a q**(1 - a)) / (a - 1) is at most this. All pairs are enumerated, up to the
    names of the classes. Their laws are finite sums of products of non-negative numbers. Noise beyond 10 sigma and more
    is left out, which makes q smaller, and its whole probability is added to p. Rounding causes relative errors only,
    and a bound of these is added.
    """
    space, step = standings(teachers, classes), grid_step(sigma)
    before, after = space.neighbours
    alike = max(0, classes - teachers - 2)  # classes, besides one more, that have no votes before or after
    width = min(10 + 2 * teachers / sigma, 37.0)  # of the noise, in sigmas: beyond 37 its density underflows
    reach = math.ceil(width * sigma / step)
    nodes, weights = np.polynomial.legendre.leggauss(12)  # the density over each cell of the grid
    places = (np.arange(-reach, reach + 1)[:, None] + nodes / 2) * (step / sigma)
    noise = np.exp(-places * places / 2) @ weights * (step / sigma / 2 / math.sqrt(2 * math.pi))
    law = space.per_standing(_argmax_law(space.counts, noise, round(1 / step)))
    left_out = 2 * classes * float(special.ndtr(-width)) * (1 + 2.0**-20)
    rounding = classes * noise.size * 2.0**-47  # relative, of each probability: long sums of long products
    with np.errstate(divide="ignore", invalid="ignore"):
        p, q = np.log(law[before[:, alike:]] + left_out), np.log(law[after[:, alike:]])
        times = np.append(alike + 1.0, np.ones(p.shape[1] - 1))
        worst = np.array([_log_sum(a * p + (1 - a) * q, times).max() for a in _ORDERS])
    return np.asarray((np.maximum(worst, 0.0) + 2 * rounding * _ORDERS) / (_ORDERS - 1))


def _log_sum(logs: FloatArray, times: FloatArray) -> FloatArray:
    """log(exp(logs) @ times), where the largest may be infinite: ``scipy.special.logsumexp`` at a tenth of its cost."""
    top = logs.max(axis=1)
    return np.asarray(top + np.log(np.exp(np.nan_to_num(logs - top[:, None], nan=0.0)) @ times))
