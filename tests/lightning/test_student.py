"""Students: every loss against one computed by hand, no teacher and no vote anywhere near them."""

from __future__ import annotations

import math
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import darrm_torch as dt
from darrm_torch.lightning import (
    FixMatch,
    PrivateLabelDataModule,
    StudentModule,
    VirtualAdversarialTraining,
    label_transition,
)
from tests.lightning.helpers import LOG, linear, sigmoid, trainer


def fit(student: StudentModule, loaders: object, folder: Path, **how: object) -> L.Trainer:
    runner = trainer(folder, **how)
    runner.fit(student, loaders)
    return runner


# --- labels ------------------------------------------------------------------------------------------------------


def test_cross_entropy_is_the_mean_over_labels_that_were_given() -> None:
    student = StudentModule(linear([[0.0], [1.0]]))
    logits = student(torch.tensor([[1.0], [2.0], [5.0]]))
    loss = student.label_loss(logits, torch.tensor([1, 0, -1]))
    assert loss.item() == pytest.approx(-(LOG(sigmoid(1.0)) + LOG(sigmoid(-2.0))) / 2)
    assert student.label_loss(logits, torch.full((3,), -1)).item() == 0.0


def test_the_loss_of_findings_is_the_mean_of_binary_cross_entropies() -> None:
    student = StudentModule(linear([[0.0], [1.0], [2.0], [0.0]]), findings=["edema", "effusion"])
    logits = student(torch.tensor([[1.0], [3.0]]))
    assert logits.shape == (2, 2, 2)
    loss = student.label_loss(logits, torch.tensor([[1, 0], [-1, 1]]))
    assert loss.item() == pytest.approx(-(LOG(sigmoid(1.0)) + LOG(sigmoid(2.0)) + LOG(sigmoid(-6.0))) / 3)
    one = StudentModule(linear([[1.0], [-2.0]]), findings=["edema", "effusion"])  # one logit for each
    assert torch.equal(one(torch.ones(3, 1))[:, :, 1], torch.tensor([[1.0, -2.0]]).expand(3, 2))
    for wrong in (torch.tensor([1, 0]), torch.zeros(2, 3, dtype=torch.int64), torch.tensor([[1, 2], [0, 0]]),
                  torch.zeros(2, 2), torch.zeros(3, 2, dtype=torch.int64)):  # fmt: skip
        with pytest.raises(dt.InvalidArgument, match="labels must be"):
            student.label_loss(logits, wrong)
    with pytest.raises(dt.InvalidArgument, match="one for each finding"):
        StudentModule(nn.Linear(1, 3), findings=["edema", "effusion"])(torch.ones(2, 1))
    for contradiction in ({"classes": 3}, {"consistency": FixMatch()}, {"findings": ["edema"] * 2}):
        with pytest.raises(dt.InvalidArgument):
            StudentModule(nn.Linear(1, 4), **{"findings": ["edema", "effusion"], **contradiction})


@pytest.mark.slow
def test_a_student_of_findings_learns_and_is_measured_by_finding(tmp_path: Path) -> None:
    """The second finding's test labels are wrong on purpose."""
    inputs = torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    models = [linear([[1.0, 0.1 * k], [-1.0, 0.2 + 0.1 * k]]) for k in range(3)]
    ensemble = dt.PrivateMajorityEnsemble(
        models, dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger(), findings=["edema", "effusion"]
    )
    labels = ensemble(inputs)
    truth = TensorDataset(inputs, torch.stack([labels[:, 0], 1 - labels[:, 1]], dim=1))
    data = PrivateLabelDataModule(ensemble, inputs, queries=40, validation=truth, test=truth, batch_size=7)
    assert torch.equal(data.labels, labels[data.queries])
    assert ensemble.ledger.count == 120
    student = StudentModule(nn.Linear(2, 2), findings=ensemble.findings, learning_rate=0.1)
    runner = trainer(tmp_path, max_epochs=12)
    runner.fit(student, datamodule=data)
    (scores,) = runner.test(student, datamodule=data, verbose=False)
    assert scores["test_accuracy/edema"] > 0.9
    assert scores["test_accuracy/effusion"] < 0.1
    both = (scores["test_accuracy/edema"] + scores["test_accuracy/effusion"]) / 2
    assert scores["test_accuracy"] == pytest.approx(both)
    (scores,) = runner.validate(student, datamodule=data, verbose=False)
    assert scores["val_accuracy"] == pytest.approx(both)


