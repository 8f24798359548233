"""Adapters of peft as teachers: K of them on one base, which is in memory once."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..arguments import checked
from ..errors import InvalidArgument, warn_caller
from .checkpoints import check_finite, state_of, unwrap_module

__all__ = ["adapter_teachers", "warn_of_idle_adapters", "warn_of_untrained_adapters"]


@checked
def adapter_teachers(
    model: nn.Module, folders: Sequence[str | os.PathLike[str]] | None = None
) -> tuple[nn.Module, ...]:
    """One teacher for each adapter on a base: K networks that share one copy of the base in memory.

    Give them to :class:`~darrm_torch.PrivateMajorityEnsemble`, or as ``modules=`` to
    :func:`~darrm_torch.read_teachers`. Each is what ``peft`` computes with this adapter alone, and has names of weights
    that do not depend on the adapter's name. Their guarantees are those of the adapters: the base must not have been
    trained on the private data. The adapters share memory with ``model`` where possible; the ensemble copies them.

    Args:
        model: a ``PeftModel`` with K adapters, in any wrapping; or, with ``folders``, the base without adapters.
        folders: K folders with one adapter each, as ``PeftModel.save_pretrained`` writes them. Nothing is downloaded.

    Returns:
        K networks, in the order of the model's adapters or of the folders.

    Raises:
        InvalidArgument: ``model`` has no adapters that are injected into layers (LoRA and its like); an adapter is
            merged into the base, was trained together with biases or other weights of the base, or changes the base
            when it starts (PiSSA), so that all teachers would share what it learned; or a folder has no adapter for
            this base.
        ImportError: ``peft`` is missing: ``pip install 'darrm-torch[adapters]'``.

    >>> from peft import LoraConfig, get_peft_model
    >>> base = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> model = get_peft_model(base, LoraConfig(r=2, target_modules=["0"]), adapter_name="first")
    >>> model.add_adapter("second", LoraConfig(r=2, target_modules=["0"]))
    >>> first, second = adapter_teachers(model)
    >>> first(torch.zeros(3, 4)).shape
    torch.Size([3, 2])
    """
    model = unwrap_module(model, "model")
    base: Any
    if bool(getattr(model, "peft_config", None)) == (folders is not None):
        expected = "a PeftModel, or folders given" if folders is None else "a base without adapters, for these folders"
        raise InvalidArgument("model", expected, type(model).__name__)
    _check_base(model)
    for folder in () if folders is None else folders:
        if not (isinstance(folder, str | os.PathLike) and os.path.isfile(os.path.join(folder, "adapter_config.json"))):
            cure = "PeftModel.save_pretrained(FOLDER) writes it; that of a named adapter is one folder deeper."
            raise InvalidArgument("folders", "folders with adapter_config.json and weights", str(folder), cure)
    from peft import get_peft_model, set_peft_model_state_dict

    # The base's own tensors under new parameters: freezing them leaves the caller's as they are.
    memo: dict[int, Any] = {id(one): one.detach() for one in model.buffers()}
    memo |= {id(one): nn.Parameter(one.detach(), requires_grad=False) for one in model.parameters()}
    base = copy.deepcopy(model, dict(memo))
    if folders is None:
        places = {name: part.original_module for name, part in base.base_model.model.named_modules() if _replaces(part)}
        base = base.unload()
        for name, part in places.items():  # unload() leaves what the active adapter trained in its place
            base.set_submodule(name, part)
        vars(base).pop("peft_config", None)
    memo |= {id(one): one for one in (*base.parameters(), *base.buffers())}
    teachers: list[nn.Module] = []
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing", category=FutureWarning)
        for name, config, state in _adapters(model) if folders is None else _stored_adapters(folders):
            check_finite(name, state)
            try:
                teacher = get_peft_model(
                    copy.deepcopy(base, dict(memo)), config, autocast_adapter_dtype=False, low_cpu_mem_usage=True
                )
                loaded: Any = set_peft_model_state_dict(teacher, state, low_cpu_mem_usage=True)
            except (RuntimeError, ValueError, KeyError) as error:
                cure = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
                raise InvalidArgument("folders", "adapters for this base", name, cure) from None
            if loaded.unexpected_keys or any(weight.is_meta for weight in teacher.parameters()):
                raise InvalidArgument("folders", "adapters for this base", name, "Weights are missing or left over.")
            own = {name.replace(".modules_to_save", ""): one for name, one in teacher.named_parameters()}
            for name, one in own.items():  # peft converts adapters to the precision of the base
                if (value := state.get(name.replace(".default", ""))) is not None and ".default" in name:
                    one.data = value
            teachers.append(teacher.eval().requires_grad_(False))
    return tuple(teachers)


def _check_base(model: nn.Module) -> None:
    configs = dict(getattr(model, "peft_config", {}))
    if configs and not hasattr(model, "unload"):
        raise InvalidArgument("model", "one with adapters inside its layers, such as LoRA", next(iter(configs)))
    trained = [name for name, one in configs.items() if getattr(one, "bias", "none") != "none"]
    if trained:
        cure = "Biases of the base were trained, by all adapters alike. Train with bias='none'."
        raise InvalidArgument("model", "one whose adapters leave the base as it is", trained[0], cure)
    for part in model.modules():
        if not isinstance(part, nn.ModuleDict) and (names := configs.keys() & part._modules.keys()):
            cure = (
                "peft loses the weights of layers with the name of an adapter. Train with another name, such as north."
            )
            raise InvalidArgument("model", "one whose adapters have other names than its layers", min(names), cure)
    for name, part in model.named_modules():
        if configs and getattr(part, "merged", False) is True:
            cure = "What is merged reaches every other teacher. Call model.unmerge_adapter() first."
            raise InvalidArgument("model", "one whose adapters are not merged into the base", name, cure)
        base = getattr(part, "base_layer", None) if configs else None
        if isinstance(base, nn.Module) and any(weight.requires_grad for weight in base.parameters()):
            cure = "What trains it reaches every other teacher. Freeze the base before training."
            raise InvalidArgument("model", "one whose base is frozen", f"{name} with gradients", cure)


def _replaces(part: nn.Module) -> bool:
    """Whether the adapters have copies of this whole part, beside the base's own."""
    return isinstance(getattr(part, "original_module", None), nn.Module)


