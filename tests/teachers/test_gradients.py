"""Each record's gradient is that of Torch, for layers and layouts of any kind."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from opacus.grad_sample.utils import wrap_model
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from darrm_torch import TrainingSettings
from darrm_torch.errors import UnprovenPrivacy
from darrm_torch.teachers.dp_sgd import train_teacher
from darrm_torch.teachers.gradients import check_gradients, mend_gradients


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


def permuted(*order: int) -> nn.Module:
    return Apply(lambda images: images.permute(order))


def classifier(*layers: nn.Module) -> nn.Module:
    """These layers and a linear one, for inputs (B, 4, 4, 4)."""
    model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(1, 4, 4, 4))
    return model


def convolutions(*before: nn.Module, **first: Any) -> nn.Module:
    first = {"kernel_size": 3, "padding": 1} | first
    return classifier(*before, nn.Conv2d(4, 3, **first), nn.Tanh(), nn.Conv2d(3, 5, 2))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "valid": partial(convolutions, padding=0),
    "padded": convolutions,
    "same": partial(convolutions, padding="same"),
    "circular": partial(convolutions, padding_mode="circular"),
    "same, reflected": partial(convolutions, padding="same", padding_mode="reflect"),
    "groups": lambda: convolutions(nn.Conv2d(4, 4, (3, 2), padding=(3, 1), stride=2, dilation=(1, 2), groups=2)),
    "later, strides, dilation": lambda: convolutions(
        nn.Conv2d(4, 4, 1), kernel_size=(2, 3), padding=(3, 2), stride=(2, 1), dilation=(1, 2)
    ),
    "later, reflected": lambda: convolutions(nn.Conv2d(4, 4, 1), padding="same", padding_mode="reflect"),
    "later, no bias": lambda: convolutions(nn.Conv2d(4, 4, 1, bias=False), padding_mode="circular", bias=False),
    "later, groups": lambda: classifier(nn.Conv2d(4, 4, 1), nn.Tanh(), nn.Conv2d(4, 6, 2, padding=1, groups=2)),
    "channels last": lambda: convolutions().to(memory_format=torch.channels_last),
    "images (B, H, W, C)": lambda: convolutions(permuted(0, 3, 1, 2)),
    "images (B, W, H, C), not padded": lambda: convolutions(permuted(0, 3, 2, 1), padding=0),
    "images (B, C, W, H), not padded": lambda: convolutions(permuted(0, 1, 3, 2), padding=0),
    "one dimension": lambda: classifier(
        nn.Flatten(2), nn.Conv1d(4, 3, 4, padding=1, padding_mode="replicate"), nn.Tanh(), nn.Conv1d(3, 2, 3)
    ),
    "three dimensions": lambda: classifier(
        nn.Unflatten(1, (2, 2)), nn.Conv3d(2, 3, 3, padding=1, padding_mode="circular"), nn.Tanh(), nn.Conv3d(3, 2, 2)
    ),
    "words": lambda: classifier(Apply(lambda x: x[:, 0, 0].abs().long() % 5), nn.Embedding(5, 3, padding_idx=1)),
}


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)
def test_without_noise_and_clipping_a_training_is_an_ordinary_one(build: Callable[[], nn.Module], mode: Any) -> None:
    """Opacus' gradients of a Conv2d are wrong where its inputs have another layout: they must not be in ours."""
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(20, 4, 4, 4, generator=generator), torch.arange(20) % 2)
    settings = TrainingSettings(
        noise_multiplier=1e-7, max_grad_norm=1e3, batch_size=20, epochs=3, learning_rate=1.0, grad_sample_mode=mode
    )
    private, ordinary = (
        train_teacher(build, data, shard_size=20, settings=given, seeds=(1, 2))["module_state_dict"]
        for given in (settings, replace(settings, noise_multiplier=None))
    )
    for name, weight in ordinary.items():
        assert torch.allclose(private[name], weight, atol=2e-3), name  # the noise has a deviation of 5e-6 in each step


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
@pytest.mark.parametrize("kind", ["padded", "circular", "channels last", "one dimension", "three dimensions"])
def test_wrong_gradients_of_a_users_own_training_are_warned_of(kind: str, mode: str) -> None:
    private = wrap_model(LAYERS[kind](), mode)
    told = mode == "hooks" and kind != "padded"
    with pytest.warns(UserWarning, match="computes wrong gradients for") if told else warnings.catch_warnings():
        check_gradients(nn.ModuleDict({"teacher": private}))


def test_ghost_clipping_by_wrong_norms_is_refused() -> None:
    private = wrap_model(LAYERS["circular"](), "ghost", max_grad_norm=1.0, use_ghost_clipping=False)
    with pytest.raises(UnprovenPrivacy, match=r"wrong gradients for .* ghost clipping then does not bound"):
        check_gradients(private)
    mend_gradients(private)
    check_gradients(private)


@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)
def test_ghost_clipping_clips_as_much(build: Callable[[], nn.Module]) -> None:
    """With wrong norms, it would add gradients that are longer than the bound."""
    data = TensorDataset(3 * torch.randn(20, 4, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2)
    settings = TrainingSettings(noise_multiplier=1e-4, max_grad_norm=0.1, batch_size=20, epochs=3, learning_rate=9.0)
    clipped, ghost = (
        train_teacher(
            build, data, shard_size=20, settings=replace(settings, grad_sample_mode=mode), seeds=(1, 2)
        )["module_state_dict"]
        for mode in ("functorch", "ghost")
    )  # fmt: skip
    for name, weight in clipped.items():
        assert torch.allclose(weight, ghost[name], atol=2e-5), name
