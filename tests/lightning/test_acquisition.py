"""Scores of questions, and a data module that asks in rounds: what it chooses, pays and finds again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import darrm_torch as dt
from darrm_torch.lightning import FixMatch, PrivateLabelDataModule, StudentModule, VirtualAdversarialTraining
from darrm_torch.lightning.acquisition import disagreement, margin, scores_of

from .helpers import linear, trainer

EDGE = linear([[0.0, 0.0], [1.0, 0.0]])  # the second class where the first number is positive


class Stop(Exception):
    """What ends a process in the middle of a round."""


def public(count: int = 40) -> Tensor:
    return torch.rand(count, 2, generator=torch.Generator().manual_seed(3)) - 0.5


def ensemble(ledger: Path | str = ":memory:", budget: float | None = None) -> dt.PrivateMajorityEnsemble:
    torch.manual_seed(1)
    return dt.PrivateMajorityEnsemble(
        [nn.Linear(2, 2) for _ in range(5)],
        dt.DaRRM(dt.self_bounding_noise(teachers=5, allowance=1.0)),
        profiles=[dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=0.1))] * 5,
        ledger=dt.PrivacyLedger(ledger, None if budget is None else dt.PrivacyGuarantee(epsilon=budget)),
        delta=0.0,
    )


def data(teachers: dt.PrivateMajorityEnsemble, inputs: Any = None, **how: Any) -> PrivateLabelDataModule:
    inputs = public() if inputs is None else inputs
    return PrivateLabelDataModule(
        teachers, inputs, **{"queries": 9, "rounds": 3, "acquire": "margin", "batch_size": 2, **how}
    )


# --- scores ---


def test_margins_by_hand() -> None:
    inputs = torch.tensor([[0.0, 5.0], [1.0, 0.0], [-2.0, 0.0]])
    expected = [0.0, 1 - 2 / (1 + torch.tensor(-1.0).exp()), 1 - 2 / (1 + torch.tensor(-2.0).exp())]
    torch.testing.assert_close(margin(EDGE, inputs), torch.tensor(expected))
    findings = torch.stack([EDGE(inputs), torch.zeros(3, 2)], dim=1)  # (B, F, 2), the second as undecided as can be
    torch.testing.assert_close(margin(nn.Identity(), findings), torch.tensor(expected) / 2)


def test_views_disagree_most_at_the_boundary() -> None:
    student = StudentModule(EDGE, consistency=VirtualAdversarialTraining(radius=0.1))
    scores = scores_of("disagreement", student, [torch.tensor([[0.0, 1.0], [5.0, 1.0]]), torch.zeros(1, 2)], seed=0)
    assert scores[0] > 10 * scores[1] > 0
    assert scores[0] == pytest.approx(float(scores[2]), rel=1e-3)


def test_findings_disagree_by_their_mean() -> None:
    class Shifted(nn.Identity):
        consistency = SimpleNamespace(view=lambda student, inputs: inputs + torch.tensor([0.0, 1.0]))

    findings = torch.tensor([[[0.0, 5.0], [1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [3.0, 0.0], [2.0, 1.0]]])  # (B, F, 2)
    alone = disagreement(Shifted(), findings.flatten(0, 1))
    torch.testing.assert_close(disagreement(Shifted(), findings), alone.reshape(2, 3).mean(dim=1))


def test_views_of_images_depend_on_the_seed_alone() -> None:
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    student = StudentModule(nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 2)), consistency=FixMatch())
    student.backbone[2].eval()
    before = torch.random.get_rng_state()
    one, same, other = (scores_of("disagreement", student, [images], seed=seed) for seed in (1, 1, 2))
    assert one.equal(same)
    assert not one.equal(other)
    assert torch.random.get_rng_state().equal(before)
    assert student.training
    assert not student.backbone[2].training
    with pytest.raises(dt.InvalidArgument, match="views of its inputs"):
        disagreement(StudentModule(EDGE), images)


@pytest.mark.parametrize("wrong", [lambda s, x: x, lambda s, x: x[:, 0] / 0, lambda s, x: 1.0])
def test_scores_that_are_none(wrong: Any) -> None:
    module = data(ensemble(), acquire=wrong)
    with pytest.raises(dt.InvalidArgument, match="acquire must be a function that returns finite scores"):
        module.ask(EDGE)
    assert module._ensemble is not None
    assert module._ensemble.ledger.count == len(module.labels) == 3


# --- rounds ---


def test_the_first_round_is_random_and_the_others_are_the_students() -> None:
    teachers, at_once = ensemble(), data(ensemble(), rounds=1, acquire=None)
    module = data(teachers)
    assert module.queries == at_once.queries[:3]
    for asked in (3, 6, 9):
        assert len(module.labels) == len(module.queries) == teachers.ledger.count == asked
        assert sorted(module.queries + module.unlabelled) == list(range(40))
        if asked < 9:
            rest = module.unlabelled
            module.ask(EDGE)
            nearest = sorted(rest, key=lambda number: abs(float(public()[number, 0])))[:3]
            assert module.queries[-3:] == nearest
    with pytest.raises(dt.InvalidArgument, match="more than the 3 that were asked"):
        module.ask(EDGE)
    assert teachers.ledger.count == 9


def test_random_rounds_are_the_questions_that_are_asked_at_once() -> None:
    module, at_once = (data(ensemble(), rounds=rounds, acquire=None) for rounds in (4, 1))
    sizes = [len(module.queries), *(len(module.ask(EDGE)) for _ in range(3))]
    assert sizes == [2, 4, 6, 9]
    assert module.queries == at_once.queries


def test_a_function_chooses() -> None:
    seen = []

    def largest(student: nn.Module, inputs: Tensor) -> Tensor:
        seen.append((student.training, torch.is_grad_enabled(), len(inputs)))
        return inputs[:, 1]

    module = data(ensemble(), acquire=largest)
    rest = module.unlabelled
    module.ask(EDGE)
    assert module.queries[3:] == sorted(rest, key=lambda number: -float(public()[number, 1]))[:3]
    assert {(training, grad) for training, grad, _ in seen} == {(False, False)}
    assert sum(size for *_, size in seen) == 37


@pytest.mark.parametrize("keyed", [False, True])
def test_stopped_in_the_middle_of_a_round_and_continued(tmp_path: Path, keyed: bool) -> None:
    how = {"keys": [f"input {number}".encode() for number in range(40)]} if keyed else {}
    whole = data(ensemble(), **how)
    whole.ask(EDGE)
    teachers = ensemble(tmp_path / "labels.ledger")
    module = data(teachers, **how)
    module.label()
    answer, calls = teachers._labeler.answer, []

    def stops(*given: Any, **how: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise Stop
        return answer(*given, **how)

    teachers._labeler.answer = stops  # type: ignore[method-assign]
    with pytest.raises(Stop):
        module.ask(EDGE)
    assert (teachers.ledger.count, len(module.queries), len(module.labels)) == (5, 3, 3)
    # Another process, whose student has learned something else: the questions stay the same, and two of them are paid.
    again = data(ensemble(tmp_path / "labels.ledger"), **how)
    other = linear([[0.0, 0.0], [0.0, 1.0]])
    again.ask(other)
    assert again.queries == whole.queries
    assert teachers.ledger.count == 6
    again.ask(other)
    third = data(ensemble(tmp_path / "labels.ledger"), **how)
    third.ask(EDGE)
    assert third.ask(EDGE).equal(again.labels)
    assert third.queries == again.queries
    assert teachers.ledger.count == 9


def test_other_plans_choose_for_themselves() -> None:
    teachers = ensemble()
    one = data(teachers)
    one.ask(EDGE)
    for how in ({"seed": 1}, {"queries": 12}, {"acquire": lambda s, x: x[:, 1]}, {"inputs": public(39)}):
        other = data(teachers, **how)
        other.ask(linear([[0.0, 0.0], [0.0, 1.0]]))
        assert other.queries[-3:] != one.queries[-3:]


def test_a_budget_for_all_rounds_or_none() -> None:
    poor = ensemble(budget=0.35)
    with pytest.raises(dt.BudgetExceeded, match="4 labels would cost"):
        data(poor, queries=4, rounds=2).label()
    assert poor.ledger.count == 0
    enough = ensemble(budget=0.45)
    for _ in range(2):  # the second time all of it is paid
        module = data(enough, queries=4, rounds=2)
        module.ask(EDGE)
    assert enough.ledger.count == 4


def test_equal_inputs_are_one_question() -> None:
    teachers = ensemble()
    twice = public(12).repeat(2, 1)
    module = data(teachers, twice, seed=5)
    first = len({number % 12 for number in module.queries})
    module.ask(EDGE)
    module.ask(EDGE)
    assert teachers.ledger.count == first + 6
    small = data(ensemble(), public(4).repeat(3, 1), seed=5)
    small.label()
    with pytest.raises(dt.InvalidArgument, match="queries must be at most"):
        small.ask(EDGE)


def test_wrong_plans_are_refused() -> None:
    for how, message in (
        ({"rounds": 10}, "rounds"),
        ({"rounds": 0}, "rounds"),
        ({"acquire": "entropy"}, "acquire"),
    ):
        with pytest.raises(dt.InvalidArgument, match=message):
            data(ensemble(), **how)


# --- a trainer ---


def test_a_trainer_asks_a_round_with_every_new_loader(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    class Seen(StudentModule):
        def on_train_epoch_start(self) -> None:
            seen.append((self.current_epoch, len(self.trainer.datamodule.queries)))  # type: ignore[attr-defined]

    teachers = ensemble(tmp_path / "labels.ledger")
    module = data(teachers)
    runner = trainer(tmp_path, max_epochs=6, reload_dataloaders_every_n_epochs=2)
    runner.fit(Seen(nn.Linear(2, 2)), datamodule=module)
    assert seen == [(0, 3), (1, 3), (2, 6), (3, 6), (4, 9), (5, 9)]
    module.train_dataloader()
    assert teachers.ledger.count == 9
    seen.clear()
    # As after a crash: the same questions, in the same epochs.
    again = data(ensemble(tmp_path / "labels.ledger"))
    trainer(tmp_path, max_epochs=3, reload_dataloaders_every_n_epochs=2).fit(Seen(nn.Linear(2, 2)), datamodule=again)
    assert seen == [(0, 3), (1, 3), (2, 6)]
    assert again.queries == module.queries[:6]
    assert teachers.ledger.count == 9
