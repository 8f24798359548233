"""Reading what Opacus teachers promise, with their provenance checked. The only module that knows Opacus.

An accountant only repeats what an optimizer's step hook told it: a noise multiplier and a sample rate. It sees neither
the data nor the sampling, the clipping or the noise that was really used. So what can be checked is checked here, what
cannot is written into the reading, and anything that is known to break the guarantee is refused with its cure.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch

from ..errors import InvalidArgument, UnprovenPrivacy, check_integer, check_number
from ..privacy.profiles import PrivacyProfile

__all__ = ["PrivacyReading", "check_independent", "read_privacy", "read_teachers", "weights_digest"]

Accepted = Literal["gdp", "sampling", "buffers", "seeds"]
Source = Any  # engine, accountant, path or history

_WRAPPERS = {"_module", "module", "_orig_mod", "_forward_module"}
_FEW_RECORDS = 1000
_MOST_RUNS = {"prv": 20, "rdp": 200}  # beyond, Opacus' accountants take many seconds
_LEAST_NOISE = {"prv": 0.2, "rdp": 0.0}
_SAME_NOISE = 0.99  # correlation of two teachers' updates
_SAME_WEIGHTS = 1 - 1e-6  # one teacher twice, in single precision


@dataclass(frozen=True, kw_only=True)
class PrivacyReading:
    """Where a profile was read, and what was found there.

    Attributes:
        history: the accountant's ``(noise_multiplier, sample_rate, steps)`` runs, copied.
        accountant: "rdp", "prv" or "gdp"; "history" for a plain list.
        sampling: "poisson" if a Poisson sampling loader or a file that says so was seen; "assumed" if nothing was; "not
            poisson" if the caller insisted.
        delta: where the epsilons below were read.
        epsilon: ours, from the privacy loss distribution of the history.
        accountant_epsilons: what Opacus' own accountants say of the same history, by name.
        records: how many records the teacher was trained on, where that is known.
        digest: of the teacher's weights, where they were seen.
        notes: what a careful reader should know.
    """

    history: tuple[tuple[float, float, int], ...]
    accountant: str
    sampling: str
    delta: float
    epsilon: float
    accountant_epsilons: tuple[tuple[str, float], ...]
    records: int | None = None
    digest: str | None = None
    notes: tuple[str, ...] = ()

    def check(self, source: Source = None, *, module: Any = None) -> None:
        """That neither the accountant nor the weights have changed since.

        Raises:
            UnprovenPrivacy: they have: the teacher was trained further.
        """
        if source is not None and _history(_accountant(source)) != self.history:
            raise UnprovenPrivacy(
                f"the accountant has recorded other steps than when it was read: {_history(_accountant(source))} now, "
                f"{self.history} then. {_READ_AGAIN}"
            )
        if module is not None and self.digest not in (None, weights_digest(module)):
            raise UnprovenPrivacy(f"the teacher's weights are not those that were read. {_READ_AGAIN}")


_READ_AGAIN = (
    "Read the teacher again after its last step of training; steps without an accountant have no privacy at all"
)


def read_privacy(
    source: Source,
    *,
    module: Any = None,
    data_loader: Any = None,
    optimizer: Any = None,
    steps: int | None = None,
    delta: float = 1e-5,
    accept: Collection[Accepted] = (),
) -> Any:
    """What a teacher promises: its whole privacy profile, from the history of its training.

    The profile comes from the privacy loss distribution of the recorded steps, which is tighter than Opacus'
    accountants; theirs are kept beside it in ``profile.reading``. Give as much of module, loader and optimizer as there
    is: what is not given is not checked, and ``reading.notes`` says so.

    Args:
        source: an Opacus ``PrivacyEngine``, its accountant, the path of a file with ``module_state_dict`` and
            ``privacy_accountant_state_dict`` (what ``PrivacyEngine.save_checkpoint`` writes), of a Lightning checkpoint
            with the latter (see :class:`~darrm_torch.lightning.AccountantCheckpoint`; its ``global_step`` is checked
            too), of a folder of ``teacher-*.pt`` files (gives a tuple), or a list of (noise_multiplier, sample_rate,
            steps). Files are opened with ``weights_only=True``.
        module: the trained teacher, in whatever wrapping, or its state dict; its weights must be those of the file, if
            ``source`` is one.
        data_loader: the loader it was trained with: the one that ``make_private`` returned.
        optimizer: the optimizer it was trained with: the one that ``make_private`` returned.
        steps: how many optimizer steps were taken, if it is known (for example ``trainer.global_step``).
        delta: where epsilons are compared, in (0, 1); the profile holds at every delta.
        accept: what would be refused, by name, and is then marked in the reading: "gdp" (a history kept by the GDP
            accountant, which may have dropped steps), "sampling" (batches not drawn by Poisson sampling: no guarantee;
            or runs at other rates than the loader's, which the caller knows to be of other loaders, not of gradients
            accumulated over batches), "buffers" (BatchNorm statistics, which must then come from public data).

    Returns:
        a :class:`~darrm_torch.PrivacyProfile` with its :class:`PrivacyReading`, or a tuple of them for a folder.

    Raises:
        UnprovenPrivacy: what was found is no guarantee; the message says why and what to do.
        InvalidArgument: nothing that can be read, or a number out of range.

    >>> teacher = read_privacy([(12.0, 1 / 35, 175)], delta=1e-4)
    >>> round(teacher.reading.epsilon, 4), {name: round(e, 4) for name, e in teacher.reading.accountant_epsilons}
    (0.0751, {'prv': 0.0852, 'rdp': 0.0975})
    """
    delta = check_number("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if path.is_dir():
            files = sorted(path.glob("teacher-*.pt"))
            if not files:
                raise InvalidArgument("source", "a folder with teacher-*.pt files", str(path))
            return read_teachers(files, delta=delta, accept=accept)
        record = _load(path)
        if module is None:
            module = record["module_state_dict"]
        elif not _are_in(_state(module), record["module_state_dict"]):
            raise UnprovenPrivacy(
                f"the teacher's weights are not those in {path}: it was trained further, changed, or is another. Load "
                "the weights of the file, or give the file that was saved after the last step of training"
            )
        steps = record.get("global_step") if steps is None else steps
    else:
        record = {}
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
    kind = "history" if isinstance(accountant, Sequence) else str(accountant["mechanism"])
    notes = []
    if kind == "gdp":
        _refuse(
            "gdp" in accept,
            "the GDP accountant is a central limit approximation, not a bound, and loses the steps before a change of "
            'noise. Train with PrivacyEngine(accountant="prv"); accept=["gdp"] if the history is known to be complete',
        )
        notes.append("Recorded by a GDP accountant; the caller vouches that its history is complete.")
    _check_steps(history, optimizer, steps)
    rate = _check_optimizer(source, module, optimizer)
    sampling, records, said = _sampling(history, data_loader, rate, record, accept)
    notes += said
    if optimizer is None and module is not None and not record:
        notes.append("The optimizer was not seen: that these are the steps of this teacher is taken on trust.")
    if module is None:
        notes.append("The weights were not seen: nothing ties this history to a teacher.")
    elif statistics := _private_statistics(_state(module)):
        _refuse(
            "buffers" in accept,
            f"{statistics[0]} holds statistics of raw training batches, which no accountant counts. Use GroupNorm "
            '(opacus.validators.ModuleValidator.fix), or accept=["buffers"] if they come from public data alone',
        )
        notes.append(f"The caller vouches that {statistics[0]} comes from public data alone.")
    if any("FastGradientClipping" in type(one).__name__ for one in (module, optimizer)):
        notes.append("Ghost clipping does not count the batches accumulated for a step: one batch a step is assumed.")
    theirs = tuple(_opacus_epsilon(name, history, delta) for name in ("prv", "rdp"))
    epsilon = profile.epsilon(delta)
    notes += [
        f"Opacus' {name} accountant {failure}; our own bound stands in for it."
        for name, _, failure in theirs
        if failure
    ]
    reading = PrivacyReading(
        history=history,
        accountant=kind,
        sampling=sampling,
        delta=delta,
        epsilon=epsilon,
        accountant_epsilons=tuple((name, epsilon if failure else value) for name, value, failure in theirs),
        records=records,
        digest=None if module is None else weights_digest(module),
        notes=tuple(notes),
    )
    return replace(profile, reading=reading)


def read_teachers(
    sources: Iterable[Source],
    *,
    modules: Iterable[Any] | None = None,
    data_loaders: Iterable[Any] | None = None,
    optimizers: Iterable[Any] | None = None,
    initial: Any = None,
    delta: float = 1e-5,
    accept: Collection[Accepted] = (),
) -> tuple[PrivacyProfile, ...]:
    """:func:`read_privacy` of several teachers, who must also be several: see :func:`check_independent`.

    Args:
        sources: one for each teacher, as for :func:`read_privacy`.
        modules: one for each teacher; may be left out for files.
        data_loaders: one for each teacher.
        optimizers: one for each teacher; nothing else ties an engine to the weights that it accounts for.
        initial: see :func:`check_independent`.
        delta, accept: as for :func:`read_privacy`; also "seeds".

    Raises:
        UnprovenPrivacy: as :func:`read_privacy` and :func:`check_independent`.
    """
    sources = list(sources)
    given, loaders, trainers = (
        [None] * len(sources) if one is None else list(one) for one in (modules, data_loaders, optimizers)
    )
    lengths = tuple(map(len, (sources, given, loaders, trainers)))
    if len(set(lengths)) > 1:
        raise InvalidArgument("sources", "one for each module, data loader and optimizer", lengths)
    profiles = tuple(
        read_privacy(source, module=module, data_loader=loader, optimizer=optimizer, delta=delta, accept=accept)
        for source, module, loader, optimizer in zip(sources, given, loaders, trainers, strict=True)
    )
    states = [
        _load(Path(source))["module_state_dict"]
        if module is None and isinstance(source, (str, os.PathLike))
        else module
        for source, module in zip(sources, given, strict=True)
    ]
    present = [state for state in states if state is not None]
    check_independent(sources, modules=present, optimizers=trainers, initial=initial, accept=accept)
    return profiles


def check_independent(
    sources: Iterable[Source] = (),
    *,
    modules: Iterable[Any] = (),
    optimizers: Iterable[Any] = (),
    initial: Any = None,
    accept: Collection[Accepted] = (),
) -> None:
    """That several teachers are several: accountants of their own, weights of their own, noise of their own.

    Teachers trained with one seed share their noise, so that their difference shows the data without any. Two whose
    updates correlate by more than 0.99, or whose noise generators began with the same seed, are taken for such.

    Args:
        sources: engines, accountants or histories; none may be, or share its history with, another.
        modules: trained teachers or state dicts.
        optimizers: those that ``make_private`` returned, which know their ``noise_generator``.
        initial: the weights they all started from, if they did: updates are compared instead of weights.
        accept: "seeds" admits correlated teachers and equal seeds, where the caller knows the noise to be independent.

    Raises:
        UnprovenPrivacy: two of them are not independent.
    """
    live = [getattr(source, "accountant", source) for source in sources if not isinstance(source, (str, os.PathLike))]
    histories = [getattr(accountant, "history", accountant) for accountant in live]
    for (i, one), (j, other) in itertools.combinations(enumerate(histories), 2):
        if one is other:
            raise UnprovenPrivacy(
                f"teachers {i} and {j} share one accountant or one history list: it adds up the steps of both, or "
                "changes when the other is trained. Use one PrivacyEngine for each teacher, and a copy of the state "
                "dict for each load_state_dict"
            )
    generators = [getattr(optimizer, "generator", None) for optimizer in optimizers]
    for (i, one), (j, other) in itertools.combinations(enumerate(generators), 2):
        # One generator for both goes on after the first; two of one seed say the same.
        if isinstance(one, torch.Generator) and isinstance(other, torch.Generator) and one is not other:
            _refuse(
                "seeds" in accept or one.initial_seed() != other.initial_seed(),
                f"the noise_generators of teachers {i} and {j} began with the same seed: their noise is the same, and "
                "their difference shows the data. Train each teacher with a seed of its own, from the operating "
                'system; accept=["seeds"] if their noise is known to be independent',
            )
    modules = list(modules)
    start = None if initial is None else _flat(initial)
    updates = []
    for (i, one), (j, other) in itertools.combinations(enumerate(modules), 2):
        if one is other or getattr(one, "_module", one) is getattr(other, "_module", other):
            raise UnprovenPrivacy(f"teachers {i} and {j} are the same object. Train each teacher on its own")
    for number, module in enumerate(modules):
        update = _flat(module)
        if start is not None:
            update = update - start
        updates.append(update / max(float(update.norm()), 1e-30))
        for earlier in range(number):
            if updates[earlier].shape != updates[number].shape:
                continue
            correlation = float(updates[earlier] @ updates[number])
            if correlation > _SAME_NOISE:
                _refuse(
                    "seeds" in accept and correlation < _SAME_WEIGHTS,
                    f"teachers {earlier} and {number} have {'updates' if initial is not None else 'weights'} that "
                    f"correlate by {correlation:.4f}: they were trained with the same noise, or started alike and "
                    "hardly moved. Train each teacher with a seed of its own; give initial= if they started alike; "
                    'accept=["seeds"] if their noise is known to be independent',
                )


def weights_digest(module: Any) -> str:
    """A digest of a teacher's weights and buffers, the same in every wrapping; of a module or a state dict."""
    digest = hashlib.sha256()
    for name, value in _bare(_state(module)):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def draws_poisson(data_loader: Any) -> bool:
    """Whether a loader draws its batches by one of Opacus' Poisson samplers."""
    from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler

    sampler = getattr(data_loader, "batch_sampler", None)
    return isinstance(sampler, (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler))


