"""Several findings about one input: one call, one charge, the price of F questions; the same labels on every path."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import darrm_torch as dt
from darrm_torch.labels.questions import logits_by_finding, question_keys
from tests.labels.helpers import POINT

NAMES, TEACHERS = ["edema", "effusion", "nodule"], 5
INPUTS = torch.randn(23, 4, generator=torch.Generator().manual_seed(1))


def network(form: str = "pairs") -> nn.Module:
    """Three findings as ``(B, 6)``, ``(B, 3, 2)`` or ``(B, 3)``."""
    layer = nn.Linear(4, 3 if form == "one logit" else 6)
    return nn.Sequential(layer, nn.Unflatten(1, (3, 2))) if form == "table" else layer


def networks(form: str = "pairs", count: int = TEACHERS) -> list[nn.Module]:
    torch.manual_seed(2)
    return [network(form) for _ in range(count)]


def ensemble(form: str = "pairs", mechanism: dt.Mechanism | None = None, **how: Any) -> dt.PrivateMajorityEnsemble:
    how = {"overlap": 1, "findings": NAMES, "ledger": dt.PrivacyLedger(), **how}
    models = how.pop("models", None) or networks(form)
    profiles = [dt.PrivacyProfile.from_guarantee(POINT)] * len(models)
    return dt.PrivateMajorityEnsemble(models, mechanism or dt.NoiseFreeMajority(), profiles=profiles, **how)


def votes_by_hand(models: list[nn.Module]) -> Tensor:
    """``(K, B, F)``, from the outputs of the networks as they are."""
    outputs = torch.stack([model(INPUTS) for model in models])
    if outputs.shape[-1] == 3:
        return (outputs > 0).long()
    return outputs.reshape(len(models), len(INPUTS), 3, 2).argmax(dim=-1)


# --- votes and labels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["pairs", "table", "one logit"])
@pytest.mark.parametrize("count", [5, 33])  # one after another, and in one pass
def test_labels_are_the_majorities_of_each_finding(form: str, count: int) -> None:
    models = networks(form, count)
    mine, votes = ensemble(form, models=models), votes_by_hand(models)
    assert torch.equal(mine.sensitive_votes(INPUTS), votes)
    counts = mine.sensitive_counts(INPUTS)
    assert torch.equal(counts, torch.stack([(votes == one).sum(dim=0) for one in range(2)], dim=-1))
    labels = mine(INPUTS)
    assert (labels.shape, labels.dtype) == ((23, 3), torch.int64)
    assert torch.equal(labels, counts.argmax(dim=-1))
    assert (mine.ledger.count, len(mine.ledger.charges)) == (69, 1)
    assert torch.equal(mine(INPUTS.flip(0)), labels.flip(0))
    assert torch.equal(mine(torch.cat([INPUTS[:2], INPUTS[:2]])), torch.cat([labels[:2], labels[:2]]))
    assert mine.ledger.count == 69
    assert mine(INPUTS[:0]).shape == (0, 3)


class Rounds(nn.Module):
    """Findings whose two logits differ by an error that depends on the size of the batch, or not at all."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), sign))

    def forward(self, inputs: Tensor) -> Tensor:
        error = 1e-6 * self.weight * (1 if len(inputs) == 1 else (-1) ** len(inputs))
        return torch.stack([inputs[:, 0] + error, inputs[:, 1], inputs[:, 1] - 1, inputs[:, 0] + error], dim=1)


def test_votes_on_a_finding_do_not_depend_on_the_batch() -> None:
    rows = torch.rand(12, 1, generator=torch.Generator().manual_seed(3)).repeat(1, 2)
    mine = ensemble(models=[Rounds(1.0), Rounds(-1.0)], findings=["close", "clear"])
    alone = torch.cat([mine.sensitive_votes(row[None]) for row in rows], dim=1)
    assert alone[..., 1].all()
    assert not alone[0, :, 0].any()
    for size in (2, 3, 12):
        assert torch.equal(torch.cat([mine.sensitive_votes(part) for part in rows.split(size)], dim=1), alone)


def test_a_broken_pair_of_logits_is_a_vote_for_0_and_leaves_the_other_findings_alone() -> None:
    models = networks()
    with torch.no_grad():
        models[0].bias[2] = math.nan  # type: ignore[index]
    votes = votes_by_hand(networks())
    votes[0, :, 1] = 0
    assert torch.equal(ensemble(models=models).sensitive_votes(INPUTS), votes)