def test_soft_labels_are_learned_by_cross_entropy_with_probabilities() -> None:
    student = StudentModule(linear([[0.0], [1.0]]))
    logits = student(torch.tensor([[1.0], [2.0]]))
    loss = student.label_loss(logits, torch.tensor([[0.3, 0.7], [0.9, 0.1]]))
    parts = [0.7 * LOG(sigmoid(1.0)) + 0.3 * LOG(sigmoid(-1.0)), 0.1 * LOG(sigmoid(2.0)) + 0.9 * LOG(sigmoid(-2.0))]
    assert loss.item() == pytest.approx(-sum(parts) / 2)
    hard = torch.tensor([1, 0])
    one_hot = nn.functional.one_hot(hard, 2).float()
    assert student.label_loss(logits, one_hot).item() == pytest.approx(student.label_loss(logits, hard).item())
    for wrong in (
        torch.tensor([0.3, 0.7]), torch.rand(2, 3), torch.tensor([[0.3, 0.3], [1.0, 0.0]]),
        torch.tensor([[1.5, -0.5], [1.0, 0.0]]), torch.tensor([[math.nan, 1.0], [1.0, 0.0]]),
    ):  # fmt: skip
        with pytest.raises(dt.InvalidArgument, match="labels"):
            student.label_loss(logits, wrong)
    corrected = StudentModule(linear([[0.0], [1.0]]), transition=torch.eye(2))
    with pytest.raises(dt.InvalidArgument, match="transition must be None with soft labels"):
        corrected.label_loss(logits, one_hot)


def test_a_student_of_mean_probabilities(tmp_path: Path) -> None:
    """The data module hands out the ensemble's rows; accuracies compare with their largest entry."""
    inputs = torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    models = [linear([[1.0, 0.2 * k], [-1.0, 0.0]]) for k in range(3)]
    ensemble = dt.PrivateMajorityEnsemble(models, dt.MeanProbabilities(), ledger=dt.PrivacyLedger())
    soft = TensorDataset(inputs, ensemble(inputs))
    data = PrivateLabelDataModule(ensemble, inputs, queries=40, validation=soft, test=soft)
    assert (data.labels.dtype, tuple(data.labels.shape)) == (torch.float32, (40, 2))
    assert torch.equal(data.labels, ensemble(inputs[data.queries]))
    batch, labels = next(iter(data.train_dataloader()))
    assert labels.shape == (len(batch), 2)
    student = StudentModule(nn.Linear(2, 2), learning_rate=0.1)
    runner = trainer(tmp_path, max_epochs=30)
    runner.fit(student, datamodule=data)
    (scores,) = runner.test(student, datamodule=data, verbose=False)
    assert scores["test_accuracy"] > 0.9
    assert ensemble.ledger.count == 60


def test_forward_correction_by_hand() -> None:
    student = StudentModule(linear([[0.0], [1.0]]), transition=torch.tensor([[0.9, 0.1], [0.3, 0.7]]))
    loss = student.label_loss(student(torch.tensor([[1.0], [2.0]])), torch.tensor([1, 0]))
    one, two = sigmoid(1.0), sigmoid(2.0)
    expected = -(LOG(0.7 * one + 0.1 * (1 - one)) + LOG(0.9 * (1 - two) + 0.3 * two)) / 2
    assert loss.item() == pytest.approx(expected)


def test_labels_without_noise_need_no_correction() -> None:
    logits, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    plain, corrected = (
        StudentModule(nn.Identity(), classes=3),
        StudentModule(nn.Identity(), classes=3, transition=torch.eye(3)),
    )
    logits.requires_grad_()
    (one,) = torch.autograd.grad(plain.label_loss(logits, labels), logits)
    (other,) = torch.autograd.grad(corrected.label_loss(logits, labels), logits)
    assert torch.allclose(one, other, atol=1e-6)


