"""Optimizers that contradict the accountant: steps, noise and clipping that it did not count."""

from __future__ import annotations

import warnings

import pytest
import torch

from darrm_torch import InvalidArgument, PrivacyProfile, UnprovenPrivacy, read_privacy
from tests.teachers.helpers import RUNS, Net, Teacher

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Teacher()


def test_a_replaced_step_hook_or_another_engine_is_refused():
    teacher, other = Teacher(), Teacher(seed=1)
    with pytest.raises(UnprovenPrivacy, match="does not report its steps"):
        teacher.read(optimizer=other.optimizer)
    teacher.optimizer.attach_step_hook(lambda optimizer: None)
    with pytest.raises(UnprovenPrivacy, match="does not report its steps"):
        teacher.read()


def test_steps_that_were_not_recorded_are_refused():
    teacher = Teacher(optimizer=torch.optim.Adam)
    assert teacher.read(steps=10).dp_sgd == RUNS
    with pytest.raises(UnprovenPrivacy, match="recorded 10 steps, but 40 were taken"):
        teacher.read(steps=40)
    for parameter in teacher.net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    teacher.optimizer.original_optimizer.step()
    with pytest.raises(UnprovenPrivacy, match="took 11 steps"):
        teacher.read()


def test_clipping_per_layer_with_another_bound_is_refused():
    from opacus.schedulers import ExponentialGradClip

    teacher = Teacher(clipping="per_layer", max_grad_norm=[1.0, 2.0, 1.0, 0.5])
    teacher.read()
    ExponentialGradClip(teacher.optimizer, gamma=0.9).step()  # lowers the noise and leaves the layers' bounds
    with pytest.raises(UnprovenPrivacy, match=r"clipped to 2\.5 together, but the optimizer scales its noise to 2\.25"):
        teacher.read()


def test_an_optimizer_without_privacy_is_refused(teacher):
    with pytest.raises(InvalidArgument, match="optimizer must be the one that make_private returned, got 'SGD'"):
        teacher.read(optimizer=teacher.optimizer.original_optimizer)


def test_complex_weights_are_refused():
    class Complex(Net):
        def __init__(self) -> None:
            super().__init__()
            self.turn = torch.nn.Linear(4, 4, dtype=torch.complex64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.turn(x.to(torch.complex64)).real)

    with pytest.raises(UnprovenPrivacy, match="noise on complex weights has half the variance"):
        Teacher(net=Complex()).read()


def test_what_is_no_part_of_opacus_is_an_assumption(teacher):
    class Mine(type(teacher.optimizer)):
        pass

    own = Teacher()
    own.optimizer.__class__ = Mine
    assert any("is a Mine, which is no class of Opacus" in note for note in own.read().reading.notes)
    assert not any("no class of Opacus" in note for note in teacher.read().reading.notes)
    from opacus.grad_sample import GradSampleModuleNoOp

    notes = teacher.read(module=GradSampleModuleNoOp(teacher.net)).reading.notes
    assert any("computed the gradients of single records itself" in note for note in notes)


def test_a_batch_that_was_left_in_the_middle_is_refused_unless_named():
    teacher = Teacher()
    teacher.optimizer.signal_skip_step(do_skip=True)
    with pytest.raises(UnprovenPrivacy, match="the optimizer waits for the rest of a batch"):
        teacher.read()
    teacher.read(accept=["sampling"])


def test_adaptive_ghost_clipping_is_refused_by_its_accountant_too():
    teacher = Teacher(grad_sample_mode="ghost")
    teacher.optimizer._adjusted_noise_multiplier = 1.0
    with pytest.raises(UnprovenPrivacy, match="exact size of the batch"):
        read_privacy(teacher.engine.accountant, optimizer=teacher.optimizer, accept=["ghost"])


def test_the_adaptive_clipping_optimizer_is_refused():
    adaptive = Teacher(
        clipping="adaptive",
        target_unclipped_quantile=0.5,
        clipbound_learning_rate=0.2,
        max_clipbound=10.0,
        min_clipbound=0.1,
        unclipped_num_std=1.0,
    )
    with pytest.raises(UnprovenPrivacy, match="exact size of the batch"):
        adaptive.read()


def test_noise_that_the_accountant_did_not_record_is_refused(teacher):
    claimed = [(12.0, 0.1, 10)]
    with pytest.raises(UnprovenPrivacy, match=r"noise_multiplier is 1\.0, the accountant last recorded 12\.0"):
        read_privacy(claimed, module=teacher.module, data_loader=teacher.loader, optimizer=teacher.optimizer)
    lowered = Teacher()
    lowered.optimizer.noise_multiplier = 0.01
    with pytest.raises(UnprovenPrivacy, match=r"noise_multiplier is 0\.01, the accountant last recorded 1\.0"):
        lowered.read()


def test_steps_that_nothing_counted_are_noted(teacher):
    def noted(profile: PrivacyProfile) -> bool:
        return any("Nothing but the accountant counted the steps" in note for note in profile.reading.notes)

    assert noted(teacher.read())
    assert not noted(teacher.read(steps=10))
    assert not noted(Teacher(optimizer=torch.optim.Adam).read())
