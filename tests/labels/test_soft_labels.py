"""Soft labels and juries: what an ensemble asks, keeps, replays and reports."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import darrm_torch as dt
from darrm_torch.labels.questions import restored_labels, stored_labels
from tests.labels.helpers import POINT, Returns

PURE = dt.PrivacyProfile.from_guarantee(POINT)


class Counting(nn.Module):
    """A linear teacher that counts the inputs it is asked about."""

    def __init__(self, seed: int, outputs: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(2, outputs)
        generator = torch.Generator().manual_seed(seed)
        for weight in self.linear.parameters():
            weight.data = torch.randn(weight.shape, generator=generator)
        self.asked = 0

    def forward(self, inputs: Tensor) -> Tensor:
        if not bool((self.linear.weight == 0.5).all()):  # not the copy whose weights are constants
            self.asked += len(inputs)
        return self.linear(inputs)


def ensemble(models: list[nn.Module], mechanism: dt.Mechanism, **options: object) -> dt.PrivateMajorityEnsemble:
    options = {"ledger": dt.PrivacyLedger(), "overlap": 1} | options
    return dt.PrivateMajorityEnsemble(models, mechanism, profiles=[PURE] * len(models), **options)


def asked(one: dt.PrivateMajorityEnsemble) -> list[int]:
    return [teacher.asked for teacher in one._teachers]


INPUTS = torch.randn(300, 2, generator=torch.Generator().manual_seed(3))  # too many for one pass


def test_soft_labels_are_the_mean_of_probabilities_and_replayed_exactly(tmp_path: Path) -> None:
    models = [Counting(seed) for seed in range(5)]
    file = tmp_path / "soft.ledger"
    one = ensemble(models, dt.MeanProbabilities(), ledger=dt.PrivacyLedger(file))
    rows = one(INPUTS)
    assert (rows.dtype, tuple(rows.shape)) == (torch.float32, (300, 3))
    truth = torch.stack([model(INPUTS).double().softmax(dim=1) for model in models]).mean(dim=0)
    assert torch.allclose(rows.double(), truth, atol=1e-6)
    assert torch.allclose(rows.sum(dim=1), torch.ones(300), atol=1e-6)
    # The same bytes from the file, in another order, after the teachers' own rounding would differ.
    again = ensemble(models, dt.MeanProbabilities(), ledger=dt.PrivacyLedger(file))
    before = asked(again)
    assert torch.equal(again(INPUTS.flip(0)).flip(0), rows)
    assert asked(again) == before
    assert one.ledger.count == 300
    entry = json.loads(file.read_text().splitlines()[-1].rpartition(" ")[0])
    stored = [bytes.fromhex(row) for row in entry["labels"].values()]
    assert np.array_equal(np.frombuffer(b"".join(stored), "<f4").reshape(-1, 3), rows.numpy())
    assert one(INPUTS[:0]).shape[0] == 0
    report = " ".join(one.privacy_report().split())
    assert "Released: 300 soft labels, by MeanProbabilities" in report
    assert "All 300 soft labels together are" in report
    assert "mean class probabilities, rounded to float32" in report
    with pytest.raises(dt.LedgerError, match="mechanism"):
        ensemble(models, dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger(file))


def test_two_classes_from_one_output_and_chosen_classes() -> None:
    models = [Counting(seed, outputs=1) for seed in range(3)]
    rows = ensemble(models, dt.MeanProbabilities())(INPUTS)
    truth = torch.stack([model(INPUTS).double().sigmoid() for model in models]).mean(dim=0)
    assert torch.allclose(rows[:, 1:].double(), truth, atol=1e-6)
    models = [Counting(seed, outputs=4) for seed in range(3)]
    rows = ensemble(models, dt.MeanProbabilities(), classes=(3, 1))(INPUTS)
    truth = torch.stack([model(INPUTS)[:, [3, 1]].double().softmax(dim=1) for model in models]).mean(dim=0)
    assert torch.allclose(rows.double(), truth, atol=1e-6)


class Raises(nn.Module):
    """Works with constant weights, and fails with its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.25))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.weight != 0.5:
            raise RuntimeError("private")
        return torch.zeros(len(inputs), 3)


@pytest.mark.parametrize(
    "broken",
    [Returns(math.nan, 1.0, 0.0), Returns(math.inf, 0.0, 0.0), Returns(0.0, -math.inf, 0.0), Raises()],
    ids=["nan", "inf", "-inf", "raises"],
)
def test_a_broken_teacher_counts_as_the_uniform_row_silently(broken: nn.Module) -> None:
    one = ensemble([broken, Returns(0.0, 0.0, 50.0)], dt.MeanProbabilities())
    rows = one(torch.tensor([[0.3]]))
    assert rows[0].tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6 + 1 / 2], abs=1e-6)
    assert len(one.sensitive_events) == 1
    assert one.ledger.count == 1


def test_one_pass_and_one_by_one_agree_to_the_share() -> None:
    models = [Counting(seed) for seed in range(5)]
    many, few = ensemble(models, dt.MeanProbabilities()), ensemble(models, dt.MeanProbabilities())
    together = many(INPUTS)
    apart = torch.cat([few(row[None]) for row in INPUTS[:20]])
    assert torch.allclose(together[:20], apart, atol=3e-7)


