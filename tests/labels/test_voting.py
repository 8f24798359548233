"""What a question is, and how much memory asking takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
