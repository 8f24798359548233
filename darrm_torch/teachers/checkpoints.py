"""Weights of teachers: in files, in memory, and under the wrappers of Opacus, DDP, ``torch.compile`` and Fabric.

Only this module opens files of weights, always with ``weights_only=True``.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..arguments import checked, is_dense
from ..errors import InvalidArgument
from ..files import keep_copy, write_whole
from ..limits import MOST_BYTES, check_file, check_unpacked
from ..privacy.guarantees import PrivacyGuarantee
from ..privacy.profiles import PrivacyProfile
from .packed import unpacked_state

__all__ = [
    "FORMAT",
    "FORMAT_KEY",
    "Checkpoint",
    "check_format",
    "common_constants",
    "common_weights",
    "copy_teacher",
    "equal_bits",
    "filled_buffers",
    "held_tensors",
    "load_teacher",
    "migrate",
    "mixing_layers",
    "read_teacher_file",
    "tuned_profile",
    "unlike",
    "weights_digest",
]

# The number in files that this library writes. Files of format 1, and those of other libraries, have none.
FORMAT, FORMAT_KEY = 2, "darrm_torch_format"

# The attribute in which a wrapper holds the user's network; also the part that it adds to the names of weights.
_WRAPPED = ("_module", "module", "_orig_mod", "_forward_module")
_WRAPPERS = ("opacus.", "torch.nn.parallel.", "torch._dynamo.", "lightning.fabric.", "lightning_fabric.")  # packages


# --- wrappers ---------------------------------------------------------------------------------------------------------


def unwrap_module(model: Any, name: str = "module") -> nn.Module:
    """The user's own network inside its wrappers; nothing is changed.

    Raises:
        InvalidArgument: not a module, in whatever wrapping, or one whose weights are not there yet.
    """
    while type(model).__module__.startswith(_WRAPPERS):
        held = {**vars(model), **vars(model).get("_modules", {})}
        inner = next((held[name] for name in _WRAPPED if name in held), None)
        if inner is None:
            break
        model = inner
    if not isinstance(model, nn.Module):
        raise InvalidArgument(name, "a PyTorch module or a state dict", type(model).__name__)
    for key, value in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(value) or value.is_meta:
            raise InvalidArgument(name, "a module with weights", f"none for {key}", "Load them, or run one batch.")
    return model


def unwrap_name(name: str) -> list[str]:
    """The parts of a weight's name without those that wrappers add."""
    return [part for part in name.split(".") if part not in _WRAPPED]


def state_of(module: Any, name: str = "module") -> Mapping[str, Any]:
    """The state dict of a module in any wrapping, or a state dict itself; packed weights are unpacked."""
    if not isinstance(module, Mapping):
        return unpacked_state(unwrap_module(module, name))
    if not all(isinstance(key, str) for key in module):
        raise InvalidArgument(name, "a PyTorch module or a state dict", "a mapping whose keys are no strings")
    return unpacked_state(module)


def check_finite(name: str, weights: Mapping[str, Any]) -> None:
    """Refuse weights that are NaN or infinite; ``name`` is the argument or file that they come from."""
    for key, value in weights.items():
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all()):
            cure = f"{key} is not finite: training diverged. Train the teacher again. Masks need persistent=False."
            raise InvalidArgument(name, "finite weights", "NaN or infinity", cure)


def named_weights(module: Any) -> list[tuple[str, Tensor]]:
    """Weights and buffers of a module or a state dict, sorted by their names without wrappers and common prefixes."""
    state = state_of(module)
    names = {name: unwrap_name(name) for name in state}
    shared = len(os.path.commonprefix(list(names.values()))) if len(names) > 1 else 0  # noqa: RUF071 - lists of parts
    return sorted(
        ((".".join(names[name][shared:]), value) for name, value in state.items() if isinstance(value, Tensor)),
        key=lambda pair: pair[0],
    )