# --- reading --------------------------------------------------------------------------------------------------------


def _load(path: Path) -> dict[str, Any]:
    try:
        record = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # Torch raises many kinds on a damaged or foreign file
        cure = "Only tensors and plain values are read: a pickled module is refused, as opening it runs its code."
        raise InvalidArgument("source", "a readable checkpoint", str(path), cure) from error
    weights = {"module_state_dict", "state_dict"}  # as Opacus and as Lightning call them
    if not (isinstance(record, dict) and "privacy_accountant_state_dict" in record and weights & record.keys()):
        found = sorted(map(str, record)) if isinstance(record, dict) else type(record).__name__
        cure = (
            "Write it with PrivacyEngine.save_checkpoint; a Lightning checkpoint holds no accountant unless the "
            "callback AccountantCheckpoint put it there."
        )
        expected = "a file with module_state_dict and privacy_accountant_state_dict"
        raise InvalidArgument("source", expected, f"{path} with {found}", cure)
    return {"module_state_dict": record.get("state_dict"), **record}


def _accountant(source: Source) -> Mapping[str, Any] | Sequence[Any]:
    """A plain history, or the state dict of the accountant."""
    if isinstance(source, (str, os.PathLike)):
        return _load(Path(source))["privacy_accountant_state_dict"] or ()
    if isinstance(source, Sequence):
        return source
    accountant: Any = getattr(source, "accountant", source)
    if not (hasattr(accountant, "history") and hasattr(accountant, "mechanism")):
        raise InvalidArgument(
            "source",
            "a PrivacyEngine, an accountant, a path, or a list of (noise_multiplier, sample_rate, steps)",
            type(source).__name__,
            "A module does not know how it was trained: give it as module=, beside its engine.",
        )
    return {"history": accountant.history, "mechanism": accountant.mechanism()}


