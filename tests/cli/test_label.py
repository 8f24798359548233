"""``darrm label``."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch import cli
from darrm_torch.cli.ledger import check_columns
from darrm_torch.planning.families import FAMILIES
from tests.cli.commands import ASK, GNMAX, LABEL, MODELS, WIDE, check_mistake, name_of, said


def test_models_of_a_folder_inputs_of_npz_and_labels_for_a_spreadsheet(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, *LABEL)
    folder = ("--models", ".", "--accountants", ".")
    again = said(capsys, "label", "--inputs", "one.npz", *folder, *LABEL[7:-1], "y.csv")
    assert "Released: 30 labels" in again  # the same inputs of the same teachers: free
    head, *rows = (trained / "y.csv").read_text().splitlines()
    assert head == "index,label"
    assert rows == [f"{index},{label}" for index, label in enumerate(np.load("y.npy"))]


def test_a_table_with_its_columns_in_another_order_is_refused(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The networks know columns by their place, so its labels would be paid for and wrong."""
    names, numbers = ["age", "pulse", "dose", "size"], np.load("x.npy")
    for file, order in (("first", [0, 1, 2, 3]), ("moved", [0, 2, 1, 3])):
        head = ",".join(names[column] for column in order)
        np.savetxt(f"{file}.csv", numbers[:, order], delimiter=",", header=head, comments="")
    ask = ("label", "--inputs", "first.csv", *LABEL[3:])
    said(capsys, *ask)
    words = "--inputs must be a table whose column 2 is 'pulse', as when"
    check_mistake(capsys, trained, "label", "--inputs", "moved.csv", *LABEL[3:], words=words)
    with pytest.raises(dt.InvalidArgument, match=r"a table of 4 columns, as when .* got '5'"):
        check_columns(dt.PrivacyLedger("labels.ledger"), [*names, "more"])
    assert "Released: 30 labels" in said(capsys, "label", "--inputs", "first.csv", *LABEL[3:])


