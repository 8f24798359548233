"""Files that are read and written."""

from __future__ import annotations

import itertools
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from darrm_torch import InvalidArgument
from darrm_torch.cli.files import read_inputs, read_tensor, write_labels
from tests.cli.commands import LABEL, MODELS, STUDENT, said
from tests.processes import processor_seconds

CLASHES = [  # a file that is written, and one that it must not be
    ((*LABEL[:-1], "x.npy"), "--out", "--inputs"),
    ((*LABEL[:-1], "teacher-1.pt"), "--out", "--models"),
    (("label", *LABEL[1:3], "--models", ".", *LABEL[7:-1], "teacher-1.pt"), "--out", "--models"),
    ((*LABEL[:-1], "wide-0.pt", "--accountants", "wide-0.pt", *MODELS[:2]), "--out", "--accountants"),
    ((*LABEL[:-1], "./link.npy"), "--out", "--inputs"),
    ((*LABEL[:-1], "hard.npy"), "--out", "--inputs"),
    ((*LABEL[:-3], "same.npy", "--out", "empty/../same.npy"), "--out", "--ledger"),
    ((*LABEL[:-3], "teacher-1.pt", *LABEL[-2:]), "--ledger", "--models"),
    ((*STUDENT[:-1], "z.pt", "--labels", "z.pt"), "--out", "--labels"),
    ((*STUDENT[:-1], "z.pt", "--test-inputs", "x.npy", "--test-labels", "z.pt"), "--out", "--test-labels"),
    (("noise", "--teachers", "3", "--allowance", "1", "--out", "q.png", "--plot", "q.png"), "--plot", "--out"),
    (("noise", "--config", "noise.yaml", "--out", "noise.yaml"), "--out", "--config"),
    (("plan", "--teachers-folder", ".", "--label-target", "1", "--plot", "teacher-0.pt"),
     "--plot", "--teachers-folder"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "option", "other"), CLASHES)
def test_nothing_that_is_read_or_written_is_written_over(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], option: str, other: str
) -> None:
    (trained / "link.npy").symlink_to("x.npy")
    os.link("x.npy", "hard.npy")
    (trained / "noise.yaml").write_text("teachers: 3\nallowance: 1\n")
    torch = pytest.importorskip("torch")
    torch.save(torch.zeros(30, dtype=torch.int64), "z.pt")
    before = {path: path.read_bytes() for path in trained.iterdir() if path.is_file()}
    assert f"{option} must be another file than {other}, got" in said(capsys, *arguments, status=2)
    assert {path: path.read_bytes() for path in trained.iterdir() if path.is_file()} == before


ROWS = np.array([[0.25, 3.0], [-1.5, 4e5]])


@pytest.mark.parametrize(
    "text", ["age,dose\r\n0.25,3\r\n-1.5,4e5\r\n", "\ufeff0.25,3\n-1.5,4e5", '"age","dose"\n"0.25",3\n-1.5,4e5\n']
)
def test_tables_are_inputs(folder: Path, text: str) -> None:
    """As they are written on other machines, too: CRLF, a byte order mark, quotes, no line of names."""
    Path("x.csv").write_bytes(text.encode())
    table = read_tensor("--inputs", "x.csv")
    assert table.dtype == torch.float32
    assert np.array_equal(table.numpy(), ROWS.astype(np.float32))


def test_parquet_tables_are_inputs(folder: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"age": ROWS[:, 0], "dose": ROWS[:, 1], "label": [1, 0]}), "x.parquet")
    assert np.array_equal(read_tensor("--inputs", "x.parquet").numpy()[:, :2], ROWS.astype(np.float32))
    assert read_tensor("--labels", "x.parquet", column="label").tolist() == [1, 0]


@pytest.mark.parametrize("file", ["y.npy", "y.pt", "y.csv"])
def test_labels_are_read_as_they_were_written(folder: Path, file: str) -> None:
    labels = torch.tensor([2, 0, 1])
    write_labels(Path(file), labels)
    assert torch.equal(read_tensor("--labels", file, column="label"), labels)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "This is an empty file"),
        ("label\n", "at least one number"),
        ("a,b\n1,x\n", "separated by commas, got \"text in line 2, column 'b'\". Leave such a column out"),
        ("a,b\r\n1,2\r\n1,\r\n", "got \"nothing in line 3, column 'b'\". A missing value needs a public number"),
        ("1,2\n1,\n", "got 'nothing in line 2, column 2'"),
        ("a,b\n1,2\n\n3,x\n", "got \"text in line 4, column 'b'\""),
        ("a;b\n1,5;2\n", "got 'another separator in line 2'. Write the table with commas"),
        ("a,b\n1,2\n1\n", "an array in"),
        ("a,b\n1,2\n", "a column label, or with one column, not 2"),
    ],
)
def test_tables_that_are_no_labels(folder: Path, text: str, message: str) -> None:
    Path("y.csv").write_text(text)
    with pytest.raises(InvalidArgument, match=message):
        read_tensor("--labels", "y.csv", column="label")


def test_any_pt_files_of_a_folder_are_teachers(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trained / "mine").mkdir()
    for number, name in enumerate(("north", "south", "west")):
        Path(f"teacher-{number}.pt").rename(trained / "mine" / f"{name}.pt")
    assert "3 labels" not in said(capsys, "teachers", "mine")
    assert "30 labels" in said(capsys, *LABEL[:4], "mine", *LABEL[7:])