def _history(accountant: Mapping[str, Any] | Sequence[Any]) -> tuple[tuple[float, float, int], ...]:
    runs = accountant["history"] if isinstance(accountant, Mapping) else accountant
    try:
        return tuple((float(noise), float(rate), operator.index(steps)) for noise, rate, steps in runs)
    except (TypeError, ValueError) as error:
        cure = "For several teachers use read_teachers."
        raise InvalidArgument("history", "a list of (noise_multiplier, sample_rate, steps)", runs, cure) from error


def _refuse(accepted: bool, why: str) -> None:
    if not accepted:
        raise UnprovenPrivacy(why)


def _check_steps(history: tuple[tuple[float, float, int], ...], optimizer: Any, steps: int | None) -> None:
    recorded = sum(count for *_, count in history)
    if steps is not None and check_integer("steps", steps, low=0) != recorded:
        raise UnprovenPrivacy(
            f"the accountant recorded {recorded} steps, but {steps} were taken. A training run that was resumed "
            "without its accountant's state forgets the steps before: load the state dict of the accountant too"
        )
    state = getattr(optimizer, "state", {})
    counters = [int(values["step"]) for values in state.values() if isinstance(values, dict) and "step" in values]
    if max(counters, default=0) > recorded:
        raise UnprovenPrivacy(
            f"the optimizer took {max(counters)} steps, the accountant recorded {recorded}: some steps had no privacy. "
            "Keep the accountant's state with the optimizer's, and do not call original_optimizer.step()"
        )


