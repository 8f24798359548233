"""Teachers on a backbone: heads on one ResNet-18, adapters on one transformer, whole ResNet-18 in files.

Memory is the peak of a process of its own; that of adapters is the size of their weights with the base's. Heads are
trained ones, whose close votes are rare, or random ones. Teachers in files label a data set one after another: the run
is killed half-way and goes on in another process; its seconds are those of both, and ``charged`` must be the number of
inputs.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .measuring import Record, alone, peak_mib, seconds


def measure(
    *, shapes: Sequence[tuple[int, ...]], heads: int, adapters: int, teachers: int, inputs: int, repeat: int
) -> list[Record]:
    """Measure all of them; ``shapes`` are those of the images that heads label, ten at least."""
    return [
        *(heads_on_one_trunk(heads, shape, repeat, random) for random in (False, True) for shape in shapes),
        *([alone(_adapters_on_one_base, adapters, repeat)] if importlib.util.find_spec("peft") else []),
        teachers_in_files(teachers, inputs),
    ]


def heads_on_one_trunk(heads: int, shape: tuple[int, ...], repeat: int, random: bool) -> Record:
    """An ensemble of ``heads`` on one trunk, compared with one model: memory in two processes, times in one."""
    one, memory = (alone(_memory_of_heads, count, shape, random) for count in (1, heads))
    times, ratio = alone(_times_of_heads, (1, heads), shape, repeat, random)
    return {
        "case": f"{heads} {'random ' * random}heads on one ResNet-18, {' x '.join(map(str, shape))}",
        "seconds": times[1],
        "seconds_of_one": times[0],
        "peak_mib": memory,
        "peak_mib_of_one": one,
        "memory": round(memory / one, 3),
        "times_one_pass": round(ratio, 3),
    }


def _memory_of_heads(count: int, shape: tuple[int, ...], random: bool) -> float:
    import torch

    images = torch.rand(shape)
    before = peak_mib()
    _ensemble(count, images, random).sensitive_votes(images)
    return round(peak_mib() - before, 1)


def _times_of_heads(
    counts: tuple[int, int], shape: tuple[int, ...], repeat: int, random: bool
) -> tuple[list[float], float]:
    import torch

    torch.manual_seed(0)
    images = 0.2 * torch.rand(shape) + torch.rand(10, *shape[1:])[torch.arange(shape[0]) % 10]
    ensembles = [_ensemble(count, images, random) for count in counts]
    for ensemble in ensembles:
        ensemble.sensitive_votes(images)
    pairs = [[seconds(partial(one.sensitive_votes, images), repeat=1) for one in ensembles] for _ in range(3 * repeat)]
    times = [statistics.median(each) for each in zip(*pairs, strict=True)]
    return times, statistics.median(many / one for one, many in pairs)


def _ensemble(count: int, images: Any, random: bool) -> Any:
    """Heads that tell ten patterns apart, as trained ones do, or random ones: a close vote adds a pass."""
    import torch
    from torch import nn
    from torchvision.models import resnet18

    import darrm_torch as dt

    trunk = resnet18()
    trunk.fc = nn.Identity()
    with torch.no_grad():
        features = trunk.eval()(images[:10])
        patterns = 2 * (features - features.mean(dim=0))
    models = [nn.Sequential(trunk, nn.Linear(512, 10)) for _ in range(count)]
    for model in [] if random else models:
        with torch.no_grad():
            model[1].weight.mul_(0.01 * patterns.std()).add_(patterns)
            model[1].bias.copy_(-(patterns / 2).square().sum(dim=1) - patterns @ features.mean(dim=0))
    return dt.PrivateMajorityEnsemble(models, dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger())


def _adapters_on_one_base(count: int, repeat: int) -> Record:
    """LoRA adapters on a small BERT, compared with as many passes of the model with one adapter after another."""
    import peft
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    import darrm_torch as dt

    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    base = BertForSequenceClassification(BertConfig(vocab_size=1000, num_labels=4, **sizes))
    lora = peft.LoraConfig(r=8, task_type="SEQ_CLS", target_modules=["query", "value"])
    of_base = sum(weight.nbytes for weight in base.parameters())
    model = peft.get_peft_model(base, lora, adapter_name="one 0")
    for number in range(1, count):
        model.add_adapter(f"one {number}", lora)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(0.05 * torch.randn_like(weight) if "lora_B" in name else 0)
    of_adapters = sum(weight.nbytes for weight in model.parameters()) - of_base
    texts = {"input_ids": torch.randint(1, 1000, (32, 64))}
    ensemble = dt.PrivateMajorityEnsemble(dt.adapter_teachers(model), dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger())

    @torch.no_grad()
    def one_by_one() -> list[Any]:
        votes = []
        for name in model.peft_config:
            model.set_adapter(name)
            votes.append(model(**texts).logits.argmax(dim=-1))
        return votes

    model.eval()
    assert torch.equal(torch.stack(one_by_one()), ensemble.sensitive_votes(texts))
    ways = (one_by_one, partial(ensemble.sensitive_votes, texts))
    pairs = [[seconds(way, repeat=1) for way in ways] for _ in range(3 * repeat)]
    passes, votes = (statistics.median(each) for each in zip(*pairs, strict=True))
    storages = [weight.untyped_storage() for weight in ensemble.parameters()]
    kept = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    return {
        "case": f"{count} LoRA adapters on one base",
        "seconds": votes,
        "seconds_of_passes": passes,
        "times_passes": round(statistics.median(mine / theirs for theirs, mine in pairs), 3),
        "mib": round(kept / 2**20, 1),
        "memory": round(kept / (of_base + of_adapters), 3),
    }


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
