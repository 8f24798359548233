"""Optimizers that are watched while they train: bounds, noise and steps that an accountant does not see."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from darrm_torch import (
    InvalidArgument,
    NoiseFreeMajority,
    PrivacyLedger,
    PrivateMajorityEnsemble,
    UnprovenPrivacy,
    read_privacy,
    total_privacy,
    watch_training,
)
from tests.teachers.helpers import Net, Teacher

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]


class Watched(Teacher):
    """A teacher whose optimizer is watched; ``during`` is called before each step of ten."""

    def __init__(self, during: Any = lambda teacher, step: None, **how: Any) -> None:
        self.during = during
        super().__init__(**how)

    def train(self) -> None:
        watch_training(self.optimizer)
        for step, (x, y) in enumerate(self.loader):
            self.optimizer.zero_grad()
            self.criterion(self.module(x), y).backward()
            self.during(self, step)
            self.optimizer.step()


@pytest.mark.parametrize("how", [{}, {"clipping": "per_layer", "max_grad_norm": [1.0, 2.0, 1.0, 0.5]}])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_watched_training_is_read_without_an_assumption(how: dict[str, Any], optimizer: Any) -> None:
    plain, watched = Teacher(optimizer=optimizer, **how), Watched(optimizer=optimizer, **how)
    for mine, theirs in zip(watched.net.parameters(), plain.net.parameters(), strict=True):
        assert torch.equal(mine, theirs)  # watching changes nothing
    reading = watched.read().reading
    assert reading.watched
    assert not plain.read().reading.watched
    assert not any("counted the steps" in note for note in reading.notes)
    assert type(watched.optimizer).__name__ == type(plain.optimizer).__name__


@pytest.mark.slow
def test_schedules_between_steps_are_fine() -> None:
    def schedule(teacher: Watched, step: int) -> None:
        teacher.optimizer.max_grad_norm = 1.0 / (1 + step)
        teacher.optimizer.noise_multiplier = 1.0 + step // 5

    reading = Watched(schedule).read().reading
    assert reading.watched
    assert [run[0] for run in reading.history] == [1.0, 2.0]


def test_a_bound_that_is_lowered_for_the_noise_and_restored_is_refused() -> None:
    """Large batches are clipped in parts; noise is added with the last part."""

    def parts(teacher: Watched, step: int) -> None:
        if step == 3:
            teacher.optimizer.signal_skip_step(do_skip=True)
            teacher.optimizer.step()
            teacher.optimizer.max_grad_norm = 0.01
            teacher.optimizer.zero_grad()
            teacher.criterion(teacher.module(torch.randn(4, 4)), torch.zeros(4, dtype=torch.int64)).backward()
        elif step == 4:
            teacher.optimizer.max_grad_norm = 1.0

    teacher = Watched(parts)
    with pytest.raises(UnprovenPrivacy, match=r"from watched step 4 on, .* clipped to 1 and .* scaled to 0\.01"):
        teacher.read()


def test_steps_without_noise_are_counted_under_sgd() -> None:
    def bare(teacher: Watched, step: int) -> None:
        if step == 5:
            for parameter in teacher.net.parameters():
                parameter.grad = torch.ones_like(parameter)
            teacher.optimizer.original_optimizer.step()

    with pytest.raises(UnprovenPrivacy, match="took 11 steps since it was watched, 10 of them with noise"):
        Watched(bare).read()


def test_steps_that_the_accountant_lost_are_refused() -> None:
    teacher = Watched()
    history = list(teacher.engine.accountant.history)
    teacher.engine.accountant.history = [(noise, rate, count - 1) for noise, rate, count in history]
    with pytest.raises(UnprovenPrivacy, match="some steps had no privacy, or were not recorded"):
        teacher.read()


def test_noise_that_was_lowered_and_restored_behind_the_accountant_is_refused() -> None:
    teacher = Watched()
    with pytest.raises(UnprovenPrivacy, match=r"recorded steps with noise multipliers \[\(2\.0, 5\), \(1\.0, 5\)\]"):
        read_privacy([(2.0, 0.1, 5), (1.0, 0.1, 5)], module=teacher.module, optimizer=teacher.optimizer)


def test_steps_before_the_watch_remain_an_assumption() -> None:
    teacher = Teacher()
    watch_training(teacher.optimizer)
    teacher.train()
    assert sum(run[2] for run in teacher.read().reading.history) == 20
    assert not teacher.read().reading.watched


def test_batches_in_parts_are_watched_as_one_step() -> None:
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    teacher = Watched()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with BatchMemoryManager(
            data_loader=teacher.loader, max_physical_batch_size=4, optimizer=teacher.optimizer
        ) as loader:
            for x, y in loader:
                teacher.optimizer.zero_grad()
                teacher.criterion(teacher.module(x), y).backward()
                teacher.optimizer.step()
    assert teacher.read().reading.watched


class Frames(Net):
    """Reads a record as several rows, and so does Opacus."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.reshape(-1, 2).repeat(1, 2))


