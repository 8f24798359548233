"""What a data loader draws."""

from __future__ import annotations

from typing import Any

__all__ = ["draws_poisson"]


def draws_poisson(data_loader: Any) -> bool:
    """Whether a loader draws its batches by one of Opacus' Poisson samplers."""
    from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler

    sampler = getattr(data_loader, "batch_sampler", None)
    return isinstance(sampler, (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler))
