"""Warnings before the first label."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn

import darrm_torch as dt

TEACHER = dt.PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])


def networks(count: int = 5) -> list[nn.Module]:
    return [nn.Linear(4, 2) for _ in range(count)]


def build(mechanism: dt.Mechanism, *, epsilon: float | None = None, overlap: int = 5) -> dt.PrivateMajorityEnsemble:
    budget = None if epsilon is None else dt.PrivacyGuarantee(epsilon=epsilon, delta=1e-4)
    return dt.PrivateMajorityEnsemble(
        networks(), mechanism, profiles=[TEACHER] * 5, overlap=overlap, ledger=dt.PrivacyLedger(budget=budget)
    )


def noise(allowance: float = 1.0) -> dt.DaRRM:
    return dt.DaRRM(dt.self_bounding_noise(teachers=5, allowance=allowance))


def test_a_budget_that_pays_for_no_label_is_reported_when_the_ensemble_is_built() -> None:
    with pytest.warns(dt.LabelWarning, match=r"cannot be paid for: a single one costs .*, over the budget of \(0.01"):
        build(noise(), epsilon=0.01)


def test_a_warning_names_the_line_of_the_user() -> None:
    with pytest.warns(dt.LabelWarning) as warned:
        build(noise(), epsilon=0.01)
    assert [one.filename for one in warned] == [__file__]
    ensemble = dt.PrivateMajorityEnsemble(networks(), noise(), profiles=[TEACHER] * 5, ledger=dt.PrivacyLedger())
    with pytest.warns(dt.LabelWarning, match="and these 100 cost") as warned:
        ensemble.check_budget([torch.randn(100, 4)])
    assert [one.filename for one in warned] == [__file__]


def test_noise_that_buys_nothing_is_reported_when_the_ensemble_is_built() -> None:
    with pytest.warns(
        dt.LabelWarning, match=r"noise that buys nothing: .*which the budget pays. Give mechanism=dt.Noise"
    ):
        build(noise(), epsilon=3.0)
    with pytest.warns(dt.LabelWarning, match=r"buys nothing: .*, and this one costs"):
        build(noise(allowance=5.0), overlap=1)


def test_noise_that_buys_nothing_for_so_many_labels_is_reported_before_they_are_bought() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", dt.LabelWarning)
        ensemble = build(noise())
        ensemble.check_budget([torch.randn(2, 4)])
    with pytest.warns(dt.LabelWarning, match=r"and these 100 cost"):
        ensemble.check_budget([torch.randn(100, 4)])
    ensemble(torch.randn(1, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", dt.LabelWarning)
        ensemble.check_budget([torch.randn(100, 4)])  # the choice is made


def test_what_any_number_of_labels_is_said_to_cost_is_what_many_cost() -> None:
    """Of two teachers on secret shards, one label without noise costs less than many."""
    teacher = dt.PrivacyProfile.from_dp_sgd([(2.0, 0.032, 32)])
    situation = {"profiles": [teacher] * 2, "allocation": dt.RandomAllocation(teachers=2), "delta": 1e-4}
    mechanism = dt.DaRRM(dt.self_bounding_noise(teachers=2, allowance=2.0))
    ensemble = dt.PrivateMajorityEnsemble(
        networks(2), dt.NoiseFreeMajority(classes=2), ledger=dt.PrivacyLedger(), **situation
    )
    one, many = (ensemble.total_privacy(labels=labels).guarantee for labels in (1, 100))
    assert one.epsilon < many.epsilon
    with warnings.catch_warnings():
        warnings.simplefilter("error", dt.LabelWarning)
        noisy = dt.PrivateMajorityEnsemble(networks(2), mechanism, ledger=dt.PrivacyLedger(), **situation)
    with pytest.warns(dt.LabelWarning, match=re.escape(f"any number of labels from these teachers costs {many}, and")):
        noisy.check_budget([torch.randn(100, 4)])


def test_labels_that_are_hardly_better_than_guessing_are_reported() -> None:
    with pytest.warns(dt.LabelWarning, match=r"where 4 of 5 teachers agree, a label says so with chance 0.50"):
        dt.PrivateMajorityEnsemble(networks(), dt.GNMax(sigma=1000.0), overlap=1, ledger=dt.PrivacyLedger())


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_one_output_that_is_a_probability_is_refused(scale: float) -> None:
    inputs = scale * torch.randn(5, 4)
    for last in (nn.Sigmoid(), nn.Hardsigmoid(), nn.LogSigmoid(), nn.Softplus(), nn.ReLU6()):
        models = [nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1), last) for _ in range(5)]
        ensemble = dt.PrivateMajorityEnsemble(models, noise(), ledger=dt.PrivacyLedger())
        with pytest.raises(dt.InvalidArgument, match="They seem to end in a sigmoid"):
            ensemble(inputs)
        assert ensemble.ledger.count == 0


class HeadFirst(nn.Module):
    """A network that registers its last layer before the others."""

    def __init__(self, *trunk: nn.Module) -> None:
        super().__init__()
        self.head = nn.Linear(3, 1, bias=False)
        self.trunk = nn.Sequential(*trunk)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.trunk(inputs))
        return output


@pytest.mark.parametrize("inputs", [torch.rand(5, 4), -torch.rand(5, 4), 100 * torch.randn(5, 4), torch.zeros(1, 4)])
def test_one_output_that_is_a_logit_is_not_refused(inputs: torch.Tensor) -> None:
    for network in (
        nn.Linear(4, 1),
        nn.Linear(4, 1, bias=False),
        nn.Sequential(nn.Linear(4, 1), nn.Tanh()),
        nn.Sequential(nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 1, bias=False)),
        nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 1)),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1), nn.LayerNorm(1)),
        nn.Sequential(
            nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(3, 1)
        ),
        HeadFirst(nn.Linear(4, 3, bias=False), nn.Tanh()),
        HeadFirst(nn.Linear(4, 3), nn.ReLU()),
    ):
        ensemble = dt.PrivateMajorityEnsemble([network], dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger())
        assert ensemble(inputs).shape == (len(inputs),)
