"""The data module under all that a Lightning trainer does with it: the ledger says Q, and nothing else leaves."""

from __future__ import annotations

import atexit
import gc
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import darrm_torch as dt
from darrm_torch.lightning import PrivacyReport, PrivateLabelDataModule, StudentModule
from darrm_torch.mechanisms.sampling import RandomBits
from tests.processes import HANGS, environment, free_port, running

QUERIES = 7


class Counted(nn.Module):
    """A teacher; how often a row was shown to any of them is counted."""

    asked = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        Counted.asked += len(inputs)
        return self.linear(inputs)


def leave() -> None:
    """What Lightning does for NCCL only: a thread of Gloo's that outlives the interpreter aborts the process."""
    gc.collect()  # a DDP wrapper would keep the group
    torch.distributed.destroy_process_group()


class Student(L.LightningModule):
    def __init__(self, learning_rate: float = 1e-2) -> None:
        super().__init__()
        self.net = nn.Linear(4, 2)
        self.learning_rate = learning_rate

    def setup(self, stage: str) -> None:
        if torch.distributed.is_initialized():
            atexit.register(leave)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self(inputs), labels)

    def training_step(self, batch: Any, _: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", self.loss(batch), batch_size=len(batch[0]))

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


def ensemble(ledger: Path | str = ":memory:", budget: float | None = None) -> dt.PrivateMajorityEnsemble:
    torch.manual_seed(1)
    most = None if budget is None else dt.PrivacyGuarantee(epsilon=budget)
    return dt.PrivateMajorityEnsemble(
        [Counted() for _ in range(5)],
        dt.DaRRM(dt.self_bounding_noise(teachers=5, allowance=1.0)),
        profiles=[dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=0.1))] * 5,
        ledger=dt.PrivacyLedger(ledger, most),
        delta=0.0,
    )


def public() -> Tensor:
    return torch.rand(31, 4, generator=torch.Generator().manual_seed(2))


def data(teachers: dt.PrivateMajorityEnsemble, **how: Any) -> PrivateLabelDataModule:
    held_out = TensorDataset(torch.rand(QUERIES, 4), torch.zeros(QUERIES, dtype=torch.int64))
    return PrivateLabelDataModule(
        teachers, public(), **{"queries": QUERIES, "batch_size": 2, "validation": held_out, "test": held_out, **how}
    )


def trainer(folder: Path, **how: Any) -> L.Trainer:
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return L.Trainer(default_root_dir=folder, **{**quiet, "enable_checkpointing": False, "max_epochs": 1, **how})


# --- one process ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:You requested to overfit")
@pytest.mark.parametrize(
    "how",
    [
        {"max_epochs": 5, "num_sanity_val_steps": 2},
        {"fast_dev_run": True},
        {"overfit_batches": 2},
        {"max_epochs": 2, "reload_dataloaders_every_n_epochs": 1},
    ],
)
def test_a_fit_and_what_follows_pay_for_the_queries_once(tmp_path: Path, how: dict[str, Any]) -> None:
    teachers = ensemble()
    module, student, runner = data(teachers), Student(), trainer(tmp_path, **how)
    Counted.asked = 0
    runner.fit(student, datamodule=module)
    runner.validate(student, datamodule=module, verbose=False)
    runner.test(student, datamodule=module, verbose=False)
    predictions = torch.cat(runner.predict(student, datamodule=module))
    if "fast_dev_run" not in how:
        torch.testing.assert_close(predictions, student(public()))  # all public inputs, in their order
    assert teachers.ledger.count == QUERIES
    assert 5 * QUERIES < Counted.asked <= 6 * QUERIES  # five teachers; the check runs once for each shape of batch