def _check_optimizer(source: Source, module: Any, optimizer: Any) -> float | None:
    """The sample rate that the optimizer reports for each batch, where it can be seen."""
    if optimizer is None:
        return None
    if hasattr(optimizer, "unclipped_num_std"):  # AdaClipDPOptimizer
        raise UnprovenPrivacy(
            "AdaClipDPOptimizer divides its noisy count of unclipped gradients by the exact size of the batch, which "
            "reveals more than the accountant counts: its theorem divides by a constant. Train again with "
            'clipping="flat" or "per_layer"'
        )
    hook = getattr(optimizer, "step_hook", None)
    accountant = getattr(source, "accountant", source)
    told: list[Any] = []
    if hasattr(accountant, "step") and hasattr(optimizer, "attach_step_hook"):
        told = [cell.cell_contents for cell in getattr(hook, "__closure__", None) or ()]
        if not any(one is accountant for one in told):
            raise UnprovenPrivacy(
                "this optimizer does not report its steps to this accountant (another step hook replaced it, or "
                "another engine made the optimizer). Give the engine whose make_private made it, and attach no other "
                "step hook"
            )
    trained = {id(weight) for group in getattr(optimizer, "param_groups", ()) for weight in group["params"]}
    network = module if isinstance(module, torch.nn.Module) else getattr(module, "_module", None)
    if isinstance(network, torch.nn.Module) and not trained <= {id(weight) for weight in network.parameters()}:
        raise UnprovenPrivacy(
            "this optimizer trained other weights than this teacher's. Give the module, the engine and the optimizer "
            "of one make_private together"
        )
    bound, clipped = getattr(optimizer, "max_grad_norm", None), getattr(module, "max_grad_norm", None)
    if bound is not None and clipped is not None and bound != clipped:
        raise UnprovenPrivacy(
            f"the module clips gradients to {clipped}, the optimizer scales its noise to {bound}: ghost clipping does "
            "not support schedules of the bound. Train again with a constant max_grad_norm"
        )
    layers = getattr(optimizer, "max_grad_norms", None)
    if bound is not None and layers is not None and bound < math.hypot(*layers) * (1 - 1e-6):
        raise UnprovenPrivacy(
            f"the layers' gradients are clipped to {math.hypot(*layers):.6g} together, the optimizer scales its noise "
            f"to {bound:.6g}: clipping per layer does not support schedules of the bound. Train again with constant "
            "bounds"
        )
    return next((one for one in told if isinstance(one, float)), None)


