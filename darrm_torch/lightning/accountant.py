"""A callback that stores an Opacus accountant in the checkpoints of a teacher that Lightning trains."""

from __future__ import annotations

import copy
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from ..errors import InvalidArgument, UnprovenPrivacy
from ..teachers.checkpoints import FORMAT, FORMAT_KEY, check_format
from ..teachers.gradients import check_gradients
from ..teachers.loaders import draws_poisson
from ..teachers.optimizers import is_private
from ..teachers.watching import check_rows, check_watched, record_of, watch_training

__all__ = ["AccountantCheckpoint"]


class AccountantCheckpoint(L.Callback):
    """Stores the accountant of a DP-SGD teacher in every checkpoint and checks that every step was accounted for.

    A plain Lightning checkpoint restores weights, optimizer and ``global_step``, but not the Opacus accountant, which
    then counts only the steps since the resume. With this callback the accountant resumes too. When training starts
    and when it ends, the accountant must have recorded every step of Opacus' optimizers. So a checkpoint without an
    accountant, the accountant of another engine, and training without privacy are errors instead of small epsilons.
    The optimizer is watched, see :func:`~darrm_torch.watch_training`, and the checkpoint says whether it always was.

    A module may have further optimizers, without privacy, for other parameters, such as the generator that a private
    discriminator trains. Their steps are subtracted from ``trainer.global_step``. The library cannot see which data
    they are trained on: they must never see a private record.

    ``read_privacy`` and ``PrivateMajorityEnsemble.from_opacus`` accept the path of such a checkpoint in place of an
    engine. It holds ``privacy_accountant_state_dict`` as Opacus' own checkpoints do, and ``sampling``, and opens with
    ``weights_only=True``. Checkpoints saved with ``save_weights_only`` hold no callback state, so no accountant. Do not
    use this callback with Opacus' ``BatchMemoryManager``: Lightning counts the parts of a step.

    Args:
        engine: the ``PrivacyEngine`` whose ``make_private`` made the teacher's optimizer, or its accountant.

    Raises:
        InvalidArgument: ``engine`` is neither.
        UnprovenPrivacy: during training: the step counts disagree, an optimizer without privacy trains parameters of
            a private one, batches are accumulated, or there is more than one process. (Under Lightning each process
            gets an optimizer that ignores the others, so the processes train different models.)
    """

    def __init__(self, engine: Any) -> None:
        self._accountant = getattr(engine, "accountant", engine)
        if not (hasattr(self._accountant, "history") and hasattr(self._accountant, "load_state_dict")):
            raise InvalidArgument("engine", "a PrivacyEngine or an accountant", type(engine).__name__)
        self._public_steps = 0
        self._watched_before = 0  # the steps of the training that this one resumes, if all were watched

    def __repr__(self) -> str:
        return f"<AccountantCheckpoint: {self.steps} steps>"

    @property
    def steps(self) -> int:
        """The number of steps that the accountant has recorded."""
        return sum(int(count) for _, _, count in self._accountant.history)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Store the accountant in the checkpoint, as plain numbers."""
        history = [(float(noise), float(rate), int(count)) for noise, rate, count in self._accountant.history]
        state = {"history": history, "mechanism": str(self._accountant.mechanism())}
        checkpoint["privacy_accountant_state_dict"] = state
        checkpoint["watched"] = self._watched(trainer)
        checkpoint["public_steps"] = self._public_steps
        checkpoint["ghost"] = any(hasattr(one, "accumulate") for one in trainer.optimizers)
        checkpoint["monitored"] = _monitored(trainer)
        checkpoint[FORMAT_KEY] = FORMAT
        if trainer.train_dataloader is not None:
            checkpoint["sampling"] = "poisson" if draws_poisson(trainer.train_dataloader) else "not poisson"

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore the accountant from the checkpoint."""
        check_format("checkpoint", checkpoint)
        self._public_steps = int(checkpoint.get("public_steps", 0))
        state = checkpoint.get("privacy_accountant_state_dict")
        if state is None:
            return  # on_train_start compares the step counts
        if state["mechanism"] != self._accountant.mechanism():
            cure = f'Resume with PrivacyEngine(accountant="{state["mechanism"]}").'
            raise InvalidArgument("accountant", f"of kind {state['mechanism']}", self._accountant.mechanism(), cure)
        self._accountant.load_state_dict(copy.deepcopy(state))  # Opacus would share the list
        self._watched_before = self.steps if checkpoint.get("watched") else 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check that all earlier steps were accounted for."""
        if trainer.world_size > 1:
            raise UnprovenPrivacy(
                f"this teacher is trained in {trainer.world_size} processes, but under Lightning Opacus trains a "
                "different model in each. Train each teacher in one process: Trainer(devices=1)"
            )
        if trainer.accumulate_grad_batches != 1:
            raise UnprovenPrivacy(
                "gradients of several batches are added up for a step, and a record may be in several of them. No "
                "accountant of Opacus covers that. Use Trainer(accumulate_grad_batches=1)"
            )
        public, private = _parameters(trainer, private=False), _parameters(trainer, private=True)
        if private and public & private:
            raise UnprovenPrivacy(
                "an optimizer without privacy trains parameters that a private optimizer trains, too. Give each "
                "parameter to one optimizer"
            )
        if not private and self._public_steps:
            raise UnprovenPrivacy("no optimizer of this teacher is private any more")
        self._check(trainer)
        check_gradients(pl_module)
        optimizers = [one for one in trainer.optimizers if is_private(one)]
        if len(optimizers) == 1 and not hasattr(optimizers[0], "accumulate"):  # not ghost clipping
            watch_training(optimizers[0])

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        """Count the steps of optimizers without privacy beside a private one."""
        if not is_private(optimizer) and any(map(is_private, trainer.optimizers)):
            self._public_steps += 1

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check that the accountant recorded every step of this training."""
        self._check(trainer)

    def _watched(self, trainer: L.Trainer) -> bool:
        """Whether every step was watched, here or in the training that this one resumes."""
        records = [record for one in trainer.optimizers if (record := record_of(one)) is not None]
        for record in records:
            check_watched(record, self._accountant.history)
            check_rows(record, self._accountant.history, trainer.train_dataloader)
        return self._watched_before + sum(record.steps for record in records) == self.steps

    def _check(self, trainer: L.Trainer) -> None:
        taken = trainer.global_step - self._public_steps
        if self.steps != taken:
            raise UnprovenPrivacy(
                f"the accountant recorded {self.steps} steps, Lightning took {taken}. Resume from a checkpoint that "
                "was saved with AccountantCheckpoint; use one PrivacyEngine for each teacher, the one that made its "
                "optimizer, for one fit from the first step on"
            )
        self._watched(trainer)


def _monitored(trainer: L.Trainer) -> list[str]:
    """The metrics that decided when training stopped, which checkpoint is the best, or what the learning rate is."""
    deciding = (one for one in trainer.callbacks if isinstance(one, EarlyStopping | ModelCheckpoint))  # type: ignore[attr-defined]
    names = [one.monitor for one in deciding]
    names += [one.monitor for one in trainer.lr_scheduler_configs if one.reduce_on_plateau]
    return sorted({name for name in names if name})


def _parameters(trainer: L.Trainer, *, private: bool) -> set[int]:
    """The identities of the parameters that optimizers with or without privacy train."""
    return {
        id(weight)
        for optimizer in trainer.optimizers
        if is_private(optimizer) == private
        for group in optimizer.param_groups
        for weight in group["params"]
    }
