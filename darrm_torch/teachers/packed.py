"""Weights that a state dict does not hold as plain tensors: those of quantized layers, and constants of TorchScript."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["packed_weights", "unpacked_state"]


def unpacked_state(of: nn.Module | Mapping[str, Any]) -> dict[str, Any]:
    """A state dict, or that of a module, with :func:`packed_weights` in place of its packed entries."""
    state = of if isinstance(of, Mapping) else of.state_dict()
    return {name: value for name, value in state.items() if not _is_packed(value)} | packed_weights(of)


def packed_weights(of: nn.Module | Mapping[str, Any]) -> dict[str, Tensor]:
    """The packed weights of a module or a state dict, dequantized; of TorchScript, the bytes of its constants."""
    state = of if isinstance(of, Mapping) else of.state_dict()
    packed = {
        inner: tensor for name, value in state.items() if _is_packed(value) for inner, tensor in _unpacked(name, value)
    }
    if scripts := [] if isinstance(of, Mapping) else [*_scripts("", of)]:
        plain = {_bytes(value) for value in state.values() if isinstance(value, Tensor) and not value.is_quantized}
        packed |= {
            f"{name}.{record}".lstrip("."): torch.frombuffer(bytearray(content), dtype=torch.uint8)
            for name, script in scripts
            for record, content in _stored(script)
            if content and content not in plain
        }
    return packed


def _is_packed(value: Any) -> bool:
    return value.is_quantized if isinstance(value, Tensor) else isinstance(value, tuple | list | torch.ScriptObject)


def _unpacked(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a packed value, by names that say where they are."""
    if isinstance(value, Tensor):
        yield name, (value.dequantize() if value.is_quantized else value).detach()
    elif isinstance(value, torch.ScriptObject):
        yield from _unpacked(name, value.__getstate__())
    elif isinstance(value, tuple | list):
        for number, part in enumerate(value):
            yield from _unpacked(f"{name}.{number}", part)


def _scripts(name: str, module: nn.Module) -> Iterator[tuple[str, torch.jit.ScriptModule]]:
    """The outermost modules of TorchScript."""
    if isinstance(module, torch.jit.ScriptModule):
        yield name, module
    else:
        for child, part in module.named_children():
            yield from _scripts(f"{name}.{child}".lstrip("."), part)


def _stored(script: torch.jit.ScriptModule) -> Iterator[tuple[str, bytes]]:
    """The tensors that TorchScript would write to a file, as bytes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.save.* is deprecated")
        torch.jit.save(script, buffer)
    buffer.seek(0)
    reader = torch._C.PyTorchFileReader(buffer)
    for record in reader.get_all_records():
        if record.startswith(("data/", "constants/")):
            yield record, reader.get_record(record)


def _bytes(value: Tensor) -> bytes:
    if not value.numel():
        return b""
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
