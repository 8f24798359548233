"""Auditing a whole pipeline: canaries go into the private data, and what is released must not show which ones."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from ..arguments import as_array, checked
from ..arrays import BoolArray, FloatArray
from ..errors import (
    BudgetExceeded,
    InvalidArgument,
    LedgerError,
    PrivacyViolation,
    UnprovenPrivacy,
    check_integer,
    check_number,
)
from ..privacy.guarantees import PrivacyGuarantee, check_guarantee, format_bound
from ..privacy.totals import PrivacyRoute, TotalPrivacy
from ..privacy.units import RECORD, ProtectedUnit
from ..reprs import wrapped
from .canaries import Canaries, Strength, as_records, make_canaries, scores_of
from .one_run import epsilon_bound, least_caught

__all__ = ["Attack", "PipelineAudit", "audit_pipeline"]

# Which part of the coins each attack guesses, and which part of those guesses says that the canary is in.
# The middle quarter is left out, because fewer or more than half of the canaries may be in.
_SHARES = ((0.75, 0.5), (0.25, 0.5), (0.0625, 0.5), (0.125, 1.0))
_CLASS_BASELINE = 10  # so many canaries of one class in a run are compared with their middle
_OWN_BASELINE = 4  # from so many runs on, each canary is compared with its own mean
_REFUSALS = (UnprovenPrivacy, PrivacyViolation, BudgetExceeded, LedgerError)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One way of guessing, fixed before the coins are looked at.

    Attributes:
        name: what it looks at.
        guesses: the number of coins that it guesses; it abstains from the others.
        right: the number of right guesses.
    """

    name: str
    guesses: int
    right: int