def test_the_corrected_minimum_is_the_law_of_the_right_label() -> None:
    # One input, asked 1,000 times: right label 1 with chance 0.8, flipped with chance 0.25: 650 labels are 1.
    transition = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    student = StudentModule(linear([[0.0], [0.0]]), transition=transition)
    labels = (torch.arange(1000) < 650).long()
    optimizer = torch.optim.LBFGS(student.parameters(), max_iter=100)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = student.label_loss(student(torch.ones(1000, 1)), labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert student(torch.ones(1, 1)).softmax(dim=1)[0, 1].item() == pytest.approx(0.8, abs=1e-3)


WRONG_TRANSITIONS = {
    "three classes": (torch.eye(3), r"shape \(2, 2\)"),
    "no law": (torch.tensor([[0.9, 0.2], [0.1, 0.9]]), "sum to 1"),
    "negative": (torch.tensor([[1.1, -0.1], [0.0, 1.0]]), "probabilities"),
    "NaN": (torch.tensor([[math.nan, 1.0], [0.0, 1.0]]), "probabilities"),
    "a coin": (torch.full((2, 2), 0.5), "inverted"),
}


@pytest.mark.parametrize("wrong", WRONG_TRANSITIONS)
def test_wrong_transitions(wrong: str) -> None:
    transition, named = WRONG_TRANSITIONS[wrong]
    with pytest.raises(dt.InvalidArgument, match=named):
        StudentModule(nn.Identity(), transition=transition)


# --- how a mechanism errs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mechanism",
    [
        dt.DaRRM(dt.self_bounding_noise(teachers=5, allowance=1.5)),
        dt.GNMax(sigma=2.0),
        dt.NoiseFreeMajority(),
        dt.LNMax(scale=1.0),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_transition_by_enumerating_every_vote(mechanism: dt.Mechanism) -> None:
    # Each of five teachers is right with chance 0.7: 32 patterns of votes for each right class.
    by_hand = np.zeros((2, 2))
    for right in (0, 1):
        for pattern in range(32):
            correct = bin(pattern).count("1")
            votes = [5 - correct, correct] if right else [correct, 5 - correct]
            chance = 0.7**correct * 0.3 ** (5 - correct)
            by_hand[right] += chance * mechanism.label_probabilities(np.array([votes]))[0]
    matrix = label_transition(mechanism, teachers=5, prior=dt.IndependentVotes(mean=0.7))
    assert np.allclose(matrix.numpy(), by_hand, atol=1e-9)


def test_transition_of_three_classes() -> None:
    # Three teachers, right with chance 0.6, else either wrong class alike; a tie of three is a fair draw.
    right = 0.6**3 + 3 * 0.6**2 * 0.4 + 6 * 0.6 * 0.2 * 0.2 / 3
    matrix = label_transition(dt.NoiseFreeMajority(), teachers=3, prior=dt.PluralityVotes(accuracy=0.6), classes=3)
    assert torch.allclose(matrix.diagonal(), torch.full((3,), right, dtype=torch.float64))
    assert torch.allclose(matrix.sum(dim=1), torch.ones(3, dtype=torch.float64))
    with pytest.raises(dt.InvalidArgument, match="PluralityVotes"):
        label_transition(dt.NoiseFreeMajority(), teachers=3, prior=dt.IndependentVotes(), classes=3)


def test_transition_of_many_votes_is_that_of_simulated_ones() -> None:
    """Fifty teachers, ten classes: 62,740 histograms, of which some thousand are drawn; 4 standard errors."""
    mechanism, prior = dt.PermuteAndFlip(epsilon=0.2), dt.PluralityVotes(accuracy=0.4, concentration=10.0)
    matrix = label_transition(mechanism, teachers=50, prior=prior, classes=10)
    counts = prior.sample(votes=50, classes=10, count=20_000, rng=np.random.default_rng(1))
    reported = mechanism.label_probabilities(counts)[:, 0]
    assert abs(float(matrix[0, 0]) - reported.mean()) < 4 * reported.std() / math.sqrt(20_000) + 4e-3
    assert torch.allclose(matrix.sum(dim=1), torch.ones(10, dtype=torch.float64))


def test_transition_where_answers_may_be_declined() -> None:
    mechanism = dt.ConfidentGNMax(threshold=4.0, sigma_check=1.0, sigma=1.0)
    matrix = label_transition(mechanism, teachers=5, prior=dt.IndependentVotes(mean=0.9))
    assert torch.allclose(matrix.sum(dim=1), torch.ones(2, dtype=torch.float64))
    law = np.array([math.comb(5, k) * 0.9**k * 0.1 ** (5 - k) for k in range(6)])
    given = law @ mechanism.label_probabilities(np.array([[k, 5 - k] for k in range(6)]))
    assert float(matrix[0, 0]) == pytest.approx(given[0] / (given[0] + given[1]))


# --- in Lightning -----------------------------------------------------------------------------------------------------


def semi_supervised_data(unlabelled_batch_size: int | None = 8) -> PrivateLabelDataModule:
    torch.manual_seed(1)
    teachers = [nn.Sequential(nn.Flatten(), nn.Linear(64, 2)) for _ in range(3)]
    profiles = [dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=0.1))] * 3
    mechanism = dt.DaRRM(dt.self_bounding_noise(teachers=3, allowance=2.0))
    ensemble = dt.PrivateMajorityEnsemble(teachers, mechanism, profiles=profiles)
    images = torch.rand(40, 1, 8, 8)
    return PrivateLabelDataModule(
        ensemble, images, queries=10, batch_size=5, unlabelled_batch_size=unlabelled_batch_size
    )


