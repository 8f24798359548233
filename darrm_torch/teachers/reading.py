"""What an Opacus accountant says about a teacher, checked against its optimizer, its loader and its weights.

An accountant only repeats what the optimizer's step hook reported: a noise multiplier and a sample rate. It sees
neither the data nor the sampling, the clipping or the noise that was used. This module checks what can be checked,
records the rest in the reading, and refuses whatever is known to break the guarantee.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ..arguments import checked
from ..errors import InvalidArgument, UnprovenPrivacy, check_number
from ..files import weights_in
from ..privacy.allocation import RandomAllocation
from ..privacy.profiles import PrivacyProfile
from ..reprs import short_repr
from .accountants import accountant_epsilon
from .checkpoints import (
    check_finite,
    common_constants,
    common_weights,
    filled_buffers,
    mixing_layers,
    read_teacher_file,
    state_of,
    tuned_profile,
    weights_digest,
)
from .findings import Finding, Notes
from .gradients import check_gradients
from .independence import check_independent, check_noise, largest_signal
from .loaders import check_sampling, largest_overlap
from .optimizers import History, check_optimizer, counted_steps, source_of_noise
from .watching import check_rows, check_watched, record_of

__all__ = ["PrivacyReading", "read_privacy", "read_teachers"]

Source = Any  # engine, accountant, path or history

_READ_AGAIN = (
    "Read the teacher again after its last step of training; steps without an accountant have no privacy at all"
)


@dataclass(frozen=True, kw_only=True)
class PrivacyReading:
    """Where a profile comes from, and what was checked.

    Attributes:
        history: the accountant's ``(noise_multiplier, sample_rate, steps)`` runs, copied.
        accountant: "rdp", "prv" or "gdp"; "history" for a plain list.
        sampling: "poisson" if the loader draws Poisson samples or the file says so; "assumed" if neither was given;
            "not poisson" if the caller accepted other batches.
        delta: the delta of the epsilons below.
        epsilon: from the privacy loss distribution of the history.
        accountant_epsilons: the epsilons of Opacus' own accountants for the same history, by name.
        records: the number of records that the teacher was trained on, if known.
        digest: of the teacher's weights, if they were given.
        randomness: the generator that noise and batches were drawn from; "unknown" if nothing shows it.
        overlap: the largest number of data loaders, of all teachers read together, that can draw the same record, if
            the loaders were given.
        allocation: how records were allocated to the teachers' shards, if the file of the teacher records it.
        watched: whether the clipping bound and the noise of every step were recorded, see
            :func:`~darrm_torch.watch_training`, or the library itself trained the teacher.
        shard: the public name of the draw and the number of the teacher's shard, if the file records them.
        tuning: the public name of the tuning that the teacher won, if any.
        common: the number of weights and buffers that all teachers read together have in common, bit for bit.
        notes: what was not checked, and what the caller vouches for.
    """

    history: History
    accountant: str
    sampling: str
    delta: float
    epsilon: float
    accountant_epsilons: tuple[tuple[str, float], ...]
    records: int | None = None
    digest: str | None = None
    randomness: str = "unknown"
    overlap: int | None = None
    allocation: RandomAllocation | None = None
    shard: tuple[str, int] | None = None
    tuning: str | None = None
    common: int = 0
    watched: bool = False
    notes: tuple[str, ...] = ()
    __repr__ = short_repr

    @property
    def stated_epsilon(self) -> float:
        """The epsilon that the teacher's accountant reports, or ours if that is larger."""
        return max(dict(self.accountant_epsilons).get(self.accountant, 0.0), self.epsilon)

    def check(self, source: Source = None, *, module: Any = None) -> None:
        """Check that neither the accountant nor the weights have changed since the reading.

        Raises:
            UnprovenPrivacy: one of them has changed: the teacher was trained further.
        """
        if source is not None and (history := _history(_accountant(source))) != self.history:
            raise UnprovenPrivacy(
                f"the accountant has recorded other steps than when it was read: {history} now, {self.history} then. "
                f"{_READ_AGAIN}"
            )
        if module is not None and self.digest not in (None, weights_digest(module)):
            raise UnprovenPrivacy(f"the teacher's weights are not those that were read. {_READ_AGAIN}")


