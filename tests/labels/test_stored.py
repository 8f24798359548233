"""Teachers in files, and data sets that are labelled teacher by teacher."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import darrm_torch as dt
from tests.labels.helpers import Says

TEACHERS, INPUTS = 5, torch.linspace(-1, 1, 23)[:, None]


def says() -> Says:
    return Says(0.0)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / f"teacher-{number}.pt" for number in range(TEACHERS)]
    for number, file in enumerate(made):
        torch.save(Says(number / 5 - 0.4).state_dict(), file)
    return made


class Counted(dt.StoredTeacher):
    """Counts how often it was loaded, and dies on request."""

    loads: list[str]
    dies = False

    def __enter__(self) -> dt.StoredTeacher:
        self.loads.append(self.file.name)
        if self.dies:
            raise KeyboardInterrupt
        return super().__enter__()


def labeler(files: list[Path], ledger: dt.PrivacyLedger, *, dying: int | None = None, **how: Any) -> dt.PrivateLabeler:
    teachers = [Counted(file, says) for file in files]
    loads: list[str] = []
    for number, teacher in enumerate(teachers):
        teacher.loads, teacher.dies = loads, number == dying
    return dt.PrivateLabeler(dt.NoiseFreeMajority(), teachers=teachers, classes=2, overlap=1, ledger=ledger, **how)


def loader(inputs: Tensor = INPUTS, **how: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(inputs), batch_size=4, **how)


def test_labels_are_those_of_all_teachers_in_memory(files: list[Path], tmp_path: Path) -> None:
    models = []
    for file in files:
        models.append(says())
        dt.load_teacher(file, models[-1])
    ensemble = dt.PrivateMajorityEnsemble(models, dt.NoiseFreeMajority(), overlap=1, ledger=dt.PrivacyLedger())
    one = labeler(files, dt.PrivacyLedger())
    labels = dt.label_loader(one, loader(), private_folder=tmp_path / "private", progress=False)
    assert labels.tolist() == ensemble(INPUTS).tolist()
    assert one.teachers[0].loads == [file.name for file in files]  # type: ignore[union-attr] # each once
    assert [*(tmp_path / "private").iterdir()] == []
    again = dt.label_loader(one, loader(INPUTS.flip(0)), private_folder=tmp_path / "private", progress=False)
    assert again.tolist() == labels.tolist()[::-1]
    assert len(one.teachers[0].loads) == TEACHERS  # type: ignore[union-attr] # no teacher was asked
    doubled = torch.cat([INPUTS, INPUTS + 3.0, INPUTS])
    more = dt.label_loader(one, loader(doubled), private_folder=tmp_path / "private", progress=False)
    assert more.tolist() == [*labels, *[1] * 23, *labels]
    assert one.ledger.count == 46


def test_a_teacher_leaves_memory_when_it_has_voted(files: list[Path]) -> None:
    asked: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    class Seen(Says):
        def forward(self, inputs: Tensor) -> Tensor:
            asked.add(self)
            return super().forward(inputs)

    teacher = dt.StoredTeacher(files[0], lambda: Seen(0.0))
    gc.disable()  # memory must not wait for a collection
    try:
        with teacher:
            teacher.vote(INPUTS)
            within = len(asked)
        after = len(asked)
    finally:
        gc.enable()
    assert (within, after) == (1, 0)


def test_a_killed_run_goes_on_and_pays_once(files: list[Path], tmp_path: Path) -> None:
    ledger, private = tmp_path / "labels.ledger", tmp_path / "private"
    with pytest.raises(KeyboardInterrupt):
        dt.label_loader(
            labeler(files, dt.PrivacyLedger(ledger), dying=3), loader(), private_folder=private, progress=False
        )
    kept = [*(private / "votes").iterdir()]
    assert len(kept) == 3
    assert all(file.stat().st_mode & 0o777 == 0o600 and file.stat().st_size < 200 for file in kept)
    assert (private / "votes").stat().st_mode & 0o777 == 0o700
    assert dt.PrivacyLedger(ledger).count == 0
    second = labeler(files, dt.PrivacyLedger(ledger))
    dt.label_loader(second, loader(), private_folder=private, progress=False)
    assert second.teachers[0].loads == ["teacher-3.pt", "teacher-4.pt"]  # type: ignore[union-attr]
    assert second.ledger.count == 23
    assert not (private / "votes").exists()


def test_votes_that_lack_inputs_are_cast_again(files: list[Path], tmp_path: Path) -> None:
    """The first run knew ten labels; the second starts with an empty ledger."""
    private = tmp_path / "private"
    for number, known in enumerate([10, 0]):
        ledger = dt.PrivacyLedger(tmp_path / f"{number}.ledger")
        if known:
            dt.label_loader(labeler(files, ledger), loader(INPUTS[:known]), private_folder=private, progress=False)
        one = labeler(files, ledger, dying=3 if known else None)
        if known:
            with pytest.raises(KeyboardInterrupt):
                dt.label_loader(one, loader(), private_folder=private, progress=False)
        else:
            labels = dt.label_loader(one, loader(), private_folder=private, progress=False)
            assert len(one.teachers[0].loads) == TEACHERS  # type: ignore[union-attr]
            assert labels.tolist() == [int(x > 0) for x in INPUTS[:, 0]]


def test_nothing_is_asked_beyond_the_budget(files: list[Path], tmp_path: Path) -> None:
    ledger = dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=0.1, delta=1e-5))
    profiles = [dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=1.0))] * TEACHERS
    one = labeler(files, ledger, profiles=profiles)
    with pytest.raises(dt.BudgetExceeded):
        dt.label_loader(one, loader(), private_folder=tmp_path / "private", progress=False)
    assert one.teachers[0].loads == []  # type: ignore[union-attr]
    assert not (tmp_path / "private").exists()


def test_what_would_spoil_the_labels_is_refused(files: list[Path], tmp_path: Path) -> None:
    one = labeler(files, dt.PrivacyLedger())
    rest: dict[str, Any] = {"private_folder": tmp_path / "private", "progress": False}
    with pytest.raises(dt.InvalidArgument, match="loader must be one that repeats its batches"):
        dt.label_loader(one, loader(torch.rand(23, 1), shuffle=True), **rest)
    with pytest.raises(dt.InvalidArgument, match="loader must be one that repeats its batches"):
        dt.label_loader(one, iter([INPUTS]), **rest)
    with pytest.raises(dt.InvalidArgument, match="inputs must be what teacher 0 takes"):
        dt.label_loader(one, [torch.rand(3)], **rest)
    named = dt.PrivateLabeler(dt.NoiseFreeMajority(), teachers=["a", "b"], classes=2, ledger=dt.PrivacyLedger())
    with pytest.raises(dt.InvalidArgument, match="labeler must be one whose teachers are voters"):
        dt.label_loader(named, loader(), **rest)
    torch.save(Says(7.0).state_dict(), files[1])
    with pytest.raises(dt.UnprovenPrivacy, match="another teacher"):
        dt.label_loader(one, loader(), **rest)
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(dt.InvalidArgument, match="private_folder"):
        dt.label_loader(one, loader(), private_folder=tmp_path / "open", progress=False)
    assert one.ledger.count == 0


def test_a_voter_that_fails_has_no_vote_and_stops_nobody(files: list[Path], tmp_path: Path) -> None:
    class Fails:
        digest = "fails"

        def vote(self, inputs: Tensor) -> Any:
            raise OSError("gone")

    teachers = [Fails(), *(dt.StoredTeacher(file, says) for file in files)]
    one = dt.PrivateLabeler(dt.NoiseFreeMajority(), teachers=teachers, classes=2, ledger=dt.PrivacyLedger())
    labels = dt.label_loader(one, loader(), private_folder=tmp_path / "private", progress=False)
    assert labels[0] == 0
    assert labels[-1] == 1
    assert "gone" in one.sensitive_events[0]


def test_the_weights_are_those_of_the_profile(files: list[Path], tmp_path: Path) -> None:
    history = {"history": [(4.0, 0.1, 10)], "mechanism": "prv"}
    record = {"module_state_dict": Says(0.3).state_dict(), "privacy_accountant_state_dict": history}
    torch.save(record, tmp_path / "other.pt")
    other = dt.read_privacy(tmp_path / "other.pt")
    one = labeler(files, dt.PrivacyLedger(), profiles=[other] * TEACHERS)
    with pytest.raises(dt.UnprovenPrivacy, match="weights of teacher 0"):
        dt.label_loader(one, loader(), private_folder=tmp_path / "private", progress=False)


def test_precision_is_part_of_the_teacher(tmp_path: Path) -> None:
    torch.save(nn.Linear(4, 3).state_dict(), tmp_path / "teacher.pt")
    exact, half = (
        dt.StoredTeacher(tmp_path / "teacher.pt", lambda: nn.Linear(4, 3), dtype=kind)
        for kind in (None, torch.bfloat16)
    )
    assert exact.digest != half.digest
    inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    assert np.mean(exact.vote(inputs) == half.vote(inputs)) > 0.9
    assert [half.vote(inputs[row : row + 1])[0] for row in range(50)] == half.vote(inputs)[:50].tolist()


def test_without_cuda_it_votes_on_the_cpu(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert dt.StoredTeacher(files[1], says, device="cuda:0").vote(INPUTS).tolist() == [int(x > -0.2) for x in INPUTS]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_votes_on_cuda(files: list[Path]) -> None:
    here, there = (dt.StoredTeacher(files[1], says, device=device).vote(INPUTS) for device in ("cpu", "cuda"))
    assert here.tolist() == there.tolist()
