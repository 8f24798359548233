"""What one input is: the check of inputs, and the identity under which a ledger knows each of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..arguments import MISSING_VALUE, checked, is_dense
from ..errors import InvalidArgument
from ..teachers.structures import Structure, mapped, size_of, tensors_of
from .ledger_index import checked_keys

__all__ = ["as_tensors", "check_finite_inputs", "checked_inputs", "input_digests", "input_keys"]

_MASK = "attention_mask"


def as_tensors(inputs: Structure) -> Structure:
    """The tensor of an array's numbers; any other inputs as they are.

    Raises:
        InvalidArgument: an array of text, dates or objects.
    """
    if not isinstance(inputs, np.ndarray):
        return inputs
    if np.ma.is_masked(inputs):
        raise InvalidArgument("inputs", "an array (B, ...) of finite numbers", "masked ones")
    try:
        return torch.as_tensor(inputs)
    except (TypeError, ValueError) as error:  # ValueError: it is reversed
        raise InvalidArgument("inputs", "an array (B, ...) of finite numbers", inputs, str(error)) from None


def checked_inputs(inputs: Structure) -> Structure:
    """The inputs as they are asked about: real numbers as float32, integers as they are; mappings as dictionaries.

    Args:
        inputs: a tensor ``(B, ...)``, or a tuple, a list or a mapping of such structures.

    Raises:
        InvalidArgument: a part that is no dense tensor of real numbers that are finite as float32, parts for different
            numbers of inputs, or a mapping whose keys are not strings.
    """
    lengths = {}
    for name, part in tensors_of(inputs):
        if not part.dim():
            raise InvalidArgument(name, "a tensor (B, ...)", "one number")
        if not is_dense(part):
            got = f"{part.dtype}, {part.layout}, {part.device}"
            raise InvalidArgument(name, "a dense tensor of real numbers or integers", got)
        lengths[name] = len(part)
    if len(set(lengths.values())) > 1:
        got = ", ".join(f"{length} in {name}" for name, length in lengths.items())
        raise InvalidArgument("inputs", "tensors with equal numbers of rows", got)
    inputs = mapped(inputs, _converted)
    check_finite_inputs(inputs)
    return inputs


def check_finite_inputs(inputs: Structure) -> None:
    """Refuse inputs with numbers that are infinite or NaN; ``inputs`` is any structure of dense tensors.

    Raises:
        InvalidArgument: a part has such a number.
    """
    cure = f"Check the data. {MISSING_VALUE}"
    for name, part in tensors_of(inputs):
        # The extremes are NaN or infinite if any number is; unlike isfinite(), they need no copy of the batch.
        if part.is_floating_point() and part.numel() and not torch.stack(part.aminmax()).isfinite().all():
            raise InvalidArgument(name, "finite as float32 numbers", "infinite numbers or NaN", cure)


def _converted(part: Tensor) -> Tensor:
    part = part.detach()
    return part.to(torch.float32) if part.is_floating_point() else part


@checked
def input_keys(inputs: Structure, keys: Sequence[bytes] | None) -> list[bytes]:
    """The keys that the caller gave for these inputs, or else their digests.

    Raises:
        InvalidArgument: not one non-empty key, as bytes, for each input; or see :func:`checked_inputs`.
    """
    if keys is None:
        return input_digests(inputs)
    keys = checked_keys(keys)
    if len(keys) != size_of(inputs):
        raise InvalidArgument("keys", f"one for each of the {size_of(inputs)} inputs", f"{len(keys)} of them")
    return keys


def input_digests(inputs: Structure) -> list[bytes]:
    """The identity of each of the inputs, under which the ledger knows it.

    That of a tensor ``(B, ...)`` consists of the shape and the values: real numbers as float32 (where 0 and -0 are one
    number), integers and booleans as integers. So a float64 row and its float32 copy are one question with one answer.
    A copy that was rounded to float16 has other values, and another shape is another question: both are charged.

    That of a structure consists of the names or places of its tensors and of their identities. The order of keys, and
    whether a sequence is a tuple or a list, do not matter. Padding is left out: where a mapping has an
    ``attention_mask`` ``(B, L)`` of integers or booleans, columns before the first and after the last one that it keeps
    are cut from this row, in the mask and in all tensors of integers of its shape beside it (token ids, token types,
    positions). So a text that is padded to other lengths in other batches is one question. Padding that no mask names
    is part of the input.

    Raises:
        InvalidArgument: see :func:`checked_inputs`.
    """
    inputs = checked_inputs(inputs)
    if isinstance(inputs, Tensor):
        return _tensor_digests(inputs)
    size = size_of(inputs)
    masks = _masks(inputs)
    digests = [hashlib.blake2b(b"structure", digest_size=16) for _ in range(size)]
    for name, part in tensors_of(inputs):
        mask = masks.get(name)
        rows = _tensor_digests(part) if mask is None else _kept_digests(part, mask)
        for digest, row in zip(digests, rows, strict=True):
            digest.update(f"{len(name)}:{name}".encode() + row)
    return [digest.digest() for digest in digests]


def _masks(inputs: Structure, name: str = "inputs") -> dict[str, Tensor]:
    """The attention mask that says which columns of a part are padding, by the part's name."""
    if isinstance(inputs, Tensor):
        return {}
    parts = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    found: dict[str, Tensor] = {}
    for key, part in parts:
        found |= _masks(part, f"{name}[{key!r}]")
    mask = inputs.get(_MASK) if isinstance(inputs, Mapping) else None
    if isinstance(mask, Tensor) and mask.dim() == 2 and not mask.is_floating_point():
        for key, part in inputs.items():
            if isinstance(part, Tensor) and part.shape == mask.shape and not part.is_floating_point():
                found[f"{name}[{key!r}]"] = mask
    return found


def _kept_digests(part: Tensor, mask: Tensor) -> Iterator[bytes]:
    """The digests of rows ``(B, L)`` without the columns that are padding; rows that keep nothing stay whole."""
    kept = mask.cpu() != 0
    for row, columns in zip(part.cpu(), kept, strict=True):
        places = columns.nonzero()
        used = row[int(places[0]) : int(places[-1]) + 1] if len(places) else row
        yield from _tensor_digests(used[None])


def _tensor_digests(inputs: Tensor) -> list[bytes]:
    inputs = inputs.cpu()
    kind = torch.float32 if inputs.is_floating_point() else torch.int64
    start = hashlib.blake2b(f"{kind}:{tuple(inputs.shape[1:])}:".encode(), digest_size=16)
    digests = []
    for row in inputs:
        digest = start.copy()
        values = row.to(kind).contiguous()
        if kind is torch.float32:  # as bits: arithmetic may round numbers near 0, by a setting of the process
            values = values.view(torch.int32)
            values = values.masked_fill(values == -(2**31), 0)
        digest.update(values.numpy())
        digests.append(digest.digest())
    return digests
