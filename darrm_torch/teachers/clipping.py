"""DP-SGD on one model: optimizers of Opacus with a public divisor, and a rule for gradients that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .secure import SecureRandom
from .structures import Structure, call

__all__ = ["first_parameters", "ghost_gradients", "no_gradients", "private_optimizer"]


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
    """Opacus' optimizer with a public divisor, a rule for gradients that are not finite, and secure noise on request.

    The divisor is the expected batch size; Opacus computes it from the true size of the shard. And a record whose
    gradient is not finite contributes zero, silently: otherwise one record could make the whole teacher NaN. With
    ghost clipping :func:`ghost_gradients` takes care of that.
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

    class Finite(Secure):
        def clip_and_accumulate(self) -> None:
            earlier = [parameter.summed_grad for parameter in self.params]  # of the same batch
            self._sum_clipped()
            if not all(bool(parameter.summed_grad.isfinite().all()) for parameter in self.params):
                gradients = [sample.reshape(len(sample), -1) for sample in self.grad_samples]
                finite = torch.stack([gradient.isfinite().all(dim=1) for gradient in gradients]).all(dim=0)
                for parameter in self.params:
                    kept = finite.reshape(-1, *[1] * parameter.dim())
                    parameter.grad_sample = torch.where(kept, self._get_flat_grad_sample(parameter), 0.0)
                self._sum_clipped()
            for parameter, before in zip(self.params, earlier, strict=True):
                if before is not None:
                    parameter.summed_grad = parameter.summed_grad + before

        def _sum_clipped(self) -> None:
            for parameter in self.params:
                parameter.summed_grad = None
            super().clip_and_accumulate()

    class Ghost(Secure, DPOptimizerFastGradientClipping):  # type: ignore[misc]
        pass

    return (Ghost if ghost else Finite)(
        optimizer,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        expected_batch_size=expected_batch_size,
        generator=generator,
    )


def no_gradients(optimizer: Any, *, ghost: bool) -> None:
    """The gradients of a batch without records, which no network needs to take."""
    for parameter in optimizer.params:
        if ghost:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad_sample = parameter.new_zeros(0, *parameter.shape)


def ghost_gradients(module: Any, losses_of: Callable[[Tensor | None], Tensor]) -> None:
    """Ghost clipping: one backward pass for the norms of the records' gradients, another for their clipped sum.

    Args:
        module: a ``GradSampleModuleFastGradientClipping`` with ``use_ghost_clipping=False``. Norms are then sums
            of squares, whose rounding errors are relative. In sums of Gram products, terms cancel: a norm of 300 can
            come out as 0, and the record is not clipped.
        losses_of: returns the losses ``(B,)`` of the records in this mask, and zero for all others.
    """
    kept: Tensor | None = None
    while True:
        losses = losses_of(kept)
        losses.mean().backward(retain_graph=True)  # type: ignore[no-untyped-call]
        norms = module.get_norm_sample()
        finite = norms.isfinite()
        for parameter in module.trainable_parameters:
            parameter.grad = None
        if bool(finite.all()):
            break
        kept = finite if kept is None else kept & finite
    module.disable_hooks()
    (module.get_clipping_coef().detach() * losses).sum().backward()
    module.enable_hooks()


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
