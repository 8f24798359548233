"""Finds noise functions: a linear program, solved by cutting planes with the exact oracle.

The program has one variable gamma(l) for each l > K/2 and one constraint for each way to place the teachers at corners
of their region. The search starts without constraints, asks the oracle for violated ones, adds them, and repeats. The
solution is only a proposal; it becomes a noise function when :mod:`certificate` has proven it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import highspy
import numpy as np
from scipy import sparse

from ..arguments import checked
from ..arrays import FloatArray
from ..errors import DarrmError, InvalidArgument, check_integer
from ..privacy.guarantees import PrivacyGuarantee
from .certificate import certify_scaled
from .function import NoiseFunction
from .grid import label_law, on_grid
from .priors import IndependentVotes, Prior, check_prior, majority_lead, vote_law
from .regions import Region, Teacher, check_overlap, check_target, growth_at_least, teacher_region
from .worst_case import Losses, worst_losses

__all__ = ["MOST_OPTIMIZED", "TOO_MANY", "optimize_noise"]

_FEASIBLE = 1e-10  # the tolerance of the solver
_TOLERANCE = 1e-9  # relative violation at which the search for constraints ends; certification removes the rest
_LEAST_BUDGET = 1e-14  # smallest delta + (e^epsilon - 1) / 2 to solve for: HiGHS accepts no coefficients above 1e15
_CUTS = 64  # constraints added per round
MOST_OPTIMIZED = 2_000  # a thousand teachers take ten seconds, two thousand a minute
TOO_MANY = "The search for more would take minutes. self_bounding_noise and subsampling_noise are quick for many."
_SAMPLES, _SEED = 3000, 20240  # draws from the prior where the expected error has no closed form


@checked
def optimize_noise(
    *,
    teachers: int,
    teacher: Teacher,
    target: PrivacyGuarantee,
    overlap: int | None = None,
    prior: Prior = IndependentVotes(mean=0.75),  # noqa: B008 (frozen)
    shape: Literal["monotone", "free", "constant"] = "monotone",
    objective: str = "surrogate",
    on_progress: Callable[[float], None] = lambda excess: None,
) -> NoiseFunction:
    """The noise function that reports the majority most often, subject to the privacy of one label.

    Formal guarantee: that of its :class:`Certificate`: one label is ``target``-DP.

    Args:
        teachers: K >= 1, odd or even.
        teacher: what each teacher promises as a trained model: a guarantee, a profile, or a sequence with one of these
            for each of the K teachers, which stands for the weakest. Several guarantees that each teacher keeps at the
            same time are one profile, ``PrivacyProfile.from_guarantee(g1, g2, ...)``.
        target: the guarantee of one label.
        overlap: r, the largest number of teachers whose training data one record is in; None for all.
        prior: the expected votes. It decides where the noise is small and never affects privacy.
        shape: "monotone" (more votes for 1 never make label 1 less likely), "free" (any gamma, as in the paper) or
            "constant" (the same gamma for all votes: the best randomized response on the majority, at least as large as
            the closed form of :func:`constant_noise`).
        objective: "surrogate", the paper's, drops the absolute value in the expected error; "expected_error" keeps it.
        on_progress: called after each of the few to a few dozen rounds of the search, with the excess of the current
            solution's delta over the target's.

    Raises:
        InvalidArgument: bad input, or more combinations of corners than can be searched. With overlap K, the monotone
            shape takes seconds up to K = 2,500 for one guarantee and up to K = 150 for two, and is refused for two
            beyond K = 580. The free shape is refused beyond K = 80 if Delta > 0.

    >>> noise = optimize_noise(
    ...     teachers=3, teacher=PrivacyGuarantee(epsilon=0.1), target=PrivacyGuarantee(epsilon=0.1)
    ... )
    >>> noise.gamma.round(6).tolist()
    [1.0, 0.333333, 0.333333, 1.0]
    >>> point, target = PrivacyGuarantee(epsilon=0.1, delta=1e-5), PrivacyGuarantee(epsilon=0.3, delta=3e-5)
    >>> constant = optimize_noise(teachers=11, teacher=point, target=target, shape="constant")
    >>> round(float(constant.gamma[0]), 3)
    0.872
    """
    count = check_integer("teachers", teachers, low=1, high=MOST_OPTIMIZED, cure=TOO_MANY)
    problem = _Problem(
        count,
        teacher_region(teacher, count),
        check_overlap(overlap, count),
        check_target(target),
        monotone=shape == "monotone",
    )
    goal = _goal(check_prior(prior), count, objective)
    half = np.ones((count + 1) // 2)
    gamma, certificate = problem.certify(half)
    best = goal.value(half)
    if shape == "constant":  # certify found the largest multiple of gamma = 1, to 2^-48
        best = goal.value(gamma[count // 2 + 1 :]) * (1 + 2.0**-40)
    elif not np.all(gamma[count // 2 + 1 :] == 1):
        half, best = problem.solve(goal, on_progress)
        gamma, certificate = problem.certify(half)
    gap = max(0.0, best - goal.value(gamma[count // 2 + 1 :]))
    return NoiseFunction(gamma=gamma, certificate=replace(certificate, optimality_gap=gap))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Goal:
    """The objective to maximise: ``weights @ gamma`` minus the mean over samples of ``|leads @ (1 - gamma)|``."""

    weights: FloatArray  # (n,), for gamma(l), l > K/2
    leads: FloatArray  # (samples, n)

    def value(self, half: FloatArray) -> float:
        lost = np.abs(self.leads @ (1 - half))
        return float(self.weights @ half) - (float(lost.mean()) if len(lost) else 0.0)


def _goal(prior: Prior, teachers: int, objective: str) -> _Goal:
    none = np.zeros((0, (teachers + 1) // 2))
    if objective == "surrogate":
        law = prior.law(teachers)
        weights = majority_lead(law)
        if np.abs(weights).max() <= 1e-12 * law.max():
            raise InvalidArgument(
                "prior",
                'asymmetric between 1 and 0 with objective="surrogate"',
                prior,
                'The surrogate is zero for every gamma; use objective="expected_error".',
            )
        return _Goal(weights=weights if weights.sum() > 0 else -weights, leads=none)
    if objective != "expected_error":
        raise InvalidArgument("objective", '"surrogate" or "expected_error"', objective)
    known = prior.lead_weights(teachers)
    if known is not None:
        return _Goal(weights=known, leads=none)
    assert isinstance(prior, IndependentVotes)
    votes = prior.sample(teachers, _SAMPLES, np.random.default_rng(_SEED))
    return _Goal(weights=np.zeros(none.shape[1]), leads=majority_lead(vote_law(votes)))


def _mirrored(half: FloatArray, teachers: int) -> FloatArray:
    """gamma(0..K) from gamma(l), l > K/2; 0 at a tie."""
    tie = np.zeros(1 - teachers % 2)
    return np.concatenate([half[::-1], tie, half])


class _Problem:
    """The constraints of the program."""

    def __init__(
        self, teachers: int, region: Region, overlap: int, target: PrivacyGuarantee, *, monotone: bool
    ) -> None:
        self.teachers, self.region, self.overlap, self.target = teachers, region, overlap, target
        self.monotone = monotone
        self.growth = growth_at_least(target.epsilon)
        self.coin = (1 - self.growth) / 2  # the loss of gamma = 0
        self.budget = target.delta - self.coin
        self.known: set[bytes] = set()

    def certify(self, half: FloatArray) -> tuple[FloatArray, Any]:
        gamma = on_grid(_mirrored(half, self.teachers))
        return certify_scaled(gamma, region=self.region, overlap=self.overlap, target=self.target)

    def solve(self, goal: _Goal, on_progress: Callable[[float], None]) -> tuple[FloatArray, float]:
        """The best gamma(l), l > K/2, and an upper bound of the goal."""
        if self.budget == 0:  # epsilon = delta = 0: the votes must have no influence
            half = np.zeros_like(goal.weights)
            return half, goal.value(half)
        lp = _Program(goal, nondecreasing=self.monotone)
        if len(self.region.chain) == 1 and self.budget >= _LEAST_BUDGET:
            # Teachers without privacy: r votes more. Nearly all of these few cases bind, and the search finds them one
            # after the other.
            lead = majority_lead(np.eye(self.teachers + 1))
            rows = lead[self.overlap :] - self.growth * lead[: -self.overlap]
            lp.add_rows(rows / (2 * self.budget), np.ones(len(rows)))
        while True:
            half = lp.solve()
            if self.monotone:  # the solver's solution is ordered only up to its tolerance
                half = np.maximum.accumulate(half)
            found = self._violated(half)
            if not len(found.losses):  # no new violation: what remains is the solver's tolerance
                return half, lp.bound()
            if self.budget < _LEAST_BUDGET:  # then gamma is 0 or nearly so
                return np.zeros_like(half), lp.bound()
            on_progress(float(found.losses.max()) - self.target.delta)
            lp.add_rows(self._rows(found), np.ones(len(found.losses)))

    def _violated(self, half: FloatArray) -> Losses:
        law = label_law(_mirrored(half, self.teachers))
        kinds = (True,) if self.monotone else (True, False)  # the chain first: it has nearly all binding constraints
        for monotone in kinds:
            found = worst_losses(
                law,
                region=self.region,
                overlap=self.overlap,
                growth=self.growth,
                monotone=monotone,
                most=_CUTS,
            )
            names = [
                bytes([monotone]) + np.append(*case).tobytes() for case in zip(found.counts, found.ones, strict=True)
            ]
            bad = found.losses - self.coin > self.budget * (1 + _TOLERANCE)
            bad &= np.array([name not in self.known for name in names])
            self.known.update(name for name, new in zip(names, bad, strict=True) if new)
            found = Losses(found.corners, found.losses[bad], found.counts[bad], found.ones[bad])
            if bad.any():
                break
        return found

    def _rows(self, found: Losses) -> FloatArray:
        """Coefficients of gamma(l), l > K/2, such that each case reads ``row @ gamma <= 1``."""
        here, there = (majority_lead(vote_law(votes)) for votes in found.votes(self.teachers))
        return (here - self.growth * there) / (2 * self.budget)


class _Program:
    """The goal over 0 <= gamma <= 1, and rows that are added during the search (HiGHS, dual simplex).

    The variables are gamma(l) for l > K/2, and for each sample t >= |leads @ (1 - gamma)|.
    """

    def __init__(self, goal: _Goal, *, nondecreasing: bool) -> None:
        samples, size = goal.leads.shape
        self._size, self._reward = size, np.concatenate([goal.weights, np.full(samples, -1 / max(samples, 1))])
        # Costs are relative to the whole goal, not to one sample: dual prices in the hundreds stall the dual simplex.
        self._scale = 1.0 if samples else float(np.abs(goal.weights).max())
        # A nudge above the solver's tolerance makes gamma as large as possible where the prior has no weight.
        nudge = np.where(np.arange(size + samples) < size, 1e-9, 0.0)
        # The wrapper highspy.Highs prints a banner before it can be silenced; its base class is sufficient.
        self._highs = highs = highspy._Highs()  # type: ignore[attr-defined]
        for option, value in {"output_flag": False, "threads": 1, "random_seed": 0}.items():
            highs.setOptionValue(option, value)
        self._tolerate(_FEASIBLE)
        columns = size + samples
        highs.addVars(columns, np.zeros(columns), np.ones(columns))
        highs.changeColsCost(columns, np.arange(columns, dtype=np.int32), -(self._reward / self._scale + nudge))
        self._rows = sparse.csr_array((0, columns))
        self._limits = np.zeros(0)
        if nondecreasing and size > 1:
            order = sparse.diags_array([1.0, -1.0], offsets=[0, 1], shape=(size - 1, size))
            self.add_rows(order, np.zeros(size - 1))
        if samples:
            signed = np.concatenate([goal.leads, -goal.leads])
            errors = sparse.vstack([sparse.diags_array(np.ones(samples))] * 2)
            self.add_rows(sparse.hstack([sparse.csr_array(-signed), -errors]), -signed.sum(axis=1))

    def add_rows(self, rows: Any, limits: FloatArray) -> None:
        """``row @ variables <= limit`` for each row of a matrix, dense or sparse; missing columns are zero."""
        rows = sparse.csr_array(rows)
        rows.resize((len(limits), len(self._reward)))
        self._highs.addRows(
            len(limits),
            np.full(len(limits), -highspy.kHighsInf),
            limits,
            rows.nnz,
            rows.indptr[:-1].astype(np.int32),
            rows.indices.astype(np.int32),
            rows.data,
        )
        self._rows = sparse.vstack([self._rows, rows], format="csr")
        self._limits = np.concatenate([self._limits, limits])

    def _tolerate(self, tolerance: float) -> None:
        for side in ("primal", "dual"):
            self._highs.setOptionValue(f"{side}_feasibility_tolerance", tolerance)

    def solve(self) -> FloatArray:
        """gamma(l) for l > K/2."""
        self._highs.run()
        for tolerance in (_FEASIBLE, 1e-7):
            if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
                self._highs.clearSolver()  # a warm start from the previous basis can stall it
                self._tolerate(tolerance)
                self._highs.run()
        status = self._highs.getModelStatus()
        self._tolerate(_FEASIBLE)
        if status != highspy.HighsModelStatus.kOptimal:
            raise DarrmError(f"HiGHS stopped with {status.name[1:].lower()}")
        values = np.array(self._highs.getSolution().col_value, dtype=np.float64)
        return np.clip(values[: self._size], 0.0, 1.0)

    def bound(self) -> float:
        """An upper bound of the goal: weak duality, whatever the solver's tolerances (all variables are in [0, 1])."""
        dual = np.maximum(-np.array(self._highs.getSolution().row_dual), 0.0) * self._scale
        return float(dual @ self._limits + np.maximum(self._reward - dual @ self._rows, 0.0).sum())