@checked
def read_privacy(
    source: Source,
    *,
    module: Any = None,
    data_loader: Any = None,
    optimizer: Any = None,
    steps: int | None = None,
    initial: Any = None,
    unit: str = "record",
    records_per_unit: int = 1,
    delta: float = 1e-5,
    accept: Collection[Finding] = (),
) -> Any:
    """Read the whole privacy profile of a teacher from the history of its training.

    The profile is computed from the privacy loss distribution of the recorded steps, which is tighter than Opacus'
    accountants; their epsilons are kept in ``profile.reading`` for comparison. Opacus' samplers compare 24 random bits
    with the sample rate, so the profile holds for the rate rounded up to a multiple of 2**-24.

    Pass the module, the loader and the optimizer whenever you have them. What is not passed is not checked, and
    ``reading.notes`` says so.

    Args:
        source: one of

            * an Opacus ``PrivacyEngine`` or its accountant;
            * a list of (noise_multiplier, sample_rate, steps);
            * the path of a checkpoint of ``PrivacyEngine.save_checkpoint``, or of Lightning with
              :class:`~darrm_torch.lightning.AccountantCheckpoint`, whose ``global_step`` is checked too. Files are
              opened with ``weights_only=True``;
            * a folder of such files named ``teacher-*.pt``; the result is then a tuple.
        module: the trained teacher in any wrapping, or its state dict. If ``source`` is a file, it must hold these
            weights.
        data_loader: the loader that ``make_private`` returned.
        optimizer: the optimizer that ``make_private`` returned.
        initial: the weights that training started from. Buffers that equal theirs, bit for bit, were not filled with
            statistics of training batches: those of a frozen trunk are accepted.
        steps: the number of optimizer steps that were taken, if known (for example ``trainer.global_step``).
        unit: what the profile protects, such as "patient"; see :meth:`~darrm_torch.PrivacyProfile.for_unit`.
        records_per_unit: how many records of the teacher's data a unit has at most.
        delta: the delta at which epsilons are compared, in (0, 1). The profile holds at every delta.
        accept: findings to accept by name instead of an error. The reading then records them.

            * "gdp": the history of a GDP accountant, which may have lost steps.
            * "sampling": batches that were not drawn by Poisson sampling, for which there is no guarantee; or steps at
              other sample rates than the loader's, if they come from other loaders and not from accumulated batches.
            * "buffers": BatchNorm statistics, other buffers, and weights that the optimizer does not train, which are
              constant or come from public data alone.
            * "ghost": ghost clipping, if you know that every step had one batch, the clipping bound never changed and
              norms are exact.
            * "seeds": generators of noise or batches whose seeds look as if they could be guessed.

    Returns:
        a :class:`~darrm_torch.PrivacyProfile` with its :class:`PrivacyReading`, or a tuple of them for a folder.

    Raises:
        UnprovenPrivacy: the history proves no guarantee. The message says why and what to do.
        InvalidArgument: the source cannot be read, or a number is out of range.

    >>> teacher = read_privacy([(12.0, 1 / 35, 175)], delta=1e-4)
    >>> round(teacher.reading.epsilon, 4), {name: round(e, 4) for name, e in teacher.reading.accountant_epsilons}
    (0.0751, {'prv': 0.0852, 'rdp': 0.0975})
    """
    if initial is not None:
        state_of(initial, "initial")
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise InvalidArgument("optimizer", "the optimizer that make_private returned", type(optimizer).__name__)
    delta = check_number("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True)
    record: dict[str, Any] = {}
    from_file = isinstance(source, (str, os.PathLike))
    if from_file:
        path = Path(source)
        if os.path.isdir(path):
            same: dict[str, Any] = {"unit": unit, "records_per_unit": records_per_unit, "initial": initial}
            return read_teachers(path, delta=delta, accept=accept, **same)
        checkpoint = read_teacher_file(path)
        record = checkpoint.rest
        if module is None:
            module = checkpoint.weights
        elif not checkpoint.holds(module):
            raise UnprovenPrivacy(
                f"the teacher's weights are not those in {path}: it was trained further, changed, or is another. Load "
                "the weights of the file, or give the file that was saved after the last step of training"
            )
        if steps is None and "global_step" in record:
            steps = record["global_step"] - record.get("public_steps", 0)
        accountant = record["privacy_accountant_state_dict"] or ()
    else:
        accountant = _accountant(source)
    if type(source).__name__ == "PrivacyEngineAdaptiveClipping":
        raise UnprovenPrivacy(
            "PrivacyEngineAdaptiveClipping clips the mean loss, not each record's gradient: one record can move the "
            'update without bound. Train again with PrivacyEngine and clipping="flat" or grad_sample_mode="ghost"'
        )
    history = _history(accountant)
    if not history:
        raise UnprovenPrivacy(
            "the accountant has recorded no step: the teacher was not trained with it (another engine, another step "
            "hook, or no privacy at all). Give the engine whose make_private made the optimizer; for a teacher without "
            "privacy use PrivacyProfile.non_private()"
        )
    profile = PrivacyProfile.from_dp_sgd(history)  # checks every number before an Opacus accountant sees it
    profile = PrivacyProfile.from_dp_sgd([(noise, drawn_rate(rate), count) for noise, rate, count in history])
    epsilon = profile.epsilon(delta)  # of single records, as the accountants of Opacus count
    profile = tuned_profile(record) or profile
    if (unit, records_per_unit) != ("record", 1):
        profile = profile.for_unit(unit, records=records_per_unit)
    kind = "history" if isinstance(accountant, Sequence) else str(accountant["mechanism"])
    notes = Notes(accept)
    if kind == "gdp":
        notes.vouched(
            "gdp",
            "the GDP accountant is a central limit approximation, not a bound, and loses the steps before a change of "
            'noise. Train with PrivacyEngine(accountant="prv"); accept=["gdp"] if the history is known to be complete',
            "Recorded by a GDP accountant; the caller vouches that its history is complete.",
        )
    watched = check_watched(record_of(optimizer), history) or bool(record.get("watched"))
    counter = record.get("optimizer_state_dict") if optimizer is None else optimizer
    if not (counted_steps(history, counter, steps) or watched) and (optimizer is not None or from_file):
        notes.append(
            "Nothing but the accountant counted the steps (SGD does not). To have them checked, call "
            "watch_training(optimizer) before the first one and pass the optimizer, or pass steps= to read_privacy. A "
            'file may hold them: save_checkpoint(..., checkpoint_dict={"global_step": steps}).'
        )
    if public_steps := record.get("public_steps"):
        notes.append(
            f"An optimizer without privacy took {public_steps} steps on other weights of this file: that it never saw "
            "a private record is assumed."
        )
    if monitored := record.get("monitored"):
        metrics = ", ".join(map(str, monitored))
        notes.append(
            f"Early stopping, learning rates or the choice of a checkpoint depended on {metrics}: that this comes "
            "from public data alone is assumed."
        )
    rate = check_optimizer(source, module, optimizer, history, initial=initial, notes=notes)
    sampling, records = check_sampling(history, data_loader, rate, record, notes)
    check_rows(record_of(optimizer), history, data_loader)
    if optimizer is None and module is not None and not from_file:
        notes.append("The optimizer was not given: nothing checks that these are the steps of this teacher.")
    if module is None:
        notes.append("The weights were not given: nothing ties this history to a teacher.")
    else:
        check_finite("module", state_of(module))
        if mixing := mixing_layers(module):
            raise UnprovenPrivacy(
                f"{mixing[0]} normalises each batch by its own mean, so clipping does not bound what one record "
                "changes. Train again with GroupNorm (opacus.validators.ModuleValidator.fix)"
            )
        if isinstance(module, nn.Module):
            check_gradients(module)
        if buffers := filled_buffers(module, initial):
            notes.vouched(
                "buffers",
                f"{buffers[0]} may hold statistics of raw training batches, which no accountant counts. Use GroupNorm "
                "in place of BatchNorm (opacus.validators.ModuleValidator.fix), and no max_norm in an embedding; "
                'accept=["buffers"] if it is constant or comes from public data alone',
                f"The caller vouches that {', '.join(buffers)} come from public data alone.",
            )
    if record.get("ghost") or any("FastGradientClipping" in type(part).__name__ for part in (module, optimizer)):
        notes.vouched(
            "ghost",
            "ghost clipping counts neither the batches accumulated for a step nor changes of the clipping bound, and "
            "Opacus' norms are wrong for some layers (convolutions with channels last, weights tied by a function). "
            'Train with grad_sample_mode="hooks"; accept=["ghost"] if every step had one batch, the bound never '
            "changed and the norms are known to be exact",
            "Ghost clipping: the caller vouches for one batch a step, a constant bound and exact norms.",
        )
    if reason := record.get("no_allocation"):
        notes.append(f"No price of a random allocation: {reason}")
    accountant_epsilons = []
    for name in ("prv", "rdp"):
        value, failure = accountant_epsilon(name, history, delta)
        accountant_epsilons.append((name, epsilon if failure else value))
        if failure:
            notes.append(f"Opacus' {name} accountant {failure}; our own bound stands in for it.")
    reading = PrivacyReading(
        history=history,
        accountant=kind,
        sampling=sampling,
        delta=delta,
        epsilon=epsilon,
        accountant_epsilons=tuple(accountant_epsilons),
        records=records,
        digest=None if module is None else weights_digest(module),
        randomness=source_of_noise(record, optimizer),
        allocation=RandomAllocation.from_dict(record["allocation"]) if record.get("allocation") else None,
        shard=(record["draw"], record["shard"]) if {"draw", "shard"} <= record.keys() else None,
        tuning=record.get("tuning", {}).get("name"),
        watched=watched,
        notes=tuple(notes),
    )
    return replace(profile, reading=reading)


@checked
def read_teachers(
    sources: Iterable[Source] | str | os.PathLike[str],
    *,
    modules: Iterable[Any] | None = None,
    data_loaders: Iterable[Any] | None = None,
    optimizers: Iterable[Any] | None = None,
    overlap: int | None = None,
    initial: Any = None,
    unit: str = "record",
    records_per_unit: int = 1,
    delta: float = 1e-5,
    accept: Collection[Finding] = (),
) -> tuple[PrivacyProfile, ...]:
    """Read the guarantees of several teachers with :func:`read_privacy`, and check them with :func:`check_independent`.

    Args:
        sources: one for each teacher, as for :func:`read_privacy`; or a folder: its ``teacher-*.pt``, or any
            ``*.pt``. Files of :func:`~darrm_torch.train_teachers` also record the allocation of records to shards.
        modules: one for each teacher; not needed for files.
        data_loaders: one for each teacher.
        optimizers: one for each teacher. Nothing else ties an engine to the weights that it accounts for.
        overlap, initial: see :func:`check_independent`.
        unit, records_per_unit, delta, accept: as for :func:`read_privacy`; also "seeds".

    Raises:
        UnprovenPrivacy: see :func:`read_privacy` and :func:`check_independent`.
        InvalidArgument: see :func:`read_privacy`; or the lists differ in length.

    >>> teachers = read_teachers([[(12.0, 1 / 35, 175)], [(12.0, 1 / 35, 175)]])
    >>> [round(teacher.epsilon(1e-4), 4) for teacher in teachers]
    [0.0751, 0.0751]
    """
    if isinstance(sources, (str, os.PathLike)):
        folder, sources = sources, weights_in(Path(sources))
        if not sources:
            raise InvalidArgument("source", "a folder with .pt files", str(folder))
    sources = list(sources)
    parts = [[None] * len(sources) if part is None else list(part) for part in (modules, data_loaders, optimizers)]
    lengths = tuple(map(len, (sources, *parts)))
    if len(set(lengths)) > 1:
        raise InvalidArgument("sources", "one for each module, data loader and optimizer", lengths)
    weights = [
        read_teacher_file(source).weights if module is None and isinstance(source, (str, os.PathLike)) else module
        for source, module in zip(sources, parts[0], strict=True)
    ]
    known = [state for state in weights if state is not None]
    common = common_weights(known) if len(known) == len(sources) else {}
    same: dict[str, Any] = {"unit": unit, "records_per_unit": records_per_unit, "delta": delta, "accept": accept}
    same["initial"] = {**common_constants(known), **(common if initial is None else state_of(initial, "initial"))}
    profiles = list[PrivacyProfile]()
    for number, (source, module, loader, optimizer) in enumerate(zip(sources, *parts, strict=True)):
        with _naming(number, source, shared=same):
            profiles.append(read_privacy(source, module=module, data_loader=loader, optimizer=optimizer, **same))
    check_independent(sources, optimizers=parts[2], data_loaders=parts[1], overlap=overlap, accept=accept)
    readings = [profile.reading for profile, state in zip(profiles, weights, strict=True) if state is not None]
    signals = [largest_signal(reading.history, reading.records) for reading in readings]
    check_noise(known, signals, initial=initial, accept=accept)
    loaders = [loader for loader in parts[1] if loader is not None]
    seen: dict[str, Any] = {"overlap": largest_overlap(loaders) if loaders else None, "common": len(common)}
    return tuple(replace(profile, reading=replace(profile.reading, **seen)) for profile in profiles)


@contextlib.contextmanager
def _naming(number: int, source: Source, shared: Collection[str]) -> Iterator[None]:
    """Let errors say which teacher they are about: its file or its number. Arguments of all teachers are ``shared``."""
    from_file = isinstance(source, (str, os.PathLike))
    teacher = str(source) if from_file else f"teacher {number}"
    try:
        yield
    except InvalidArgument as error:
        if error.name in shared or (from_file and error.name == "source"):  # which shows the file
            raise
        raise InvalidArgument(f"{error.name} of {teacher}", error.expected, error.got, error.cure) from None
    except UnprovenPrivacy as error:
        if teacher in str(error):
            raise
        raise UnprovenPrivacy(f"{teacher}: {error}", finding=error.finding) from None


def _accountant(source: Source) -> Mapping[str, Any] | Sequence[Any]:
    """A plain history, or the state dict of the accountant."""
    if isinstance(source, (str, os.PathLike)):
        return read_teacher_file(source).rest["privacy_accountant_state_dict"] or ()
    if isinstance(source, Sequence):
        return source
    accountant: Any = getattr(source, "accountant", source)
    if not (hasattr(accountant, "history") and hasattr(accountant, "mechanism")):
        raise InvalidArgument(
            "source",
            "a PrivacyEngine, an accountant, a path, or a list of (noise_multiplier, sample_rate, steps)",
            type(source).__name__,
            "A module does not know how it was trained: give it as module=, beside its engine. A guarantee without an "
            "engine, PrivacyProfile.from_guarantee(...), goes into profiles= of PrivateMajorityEnsemble, beside what "
            "read_teachers returns for the others.",
        )
    return {"history": accountant.history, "mechanism": accountant.mechanism()}


def _history(accountant: Mapping[str, Any] | Sequence[Any]) -> History:
    runs = accountant["history"] if isinstance(accountant, Mapping) else accountant
    try:
        return tuple((float(noise), float(rate), operator.index(steps)) for noise, rate, steps in runs)
    except (TypeError, ValueError) as error:
        cure = "For several teachers use read_teachers."
        raise InvalidArgument("history", "a list of (noise_multiplier, sample_rate, steps)", runs, cure) from error


def drawn_rate(rate: float) -> float:
    """The probability of ``torch.rand(()) < rate``: ``rate`` as a float32, rounded up to a multiple of 2**-24."""
    return min(1.0, math.ceil(max(rate, float(np.float32(rate))) * 2**24) / 2**24)