@pytest.mark.parametrize("consistency", [VirtualAdversarialTraining(), FixMatch()], ids=["vat", "fixmatch"])
def test_semi_supervised_students_train_and_ship_only_themselves(consistency: object, tmp_path: Path) -> None:
    data = semi_supervised_data()
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    before = backbone[1].weight.detach().clone()
    student = StudentModule(backbone, consistency=consistency, transition=torch.tensor([[0.9, 0.1], [0.1, 0.9]]))
    trainer = L.Trainer(
        default_root_dir=tmp_path, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False,
        logger=False, max_epochs=2,
    )  # fmt: skip
    trainer.fit(student, datamodule=data)
    assert trainer.global_step == 2 * 4  # 30 unlabelled inputs in batches of 8
    assert not torch.equal(before, backbone[1].weight)
    (file,) = tmp_path.rglob("*.ckpt")
    content = torch.load(file, weights_only=True)
    assert set(content["state_dict"]) == {"backbone.1.weight", "backbone.1.bias"}
    secrets = [teacher[1].weight.detach().numpy().tobytes() for teacher in data._ensemble._teachers]
    for left in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert not any(secret in left.read_bytes() for secret in secrets)
    # What was saved is a student of any kind.
    StudentModule(nn.Sequential(nn.Flatten(), nn.Linear(64, 2))).load_state_dict(content["state_dict"])
    assert data._ensemble.ledger.count == 10


def test_a_supervised_student_takes_the_labelled_part(tmp_path: Path) -> None:
    fit(
        StudentModule(nn.Sequential(nn.Flatten(), nn.Linear(64, 2))),
        semi_supervised_data().train_dataloader(),
        tmp_path,
    )


def test_consistency_without_unlabelled_batches_says_what_to_do(tmp_path: Path) -> None:
    student = StudentModule(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), consistency=VirtualAdversarialTraining())
    with pytest.raises(dt.InvalidArgument, match="unlabelled_batch_size"):
        fit(student, semi_supervised_data(None).train_dataloader(), tmp_path)


