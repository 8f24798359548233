"""DP-SGD on one model: optimizers of Opacus with a public divisor, and a rule for gradients that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UnprovenPrivacy
from .secure import SecureRandom
from .structures import Structure, call

__all__ = [
    "LONGEST",
    "first_parameters",
    "ghost_gradients",
    "ghost_module",
    "no_gradients",
    "private_optimizer",
    "record_norms",
]

LONGEST = 1e18  # a longer gradient counts as not finite: its square does not fit into float32


def private_optimizer(
    optimizer: torch.optim.Optimizer,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    expected_batch_size: int,
    generator: torch.Generator,
    random: SecureRandom | None,
    ghost: bool,
) -> Any:
    """Opacus' optimizer with a public divisor, norms that do not round up the bound, and secure noise on request.

    The divisor is the expected batch size; Opacus computes it from the true size of the shard. And a record whose
    gradient is not finite, or longer than :data:`LONGEST`, contributes zero, silently: otherwise one record could make
    the whole teacher NaN. With ghost clipping :func:`ghost_gradients` takes care of both.
    """
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

    class Secure(DPOptimizer):  # type: ignore[misc] # Opacus has no types
        def add_noise(self) -> None:
            if random is None:
                super().add_noise()
                return
            for parameter in self.params:
                noise = random.normal(parameter.summed_grad, self.noise_multiplier * self.max_grad_norm)
                parameter.grad = (parameter.summed_grad + noise).view_as(parameter)

    class Clipping(Secure):
        def clip_and_accumulate(self) -> None:
            # Mixed precision has gradients with few digits: their norms need all digits of the weights.
            gradients = [self._get_flat_grad_sample(parameter).to(parameter.dtype) for parameter in self.params]
            norms = _together([record_norms(gradient) for gradient in gradients])
            kept = norms < LONGEST
            factors = torch.where(kept, _clip_factors(norms, self.max_grad_norm), 0.0)
            every = bool(kept.all())
            for parameter, gradient in zip(self.params, gradients, strict=True):
                finite = gradient if every else torch.where(kept.reshape(-1, *[1] * parameter.dim()), gradient, 0.0)
                clipped = torch.einsum("i,i...", factors.to(gradient), finite)
                earlier = parameter.summed_grad  # of the same batch
                parameter.summed_grad = clipped if earlier is None else earlier + clipped

    class Ghost(Secure, DPOptimizerFastGradientClipping):  # type: ignore[misc]
        pass

    return (Ghost if ghost else Clipping)(
        optimizer,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        expected_batch_size=expected_batch_size,
        generator=generator,
    )


def record_norms(gradient: Tensor) -> Tensor:
    """The L2 norms ``(B,)`` of the records' gradients ``(B, ...)`` for one parameter, exact to about 2e-6.

    Torch adds up long rows of float32 one by one: the norm of ten million weights is too small by up to a hundredth,
    and a record would exceed the bound by as much. Here, squares are added in float32 for 4,096 weights at most.
    """
    count, size, most = len(gradient), math.prod(gradient.shape[1:]), 4096
    rows: Tensor = gradient.reshape(count, size)
    length: Callable[..., Tensor] = torch.linalg.vector_norm
    if size <= most:
        return length(rows, dim=1)
    whole = size - size % most
    parts = length(rows[:, :whole].reshape(count, whole // most, most), dim=2)
    rest = length(rows[:, whole:], dim=1, keepdim=True)
    return length(torch.cat([parts, rest], dim=1).double(), dim=1).to(gradient.dtype)


def _together(norms: list[Tensor]) -> Tensor:
    """The norms ``(B,)`` over all parameters."""
    together: Tensor = torch.stack([norm.to(norms[0].device) for norm in norms], dim=1).norm(2, dim=1)
    return together


def _clip_factors(norms: Tensor, bound: float) -> Tensor:
    return (bound / (norms + 1e-6)).clamp(max=1.0)


def no_gradients(optimizer: Any, *, ghost: bool) -> None:
    """The gradients of a batch without records, which no network needs to take."""
    for parameter in optimizer.params:
        if ghost:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad_sample = parameter.new_zeros(0, *parameter.shape)


def ghost_module(network: nn.Module) -> Any:
    """The network with Opacus' hooks, which keep of the records' gradients for a layer nothing but their norms."""
    from opacus import GradSampleModule

    class Norms(GradSampleModule):  # type: ignore[misc]
        def capture_backprops_hook(self, module: nn.Module, *arguments: Any, **named: Any) -> None:
            super().capture_backprops_hook(module, *arguments, **named)
            for parameter in module.parameters():
                gradient = getattr(parameter, "grad_sample", None)
                if gradient is None:
                    continue
                if gradient.dtype != parameter.dtype:
                    raise UnprovenPrivacy(
                        "ghost clipping cannot bound gradients in mixed precision, because their norms and their sum "
                        'are rounded differently. Train without autocast, or with grad_sample_mode="hooks"'
                    )
                parameter.record_norms, parameter.grad_sample = record_norms(gradient), None  # type: ignore[attr-defined]

    return Norms(network, batch_first=True, loss_reduction="mean")


def ghost_gradients(module: Any, optimizer: Any, losses_of: Callable[[list[int]], Tensor], records: list[int]) -> None:
    """Ghost clipping: one backward pass for the norms of the records' gradients, another for their clipped sum.

    Norms are sums of squares, whose rounding errors are relative. In sums of Gram products, as in Opacus' own ghost
    clipping, terms cancel: a norm of 300 can come out as 0, and the record is not clipped.

    Args:
        module: the one of :func:`ghost_module`.
        optimizer: its optimizer.
        losses_of: returns the losses ``(B,)`` of these records.
        records: the records of this batch. Those whose gradient is not finite are left out: even with a loss of zero,
            they could make the sum NaN.
    """
    while records:
        for parameter in optimizer.params:
            parameter.record_norms = None  # those of an earlier batch
        losses = losses_of(records)
        losses.mean().backward(retain_graph=True)  # type: ignore[no-untyped-call]
        norms = _together([parameter.record_norms for parameter in optimizer.params])
        for parameter in optimizer.params:
            parameter.grad = None
        kept = norms < LONGEST
        if bool(kept.all()):
            module.disable_hooks()
            (_clip_factors(norms, optimizer.max_grad_norm) * losses).sum().backward()  # type: ignore[no-untyped-call]
            module.enable_hooks()
            return
        records = [record for record, keep in zip(records, kept.tolist(), strict=True) if keep]
    no_gradients(optimizer, ghost=True)


def first_parameters(model: nn.Module, inputs: Structure) -> list[Tensor]:
    """The smallest parameter of each layer that no other trained layer precedes.

    DP-SGD takes each record's gradient from Opacus' hooks and discards Torch's own sums, which cost a fifth of the
    work. If only the gradients of these parameters are requested, Torch still walks back through every layer, and all
    hooks run.
    """
    parameters: list[Tensor] = []

    def add_first(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        own = [parameter for parameter in layer.parameters(recurse=False) if parameter.requires_grad]
        if own and not any(isinstance(value, Tensor) and value.requires_grad for value in inputs):
            parameters.append(min(own, key=Tensor.numel))

    hooks = [layer.register_forward_pre_hook(add_first) for layer in model.modules()]
    call(model.eval(), inputs)
    for hook in hooks:
        hook.remove()
    return parameters
