"""What every mechanism must do. The planner's kinds join by themselves; any other mechanism needs one entry below."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import operator
import os
import pickle
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from darrm_torch import (
    ConfidentGNMax,
    DaRRM,
    ExponentialMechanism,
    GNMax,
    InteractiveGNMax,
    InvalidArgument,
    LNMax,
    Mechanism,
    NoiseFreeMajority,
    NoiseFunction,
    PermuteAndFlip,
    PrivacyGuarantee,
    RandomizedPlurality,
    SelfBoundingPlurality,
    VotePrivatePlurality,
    self_bounding_noise,
    strongest_mechanism,
)
from darrm_torch.planning.families import FAMILIES
from tests.processes import processor_seconds

K = 11
# The probability that a correct mechanism fails a test; seeds are fixed, so it fails always or never.
FALSE_ALARM = 1e-6

MECHANISMS = {
    "darrm": lambda **seed: DaRRM(self_bounding_noise(teachers=K, allowance=2.5), **seed),
    "darrm-even": lambda **seed: DaRRM(self_bounding_noise(teachers=10, allowance=2), **seed),
    "gnmax": lambda **seed: GNMax(sigma=5.0, delta=1e-4, **seed),
    "gnmax-wide": lambda **seed: GNMax(sigma=40.0, delta=1e-4, teachers=K, **seed),
    "gnmax-narrow": lambda **seed: GNMax(sigma=0.3, delta=1e-4, **seed),
    "confident": lambda **seed: ConfidentGNMax(threshold=6.5, sigma_check=3.0, sigma=2.0, delta=1e-4, **seed),
    "interactive": lambda **seed: InteractiveGNMax(threshold=2.5, sigma_check=3.0, sigma=2.0, delta=1e-4, **seed),
    "laplace": lambda **seed: LNMax(scale=4.0, **seed),
    "permute-and-flip": lambda **seed: PermuteAndFlip(epsilon=0.8, **seed),
    "exponential": lambda **seed: ExponentialMechanism(epsilon=0.8, overlap=2, **seed),
    "randomized-response": lambda **seed: RandomizedPlurality(epsilon=1.5, **seed),
    "gnmax-label": lambda **seed: GNMax(sigma=5.0, delta=1e-4, teachers=K, classes=4, **seed),
    "noise-free": lambda **seed: NoiseFreeMajority(**seed),
    "self-bounding": lambda **seed: SelfBoundingPlurality(teachers=K, classes=4, allowance=2.5, **seed),
    "self-bounding-sampled": lambda **seed: SelfBoundingPlurality(
        teachers=51, classes=10, allowance=3, sample=11, **seed
    ),
    "vote-private": lambda **seed: VotePrivatePlurality(teachers=K, classes=3, epsilon=0.8, **seed),
    "vote-private-sampled": lambda **seed: VotePrivatePlurality(
        teachers=51, classes=10, epsilon=0.8, sample=11, **seed
    ),
}


def of_the_planner(kind: str) -> Callable[..., Mechanism]:
    """Makes the mechanism that the planner builds for one label of a kind; with a seed, if one is given."""

    @functools.cache
    def strongest() -> Mechanism:
        family = FAMILIES[kind]
        teacher = None if family.rests_on == "randomness" else PrivacyGuarantee(epsilon=0.1, delta=1e-5)
        target = PrivacyGuarantee(epsilon=0.3, delta=1e-4) if family.strengths else None
        classes = 2 if family.name(3) is None else 3
        return strongest_mechanism(kind, teachers=K, classes=classes, teacher=teacher, overlap=1, label_target=target)

    return lambda **seed: dataclasses.replace(strongest(), **seed)


# Its counts are shares of votes and its labels rows of probabilities: tests/mechanisms/test_noise_free.py.
SOFT = {"mean-probabilities"}
MECHANISMS |= {kind: of_the_planner(kind) for kind in FAMILIES if kind not in {*MECHANISMS, *SOFT}}

mechanisms = pytest.mark.parametrize("make", MECHANISMS.values(), ids=MECHANISMS.keys())


def some_counts(mechanism, items: int = 6) -> np.ndarray:
    """Rows of counts with unanimity, a tie where there can be one, and random rows."""
    teachers, classes = mechanism.teachers or K, mechanism.classes or 4
    generator = np.random.default_rng(3)
    counts = generator.multinomial(teachers, np.full(classes, 1 / classes), size=items)
    counts[0] = [teachers] + [0] * (classes - 1)
    half = teachers // 2
    counts[1] = [teachers - half, half] + [0] * (classes - 2)
    return counts


def chi_square(labels: np.ndarray, law: np.ndarray) -> float:
    """p-value of labels (items, draws) against the law (items, outcomes); rare outcomes are pooled."""
    statistic, freedom = 0.0, 0
    for row, chances in zip(labels, law, strict=True):
        outcome = np.where(row < 0, len(chances) - 1, row)
        seen = np.bincount(outcome, minlength=len(chances))
        assert not seen[chances == 0].any(), "an outcome of probability 0 was drawn"
        expected = chances * row.size
        common = expected >= 10
        seen = np.append(seen[common], seen[~common].sum())
        expected = np.append(expected[common], expected[~common].sum())
        kept = expected >= 1
        statistic += float(((seen[kept] - expected[kept]) ** 2 / expected[kept]).sum())
        freedom += int(kept.sum()) - 1
    return float(stats.chi2.sf(statistic, freedom)) if freedom else 1.0


def exact_p_value(labels: np.ndarray, law: np.ndarray) -> float:
    """At most alpha with a chance of at most alpha, however rare outcomes are: the binomial tails of every outcome."""
    least, tails = 1.0, 0
    for row, chances in zip(labels, law, strict=True):
        seen = np.bincount(np.where(row < 0, len(chances) - 1, row), minlength=len(chances))
        below, above = (
            tail(seen - moved, row.size, chances) for tail, moved in ((stats.binom.cdf, 0), (stats.binom.sf, 1))
        )
        least, tails = min(least, *below, *above), tails + 2 * len(chances)
    return least * tails


def drawn(mechanism, counts: np.ndarray, draws: int = 20_000) -> np.ndarray:
    return mechanism.aggregate(np.repeat(counts, draws, axis=0)).reshape(len(counts), draws)


@mechanisms
def test_law_is_a_law(make) -> None:
    mechanism = make()
    counts = some_counts(mechanism, 15)
    law = mechanism.label_probabilities(counts)
    assert law.dtype == np.float64
    assert law.shape[0] == 15
    assert law.shape[1] - counts.shape[1] == (1 if isinstance(mechanism, ConfidentGNMax) else 0)
    assert law.min() >= 0
    np.testing.assert_allclose(law.sum(axis=1), 1.0, rtol=0, atol=1e-12)


@mechanisms
def test_law_follows_a_renaming_of_the_classes(make) -> None:
    mechanism = make()
    counts = some_counts(mechanism)
    order = np.random.default_rng(0).permutation(counts.shape[1])
    law = mechanism.label_probabilities(counts)[:, : counts.shape[1]]
    renamed = mechanism.label_probabilities(counts[:, order])[:, : counts.shape[1]]
    np.testing.assert_allclose(renamed, law[:, order], rtol=0, atol=1e-12)


@mechanisms
def test_labels_follow_the_law(make) -> None:
    mechanism = make(insecure_seed=7)
    counts = some_counts(mechanism)
    assert chi_square(drawn(mechanism, counts), mechanism.label_probabilities(counts)) > FALSE_ALARM


@mechanisms
def test_secure_labels_follow_the_law(make) -> None:
    # With fresh bits each time this test fails by chance at most once in 1e9 runs.
    mechanism = make()
    counts = some_counts(mechanism, 3)
    assert exact_p_value(drawn(mechanism, counts), mechanism.label_probabilities(counts)) > 1e-9


@mechanisms
def test_batching_does_not_change_the_law(make) -> None:
    mechanism = make(insecure_seed=11)
    counts = some_counts(mechanism)
    rows = np.tile(counts, (3_000, 1))
    pieces = np.split(rows, np.cumsum([1, 7, 500, 1, 6_000]))
    labels = np.concatenate([mechanism.aggregate(piece) for piece in pieces]).reshape(-1, len(counts)).T
    assert chi_square(labels, mechanism.label_probabilities(counts)) > FALSE_ALARM


@mechanisms
def test_rows_of_a_batch_are_independent(make) -> None:
    mechanism = make(insecure_seed=5)
    counts = some_counts(mechanism)
    law = mechanism.label_probabilities(counts)
    item = int(np.argmin(np.abs(law.max(axis=1) - 0.5)))  # the most uncertain
    labels = drawn(mechanism, counts[[item]], 40_000)[0]
    first, second = labels[0::2], labels[1::2]
    common = [label for label, seen in zip(*np.unique(labels, return_counts=True), strict=True) if seen >= 400]
    table = np.array([[np.sum((first == a) & (second == b)) for b in common] for a in common])
    if table.size > 1:
        assert stats.chi2_contingency(table).pvalue > FALSE_ALARM


def test_a_wrong_gamma_is_caught() -> None:
    noise = self_bounding_noise(teachers=K, allowance=2.5)
    right = DaRRM(noise, insecure_seed=7)
    wrong = DaRRM(NoiseFunction(gamma=0.95 * noise.gamma), uncertified=True)
    counts = some_counts(right)
    assert chi_square(drawn(right, counts), wrong.label_probabilities(counts)) < FALSE_ALARM
    assert exact_p_value(drawn(DaRRM(noise), counts), wrong.label_probabilities(counts)) < 1e-9


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_wrong_sigma_is_caught(factor: float) -> None:
    right = GNMax(sigma=5.0, insecure_seed=7)
    counts = some_counts(right)
    wrong = GNMax(sigma=5.0 * factor).label_probabilities(counts)
    assert chi_square(drawn(right, counts), wrong) < FALSE_ALARM
    assert exact_p_value(drawn(GNMax(sigma=5.0), counts), wrong) < 1e-9


@mechanisms
def test_numpy_in_numpy_out(make) -> None:
    mechanism = make()
    for dtype in (np.int64, np.int32, np.uint8):
        labels = mechanism.aggregate(some_counts(mechanism).astype(dtype))
        assert type(labels) is np.ndarray
        assert labels.dtype == np.int64
        assert labels.shape == (6,)


@mechanisms
@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
)
def test_torch_in_torch_out(make, device: str) -> None:
    mechanism = make()
    counts = torch.as_tensor(some_counts(mechanism)).to(device)
    labels = mechanism.aggregate(counts)
    assert labels.dtype == torch.int64
    assert labels.shape == (6,)
    assert labels.device == counts.device
    law = mechanism.label_probabilities(counts)
    assert law.dtype == torch.float64
    assert law.device == counts.device


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=[] if name == "darrm" else [pytest.mark.slow])
        for name, make in MECHANISMS.items()
    ],
)
@pytest.mark.slow
def test_the_compiler_leaves_it_alone(make) -> None:
    """The code around a mechanism is compiled; the compiler sees nothing of the mechanism itself."""
    seen = []

    def backend(graph, inputs):
        seen.extend(node.target for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    def around(votes):
        labels = -seeded.aggregate(votes)
        return labels, -seeded.label_probabilities(votes), secure.aggregate(votes)

    counts = torch.from_numpy(some_counts(make()))
    secure, seeded, again = make(), make(insecure_seed=5), make(insecure_seed=5)
    torch._dynamo.reset()
    labels, law, drawn = torch.compile(around, backend=backend)(counts)
    assert torch.equal(-labels, again.aggregate(counts))
    assert torch.equal(-law, again.label_probabilities(counts))
    assert drawn.shape == labels.shape
    assert seen == [operator.neg] * 2


@mechanisms
def test_an_empty_batch_has_no_labels(make) -> None:
    mechanism = make()
    classes = mechanism.classes or 3
    empty = np.zeros((0, classes), dtype=np.int64)
    assert mechanism.aggregate(empty).shape == (0,)
    assert mechanism.aggregate(empty).dtype == np.int64
    assert mechanism.label_probabilities(empty).shape[0] == 0
    assert mechanism.aggregate(torch.zeros((0, classes), dtype=torch.int64)).dtype == torch.int64


@mechanisms
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c: c.astype(np.float64), "integers"),
        (lambda c: torch.as_tensor(c).float(), "integers"),
        (lambda c: torch.as_tensor(c).bfloat16(), "integers"),
        (lambda c: c > 0, "integers"),
        (lambda c: c[0], "shape"),
        (lambda c: c[:, :, None], "shape"),
        (lambda c: c[:, :1], "shape"),
        (lambda c: np.concatenate([c[:, :1] + 1, c[:, 1:2] - 1 - K, c[:, 2:]], axis=1), "in \\[0"),
        (lambda c: c + np.arange(len(c))[:, None], "sum to"),
        (lambda c: "counts", "integers"),
        (lambda c: None, "integers"),
        (lambda c: torch.as_tensor(c).to_sparse(), "a dense tensor"),
        (lambda c: torch.as_tensor(c).to("meta"), "a dense tensor"),
        (lambda c: np.ma.masked_array(c, mask=c == c.max()), "without masked entries"),
    ],
    ids=[
        "float",
        "float tensor",
        "half tensor",
        "bool",
        "one row",
        "cube",
        "one class",
        "negative",
        "sums",
        "text",
        "none",
        "sparse",
        "meta",
        "masked",
    ],
)
def test_bad_counts_are_one_clear_error(make, spoil, message: str) -> None:
    mechanism = make()
    bad = spoil(some_counts(mechanism))
    for method in (mechanism.aggregate, mechanism.label_probabilities):
        with pytest.raises(InvalidArgument, match=f"^counts must be .*{message}.*, got "):
            method(bad)


@mechanisms
def test_no_votes_at_all_is_an_error(make) -> None:
    mechanism = make()
    with pytest.raises(InvalidArgument, match=r"sum to (the [1-9]|one teacher or more)"):
        mechanism.aggregate(np.zeros((2, mechanism.classes or 3), dtype=np.int64))


@mechanisms
def test_ragged_counts_are_one_clear_error(make) -> None:
    with pytest.raises(InvalidArgument, match=r"^counts must be rows of equal length, got "):
        make().aggregate([[1, 2], [3]])


def test_other_numbers_of_teachers_and_classes_are_refused() -> None:
    darrm = MECHANISMS["darrm"]()
    with pytest.raises(InvalidArgument, match=r"sum to the 11 teachers, got .row 0 with sum 10"):
        darrm.aggregate(np.array([[4, 6]]))
    with pytest.raises(InvalidArgument, match=r"shape \(items, 2\).*GNMax"):
        darrm.aggregate(np.array([[4, 6, 1]]))
    with pytest.raises(InvalidArgument, match="sum to the 11 teachers"):
        MECHANISMS["gnmax-wide"]().aggregate(np.array([[4, 6]]))
    with pytest.raises(InvalidArgument, match="row 1 with sum 12"):
        GNMax(sigma=1.0).aggregate(np.array([[4, 6], [6, 6]]))


@mechanisms
def test_describes_itself(make) -> None:
    secure, seeded = make(), make(insecure_seed=1)
    described = json.loads(json.dumps(secure.describe(), allow_nan=False))
    assert described["kind"] == type(secure).__name__
    assert secure.secure
    assert described["secure"] is True
    assert described["randomness"] == "operating system"
    assert not seeded.secure
    assert seeded.describe()["secure"] is False
    assert "INSECURE" in seeded.describe()["randomness"]
    assert "insecure_seed=<hidden>" in repr(seeded)
    assert seeded.insecure_seed == 1
    assert "<hidden>" in f"{seeded} {seeded.insecure_seed}"


@pytest.mark.parametrize(
    "counts",
    [
        np.ma.masked_equal([[4321, 6]], 6),
        [[4321, 6], [1]],
        [[4321, -6]],
        [["4321", "6"]],
        [[4321.5, 6]],
        [4321, 6],
        [[4321, 2**40]],
    ],
    ids=["masked", "ragged", "negative", "strings", "fractions", "one row", "huge"],
)
def test_no_message_shows_counts(counts) -> None:
    noise = self_bounding_noise(teachers=11, allowance=1.0)
    for ask in (GNMax(sigma=1.0).aggregate, GNMax(sigma=1.0).label_probabilities, noise.label_probability):
        with pytest.raises(InvalidArgument) as refused:
            ask(counts)
        assert "4321" not in f"{refused.value} {refused.value.got}"
    with pytest.raises(InvalidArgument) as refused:
        noise.label_probability([7.5])
    assert "7.5" not in str(refused.value)


@mechanisms
def test_a_seed_repeats_and_no_seed_does_not(make) -> None:
    counts = np.repeat(some_counts(make()), 50, axis=0)
    first, second = (make(insecure_seed=2).aggregate(counts) for _ in range(2))
    assert np.array_equal(first, second)
    if make().label_probabilities(counts).max(axis=1).min() < 0.9:
        assert not np.array_equal(make().aggregate(counts), make().aggregate(counts))


@mechanisms
def test_global_generators_are_left_alone(make) -> None:
    counts = some_counts(make())
    np.random.seed(0)  # noqa: NPY002 (the global generator is what this is about)
    torch.manual_seed(0)
    before, before_torch = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    for mechanism in (make(), make(insecure_seed=4)):
        mechanism.aggregate(counts)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(before_torch, torch.get_rng_state())


@mechanisms
def test_copies_keep_working(make) -> None:
    mechanism = make(insecure_seed=3)
    counts = some_counts(mechanism)
    for clone in (copy.deepcopy(mechanism), pickle.loads(pickle.dumps(mechanism))):
        assert clone == mechanism
        assert np.array_equal(clone.label_probabilities(counts), mechanism.label_probabilities(counts))


@mechanisms
def test_is_frozen(make) -> None:
    with pytest.raises(AttributeError):
        make().insecure_seed = 3


@mechanisms
@pytest.mark.parametrize(
    "wrong",
    [
        {"labels": 0},
        {"labels": 1.5},
        {"labels": math.nan},
        {"delta": math.nan},
        {"delta": 1.0},
        {"delta": -0.1},
        {"overlap": 0},
        {"labels": 10**400},
        {"overlap": 10**400},
    ],
    ids=lambda wrong: str(wrong)[:20],
)
def test_guarantee_checks_its_arguments(make, wrong) -> None:
    with pytest.raises(InvalidArgument):
        make().guarantee(**wrong)


@mechanisms
def test_very_many_labels_have_an_answer_at_once(make) -> None:
    """Optimal composition would take minutes; closed forms replace it."""
    mechanism = make()
    for delta in (1e-4, None):
        few, many = (mechanism.guarantee(labels=labels, delta=delta) for labels in (10**4, 10**12))
        assert few is None or few.epsilon <= many.epsilon


@mechanisms
@pytest.mark.parametrize("teachers", [[1, 2], np.array([1, 2]), "x", 0, 10**400], ids=lambda bad: str(bad)[:9])
def test_allowance_checks_its_teachers(make, teachers) -> None:
    mechanism = make()
    if mechanism.self_bounding_allowance(teachers=mechanism.teachers or K) < math.inf:
        with pytest.raises(InvalidArgument, match="teachers"):
            mechanism.self_bounding_allowance(teachers=teachers)


@mechanisms
def test_guarantee_grows_with_labels_and_overlap(make) -> None:
    mechanism = make()
    one = mechanism.guarantee(delta=1e-4, overlap=1)
    if one is None:
        assert mechanism.self_bounding_allowance(teachers=mechanism.teachers or K) < math.inf
        return
    assert isinstance(one, PrivacyGuarantee)
    assert one.epsilon < mechanism.guarantee(labels=10, delta=1e-4, overlap=1).epsilon
    more = mechanism.guarantee(delta=1e-4, overlap=3).epsilon
    assert one.epsilon == more if isinstance(mechanism, RandomizedPlurality) else one.epsilon < more


@mechanisms
@pytest.mark.parametrize("seed", [-1, 1.5, "x", True])
def test_seed_is_checked(make, seed) -> None:
    with pytest.raises(InvalidArgument, match="insecure_seed"):
        make(insecure_seed=seed)


def test_one_block_of_system_bits_for_a_batch(monkeypatch) -> None:
    asked = []
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: asked.append(size) or real(size))
    MECHANISMS["darrm"]().aggregate(np.array([[5, 6]] * 1000))
    assert asked == [8000]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "limit"), [("darrm", 1.0), ("gnmax", 20.0), ("gnmax-wide", 20.0), ("noise-free", 20.0)]
)
def test_a_million_labels(name: str, limit: float) -> None:
    mechanism = MECHANISMS[name]()
    counts = np.random.default_rng(0).multinomial(K, [0.3, 0.7], size=1_000_000)
    assert mechanism.aggregate(counts).shape == (1_000_000,)
    assert processor_seconds(lambda: mechanism.aggregate(counts), below=limit) < limit


@pytest.mark.slow
def test_numpy_users_do_not_import_torch() -> None:
    program = (
        "import sys, numpy as np, darrm_torch as dt\n"
        "noise = dt.self_bounding_noise(teachers=3, allowance=1)\n"
        "dt.DaRRM(noise).aggregate(np.array([[1, 2]]))\n"
        "dt.GNMax(sigma=2.0, delta=1e-5).aggregate(np.array([[1, 2]]))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