# Every argument that names a file to read: what stands before it.
READ = [
    (*LABEL[:1], *LABEL[3:], "--inputs"),
    (*LABEL[:3], *LABEL[7:], "--models"),
    (*LABEL[:3], *LABEL[7:9], "--models", *MODELS, *LABEL[9:], "--accountants"),
    (*LABEL[:3], "--models", *MODELS, *LABEL[9:], "--models"),  # without --build: TorchScript
    (*LABEL[:-4], "--out", "y.npy", "--ledger"),
    (*LABEL, "--config"),
    (*STUDENT, "--inputs"),
    (*STUDENT, "--labels"),
    (*STUDENT, "--test-labels", "zeros.npy", "--test-inputs"),
    (*STUDENT, "--test-inputs", "x.npy", "--test-labels"),
    *(pytest.param((name, "--config"), marks=pytest.mark.slow) for name in ("noise", "plan")),
    ("plan", "--label-target", "1", "--teachers-folder"),
    ("verify",),
    ("teachers",),
    ("ledger",),
]


def bombs(folder: Path) -> list[str]:
    """Files that a reader must not open, or not read whole."""
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / "pipe.npy")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "zero.npy").symlink_to("/dev/zero")
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join(['*' + a] * 9)}]" for a, b in itertools.pairwise("abcdefghi")]
    (folder / "aliases.yaml").write_text("\n".join(lines))
    (folder / "merged.yaml").write_text(
        "\n".join(lines).replace("[x, x, x, x, x, x, x, x, x]", "{x: 1}").replace("[*", "{<<: [*").replace("]", "]}")
    )
    (folder / "hexadecimal.yaml").write_text(f"teachers: 0x{'f' * 20_000}")
    (folder / "deep.yaml").write_text("[" * 5000)
    (folder / "long.yaml").write_text("a: [" + "1," * 100_000 + "1]")
    (folder / "deep.json").write_text('{"gamma": ' + "[" * 100_000)
    (folder / "date.yaml").write_text("teachers: 2020-13-45")
    (folder / "digits.yaml").write_text(f"teachers: {'9' * 5000}")
    with zipfile.ZipFile(folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(2**20))
        archive.infolist()[0].file_size = 2**33  # what a bomb of eight megabytes declares
    (folder / "bomb.pt").write_bytes((folder / "bomb.npz").read_bytes())
    torch.save(torch.zeros(1).expand(2**40, 4), folder / "wide.pt")
    torch.save({"state_dict": {"weight": torch.zeros(1).expand(2**40)}}, folder / "weights.pt")
    np.lib.format.write_array_header_1_0(
        stream := (folder / "claims.npy").open("wb"), {"descr": "<f4", "fortran_order": False, "shape": (10**12, 4)}
    )
    stream.close()
    (folder / "line.csv").write_text("1," * 10**6)
    with (folder / "long.csv").open("wb") as stream:
        stream.truncate(2**36)
    lists: Any = [torch.zeros(30, 4)]
    for _ in range(15):
        lists = [lists] * 9
    torch.save(lists, folder / "lists.pt")
    history = {"history": lists, "mechanism": "rdp"}
    weights = {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}
    torch.save({"module_state_dict": weights, "privacy_accountant_state_dict": history}, folder / "history.pt")
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("arguments", READ, ids=lambda arguments: " ".join((arguments[0], arguments[-1])))
def test_no_file_hangs_a_command_or_fills_the_memory(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    (trained / "bombs").mkdir()
    resource = pytest.importorskip("resource")
    for name in bombs(trained / "bombs"):
        before, messages = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []

        def run(name: str = name, messages: list[str] = messages) -> None:
            messages.append(said(capsys, *arguments, f"bombs/{name}", status=2))

        assert processor_seconds(run, below=5) < 5
        message = messages[-1]
        assert message.startswith("darrm: error: ")
        assert "unexpected" not in message
        assert len(message) < 1000
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19  # KiB


def test_several_arrays_are_inputs_by_name(folder: Path) -> None:
    ids, mask = np.arange(6).reshape(2, 3), np.ones((2, 3), dtype=bool)
    np.savez("x.npz", input_ids=ids, attention_mask=mask)
    torch.save({"input_ids": torch.from_numpy(ids), "more": (torch.ones(2), torch.zeros(2, 1))}, "x.pt")
    one, two = read_inputs("--inputs", "x.npz"), read_inputs("--inputs", "x.pt")
    assert one.keys() == {"input_ids", "attention_mask"}
    assert one["input_ids"].tolist() == two["input_ids"].tolist() == ids.tolist()
    assert two["more"][1].shape == (2, 1)
    with pytest.raises(InvalidArgument, match="one array, not 2"):
        read_tensor("--labels", "x.npz")
    np.savez("words.npz", a=np.array(["x"]), b=ids)
    torch.save({"a": "text"}, "words.pt")
    for file in ("words.npz", "words.pt"):
        with pytest.raises(InvalidArgument, match="--inputs"):
            read_inputs("--inputs", file)


@pytest.mark.slow
def test_lines_of_text_become_tokens(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    Path("vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "very"]))
    transformers.BertTokenizerFast("vocab.txt").save_pretrained("tokenizer")
    Path("texts.txt").write_text("very good\nbad\n")
    tokens = read_inputs("--inputs", "texts.txt", "tokenizer")
    assert type(tokens) is dict
    assert tokens["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert tokens["input_ids"].shape == (2, 4)
    Path("empty.txt").write_text("good\n\nbad\n")
    for text, place, message in (
        ("empty.txt", "tokenizer", "one text in each line"),
        ("texts.txt", "nowhere", "--tokenizer must be a folder"),
        ("texts.txt", ".", "--tokenizer must be a folder"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            read_inputs("--inputs", text, place)
