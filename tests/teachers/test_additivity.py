"""What a step adds up is refused unless each record's gradient is its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from darrm_torch import TrainingSettings
from darrm_torch.errors import InvalidArgument, UnprovenPrivacy
from darrm_torch.teachers.training import check_training
from tests.teachers.test_gradients import Apply

LABELS = torch.tensor([0, 1, 0, 1])
ROWS = TensorDataset(torch.zeros(4, 6), LABELS)
SEQUENCES = TensorDataset(torch.zeros(4, 5, 6), LABELS)
IMAGES = TensorDataset(torch.zeros(4, 3, 6, 6), LABELS)
BYTES = TensorDataset(torch.zeros(4, 3, 6, 6, dtype=torch.uint8), LABELS)
WORDS = TensorDataset(torch.zeros(4, 7, dtype=torch.int64), LABELS)


def after(function: Callable[[Tensor], Tensor], *, dropout: bool = False) -> nn.Module:
    """A network for ROWS that begins with a function of the batch."""
    last = [nn.Dropout(0.5)] if dropout else []
    return nn.Sequential(Apply(function), nn.Linear(6, 8), nn.Tanh(), *last, nn.Linear(8, 2))


def tried(build: Callable[[], nn.Module], data: Any, mode: Any = "hooks", **how: Any) -> None:
    settings = TrainingSettings(grad_sample_mode=mode, **how)
    check_training(build, data, settings, workers=1, device="cpu", private=True)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def centred(inputs: Tensor) -> Tensor:
    return inputs - inputs.mean(0).detach()


class Attends(nn.Module):
    """Attention among the records of a batch, under a head of zeros: no gradient shows it before the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 2)
        nn.init.zeros_(self.head.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.body(inputs)
        outputs: Tensor = self.head((hidden @ hidden.T).softmax(1) @ hidden)
        return outputs


class AcrossRecords(nn.Module):
    """Attention whose first dimension is the sequence, as by default, for inputs whose first is the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = DPMultiheadAttention(6, 2), nn.Linear(30, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.attention(inputs, inputs, inputs)[0].flatten(1))
        return outputs


def behind_zeros() -> nn.Module:
    silent = nn.Linear(6, 3)
    nn.init.zeros_(silent.weight)
    return nn.Sequential(Apply(centred), silent, nn.Linear(3, 2))


class Recalls(nn.Module):
    """Subtracts the mean of the batch before, which is in no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.means = nn.Linear(6, 2), [torch.zeros(6)]

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.linear(inputs - self.means[-1])
        self.means.append(inputs.mean(0).detach())
        return outputs


class Writes(nn.Module):
    """Adds what it reads to a weight, in a way that Torch does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        self.linear.bias.data += 0.1 * inputs.mean().detach()
        outputs: Tensor = self.linear(inputs)
        return outputs


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


def frozen(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3).requires_grad_(False), *layers, nn.Flatten(), nn.Linear(64, 2))


MIXED: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "mean": (partial(after, lambda inputs: inputs - inputs.mean(0)), ROWS),
    "mean without gradient": (partial(after, centred), ROWS),
    "mean, and dropout": (partial(after, centred, dropout=True), ROWS),
    "order": (partial(after, lambda inputs: inputs.sort(0).values), ROWS),
    "number": (partial(after, lambda inputs: inputs / len(inputs)), ROWS),
    "number, and dropout": (partial(after, lambda inputs: inputs / len(inputs), dropout=True), ROWS),
    "attention": (Attends, ROWS),
    "attention, sequence first": (AcrossRecords, SEQUENCES),
    "behind zeros": (behind_zeros, ROWS),
    "BatchNorm without statistics": (
        lambda: images(nn.BatchNorm2d(4, affine=False, track_running_stats=False)),
        IMAGES,
    ),
    "bytes": (lambda: nn.Sequential(Apply(lambda inputs: centred(inputs.float() / 255)), images()), BYTES),
    "a frozen trunk": (lambda: frozen(Apply(centred)), IMAGES),
}


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("case", MIXED)
def test_a_network_that_mixes_records_is_refused(case: str, mode: Any) -> None:
    build, data = MIXED[case]
    with pytest.raises(UnprovenPrivacy, match="depends on the others of its batch, or on their number"):
        tried(build, data, mode)


def ranking(outputs: Tensor, targets: Tensor) -> Tensor:
    above = (outputs[:, None, 0] - outputs[None, :, 0]) * (targets[:, None] - targets[None]).sign()
    return torch.relu(1 - above).mean(1)


def weighted_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    """Weights of classes, divided by their mean in the batch, as Torch's own mean does."""
    shares = torch.where(targets == 1, 9.0, 1.0)
    return losses(outputs, targets) * shares / shares.mean()


@pytest.mark.parametrize("mode", ["hooks", pytest.param("ghost", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, targets: losses(outputs, targets) / len(targets),
        lambda outputs, targets: losses(outputs, targets) / losses(outputs, targets).detach().mean(),
        ranking,
        weighted_mean,
    ],
    ids=["mean", "normalised", "ranking", "weighted"],
)
def test_a_loss_that_mixes_records_is_refused(loss: Any, mode: Any) -> None:
    for dropout in (False, True):
        with pytest.raises(UnprovenPrivacy, match="a layer or the loss mixes records"):
            tried(partial(after, torch.tanh, dropout=dropout), ROWS, mode, loss=loss)
    tried(partial(after, torch.tanh), ROWS, mode, loss=losses)


@pytest.mark.parametrize("network", [Recalls, Writes])
def test_a_network_that_remembers_is_refused(network: Any) -> None:
    with pytest.raises(UnprovenPrivacy, match="remembers what it has read"):
        tried(network, ROWS, "ghost")


def tokens(before: Callable[[Tensor], Tensor], behind: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(Apply(before), nn.Linear(6, 2), Apply(behind))


FLAT = partial(tokens, lambda x: x.reshape(-1, 6), lambda x: x.reshape(-1, 5, 2).mean(1))
TIME_FIRST = partial(tokens, lambda x: x.transpose(0, 1), lambda x: x.mean(0))


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
@pytest.mark.parametrize("build", [FLAT, TIME_FIRST], ids=["flat", "time first"])
def test_a_network_whose_rows_are_no_records_is_refused(build: Any, mode: Any) -> None:
    """Opacus clips each row: one record moved the sum by 4.6 clipping bounds."""
    with pytest.raises(UnprovenPrivacy, match="layers see rows that are no records"):
        tried(build, SEQUENCES, mode)


class Outside(nn.Module):
    """Uses a weight of a layer outside of it, where Opacus does not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.tanh(nn.functional.linear(self.linear(inputs), 5 * self.linear.weight)))
        return outputs


def test_ghost_clipping_by_norms_of_other_gradients_is_refused() -> None:
    tried(Outside, ROWS)  # the gradients that Opacus sees are clipped and summed: the bound holds
    with pytest.raises(UnprovenPrivacy, match="does not clip its gradient to the bound"):
        tried(Outside, ROWS, "ghost")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = DPLSTM(6, 4, batch_first=False), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.cell(inputs.transpose(0, 1))[0][-1])
        return outputs


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = DPMultiheadAttention(6, 2, dropout=0.1, batch_first=True), nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Any:
        return {"logits": self.head(self.attention(inputs, inputs, inputs)[0].mean(1))}


ALONE: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "linear": (partial(after, torch.tanh), ROWS),
    "dropout": (partial(after, torch.tanh, dropout=True), ROWS),
    "noise": (partial(after, lambda inputs: inputs + 0.1 * torch.randn_like(inputs)), ROWS),
    "GroupNorm": (lambda: images(nn.GroupNorm(2, 4)), IMAGES),
    "InstanceNorm": (lambda: images(nn.InstanceNorm2d(4)), IMAGES),
    "frozen BatchNorm": (lambda: frozen(nn.BatchNorm2d(4).requires_grad_(False)), IMAGES),
    "bytes": (lambda: nn.Sequential(Apply(lambda inputs: inputs.float() / 255), images()), BYTES),
    "words": (lambda: nn.Sequential(nn.Embedding(2, 3), Apply(lambda x: x.mean(1)), nn.Linear(3, 2)), WORDS),
    "one word": (lambda: nn.Sequential(nn.Embedding(1, 3), Apply(lambda x: x.mean(1)), nn.Linear(3, 2)), WORDS),
    "LSTM, time first": (Recurrent, SEQUENCES),
    "attention": (Attention, SEQUENCES),
}


@pytest.mark.parametrize(
    "mode", ["hooks", pytest.param("ghost", marks=pytest.mark.slow), pytest.param("functorch", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("case", ALONE)
def test_other_networks_pass(case: str, mode: Any) -> None:
    tried(*ALONE[case], mode)


OVERWRITTEN = nn.Sequential(nn.Linear(6, 6), Apply(lambda x: x.add_(1.0)), nn.Linear(6, 2))
HALF_FLAT = nn.Sequential(
    Apply(lambda x: x.reshape(-1, 6)), nn.Linear(6, 2), Apply(lambda x: x.reshape(-1, 10)), nn.Linear(10, 2)
)


@pytest.mark.parametrize(
    ("network", "data", "cure"),
    [
        (OVERWRITTEN, ROWS, "use x = x [+] y in place of"),
        (HALF_FLAT, SEQUENCES, "one row for each record, in the first"),
    ],
    ids=["in place", "half flat"],
)
def test_what_opacus_cannot_train_is_refused_with_the_cure(network: nn.Module, data: Any, cure: str) -> None:
    with pytest.raises(InvalidArgument, match=cure):
        tried(lambda: network, data)