def test_without_a_fit_nothing_is_asked(tmp_path: Path) -> None:
    teachers = ensemble()
    module, student, runner = data(teachers), Student(), trainer(tmp_path)
    runner.validate(student, datamodule=module, verbose=False)
    runner.test(student, datamodule=module, verbose=False)
    runner.predict(student, datamodule=module)
    assert teachers.ledger.count == 0


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_resumed_run_and_a_learning_rate_search_ask_nothing_again(tmp_path: Path) -> None:
    teachers = ensemble(tmp_path / "labels.ledger")
    module = data(teachers)
    runner = trainer(tmp_path, max_epochs=1, enable_checkpointing=True)
    runner.fit(Student(), datamodule=module)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    # As after a crash: everything is built again.
    again = data(ensemble(tmp_path / "labels.ledger"))
    Counted.asked = 0
    resumed = trainer(tmp_path / "resumed", max_epochs=3, enable_checkpointing=True)
    resumed.fit(Student(), datamodule=again, ckpt_path=checkpoint)
    assert resumed.current_epoch == 3
    Tuner(trainer(tmp_path, max_epochs=3)).lr_find(Student(), datamodule=again, num_training=10)
    assert torch.equal(again.labels, module.labels)
    assert teachers.ledger.count == QUERIES
    assert Counted.asked == 0


def test_a_table_is_no_data_set_of_inputs() -> None:
    Table = type("DataFrame", (list,), {})  # as that of pandas, whose items are columns
    with pytest.raises(dt.InvalidArgument, match=r"got 'DataFrame'. Of a table take torch.tensor\(table.to_numpy"):
        PrivateLabelDataModule(ensemble(), Table([[0.0], [1.0]]), queries=1)


def test_a_budget_that_is_too_small_stops_the_fit_before_it_begins(tmp_path: Path) -> None:
    teachers = ensemble(budget=0.25)
    with pytest.raises(dt.BudgetExceeded, match="2 more labels fit"):
        trainer(tmp_path).fit(Student(), datamodule=data(teachers))
    assert teachers.ledger.count == 0


def test_unlabelled_batches_beside_the_labelled(tmp_path: Path) -> None:
    class Both(Student):
        seen: list[tuple[int, int]] = []  # noqa: RUF012

        def training_step(self, batch: Any, _: int) -> Tensor:
            self.seen.append((len(batch["labelled"][1]), len(batch["unlabelled"])))
            return self.loss(batch["labelled"])

    teachers = ensemble()
    trainer(tmp_path).fit(Both(), datamodule=data(teachers, unlabelled_batch_size=3))
    # 24 unlabelled inputs in eights of 3; 7 labelled ones in batches of 2, 2, 2, 1, twice.
    assert Both.seen == [(labelled, 3) for labelled in (2, 2, 2, 1) * 2]
    assert teachers.ledger.count == QUERIES
    with pytest.raises(dt.InvalidArgument, match="fewer than the public inputs"):
        data(teachers, queries=31, unlabelled_batch_size=3)