@pytest.mark.parametrize("redrawn", [False, True])
def test_a_jury_votes_on_every_finding(redrawn: bool) -> None:
    mine = ensemble(mechanism=dt.NoiseFreeMajority(jury=1, redrawn=redrawn, insecure_seed=3))
    labels, votes = mine(INPUTS), mine.sensitive_votes(INPUTS)
    same = (votes == labels).all(dim=2).all(dim=1)
    assert bool(same.any()) != redrawn
    assert bool((votes == labels).any(dim=0).all())


def test_declined_findings_are_labelled_minus_1() -> None:
    mechanism = dt.ConfidentGNMax(threshold=5.0, sigma_check=0.1, sigma=0.1, teachers=TEACHERS, classes=2)
    labels = ensemble(mechanism=mechanism)(INPUTS)
    unanimous = (votes_by_hand(networks()) == labels).all(dim=0)
    assert bool((labels == -1).any())
    assert bool((unanimous | (labels == -1)).float().mean() > 0.95)


# --- price ----------------------------------------------------------------------------------------------------------


def test_an_input_costs_f_labels_where_labels_add_up_and_nothing_more_where_they_do_not() -> None:
    noise = dt.DaRRM(dt.self_bounding_noise(teachers=TEACHERS, allowance=1, overlap=1))
    budget = dt.PrivacyGuarantee(epsilon=0.1, delta=1e-4)
    free, noisy = ensemble(ledger=dt.PrivacyLedger(budget=budget)), ensemble(mechanism=noise)
    free(INPUTS[:4])
    noisy(INPUTS[:4])
    report = noisy.privacy_report(as_dict=True)
    assert (report["labels"], report["findings"]) == (12, {"edema": 4, "effusion": 4, "nodule": 4})
    added = next(route for route in report["total"]["routes"] if route["key"] == "self-bounding")
    assert "12 x 1 x " in added["explanation"]
    assert free.total_privacy(labels=12).epsilon == free.total_privacy(labels=1).epsilon
    assert "one for each finding (edema, effusion, nodule) of 4 inputs" in " ".join(noisy.privacy_report().split())


def test_a_budget_pays_for_all_findings_of_an_input_or_for_none() -> None:
    mechanism = dt.RandomizedPlurality(epsilon=1.0, teachers=TEACHERS, classes=2)
    ledger = dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=5.0))
    models = networks()
    mine = dt.PrivateMajorityEnsemble(models, mechanism, overlap=1, findings=NAMES, ledger=ledger, delta=0.0)
    mine.check_budget([INPUTS[:1]])
    with pytest.raises(dt.BudgetExceeded, match="6 labels would cost"):
        mine.check_budget([INPUTS[:2]])
    with pytest.raises(dt.BudgetExceeded, match="5 more labels fit"):
        mine(INPUTS[:2])
    assert ledger.count == 0
    labels = mine(INPUTS[:1])
    with pytest.raises(dt.BudgetExceeded):
        mine(INPUTS[:2])
    assert ledger.count == 3
    assert torch.equal(mine(INPUTS[:1]), labels)


def test_two_findings_of_one_input_cost_two_labels_by_enumeration() -> None:
    """The law of both labels, for teachers whose two votes are one secret; the price of one label is too low."""
    epsilon, teachers = 1.0, 3
    mechanism = dt.DaRRM(dt.self_bounding_noise(teachers=teachers, allowance=1, overlap=2))
    high = math.exp(epsilon) / (1 + math.exp(epsilon))

    def law(chance: float) -> Any:
        """``(2, 2)`` of the labels, where two teachers say "both are there" with this chance, else that none is."""
        total = np.zeros((2, 2))
        for votes in itertools.product((0, 1), repeat=2):
            weight = math.prod(chance if vote else 1 - chance for vote in votes)
            one = mechanism.label_probabilities([[teachers - sum(votes), sum(votes)]])[0]
            total += weight * np.outer(one, one)
        return total

    p, q = law(high), law(1 - high)
    promise = dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=epsilon))

    def price(labels: int) -> float:
        total = dt.total_privacy(
            teachers=[promise] * teachers, overlap=2, mechanism=mechanism, labels=labels, delta=0.0
        )
        return next(route.epsilon for route in total.routes if route.key == "self-bounding")

    worst = float(np.abs(np.log(p / q)).max())
    assert price(1) < worst <= price(2)


