"""Layers for which Opacus computes wrong gradients: corrected in the trainings of this package, warned of in others."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UnprovenPrivacy, warn_caller

__all__ = ["check_gradients", "mend_gradients"]


def mend_gradients(module: Any) -> None:
    """Correct the gradients that Opacus (up to 1.6) computes for some layers of this ``GradSampleModule``.

    It takes for granted that the inputs of a ``Conv2d`` are contiguous, that convolutions pad with zeros, and that an
    ``Embedding`` learns every row. With channels last, a permuted view, another ``padding_mode`` or a ``padding_idx``,
    its gradients are wrong, though still each of one record. Its samplers for other layers agree with Torch.
    """
    known = module.GRAD_SAMPLERS

    def of_convolution(layer: Any, inputs: list[Tensor], backward: Tensor) -> Any:
        if isinstance(layer, nn.Conv2d) and _channels_last(inputs[0]) and layer.groups == 1:
            return _gradients(layer, inputs[0].to(backward.dtype), backward)
        given = inputs[0].contiguous()
        if layer.padding_mode != "zeros":
            given = nn.functional.pad(given, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
            layer = copy.copy(layer)  # its parameters are the same objects
            layer.padding = (0,) * len(layer.kernel_size)
        return known[type(layer)](layer, [given], backward)

    def of_embedding(layer: Any, inputs: list[Tensor], backward: Tensor) -> Any:
        gradients = known[type(layer)](layer, inputs, backward)
        if layer.padding_idx is not None:
            for gradient in gradients.values():
                gradient[:, layer.padding_idx] = 0
        return gradients

    convolutions = dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), of_convolution)
    module.GRAD_SAMPLERS = known | convolutions | {nn.Embedding: of_embedding}


def _channels_last(images: Tensor) -> bool:
    return len(images) > 0 and not images.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last)


def _gradients(layer: nn.Conv2d, images: Tensor, backward: Tensor) -> dict[Tensor, Tensor]:
    """The records' gradients, from images with channels last.

    The windows of one row of the kernel are the same for all rows, moved down by a row, so only these are copied.
    """
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = nn.functional.pad(images, layer._reversed_padding_repeated_twice, mode=mode)
    padded = padded.contiguous(memory_format=torch.channels_last)
    count, channels, high, wide = padded.shape
    rows, columns = backward.shape[2:]
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    windows = padded.as_strided(
        (count, high, columns, kernel[1], channels),
        (high * wide * channels, wide * channels, channels * stride[1], channels * dilation[1], 1),
    ).reshape(count, high, columns, -1)
    outputs = backward.flatten(2)
    gradients: dict[Tensor, Tensor] = {}
    if layer.weight.requires_grad:
        products = [
            torch.bmm(outputs, windows[:, top : top + rows * stride[0] : stride[0]].flatten(1, 2))
            for top in range(0, kernel[0] * dilation[0], dilation[0])
        ]
        whole = torch.stack(products, dim=2).reshape(count, -1, *kernel, channels)
        gradients[layer.weight] = whole.permute(0, 1, 4, 2, 3).contiguous()
    if layer.bias is not None and layer.bias.requires_grad:
        gradients[layer.bias] = outputs.sum(dim=2)
    return gradients


def check_gradients(module: nn.Module) -> None:
    """Warn of layers of a user's own training for which Opacus computes wrong gradients.

    Raises:
        UnprovenPrivacy: with ghost clipping, which takes its norms from them.
    """
    for part in module.modules():
        if getattr(part, "force_functorch", True) or "GRAD_SAMPLERS" in vars(part):  # not with Opacus' samplers
            continue
        for name, layer in part.named_modules():
            weight = getattr(layer, "weight", None)
            padded = getattr(layer, "padding_mode", "zeros") != "zeros"
            if padded or (isinstance(layer, nn.Conv2d) and isinstance(weight, Tensor) and not weight.is_contiguous()):
                what = f"padding_mode={layer.padding_mode!r}" if padded else "channels last"
                wrong = f"Opacus up to 1.6 computes wrong gradients for {name} with {what}: "
                cure = 'Train with grad_sample_mode="functorch", or with train_teachers'
                if "FastGradientClipping" in type(part).__name__:
                    raise UnprovenPrivacy(f"{wrong}ghost clipping then does not bound the true ones. {cure}")
                warn_caller(f"{wrong}the guarantee holds, but the teacher learns less than it could. {cure}")
                return