def test_pytorch_lightning_is_one_clear_error(tmp_path: Path) -> None:
    other = pytest.importorskip("pytorch_lightning")
    teachers = ensemble()

    class Twin(other.LightningModule):
        net = nn.Linear(4, 2)

        def training_step(self, batch: Any, _: int) -> None:
            return None

        def configure_optimizers(self) -> None:
            return None

    theirs = other.Trainer(
        default_root_dir=tmp_path, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with pytest.raises(dt.InvalidArgument, match="import lightning as L"):
        theirs.fit(Twin(), datamodule=data(teachers))
    for runner, student in ((theirs, Student()), (trainer(tmp_path), Twin())):  # Lightning's own words
        with pytest.raises(TypeError, match="must be a `LightningModule`"):
            runner.fit(student, datamodule=data(teachers))
    assert teachers.ledger.count == 0


def test_seed_everything_does_not_predict_labels() -> None:
    # 31 coins that are fair but for 8 % of the cases: twice the same by chance less than once in 10**8.
    draws = []
    for _ in range(2):
        L.seed_everything(0, workers=True, verbose=False)
        coin = dt.DaRRM(dt.NoiseFunction(gamma=[0.0] * 6), uncertified=True)
        teachers = dt.PrivateMajorityEnsemble([Counted() for _ in range(5)], coin)
        draws.append(data(teachers, queries=31).label())
    assert not torch.equal(*draws)


class Saved(Student):
    """Keeps its arguments in checkpoints and in hparams.yaml."""

    def __init__(self, learning_rate: float = 1e-2) -> None:
        super().__init__(learning_rate)
        self.save_hyperparameters()


def written(values: Tensor) -> list[bytes]:
    """Numbers as they stand in a file, and as text in the ways that Python and Torch write them."""
    texts = [str(values.tolist())[1:-1], str(values)[8:-2]]
    return [values.contiguous().numpy().tobytes(), *(text.encode() for text in texts)]


def test_nothing_of_teachers_votes_or_random_bits_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    secrets: list[bytes] = []
    words, counts = RandomBits.words, dt.PrivateMajorityEnsemble.sensitive_counts

    def seen_words(self: RandomBits, *shape: int) -> Any:
        drawn = words(self, *shape)
        for word in drawn.flat:
            secrets.extend([word.tobytes(), str(word).encode()])
        return drawn

    def seen_counts(self: dt.PrivateMajorityEnsemble, inputs: Tensor, **how: Any) -> Tensor:
        taken = counts(self, inputs, **how)
        for part in (taken, *taken.T):
            secrets.extend(written(part))
        return taken

    monkeypatch.setattr(RandomBits, "words", seen_words)
    monkeypatch.setattr(dt.PrivateMajorityEnsemble, "sensitive_counts", seen_counts)
    teachers = ensemble(tmp_path / "labels.ledger", budget=3.0)
    module, student = data(teachers, queries=24, batch_size=12), Saved()
    runner = trainer(
        tmp_path, max_epochs=2, logger=CSVLogger(tmp_path), callbacks=[PrivacyReport(teachers)],
        enable_checkpointing=True, enable_progress_bar=True, enable_model_summary=True, log_every_n_steps=1,
    )  # fmt: skip
    runner.fit(student, datamodule=module)
    runner.test(student, datamodule=module)
    predictions = runner.predict(student, datamodule=module)
    assert len(secrets) == 24 * 2 + 2 * 3 * 3  # a coin for each label; of two batches the counts and their columns
    for weights in teachers.parameters():
        secrets += written(weights) + ([part for row in weights for part in written(row)] if weights.dim() > 1 else [])

    said = capfd.readouterr()
    report = [teachers.privacy_report(), teachers.privacy_report(as_dict=True), str(teachers.ledger.report())]
    shown = [said.out, said.err, caplog.text, student, module, teachers, runner.callback_metrics, predictions, *report]
    left = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    left |= {f"shown {number}": f"{one!s} {one!r}".encode() for number, one in enumerate(shown)}
    left["pickled data module"] = pickle.dumps(module)
    names = " ".join(left)
    assert all(expected in names for expected in ("hparams.yaml", "metrics.csv", ".ckpt", "labels.ledger"))
    assert "val_loss" in said.out
    assert not [name for name, content in left.items() if any(secret in content for secret in secrets)]
    # The search does find what is there.
    for secret in (pickle.dumps(teachers), str([weights.tolist() for weights in teachers.parameters()]).encode()):
        assert any(one in secret for one in secrets)


@pytest.mark.slow
def test_one_machine_asks_for_all(tmp_path: Path) -> None:
    """Two machines, as Lightning sees it, each with a ledger of its own: what one buys the other does not."""
    port, command = str(free_port()), [sys.executable, __file__, str(tmp_path), "machine"]
    where = [
        environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, NODE_RANK=number, LOCAL_RANK="0") for number in "01"
    ]
    with running(command, env=where[0]) as first, running(command, env=where[1]) as second:
        assert [machine.wait(HANGS) for machine in (first, second)] == [0, 0]
    assert [ensemble(tmp_path / f"ledger-{number}.ledger").ledger.count for number in range(2)] == [QUERIES, 0]
    assert (tmp_path / "labels-0.json").read_text() == (tmp_path / "labels-1.json").read_text()


