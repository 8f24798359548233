"""What a question is, and how much memory asking takes."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections import UserDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import darrm_torch as dt
from darrm_torch.labels.identity import input_digests

MEMORY = """
import sys, torch, darrm_torch as dt
from torch import nn

class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3 * 64 * 64, 2)

    def forward(self, x):
        return self.layer(x.flatten(1))

def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

models = [Linear() for _ in range(3)]

def labelled(images):
    ensemble = dt.PrivateMajorityEnsemble(models, dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger())
    before = memory("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts again
    ensemble(images)
    assert ensemble.ledger.count == len(images)
    return (memory("VmHWM") - before) / (4 * images.numel())  # bytes as float32

images = torch.rand(1000, 3, 64, 64)
labelled(images[:30])  # libraries are loaded
print(labelled(images), labelled(images.double()), labelled(images.half()))
print(labelled(images.to(memory_format=torch.channels_last)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be measured here")
def test_labelling_images_takes_at_most_about_twice_their_memory() -> None:
    """1,000 images of 3 x 64 x 64; one copy of a batch goes to each teacher in turn, and nothing else is large."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=False, cwd=Path("/"))
    assert done.returncode == 0, done.stderr
    peaks = [float(number) for number in done.stdout.split()]
    assert len(peaks) == 4
    assert max(peaks) <= 2.2, peaks


def test_numbers_near_zero_are_one_question_whatever_the_process_rounds() -> None:
    rows = torch.tensor([[1e-40, 1.0], [0.0, 1.0], [-0.0, 1.0], [-1e-40, 1.0]])
    before = input_digests(rows)
    assert before[1] == before[2]
    assert len(set(before)) == 3
    torch.set_flush_denormal(True)
    try:
        assert input_digests(rows) == before
    finally:
        torch.set_flush_denormal(False)


def test_the_form_of_a_tensor_is_no_part_of_a_question() -> None:
    rows = torch.rand(3, 4)
    forms = (
        rows.double(), rows.clone().requires_grad_(), rows.t().contiguous().t(), torch.nn.Parameter(rows),
        torch.cat([rows, rows])[:3], rows.repeat(1, 2)[:, :4],
    )  # fmt: skip
    for form in forms:
        assert input_digests(form) == input_digests(rows)
    whole = torch.tensor([[1, 0]])
    for form in (whole.bool(), whole.to(torch.uint8), whole.to(torch.int16)):
        assert input_digests(form) == input_digests(whole)
    assert input_digests(whole.float()) != input_digests(whole)


class Rounds(nn.Module):
    """Sums that are rounded differently in batches of different sizes, as those of real kernels are."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), sign))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        error = 1e-6 * self.weight * (1 if len(inputs) == 1 else (-1) ** len(inputs))
        return torch.stack([inputs[:, 0] + error, inputs[:, 1]], dim=1)


def test_votes_do_not_depend_on_the_batch() -> None:
    """Two logits that rounding could exchange are those of the input alone, in every batch and every order."""
    torch.manual_seed(0)
    rows = torch.rand(30, 1).repeat(1, 2)
    rows[::3, 0] += 0.5  # not close
    ensemble = dt.PrivateMajorityEnsemble([Rounds(1.0), Rounds(-1.0)], dt.NoiseFreeMajority(teachers=2))
    alone = torch.cat([ensemble.sensitive_votes(row[None]) for row in rows], dim=1)
    assert 0 < alone.sum() < alone.numel()
    for size in (2, 3, 7, 30):
        assert torch.equal(torch.cat([ensemble.sensitive_votes(part) for part in rows.split(size)], dim=1), alone)
    order = torch.randperm(30)
    assert torch.equal(ensemble.sensitive_votes(rows[order]), alone[:, order])


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("outputs", [1, pytest.param(2, marks=pytest.mark.slow), 5])
def test_votes_are_those_of_the_model_alone_in_every_precision_and_batch(kind: torch.dtype, outputs: int) -> None:
    torch.manual_seed(outputs)
    models = [nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, outputs)).to(kind) for _ in range(33)]
    ensemble, inputs = dt.PrivateMajorityEnsemble(models, dt.NoiseFreeMajority()), torch.randn(40, 20)
    with torch.no_grad():
        logits = torch.stack([torch.cat([model(row[None].to(kind)) for row in inputs]) for model in models])
    alone = (logits[..., 0] > 0).long() if outputs == 1 else logits.argmax(dim=-1)
    for size in (1, 8, 40):  # 33 teachers and 8 inputs take one pass
        votes = torch.cat([ensemble.sensitive_votes(part) for part in inputs.split(size)], dim=1)
        assert torch.equal(votes, alone)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ensemble.sensitive_votes(inputs), alone)