def weights_digest(module: Any) -> str:
    """A digest of the weights and buffers of a module or a state dict, the same in every wrapping."""
    digest = hashlib.sha256()
    for name, value in named_weights(module):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        if value.numel():
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def equal_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, bit for bit."""
    if one is other:
        return True
    if (one.shape, one.dtype, one.device, one.layout) != (other.shape, other.dtype, other.device, other.layout):
        return False
    if one.layout != torch.strided or one.is_quantized or not one.dim():
        return torch.equal(one, other)
    kind = torch.int64 if one.numel() * one.element_size() % 8 == 0 else torch.uint8  # in large words: it is quicker
    try:
        mine, theirs = (each.detach().contiguous().reshape(-1).view(kind) for each in (one, other))
    except RuntimeError:  # memory that does not begin at a whole word
        mine, theirs = (each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
    return torch.equal(mine, theirs)


def common_weights(modules: Sequence[Any]) -> dict[str, Tensor]:
    """The weights and buffers that all modules or state dicts have in common, bit for bit, by their names; none of one.

    They were not trained, or the modules are copies: a frozen trunk, the base of adapters.
    """
    return _in_all([dict(named_weights(module)) for module in modules])


def common_constants(modules: Sequence[Any]) -> dict[str, Tensor]:
    """The same of buffers that no state dict holds, such as the positions of tokens."""
    constants = []
    for module in modules:
        saved, whole = state_of(module), {} if isinstance(module, Mapping) else held_tensors(unwrap_module(module))
        constants.append({".".join(unwrap_name(name)): value for name, value in whole.items() if name not in saved})
    return _in_all(constants)


def held_tensors(module: nn.Module) -> dict[str, Tensor]:
    """What training could change besides the weights: buffers, and tensors that are attributes of a layer."""
    attributes = {
        f"{name}.{key}".lstrip("."): value
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
    }
    return dict(module.named_buffers()) | attributes


def _in_all(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    if len(states) < 2:
        return {}
    first, *others = states
    return {
        name: value
        for name, value in first.items()
        if all(name in one and equal_bits(value, one[name]) for one in others)
    }


def filled_buffers(module: Any, initial: Any) -> list[str]:
    """Names of buffers and attributes that training may have filled; of a state dict, only running statistics are such.

    So may the weights of an embedding with ``max_norm``, which rescales each word that it meets. Those that equal the
    weights ``initial`` were not filled.
    """
    if isinstance(module, Mapping):
        buffers = {name for name in module if name.endswith(("running_mean", "running_var"))}
    else:
        bare = unwrap_module(module)
        rescaled = (name for name, part in bare.named_modules() if getattr(part, "max_norm", None) is not None)
        buffers = held_tensors(bare).keys() | {f"{name}.weight".lstrip(".") for name in rescaled}
    filled = {name: value for name, _, value in _tensors_by_names(module) if name in buffers}
    return [
        name
        for name in unlike(module, initial, filled)
        if not name.endswith("num_batches_tracked") and bool((filled[name] != name.endswith("running_var")).any())
    ]


def mixing_layers(module: Any) -> list[str]:
    """Names of layers of batch normalisation without running statistics, which read whole batches, in voting too."""
    layers = () if isinstance(module, Mapping) else unwrap_module(module).named_modules()
    kind = nn.modules.batchnorm._BatchNorm
    return [name or "it" for name, part in layers if isinstance(part, kind) and part.running_mean is None]


def unlike(module: Any, initial: Any, names: Collection[str]) -> list[str]:
    """Those of these weights and buffers that do not equal the weights ``initial``, bit for bit."""
    before: dict[str, Tensor] = {}
    for _, aliases, value in [] if initial is None else _tensors_by_names(initial):
        before |= dict.fromkeys(aliases, value)
    return [
        name
        for name, aliases, value in _tensors_by_names(module)
        if name in names and not any(one in before and equal_bits(value, before[one]) for one in aliases)
    ]


def _tensors_by_names(module: Any) -> list[tuple[str, set[str], Tensor]]:
    """Each weight and buffer, also those that are not saved: its name, and its names without wrappers and prefixes."""
    state = dict(state_of(module))
    if not isinstance(module, Mapping):
        state |= held_tensors(unwrap_module(module))
    parts = {name: unwrap_name(name) for name in state}
    shared = len(os.path.commonprefix([*parts.values()]))  # noqa: RUF071 - lists of parts
    return [
        (name, {".".join(parts[name][cut:]) for cut in (0, shared)}, value)
        for name, value in state.items()
        if isinstance(value, Tensor)
    ]


# --- files ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """The content of a file of weights.

    Attributes:
        weights: the state dict.
        key: its key in the file: "module_state_dict" (Opacus), "state_dict" (Lightning), or "" (a state dict alone).
        rest: everything else in the file.
    """

    weights: Mapping[str, Any]
    key: str
    rest: dict[str, Any]

    @classmethod
    def read(cls, file: str | os.PathLike[str], *, name: str = "file") -> Checkpoint:
        """Open a file with ``weights_only=True``.

        Args:
            file: the path.
            name: the argument that an error names.

        Raises:
            InvalidArgument: the file cannot be read, holds no weights or weights that are not finite, or was written
                by a newer version of this library.
        """
        expected = "a readable checkpoint"
        check_unpacked(name, check_file(name, file, expected=expected), expected=expected)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about files of other kinds, which are refused below
                record = torch.load(file, weights_only=True, map_location="cpu")
        except Exception as error:  # Torch raises many kinds on a damaged or foreign file
            cure = "a pickled module is refused, because opening it would run its code."
            if "GLOBAL numpy" in str(error):
                cure = "it holds a number or an array of NumPy. Save it as float(...), int(...) or a tensor."
            cure = f"It cannot be read ({type(error).__name__}). Only tensors and plain values are read: {cure}"
            raise InvalidArgument(name, expected, str(file), cure) from None
        rest: dict[str, Any] = record if isinstance(record, dict) else {}
        key = next((key for key in ("module_state_dict", "state_dict") if isinstance(rest.get(key), Mapping)), "")
        weights, rest = (rest.pop(key), rest) if key else (record, {})
        if not (
            isinstance(weights, Mapping)
            and any(isinstance(value, Tensor) for value in weights.values())
            and all(isinstance(key, str) for key in weights)
        ):
            names = [key for key in record if isinstance(key, str)] if isinstance(record, Mapping) else None
            content = type(record).__name__ if names is None else ", ".join(names[:20])
            expected = "a checkpoint with module_state_dict or state_dict, or a state dict"
            raise InvalidArgument(name, expected, str(file), f"It holds {content or 'nothing'}.")
        tensors = [value for value in weights.values() if isinstance(value, Tensor)]
        size = sum(value.numel() * value.element_size() for value in tensors)
        if not all(is_dense(value) or value.is_quantized or value.is_complex() for value in tensors) or size > max(
            MOST_BYTES, os.stat(file).st_size
        ):
            raise InvalidArgument(name, expected, str(file), "Its weights are sparse, or larger than the file.")
        check_format(str(file), rest)
        check_finite(str(file), weights)
        return cls(weights, key, rest)

    def holds(self, module: Any) -> bool:
        """Whether each weight of ``module`` is in this file: under any name, in any precision, among others."""
        tensors = [value for value in state_of(module).values() if isinstance(value, Tensor)]
        precisions = {value.dtype for value in tensors if value.is_floating_point()}
        kept = set()
        for value in self.weights.values():
            if isinstance(value, Tensor):
                versions = [value.to(one) for one in precisions] if value.is_floating_point() else [value]
                kept |= {weights_digest({"": version}) for version in versions}
        return all(weights_digest({"": value}) in kept for value in tensors)


def check_format(name: str, record: Mapping[Any, Any]) -> int:
    """The format of a file with this content; ``name`` is the argument or file that an error names.

    Raises:
        InvalidArgument: a newer version of this library wrote it.
    """
    number = record.get(FORMAT_KEY, 1)
    if not (type(number) is int and 1 <= number <= FORMAT):
        cure = "A newer version of darrm-torch wrote it: install that one."
        raise InvalidArgument(name, f"a file of format {FORMAT} or older", f"format {number}", cure)
    return number


def migrate(file: Path) -> None:
    """Rewrite a file of :func:`train_teachers` in today's format if it has an older one, which is kept beside it."""
    record = torch.load(file, weights_only=True, map_location="cpu")
    number = check_format(str(file), record)
    if number < FORMAT:
        keep_copy(file, number)
        copy_teacher(file, file, {FORMAT_KEY: FORMAT}, written=file.stat().st_mtime_ns)