def _sampling(
    history: tuple[tuple[float, float, int], ...],
    data_loader: Any,
    rate: float | None,
    record: dict[str, Any],
    accept: Collection[str],
) -> tuple[str, int | None, list[str]]:
    """``rate``: of one batch, as the optimizer reports it."""
    notes = []
    records = record.get("shard_size")
    if data_loader is not None:
        sampler: Any = getattr(data_loader, "batch_sampler", None)
        poisson = draws_poisson(data_loader)
        sampling = "poisson" if poisson else "not poisson"
        records = len(data_loader.dataset)
        # Opacus records 1 / len(loader); where int(1 / rate) rounds, that is a little more than the true rate.
        recorded = history[-1][1]
        if poisson and not (sampler.sample_rate <= recorded * (1 + 1e-9) and round(1 / recorded) == len(data_loader)):
            raise UnprovenPrivacy(
                f"the loader samples at {sampler.sample_rate:.6g}, the accountant recorded {recorded:.6g}: this "
                "is not the loader that the teacher was trained with. Give the one that make_private returned"
            )
        rate = recorded
    else:
        sampling = {"poisson": "poisson", None: "assumed"}.get(record.get("sampling"), "not poisson")
    # For n batches between two steps Opacus records n times the rate. But a record may be drawn for several of them,
    # and then moves the sum by several clipping bounds, which no rate makes up for.
    others = sorted({run[1] for run in history if rate is not None and abs(run[1] - rate) > 1e-9 * rate})
    if others:
        _refuse(
            "sampling" in accept,
            f"steps were recorded at other sample rates ({others[0]:.6g}) than a batch is drawn at ({rate:.6g}): "
            "gradients were accumulated over several batches, which the accountant does not cover, or another loader "
            "was used too. Use BatchMemoryManager for batches that are too large for the memory, which accumulates "
            'within a batch; accept=["sampling"] if it was another loader, of Poisson samples',
        )
        notes.append("The caller vouches that steps at other sample rates had Poisson samples of their own.")
    if sampling == "not poisson":
        _refuse(
            "sampling" in accept,
            "its batches were not drawn by Poisson sampling, which the accountant takes for granted. Train with the "
            "loader that make_private returns and poisson_sampling=True",
        )
        notes.append("The batches were not drawn by Poisson sampling: no guarantee, by the caller's choice.")
    if sampling == "assumed":
        notes.append("The loader was not seen: Poisson sampling is assumed.")
    if records is not None and records < _FEW_RECORDS:
        notes.append(
            f"Trained on {records} records: sample rate and batch size depend on that number, which is taken to be "
            "public."
        )
    return sampling, records, notes