def test_records_of_several_rows_are_refused() -> None:
    class Repeated(Watched):
        def train(self) -> None:
            criterion, self.criterion = self.criterion, lambda x, y: criterion(x, y.repeat_interleave(2))
            super().train()
            self.criterion = criterion

    teacher = Repeated(net=Frames())
    with pytest.raises(UnprovenPrivacy, match="did not clip as many gradients as the loader draws records"):
        teacher.read()


def test_only_optimizers_that_clip_can_be_watched() -> None:
    with pytest.raises(InvalidArgument, match="the one that make_private returned, got 'SGD'"):
        watch_training(torch.optim.SGD(Net().parameters(), lr=0.1))
    with pytest.raises(InvalidArgument, match="ghost clipping, whose module clips"):
        watch_training(Teacher(grad_sample_mode="ghost").optimizer)


def test_the_report_names_what_nothing_recorded_and_which_generator_was_used() -> None:
    def report(teacher: Teacher) -> str:
        ensemble = PrivateMajorityEnsemble(
            [teacher.net], NoiseFreeMajority(classes=2), profiles=[teacher.read()], ledger=PrivacyLedger()
        )
        return " ".join(str(ensemble.privacy_report()).split())

    assert "Clipping: the clipping bound of 1 teacher, which nothing recorded" in report(Teacher())
    watched = report(Watched())
    assert "Clipping:" not in watched
    assert "Generator of the noise in training: Teacher 0: Torch's generator." in watched


def test_every_assumption_of_a_total_is_printed() -> None:
    profile = Teacher().read()
    total = total_privacy(teachers=[profile] * 3, overlap=1, mechanism=NoiseFreeMajority(), labels=5, delta=1e-5)
    words = " ".join(total.assumptions)
    for fact in (
        "a batch of its own, drawn by Poisson sampling",
        "each record is one row of it",
        "nobody knows the seeds of training",
        "preprocessing, starting weights",
        "gradients of single records",
        "share noise or batches",
        "numbers of records, sample rates",
        "stopped early",
        "another ledger",
        "no errors or logs",
        "one record affects at most 1 of the 3",
    ):
        assert fact in words, fact
    text = " ".join(str(total).split())
    assert all(assumption in text for assumption in total.assumptions)


def test_a_plain_pytorch_training_loop_is_unchanged_by_the_watch() -> None:
    """A scheduler and a closure reach the same optimizer."""
    from opacus import PrivacyEngine

    torch.manual_seed(0)
    net, engine = Net(), PrivacyEngine()
    module, optimizer, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        data_loader=DataLoader(TensorDataset(torch.randn(40, 4), torch.zeros(40, dtype=torch.int64)), batch_size=10),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    watch_training(optimizer)
    watch_training(optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer.original_optimizer, 1)
    for x, y in loader:

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        scheduler.step()
    profile = read_privacy(engine, module=module, data_loader=loader, optimizer=optimizer)
    assert profile.reading.watched