def copy_teacher(file: Path, target: Path, facts: Mapping[str, Any], *, written: int) -> None:
    """Copy a file of :func:`train_teachers` with other ``facts`` in it and another modification time."""
    record = torch.load(file, weights_only=True, map_location="cpu")
    with write_whole(target, private=True) as temporary:
        torch.save(record | facts, temporary)
        os.utime(temporary, ns=(written, written))


@checked
def load_teacher(file: str | os.PathLike[str], model: nn.Module) -> dict[str, Any]:
    """Load a teacher's weights into ``model`` and return the rest of the file.

    The file is one of :func:`train_teachers`, of ``PrivacyEngine.save_checkpoint``, a Lightning checkpoint, or a state
    dict alone. It is opened with ``weights_only=True``, so it may hold only tensors and plain values. Prefixes that
    Opacus, DDP, ``torch.compile`` or a LightningModule put before the names of the weights do not matter. A file of
    :func:`train_teachers` holds ``module_state_dict`` and ``privacy_accountant_state_dict`` as Opacus' checkpoints do
    (the latter is ``None`` without privacy), ``sampling``, ``settings`` and ``shard_size``.

    Raises:
        InvalidArgument: the file cannot be read, holds no weights, weights that are not finite, or those of another
            network than ``model``. The message says which, and ``model`` stays as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"state_dict": nn.Linear(4, 2).state_dict(), "epoch": 3}, f"{folder}/teacher.pt")
    ...     load_teacher(f"{folder}/teacher.pt", nn.Linear(4, 2))
    {'epoch': 3}
    """
    return load_weights(
        file, model, cure="Load it into the network that was trained, or train this one in a new folder."
    )


