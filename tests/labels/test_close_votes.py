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
    for change in [0.0, math.nan] * 10 + [2e-6] * 7:  # no change says nothing
        rounding.learn(change)
    assert rounding.margin == math.sqrt(UNIT)
    rounding.learn(1e-6)
    assert rounding.margin == pytest.approx(32e-6)
    rounding.learn(1e-3)
    assert rounding.margin == math.sqrt(UNIT)


def test_the_second_large_batch_shows_rounding_errors() -> None:
    rounding = Rounding([torch.float32])
    assert [rounding.sample(rows) for rows in (10, 63, 64, 10, 100, 100, 10)] == [0, 0, 0, 0, 16, 0, 0]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_margin_is_never_below_many_units_of_the_precision(kind: torch.dtype) -> None:
    rounding, unit = Rounding([torch.float64, kind]), torch.finfo(kind).eps
    for _ in range(8):
        rounding.learn(1e-300)
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


def test_what_a_teacher_is_asked_depends_on_no_other_teacher() -> None:
    """Otherwise a record of one teacher could change the vote of another."""

    class Counted(nn.Module):
        asked: dict[float, list[int]] = {}  # noqa: RUF012

        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(scale))

        def forward(self, inputs: Tensor) -> Tensor:
            Counted.asked.setdefault(float(self.scale), []).append(len(inputs))
            return torch.cat([inputs, torch.zeros_like(inputs)], dim=1) * self.scale + inputs[:1] * UNIT

    def asked_beside(scale: float) -> list[int]:
        Counted.asked.clear()
        mine = dt.PrivateMajorityEnsemble(
            [Counted(1.0), Counted(scale)], dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger()
        )
        mine.sensitive_votes(torch.linspace(-1.0, 1.0, 100)[:, None])
        mine.sensitive_votes(torch.linspace(0.01, 1.0, 100)[:, None])
        return Counted.asked[1.0]

    beside_close_votes = asked_beside(0.0)
    assert Counted.asked[0.0].count(1) >= 100
    assert beside_close_votes == asked_beside(2.0)
    assert beside_close_votes.count(1) == 16  # of the second batch
