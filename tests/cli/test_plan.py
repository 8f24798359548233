"""``darrm plan``."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import darrm_torch as dt
from darrm_torch import PrivacyGuarantee
from tests.cli.commands import ASK, PAPER, WIDE, check_mistake, darrm, name_of, said
from tests.processes import processor_seconds


@pytest.mark.slow
def test_the_question_of_a_new_user_is_answered_quickly(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """11 teachers, all see all data, one label at (0.1, 1e-4); the limit is 5 s, imports included, of a free core."""

    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    before = used()
    result = darrm("plan", "--teachers", "11", "--label-target", "0.1,1e-4")
    assert used() - before < 5
    assert result.returncode == 0
    assert result.stderr == ""
    assert "Recommendation: optimal majority." in result.stdout
    assert "the teachers would need to be" in result.stdout
    with_teachers = said(capsys, "plan", "--teachers", "11", *PAPER, "--label-target", "0.1,1e-4")
    assert "Recommendation: DaRRM, whole profile." in with_teachers
    assert "MeanProbabilities" not in with_teachers
    for text in (result.stdout, with_teachers):
        assert max(map(len, text.splitlines())) < 80
        assert "\x1b" not in text


@pytest.mark.slow
def test_plan_imports_no_torch(folder: Path) -> None:
    code = (
        "import sys; from darrm_torch import cli; "
        "light = 'scipy' in sys.modules; "
        "cli.main(['plan', '--teachers', '3', '--teacher', '0.1', '--label-target', '0.1']); "
        "print(light, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False False"


def test_plan_is_what_the_library_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--overlap", "2", "--labels", "9", "--label-target", "0.2,1e-4", "--total-target", "0.3,1e-4",
                 "--prior", "shared:0.5,1")  # fmt: skip
    result = json.loads(said(capsys, "plan", "--teachers", "5", "--teacher", "0.1,1e-5", *arguments, "--json"))
    expected = dt.plan(
        teachers=5, teacher=PrivacyGuarantee(epsilon=0.1, delta=1e-5), overlap=2, labels=9,
        label_target=PrivacyGuarantee(epsilon=0.2, delta=1e-4), total_target=PrivacyGuarantee(epsilon=0.3, delta=1e-4),
        prior=dt.SharedVotes(low=0.5, high=1.0),
    )  # fmt: skip
    assert result | expected.to_dict() == result
    assert (result["costs"], result["teachers_needed"]) == (None, None)


@pytest.mark.slow
def test_plan_of_ten_classes_is_quick_and_fits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Less than 5 s of a free core."""
    arguments = ("plan", "--classes", "10", "--teachers", "11", "--label-target", "0.3,1e-4")
    shown: list[str] = []
    assert processor_seconds(lambda: shown.append(said(capsys, *arguments, "--overlap", "1")), below=5) < 5
    text = shown[0]
    assert max(map(len, text.splitlines())) < 80
    assert "Recommendation: vote-private table." in text


def test_plan_of_three_classes_is_what_the_library_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", "--classes", "3", "--teachers", "5", "--teacher", "0.1,1e-6", "--label-target", "0.2,1e-4")
    result = json.loads(said(capsys, *arguments, "--prior", "plurality:0.6,4", "--json"))
    expected = dt.plan(
        teachers=5, classes=3, teacher=PrivacyGuarantee(epsilon=0.1, delta=1e-6),
        label_target=PrivacyGuarantee(epsilon=0.2, delta=1e-4), prior=dt.PluralityVotes(accuracy=0.6, concentration=4),
    )  # fmt: skip
    assert result | expected.to_dict() == result
    assert result["classes"] == 3


@pytest.mark.slow
def test_plan_makes_long_searches_only_on_request(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hint = "Add --agreement 0.95 to see which teachers an agreement of 0.95 needs."
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


@pytest.mark.slow
def test_plan_with_random_allocation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", "--teachers", "5", *PAPER, "--labels", "2", "--total-target", "0.03,3e-4",
                 "--allocation", "random")  # fmt: skip
    result = json.loads(said(capsys, *arguments, "--json"))
    expected = dt.plan(
        teachers=5, teacher=dt.PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)]), labels=2,
        total_target=PrivacyGuarantee(epsilon=0.03, delta=3e-4), allocation=dt.RandomAllocation(teachers=5),
    )  # fmt: skip
    assert result | expected.to_dict() == result
    assert result["overlap"] == 1
    assert result["label_options"] is None or "--allocation random" in result["label_options"]
    text = said(capsys, *arguments, "--overlap", "2")
    assert "each record drew 2 of them at random and in secret" in " ".join(text.split())
    assert ("on the command line" in text) == ("darrm label --mechanism" in text)
    assert max(map(len, text.splitlines())) < 80