def load_weights(file: str | os.PathLike[str], model: nn.Module, *, cure: str) -> dict[str, Any]:
    """:func:`load_teacher` with ``cure``: what the caller can do if the weights are those of another network."""
    unwrap_module(model, "model")
    checkpoint = Checkpoint.read(file)
    state, own = checkpoint.weights, model.state_dict()
    if state.keys() != own.keys():
        parts = {name: unwrap_name(name) for name in state}
        if checkpoint.key == "state_dict":  # Lightning's: of a module that holds the network, or of the network itself
            prefixes = {tuple(names[:1]) for names in parts.values()}
            if len(prefixes) == 1 and prefixes.isdisjoint(tuple(unwrap_name(name)[:1]) for name in own):
                parts = {name: names[1:] for name, names in parts.items()}
        targets = {tuple(unwrap_name(name)): name for name in own}
        state = {targets.get(tuple(names), ".".join(names)): state[name] for name, names in parts.items()}
    _check_shapes(model, state, file, cure)
    model.load_state_dict(state)
    return checkpoint.rest


def _check_shapes(model: nn.Module, state: Mapping[str, Any], file: str | os.PathLike[str], cure: str) -> None:
    own = {name: tuple(value.shape) for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    stored = {name: tuple(value.shape) for name, value in state.items() if isinstance(value, Tensor)}
    different = [name for name in {**own, **stored} if own.get(name) != stored.get(name)]
    if different:
        name, *more = different
        difference = f"not in {'the file' if name in own else 'the network'}"
        if name in own and name in stored:
            difference = f"{stored[name]} in the file, {own[name]} in the network"
        if more:
            difference += f", and {len(more)} more differ"
        expected = f"the weights of this {type(model).__name__}"
        raise InvalidArgument(str(file), expected, "those of another network", f"{name} is {difference}. {cure}")


def read_teacher_file(path: str | os.PathLike[str]) -> Checkpoint:
    """A file of weights that also holds an accountant."""
    checkpoint = Checkpoint.read(path, name="source")
    if "privacy_accountant_state_dict" not in checkpoint.rest:
        cure = (
            "It holds no accountant. Write it with PrivacyEngine.save_checkpoint; a Lightning checkpoint holds no "
            "accountant unless the callback AccountantCheckpoint stored it there."
        )
        expected = "a file with module_state_dict and privacy_accountant_state_dict"
        raise InvalidArgument("source", expected, str(path), cure)
    if wrong := next((name for name, kind in _FIELDS.items() if not _is_or_none(checkpoint.rest, name, kind)), ""):
        raise InvalidArgument(
            "source", "a teacher's file that is not damaged", str(path), f"Its {wrong} is of another type."
        )
    accountant = checkpoint.rest["privacy_accountant_state_dict"]
    known = isinstance(accountant, Mapping) and isinstance(accountant.get("mechanism"), str)
    if not (accountant is None or isinstance(accountant, list | tuple) or (known and "history" in accountant)):
        raise InvalidArgument("source", "a file whose accountant has a history and a mechanism", str(path))
    return checkpoint


_FIELDS = {
    "global_step": int,
    "public_steps": int,
    "shard_size": int,
    "shard": int,
    "watched": bool,
    "ghost": bool,
    "monitored": list,
    "optimizer_state_dict": Mapping,
    "randomness": str,
    "no_allocation": str,
    "allocation": Mapping,
    "tuning": Mapping,
}


def _is_or_none(record: Mapping[str, Any], name: str, kind: type) -> bool:
    """Whether a field of a file is of this kind, or absent; numbers and tunings are never ``None``."""
    value = record.get(name)
    absent = name not in record or (value is None and kind not in (int, bool) and name != "tuning")
    return absent or isinstance(value, kind)


def tuned_profile(record: Mapping[str, Any]) -> PrivacyProfile | None:
    """What a tuning promises about all teachers of the run that won; None for other teachers."""
    if "tuning" not in record:
        return None
    try:
        epsilon, delta = record["tuning"]["question"]["total"]
        total = PrivacyGuarantee(epsilon=epsilon, delta=delta)
    except (KeyError, TypeError, ValueError):
        raise InvalidArgument("source", "a file of tune_teachers that is not damaged", "another tuning") from None
    return replace(PrivacyProfile.from_guarantee(total), together=True)