def test_labels_of_other_classes_fail_at_the_first_batch(tmp_path: Path) -> None:
    """Those of ten classes trained two outputs without a word, or an index error from inside Torch."""

    def data(*labels: int) -> DataLoader[object]:
        return DataLoader(TensorDataset(torch.rand(len(labels), 3), torch.tensor(labels)), batch_size=8)

    for labels in ((0, 9, 1), (0, -2)):
        with pytest.raises(dt.InvalidArgument, match=r"labels must be from -1 to 1.*classes=\.\.\."):
            fit(StudentModule(nn.Linear(3, 2)), data(*labels), tmp_path)
    for backbone in (nn.Linear(3, 10), nn.Sequential(nn.Linear(3, 2), nn.Flatten(0)), nn.LSTM(3, 5)):
        with pytest.raises(dt.InvalidArgument, match=r"backbone must be one with outputs \(B, 2\), got "):
            fit(StudentModule(backbone), data(0, 1), tmp_path)
    student = StudentModule(nn.Linear(3, 2))
    for check in (student.validation_step, student.test_step):
        with pytest.raises(dt.InvalidArgument, match="labels must be from 0 to 1, got '0 to 7'"):
            check((torch.rand(2, 3), torch.tensor([0, 7])), 0)
    fit(StudentModule(nn.Linear(3, 2)), data(-1, 0, 1), tmp_path)


@pytest.mark.slow
def test_noisy_labels_and_smoothness_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clusters, a hundred labels of which three in ten are wrong; a student that tells one class scores 0.5.

    Smoothness alone prefers that student. What keeps it off: less weight on inputs without labels, and balance.
    """

    def accuracy(seed: int, *, balance: float, pull: float | None = None) -> float:
        torch.manual_seed(seed)
        right = torch.randint(2, (600,))
        inputs = torch.randn(600, 2) + 3 * right[:, None]
        given = right[:100] ^ (torch.rand(100) < 0.3).long()
        student = StudentModule(
            nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)),
            transition=torch.tensor([[0.7, 0.3], [0.3, 0.7]]),
            consistency=VirtualAdversarialTraining(radius=0.5, balance_weight=balance),
            learning_rate=1e-2,
        )
        monkeypatch.setattr(student, "log", lambda *_, **__: None)
        if pull is not None:
            student._pull = pull
        optimizer = student.configure_optimizers()
        for _ in range(100):
            optimizer.zero_grad()
            student.training_step({"labelled": (inputs[:100], given), "unlabelled": inputs[100:]}, 0).backward()
            optimizer.step()
        return float((student(inputs).argmax(dim=1) == right).float().mean())

    assert all(accuracy(seed, balance=1.0) > 0.95 for seed in (0, 2))
    assert accuracy(0, balance=0.0, pull=1.0) < 0.6
    assert accuracy(2, balance=1.0, pull=1.0) < 0.1  # the classes exchanged: labels were overruled


def test_the_optimizer_is_the_users(tmp_path: Path) -> None:
    class Frozen(StudentModule):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-30)

    backbone = linear([[1.0], [2.0]])
    fit(Frozen(backbone), DataLoader(TensorDataset(torch.rand(8, 1), torch.ones(8, dtype=torch.int64))), tmp_path)
    assert backbone.weight.flatten().tolist() == [1.0, 2.0]


def test_forward_correction_survives_labels_that_mislead_plain_training() -> None:
    """Labels flipped by 0.4 for inputs of class 1 only: plain training sides with 0, the corrected one does not."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(4000, 1, generator=generator)
    right = (inputs[:, 0] > 0).long()
    flipped = right * (torch.rand(4000, generator=generator) < 0.4).long()
    labels = right - flipped
    transition = torch.tensor([[1.0, 0.0], [0.4, 0.6]])
    chances = {}
    for name, how in {"plain": None, "aware": transition}.items():
        torch.manual_seed(0)
        student = StudentModule(nn.Linear(1, 2), transition=how)
        optimizer = torch.optim.LBFGS(student.parameters(), max_iter=50)

        def closure(optimizer: torch.optim.Optimizer = optimizer, student: StudentModule = student) -> Tensor:
            optimizer.zero_grad()
            loss = student.label_loss(student(inputs), labels)
            loss.backward()
            return loss

        optimizer.step(closure)
        chances[name] = float(student(torch.tensor([[1.0]])).softmax(dim=1)[0, 1].detach())
    assert chances["plain"] < 0.75  # it believes the labels: 0.6 of these are 1
    assert chances["aware"] > 0.95


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(2), torch.zeros(2, 1).long(), None, torch.zeros(2, device="meta").long(), torch.zeros(3).long()],
)
def test_labels_that_are_no_classes_of_the_batch_are_refused_by_name(labels):
    with pytest.raises(dt.InvalidArgument, match="labels must be"):
        StudentModule(nn.Linear(4, 2)).label_loss(torch.zeros(2, 2), labels)


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.uint16, torch.int32, torch.uint64])
def test_labels_of_any_integer_type_are_taught(kind):
    loss = StudentModule(nn.Linear(4, 2)).label_loss(torch.zeros(2, 2), torch.tensor([0, 1]).to(kind))
    assert float(loss) == pytest.approx(math.log(2))


