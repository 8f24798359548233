"""Votes that rounding could change: how they are found, and how often inputs are asked about alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import darrm_torch as dt
from darrm_torch.labels.close_votes import Leads, Rounding

UNIT = torch.finfo(torch.float32).eps


def test_leads_are_shares_of_logits_of_their_size() -> None:
    lead, size = Leads.of(torch.tensor([[1.0, -8.0, 0.5], [0.001, 0.0, 0.0]]))
    assert lead.tolist() == pytest.approx([0.5, 0.001])
    assert size.tolist() == pytest.approx([8.0, 4.0005])  # that of the batch, if a row has smaller logits
    assert Leads.of(torch.full((2, 3), torch.nan)).lead.isnan().all()


def test_the_margin_follows_what_rounding_did() -> None:
    rounding = Rounding([torch.float32])
    assert rounding.margin == math.sqrt(UNIT)
    rounding.learn(torch.tensor([0.0, torch.nan] * 10 + [2e-6] * 15))  # no change says nothing
    assert (rounding.is_new, rounding.margin) == (False, math.sqrt(UNIT))
    rounding.learn(torch.tensor([1e-6]))
    assert rounding.margin == pytest.approx(32e-6)
    rounding.learn(torch.tensor([1e-3]))
    assert rounding.margin == math.sqrt(UNIT)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_margin_is_never_below_many_units_of_the_precision(kind: torch.dtype) -> None:
    rounding, unit = Rounding([torch.float64, kind]), torch.finfo(kind).eps
    rounding.learn(torch.full((16,), 1e-300, dtype=torch.float64))
    assert rounding.margin == min(64 * unit, math.sqrt(unit))


class Rounded(nn.Module):
    """Its logits have an error of up to 4 units that depends on the batch and on the place in it."""

    calls: list[int] = []  # noqa: RUF012

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), sign))

    def forward(self, inputs: Tensor) -> Tensor:
        Rounded.calls.append(len(inputs))
        error = 4 * UNIT * self.weight * torch.sin(1.0 + torch.arange(len(inputs)) + 3 * len(inputs))
        return torch.stack([inputs[:, 0] + error, inputs[:, 1]], dim=1)


def test_fewer_inputs_are_asked_about_alone_once_errors_are_known() -> None:
    """And the votes stay those of each input alone, in every batch."""
    torch.manual_seed(0)
    rows = torch.rand(300, 1).repeat(1, 2) + 0.5
    rows[:, 0] += 1e-3 * torch.randn(300)
    rows[::10, 0] = rows[::10, 1] + 2 * UNIT
    assert ((rows[:, 0] - rows[:, 1]).abs() < math.sqrt(UNIT) * rows.amax(dim=1)).sum() > 80
    teachers = [Rounded(sign) for sign in (-1.0, -0.5, 0.5, 1.0)]
    mine = dt.PrivateMajorityEnsemble(teachers, dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger())
    with torch.no_grad():
        alone = torch.stack([torch.cat([one(row[None]).argmax(dim=1) for row in rows]) for one in teachers])
    assert len({tuple(votes) for votes in alone.tolist()}) > 1
    Rounded.calls.clear()
    votes = [mine.sensitive_votes(part) for part in rows.split(100)]
    assert torch.equal(torch.cat(votes, dim=1), alone)
    assert 30 <= Rounded.calls.count(1) / 4 <= 60
    for size in (1, 7, 64):
        assert torch.equal(torch.cat([mine.sensitive_votes(part) for part in rows.split(size)], dim=1), alone)