def _adapters(model: Any) -> Iterator[tuple[str, Any, dict[str, Tensor]]]:
    """The name, the configuration and the weights of each adapter of a model."""
    from peft import get_peft_model_state_dict

    for name, config in model.peft_config.items():
        own = copy.deepcopy(config)
        if hasattr(own, "init_lora_weights"):
            own.init_lora_weights = True  # some starts change the base; its weights are those of today
        yield name, own, get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)


def _stored_adapters(folders: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[str, Any, dict[str, Tensor]]]:
    """The same of each folder. They exist: peft would ask a hub for one that does not."""
    from peft import PeftConfig
    from peft.utils import load_peft_weights

    for folder in folders:
        try:
            config, state = PeftConfig.from_pretrained(str(folder)), load_peft_weights(str(folder), device="cpu")
        except Exception as error:  # peft and safetensors raise many kinds for damaged files
            cure = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
            raise InvalidArgument("folders", "folders with readable adapters", str(folder), cure) from None
        start = getattr(config, "init_lora_weights", True)
        if not (isinstance(start, bool) or start == "gaussian"):
            cure = "Save it with path_initial_model_for_weight_conversion, as an adapter on the base itself."
            raise InvalidArgument("folders", "adapters that leave the base as it is", start, cure)
        if getattr(config, "bias", "none") != "none":
            cure = "It holds biases of the base. Train with bias='none'."
            raise InvalidArgument("folders", "adapters that leave the base as it is", str(folder), cure)
        yield str(folder), config, state


def warn_of_idle_adapters(models: Iterable[Any]) -> None:
    """Name teachers whose adapters are disabled, or never moved: their votes are those of the public base.

    Nothing else shows it: the loss may fall, for example by a head that is trained beside them, and steps are counted.
    """
    for number, model in enumerate(models):
        weights = [one for name, one in state_of(model).items() if "lora_B" in name or "lora_embedding_B" in name]
        if weights and not any(bool(one.any()) for one in weights if isinstance(one, Tensor)):
            why = "never moved: all lora_B are zero, as at the start"
            cure = "Check that the optimizer holds them as they are after make_private"
            warn_caller(_IDLE.format(f"teacher {number}", why, cure))
        elif isinstance(model, nn.Module) and _disabled(unwrap_module(model)):
            warn_caller(_IDLE.format(f"teacher {number}", "are disabled", _ENABLE))


def warn_of_untrained_adapters(network: nn.Module) -> None:
    """Name adapters that a training of this network would leave as they are, whatever else it trains."""
    adapters = [weight for name, weight in network.named_parameters() if "lora_" in name]
    if adapters and _disabled(network):
        warn_caller(_IDLE.format("every teacher", "are disabled", _ENABLE))
    elif adapters and not any(weight.requires_grad for weight in adapters):
        cure = "Let them require gradients, for example by model.set_adapter(NAME)"
        warn_caller(_IDLE.format("every teacher", "are frozen", cure))


def _disabled(network: nn.Module) -> bool:
    return any(getattr(part, "disable_adapters", False) is True for part in network.modules())


_IDLE = "the adapters of {} {}. It votes as the public base does, and its training bought nothing. {}"
_ENABLE = "Call model.enable_adapter_layers()"