@dataclass(frozen=True, kw_only=True, repr=False)
class PipelineAudit:
    """What an audit of a pipeline found.

    Attributes:
        claim: the claim about everything that the pipeline releases.
        routes: the bound of each route, if the claim was a :class:`TotalPrivacy`.
        unit: what the claim protects. Each canary is one such unit.
        coins: the number of canaries in all runs together.
        runs: how often the pipeline was run.
        attacks: all ways of guessing that were tried, each with ``name``, ``guesses`` and ``right``; empty if the
            pipeline was refused before it released anything.
        findings: what the structural checks of the library refused.
        scores: the scores behind the guesses (statistics, coins), for figures.
        planted: whether each canary was in the data (coins,), for figures.
    """

    claim: PrivacyGuarantee
    unit: ProtectedUnit
    coins: int
    runs: int
    attacks: tuple[Attack, ...]
    findings: tuple[str, ...] = ()
    routes: tuple[PrivacyRoute, ...] = ()
    scores: FloatArray = field(compare=False)
    planted: BoolArray = field(compare=False)

    def lower_bound(self, confidence: float = 0.95) -> float:
        """The lower bound of epsilon at ``claim.delta``, right with probability ``confidence``.

        The best of all attacks counts, and each of them gets an equal part of the risk.
        """
        bounds = [self._bound(attack.guesses, attack.right, confidence) for attack in self.attacks]
        return max(bounds, default=0.0)

    def reach(self, confidence: float = 0.95) -> float:
        """The largest lower bound that this audit could have found: all guesses are right."""
        return max((self._bound(attack.guesses, attack.guesses, confidence) for attack in self.attacks), default=0.0)

    def detectable(self, confidence: float = 0.95, *, power: float = 0.9) -> float:
        """The smallest true epsilon for which this audit refutes the claim with probability ``power``.

        It is the epsilon of a release that shows each canary as randomized response would; ``math.inf`` if no outcome
        of this audit could refute the claim. A release that shows canaries less clearly needs a larger epsilon.
        """
        risk, power = self._risk(confidence), check_number("power", power, low=0.0, high=1.0, high_open=True)
        return min(
            (
                least_caught(
                    self.claim.epsilon,
                    self.claim.delta,
                    coins=self.coins,
                    guesses=attack.guesses,
                    risk=risk,
                    power=power,
                )
                for attack in self.attacks
            ),
            default=math.inf,
        )

    @property
    def refuted(self) -> bool:
        """Whether the lower bound at 95 % confidence exceeds the claim."""
        return self.lower_bound() > self.claim.epsilon

    @property
    def flagged(self) -> bool:
        """Whether the claim is refuted, or a structural check of the library refused the pipeline."""
        return self.refuted or bool(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The result without the scores, ready for JSON."""

        def finite(number: float) -> float | None:
            return number if math.isfinite(number) else None

        return {
            "claim": {"epsilon": finite(self.claim.epsilon), "delta": self.claim.delta},
            "routes": {route.key: finite(route.epsilon) for route in self.routes if route.applies},
            "protects": str(self.unit),
            "lower_bound": {f"{level:g}": self.lower_bound(level) for level in (0.95, 0.999)},
            "reach": self.reach(),
            "detectable": finite(self.detectable()),
            "coins": self.coins,
            "runs": self.runs,
            "attacks": [vars(attack) for attack in self.attacks],
            "refuted": self.refuted,
            "findings": list(self.findings),
        }

    def _risk(self, confidence: float) -> float:
        confidence = check_number("confidence", confidence, low=0.0, high=1.0, low_open=True, high_open=True)
        return (1 - confidence) / max(1, len(self.attacks))

    def _bound(self, guesses: int, right: int, confidence: float) -> float:
        risk = self._risk(confidence)
        return epsilon_bound(self.claim.delta, coins=self.coins, guesses=guesses, right=right, risk=risk)

    def __repr__(self) -> str:
        found = f"refuted={self.refuted}, lower_bound={self.lower_bound():.4g}, claim={self.claim}"
        return f"PipelineAudit({found}, coins={self.coins}, runs={self.runs}, findings={len(self.findings)})"

    def __str__(self) -> str:
        claims = [f"  {route.name}: {format_bound(route.epsilon)}" for route in self.routes if route.applies]
        refuted, refused = "REFUTED: the pipeline is not what is claimed.", "REFUSED: the library does not accept this."
        lines = [
            refuted if self.refuted else refused if self.findings else "The bound does not refute the claim.",
            f"Claimed: {self.claim}, for {self.unit}.",
            *claims,
        ]
        lines += [f"Refused by the library: {finding}" for finding in self.findings]
        if self.attacks:
            best = max(self.attacks, key=lambda attack: self._bound(attack.guesses, attack.right, 0.95))
            runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
            lines += [
                f"Audited: epsilon is at least {self.lower_bound():.4g} at this delta with confidence 95 %, and at "
                f"least {self.lower_bound(0.999):.4g} with 99.9 %.",
                f"  {best.right} of {best.guesses} guesses are right: {best.name}; {self.coins} canaries, {runs}.",
                f"Power: the largest bound that this audit could find is {self.reach():.4g}. " + self._power_in_words(),
                *([_BLIND] if not self.lower_bound() else []),
                "Assumptions:",
                f"- Canaries: each is one {self.unit.name}; its own fair coin decides whether it is in the data.",
                "- Runs: each run draws fresh randomness, shards included, independently of the coins.",
                "- Release: the claim covers all that the function returns, and nothing else was released.",
                "An audit that refutes nothing proves nothing.",
            ]
        return "\n".join(map(wrapped, lines))

    def _power_in_words(self) -> str:
        least = self.detectable()
        if math.isinf(least):
            return "No outcome could have refuted the claim: plant more canaries, or run the pipeline more often."
        return (
            f"It refutes the claim in 9 of 10 cases if the release shows each canary with an epsilon of {least:.4g}; "
            "whether it shows them is not tested."
        )


_BLIND = (
    "  The guesses are hardly better than coins. Run it once with hardly any noise: if that is not refuted either, the "
    "audit does not see its canaries. Then start networks from fixed public weights, audit records of zeros, or run "
    "the pipeline more often."
)


@checked
def audit_pipeline(
    pipeline: Callable[..., Any],
    inputs: Any,
    labels: Any,
    *,
    claim: PrivacyGuarantee | TotalPrivacy,
    strength: Strength = "gradient",
    canaries: Any = None,
    query_control: bool = False,
    runs: int = 1,
    copies: int = 0,
    score: Callable[[Any], Any] | None = None,
    seed: int | None = None,
    on_progress: Callable[[int], None] = lambda run: None,
) -> PipelineAudit:
    """Try to refute the privacy claim of a user's whole pipeline, from private records to what is released.

    Fair coins decide which of m canaries are among the records. The pipeline is run as it is, each canary gets a score
    from what was released, and the scores become guesses of the coins. If the claim is true, only so many guesses can
    be right (the audit with one training; Steinke, Nasr and Jagielski 2023, theorem 5.2). What the library itself
    refuses while the pipeline runs, such as batches that are not drawn by Poisson sampling, is reported as a finding.

    Everything about the guesses is fixed before the coins are looked at, several ways of guessing share the risk, and
    the bound holds for the claim's delta. Runs are independent of each other, so their guesses are pooled.

    Args:
        pipeline: ``pipeline(inputs, labels)``, or ``pipeline(inputs, labels, queries)`` with ``query_control``. It
            trains and returns what would be released: one or more models (teachers or a student; any functions from
            inputs to logits); or, for the queries that it was given, labels (m,), or logits or counts (m, C); or a
            tuple of its own public inputs and their labels. It must draw fresh randomness in each run.
        inputs: the private inputs ``(N, ...)``, an array or a tensor. The claim must hold for any records, so made-up
            records will do. Records without any gradient, such as zeros, hide the canaries least.
        labels: the private labels ``(N,)``, integers from 0.
        claim: the guarantee that should hold for everything that ``pipeline`` returns. If it is a
            :class:`TotalPrivacy`, the report lists all its routes. For replace-one neighbours, an absent canary is
            replaced by an ordinary record.
        strength: "gradient" puts canaries far out in directions that the private inputs do not use, so that each has a
            gradient of its own; "far-out" in random directions; "mislabelled" takes ordinary records with wrong labels.
        canaries: how many, or your own as a pair of inputs and labels. ``None``: 500; with strength "gradient" at most
            one for each direction that the inputs hardly use, or one for each dimension if they use nearly all.
        query_control: the auditor chooses the queries: the pipeline labels the canaries themselves.
        runs: how often to run the pipeline. From four on, each canary is compared with its own mean.
        copies: how many copies of each canary are in the data whatever its coin says. They show where equal records go.
        score: a function from what the pipeline returned to the m scores, instead of the library's own.
        seed: seeds the coins and the canaries. The pipeline must not use the same seed.
        on_progress: called with the number of each run that is done.

    Raises:
        InvalidArgument: the records or the canaries are not arrays of the right shapes, or the pipeline returned
            nothing of the above.

    >>> import numpy as np
    >>> def no_noise(inputs, labels):  # publishes a sum of the records
    ...     total = ((2 * labels[:, None] - 1) * inputs).sum(axis=0)
    ...     return lambda queries: queries @ total
    >>> inputs, labels = np.random.default_rng(1).standard_normal((50, 200)), np.arange(50) % 2
    >>> audit_pipeline(no_noise, inputs, labels, claim=PrivacyGuarantee(epsilon=1.0, delta=1e-5), seed=1)
    PipelineAudit(refuted=True, lower_bound=3.213, claim=(1, 1e-05)-DP, coins=150, runs=1, findings=0)
    """
    _check_parameters(pipeline, query_control)
    routes, unit = (claim.routes, claim.unit) if isinstance(claim, TotalPrivacy) else ((), RECORD)
    claim = claim.guarantee if isinstance(claim, TotalPrivacy) else check_guarantee("claim", claim)
    rows, targets = as_records(inputs, labels)
    runs = check_integer("runs", runs, low=1, high=10**5)
    copies = check_integer("copies", copies, low=0, high=10**4)
    entropy = None if seed is None else check_integer("seed", seed, low=0)
    generator = np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(2305, 8846)))
    planted_ones = make_canaries(strength, rows, targets, canaries, generator)
    count = len(planted_ones.labels)
    scores, coins, findings = [], [], list[str]()
    for run in range(runs):
        coins.append(generator.random(count) < 0.5)
        queries = _like(inputs, planted_ones.inputs.copy())  # the pipeline may change its arguments
        data = _records(rows, targets, planted_ones, coins[-1], copies, unit, generator)
        given = (_like(inputs, data[0]), _like(labels, data[1]), *((queries,) if query_control else ()))
        try:
            release = pipeline(*given)
        except _REFUSALS as error:
            findings.append(f"{type(error).__name__}: {error}")
            break
        findings += [one for one in _structure(release) if one not in findings]
        scores.append(_score(score, release, planted_ones, queries))
        on_progress(run + 1)
    found = np.concatenate(scores, axis=1) if len(scores) == runs else np.zeros((0, 0))
    truth = np.concatenate(coins) if found.size else np.zeros(0, dtype=bool)
    if found.size and runs >= _OWN_BASELINE:
        by_canary = found.reshape(len(found), runs, count)
        found = (by_canary - by_canary.mean(axis=1, keepdims=True)).reshape(found.shape)
    return PipelineAudit(
        claim=claim,
        routes=routes,
        unit=unit,
        coins=count * runs,
        runs=runs,
        attacks=_attacks(found, truth, generator),
        findings=tuple(findings),
        scores=found,
        planted=truth,
    )


def _check_parameters(pipeline: Callable[..., Any], query_control: bool) -> None:
    """Refuse a function that cannot be called with inputs, labels and, for ``query_control``, queries."""
    try:
        inspect.signature(pipeline).bind(*range(3 if query_control else 2))
    except TypeError as error:
        expected = "a function of inputs, labels and queries" if query_control else "a function of inputs and labels"
        cure = "Leave out query_control." if query_control else "If it takes queries, too, pass query_control=True."
        raise InvalidArgument("pipeline", expected, str(error), cure) from None
    except ValueError:  # built in, without a signature
        return


def _like(given: Any, array: Any) -> Any:
    """An array as the caller gave it: a tensor on the same device, or an array."""
    if not hasattr(given, "detach"):
        return array
    import torch

    return torch.as_tensor(array, dtype=given.dtype, device=given.device)


def _records(
    inputs: Any,
    labels: Any,
    canaries: Canaries,
    coins: BoolArray,
    copies: int,
    unit: ProtectedUnit,
    generator: np.random.Generator,
) -> tuple[Any, Any]:
    """The private records and the canaries whose coin says so, in an order that does not depend on the coins."""
    count = len(coins)
    places = generator.permutation(len(inputs) + (copies + 1) * count)
    stand_ins = generator.integers(len(inputs), size=count)
    all_inputs = np.concatenate([inputs, *[canaries.inputs] * (copies + 1)])
    all_labels = np.concatenate([labels, *[canaries.labels] * (copies + 1)])
    absent = len(all_labels) - count + np.flatnonzero(~coins)
    if unit.neighbours == "replace-one":
        all_inputs[absent], all_labels[absent] = inputs[stand_ins[~coins]], labels[stand_ins[~coins]]
    else:
        places = places[~np.isin(places, absent)]
    return all_inputs[places], all_labels[places]


def _structure(release: Any) -> list[str]:
    """What the library's own checks of several networks find."""
    if not isinstance(release, (list, tuple)) or not all(hasattr(one, "state_dict") for one in release):
        return []
    from ..teachers.independence import check_independent

    try:
        check_independent(modules=release)
    except UnprovenPrivacy as error:
        return [f"UnprovenPrivacy: {error}"]
    return []


def _score(score: Callable[[Any], Any] | None, release: Any, canaries: Canaries, queries: Any) -> FloatArray:
    """Finite scores (statistics, m)."""
    if score is None:
        found = scores_of(release, canaries, queries)
    else:
        expected = f"a function that returns {len(canaries.labels)} numbers"
        found = np.atleast_2d(as_array("score", score(release), expected)).astype(np.float64)
        if found.ndim != 2 or found.shape[1] != len(canaries.labels):
            raise InvalidArgument("score", expected, f"an array of shape {found.shape}")
    found = np.nan_to_num(found, nan=0.0, posinf=1e300, neginf=-1e300)
    for label in np.unique(canaries.labels):  # what moves all canaries of a class alike says nothing about a coin
        same = canaries.labels == label
        if same.sum() >= _CLASS_BASELINE:
            found[:, same] -= stats.trim_mean(found[:, same], 0.25, axis=1)[:, None]
    return found


def _attacks(scores: FloatArray, coins: BoolArray, generator: np.random.Generator) -> tuple[Attack, ...]:
    """All ways of guessing; ties are broken at random."""
    names = [*("all models: ", "one model: "), *(f"model {number}: " for number in range(len(scores) - 2))]
    found = {}
    for number, row in enumerate(scores):
        order = np.lexsort((generator.random(len(row)), row))
        for share, part in _SHARES:
            guesses = max(1, round(share * len(row)))
            ins = math.ceil(part * guesses)
            right = int(coins[order[len(row) - ins :]].sum() + (~coins[order[: guesses - ins]]).sum())
            ends = "the largest" if part == 1 else "the largest and smallest"
            found[number, guesses, ins] = Attack(
                name=f"{names[number] if len(scores) > 1 else ''}{ends} scores", guesses=guesses, right=right
            )
    return tuple(found.values())
