"""The ways in which gradients are clipped and summed are the same DP-SGD."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from darrm_torch import TrainingSettings
from darrm_torch.errors import UnprovenPrivacy
from darrm_torch.teachers.clipping import record_norms
from darrm_torch.teachers.dp_sgd import train_teacher


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))


def records(count: int = 60, scale: float = 1.0) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(scale * torch.randn(count, 1, 4, 4, generator=generator), torch.arange(count) % 2)


SETTINGS = TrainingSettings(noise_multiplier=0.5, batch_size=20, epochs=2, learning_rate=0.5)


def weights(data: Any, settings: TrainingSettings, build: Any = network, secure: bool = False) -> dict[str, Tensor]:
    record = train_teacher(build, data, shard_size=60, settings=settings, seeds=(1, 2), secure=secure)
    assert record["privacy_accountant_state_dict"]["history"] == [(settings.noise_multiplier, 1 / 3, 6)]
    state: dict[str, Tensor] = record["module_state_dict"]
    return state


def assert_alike(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name, weight in one.items():
        assert torch.allclose(weight, other[name], atol=2e-5), name


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize("part", [None, 7])
def test_modes_and_physical_batches_change_nothing(mode: Any, part: int | None) -> None:
    changed = replace(SETTINGS, grad_sample_mode=mode, max_physical_batch_size=part)
    for data in (records(), records(count=2)):  # also batches without records
        assert_alike(weights(data, SETTINGS), weights(data, changed))


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_network_that_rescales_words_as_it_reads_them_is_refused(mode: Any) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(5, 3, max_norm=1.0), nn.Flatten(), nn.Linear(6, 2))

    settings = replace(SETTINGS, grad_sample_mode=mode)
    words = TensorDataset(torch.ones(60, 2, dtype=torch.long), torch.arange(60) % 2)
    with pytest.raises(UnprovenPrivacy, match=r"changes its weight 0\.weight when it reads a batch"):
        train_teacher(build, words, shard_size=60, settings=settings, seeds=(1, 2))


def test_ghost_clipping_refuses_gradients_that_depend_on_other_records() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(5, 3, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(6, 2))

    words = TensorDataset(torch.ones(60, 2, dtype=torch.long), torch.arange(60) % 2)
    weights(words, SETTINGS, build)
    with pytest.raises(UnprovenPrivacy, match="scale_grad_by_freq"):
        weights(words, replace(SETTINGS, grad_sample_mode="ghost"), build)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("part", [None, 3])
@pytest.mark.parametrize("bad", [float("nan"), 3e38])
def test_a_record_that_is_not_finite_contributes_zero(mode: Any, part: int | None, bad: float) -> None:
    settings = replace(SETTINGS, grad_sample_mode=mode, max_physical_batch_size=part)
    build = partial(nn.Sequential, nn.Flatten(), nn.Linear(16, 2, bias=False))
    spoiled, cleaned = records(), records()
    spoiled.tensors[0][3] = bad
    cleaned.tensors[0][3] = 0.0  # without a bias, its gradient is zero
    assert_alike(weights(spoiled, settings, build), weights(cleaned, settings, build))


def zero_network() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize("part", [None, 2])
def test_one_record_moves_the_sum_by_the_bound_at_most(mode: Any, part: int | None) -> None:
    """One step on all records, with next to no noise: neighbours differ by the gradient of one record, clipped."""
    settings = TrainingSettings(
        noise_multiplier=1e-6, max_grad_norm=0.25, batch_size=60, epochs=1, learning_rate=60.0,
        grad_sample_mode=mode, max_physical_batch_size=part,
    )  # fmt: skip
    more = [
        train_teacher(zero_network, records(count, 50.0), shard_size=60, settings=settings, seeds=(1, 2))
        for count in (8, 9)
    ]
    one, other = (torch.cat([part.flatten() for part in record["module_state_dict"].values()]) for record in more)
    assert float((one - other).norm()) == pytest.approx(0.25, rel=1e-3)


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Linear(3, 2, bias=False), nn.Linear(2, 2, bias=False)
        nn.init.zeros_(self.token.weight)
        self.head.weight = nn.Parameter(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = self.token(inputs)
        outputs: Tensor = self.head(tokens[:, 0] - tokens[:, 1])
        return outputs


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_gradient_that_is_a_small_difference_is_clipped(mode: Any) -> None:
    """Two large tokens whose gradients nearly cancel: in float32, the norm from Gram products is zero."""
    settings = TrainingSettings(noise_multiplier=1e-6, batch_size=1, epochs=1, learning_rate=1.0, grad_sample_mode=mode)
    token = torch.tensor([1e6, 1e6, 1e6])
    data = TensorDataset(torch.stack([token, token + torch.tensor([40.0, 0.0, 0.0])])[None], torch.zeros(1).long())
    record = train_teacher(Sequences, data, shard_size=1, settings=settings, seeds=(1, 2))
    assert float(record["module_state_dict"]["token.weight"].norm()) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_secure_noise_has_the_declared_size(mode: Any) -> None:
    """Without records only noise moves the weights: 8,000 of them, so 5 standard errors are 4 per cent."""
    build = partial(nn.Linear, 4000, 2, bias=False)
    data = TensorDataset(torch.zeros(0, 4000), torch.zeros(0, dtype=torch.int64))
    settings = TrainingSettings(
        noise_multiplier=2.0, max_grad_norm=0.5, batch_size=60, epochs=1, learning_rate=60.0, grad_sample_mode=mode
    )
    record = train_teacher(build, data, shard_size=60, settings=settings, seeds=(1, 2), secure=True)
    torch.manual_seed(1)
    start = build().weight.detach()
    assert float((record["module_state_dict"]["weight"] - start).std()) == pytest.approx(1.0, rel=0.04)


class Roots(nn.Module):
    """Its gradient at zero is not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.linear(inputs.flatten(1)).abs().sqrt()
        return outputs


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize("bad", [(3,), tuple(range(60))])
def test_a_record_that_spoils_the_gradient_of_zeros_contributes_nothing_either(mode: Any, bad: tuple[int, ...]) -> None:
    """A record with a NaN is replaced by zeros: ghost clipping tried again without end."""
    spoiled = records()
    spoiled.tensors[0][list(bad)] = float("nan")
    state = weights(spoiled, replace(SETTINGS, grad_sample_mode=mode), Roots)
    assert state["linear.weight"].isfinite().all()


