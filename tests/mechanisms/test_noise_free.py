"""What teachers say, without noise: juries are uniform, means are exact, allowances are those of the definition."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from darrm_torch import InvalidArgument, MeanProbabilities, NoiseFreeMajority
from darrm_torch.mechanisms.noise_free import split_votes
from darrm_torch.noise.histograms import standings
from darrm_torch.noise.tables import noise_free_table
from tests.mechanisms.enumeration import all_counts


@pytest.mark.parametrize(("teachers", "jury"), [(5, 2), (4, 4), (6, 1), (5, 3)])
def test_every_jury_is_equally_likely(teachers: int, jury: int) -> None:
    """A correct draw fails with probability 1e-6; the seed is fixed."""
    drawn = NoiseFreeMajority(jury=jury, insecure_seed=5).draw_juries(teachers=teachers, items=20_000)
    assert drawn.shape == (20_000, jury)
    sets, counts = np.unique(np.sort(drawn, axis=1), axis=0, return_counts=True)
    assert len(sets) == math.comb(teachers, jury)
    assert all(len(set(row)) == jury for row in sets.tolist())
    assert len(sets) == 1 or stats.chisquare(counts).pvalue > 1e-6
    fresh = NoiseFreeMajority(jury=jury).draw_juries(teachers=teachers, items=3)
    assert np.all((fresh >= 0) & (fresh < teachers))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"jury": 0}, "jury"),
        ({"jury": 12, "teachers": 11}, "jury"),
        ({"jury": 2.5}, "jury"),
        ({"redrawn": True}, "redrawn"),
        ({"jury": 3, "redrawn": 1}, "redrawn"),
    ],
)
@pytest.mark.parametrize("kind", [NoiseFreeMajority, MeanProbabilities])
def test_wrong_juries(kind: type, wrong: dict, name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        kind(**wrong)


def test_counts_are_those_of_the_jury() -> None:
    jury = NoiseFreeMajority(teachers=11, jury=3)
    assert jury.aggregate([[1, 2]]).tolist() == [1]
    for counts in ([[5, 6]], [[0, 0]]):
        with pytest.raises(InvalidArgument, match="rows that sum to the 3 teachers"):
            jury.aggregate(counts)
    with pytest.raises(InvalidArgument, match="at least the jury of 3"):
        NoiseFreeMajority(jury=3).self_bounding_allowance(teachers=2)
    with pytest.raises(InvalidArgument, match="at most the 2 teachers"):
        NoiseFreeMajority(jury=3).draw_juries(teachers=2, items=1)


@pytest.mark.parametrize(("teachers", "jury"), [(4, 3), (5, 3), (5, 2), (6, 5)])
def test_the_allowance_of_a_new_jury_for_each_label_holds_for_the_definition(teachers: int, jury: int) -> None:
    """The sum over the r teachers of how far each alone can lower the chance of a label, over that chance."""
    juries = list(itertools.combinations(range(teachers), jury))

    def chance(votes: tuple[int, ...]) -> float:
        ones = [2 * sum(votes[k] for k in chosen) for chosen in juries]
        return float(np.mean([1.0 if one > jury else 0.5 if one == jury else 0.0 for one in ones]))

    table = {votes: chance(votes) for votes in itertools.product((0, 1), repeat=teachers)}
    for overlap in range(1, teachers + 1):
        true = 0.0
        for votes, here in table.items():
            if here:
                flipped = [(*votes[:k], 1 - votes[k], *votes[k + 1 :]) for k in range(teachers)]
                falls = [max(0.0, here - table[other]) for other in flipped]
                true = max(true, sum(sorted(falls)[-overlap:]) / here)
        allowance = NoiseFreeMajority(classes=2, jury=jury, redrawn=True).self_bounding_allowance(
            teachers=teachers, overlap=overlap
        )
        assert true <= allowance + 1e-12


def test_the_mean_is_exact_and_does_not_depend_on_the_order() -> None:
    rng = np.random.default_rng(1)
    probabilities = rng.dirichlet(np.ones(7), size=(101, 20))
    mean = MeanProbabilities()
    shares = split_votes(probabilities)
    assert np.all(shares.sum(axis=-1) == 2**24)
    assert np.all(shares >= 0)
    assert np.abs(shares / 2**24 - probabilities).max() <= 7 * 2.0**-24
    rows = mean.aggregate(shares.sum(axis=0))
    assert rows.dtype == np.float32
    assert np.abs(rows - probabilities.mean(axis=0)).max() < 1e-6
    exact = [[np.float32(float(Fraction(int(n), 101 * 2**24))) for n in row] for row in shares.sum(axis=0)]
    assert np.array_equal(rows, np.array(exact))
    assert np.array_equal(rows, mean.aggregate(shares[::-1].sum(axis=0)))


def test_any_output_of_a_teacher_is_split_without_an_error() -> None:
    """Errors would depend on private weights. What is not finite counts as the uniform row."""
    uniform = [2**22] * 4
    strange = [
        [math.nan, 1, 0, 0], [math.inf, 0, 0, 0], [-math.inf, 0, 0, 1], [0, 0, 0, 0], [-1, -2, -3, -4],
    ]  # fmt: skip
    assert split_votes(strange).tolist() == [uniform] * 5
    assert split_votes([1e-320, 0.0]).tolist() == [2**24, 0]
    assert split_votes([[2.0, 2.0, -1.0]]).tolist() == [[2**23, 2**23, 0]]
    thirds = split_votes([1 / 3, 1 / 3, 1 / 3]).tolist()
    assert thirds == [5592406, 5592405, 5592405]
    with pytest.raises(InvalidArgument, match="two classes or more"):
        split_votes([[0.5]])


def test_mean_probabilities_promise_nothing_of_their_own() -> None:
    mean = MeanProbabilities(teachers=3)
    assert mean.guarantee(labels=5) is None
    assert mean.certificate is None
    assert math.isinf(mean.self_bounding_allowance(overlap=1))
    assert (mean.describe()["releases"], NoiseFreeMajority().describe()["releases"]) == ("soft labels", "labels")
    with pytest.raises(InvalidArgument, match="rows that sum to the 3 teachers times 16777216 shares"):
        mean.aggregate([[1, 2]])
    many = MeanProbabilities(teachers=1000)
    assert many.aggregate(split_votes([[0.25, 0.75]]) * 1000).tolist() == [[0.25, 0.75]]


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_allowance_of_the_plain_plurality(classes: int) -> None:
    """The definition, term by term: sum over r teachers of (f - min f) <= m f, for all votes."""
    for teachers in (1, 2, 3, 4, 5, 6):
        counts = all_counts(teachers, classes)
        law = {
            tuple(c): p for c, p in zip(counts.tolist(), NoiseFreeMajority().label_probabilities(counts), strict=True)
        }
        for overlap in range(1, teachers + 1):
            claimed = NoiseFreeMajority(classes=classes).self_bounding_allowance(teachers=teachers, overlap=overlap)
            assert claimed <= NoiseFreeMajority().self_bounding_allowance(teachers=teachers, overlap=overlap)
            needed = max(_needed(law, votes, c, overlap) for votes in law for c in range(classes) if law[votes][c] > 0)
            assert math.isclose(needed, claimed)


@pytest.mark.parametrize(("classes", "most"), [(3, 22), (4, 14), (5, 12), (7, 10)])
def test_allowance_of_the_plain_plurality_is_that_of_its_table(classes: int, most: int) -> None:
    """In exact arithmetic, over all standings: also where K votes cannot make three classes tie."""
    for teachers in range(1, most + 1):
        table, free = noise_free_table(standings(teachers, classes)), NoiseFreeMajority(classes=classes)
        for overlap in range(1, teachers + 1):
            claimed = free.self_bounding_allowance(teachers=teachers, overlap=overlap)
            assert claimed == table.smallest_allowance(overlap)


def _needed(law, votes: tuple[int, ...], label: int, overlap: int) -> float:
    falls = []
    for k, number in enumerate(votes):
        least = law[votes][label]
        for w in range(len(votes)):
            if number and w != k:
                moved = list(votes)
                moved[k] -= 1
                moved[w] += 1
                least = min(least, law[tuple(moved)][label])
        falls += [law[votes][label] - least] * number
    return sum(sorted(falls, reverse=True)[:overlap]) / law[votes][label]