@lru_cache(maxsize=256)
def _opacus_epsilon(name: str, history: tuple[tuple[float, float, int], ...], delta: float) -> tuple[str, float, str]:
    """(name, epsilon, what went wrong): an Opacus accountant's own word, on a copy of the history."""
    from opacus.accountants import create_accountant

    if len(history) > _MOST_RUNS[name] or min(noise for noise, _, _ in history) < _LEAST_NOISE[name]:
        return name, math.nan, f"was not asked, as it would take long ({len(history)} runs)"
    accountant = create_accountant(name)
    accountant.history = list(history)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its range of orders
            epsilon = float(accountant.get_epsilon(delta))
    except Exception as error:  # it fails in many ways, and only serves for comparison
        return name, math.nan, f"failed ({type(error).__name__}: {error})"
    return name, epsilon, "" if epsilon >= 0 else f"said {epsilon}"


# --- modules --------------------------------------------------------------------------------------------------------


def _state(module: Any) -> Mapping[str, Any]:
    if isinstance(module, Mapping):
        return module
    if hasattr(module, "state_dict"):
        return dict(module.state_dict())
    if isinstance(inner := getattr(module, "_module", None), torch.nn.Module):  # GradSampleHooks
        return dict(inner.state_dict())
    raise InvalidArgument("module", "a module or a state dict", type(module).__name__)


def unwrapped(name: str) -> list[str]:
    """The parts of a weight's name without what Opacus, DDP, torch.compile or Fabric put between them."""
    return [part for part in name.split(".") if part not in _WRAPPERS]


def _bare(state: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Tensors under their names without wrappers, sorted."""
    names = {name: unwrapped(name) for name in state}
    shared = len(os.path.commonprefix(list(names.values()))) if len(names) > 1 else 0  # noqa: RUF071 - lists of parts
    return sorted(
        ((".".join(names[name][shared:]), value) for name, value in state.items() if isinstance(value, torch.Tensor)),
        key=lambda pair: pair[0],
    )


def _are_in(state: Mapping[str, Any], file: Mapping[str, Any]) -> bool:
    """Whether each tensor is in the file, perhaps in another precision, under whatever name, perhaps with others."""
    tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
    precisions = {value.dtype for value in tensors if value.is_floating_point()}
    kept = set()
    for value in file.values():
        if isinstance(value, torch.Tensor):
            versions = [value.to(one) for one in precisions] if value.is_floating_point() else [value]
            kept |= {weights_digest({"": version}) for version in versions}
    return all(weights_digest({"": value}) in kept for value in tensors)


def _flat(module: Any) -> torch.Tensor:
    """Weight matrices and kernels in one vector; biases and scales start alike in every teacher."""
    state = _bare(_state(module))
    weights = [v.detach().cpu().float().reshape(-1) for _, v in state if v.is_floating_point() and v.dim() > 1]
    return torch.cat(weights) if weights else torch.zeros(1)


def _private_statistics(state: Mapping[str, Any]) -> list[str]:
    """Running statistics that are not as they were made."""
    return [
        name
        for name, value in state.items()
        if (name.endswith("running_mean") and bool((value != 0).any()))
        or (name.endswith("running_var") and bool((value != 1).any()))
    ]
