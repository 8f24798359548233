"""The reproduction of the paper: its printed numbers, its remarks, and the command."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import darrm_torch as dt
from recipes import data
from recipes.reproduce import (
    __main__ as command,
    curves,
    gaussian,
    labels,
    listing,
    losses,
    published,
    regions,
    strategies,
)
from recipes.reproduce.result import Exhibit, Result, Table


@pytest.mark.parametrize("source", published.TOTALS)
def test_totals_are_the_papers(source: str) -> None:
    for m, printed in published.TOTALS[source].items():
        label = gaussian.label_target(source, m)
        for queries, (epsilon, delta) in zip(published.QUERIES, printed, strict=True):
            total = dt.as_if_redrawn(label, queries, slack=published.SLACK)
            assert total.epsilon == pytest.approx(epsilon, abs=6e-4)  # printed with three digits after the point
            assert total.delta == pytest.approx(delta, abs=6e-4)


@pytest.mark.parametrize("source", published.RDP)
def test_gnmax_noise_is_the_papers(source: str) -> None:
    target = gaussian.label_target(source, 3)
    order, sigma = gaussian.paper_sigma(target)
    printed_order, printed = published.RDP[source]
    assert sigma == pytest.approx(printed, abs=0.005)
    # The lambda printed beside it is another one: there the bound asks for more noise.
    assert abs(order - printed_order) > 20
    assert gaussian.square_at(target, printed_order) > 1.5 * sigma**2
    # The library's continuous search over orders finds the same.
    assert dt.GNMax.calibrated(target, method="rdp").sigma == pytest.approx(sigma, rel=1e-4)


def test_teachers_of_12000_records_have_the_papers_epsilon() -> None:
    for source, records in losses.RECORDS.items():
        accountant = losses.accountant_epsilon(records)
        assert accountant == pytest.approx(published.EPSILON[source], abs=5e-5)
        assert losses.teacher_profile(records).epsilon(published.DELTA) <= accountant
    assert losses.accountant_epsilon(10_000) > published.EPSILON["fashion-mnist"] + 0.005


def test_parameters_of_general_composition_are_the_papers() -> None:
    teacher = dt.PrivacyGuarantee(epsilon=curves.EPSILON, delta=curves.DELTA)
    everyone = dt.general_composition(teacher, 35, slack=0.1)
    for sample, (m, tau, lost, epsilon, delta) in published.COMPOSITION.items():
        found = dt.general_composition(teacher, sample, slack=0.1)
        assert found.epsilon / teacher.epsilon == pytest.approx(m, abs=6e-5)
        assert (found.epsilon, found.delta) == pytest.approx((epsilon, delta), abs=6e-5)
        assert (everyone.epsilon / teacher.epsilon, everyone.delta) == pytest.approx((tau, lost), abs=6e-5)


def test_remarks_on_the_first_figure() -> None:
    settings = curves.m_settings(11, (1, 3), delta=curves.DELTA)
    first, third = (setting.functions() for setting in settings)
    assert np.allclose(first["opt"].gamma, first["Sub"].gamma, atol=1e-4)
    assert third["opt"].gamma[6:].round(2).tolist() == [0.94, 0.54, 1.0, 1.0, 0.98, 1.0]
    assert np.any(third["opt"].gamma < third["Sub"].gamma)  # not the highest everywhere
    prior = dt.IndependentVotes(mean=0.75)
    errors = {which: noise.expected_error(prior)[0] for which, noise in third.items()}
    assert min(errors, key=errors.__getitem__) == "opt"
    assert "DSub" not in third
    assert "DSub" in curves.m_settings(5, (2,), delta=0.0)[0].functions()


def test_errors_at_one_half_are_zero() -> None:
    noise = dt.subsampling_noise(teachers=11, allowance=3)
    assert noise.error(np.full(11, 0.5)) == pytest.approx(0, abs=1e-15)


def test_published_tables_are_whole() -> None:
    for table in published.ACCURACIES.values():
        assert tuple(table) == published.ALLOWANCES
        for methods in table.values():
            assert tuple(methods) == labels.PAPER
            for entries in methods.values():
                assert len(entries) == len(published.QUERIES)
                assert all(0.5 < mean < 1 and 0 < deviation < 0.12 for mean, deviation in entries)


def test_expected_accuracy_is_that_of_drawn_labels() -> None:
    counts = np.array([[11, 0], [4, 7], [0, 11], [6, 5]])
    votes = labels.Votes(private=counts, plain=counts[::-1], truth=np.array([0, 1, 0, 1]), single=(0.9, 0.9))
    three = dt.subsampling_noise(teachers=11, allowance=3)
    mechanism = dt.DaRRM(three, uncertified=True)
    right = votes.correct(mechanism, plain=False)
    gamma = three.gamma
    assert right.tolist() == pytest.approx([1.0, (1 + gamma[7]) / 2, 0.0, (1 - gamma[5]) / 2])
    assert votes.correct(mechanism, plain=True)[0] == pytest.approx((1 + gamma[6]) / 2)
    shares = labels.draws(np.full(50, 0.8), 40, np.random.default_rng(0))
    assert len(shares) == 10
    # 400 labels, each right with chance 0.8: 5 standard deviations; false alarms below one in a million, seed fixed.
    assert np.mean(shares) == pytest.approx(0.8, abs=5 * 0.02)


def test_differences_are_reported_with_their_numbers() -> None:
    votes = {1: labels.Votes(private=np.zeros((1, 2)), plain=np.zeros((1, 2)), truth=np.zeros(1), single=(0.93, 0.97))}
    exact = {1: {"noise-free majority": [0.95, 0.97]}, 5: {"gamma_opt": [0.9]}}
    rows = [(5, 100, "gamma_opt", "0.900 (0.030)", "0.97 (0.01)", -0.07, False), (5, 50, "GNMax", "", "", 0.0, True)]
    notes = labels.reading("fashion-mnist", rows + rows[1:] * 4, exact, votes)
    assert any("3 of 4 entries are within" in note and "5 of 6" in note for note in notes)
    (outside,) = [note for note in notes if note.startswith("Outside")]
    assert "m = 5, 100 labels, gamma_opt: 0.900 (0.030) here, 0.97 (0.01) in the paper" in outside
    assert "The expectation here is 0.900" in outside
    assert outside.endswith("deviation of 0.030.")
    assert any("0.930" in note and "0.960" in note for note in notes)


def test_the_papers_methods_keep_the_label_target() -> None:
    for m in (1, 5):
        made = labels.mechanisms("fashion-mnist", m)
        target = gaussian.label_target("fashion-mnist", m)
        assert tuple(made) == (*labels.PAPER, *labels.BEYOND)
        for name in ("gamma_Sub", "gamma_opt", "gamma for the whole profile"):
            assert made[name].certificate.target == target
        for name in ("GNMax", "GNMax, exact sigma"):
            assert made[name].guarantee(labels=1, delta=target.delta).epsilon <= target.epsilon * (1 + 1e-6)


CASE = strategies.Case(teachers=5, overlap=2)
ONE, _ = strategies.EQUAL


@pytest.fixture(scope="module")
def one_label() -> dict[str, dt.Strategy]:
    return {row.name: row for row in strategies.answers(CASE, ONE)}


@pytest.mark.slow
def test_agreement_by_enumerating_every_vote(one_label: dict[str, dt.Strategy]) -> None:
    law = strategies.PRIOR.law(5)
    for row in one_label.values():
        if row.voters < CASE.teachers:
            continue
        expected = 0.0
        for votes in itertools.product((0, 1), repeat=5):
            ones = sum(votes)
            label = row.mechanism.label_probabilities(np.array([[5 - ones, ones]]))[0]
            share = law[ones] / sum(1 for other in itertools.product((0, 1), repeat=5) if sum(other) == ones)
            expected += share * label[int(2 * ones > 5)]
        assert row.agreement == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("equal", "case"),
    [
        pytest.param(equal, case, marks=marks)
        for equal, case, marks in zip(
            strategies.EQUAL, (CASE, strategies.Case(teachers=13, overlap=13)), ((), pytest.mark.slow), strict=True
        )
    ],
)
def test_what_is_shown_as_keeping_the_guarantee_is_proven_to(equal: str, case: strategies.Case) -> None:
    labels, target = strategies.EQUAL[equal]
    rows = strategies.answers(case, equal)
    for row in rows:
        if row.mechanism is not None:
            proven = dt.total_privacy(
                teachers=[dt.PrivacyProfile.non_private() if row.own_randomness else strategies.profile()]
                * case.teachers,
                overlap=case.overlap,
                mechanism=row.mechanism,
                labels=labels,
                delta=target.delta,
            )
            found = strategies.record(case, equal, row)
            assert found["epsilon"] == proven.epsilon
            assert found["keeps"] is (proven.epsilon <= target.epsilon)
    assert any(not row.meets for row in rows)  # not every answer is a yes


def test_the_planner_has_every_strategy_that_is_shown(one_label: dict[str, dt.Strategy]) -> None:
    assert set(strategies.NAMES) <= {strategies.record(CASE, ONE, row)["strategy"] for row in one_label.values()}


def test_papers_gnmax_has_the_papers_noise() -> None:
    one = strategies.papers_gnmax(strategies.Case(teachers=11, overlap=1), ONE)
    assert one.mechanism.sigma == pytest.approx(gaussian.paper_sigma(strategies.POINT)[1], rel=1e-4)


def test_more_is_known_more_agrees(one_label: dict[str, dt.Strategy]) -> None:
    order = [strategies.PAPERS_GNMAX, "GNMax", "optimal majority", "subsampling", "self-bounding noise",
             "DaRRM, one point", "DaRRM, whole profile", "noise-free majority"]  # fmt: skip
    values = [one_label[name].agreement for name in order]
    assert values == sorted(values)


def test_every_case_is_there() -> None:
    assert {(case.teachers, case.shown) for case in strategies.cases()} == set(
        itertools.product((5, 11, 25, 51, 101), ("1", "2", "K"))
    )


def test_what_cannot_be_kept_is_marked() -> None:
    assert strategies._cell(None) == strategies._cell({"agreement": None, "keeps": False}) == "none"
    assert strategies._cell({"agreement": 0.5, "keeps": True}) == "0.500"
    assert strategies._cell({"agreement": 1.0, "keeps": False}) == "[1.000]"


def test_files_of_a_result(tmp_path: Path) -> None:
    table = Table(caption="Numbers.", columns=("name", "value", "so"), rows=(("a", 0.123456, True), ("b", None, False)))
    result = Result(name="simulation", title="A title", tables=(table,), notes=("A note.",), data={"x": [1]})
    result.write(tmp_path)
    text = (tmp_path / "simulation.md").read_text()
    assert "| a | 0.1235 | yes |\n| b |  | no |" in text
    assert "- A note." in text
    assert "simulation.png" not in text
    saved = json.loads((tmp_path / "simulation.json").read_text())
    assert saved["data"] == {"x": [1]}
    assert saved["tables"][0]["rows"] == [["a", 0.123456, True], ["b", None, False]]


@pytest.mark.slow
def test_command_writes_files_and_one_report(tmp_path: Path) -> None:
    assert command.main(["gaussian", "losses", "--out", str(tmp_path)]) == 0
    report = (tmp_path / "report.md").read_text()
    assert report.index("GNMax: lambda against") < report.index("Privacy loss of 20, 50 and 100 labels")
    assert (tmp_path / "gaussian.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "gaussian.svg").read_text().startswith("<?xml")
    assert not (tmp_path / "losses.png").exists()
    assert json.loads((tmp_path / "losses.json").read_text())["tables"][0]["rows"][0][3] == pytest.approx(
        1.704, abs=5e-4
    )


@pytest.mark.parametrize("wrong", [["figure-9"], ["losses", "--out", "/proc/nowhere"]])
def test_mistakes_are_one_line_and_status_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(wrong) == 2
    error = capsys.readouterr().err
    assert error.startswith("reproduce: error: ")
    assert error.count("\n") == 1


def test_the_listing_has_every_figure_and_table_of_the_paper(tmp_path: Path) -> None:
    names = [f"{kind} {number}" for kind in ("Figure", "Table") for number in range(1, 11)]
    assert list(listing.EXHIBITS) == names
    assert {maker for _, makers in listing.EXHIBITS.values() for maker in makers} <= set(command.NAMES)
    absent = listing.listing(tmp_path)
    assert [row[0] for row in absent.rows if row[2] != "`labels-mnist`"] == names
    assert {row[3] for row in absent.rows} == {"no"}
    exhibit = Exhibit(name="Figure 3", agrees="all of it", differs="nothing")
    Result(name="randomized-response", title="T", tables=(), exhibits=(exhibit,)).write(tmp_path)
    (found,) = [row for row in listing.listing(tmp_path).rows if row[3] == "yes"]
    assert found == (
        "Figure 3",
        listing.EXHIBITS["Figure 3"][0],
        "`randomized-response`",
        "yes",
        "all of it",
        "nothing",
    )


def test_corners_are_the_papers() -> None:
    for guarantee in (*regions.SEEN.values(), dt.PrivacyGuarantee(epsilon=0.1, delta=1e-5)):
        ours, printed = regions.corners(guarantee), regions.papers_corners(guarantee)
        assert len(ours) == len(printed) == (8 if guarantee.delta else 4)
        assert np.allclose(sorted(ours), sorted(printed), atol=1e-12)


def test_the_program_of_randomized_response_has_the_papers_optimum() -> None:
    result = regions.randomized_response()
    for _, _, worst, printed, _, by_program, by_formula in result.tables[0].rows:
        assert worst == printed
        assert by_program == pytest.approx(by_formula, abs=1e-12)
    random = np.random.default_rng(1)
    composed, target = dt.PrivacyGuarantee(epsilon=1.1, delta=0.01), dt.PrivacyGuarantee(epsilon=0.3, delta=1e-3)
    worst, _ = regions.best_constant(composed, target)
    points = np.array(regions.corners(composed))
    inside = random.dirichlet(np.ones(len(points)), size=1000) @ points
    assert max(regions.objective(tuple(point), target) for point in inside) <= regions.objective(worst, target)


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [regions.problem_setting, regions.feasible_regions, regions.randomized_response])
def test_drawings_are_written(drawn: Any, tmp_path: Path) -> None:
    result = drawn()
    result.write(tmp_path)
    assert (tmp_path / f"{result.name}.png").read_bytes().startswith(b"\x89PNG")


def test_every_name_has_an_experiment() -> None:
    options = argparse.Namespace(folder=Path())
    assert tuple(command.experiments(options)) == command.NAMES


def test_data_that_cannot_be_had_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_download", _no_network)
    result = labels.accuracy("mnist", tmp_path, seeds=[1])
    assert result.notes[0].startswith("Not made: ")
    assert result.tables == ()
    assert {(exhibit.name, exhibit.made) for exhibit in result.exhibits} == {
        (f"Table {number}", False) for number in (1, 6, 8, 10)
    }


def _no_network(name: str, folder: Path | None) -> Iterator[Any]:
    raise OSError("no network")


@pytest.mark.slow
@pytest.mark.skipif(not data.DEBIAN_FOLDER.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_teachers_are_trained_once(tmp_path: Path) -> None:
    arguments = ["labels-fashion-mnist", "--out", str(tmp_path), "--seeds", "1", "--limit", "330"]
    assert command.main(arguments) == 0
    files = sorted(tmp_path.glob("teachers/*/teachers/*.pt"))
    assert len(files) == 22 * (1 + len(labels.OTHER_RATES))
    stamps = [file.stat().st_mtime_ns for file in files]
    first = (tmp_path / "labels-fashion-mnist.json").read_text()
    assert command.main(arguments) == 0
    assert [file.stat().st_mtime_ns for file in files] == stamps
    assert (tmp_path / "labels-fashion-mnist.json").read_text() == first
    rows = json.loads(first)["tables"][0]["rows"]
    assert len(rows) == 4 * 3 * 3
    assert all(0 <= float(row[3].split()[0]) <= 1 for row in rows)