def test_one_jury_votes_on_all_labels_and_is_kept(tmp_path: Path) -> None:
    models, file = [Counting(seed) for seed in range(7)], tmp_path / "jury.ledger"
    mechanism = dt.MeanProbabilities(jury=3)
    one = ensemble(models, mechanism, ledger=dt.PrivacyLedger(file))
    jury = json.loads(dt.PrivacyLedger(file).note("jury"))
    rows = one(INPUTS)
    assert [number for number, count in enumerate(asked(one)) if count] == jury
    truth = torch.stack([models[number](INPUTS).double().softmax(dim=1) for number in jury]).mean(dim=0)
    assert torch.allclose(rows.double(), truth, atol=1e-6)
    for _ in range(5):
        again = ensemble(models, mechanism, ledger=dt.PrivacyLedger(file))
        again(INPUTS[:150] + 1)
        assert [number for number, count in enumerate(asked(again)) if count] in (jury, [])
    price = one.total_privacy(labels=10**6)
    assert price == one.total_privacy(labels=10**6)
    assert price.epsilon == one.total_privacy(labels=1).epsilon
    assert "one random jury of 3" in price.route.explanation
    juries = {ensemble(models, mechanism).ledger.note("jury") for _ in range(40)}
    assert len(juries) > 5  # of 35; equal ones 40 times in a row have a chance below 1e-15


def test_a_new_jury_for_each_label() -> None:
    """Each label is the mean of some two teachers, all pairs occur, and nothing is drawn again."""
    models = [Counting(seed) for seed in range(4)]
    one = ensemble(models, dt.MeanProbabilities(jury=2, redrawn=True))
    rows = one(INPUTS)
    each = torch.stack([model(INPUTS).double().softmax(dim=1) for model in models])
    pairs = [(a, b) for a in range(4) for b in range(a)]
    means = torch.stack([(each[a] + each[b]) / 2 for a, b in pairs]).detach()
    gaps = (means - rows).abs().amax(dim=2)
    assert float(gaps.amin(dim=0).max()) < 1e-6
    drawn = torch.bincount(gaps.argmin(dim=0), minlength=6)
    assert int(drawn.min()) > 15  # 50 expected; less than 16 has a chance below 1e-8
    assert torch.equal(one(INPUTS), rows)
    assert one.ledger.note("jury") is None
    assert one.total_privacy(labels=300).epsilon > one.total_privacy(labels=1).epsilon


def test_juries_of_hard_votes_and_of_votes_from_files() -> None:
    models = [Counting(seed) for seed in range(5)]
    one = ensemble(models, dt.NoiseFreeMajority(jury=1))
    (member,) = json.loads(one.ledger.note("jury"))
    assert torch.equal(one(INPUTS), models[member](INPUTS).argmax(dim=1))
    votes = np.random.default_rng(1).integers(0, 3, size=(5, 50))
    names, keys = [f"clinic {number}" for number in range(5)], [b"%d" % number for number in range(50)]
    options = {"teachers": names, "profiles": [PURE] * 5, "overlap": 1, "classes": 3}
    labeler = dt.PrivateLabeler(dt.NoiseFreeMajority(jury=1), ledger=dt.PrivacyLedger(), **options)
    (member,) = json.loads(labeler.ledger.note("jury"))
    assert np.array_equal(labeler.label(keys, votes), votes[member])
    with pytest.raises(dt.InvalidArgument, match="votes of each teacher"):
        labeler.label_counts([b"new"], [[5, 0, 0]])
    redrawn = dt.PrivateLabeler(dt.NoiseFreeMajority(jury=1, redrawn=True), ledger=dt.PrivacyLedger(), **options)
    labels = redrawn.label(keys, votes)
    assert all(label in column for label, column in zip(labels, votes.T, strict=True))
    soft = dt.PrivateLabeler(dt.MeanProbabilities(), ledger=dt.PrivacyLedger(), **options)
    with pytest.raises(dt.InvalidArgument, match="one that counts votes"):
        soft.label(keys, votes)
    assert soft.ledger.count == 0


def test_a_jury_of_another_mechanism_is_refused(tmp_path: Path) -> None:
    models = [Counting(seed) for seed in range(5)]
    with pytest.raises(dt.InvalidArgument, match="jury"):
        ensemble(models, dt.NoiseFreeMajority(jury=6))
    file = tmp_path / "jury.ledger"
    ledger = dt.PrivacyLedger(file)
    ledger.note("jury", "[0, 0, 1]")
    with pytest.raises(dt.LedgerError, match="no jury of 3 of 5"):
        ensemble(models, dt.NoiseFreeMajority(jury=3), ledger=ledger)


@pytest.mark.parametrize("labels", [torch.tensor([3, 0, 1]), torch.tensor([[0.25, 0.75], [1e-40, 1.0]])])
def test_labels_survive_being_stored(labels: Tensor) -> None:
    stored = stored_labels(labels)
    ledger = dt.PrivacyLedger()
    given = ledger.answer([b"%d" % row for row in range(len(labels))], lambda rows: [stored[row] for row in rows])
    assert given == stored
    assert np.array_equal(restored_labels(given, soft=labels.dim() == 2), labels.numpy())


def test_probabilities_are_not_taken_for_logits() -> None:
    softmax = [nn.Sequential(Counting(seed), nn.Softmax(dim=1)) for seed in range(3)]
    with pytest.raises(dt.InvalidArgument, match="They seem to end in a softmax, which would be applied twice"):
        ensemble(softmax, dt.MeanProbabilities())(INPUTS)
    assert ensemble(softmax, dt.NoiseFreeMajority())(INPUTS).shape == (300,)  # the order of the classes is the same
    logs = [nn.Sequential(Counting(seed), nn.LogSoftmax(dim=1)) for seed in range(3)]
    assert ensemble(logs, dt.MeanProbabilities())(INPUTS).shape == (300, 3)  # log-probabilities are logits
