"""What a total buys before anything is trained: one model or an ensemble, and with which noise.

Everything here is computed from declared, public numbers. The prices come from `privacy/`; nothing here proves anything
about privacy by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..arguments import checked
from ..errors import InvalidArgument, check_integer, check_number
from ..noise.regions import check_target
from ..privacy.allocation import RandomAllocation
from ..privacy.allocation_prices import allocated_epsilon
from ..privacy.calibration import MOST_STEPS, calibrate_noise
from ..privacy.guarantees import PrivacyGuarantee, format_bound
from ..privacy.profiles import PrivacyProfile
from ..privacy.units import RECORD, ProtectedUnit
from ..reprs import fenced, wrapped

__all__ = ["Design", "DesignRow", "design"]

DesignKind: TypeAlias = Literal["one-model", "ensemble", "silos"]

_MOST_TEACHERS = 5_000  # of random shards, as in a plan: each price takes seconds
_SAME = 1.005  # noise that differs by less counts as equal: calibration is exact to a thousandth


@dataclass(frozen=True, kw_only=True)
class DesignRow:
    """One way of spending a total, calibrated.

    Attributes:
        kind: "one-model" (DP-SGD on all records), "ensemble" (shards drawn at random from pooled records) or "silos"
            (one teacher for each silo).
        teachers: K, the number of models that are trained.
        overlap: r, the number of models that one record helps to train.
        sample_rate, steps: of each model, public constants.
        noise_multiplier: of each model: the smallest that keeps the total, to a thousandth, never a smaller one.
        epsilon: the proven price of everything that the models release, at the delta of the total. At most the total.
        epsilon_if_leaked: the price if everyone knows which models a record helped to train.
        effective_noise: the noise of the mean of the K models, as the noise multiplier of one model with the declared
            sample rate. First order: gradients add up and independent noises average, so this is ``noise_multiplier *
            sqrt(K) / r``.
        relative_noise: ``effective_noise`` divided by that of one model.
        computing: the number of gradients, divided by that of one model.
        cost: ``computing`` times what one model costs.
        expected_batch: the expected number of records in a batch of one model.
        allocation: the random allocation that the price rests on; None: it rests on none.
    """

    kind: DesignKind
    teachers: int
    overlap: int
    sample_rate: float
    steps: int
    noise_multiplier: float
    epsilon: float
    epsilon_if_leaked: float
    effective_noise: float
    relative_noise: float
    computing: float
    cost: float
    expected_batch: float
    allocation: RandomAllocation | None

    @property
    def name(self) -> str:
        """What the table calls it."""
        if self.kind == "one-model":
            return "one model" if self.computing == 1 else f"one model, {self.computing:g} x the batch"
        if self.kind == "silos":
            return f"{self.teachers} silos"
        return f"{self.teachers} teachers, r = {self.overlap}"

    @property
    def has_no_more_noise(self) -> bool:
        """Whether the mean of its models is no noisier than one model, to half a percent."""
        return self.relative_noise <= _SAME

    @property
    def verdict(self) -> str:
        """Its noise and its computing beside those of one model, in one sentence."""
        ratio = f"{self.relative_noise:.2f} times the noise of one model"
        noise = f"no more noise than one model ({self.relative_noise:.2f} times)" if self.has_no_more_noise else ratio
        computing = "equal computing" if self.computing == 1 else f"{self.computing:g} times the computing"
        if self.kind == "one-model":
            if self.computing == 1:
                return "One DP-SGD model on all records: the simplest design, and the reference for the others."
            return f"One DP-SGD model with {self.computing:g} times the batch: {noise}, {computing}."
        if self.kind == "silos":
            return f"One teacher for each of {self.teachers} silos: {ratio} on all records, {computing}."
        if self.overlap == 1:
            return f"Disjoint shards: {computing}, {noise}."
        if self.overlap == self.teachers:
            return f"Every teacher sees every record: {noise}, {computing}."
        return f"Each record in {self.overlap} of {self.teachers} shards: {noise}, {computing}."

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        names = (
            "kind", "name", "teachers", "overlap", "sample_rate", "steps", "noise_multiplier", "epsilon",
            "epsilon_if_leaked", "effective_noise", "relative_noise", "computing", "cost", "expected_batch", "verdict",
        )  # fmt: skip
        values = {name: getattr(self, name) for name in names}
        return values | {"allocation": None if self.allocation is None else self.allocation.to_dict()}


@dataclass(frozen=True, kw_only=True)
class Design:
    """What a total buys: one model beside ensembles, each with the noise that the total needs.

    Attributes:
        records: the declared, public number of records.
        total: what everything that is released may cost together, for adding or removing one ``unit``.
        sample_rate, steps: of one model.
        data: "pooled": every record may go to any model. "silos": each record stays where it is.
        model_cost: what training one model costs, in any unit.
        rows: the designs; the first is one model.
        unit: what is protected.
    """

    records: int
    total: PrivacyGuarantee
    sample_rate: float
    steps: int
    data: Literal["pooled", "silos"]
    model_cost: float
    rows: tuple[DesignRow, ...]
    unit: ProtectedUnit = RECORD

    @property
    def one_model(self) -> DesignRow:
        """One DP-SGD model on all records, the reference. With silos it is out of reach."""
        return self.rows[0]

    @property
    def best(self) -> DesignRow:
        """The recommendation: one model where records can be pooled, the teachers of the silos where they cannot."""
        return self.one_model if self.data == "pooled" else self.rows[1]

    @property
    def balanced(self) -> DesignRow | None:
        """The cheapest ensemble whose mean is no noisier than one model; None if there is none."""
        return _balanced(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "records": self.records,
            "total": [self.total.epsilon, self.total.delta],
            "unit": self.unit.to_dict(),
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "data": self.data,
            "model_cost": self.model_cost,
            "recommendation": self.best.name,
            "balanced": None if self.balanced is None else self.balanced.name,
            "designs": [row.to_dict() for row in self.rows],
            "advice": self._advice,
        }

    @property
    def _advice(self) -> list[str]:
        """The recommendation and its limits, in paragraphs."""
        texts = self._advice_for_pooled_records() if self.data == "pooled" else self._advice_for_silos()
        return [
            *texts,
            "What ensembles are for: records in silos that cannot be pooled, teachers that exist already, unlike "
            "models that are to vote together, and the disagreement of teachers as a signal.",
            "The effective noise is first order: gradients add up and independent noises average. Single teachers are "
            "noisier than their mean, and small shards under strong noise lose more than this says. Noise-free votes "
            "are best cast as mean class probabilities. Compare designs on public data, with learning rates tuned "
            "alike.",
        ]

    def _advice_for_pooled_records(self) -> list[str]:
        text = "Recommendation: one DP-SGD model. Where records can be pooled it is the simpler choice."
        disjoint = [row for row in self.rows if row.kind == "ensemble" and row.overlap == 1]
        if disjoint and max(self.rows, key=lambda row: row.relative_noise) in disjoint:
            ratios = " and ".join(f"{row.relative_noise:.2f}" for row in disjoint)
            text += f" Disjoint shards are the worst design here: {ratios} times its noise at equal computing."
        texts = [text]
        if self.balanced is None:
            texts.append("No ensemble here has as little noise as one model.")
        else:
            one = self.balanced
            text = (
                f"If an ensemble is wanted anyway: {one.teachers} teachers with each record in {one.overlap} of the "
                f"shards carry no more noise than one model ({one.relative_noise:.2f} times), for "
                f"{one.computing:g} times the computing."
            )
            wide = [row for row in self.rows if row.kind == "one-model" and row.computing == one.computing]
            if wide:
                text += f" At equal computing, one model with {one.computing:g} times the batch has "
                text += f"{wide[-1].relative_noise:.2f} times the noise."
            texts.append(text)
        if any(row.allocation for row in self.rows):
            texts.append(
                "The prices for 1 <= r < K need secret random allocation: each record draws its shards for itself, and "
                "nobody learns the draws. Sample rate, steps, expected batch, clipping bound and noise are declared "
                "constants, equal for all teachers. The column 'if leaked' is the price without the secret."
            )
        return texts

    def _advice_for_silos(self) -> list[str]:
        return [
            "Recommendation: one teacher for each silo. A record is in one silo, so each teacher may spend the whole "
            f"total. Their mean carries {self.best.relative_noise:.2f} times the noise of one model on all records. "
            "Silos are no random allocation, so secrecy adds nothing; a person with records in several silos is "
            "protected less.",
            "One model on all records would carry less noise. Silos that can add up clipped gradients securely train "
            "it without pooling records (federated DP-SGD).",
        ]

    def __repr__(self) -> str:
        return (
            f"<Design: {self.records} records, {self.data}, {self.total}; {len(self.rows)} rows, best {self.best.name}>"
        )

    def _repr_markdown_(self) -> str:
        return fenced(self)

    def __str__(self) -> str:
        """For 80 columns."""
        place = "pooled" if self.data == "pooled" else "in silos"
        question = (
            f"{self.records:,} records, {place}. Total: {self.total}, for {self.unit}. Each model: "
            f"sample rate {self.sample_rate:.4g}, {self.steps} steps; one model costs {self.model_cost:g}."
        )
        head = f"  {'design':<24}{'multiplier':>11}{'effective':>11}{'relative':>10}{'computing':>11}{'if leaked':>10}"
        table = [
            f"  {row.name:<24}{row.noise_multiplier:>11.3f}{row.effective_noise:>11.3f}{row.relative_noise:>10.2f}"
            f"{row.computing:>11g}{format_bound(row.epsilon_if_leaked):>10}"
            for row in self.rows
        ]
        notes = [
            "multiplier: noise multiplier of each model at this total. effective: noise of the mean of the models, as "
            "the noise multiplier of one model. relative: the same, divided by that of one model. computing: "
            "gradients, divided by those of one model.",
            "",
            *(f"- {row.name}: {row.verdict}" for row in self.rows[1:]),
        ]
        return "\n".join(
            [wrapped(question), "", head, *table, "", *map(wrapped, notes), "", *map(wrapped, self._advice)]
        )


@checked
def design(
    *,
    records: int,
    total: PrivacyGuarantee,
    sample_rate: float,
    steps: int,
    data: Literal["pooled", "silos"] = "pooled",
    teachers: int | Sequence[int] = 12,
    overlaps: Sequence[int] | None = None,
    model_cost: float = 1.0,
    unit: str = "record",
    records_per_unit: int = 1,
    on_progress: Callable[[str], None] = lambda name: None,
) -> Design:
    """The designer's question: how many models, with which overlap and noise, does a total buy?

    Formal guarantee: with the noise multiplier of a row, everything that its models release together is within
    ``total``, for adding or removing one unit. Rows with an ``allocation`` need that each unit drew its shards at
    random and in secret (theory, section 12).

    Args:
        records: the number of records, declared in public; it must not be the exact size of private data.
        total: what everything that is released may cost together.
        sample_rate: the probability with which a record of a model's data enters a batch.
        steps: the number of steps of a model. Both are public constants, equal for all models.
        data: "pooled": every record may go to any model, so that shards can be drawn at random. "silos": each record
            stays in the one silo where it is, and ``teachers`` is the number of silos.
        teachers: K, or several to compare; each at least 2, and at most 5,000 for pooled records.
        overlaps: r, the numbers of shards to try for each record, for pooled records; those above a K are left out for
            it. None: 1, 2, 3, 4, half of K, and K.
        model_cost: what training one model costs, in any unit.
        unit, records_per_unit: what to protect, such as "patient", and how many of its records are in the data of one
            model at most; with random shards it is the unit that draws them.
        on_progress: called with the name of each design when its noise is found.

    Raises:
        InvalidArgument: a value out of range, or a total that no noise keeps.

    >>> total = PrivacyGuarantee(epsilon=1.0, delta=1e-5)
    >>> answer = design(records=60_000, total=total, sample_rate=1 / 35, steps=175, overlaps=(1, 4))
    >>> for row in answer.rows:
    ...     print(f"{row.name}: {row.noise_multiplier:.2f}, effective {row.effective_noise:.1f}")
    one model: 1.69, effective 1.7
    12 teachers, r = 1: 0.92, effective 3.2
    12 teachers, r = 4: 1.82, effective 1.6
    one model, 4 x the batch: 5.80, effective 1.4
    >>> answer.rows[1].verdict
    'Disjoint shards: equal computing, 1.89 times the noise of one model.'
    """
    records = check_integer("records", records, low=1, high=2**53)
    check_target(total, "total")
    check_number("total.epsilon", total.epsilon, low=0.0, low_open=True, high_open=True)
    cure = "Gaussian noise needs a positive delta."
    check_number("total.delta", total.delta, low=0.0, high=1.0, low_open=True, high_open=True, cure=cure)
    sample_rate = check_number("sample_rate", sample_rate, low=0.0, high=1.0, low_open=True)
    steps = check_integer("steps", steps, low=1, high=MOST_STEPS)
    counts = list(teachers) if isinstance(teachers, Sequence) else [teachers]
    most = min(records, records if data == "silos" else _MOST_TEACHERS)
    counts = list(dict.fromkeys(check_integer("teachers", count, low=2, high=most) for count in counts))
    if not counts:
        raise InvalidArgument("teachers", "a number of teachers, or several", teachers)
    if overlaps is not None:
        if data == "silos":
            raise InvalidArgument("overlaps", "left out for silos", overlaps, "Each record stays in its one silo.")
        overlaps = sorted({check_integer("overlaps", overlap, low=1, high=max(counts)) for overlap in overlaps})
    model_cost = check_number("model_cost", model_cost, low=0.0, low_open=True, high_open=True)
    protected = ProtectedUnit(name=unit, records=records_per_unit)
    rows: list[DesignRow] = []

    def add(kind: DesignKind, count: int, overlap: int, *, times: int = 1) -> None:
        """The row of ``count`` models, each with ``times`` the sample rate."""
        secret = kind == "ensemble" and overlap < count
        allocation = RandomAllocation(teachers=count, overlap=overlap, unit=unit) if secret else None
        rate = times * sample_rate
        ask: dict[str, Any] = {"overlap": overlap, "allocation": allocation, "unit": protected}
        noise = calibrate_noise(total, sample_rate=rate, steps=steps, **ask)
        profile = PrivacyProfile.from_dp_sgd([(noise, rate, steps)])
        profile = profile if protected == RECORD else profile.for_unit(unit, records=records_per_unit)
        known = profile.compose(overlap).epsilon(total.delta)
        epsilon = known if allocation is None else allocated_epsilon(profile, allocation, total.delta)
        effective = noise * math.sqrt(count) / (overlap * times)
        size = records if kind == "one-model" else records * overlap / count
        rows.append(
            DesignRow(
                kind=kind,
                teachers=count,
                overlap=overlap,
                sample_rate=rate,
                steps=steps,
                noise_multiplier=noise,
                epsilon=min(epsilon, total.epsilon),  # calibration has proven that
                epsilon_if_leaked=known,
                effective_noise=effective,
                relative_noise=effective / (rows[0].effective_noise if rows else effective),
                computing=float(overlap * times),
                cost=overlap * times * model_cost,
                expected_batch=rate * size,
                allocation=allocation,
            )
        )
        on_progress(rows[-1].name)

    add("one-model", 1, 1)
    for count in counts:
        if data == "silos":
            add("silos", count, 1)
            continue
        tried = {1, 2, 3, 4, count // 2, count} if overlaps is None else overlaps
        for overlap in sorted(overlap for overlap in tried if 1 <= overlap <= count):
            add("ensemble", count, overlap)
    balanced = _balanced(rows)
    if balanced is not None and balanced.overlap > 1 and balanced.overlap * sample_rate <= 1:
        add("one-model", 1, 1, times=balanced.overlap)
    return Design(
        records=records,
        total=total,
        sample_rate=sample_rate,
        steps=steps,
        data=data,
        model_cost=model_cost,
        rows=tuple(rows),
        unit=protected,
    )


def _balanced(rows: Sequence[DesignRow]) -> DesignRow | None:
    quiet = [row for row in rows if row.kind == "ensemble" and row.has_no_more_noise]
    return min(quiet, key=lambda row: (row.computing, row.effective_noise), default=None)