# --- ledger ---------------------------------------------------------------------------------------------------------


def test_no_two_questions_have_one_key() -> None:
    keys = question_keys([b"x", b"xa", b""], ("a", "aa", "é"))
    assert len(set(keys)) == 9
    assert question_keys([b"x"], None) == [b"x"]


def test_the_ledger_is_bound_to_the_findings_and_their_order(tmp_path: Path) -> None:
    labels = ensemble(ledger=dt.PrivacyLedger(tmp_path / "a.ledger"))(INPUTS)
    for other in (NAMES[::-1], ["a", "b", "c"]):
        with pytest.raises(dt.LedgerError, match="different rules"):
            ensemble(ledger=dt.PrivacyLedger(tmp_path / "a.ledger"), findings=other)
    with pytest.raises(dt.LedgerError, match="different rules"):
        ensemble(ledger=dt.PrivacyLedger(tmp_path / "a.ledger"), findings=None, classes=2)
    again = ensemble(ledger=dt.PrivacyLedger(tmp_path / "a.ledger"))
    assert torch.equal(again(INPUTS), labels)
    assert again.ledger.count == 69


class Dies(nn.Module):
    """A teacher whose process is killed while it votes on this many inputs."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.layer, self.at = network(), at

    def forward(self, inputs: Tensor) -> Tensor:
        if len(inputs) == self.at:
            raise KeyboardInterrupt
        return self.layer(inputs)  # type: ignore[no-any-return]


def test_a_kill_leaves_all_findings_of_an_input_or_none(tmp_path: Path) -> None:
    torch.manual_seed(4)
    models = [Dies(7) for _ in range(3)]
    mine = ensemble(models=models, ledger=dt.PrivacyLedger(tmp_path / "a.ledger"))
    first = mine(INPUTS[:4])
    with pytest.raises(KeyboardInterrupt):
        mine(INPUTS[4:11])
    resumed = ensemble(models=models, ledger=dt.PrivacyLedger(tmp_path / "a.ledger"))
    assert resumed.ledger.count == 12
    whole = resumed(INPUTS)
    assert torch.equal(whole[:4], first)
    assert [charge.labels for charge in resumed.ledger.charges] == [12, 57]


# --- other ways to vote ---------------------------------------------------------------------------------------------


def labeler(**how: Any) -> dt.PrivateLabeler:
    how = {"teachers": ["a", "b", "c"], "findings": NAMES, "overlap": 1, "ledger": dt.PrivacyLedger(), **how}
    return dt.PrivateLabeler(dt.NoiseFreeMajority(), **how)


def test_a_labeler_takes_votes_and_counts_of_findings() -> None:
    votes = np.random.default_rng(0).integers(2, size=(3, 4, 3))
    keys = [b"a", b"b", b"c", b"d"]
    mine = labeler()
    labels = mine.label(keys, votes)
    assert np.array_equal(labels, votes.sum(axis=0) > 1)
    assert mine.check_budget([b"e", b"a", b"f", b"e"]) == [0, 2]
    asked: list[Any] = []
    again = mine.label([b"d", b"e", b"a"], lambda rows: [asked.extend(rows), np.ones((3, 1, 3), dtype=int)][1])
    assert asked == [1]
    assert np.array_equal(again, [labels[3], [1, 1, 1], labels[0]])
    counts = np.stack([3 - votes.sum(axis=0), votes.sum(axis=0)], axis=-1)
    assert np.array_equal(labeler().label_counts(keys, counts), labels)
    for wrong in (votes[:, :, :2], votes[:, :3], votes[:, :, 0], votes + 1):
        with pytest.raises(dt.InvalidArgument, match="votes must be"):
            labeler().label(keys, wrong)
    with pytest.raises(dt.InvalidArgument, match="counts must be"):
        labeler().label_counts(keys, counts[:, :, 0])


def test_a_missing_vote_is_a_function_of_input_finding_and_teacher() -> None:
    keys = [str(number).encode() for number in range(200)]
    missing = labeler().label(keys, np.full((3, 200, 3), -1))
    assert 0.3 < missing.mean() < 0.7
    assert 0.3 < (missing[:, 0] == missing[:, 1]).mean() < 0.7
    some = labeler().label(keys[::-1], np.full((3, 200, 3), -1))
    assert np.array_equal(some[::-1], missing)


def stored(tmp_path: Path, models: list[nn.Module]) -> list[dt.StoredTeacher]:
    for number, model in enumerate(models):
        torch.save(model.state_dict(), tmp_path / f"{number}.pt")
    files = [tmp_path / f"{number}.pt" for number in range(len(models))]
    return [dt.StoredTeacher(file, network, findings=NAMES) for file in files]


def test_stored_teachers_label_a_loader_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teachers = stored(tmp_path, networks())
    loader = DataLoader(TensorDataset(INPUTS), batch_size=4)
    expected = ensemble()(INPUTS).numpy()
    ledger = dt.PrivacyLedger(tmp_path / "a.ledger")
    mine = labeler(teachers=teachers, ledger=ledger)
    monkeypatch.setattr("darrm_torch.labels.stored._PART", 15)  # five inputs are charged together
    written = ledger.answer

    def dies(keys: list[bytes], draw: Any) -> Any:
        if ledger.count == 30:
            raise KeyboardInterrupt
        return written(keys, draw)

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "answer", dies)
        with pytest.raises(KeyboardInterrupt):
            dt.label_loader(mine, loader, private_folder=tmp_path / "private", progress=False)
    assert mine.ledger.count == 30
    monkeypatch.setattr(dt.StoredTeacher, "vote", None)  # nobody votes again
    labels = dt.label_loader(mine, loader, private_folder=tmp_path / "private", progress=False)
    assert np.array_equal(labels, expected)
    assert [charge.labels for charge in ledger.charges] == [15, 15, 15, 15, 9]


def test_voters_of_other_findings_are_refused(tmp_path: Path) -> None:
    teachers = stored(tmp_path, networks(count=3))
    with pytest.raises(dt.InvalidArgument, match="classes must be None with findings"):
        dt.StoredTeacher(tmp_path / "0.pt", network, findings=NAMES, classes=2)
    assert teachers[0].vote(INPUTS).shape == (23, 3)
    for findings in (NAMES[::-1], None):
        with pytest.raises(dt.InvalidArgument, match="findings must be those of the voters"):
            labeler(teachers=teachers, findings=findings, classes=2)


def test_a_site_randomizes_its_votes_on_findings() -> None:
    class Teacher:
        digest = "weights"

        def vote(self, inputs: Tensor) -> Tensor:
            return torch.ones(len(inputs), 3, dtype=torch.int64)

    ledger = dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=8.0))
    site = dt.RandomizedVotes(Teacher(), classes=2, epsilon=1.0, ledger=ledger, findings=NAMES)
    answers = site.vote(INPUTS[:2])
    assert answers.shape == (2, 3)
    assert np.array_equal(site.vote(INPUTS[:2].flip(0)), answers[::-1])
    with pytest.raises(dt.BudgetExceeded):
        site.vote(INPUTS[:3])
    assert ledger.count == 6
    mine = labeler(teachers=[site], profiles=[site.profile])
    assert np.array_equal(mine(INPUTS[:2]), answers)
    assert mine(INPUTS[:3]).shape == (3, 3)  # the third has no answer: its votes count as missing
    assert len(mine.sensitive_events) == 1


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {"findings": []}, {"findings": "edema"}, {"findings": ["a", "a"]}, {"findings": ["a", ""]},
        {"findings": ["a", 3]}, {"classes": 3}, {"classes": (1, 0)}, {"mechanism": dt.MeanProbabilities()},
        {"mechanism": dt.GNMax(sigma=4.0, classes=3)},
    ],
)  # fmt: skip
def test_contradictions_are_refused(how: dict[str, Any]) -> None:
    with pytest.raises(dt.InvalidArgument):
        ensemble(**how)


def test_outputs_that_are_not_one_or_two_logits_for_each_finding_are_refused() -> None:
    for outputs in (1, 2, 4, 12):
        with pytest.raises(dt.InvalidArgument, match="one for each finding"):
            ensemble(models=[nn.Linear(4, outputs)])(INPUTS)
    for shape in ((5, 3), (4, 3, 3), (4, 2, 3), (4, 6, 1)):
        with pytest.raises(dt.InvalidArgument, match="outputs must be"):
            logits_by_finding("outputs", torch.zeros(shape), (4,), 3)
    with pytest.raises(dt.InvalidArgument, match="sigmoid"):
        ensemble(models=[nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())])(INPUTS)