@pytest.mark.slow
def test_plan_says_what_an_agreement_costs_and_draws(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("plan", "--teachers", "5", "--teacher", "0.1", "--label-target", "0.1", "--agreement", "0.9")
    text = said(capsys, *arguments, "--plot", "plan.png")
    assert "What an agreement of 0.9 costs" in text
    assert "the teachers would need" in text
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads(said(capsys, *arguments, "--json"))
    assert result["costs"]["DaRRM, one point"] < result["costs"]["optimal majority"]
    assert result["teachers_needed"]["agreement"] == 0.9


@pytest.mark.slow
def test_plan_says_what_tuning_costs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = ("plan", "--teachers", "5", "--teacher", "0.1,1e-7", "--overlap", "2", "--label-target", "1,1e-5")
    text = said(capsys, *question, "--tuning")
    assert [line.split()[0] for line in text.splitlines()[-4:]] == ["1", "5", "20", "100"]
    assert max(map(len, text.splitlines())) < 80
    assert "The number of runs is drawn from the named law and stays secret" in " ".join(text.split())
    (row,) = json.loads(said(capsys, *question, "--allocation", "random", "--tuning", "20", "--json"))["tuning"]
    teacher = PrivacyGuarantee(epsilon=0.1, delta=1e-7)
    runs = dt.RandomRuns(mean=20)
    assert row["geometric"] == dt.tuning_epsilon(teacher, 1e-5, runs=runs, overlap=2)
    assert row["fresh_draws"] < row["geometric"] < row["poisson"] < row["all_published"]
    check_mistake(capsys, folder, *question, "--tuning", "0", words="--tuning must be")


def test_options_can_come_from_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "plan.yaml").write_text("teachers: 3\nteacher: '0.1'\nlabel_target: '0.3,1e-4'\n")
    assert "Recommendation: noise-free majority" in said(capsys, "plan", "--config", "plan.yaml")


SLOW = pytest.mark.slow


FOLDER = ("--teachers-folder", ".")


OWN = ("--teachers", "3", "--overlap", "1")


PLANS = [  # what is asked, and what is recommended
    ((*FOLDER, "--label-target", "3,1e-4"), "noise-free"),
    pytest.param((*FOLDER, "--label-target", "0.3,3e-6"), "darrm", marks=SLOW),
    pytest.param((*FOLDER, "--labels", "40", "--total-target", "1,1e-4", "--overlap", "1"), "noise-free", marks=SLOW),
    pytest.param((*FOLDER, "--classes", "3", "--label-target", "0.3,1e-5"), "self-bounding", marks=SLOW),
    pytest.param(
        (*OWN, "--classes", "3", "--labels", "40", "--total-target", "1,1e-4"), "permute-and-flip", marks=SLOW
    ),
    ((*OWN, "--classes", "3", "--label-target", "1"), "vote-private"),
    ((*OWN, "--label-target", "1"), "optimal"),
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
    result = json.loads(said(capsys, *ASK, *options, *(WIDE if plan["classes"] == 3 else ()), "--json"))
    best = plan["strategies"][0]
    assert result["mechanism"]["kind"] == best["mechanism"]["kind"]
    numbers, others = (
        {k: v for k, v in one["mechanism"]["parameters"].items() if k != "table"} for one in (result, best)
    )
    assert numbers == {k: pytest.approx(v, rel=2e-3, abs=1e-3) for k, v in others.items()}
    assert result["expected_agreement"] == pytest.approx(best["agreement"], abs=0.02)
    for name, target in (("label", plan["label_target"]), ("total", plan["total_target"])):
        assert target is None or result[name]["epsilon"] <= target[0]


@pytest.mark.slow
def test_a_plan_has_no_options_for_what_label_does_not_offer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ("--label-target", "0.1", "--prior", "independent:0.8"),  # of another optimum
        ("--classes", "3", "--overlap", "1", "--labels", "9", "--label-target", "1", "--total-target", "5,1e-5"),
        ("--classes", "3", "--overlap", "1", "--label-target", "1", "--prior", "plurality:0.6"),  # of another table
    ):
        result = json.loads(said(capsys, "plan", "--teachers", "11", *arguments, "--json"))
        assert result["recommendation"] is not None
        assert result["label_options"] is None


def test_a_plan_of_a_jury_can_be_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--teacher", "1,1e-6", "--classes", "5", "--labels", "20", "--total-target", "3,1e-4")
    result = json.loads(said(capsys, "plan", "--teachers", "11", *asked, "--json"))
    assert result["label_options"] == "--mechanism jury --total-target 3.0,0.0001 --labels 20 --overlap 11"
    assert result["strategies"][0]["mechanism"]["parameters"]["jury"] == result["strategies"][0]["voters"] < 11


