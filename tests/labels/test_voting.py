"""What a question is, and how much memory asking takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from darrm_torch.labels.voting import input_digests

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
