"""Reading what Opacus teachers promise, with their provenance checked. The only module that knows Opacus."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .guarantees import PrivacyProfile

__all__ = ["PrivacyReading", "read_privacy", "weights_digest"]


@dataclass(frozen=True, kw_only=True)
class PrivacyReading:
    """Where a profile was read, and what was found there.

    Attributes:
        history: the accountant's ``(noise_multiplier, sample_rate, steps)`` runs.
        accountant: "rdp", "prv", "gdp", or "history" for a plain list.
        sampling: "poisson" when it was seen, "assumed" when only the caller says so.
        delta: where the epsilons below were read.
        epsilon: ours, from the privacy loss distribution of the history.
        accountant_epsilons: what Opacus' own accountants say of the same history, for comparison.
        digest: of the teacher's weights, when the module was given.
        notes: what a careful reader should know.
    """

    history: tuple[tuple[float, float, int], ...]
    accountant: str
    sampling: str
    delta: float
    epsilon: float
    accountant_epsilons: tuple[tuple[str, float], ...] = ()
    digest: str | None = None
    notes: tuple[str, ...] = ()


def read_privacy(source: Any, *, module: Any = None, data_loader: Any = None, delta: float = 1e-5) -> Any:
    """What a teacher promises: a whole privacy profile, read from its training history.

    Args:
        source: an Opacus ``PrivacyEngine``, its accountant, the path of a checkpoint written by ``save_checkpoint``, a folder with
            ``teacher-*.pt`` checkpoints, or a plain list of (noise_multiplier, sample_rate, steps).
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if path.is_dir():
            files = sorted(path.glob("teacher-*.pt"))
            return tuple(read_privacy(file, delta=delta) for file in files)
        state = torch.load(path, map_location="cpu", weights_only=True)
        accountant = state["privacy_accountant_state_dict"]
        history, mechanism = accountant["history"], accountant["mechanism"]
        module = state.get("module_state_dict", module)
    elif isinstance(source, Sequence):
        history, mechanism = source, "history"
    else:
        accountant = getattr(source, "accountant", source)
        history, mechanism = accountant.history, accountant.mechanism()
    profile = PrivacyProfile.from_dp_sgd(history)
    reading = PrivacyReading(
        history=tuple(map(tuple, history)),
        accountant=mechanism,
        sampling="assumed",
        delta=delta,
        epsilon=profile.epsilon(delta),
        digest=None if module is None else weights_digest(module),
    )
    return replace(profile, reading=reading)


def weights_digest(module: Any) -> str:
    """A digest of all weights and buffers, whatever wrappers the module is in; of a module or a state dict."""
    state = module if isinstance(module, Mapping) else module.state_dict()
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name]
        bare = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{bare} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(
            tensor.view(torch.uint8).numpy().tobytes()
            if tensor.dim()
            else tensor.reshape(1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()


_WRAPPERS = {"_module", "module", "_orig_mod", "_forward_module"}