def test_norms_of_many_weights_are_not_too_small() -> None:
    """Torch's own are .8 per cent too small for ten million equal weights: records exceed the bound by as much."""
    for gradient in (torch.full((2, 3, 2_000_000), 0.1), torch.rand(2, 3), torch.rand(3), torch.zeros(0, 5, 5000)):
        exact = gradient.double().reshape(len(gradient), -1 if gradient.numel() else 25_000).norm(dim=1)
        assert torch.allclose(record_norms(gradient).double(), exact, rtol=5e-6, atol=0)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_weights_with_few_digits_are_not_trained(kind: torch.dtype) -> None:
    data = TensorDataset(records().tensors[0].to(kind), records().tensors[1])
    with pytest.raises(UnprovenPrivacy, match=rf"0\.weight is trained in {str(kind)[6:]}, whose rounding"):
        weights(data, SETTINGS, lambda: network().to(kind))


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs: Tensor = self.linear(inputs.flatten(1)).float()
        return outputs


def test_mixed_precision_is_clipped_to_the_bound_or_refused() -> None:
    settings = TrainingSettings(noise_multiplier=1e-9, batch_size=1, epochs=1, learning_rate=1e4, max_grad_norm=1e-3)
    for number in range(8):
        data = TensorDataset(*(part[number : number + 1] for part in records().tensors))
        train = partial(train_teacher, Mixed, data, shard_size=1, seeds=(1, 2))
        moved = train(settings=settings)["module_state_dict"]
        torch.manual_seed(1)
        length = torch.cat([(moved[name] - start).flatten() for name, start in Mixed().state_dict().items()]).norm()
        assert float(length) == pytest.approx(10, rel=1e-4)  # rounded norms: off by .3 per cent
        with pytest.raises(UnprovenPrivacy, match="mixed precision"):
            train(settings=replace(settings, grad_sample_mode="ghost"))


class Remembers(nn.Module):
    """Keeps a mean of raw batches in an attribute that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(16)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and len(inputs):
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0).detach()
        return inputs + 0 * self.mean


def test_statistics_in_an_attribute_are_refused() -> None:
    build = partial(nn.Sequential, nn.Flatten(), Remembers(), nn.Linear(16, 2))
    with pytest.raises(UnprovenPrivacy, match=r"training changed the buffer 1\.mean"):
        weights(records(), SETTINGS, build)


def test_complex_weights_are_refused() -> None:
    """Each part of Torch's complex noise has half the variance."""
    build = partial(nn.Sequential, nn.Flatten(), nn.Linear(16, 2, dtype=torch.complex64))
    with pytest.raises(UnprovenPrivacy, match="noise on complex weights has half the variance"):
        weights(records(), SETTINGS, build)