class Tokens(nn.Module):
    """What a classifier of transformers looks like from outside."""

    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.embedding, self.head, self.returned = nn.Embedding(50, 8), nn.Linear(8, 3), returned

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return self.returned(self.head((self.embedding(input_ids) * mask[..., None]).sum(dim=1)))


def scores(outputs: Any) -> Any:
    return outputs["scores"]


RETURNED: list[Any] = [
    lambda logits: logits,
    lambda logits: SimpleNamespace(loss=None, logits=logits),
    lambda logits: {"logits": logits, "hidden": logits * 0},
    lambda logits: (logits, logits * 0),
    lambda logits: {"scores": logits},
]


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("returned", RETURNED)
def test_inputs_and_outputs_of_any_structure(returned: Any, count: int) -> None:
    torch.manual_seed(0)
    models = [Tokens(returned) for _ in range(count)]
    ids = torch.randint(1, 50, (6, 5))
    text = {"input_ids": ids, "attention_mask": (ids > 9).long()}
    ensemble = dt.PrivateMajorityEnsemble(
        models, dt.NoiseFreeMajority(), logits=scores if returned is RETURNED[-1] else None, ledger=dt.PrivacyLedger()
    )
    for inputs in (text, UserDict(text), (ids, text["attention_mask"]), [ids], {"input_ids": ids}):
        arguments = [*inputs.values()] if isinstance(inputs, dict | UserDict) else inputs
        plain = [copy.deepcopy(model) for model in models]
        for model in plain:
            model.returned = RETURNED[0]
        alone = torch.stack([model(*arguments).argmax(dim=1) for model in plain])
        assert torch.equal(ensemble.sensitive_votes(inputs), alone)
        assert ensemble(inputs).shape == (6,)


def test_a_text_is_one_question_in_every_batch() -> None:
    """Batches of other sizes, with other padding, in another order: nothing is charged twice, and no label changes."""
    torch.manual_seed(0)
    ensemble = dt.PrivateMajorityEnsemble(
        [Tokens(RETURNED[0]) for _ in range(5)], dt.SelfBoundingPlurality(teachers=5, classes=3, allowance=1)
    )
    ids, lengths = torch.randint(1, 50, (12, 8)), torch.randint(2, 8, (12,))
    mask = (torch.arange(8) < lengths[:, None]).long()

    def labels(size: int) -> list[int]:
        given = []
        for start in range(0, 12, size):
            part = slice(start, start + size)
            longest = int(lengths[part].max())
            given += ensemble({"input_ids": ids[part, :longest], "attention_mask": mask[part, :longest]}).tolist()
        return given

    first = labels(12)
    assert all(labels(size) == first for size in (1, 5, 7))
    assert ensemble.ledger.count == 12


def test_integers_between_those_that_passed_are_not_checked_again() -> None:
    ensemble = dt.PrivateMajorityEnsemble([Tokens(RETURNED[0])], dt.NoiseFreeMajority())
    ensemble.sensitive_votes({"input_ids": torch.tensor([[0, 49]])})
    for low, high in ((1, 48), (0, 49)):
        ensemble.sensitive_votes({"input_ids": torch.tensor([[low, high]])})
    for token in (-1, 50):
        with pytest.raises(dt.InvalidArgument, match="inputs must be what teacher 0 takes"):
            ensemble.sensitive_votes({"input_ids": torch.tensor([[3, token]])})


def test_keys_of_the_caller_name_the_inputs() -> None:
    ensemble = dt.PrivateMajorityEnsemble([nn.Linear(2, 2)], dt.NoiseFreeMajority())
    rows, keys = torch.rand(3, 2), [b"a", b"b", b"c"]
    first = ensemble(rows, keys=keys)
    assert torch.equal(ensemble(torch.rand(3, 2), keys=keys), first)
    assert ensemble.ledger.count == 3
    ensemble.check_budget(keys=keys)
    with pytest.raises(dt.InvalidArgument, match="keys must be one for each of the 3 inputs"):
        ensemble(rows, keys=keys[:2])
