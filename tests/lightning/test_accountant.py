"""A teacher that Lightning trains keeps its accountant: in checkpoints, on resuming, and checked against its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import darrm_torch as dt
from darrm_torch.lightning import AccountantCheckpoint
from tests.lightning.helpers import trainer


class Teacher(L.LightningModule):
    """100 records in batches of 10 on average: 10 steps an epoch."""

    def __init__(self, accountant: str = "prv", *, poisson: bool = True, private: bool = True) -> None:
        super().__init__()
        self.network = nn.Linear(4, 2)
        self.optimizer: Any = torch.optim.SGD(self.network.parameters(), lr=0.1)
        self.loader: Any = DataLoader(TensorDataset(torch.rand(100, 4), torch.arange(100) % 2), batch_size=10)
        self.engine = PrivacyEngine(accountant=accountant)
        if private:
            self.network, self.optimizer, self.loader = self.engine.make_private(
                module=self.network,
                optimizer=self.optimizer,
                data_loader=self.loader,
                noise_multiplier=1.0,
                max_grad_norm=1.0,
                poisson_sampling=poisson,
            )

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.network(inputs), labels)

    def train_dataloader(self) -> Any:
        return self.loader

    def configure_optimizers(self) -> Any:
        return self.optimizer


def train(teacher: Teacher, epochs: int, folder: Path, *, kept: bool = True, resume: Path | None = None) -> L.Trainer:
    callbacks = [AccountantCheckpoint(teacher.engine)] if kept else []
    runner = trainer(folder, max_epochs=epochs, callbacks=callbacks)
    runner.fit(teacher, ckpt_path=resume)
    return runner


def claimed(teacher: Teacher) -> int:
    return sum(steps for _, _, steps in teacher.engine.accountant.history)


@pytest.mark.slow
def test_a_plain_checkpoint_loses_the_accountant_and_the_callback_keeps_it(tmp_path: Path) -> None:
    for kept, claims in ((False, 20), (True, 40)):
        file = tmp_path / f"{kept}.ckpt"
        train(Teacher(), 2, tmp_path, kept=kept).save_checkpoint(file)
        resumed = Teacher()
        runner = train(resumed, 4, tmp_path, kept=kept, resume=file)
        assert runner.global_step == 40
        assert claimed(resumed) == claims
    true = dt.PrivacyProfile.from_dp_sgd([(1.0, 1677722 / 2**24, 40)]).epsilon(1e-5)
    assert dt.read_privacy(resumed.engine, steps=runner.global_step).epsilon(1e-5) == true


def test_the_checkpoint_of_a_teacher_is_read_by_its_path(tmp_path: Path) -> None:
    teacher, file = Teacher(), tmp_path / "teacher.ckpt"
    train(teacher, 2, tmp_path).save_checkpoint(file)
    content = torch.load(file, weights_only=True)
    assert content["privacy_accountant_state_dict"] == {"history": [(1.0, 0.1, 20)], "mechanism": "prv"}
    read = dt.read_privacy(file).reading
    assert (read.history, read.sampling, read.notes) == (((1.0, 0.1, 20),), "poisson", ())
    read.check(module=teacher.network)
    # The history in the file is a copy, and what a resumed run adds does not reach the dictionary it came from.
    resumed = Teacher()
    train(resumed, 3, tmp_path, resume=file)
    assert claimed(resumed) == 30
    # Every step was watched, in both runs together.
    runner = train(Teacher(), 3, tmp_path, resume=file)
    runner.save_checkpoint(tmp_path / "resumed.ckpt")
    assert read.watched
    assert dt.read_privacy(tmp_path / "resumed.ckpt").reading.watched
    assert dt.read_privacy(file).reading.history == ((1.0, 0.1, 20),)
    # An accountant that knows of fewer steps than Lightning took is found out.
    content["privacy_accountant_state_dict"]["history"] = [(1.0, 0.1, 10)]
    torch.save(content, file)
    with pytest.raises(dt.UnprovenPrivacy, match="recorded 10 steps, but 20 were taken"):
        dt.read_privacy(file)


def test_the_ensemble_takes_the_checkpoints_of_its_teachers(tmp_path: Path) -> None:
    teachers = [Teacher() for _ in range(3)]
    files = [tmp_path / f"{number}.ckpt" for number in range(3)]
    for teacher, file in zip(teachers, files, strict=True):
        train(teacher, 1, tmp_path).save_checkpoint(file)
    private = dt.PrivateMajorityEnsemble.from_opacus(
        [teacher.network for teacher in teachers], files, delta=1e-5, allowance=1
    )
    assert [profile.reading.history for profile in private.profiles] == [((1.0, 0.1, 10),)] * 3


def test_batches_that_are_not_poisson_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "teacher.ckpt"
    train(Teacher(poisson=False), 1, tmp_path).save_checkpoint(file)
    with pytest.raises(dt.UnprovenPrivacy, match="Poisson"):
        dt.read_privacy(file)


def test_training_goes_on_only_where_the_steps_agree(tmp_path: Path) -> None:
    plain, file = tmp_path / "plain.ckpt", tmp_path / "teacher.ckpt"
    train(Teacher(), 1, tmp_path, kept=False).save_checkpoint(plain)
    train(Teacher(), 1, tmp_path).save_checkpoint(file)
    with pytest.raises(dt.UnprovenPrivacy, match="recorded 0 steps, Lightning took 10"):
        train(Teacher(), 2, tmp_path, resume=plain)
    with pytest.raises(dt.InvalidArgument, match=r'PrivacyEngine\(accountant="prv"\)'):
        train(Teacher(accountant="rdp"), 2, tmp_path, resume=file)
    used = Teacher()
    train(used, 1, tmp_path, kept=False)
    with pytest.raises(dt.UnprovenPrivacy, match="recorded 10 steps, Lightning took 0"):
        train(used, 1, tmp_path)


def test_training_without_privacy_is_no_small_epsilon(tmp_path: Path) -> None:
    with pytest.raises(dt.UnprovenPrivacy, match="recorded 0 steps, Lightning took 10"):
        train(Teacher(private=False), 1, tmp_path)


def test_accumulated_batches_are_refused(tmp_path: Path) -> None:
    teacher = Teacher()
    runner = trainer(
        tmp_path, max_epochs=1, callbacks=[AccountantCheckpoint(teacher.engine)], accumulate_grad_batches=2
    )
    with pytest.raises(dt.UnprovenPrivacy, match="accumulate_grad_batches=1"):
        runner.fit(teacher)


class Monitoring(Teacher):
    """Its learning rate and its end depend on metrics."""

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = super().training_step(batch, index)
        self.log_dict({"loss": loss, "accuracy": loss})
        return loss

    def configure_optimizers(self) -> Any:
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer)
        return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "loss"}}


@pytest.mark.filterwarnings("ignore:It is recommended to use")
def test_what_decided_about_a_training_is_named(tmp_path: Path) -> None:
    teacher, file = Monitoring(), tmp_path / "teacher.ckpt"
    stopping = L.pytorch.callbacks.EarlyStopping("accuracy", check_on_train_epoch_end=True)
    runner = trainer(tmp_path, max_epochs=2, callbacks=[AccountantCheckpoint(teacher.engine), stopping])
    runner.fit(teacher)
    runner.save_checkpoint(file)
    assert any("depended on accuracy, loss" in note for note in dt.read_privacy(file).reading.notes)


class Repeating(Teacher):
    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, labels = batch
        return super().training_step((inputs.repeat(3, 1), labels.repeat(3)), index)


def test_records_of_several_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(dt.UnprovenPrivacy, match="did not clip as many gradients as the loader draws records"):
        train(Repeating(), 1, tmp_path)


class TwoOptimizers(Teacher):
    """A private network and a public one with an optimizer of its own, which takes two steps for each private one."""

    def __init__(self, *, shared: bool = False, private: bool = True) -> None:
        super().__init__(private=private)
        self.automatic_optimization = False
        self.public = nn.Linear(4, 2)
        self.second = torch.optim.Adam(self.network.parameters() if shared else self.public.parameters())

    def configure_optimizers(self) -> Any:
        return [self.optimizer, self.second]

    def training_step(self, batch: Any, index: int) -> None:
        private, public = self.optimizers()
        private.zero_grad()
        self.manual_backward(super().training_step(batch, index))
        private.step()
        for _ in range(2):
            public.zero_grad()
            self.manual_backward(self.public(torch.ones(3, 4)).square().mean())
            public.step()


def test_steps_of_a_public_optimizer_are_not_counted(tmp_path: Path) -> None:
    file, resumed = tmp_path / "teacher.ckpt", TwoOptimizers()
    train(TwoOptimizers(), 1, tmp_path).save_checkpoint(file)
    assert dt.read_privacy(file).reading.history == ((1.0, 0.1, 10),)
    runner = train(resumed, 3, tmp_path, resume=file)
    assert (runner.global_step, claimed(resumed)) == (90, 30)
    plain = tmp_path / "plain.ckpt"
    train(TwoOptimizers(), 1, tmp_path, kept=False).save_checkpoint(plain)
    with pytest.raises(dt.UnprovenPrivacy, match="recorded 0 steps, Lightning took 30"):
        train(TwoOptimizers(), 2, tmp_path, resume=plain)


def test_a_public_optimizer_trains_other_parameters(tmp_path: Path) -> None:
    with pytest.raises(dt.UnprovenPrivacy, match="Give each parameter to one optimizer"):
        train(TwoOptimizers(shared=True), 1, tmp_path)


def test_two_optimizers_without_privacy_are_no_small_epsilon(tmp_path: Path) -> None:
    with pytest.raises(dt.UnprovenPrivacy, match="recorded 0 steps, Lightning took 30"):
        train(TwoOptimizers(private=False), 1, tmp_path)


def test_the_optimizer_of_another_engine_is_not_public(tmp_path: Path) -> None:
    teacher = TwoOptimizers()
    with pytest.raises(dt.UnprovenPrivacy, match="recorded 0 steps, Lightning took 10"):
        trainer(tmp_path, max_epochs=1, callbacks=[AccountantCheckpoint(PrivacyEngine())]).fit(teacher)


def test_a_checkpoint_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "teacher.ckpt"
    train(Teacher(), 1, tmp_path).save_checkpoint(file)
    content = torch.load(file, weights_only=True)
    torch.save(content | {"darrm_torch_format": 3}, file)
    for use in (dt.read_privacy, lambda path: train(Teacher(), 2, tmp_path, resume=path)):
        with pytest.raises(dt.InvalidArgument, match=r"format 2 or older.*format 3.*newer version of darrm-torch"):
            use(file)


def test_a_teacher_belongs_to_one_process() -> None:
    several = type("Several", (), {"world_size": 2, "global_step": 0})()
    with pytest.raises(dt.UnprovenPrivacy, match="2 processes"):
        AccountantCheckpoint(PrivacyEngine()).on_train_start(several, Teacher())


def test_an_accountant_is_required() -> None:
    with pytest.raises(dt.InvalidArgument, match="PrivacyEngine"):
        AccountantCheckpoint(nn.Linear(1, 1))
