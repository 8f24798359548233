"""Losses on unlabelled inputs, against values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import darrm_torch as dt
from darrm_torch.lightning import (
    FixMatch,
    VirtualAdversarialTraining,
)
from tests.lightning.helpers import LOG, linear, sigmoid


def test_the_adversarial_direction_of_a_linear_student_is_that_of_its_weights() -> None:
    # Two classes: only w_1 - w_0 changes the prediction.
    student = linear([[1.0, 0.0, 2.0], [-1.0, 3.0, 0.0]])
    inputs = torch.tensor([[0.1, 0.2, -0.3], [0.5, -0.4, 0.2]])
    log_p = student(inputs).log_softmax(dim=1).detach()
    torch.manual_seed(3)
    found = VirtualAdversarialTraining().direction(student, inputs, log_p)
    expected = nn.functional.normalize(torch.tensor([-2.0, 3.0, -2.0]), dim=0)
    assert torch.allclose((found @ expected).abs(), torch.ones(2), atol=1e-4)
    assert torch.allclose(found.norm(dim=1), torch.ones(2))
    assert student.weight.grad is None


def test_the_adversarial_direction_grows_the_divergence_most() -> None:
    torch.manual_seed(4)
    student = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))
    inputs = torch.randn(1, 2)
    method = VirtualAdversarialTraining(iterations=20, step=1e-2)
    log_p = student(inputs).log_softmax(dim=1).detach()

    def divergence(direction: Tensor) -> float:
        law = student(inputs + 0.05 * direction).log_softmax(dim=1)
        return (log_p.exp() * (log_p - law)).sum().item()

    angles = torch.linspace(0, 2 * math.pi, 721)
    around = [divergence(torch.stack([angle.cos(), angle.sin()])) for angle in angles]
    found = method.direction(student, inputs, log_p)[0]
    # The quadratic form has two best directions, d and -d; both within the cubic term of the best angle.
    assert max(divergence(found), divergence(-found)) == pytest.approx(max(around), rel=0.02)


def test_adversarial_loss_by_hand() -> None:
    # Logits (0, x): the worst change of length 0.5 goes to x - 0.5 or x + 0.5, whichever start it had.
    student, x = linear([[0.0], [1.0]]), 0.8
    loss = VirtualAdversarialTraining(radius=0.5, weight=2.0, entropy_weight=3.0).loss(student, torch.tensor([[x]]))
    p = sigmoid(x)
    entropy = -p * LOG(p) - (1 - p) * LOG(1 - p)
    possible = []
    for moved in (x - 0.5, x + 0.5):
        q = sigmoid(moved)
        possible.append(2 * (p * LOG(p / q) + (1 - p) * LOG((1 - p) / (1 - q))) + 3 * entropy)
    assert min(abs(loss.item() - value) for value in possible) < 1e-5


def test_balance_is_the_entropy_of_the_mean_prediction() -> None:
    student, inputs = linear([[0.0], [1.0]]), torch.tensor([[0.8], [-3.0]])
    plain, balanced = (VirtualAdversarialTraining(weight=0.0, balance_weight=b).loss(student, inputs) for b in (0, 2))
    mean = (sigmoid(0.8) + sigmoid(-3.0)) / 2
    entropy = -mean * LOG(mean) - (1 - mean) * LOG(1 - mean)
    assert balanced.item() == pytest.approx(plain.item() - 2 * entropy, rel=1e-5)
    certain = torch.tensor([[200.0], [300.0]], requires_grad=True)  # the other class has no chance in single precision
    VirtualAdversarialTraining(balance_weight=1.0).loss(student, certain).backward()
    assert student.weight.grad.isfinite().all()


def test_adversarial_loss_takes_no_gradient_through_its_target() -> None:
    # d/dw of KL(p || q(w)) with p fixed, in one dimension: (q - p) (x + r); the entropy is left out.
    student, x = linear([[0.0], [1.0]]), 0.8
    torch.manual_seed(0)
    VirtualAdversarialTraining(radius=0.5, entropy_weight=0.0).loss(student, torch.tensor([[x]])).backward()
    p = sigmoid(x)
    possible = [(sigmoid(x + r) - p) * (x + r) for r in (-0.5, 0.5)]
    assert min(abs(float(student.weight.grad[1]) - value) for value in possible) < 1e-5


def test_a_flat_student_has_no_adversarial_loss() -> None:
    student = linear([[0.0, 0.0], [0.0, 0.0]])
    loss = VirtualAdversarialTraining(entropy_weight=0.0).loss(student, torch.randn(3, 2))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(student.weight.grad, torch.zeros(2, 2))


def test_batch_statistics_come_from_real_inputs_only() -> None:
    student = nn.Sequential(nn.BatchNorm1d(2, momentum=1.0), nn.Linear(2, 2)).train()
    inputs = torch.randn(50, 2)
    VirtualAdversarialTraining(radius=100.0).loss(student, inputs)
    assert torch.allclose(student[0].running_mean, inputs.mean(dim=0), atol=1e-5)
    assert student[0].track_running_stats


def test_fixmatch_by_hand() -> None:
    # The student's logits are (0, brightness): weak leaves it, strong halves it.
    student = nn.Sequential(nn.Flatten(), linear([[0.0], [1.0]]))
    images = torch.tensor([4.0, -3.0, 1.0]).reshape(3, 1, 1, 1)
    method = FixMatch(weak=lambda image: image, strong=lambda image: image / 2, threshold=0.95, weight=2.0)
    # sigmoid(4) and sigmoid(3) are above 0.95, sigmoid(1) is not.
    expected = 2.0 * -(LOG(sigmoid(2.0)) + LOG(sigmoid(1.5))) / 3
    assert method.loss(student, images).item() == pytest.approx(expected)
    assert torch.equal(FixMatch(weak=lambda image: image + 1).augment(images), images + 1)


def test_fixmatch_changes_each_image_on_its_own() -> None:
    torch.manual_seed(0)
    images = torch.rand(1, 1, 28, 28).repeat(8, 1, 1, 1)
    method = FixMatch()
    for changed in (method.augment(images), torch.stack([method.strong(image) for image in images])):
        assert changed.shape == images.shape
        assert 0 <= changed.min() <= changed.max() <= 1
        assert len({image.numpy().tobytes() for image in changed}) > 4


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (VirtualAdversarialTraining, {"radius": 0.0}),
        (VirtualAdversarialTraining, {"weight": -1.0}),
        (VirtualAdversarialTraining, {"entropy_weight": math.nan}),
        (VirtualAdversarialTraining, {"balance_weight": -1.0}),
        (VirtualAdversarialTraining, {"iterations": 0}),
        (VirtualAdversarialTraining, {"step": math.inf}),
        (FixMatch, {"threshold": 1.5}),
        (FixMatch, {"weight": math.nan}),
    ],
)
def test_wrong_numbers(kind: type, wrong: dict[str, float]) -> None:
    with pytest.raises(dt.InvalidArgument, match=next(iter(wrong))):
        kind(**wrong)