@pytest.mark.parametrize("batch", [3, {"a": 1}, (torch.zeros(2, 4),), None])
def test_a_batch_that_is_no_pair_is_refused(batch):
    with pytest.raises(dt.InvalidArgument, match="batches must be pairs"):
        StudentModule(nn.Linear(4, 2)).training_step(batch, 0)


NUMBERS = torch.tensor([[1.0, 0.0, 2.0, 3.0], [0.0, 1.0, 0.0, 0.0]])


def spoiled(value: float, kind: torch.dtype = torch.float32) -> Tensor:
    return NUMBERS.to(kind).index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(value, dtype=kind))


class Pair(nn.Linear):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return super().forward(left + right)


@pytest.mark.parametrize("step", ["training_step", "validation_step", "test_step"])
@pytest.mark.parametrize(
    ("value", "kind"), [(math.nan, torch.float32), (-math.inf, torch.float64), (math.nan, torch.half)]
)
def test_inputs_of_ones_own_loader_that_are_not_finite_are_refused(step: str, value: float, kind: torch.dtype) -> None:
    inputs, labels = spoiled(value, kind), torch.tensor([0, 1])
    with pytest.raises(dt.InvalidArgument, match="inputs must be finite as float32 numbers"):
        getattr(StudentModule(nn.Linear(4, 2)), step)((inputs, labels), 0)
    with pytest.raises(dt.InvalidArgument, match=r"inputs\['right'\] must be finite"):
        getattr(StudentModule(Pair(4, 2)), step)(({"left": NUMBERS, "right": inputs}, labels), 0)


def test_no_part_of_a_semi_supervised_batch_may_be_spoiled() -> None:
    student = StudentModule(nn.Linear(4, 2), consistency=VirtualAdversarialTraining())
    for labelled, unlabelled in ((spoiled(math.nan), NUMBERS), (NUMBERS, spoiled(math.nan))):
        with pytest.raises(dt.InvalidArgument, match="inputs must be finite"):
            student.training_step({"labelled": (labelled, torch.tensor([0, 1])), "unlabelled": unlabelled}, 0)


def test_soft_labels_that_are_not_finite_are_refused() -> None:
    for value in (math.nan, math.inf):
        with pytest.raises(dt.InvalidArgument, match="labels must be rows of probabilities"):
            StudentModule(nn.Linear(4, 2)).training_step((NUMBERS, torch.tensor([[value, 0.5], [0.5, 0.5]])), 0)


def test_a_fit_on_ones_own_loader_stops_before_the_weights_are_spoiled(tmp_path: Path) -> None:
    student = StudentModule(nn.Linear(4, 2))
    loader = DataLoader(TensorDataset(spoiled(math.nan), torch.tensor([0, 1])), batch_size=2)
    with pytest.raises(dt.InvalidArgument, match="Check the data"):
        fit(student, loader, tmp_path, max_epochs=1)
    assert all(bool(weight.isfinite().all()) for weight in student.parameters())