# --- two processes ----------------------------------------------------------------------------------------------------


class Asks(Student):
    """A module that asks the ensemble in every validation and prediction step: no way to go about it, but harmless."""

    def __init__(self, teachers: dt.PrivateMajorityEnsemble) -> None:
        super().__init__()
        self.teachers = (teachers,)

    def validation_step(self, batch: Any, _: int) -> None:
        self.teachers[0](batch[0])

    def predict_step(self, batch: Any, _: int) -> Tensor:
        return self.teachers[0](batch[0])


class Together(Student):
    """A module in whose run all ranks label together."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def on_fit_start(self) -> None:
        both = dt.DistributedEnsemble(ensemble(self.file if self.global_rank == 0 else ":memory:"))
        labels = both(public())
        assert self.trainer.strategy.broadcast(labels).equal(labels)


class Labels(L.Callback):
    """Writes down the labels that this rank trains with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        (self.folder / f"labels-{trainer.global_rank}.json").write_text(json.dumps(trainer.datamodule.labels.tolist()))


def machine(folder: Path) -> None:
    """One of two machines with a process each."""
    torch.set_num_threads(1)
    module = data(ensemble(folder / f"ledger-{os.environ['NODE_RANK']}.ledger"))
    two = {"strategy": "ddp", "num_nodes": 2, "devices": 1}
    trainer(folder, **two, callbacks=[Labels(folder)]).fit(Student(), datamodule=module)


def spawn(folder: Path) -> None:
    """What the test runs in a process of its own, which must be a file's main program for processes to be spawned."""
    torch.set_num_threads(1)
    two = {"strategy": "ddp_spawn", "devices": 2}
    quick = {"strategy": "ddp_fork", "devices": 2}  # nothing is imported again
    # 1. The first process buys the labels of the fit and tells the others; afterwards they are free.
    teachers = ensemble(folder / "fit.ledger")
    module = data(teachers)
    trainer(folder, **two, max_epochs=5, num_sanity_val_steps=2, callbacks=[Labels(folder)]).fit(
        Student(), datamodule=module
    )
    trainer(folder, **quick).validate(Student(), datamodule=module, verbose=False)
    report = {"fit": teachers.ledger.count, "batches": teachers.ledger.report()["batches"]}
    report["labels"] = module.label().tolist()
    report["again"] = teachers.ledger.count
    # 2. Labelled before: copies hold no teacher, and a ledger in memory will do.
    owner = ensemble()
    ready = data(owner)
    ready.label()
    trainer(folder, **two).fit(Student(), datamodule=ready)
    report["memory"] = owner.ledger.count
    # 3. Not labelled before, and nowhere to share the labels.
    try:
        trainer(folder, **two).fit(Student(), datamodule=data(ensemble()))
    except dt.LedgerError as error:
        report["refused"] = str(error)
    # 4. Seven records on two ranks, of which one is shown twice, through five epochs of validation and prediction.
    asker = ensemble(folder / "ask.ledger")
    records = TensorDataset(public()[:QUERIES])
    loader = torch.utils.data.DataLoader(records, batch_size=2)
    runner = trainer(folder, **quick, max_epochs=5, num_sanity_val_steps=2)
    runner.fit(Asks(asker), datamodule=data(ensemble(folder / "other.ledger"), validation=records))
    trainer(folder, **quick).validate(Asks(asker), loader, verbose=False)
    trainer(folder, **quick).predict(Asks(asker), loader, return_predictions=False)
    report["asked"] = asker.ledger.count
    # 5. All ranks together, in Lightning's process group.
    trainer(folder, **quick).fit(Together(folder / "together.ledger"), datamodule=ready)
    report["together"] = dt.PrivacyLedger(folder / "together.ledger").count
    # 6. A budget that is too small fails all processes.
    try:
        poor = data(ensemble(folder / "poor.ledger", budget=0.25))
        trainer(folder, **quick).fit(Student(), datamodule=poor)
    except torch.multiprocessing.ProcessRaisedException as error:
        report["poor"] = str(error)
    (folder / "report.json").write_text(json.dumps(report))


