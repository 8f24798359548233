"""Noise functions: the probability of reporting the majority at each number of votes, and the classical choices.

h(l) = sign(2 l - K) gamma(l),      Pr[label 1 | l votes for 1] = (1 + h(l)) / 2
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import as_array, checked
from ..arrays import FloatArray
from ..errors import DarrmError, InvalidArgument, PrivacyViolation, check_integer, check_number
from ..privacy.guarantees import PrivacyGuarantee, check_guarantee
from ..reprs import cut
from .certificate import Certificate, certify_region
from .grid import GRID, MOST_TEACHERS, gamma_digest, label_law, on_grid
from .priors import IndependentVotes, Prior, check_prior, majority_lead, vote_law
from .regions import Region, Teacher, check_overlap, check_target, teacher_profile
from .self_bounding import SelfBoundingCertificate, certify_self_bounding

_MOST_STEPS = 10**7  # products of big integers

__all__ = ["NoiseFunction", "constant_noise", "double_subsampling_noise", "self_bounding_noise", "subsampling_noise"]

FORMAT = 1  # of the text of a noise function; a text without a number has this one


@checked
@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseFunction:
    """The probability gamma(l) of reporting the majority of K teachers at l votes for 1; otherwise a fair coin decides.

    Attributes:
        gamma: float64 ``(K + 1,)``, read-only, symmetric, multiples of 2^-53 in [0, 1] (rounded down on construction),
            so that every label probability is a multiple of 2^-54. At a tie the label is always a fair coin.
        certificate: the proof for exactly this gamma; None if nothing has been proven.

    Raises:
        InvalidArgument: ``gamma`` is not of this form.
        PrivacyViolation: the certificate was issued for another gamma.

    Write :meth:`to_json` to a file to store a noise function; :meth:`from_json` proves its certificate again.

    >>> NoiseFunction(gamma=[1, 0.5, 0.5, 1]).label_probability([0, 1, 2, 3]).tolist()
    [0.0, 0.25, 0.75, 1.0]
    >>> noise = self_bounding_noise(teachers=3, allowance=1)
    >>> NoiseFunction.from_json(noise.to_json()) == noise
    True
    >>> print(noise.certificate)
    Proven: Q labels of 3 (eps, delta)-DP teachers are together (Q m eps, Q m delta)-DP with m = 1, if each record ...
    """

    gamma: FloatArray
    certificate: Certificate | SelfBoundingCertificate | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", on_grid(self.gamma))
        if self.certificate is not None and self.certificate.digest != gamma_digest(self.gamma):
            raise PrivacyViolation("the certificate was issued for another noise function; certify this one")

    @property
    def teachers(self) -> int:
        """K."""
        return len(self.gamma) - 1

    @property
    def target(self) -> PrivacyGuarantee | None:
        """The proven guarantee of one label; None without a :class:`Certificate`."""
        return self.certificate.target if isinstance(self.certificate, Certificate) else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NoiseFunction):
            return NotImplemented
        return np.array_equal(self.gamma, other.gamma) and self.certificate == other.certificate

    def __hash__(self) -> int:
        return hash(gamma_digest(self.gamma))

    def label_probability(self, counts: npt.ArrayLike) -> FloatArray:
        """Pr[label 1] for each number of votes for 1: float64 of the shape of ``counts``.

        Raises:
            InvalidArgument: counts that are not integers in [0, K].
        """
        votes = as_array("counts", counts, f"integers in [0, {self.teachers}]")
        if votes.dtype.kind not in "iu" or np.any((votes < 0) | (votes > self.teachers)):
            raise InvalidArgument("counts", f"integers in [0, {self.teachers}]", counts)
        return np.asarray(label_law(self.gamma)[votes])

    def error(self, vote_probabilities: npt.ArrayLike) -> Any:
        """The distance of the label's law from the noise-free majority's, ``|Pr[label 1] - Pr[majority 1]|``, exact.

        This is the paper's error ``E(DaRRM) = |1/2 sum_{l > K/2} (alpha_l - alpha_{K-l}) (1 - gamma(l))|``.

        Args:
            vote_probabilities: ``(..., K)``, each teacher's probability of voting 1.

        Returns:
            ``(...)`` float64.

        Raises:
            InvalidArgument: another shape, or numbers outside [0, 1].
        """
        expected = f"(..., {self.teachers}) numbers in [0, 1]"
        chances = as_array("vote_probabilities", vote_probabilities, expected).astype(np.float64)
        if chances.ndim < 1 or chances.shape[-1] != self.teachers or not np.all((chances >= 0) & (chances <= 1)):
            raise InvalidArgument("vote_probabilities", expected, vote_probabilities)
        return np.abs(majority_lead(vote_law(chances)) @ self._withheld) / 2

    @property
    def _withheld(self) -> FloatArray:
        """1 - gamma(l) for l > K/2."""
        return 1.0 - self.gamma[self.teachers // 2 + 1 :]

    @checked
    def expected_error(self, prior: Prior, *, samples: int = 100_000, seed: int = 0) -> tuple[float, float]:
        """The error averaged over a prior, and its standard error.

        The average is exact (standard error 0) where the sign of the error is known: for a shared probability, or for
        independent ones on one side of 1/2. Otherwise it is the mean over ``samples`` seeded draws.

        Raises:
            InvalidArgument: not a prior for two classes, or fewer than 2 samples where it has to draw.
        """
        check_integer("samples", samples, low=2, high=10**7)
        check_integer("seed", seed, low=0)
        weights = check_prior(prior).lead_weights(self.teachers)
        if weights is not None:
            return float(weights @ self._withheld) / 2, 0.0
        assert isinstance(prior, IndependentVotes)
        rng = np.random.default_rng([seed, samples])
        block = max(1, (1 << 22) // (self.teachers + 1))
        sizes = [min(block, samples - start) for start in range(0, samples, block)]
        errors = np.concatenate([self.error(prior.sample(self.teachers, size, rng)) for size in sizes])
        return float(errors.mean()), float(errors.std(ddof=1) / math.sqrt(samples))

    def __repr__(self) -> str:
        gamma = np.array2string(self.gamma, separator=", ", threshold=16, max_line_width=2**10)
        tie = "" if self.teachers % 2 else f"; {self.teachers // 2} votes are a tie, and a fair coin decides"
        return f"NoiseFunction(gamma={gamma}, certificate={cut(self.certificate)}{tie})"

    def to_json(self) -> str:
        """The noise function as text; :meth:`from_json` restores it bit for bit."""
        plain = {"format": FORMAT, "gamma": self.gamma.tolist(), "certificate": _to_plain(self.certificate)}
        if self.teachers % 2 == 0:
            plain["tie"] = f"gamma[{self.teachers // 2}] is not used: at a tie a fair coin decides"
        return json.dumps(plain)

    @classmethod
    @checked
    def from_json(cls, text: str) -> NoiseFunction:
        """The noise function that :meth:`to_json` wrote. Its certificate is proven again, never trusted.

        Raises:
            InvalidArgument: text that is not a noise function, or one that a newer version wrote.
            PrivacyViolation: the stated certificate does not hold for this gamma.
        """
        try:
            plain = json.loads(text)
            if operator.index(plain.get("format", 1)) > FORMAT:
                cure = "A newer version of darrm-torch wrote it: install that one."
                raise InvalidArgument("format", f"{FORMAT} or older", plain["format"], cure)
            noise, claim = cls(gamma=plain["gamma"]), plain["certificate"]
            return noise if claim is None else replace(noise, certificate=_recertified(noise.gamma, claim))
        except DarrmError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise InvalidArgument("text", "a noise function written by to_json", text[:80]) from None


def _to_plain(certificate: Certificate | SelfBoundingCertificate | None) -> dict[str, Any] | None:
    """The fields that are needed to prove a certificate again."""
    if certificate is None:
        return None
    common = {"overlap": certificate.overlap, "optimality_gap": certificate.optimality_gap}
    if isinstance(certificate, SelfBoundingCertificate):
        return {"kind": "self-bounding", "allowance": certificate.allowance, **common}
    return {
        "kind": "label",
        "teacher": [[point.epsilon, point.delta] for point in certificate.teacher],
        "target": [certificate.target.epsilon, certificate.target.delta],
        "rigorous": certificate.rigorous,
        **common,
    }


def _recertified(gamma: FloatArray, claim: dict[str, Any]) -> Certificate | SelfBoundingCertificate:
    """The certificate that :func:`_to_plain` described, proven for ``gamma``."""
    overlap = check_overlap(claim["overlap"], len(gamma) - 1)
    certificate: Certificate | SelfBoundingCertificate | None
    if claim["kind"] == "self-bounding":
        allowance = check_number("allowance", claim["allowance"])
        certificate = certify_self_bounding(gamma, overlap=overlap, allowance=allowance)
        if certificate is None:
            raise PrivacyViolation(f"gamma is not {allowance}-self-bounding for overlap {overlap}")
    elif claim["kind"] == "label":
        first, *more = (PrivacyGuarantee(epsilon=epsilon, delta=delta) for epsilon, delta in claim["teacher"])
        epsilon, delta = claim["target"]
        certificate = certify_region(
            gamma,
            region=Region(guarantees=(first, *more)),
            overlap=overlap,
            target=check_target(PrivacyGuarantee(epsilon=epsilon, delta=delta)),
            rigorous=claim["rigorous"],
        )
    else:
        raise ValueError(claim["kind"])
    gap = claim["optimality_gap"]
    if gap is not None:
        gap = check_number("optimality_gap", gap, low=0.0, high=math.inf, high_open=True)
    return replace(certificate, optimality_gap=gap)


@checked
def subsampling_noise(*, teachers: int, allowance: int) -> NoiseFunction:
    """gamma_Sub: the majority of ``allowance`` teachers drawn without replacement (the paper's Lemma 3.1).

    With an even allowance a fair coin breaks a tie in the sample, which gives the majority of one teacher fewer. The
    noise function is m-self-bounding for m = (allowance + 1) // 2, exactly, also after rounding to multiples of 2^-53.

    It has no certificate; :func:`darrm_torch.strongest_mechanism` builds the same one with a certificate.

    Raises:
        InvalidArgument: an allowance that is not an integer in [1, K].

    >>> subsampling_noise(teachers=3, allowance=1).gamma[2:].round(4).tolist()
    [0.3333, 1.0]
    >>> from darrm_torch import strongest_mechanism
    >>> proven = strongest_mechanism("subsampling", teachers=3, classes=2, allowance=1)
    >>> proven.noise.gamma[2:].round(4).tolist(), proven.certificate.allowance
    ([0.3333, 1.0], 1.0)
    """
    count = check_integer("teachers", teachers, low=1, high=MOST_TEACHERS)
    sample = check_integer("allowance", allowance, low=1, high=count)
    if count * min(sample, count - sample) > _MOST_STEPS:
        cure = "The exact binomials would take minutes; self_bounding_noise is better and quick."
        raise InvalidArgument("allowance", f"at most {_MOST_STEPS // count} for {count} teachers", allowance, cure)

    def minority(majority: int) -> Fraction:
        # Samples with a majority of ones, minus those with a majority of zeros; sampled ties cancel.
        rest, lead = count - majority, 0
        first = max(0, sample - rest)
        ways = math.comb(majority, first) * math.comb(rest, sample - first)
        for ones in range(first, min(majority, sample) + 1):
            lead += ways * ((2 * ones > sample) - (2 * ones < sample))
            ways = ways * (majority - ones) * (sample - ones) // ((ones + 1) * (rest - sample + ones + 1))
        return (1 - Fraction(lead, math.comb(count, sample))) / 2

    return NoiseFunction(gamma=_least_noise(count, Fraction((sample + 1) // 2), count, minority))


@checked
def double_subsampling_noise(*, teachers: int, allowance: int) -> NoiseFunction:
    """gamma_DSub: the majority of ``2 allowance - 1`` teachers (the paper's Theorem 4.1), or of all.

    It is ``allowance``-self-bounding: the guarantee of subsampling ``allowance`` teachers, with twice the sample.

    Raises:
        InvalidArgument: an allowance that is not an integer in [1, K].

    >>> double_subsampling_noise(teachers=3, allowance=2).gamma.tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    count = check_integer("teachers", teachers, low=1, high=MOST_TEACHERS)
    votes = check_integer("allowance", allowance, low=1, high=count)
    return subsampling_noise(teachers=count, allowance=min(2 * votes - 1, count))


@checked
def constant_noise(
    *,
    teachers: int,
    teacher: Teacher,
    target: PrivacyGuarantee,
    composed: PrivacyGuarantee | None = None,
) -> NoiseFunction:
    """gamma_const: randomized response on the majority, by the paper's closed form (its Lemma A.1).

    The closed form is far from the best constant, which ``optimize_noise(shape="constant")`` finds with a certificate.
    This one has no certificate; :func:`certify` issues one, as below.

    Args:
        teachers: K.
        teacher: what each teacher promises: a guarantee, or a sequence with one for each of the K teachers, which
            stands for the weakest. The formula is for one point (eps, Delta).
        target: the guarantee that one label should keep.
        composed: the guarantee of the noise-free majority, (tau eps, lambda); None composes K teachers simply,
            (K eps, K Delta).

    Raises:
        InvalidArgument: bad input, or a profile of more than one point.

    >>> teacher, target = PrivacyGuarantee(epsilon=0.1), PrivacyGuarantee(epsilon=0.3)
    >>> noise = constant_noise(teachers=11, teacher=teacher, target=target)
    >>> round(float(noise.gamma[0]), 4)
    0.2975
    >>> from darrm_torch import certify
    >>> proof = certify(noise.gamma, teachers=11, teacher=teacher, target=target)
    >>> print(replace(noise, certificate=proof).certificate)  # replace: of dataclasses
    Proven: one label of 11 teachers that are (0.1, 0)-DP is (0.3, 0)-DP, if each record is in the training ...
    """
    count = check_integer("teachers", teachers, low=1, high=MOST_TEACHERS)
    points = teacher_profile(teacher, count).guarantees()
    if len(points) > 1:
        raise InvalidArgument("teacher", "a promise of one point", points, "Pass one of its guarantees: any is sound.")
    if composed is None:
        composed = PrivacyGuarantee(epsilon=count * points[0].epsilon, delta=min(1.0, count * points[0].delta))
    check_guarantee("composed", composed, expected="a PrivacyGuarantee or None")
    label, lost = check_target(target), composed.delta
    # The largest q - e^E q' over the region of the majority, divided by e^E throughout. It is at the tilted corner, or
    # at (lambda, 0) when the majority is more private than the target.
    shrink, odds = math.exp(-label.epsilon), math.exp(-composed.epsilon)
    tilted = (shrink * (1 + odds * lost) - odds * (1 - lost)) / (1 + odds)
    worst = max(tilted, shrink * lost)
    coin = (1 - shrink) / 2
    budget = coin + shrink * label.delta
    value = 1.0 if coin + worst <= budget else budget / (coin + worst)
    return NoiseFunction(gamma=np.full(count + 1, value))


@checked
def self_bounding_noise(
    *,
    teachers: int,
    allowance: float,
    overlap: int | None = None,
) -> NoiseFunction:
    """The best noise function whose costs add up: Q labels are (Q m eps, Q m Delta)-DP with m = ``allowance``.

    Formal guarantee: that of its :class:`SelfBoundingCertificate`. It holds at every (eps, Delta) that the teachers
    keep, for any number of labels from the same trained teachers (theory, section 9). One noise function is the best at
    every count of votes, so under every prior.

    Args:
        teachers: K >= 1, odd or even.
        allowance: m > 0, real. At 1 this is subsampling one teacher; from (K + 1) / 2 on the majority needs no noise.
        overlap: r, the largest number of teachers whose training data one record is in; None for all.

    Raises:
        InvalidArgument: bad input.

    >>> self_bounding_noise(teachers=11, allowance=2).gamma[6:].round(4).tolist()
    [0.2, 0.52, 0.76, 0.92, 1.0, 1.0]
    """
    count = check_integer("teachers", teachers, low=1, high=MOST_TEACHERS)
    m = check_number("allowance", allowance, low=0.0, low_open=True, high=math.inf, high_open=True)
    affected = check_overlap(overlap, count)
    gamma = _least_noise(count, Fraction(m), affected, lambda _: Fraction(0))
    certificate = certify_self_bounding(gamma, overlap=affected, allowance=m)
    assert certificate is not None
    return NoiseFunction(gamma=gamma, certificate=replace(certificate, optimality_gap=0.0))


def _least_noise(teachers: int, allowance: Fraction, overlap: int, at_least: Callable[[int], Fraction]) -> FloatArray:
    """The pointwise largest self-bounding gamma(0..K) on the grid with Pr[minority label | majority] >= ``at_least``.

    With u(l) = Pr[minority label | l votes for the majority] and a_j = (1 - m / min(j, r))_+, the conditions are

        u(l) >= a_{K-l+1} u(l-1)    and    1 - u(l-1) >= a_l (1 - u(l)),

    starting from u = 1/2 at a tie, or from u(h) >= a_h (1 - u(h)) at h = (K + 1) / 2. Each condition bounds u(l) from
    below by a nondecreasing function of u(l-1), so the smallest u at each step is the smallest everywhere. The values
    are whole units of 2^-54, rounded up, so the conditions hold exactly.
    """
    unit, gamma = 2 * GRID, np.zeros(teachers + 1)
    minority = unit // 2

    def kept(votes: int) -> Fraction:
        return max(1 - allowance / min(votes, overlap), Fraction(0))

    for majority in range(teachers // 2 + 1, teachers + 1):
        held = kept(majority)
        bounds = [unit * at_least(majority)]
        if 2 * majority == teachers + 1:
            bounds.append(unit * held / (1 + held))
        else:
            bounds.append(minority * kept(teachers - majority + 1))
            if held:
                bounds.append(unit - (unit - minority) / held)
        minority = max(math.ceil(bound) for bound in bounds)
        gamma[majority] = gamma[teachers - majority] = (GRID - minority) / GRID
    return gamma