PLAN = ("plan", "--teachers", "11", "--label-target")


MISTAKES = [
    (("plan", "--teachrs", "11"), "Did you mean --teachers?"),
    (("plan", "--label-target", "0.1"), "required: --teachers or --teachers-folder (see"),
    (("plan", "--teachers", "eleven", "--label-target", "0.1"), "--teachers must be an integer, got 'eleven'"),
    (("plan", "--teachers", "0", "--label-target", "0.1"), "--teachers must be an integer >= 1"),
    (("plan", "--teachers", "11"), "required: --label-target or --total-target (see"),
    ((*PLAN, "0.1", "--teacher", "-0.1,1e-4"), "--teacher must be EPSILON,DELTA such as 0.1,1e-4: epsilon must be"),
    ((*PLAN, "0.1", "--noise-multiplier", "12", "--sample-rate", "1/0", "--steps", "9"), "a fraction such as 1/35"),
    (("plan", "--teachers", "100000000000", "--label-target", "0.1"), "--teachers must be an integer in [1, "),
    ((*PLAN, "0.1", *PAPER, "--noise-multiplier", "1e-300"), "--noise-multiplier must be a number in [0.01, inf]"),
    ((*PLAN, "0.1", "--plot", "plan"), "--plot must be a file that ends in"),
    ((*PLAN, "0.1", "--plot", "."), "--plot must be a file, got '.'. This is a folder."),
    ((*PLAN, "0.1", "--classes", "1"), "--classes must be an integer in [2, 10000], got 1"),
    ((*PLAN, "0.1", "--classes", "ten"), "--classes must be an integer, got 'ten'"),
    ((*PLAN, "0.1", "--classes", "10", "--prior", "beta:2,3"), "--prior must be plurality:ACCURACY[,CONCENTRATION]"),
    ((*PLAN, "0.1", "--prior", "plurality:0.7"), "--prior must be independent:MEAN"),
    ((*PLAN, "0.1", "--classes", "10", "--prior", "plurality:0.01"), "accuracy must be at least 1/10"),
    ((*PLAN, "little"), "--label-target must be EPSILON,DELTA such as 0.1,1e-4"),
    ((*PLAN, "0.1,2"), "delta must be a number in [0, 1), got 2.0"),
    ((*PLAN, "inf,1e-5"), "--label-target.epsilon must be"),
    ((*PLAN, "0"), "--label-target.epsilon must be"),
    ((*PLAN, "nan"), "epsilon must be"),
    ((*PLAN, "0.1", "--overlap", "12"), "--overlap must be an integer in [1, 11]"),
    ((*PLAN, "0.1", "--steps", "10"), "no --noise-multiplier, --sample-rate"),
    ((*PLAN, "0.1", "--teacher", "1", *PAPER), "--teacher must be given once"),
    ((*PLAN, "0.1", "--noise-multiplier", "twelve"), "--noise-multiplier must be a number, got 'twelve'"),
    ((*PLAN, "0.1", "--prior", "uniform"), "--prior must be independent:MEAN"),
    ((*PLAN, "0.1", "--agreement", "95"), "--agreement must be a number in (0, 1]"),
    ((*PLAN, "0.1", "--config", "nowhere.yaml"), "nowhere.yaml"),
    (("plan", "--teachers-folder", "run", "--label-target", "1"), "--teachers-folder must be a folder with"),
    (("plan", "--teachers-folder", "."), "required: --label-target or --total-target"),
    (("plan", "--teachers", "4", "--teachers-folder", ".", "--label-target", "1"),
     "--teachers must be left out, or 3, as many as"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=name_of)
def test_a_mistake_is_one_line_that_names_it(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    check_mistake(capsys, trained, *arguments, words=words)


@pytest.mark.slow
def test_a_plan_for_patients(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("plan", "--teachers", "5", *PAPER, "--total-target", "9,1e-5", "--overlap", "1", "--unit", "patient")
    result = json.loads(said(capsys, *ask, "--records-per-unit", "4", "--json"))
    teacher = dt.PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)]).for_unit("patient", records=4)
    assert result["teacher"] == teacher.to_dict()
    free = next(row for row in result["strategies"] if row["kind"] == "noise-free")
    assert free["total"]["epsilon"] == teacher.epsilon(1e-5)
    assert "--unit patient --records-per-unit 4" in result["label_options"]
    text = " ".join(said(capsys, *ask, "--neighbours", "replace-one").split())
    assert "one patient affects at most 1 of them; protected: replacing one patient;" in text
    check_mistake(capsys, folder, *ask[:-2], "--records-per-unit", "4", words="--unit must be given with")
