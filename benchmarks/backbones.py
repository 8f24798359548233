"""Teachers on ResNet-18: many heads on one trunk, and whole teachers in files that label a data set one after another.

Memory is the peak of a process of its own. The run with files is killed half-way and goes on in another process; its
seconds are those of both, and ``charged`` must be the number of inputs.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from .measuring import Record, alone, peak_mib, seconds


def measure(*, heads: int, teachers: int, inputs: int, repeat: int) -> list[Record]:
    """Measure both."""
    return [heads_on_one_trunk(heads, repeat), teachers_in_files(teachers, inputs)]


def heads_on_one_trunk(heads: int, repeat: int) -> Record:
    """An ensemble of ``heads`` on one trunk, compared with one model."""
    (one_memory, one_seconds), (memory, spent) = (alone(_votes_of_heads, count, repeat) for count in (1, heads))
    return {
        "case": f"{heads} heads on one ResNet-18",
        "seconds": spent,
        "seconds_of_one": one_seconds,
        "peak_mib": memory,
        "peak_mib_of_one": one_memory,
        "memory": round(memory / one_memory, 3),
        "times_one_pass": round(spent / one_seconds, 3),
    }


def _votes_of_heads(count: int, repeat: int) -> tuple[float, float]:
    import torch
    from torch import nn
    from torchvision.models import resnet18

    import darrm_torch as dt

    torch.manual_seed(0)
    trunk = resnet18()
    trunk.fc = nn.Identity()
    models = [nn.Sequential(trunk, nn.Linear(512, 10)) for _ in range(count)]
    images = torch.rand(64, 3, 64, 64)
    before = peak_mib()
    ensemble = dt.PrivateMajorityEnsemble(models, dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger())
    ensemble.sensitive_votes(images[:1])
    spent = seconds(lambda: ensemble.sensitive_votes(images), repeat=repeat)
    return round(peak_mib() - before, 1), spent


def teachers_in_files(teachers: int, inputs: int) -> Record:
    """As many ResNet-18 in files, which label 3 x 32 x 32 inputs one after another; killed once."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_FOLDER")) as name:
        folder = Path(name)
        alone(_write_teachers, folder, teachers)
        one = alone(_label, folder, 1, inputs, "one")
        started = time.perf_counter()
        process = multiprocessing.get_context("spawn").Process(target=_label, args=(folder, teachers, inputs, "all"))
        process.start()
        votes = folder / "private-all" / "votes"
        while process.is_alive() and len([*votes.glob("[!.]*.npy")] if votes.exists() else []) < teachers // 2:
            time.sleep(0.05)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        kept = len([*votes.glob("[!.]*.npy")])
        whole = alone(_label, folder, teachers, inputs, "all")
        spent = time.perf_counter() - started
    return {
        "case": f"{teachers} ResNet-18 in files, {inputs} inputs",
        "seconds": round(spent, 1),
        "peak_mib": whole["peak_mib"],
        "peak_mib_of_one": one["peak_mib"],
        "more_mib": round(whole["peak_mib"] - one["peak_mib"], 1),
        "teachers_before_the_kill": kept,
        "charged": whole["charged"],
        "charged_per_input": whole["charged"] / inputs,
    }


def _write_teachers(folder: Path, teachers: int) -> None:
    import torch
    from torchvision.models import resnet18

    for number in range(teachers):
        torch.manual_seed(number)
        torch.save(resnet18(num_classes=10).state_dict(), folder / f"teacher-{number:03d}.pt")


def _label(folder: Path, teachers: int, inputs: int, run: str) -> dict[str, Any]:
    from functools import partial

    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from torchvision.models import resnet18

    import darrm_torch as dt

    torch.set_num_threads(os.cpu_count() or 1)
    files = sorted(folder.glob("teacher-*.pt"))[:teachers]
    images = torch.rand(inputs, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labeler = dt.PrivateLabeler(
        dt.NoiseFreeMajority(),
        teachers=[dt.StoredTeacher(file, partial(resnet18, num_classes=10)) for file in files],
        profiles=[dt.PrivacyProfile.from_dp_sgd([(8.0, 0.01, 300)])] * teachers,
        overlap=1,
        classes=10,
        ledger=dt.PrivacyLedger(folder / f"{run}.ledger"),
    )
    loader = DataLoader(TensorDataset(images), batch_size=125)
    labels = dt.label_loader(labeler, loader, private_folder=folder / f"private-{run}", progress=False)
    assert len(labels) == inputs
    return {"peak_mib": peak_mib(), "charged": labeler.ledger.count}