@pytest.mark.slow
@pytest.mark.first
def test_two_spawned_processes(tmp_path: Path) -> None:
    with running([sys.executable, __file__, str(tmp_path)], env=environment()) as process:
        assert process.wait(HANGS) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["fit"], report["again"], report["memory"], report["asked"]) == (QUERIES,) * 4
    assert report["batches"] == 4  # 7 questions in batches of 2, by one process
    for rank in range(2):
        assert json.loads((tmp_path / f"labels-{rank}.json").read_text()) == report["labels"]
    assert "a ledger in memory belongs to the process that created it" in report["refused"]
    assert report["together"] == 31
    assert "BudgetExceeded" in report["poor"]


if __name__ == "__main__":
    (machine if "machine" in sys.argv else spawn)(Path(sys.argv[1]))


class Pooled(nn.Module):
    """Takes what a tokenizer returns, and returns what a classifier of transformers returns."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        weight = attention_mask[..., None] / attention_mask.sum(dim=1)[:, None, None]
        return {"logits": self.head((self.embedding(input_ids) * weight).sum(dim=1))}


def padded(items: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch as DataCollatorWithPadding makes it: as long as its longest item."""
    longest = max(len(item["input_ids"]) for item in items)
    rows = {name: [[*item[name], *[0] * (longest - len(item[name]))] for item in items] for name in items[0]}
    return {name: torch.tensor(part) for name, part in rows.items()}


def test_texts_of_any_length_are_labelled_once_and_train_a_student(tmp_path: Path) -> None:
    lengths = [3, 7, 5, 2, 6, 4, 3, 5, 7, 2]
    items = [{"input_ids": [*range(1, n + 1)], "attention_mask": [1] * n} for n in lengths]
    items = [{**item, "input_ids": [number, *item["input_ids"][1:]]} for number, item in enumerate(items, 1)]
    ensemble = dt.PrivateMajorityEnsemble([Pooled() for _ in range(3)], dt.NoiseFreeMajority())
    for batch_size in (4, 3):  # other batches, other padding
        data = PrivateLabelDataModule(ensemble, items, queries=8, batch_size=batch_size, collate_fn=padded)
        student = StudentModule(Pooled())
        trainer(tmp_path).fit(student, data)
        assert ensemble.ledger.count == 8
    assert sum(len(batch["input_ids"]) for batch in data.predict_dataloader()) == 10


def test_mappings_of_tensors_and_keys_of_the_user(tmp_path: Path) -> None:
    public = {"input_ids": torch.randint(1, 20, (6, 3)), "attention_mask": torch.ones(6, 3, dtype=torch.int64)}
    ensemble = dt.PrivateMajorityEnsemble([Pooled()], dt.NoiseFreeMajority())
    keys = [f"patient {number}".encode() for number in range(6)]
    first = PrivateLabelDataModule(ensemble, public, queries=5, keys=keys, batch_size=2).label()
    changed = {**public, "input_ids": public["input_ids"] + 0 * 1}
    assert torch.equal(PrivateLabelDataModule(ensemble, changed, queries=5, keys=keys).label(), first)
    assert ensemble.ledger.count == 5
    trainer(tmp_path).fit(StudentModule(Pooled()), PrivateLabelDataModule(ensemble, public, queries=5, keys=keys))
    for wrong, message in (
        ({"keys": keys[:3]}, "keys must be one for each of the 6 public inputs"),
        ({"public": {"a": torch.ones(3, 1), "b": torch.ones(2, 1)}}, "as many rows in each"),
        ({"public": torch.tensor(1.0)}, "as many rows in each"),
    ):
        with pytest.raises(dt.InvalidArgument, match=message):
            PrivateLabelDataModule(**{"ensemble": ensemble, "public": public, "queries": 1, **wrong})