def test_the_report_says_what_was_written_and_what_was_free(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("ten.npy", np.load("x.npy")[:10])
    assert "Labels: 10, in y.npy. The ledger had 0 before and has 10 now" in said(
        capsys, "label", "--inputs", "ten.npy", *LABEL[3:]
    )
    assert "Labels: 30, in y.npy. The ledger had 10 before and has 30 now" in said(capsys, *LABEL)
    assert json.loads(said(capsys, *LABEL, "--json"))["labels_before"] == 30


READERS = """
import torch

class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(7, 8), torch.nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask, token_type_ids=None):
        words = (self.embedding(input_ids) * attention_mask[..., None]).sum(dim=1)
        return {"logits": self.head(words)}
"""
READ = ("label", "--models", "reader-0.pt", "reader-1.pt", "reader-2.pt", "--build", "readers_of_a_user:Reader",
        "--allowance", "1", "--overlap", "1", "--delta", "1e-4", "--ledger", "r.ledger", "--out", "y.npy")  # fmt: skip
TEXTS = ["very good", "bad", "very very bad", "good good good", "very"]


@pytest.fixture
def readers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three teachers for texts, and five texts of tokens as three files would hold them."""
    torch = pytest.importorskip("torch")
    (folder / "readers_of_a_user.py").write_text(READERS)
    monkeypatch.delitem(sys.modules, "readers_of_a_user", raising=False)
    monkeypatch.syspath_prepend(folder)
    build = importlib.import_module("readers_of_a_user").Reader
    for number in range(3):
        torch.manual_seed(number)
        history = {"history": [(4.0, 0.1, 10)], "mechanism": "prv"}
        record = {"module_state_dict": build().state_dict(), "privacy_accountant_state_dict": history}
        torch.save(record, f"reader-{number}.pt")
    words = {"good": 4, "bad": 5, "very": 6}
    tokens = [[2, *(words[word] for word in text.split()), 3] for text in TEXTS]
    ids = np.array([row + [0] * (8 - len(row)) for row in tokens])
    np.savez("tokens.npz", attention_mask=(ids > 0).astype(np.int64), input_ids=ids)
    short = {"input_ids": torch.from_numpy(ids[::-1, :5].copy()), "attention_mask": torch.from_numpy(ids[::-1, :5] > 0)}
    torch.save(short, "tokens.pt")
    return folder


def test_files_of_token_ids(readers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other padding, another order, another type of the mask, other batches: the same texts, and nothing is charged."""
    first = json.loads(said(capsys, *READ, "--inputs", "tokens.npz", "--json"))
    labels = np.load("y.npy")
    again = json.loads(said(capsys, *READ, "--inputs", "tokens.pt", "--batch-size", "2", "--json"))
    assert (first["labels"], again["labels"]) == (5, 5)
    assert np.array_equal(np.load("y.npy"), labels[::-1])


def test_identifiers_of_the_user(readers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (readers / "ids.txt").write_text("first\nsecond\nthird\nsecond\nfifth\n", encoding="utf-8")
    ask = (*READ, "--inputs", "tokens.npz", "--ids", "ids.txt", "--batch-size", "3", "--json")
    assert json.loads(said(capsys, *ask))["labels"] == 4
    labels = np.load("y.npy")
    assert labels[1] == labels[3]
    (readers / "reversed.txt").write_text("fifth\nsecond\nthird\nsecond\nfirst\n", encoding="utf-8")
    assert json.loads(said(capsys, *ask, "--ids", "reversed.txt"))["labels"] == 4
    assert np.array_equal(np.load("y.npy"), labels[::-1])
    (readers / "four.txt").write_text("a\nb\nc\nd\n", encoding="utf-8")
    (readers / "gap.txt").write_text("a\nb\n\nc\nd\n", encoding="utf-8")
    for file, words in (("four.txt", "4 lines"), ("gap.txt", "an empty line"), ("tokens.npz", "a text file")):
        check_mistake(capsys, readers, *ask, "--ids", file, words=words)


@pytest.mark.slow
def test_lines_of_text_are_the_questions_that_their_tokens_are(
    readers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    (readers / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "very"]))
    names = ["input_ids", "attention_mask"]
    transformers.BertTokenizerFast("vocab.txt", model_input_names=names).save_pretrained("tokenizer")
    (readers / "texts.txt").write_text("\n".join(TEXTS))
    said(capsys, *READ, "--inputs", "texts.txt", "--tokenizer", "tokenizer")
    labels = np.load("y.npy")
    assert json.loads(said(capsys, *READ, "--inputs", "tokens.npz", "--json"))["labels"] == 5
    assert np.array_equal(np.load("y.npy"), labels)


def test_teachers_that_started_alike_need_the_start(readers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    start = torch.load("reader-0.pt")["module_state_dict"]
    for number in range(3):
        record = torch.load(f"reader-{number}.pt")
        torch.manual_seed(number)
        record["module_state_dict"] = {name: one + 1e-3 * torch.randn_like(one) for name, one in start.items()}
        torch.save(record, f"reader-{number}.pt")
    torch.save(start, "start.pt")
    ask, files = (*READ, "--inputs", "tokens.npz"), READ[2:5]
    for command in (ask, ("teachers", *files)):
        assert "give initial=" in said(capsys, *command, status=1)
        said(capsys, *command, "--initial", "start.pt")
    check_mistake(capsys, readers, *ask, "--initial", "vocab.txt", words="--initial")


def test_several_findings_are_columns(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("edema", "effusion", "nodule")
    ask = [*ASK[:-1], "y.csv", *WIDE, "--mechanism", "self-bounding", "--overlap", "1", "--json"]
    result = json.loads(said(capsys, *ask, "--total-target", "9,1e-4", "--findings", *names))
    assert (result["labels"], result["findings"]) == (90, dict.fromkeys(names, 30))
    assert result["total"]["labels"] == 90
    head, *rows = (trained / "y.csv").read_text().splitlines()
    assert head == "index,edema,effusion,nodule"
    assert all(re.fullmatch(rf"{number},[01],[01],[01]", row) for number, row in enumerate(rows))
    again = json.loads(said(capsys, *ask))  # the ledger knows the findings
    assert (again["labels"], (trained / "y.csv").read_text().splitlines()[1:]) == (90, rows)
    other = ("--findings", "edema", "nodule", "effusion")
    check_mistake(capsys, trained, *ask, *other, words="--findings must be left out, or as when labels.ledger")
    wrong = ("--ledger", "new", "--total-target", "9,1e-4", "--findings", "a", "b")
    check_mistake(capsys, trained, *ask, *wrong, words="one for each finding")


def test_only_a_jury_votes(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = [*ASK, "--mechanism", "noise-free", "--jury", "1", "--overlap", "1"]
    result = json.loads(said(capsys, *ask, "--json"))
    assert result["mechanism"]["parameters"] == {"jury": 1, "redrawn": False}
    assert result["total"]["epsilon"] == result["label"]["epsilon"]
    labels = np.load("y.npy")
    again = json.loads(said(capsys, *ASK, "--mechanism", "noise-free", "--overlap", "1", "--json"))  # kept
    assert again["mechanism"] == result["mechanism"]
    assert np.array_equal(np.load("y.npy"), labels)
    everyone = [*ask, "--ledger", "other.ledger"]
    assert json.loads(said(capsys, *everyone, "--jury", "3", "--json"))["total"]["epsilon"] > result["total"]["epsilon"]
    for wrong, words in (
        (("--jury", "4"), "--jury must be an integer in [1, 3]"),
        (("--mechanism", "self-bounding", "--allowance", "1"), "--jury must be used with noise-free or mean-prob"),
    ):
        check_mistake(capsys, trained, *ask, "--ledger", "new.ledger", *wrong, words=words)


# The class of each kind; a new kind of the registry is tested without an entry here.
CLASSES = {
    **dict.fromkeys(["darrm", "darrm-point", "optimal"], "DaRRM"),
    **dict.fromkeys(["gnmax", "gnmax-label"], "GNMax"),
    "exponential": "ExponentialMechanism",
    **dict.fromkeys(["noise-free", "jury"], "NoiseFreeMajority"),
    "mean-probabilities": "MeanProbabilities",
    "permute-and-flip": "PermuteAndFlip",
    "lnmax": "LNMax",
    "randomized-response": "RandomizedPlurality",
    "vote-private": "VotePrivatePlurality",
}
TARGET = {"--label-target": (1, 0.6), "--total-target": (30, 2.0)}  # for how many labels, and which epsilon
REQUESTS = [
    pytest.param(
        name,
        "--" + strength.replace("_", "-"),
        classes,
        marks=[pytest.mark.slow] if classes == 2 and not family.binary and strength in family.strengths[1:] else [],
    )
    for name, family in FAMILIES.items()
    for strength in family.strengths or ("budget",)
    for classes in ((2,) if family.binary else (2, 3))
]


@pytest.mark.parametrize(("name", "option", "classes"), REQUESTS)
def test_every_mechanism_labels_within_its_target(
    trained: Path, capsys: pytest.CaptureFixture[str], name: str, option: str, classes: int
) -> None:
    """The report's proven costs are within it, and it can be asked again, for more labels."""
    count, epsilon = TARGET.get(option, (0, 2.0))
    arguments = [*ASK, "--mechanism", name, option, "1.5" if option == "--allowance" else f"{epsilon},1e-4"]
    arguments += ["--overlap", "1" if name == "gnmax-label" else "2", "--json", *(WIDE if classes == 3 else ())]
    arguments += ["--accept", "guesses"]
    if option == "--total-target":
        arguments += ["--labels", "40"]
    result = json.loads(said(capsys, *arguments))
    if name in ("self-bounding", "subsampling"):
        assert result["mechanism"]["kind"] == ("DaRRM" if classes == 2 else "SelfBoundingPlurality")
    else:
        assert result["mechanism"]["kind"] == CLASSES.get(name, result["mechanism"]["kind"])
    assert result["labels"] == 30
    assert result["mechanism"]["secure"]
    labels = np.load("y.npy")
    if result["mechanism"]["releases"] == "labels":
        assert set(labels) <= set(range(classes))
    else:
        assert labels.shape == (30, classes)
    if option in TARGET:
        assert result["label" if count == 1 else "total"]["epsilon"] <= epsilon
    if FAMILIES[name].rests_on == "randomness":  # no accountant was read
        assert result["total"]["route"] == "the mechanism's own randomness"
        assert result["readings"] == []
    else:
        assert len(result["readings"]) == 3
    np.save("x.npy", np.concatenate([np.load("x.npy"), np.ones((10, 4), dtype=np.float32)]))
    more = json.loads(said(capsys, *arguments))  # ten, all alike: one new label
    assert more["labels"] == 31
    assert np.array_equal(np.load("y.npy")[:30], labels)


def test_own_randomness_needs_no_accountant(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = ("--models", *(f"plain-{file}" for file in MODELS), "--mechanism", "gnmax", "--label-target", "0.6,1e-4")
    report = said(capsys, *ASK, *plain, "--overlap", "1")
    assert "30 labels, by GNMax" in report
    assert "by the mechanism's own randomness" in report
    # What the teachers promise lets the noise be less, and the report says so.
    with_theirs = said(capsys, *ASK, *plain, "--overlap", "1", "--accountants", *MODELS, "--ledger", "other.ledger")
    assert "Findings about the teachers" in with_theirs


def test_a_stated_allocation_is_priced_and_kept(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of Opacus show no declared constants: the user vouches for them, and the ledger keeps the statement."""
    arguments = (*ASK, "--mechanism", "self-bounding", "--total-target", "0.3,1e-4", "--allocation", "random")
    assert "constants" in said(capsys, *arguments, status=1)
    result = json.loads(said(capsys, *arguments, "--accept", "constants", "--json"))
    assert result["total"]["epsilon"] <= 0.3
    assert any("each record drew its shard of 3" in text for text in result["total"]["assumptions"])
    assert {"allocation", "allocation-self-bounding"} <= {route["key"] for route in result["total"]["routes"]}
    again = json.loads(said(capsys, *ASK, "--accept", "constants", "--json"))  # the ledger knows the rest
    assert again["total"] == result["total"]


def test_a_total_target_is_the_budget(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*ASK, "--mechanism", "permute-and-flip", "--total-target", "1,1e-4", "--labels", "29")
    assert "over the budget" in said(capsys, *arguments, status=1)


def test_torchscript_models_with_their_accountants(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Torch's own word about TorchScript's future
        for number in range(3):
            network = torch.nn.Linear(4, 2)
            state = torch.load(MODELS[number])["module_state_dict"]
            network.load_state_dict({name.removeprefix("_module."): value for name, value in state.items()})
            torch.jit.script(network).save(f"script-{number}.pt")
            torch.jit.script(torch.nn.Linear(4, 2)).save(f"other-{number}.pt")
    scripts = [f"script-{number}.pt" for number in range(3)]
    arguments = ("label", "--inputs", "x.npy", "--models", *scripts, "--delta", "1e-4", "--allowance", "1",
                 "--ledger", "l.ledger", "--out", "y.npy")  # fmt: skip
    assert "--accountants must be given" in said(capsys, *arguments, status=2)
    others = [argument.replace("script", "other") for argument in arguments]
    assert "weights are not those in teacher-0.pt" in said(capsys, *others, "--accountants", *MODELS, status=1)
    assert "30 labels" in said(capsys, *arguments, "--accountants", *MODELS)


def test_over_budget_is_refused_and_writes_nothing(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "over the budget" in said(capsys, *LABEL, "--budget", "0.01,1e-4", status=1)
    assert not [path for path in trained.iterdir() if "y" in path.stem and path.suffix == ".npy"]


def test_labels_hardly_better_than_guesses_are_not_paid_for_unless_accepted(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spent budget never comes back, and a missing --overlap is the most frequent reason."""
    little = (*GNMAX, "--total-target", "0.1,1e-5")
    words = "to affect 3 of 3 teachers: for disjoint shards pass --overlap 1. --accept guesses"
    check_mistake(capsys, trained, *little, words=words)
    check_mistake(capsys, trained, *little, "--json", words="the labels must be better than guesses, got")
    anyway = (*little, "--accept", "guesses")
    with monkeypatch.context() as patch:
        patch.setattr(dt.PrivateMajorityEnsemble, "forward", stopped)
        assert cli.main(anyway) == 130
    noise, end = capsys.readouterr().err.splitlines()  # shown before anything is charged
    assert re.fullmatch(r"Noise: GNMax, sigma \d{3,4}\.?\d*; expected agreement 0\.[45]\d\.", noise)
    assert end == "darrm: stopped"
    assert dt.PrivacyLedger("labels.ledger").count == 0
    assert 0.4 < json.loads(said(capsys, *anyway, "--json"))["expected_agreement"] < 0.6
    assert "Released: 30 labels" in said(capsys, *little)  # what was accepted once is not asked again
    one = (*ASK, "--models", "plain-teacher-0.pt", "--mechanism", "gnmax", "--total-target", "0.1,1e-5")
    assert "Released: 30 labels" in said(capsys, *one, "--ledger", "one.ledger")  # a vote that a site randomizes


def stopped(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("classes", "models"), [pytest.param(2, (), marks=pytest.mark.slow), (3, WIDE)])
def test_the_expected_agreement_is_that_of_the_plan(
    trained: Path, capsys: pytest.CaptureFixture[str], classes: int, models: tuple[str, ...]
) -> None:
    """Tried on 10,000 votes, it is 0.02 off with chance 1e-4."""
    target = ("--overlap", "1", "--label-target", "0.5,1e-5")
    arguments = (*ASK, *models, "--mechanism", "permute-and-flip", *target, "--json")
    result = json.loads(said(capsys, *arguments))["expected_agreement"]
    rows = json.loads(said(capsys, "plan", "--teachers", "3", "--classes", str(classes), *target, "--json"))[
        "strategies"
    ]
    (row,) = (row for row in rows if row["strategy"] == "permute-and-flip")
    assert result == pytest.approx(row["agreement"], abs=0.02)


def test_one_label_that_costs_too_much_is_called_so(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = said(capsys, *LABEL, "--budget", "0.01,1e-4", status=1)
    assert "one label alone costs too much: (" in message
    assert "over the budget of (0.01, 0.0001)-DP" in message
    private_votes = (*ASK, "--mechanism", "permute-and-flip", "--label-target", "0.1", "--accept", "guesses")
    np.save("x.npy", np.load("x.npy")[:2])
    said(capsys, *private_votes, "--budget", "0.2")
    np.save("x.npy", np.ones((1, 4), dtype=np.float32))
    assert "one more label after 2 costs too much: (0.3," in said(capsys, *private_votes, status=1)


@pytest.mark.parametrize(
    "name",
    [
        kind
        for kind, family in FAMILIES.items()
        if family.rests_on == "randomness" and kind not in ("optimal", "gnmax-label")
    ],
)
def test_ledger_and_label_report_the_same_cost_of_own_randomness(
    trained: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    noisy = ("--mechanism", name, "--label-target", "0.6,1e-4", "--accept", "guesses", "--json")
    result = json.loads(said(capsys, *ASK, *WIDE, *noisy))
    spent = json.loads(said(capsys, "ledger", "labels.ledger", "--json"))["spent"]
    if name == "vote-private":  # whose table is not in the file
        assert spent is None
    else:
        assert spent == {"epsilon": result["total"]["epsilon"], "delta": result["total"]["delta"]}


def test_a_refused_command_leaves_no_ledger(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = said(capsys, *LABEL, "--budget", "0.01,1e-4", status=1)
    assert "or raise --budget" in refused
    private_votes = (*ASK, "--mechanism", "permute-and-flip", "--accept", "guesses")
    refused = said(capsys, *private_votes, "--total-target", "1,1e-4", "--labels", "9", status=1)
    assert "or raise --total-target" in refused
    said(capsys, *LABEL, "--allowance", "-1", status=2)
    assert not list(trained.glob("labels.ledger*"))
    said(capsys, *private_votes, "--label-target", "0.1", "--budget", "3,1e-4")
    np.save("x.npy", np.random.default_rng(1).normal(size=(500, 4)).astype(np.float32))
    refused = said(capsys, *private_votes, "--label-target", "0.1", status=1)
    assert "or start another ledger: this one keeps its budget" in refused


def test_interrupted_it_leaves_no_half_written_file(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (trained / "y.npy").write_bytes(b"what was there before")
    before = sorted(trained.iterdir())

    def stopped(file: Path, array: object) -> None:
        Path(file).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", stopped)
    assert cli.main(LABEL) == 130
    assert capsys.readouterr().err.endswith("\ndarrm: stopped\n")
    assert (trained / "y.npy").read_bytes() == b"what was there before"
    left = {path.name for path in trained.iterdir() if path not in before}
    assert {name for name in left if not name.endswith(".ledger")} <= {"__pycache__"}
    monkeypatch.undo()
    os.chdir(trained)
    assert "30 labels" in said(capsys, *LABEL)  # what was paid for is there


MISTAKES = [
    ((*LABEL[:2], "teacher-0.pt", *LABEL[3:]), "--inputs must be an array in a .npy, .npz, .pt, .csv or .parquet file"),
    ((*LABEL[:-1], "y.txt"), "--out must be a file that ends in .npy or .pt or .csv"),
    ((*LABEL[:2], "two.npz", *LABEL[3:]), "takes, whose first weights are float32"),
    ((*LABEL[:4], "empty", *LABEL[7:]), "--models must be a folder with .pt files, got 'empty'"),
    (
        (*GNMAX, "--models", *["plain-teacher-0.pt"] * 3, "--overlap", "1", "--total-target", "8,1e-5"),
        "teachers 0 and 1 with the same weights",
    ),
    ((*LABEL, "--build", "nets_of_a_user"), "--build must be MODULE:FUNCTION"),
    ((*LABEL, "--build", "no_such_module:build"), "No module named 'no_such_module'"),
    ((*LABEL, "--build", "nets_of_a_user:number"), "a function that returns a torch.nn.Module"),
    ((*LABEL, "--build", "nets_of_a_user:broken"), "RuntimeError: no"),
    ((*LABEL, "--build", "nets_of_a_user:three"), "teacher-0.pt must be the weights of this Linear, got 'those of"),
    ((*LABEL, "--accountants", "teacher-0.pt"), "--accountants must be one for each of 3 models, got 1"),
    ((*ASK, "--mechanism", "gnmax", "--label-target", "1,1e-5", "--accountants", "x.npy", "x.npy", "x.npy"),
     "--accountants must be a readable checkpoint, got 'x.npy'"),
    ((*LABEL[:4], *MODELS[:2], "junk.pt", *LABEL[7:]), "--models must be a readable checkpoint, got 'junk.pt'. It "),
    ((*LABEL, "--accountants", "junk.pt", *MODELS[:2]), "--accountants must be a readable checkpoint, got 'junk.pt'"),
    ((*LABEL, "--ledger", "."), "--ledger must be a file, got '.'. This is a folder."),
    ((*LABEL, "--ledger", "no/ledger"), "got 'no/ledger'. There is no such folder."),
    ((*LABEL, "--ledger", "junk.pt"), "--ledger: "),
    ((*ASK, "--mechanism", "gnmax", "--label-target", "1,1e-5", "--overlap", "4"), "--overlap must be an integer in"),
    ((*ASK, "--mechanism", "gnmax", "--label-target", "1,2"), "--label-target must be EPSILON,DELTA"),
    ((*LABEL, "--label-target", "0.1"), "--mechanism darrm must be used with one of --allowance, --label-target, got"),
    ((*LABEL, "--mechanism", "gnmx"), "Did you mean gnmax?"),
    ((*LABEL, "--mechanism", "gnmax"), "used with one of --label-target, --total-target, got '--allowance'"),
    ((*LABEL, "--mechanism", "noise-free"), "noise-free must be used with no allowance or target, got '--allowance'"),
    ((*ASK, "--mechanism", "exponential"), "required: one of --label-target, --total-target (how strong the noise"),
    ((*ASK, "--total-target", "1,1e-5"), "got '--total-target'. Set the most that all labels may cost with --budget."),
    ((*ASK, "--mechanism", "gnmax", "--label-target", "1"), "--label-target must be one that some strength"),
    ((*ASK, "--mechanism", "self-bounding", "--total-target", "1e-5,1e-5"), "--total-target must be one that some"),
    ((*ASK, "--mechanism", "gnmax", "--total-target", "1,1e-5", "--budget", "1"), "--budget must be left out"),
    ((*ASK, "--mechanism", "gnmax", "--label-target", "1,1e-5", "--labels", "9"), "--labels must be used with"),
    ((*ASK, "--mechanism", "gnmax", "--total-target", "1,1e-5", "--labels", "0"), "--labels must be an integer in [1,"),
    ((*LABEL, "--mechanism", "self-bounding", "--allowance", "0"), "--allowance must be a number in"),
    ((*LABEL, *WIDE), "--mechanism darrm must be used with two classes, got 3. Choose two with --classes"),
    ((*ASK, *WIDE, "--mechanism", "optimal", "--label-target", "1"), "--classes must be 2 for optimal, got 3"),
    ((*LABEL, "--classes", "0", "7"), "--classes must be below the 2 outputs"),
    (("label", "--inputs", "three.npy", *LABEL[3:]), "--inputs must be what teacher 0 takes"),
    (("label", *LABEL[1:3], "--models", "x.npy", *LABEL[7:]), "--models must be a readable checkpoint, got 'x.npy'"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=name_of)
def test_a_mistake_is_one_line_that_names_it(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    check_mistake(capsys, trained, *arguments, words=words)


def test_a_ledger_in_memory_is_refused(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every run would draw all labels again, at the price of one."""
    message = said(capsys, *LABEL, "--ledger", ":memory:", status=2)
    assert "--ledger must be a file, got ':memory:'. A ledger in memory is gone when the command ends" in message
    assert not Path("y.npy").exists()


def test_out_is_a_new_or_a_regular_file(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link is not followed, and a pipe is not replaced; nothing is charged."""
    (trained / "target.npy").write_text("precious")
    (trained / "y.npy").symlink_to("target.npy")
    os.mkfifo(trained / "pipe.npy")
    for name, kind in (("y.npy", "a link"), ("pipe.npy", "a pipe")):
        message = said(capsys, *LABEL, "--out", name, status=2)
        assert f"--out must be a file that can be written, got '{name}'. This is {kind}" in message
    assert (trained / "target.npy").read_text() == "precious"
    assert not list(trained.glob("labels.ledger*"))
