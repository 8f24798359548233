"""The audit of a whole pipeline: honest ones pass, faulty ones do not, and the coins stay secret until the end."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import darrm_torch as dt
from darrm_torch import InvalidArgument, PrivacyGuarantee, audit_pipeline
from tests.auditing.faulty_pipelines import Setting, models, records, trained

CLAIM = PrivacyGuarantee(epsilon=1.0, delta=1e-6)
X, Y = records(1)
SETTING = Setting()


def published(**fault: Any) -> Any:
    """A pipeline that publishes its teachers, with fresh noise in each call."""
    generator = np.random.default_rng(5)
    return lambda inputs, labels: models(trained(SETTING, generator, inputs, labels, **fault))


def sums(inputs: Any, labels: Any) -> Any:
    total = ((2 * labels[:, None] - 1) * inputs).sum(axis=0)
    return lambda queries: queries @ total


def test_an_honest_ensemble_passes_and_one_without_noise_does_not() -> None:
    claim = PrivacyGuarantee(epsilon=2.255, delta=1e-6)  # publishing the teachers; the report below computes it
    honest = audit_pipeline(published(), X, Y, claim=claim, runs=3, seed=2)
    assert not honest.flagged
    assert honest.lower_bound(0.999) <= honest.lower_bound() < claim.epsilon
    faulty = audit_pipeline(published(noise=0.0), X, Y, claim=claim, runs=3, seed=2)
    assert faulty.refuted
    assert faulty.lower_bound() > 3
    assert faulty.reach() >= faulty.lower_bound()


def one_line(result: object) -> str:
    return " ".join(str(result).split())


def test_the_report() -> None:
    total = SETTING.total()
    result = audit_pipeline(sums, X, Y, claim=total, seed=2)
    assert result.routes == total.routes
    text, printed = one_line(result), str(result)
    for words in ("REFUTED", "publishing the teachers: 2.255", "99.9 %", "Power", "own fair coin", "fresh", "190 cana"):
        assert words in text
    assert max(map(len, printed.splitlines())) < 80
    assert len(repr(result)) < 150
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["refuted"] is True
    assert plain["lower_bound"]["0.95"] > plain["lower_bound"]["0.999"] > 0
    assert plain["routes"]["publishing"] == pytest.approx(2.2547, abs=1e-3)
    assert "proves nothing" in text
    weak = audit_pipeline(sums, X, Y, claim=PrivacyGuarantee(epsilon=9.0), canaries=10, seed=2)
    assert math.isinf(weak.detectable())
    assert weak.to_dict()["detectable"] is None
    assert "No outcome could have refuted" in one_line(weak)


def test_guesses_are_blind_where_nothing_is_released() -> None:
    """Audits of a constant: none of the bounds is above 0.5 with 99.9 % confidence."""
    constant = [
        audit_pipeline(lambda a, b: lambda q: np.zeros(len(q)), X, Y, claim=CLAIM, canaries=100, seed=seed)
        for seed in range(12)
    ]
    assert max(one.lower_bound(0.999) for one in constant) < 0.5
    planted = np.concatenate([one.planted for one in constant])
    assert abs(planted.mean() - 0.5) < 0.06  # four standard errors of 1200 coins


def test_what_the_pipeline_gets() -> None:
    seen: list[Any] = []

    def pipeline(inputs: Any, labels: Any, queries: Any) -> Any:
        seen.append((inputs, labels, queries))
        return torch.zeros(len(queries), dtype=torch.int64)

    x, y = torch.tensor(X[:50], dtype=torch.float32), torch.tensor(Y[:50], dtype=torch.int32)
    result = audit_pipeline(pipeline, x, y, claim=CLAIM, canaries=20, runs=3, copies=2, query_control=True, seed=4)
    for run, (inputs, labels, queries) in enumerate(seen):
        assert inputs.dtype == queries.dtype == torch.float32
        assert labels.dtype == torch.int32
        planted = result.planted[20 * run : 20 * (run + 1)]
        copies = [int((inputs == query).all(dim=1).sum()) for query in queries]
        assert copies == (2 + planted).tolist()
        assert len(inputs) == len(labels) == 50 + 40 + planted.sum()
    assert result.coins == 60
    assert not (seen[0][0][:10] == seen[1][0][:10]).all()  # the order is drawn anew


def test_where_a_record_is_replaced_the_number_of_records_stays() -> None:
    sizes = []

    def pipeline(inputs: Any, labels: Any) -> Any:
        sizes.append(len(inputs))
        return lambda queries: np.zeros(len(queries))

    total = dt.total_privacy(
        teachers=[PrivacyGuarantee(epsilon=1.0)] * 3,
        mechanism=dt.NoiseFreeMajority(),
        labels=1,
        delta=1e-5,
        overlap=1,
        neighbours="add/remove",
    )
    replaced = dt.total_privacy(
        teachers=[SETTING.profile()] * 3,
        mechanism=dt.NoiseFreeMajority(),
        labels=1,
        delta=1e-5,
        overlap=1,
        neighbours="replace-one",
    )
    audit_pipeline(pipeline, X, Y, claim=replaced, canaries=30, runs=3, seed=1)
    assert sizes == [430] * 3
    result = audit_pipeline(pipeline, X, Y, claim=total, canaries=30, runs=3, seed=1)
    assert len(set(sizes[3:])) > 1
    assert "adding or removing one record" in one_line(result)


def test_what_the_library_refuses_is_a_finding() -> None:
    def refused(inputs: Any, labels: Any) -> Any:
        raise dt.UnprovenPrivacy("the loader does not draw Poisson batches", finding="sampling")

    result = audit_pipeline(refused, X, Y, claim=CLAIM, runs=3)
    assert result.flagged
    assert not result.refuted
    assert result.attacks == ()
    assert result.lower_bound() == result.reach() == 0.0
    assert str(result).startswith("REFUSED")
    assert "Refused by the library: UnprovenPrivacy: the loader does not draw Poisson batches" in one_line(result)

    def copies(inputs: Any, labels: Any) -> Any:
        torch.manual_seed(1)
        return [nn.Linear(200, 2)] * 2

    x = torch.tensor(X, dtype=torch.float32)
    (finding,) = audit_pipeline(copies, x, torch.tensor(Y), claim=CLAIM, runs=2).findings
    assert "same object" in finding


def test_an_own_score() -> None:
    result = audit_pipeline(
        lambda a, b: sums(a, b), X, Y, claim=CLAIM, canaries=(X[:40], Y[:40]), score=lambda release: np.zeros(40)
    )
    assert result.lower_bound(0.999) < 1.0
    with pytest.raises(InvalidArgument, match="score must be a function that returns 40 numbers"):
        audit_pipeline(sums, X, Y, claim=CLAIM, canaries=40, score=lambda release: np.zeros(39))
    nan = audit_pipeline(sums, X, Y, claim=CLAIM, canaries=40, score=lambda release: np.full(40, np.nan), seed=1)
    assert not nan.refuted


@pytest.mark.parametrize("strength", ["gradient", "far-out", "mislabelled"])
def test_every_strength_refutes_a_model_that_remembers(strength: Any) -> None:
    """Each record raises the score of its label around itself, as a network does that is trained for too long."""

    def remembers(inputs: Any, labels: Any) -> Any:
        return lambda queries: np.exp(-((queries[:, None] - inputs) ** 2).sum(axis=2)) @ np.eye(2)[labels]

    x, y = X[:60, :20], Y[:60]
    assert audit_pipeline(remembers, x, y, claim=CLAIM, strength=strength, canaries=50, runs=4, seed=3).refuted


def test_labels_of_the_pipelines_own_queries() -> None:
    """Without control of the queries: labels of 1,000 public inputs by a model without noise."""
    generator = np.random.default_rng(5)

    def own_queries(inputs: Any, labels: Any) -> Any:
        queries = generator.standard_normal((1000, inputs.shape[1]))
        return queries, (sums(inputs, labels)(queries) > 0).astype(np.int64)

    assert audit_pipeline(own_queries, 0 * X, Y, claim=CLAIM, canaries=100, runs=2, seed=1).refuted


@pytest.mark.slow
def test_a_small_network_without_noise_is_refuted() -> None:
    """A hidden layer; the initial weights are public, and each call starts from them."""

    def network() -> nn.Module:
        with torch.random.fork_rng(()):
            torch.manual_seed(3)
            return nn.Sequential(nn.Linear(40, 16), nn.ReLU(), nn.Linear(16, 2))

    def pipeline(inputs: torch.Tensor, labels: torch.Tensor) -> nn.Module:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            (nn.functional.cross_entropy(model(inputs), labels, reduction="sum") / 200).backward()
            optimizer.step()
        return model

    x, y = torch.zeros(200, 40), torch.arange(200) % 2
    assert audit_pipeline(pipeline, x, y, claim=CLAIM, runs=10, seed=1).refuted


def test_a_pipeline_may_change_its_arguments() -> None:
    def careless(inputs: Any, labels: Any, queries: Any) -> Any:
        answers = sums(inputs, labels)(queries)
        inputs *= 0
        labels *= 0
        queries *= 0
        return answers

    assert audit_pipeline(careless, X, Y, claim=CLAIM, query_control=True, runs=3, seed=1).refuted
    assert np.abs(X).max() > 0


@pytest.mark.parametrize("labels", [[0.5] * 400, ["ill"] * 400, [True] * 400, [-7] * 400])
def test_errors_show_no_private_label(labels: list[Any]) -> None:
    with pytest.raises(InvalidArgument, match="labels must be") as refused:
        audit_pipeline(sums, X, labels, claim=CLAIM)
    assert str(labels[0]) not in str(refused.value)


def test_errors_of_the_users_function_are_the_users() -> None:
    with pytest.raises(ZeroDivisionError):
        audit_pipeline(lambda a, b: 1 / 0, X, Y, claim=CLAIM)


@pytest.mark.parametrize(
    ("pipeline", "query_control", "cure"),
    [
        (lambda inputs, labels, queries: queries[:, 0], False, r"pass query_control=True"),
        (lambda inputs, labels: inputs[:, 0], True, r"Leave out query_control"),
    ],
)
def test_a_pipeline_with_other_parameters_is_refused_before_it_runs(
    pipeline: Any, query_control: bool, cure: str
) -> None:
    claim = PrivacyGuarantee(epsilon=1.0, delta=1e-5)
    with pytest.raises(InvalidArgument, match=rf"pipeline must be a function of inputs.*{cure}"):
        audit_pipeline(pipeline, np.zeros((20, 40)), np.arange(20) % 2, claim=claim, query_control=query_control)


def test_an_audit_that_sees_nothing_says_so() -> None:
    claim, records = PrivacyGuarantee(epsilon=1.0, delta=1e-5), (np.zeros((20, 40)), np.arange(20) % 2)
    blind = audit_pipeline(lambda inputs, labels: lambda queries: queries[:, 0], *records, claim=claim, seed=1)
    assert blind.lower_bound() == 0
    assert "hardly better than coins" in one_line(blind)
    seen = audit_pipeline(
        lambda inputs, labels: lambda queries: queries @ ((2 * labels[:, None] - 1) * inputs).sum(axis=0),
        *records,
        claim=claim,
        seed=1,
    )
    assert seen.refuted
    assert "hardly better than coins" not in one_line(seen)
