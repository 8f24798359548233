"""Inputs and outputs of any structure, and how networks take them."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from darrm_torch import InvalidArgument
from darrm_torch.teachers.structures import (
    as_arguments,
    batches_of,
    call,
    evaluating,
    logits_of,
    mapped,
    rows_of,
    size_of,
)

ROWS, IDS = torch.arange(12.0).reshape(6, 2), torch.arange(6)
Pair = namedtuple("Pair", ["rows", "ids"])
NESTED = {"b": [ROWS, (IDS, {"a": ROWS})], "a": Pair(ROWS, IDS)}


class Keywords(nn.Module):
    def forward(self, rows: Any, ids: Any = 0) -> Any:
        return rows.sum(dim=1) + ids


class One(nn.Module):
    def forward(self, batch: Any) -> Any:
        parts = batch.values() if isinstance(batch, dict) else batch
        return sum(part.flatten(1).sum(dim=1) if part.dim() > 1 else part for part in parts)


@pytest.mark.parametrize(
    ("network", "inputs"),
    [
        (Keywords(), {"ids": IDS, "rows": ROWS}),
        (Keywords(), UserDict({"ids": IDS, "rows": ROWS})),
        (Keywords(), (ROWS, IDS)),
        (Keywords(), [ROWS, IDS]),
        (Keywords(), Pair(ROWS, IDS)),
        (One(), {"ids": IDS, "rows": ROWS}),
        (One(), (ROWS, IDS)),
        (One(), {"batch": {"ids": IDS, "rows": ROWS}}),
    ],
    ids=str,
)
def test_a_network_is_called_as_its_forward_says(network: nn.Module, inputs: Any) -> None:
    assert torch.equal(call(network, inputs), ROWS.sum(dim=1) + IDS)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_takes_several_inputs() -> None:
    script = torch.jit.trace(Keywords(), (ROWS, IDS))
    for inputs in ((ROWS, IDS), {"ids": IDS, "rows": ROWS}):
        assert torch.equal(call(script, inputs), ROWS.sum(dim=1) + IDS)


def test_what_no_forward_takes_is_one_argument() -> None:
    assert as_arguments(Keywords(), {"unknown": ROWS}) == (({"unknown": ROWS},), {})
    assert as_arguments(Keywords(), ROWS) == ((ROWS,), {})


def test_rows_and_batches_keep_the_structure() -> None:
    assert size_of(NESTED) == 6
    some = rows_of(NESTED, [4, 1])
    assert torch.equal(some["b"][1][1]["a"], ROWS[[4, 1]])
    assert isinstance(some["a"], Pair)
    assert torch.equal(some["a"].ids, IDS[[4, 1]])
    assert rows_of(NESTED, 3)["a"].ids == 3
    parts = list(batches_of(NESTED, 4))
    assert [size_of(part) for part in parts] == [4, 2]
    assert torch.equal(torch.cat([part["b"][1][0] for part in parts]), IDS)
    assert mapped(NESTED, len) == {"b": [6, (6, {"a": 6})], "a": Pair(6, 6)}


def test_logits_are_found_where_libraries_put_them() -> None:
    class Out:
        logits = ROWS

    for outputs in (ROWS, Out(), {"logits": ROWS}, OrderedDict(loss=0, logits=ROWS), (ROWS, IDS), [Out()], (Out(), 1)):
        assert logits_of(outputs) is ROWS
    assert logits_of({"scores": ROWS}, lambda outputs: outputs["scores"]) is ROWS
    assert logits_of({"scores": ROWS}) == {"scores": ROWS}  # the caller refuses it


def test_structures_without_end_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidArgument, match="must be a tensor"):
        size_of(endless)


def test_every_module_gets_its_mode_back() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
    with evaluating(network):
        assert not any(module.training for module in network.modules())
        assert not network(torch.zeros(1, 2)).requires_grad
    assert [module.training for module in network.modules()] == [True, True, False]
    with pytest.raises(InvalidArgument, match="stopped"), evaluating(network):
        raise InvalidArgument("stopped", "a test", "another")
    assert [module.training for module in network.modules()] == [True, True, False]
    assert torch.is_grad_enabled()
