"""Training the teachers: shards decided record by record, K Opacus runs in parallel processes, a folder to resume from.

A teacher's privacy is only worth what its training did, so three things are fixed by construction here:

* which shards a record enters depends on that record alone (:func:`assign_shards`), so adding or removing it changes
  the data of exactly ``overlap`` teachers;
* sample rate, number of steps and the divisor of the noisy gradient are computed from public numbers, never from the
  size of the shard at hand, so that a neighbouring data set is trained in exactly the same way;
* every teacher draws its noise from its own generator, seeded by the operating system.
"""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.connection
import os
import secrets
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm

from ..errors import InvalidArgument, check_integer, check_number
from ..files import write_whole
from .checkpoints import Checkpoint, weights_digest
from .workers import prepare_workers

__all__ = ["TrainingSettings", "train_teachers"]


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How each teacher is trained: plain SGD, with DP-SGD's clipping and noise when ``noise_multiplier`` is given.

    Attributes:
        noise_multiplier: standard deviation of the noise over ``max_grad_norm``; ``None`` trains without privacy.
        max_grad_norm: L2 bound of one record's gradient.
        batch_size: expected (Poisson-sampled) batch size, also the divisor of the summed noisy gradient.
        epochs: passes over a shard of the nominal size.
        learning_rate: of SGD without momentum.
    """

    noise_multiplier: float | None = 12.0
    max_grad_norm: float = 1.0
    batch_size: int = 32
    epochs: int = 5
    learning_rate: float = 0.05

    def __post_init__(self) -> None:
        if self.noise_multiplier is not None:
            check_number("noise_multiplier", self.noise_multiplier, low=0, low_open=True, high_open=True)
        check_number("max_grad_norm", self.max_grad_norm, low=0, low_open=True, high_open=True)
        check_integer("batch_size", self.batch_size, low=1)
        check_integer("epochs", self.epochs, low=1)
        check_number("learning_rate", self.learning_rate, low=0, low_open=True, high_open=True)

    def steps_per_epoch(self, shard_size: int) -> int:
        """Steps of one epoch over a shard of ``shard_size`` records: the sample rate is its reciprocal."""
        return math.ceil(shard_size / self.batch_size)


def train_teachers(
    folder: Path,
    *,
    build_model: Callable[[], nn.Module],
    inputs: Tensor,
    labels: Tensor,
    shards: Sequence[NDArray[np.int64]],
    shard_size: int,
    settings: TrainingSettings,
    name: str = "teacher",
    workers: int | None = None,
    device: str = "cpu",
    insecure_seed: int | None = None,
    progress: bool = True,
) -> list[Path]:
    """Train one teacher a shard, in parallel processes of one thread each, and keep each in ``folder`` once it is done.

    A teacher already in the folder is not trained again. One that was interrupted is trained anew, with fresh noise;
    nothing of the interrupted attempt was kept, so it costs nothing. The folder goes on with the same data and shards
    only: with others, a record could be in the data of more teachers than ``overlap``.

    Args:
        folder: receives ``{name}-000.pt``, ... (see :func:`load_teacher`), each written whole or not at all, and
            ``{name}-data.sha256``, a digest of the private data and shards, as private as they are.
        build_model: makes an untrained model; a module-level function or class, since it travels to other processes.
        inputs: ``(N, ...)`` float tensor, the private records.
        labels: ``(N,)`` integer tensor, class numbers from 0.
        shards: positions of each teacher's records.
        shard_size: the nominal number of records of a shard, a public number: it fixes the sample rate
            ``1 / ceil(shard_size / batch_size)`` and the steps of every teacher, whatever their shards' true sizes.
        settings: see :class:`TrainingSettings`.
        name: first part of the file names.
        workers: processes at a time; default: the number of usable cores (1 on CUDA).
        device: where teachers train, ``"cpu"`` or ``"cuda"`` (the CPU where there is no CUDA).
        insecure_seed: makes the run repeatable. Whoever knows the seed knows the noise: for tests and studies only.
        progress: show a bar.

    Returns:
        The K files, in the order of the shards.

    Raises:
        InvalidArgument: an empty shard, tensors of different lengths, or a file in the folder that is damaged or was
            trained with other settings, on other data or with other shards.
    """
    if len(inputs) != len(labels):
        raise InvalidArgument("labels", f"as long as inputs ({len(inputs)})", len(labels))
    for number, shard in enumerate(shards):
        if len(shard) == 0:
            raise InvalidArgument(
                f"shard {number}", "at least one record", 0, "Use fewer teachers, more records or a larger overlap."
            )
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise InvalidArgument("device", "cpu or cuda", device) from None
    if kind == "cuda" and not torch.cuda.is_available():
        device = "cpu"
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}-{number:03d}.pt" for number in range(len(shards))]
    missing = [number for number, file in enumerate(files) if not file.exists()]
    for file in files:
        if file.exists():
            kept = _read_teacher(file)
            if (kept["settings"], kept["shard_size"]) != (asdict(settings), shard_size):
                raise InvalidArgument(
                    str(file),
                    f"trained with {settings} on shards of {shard_size}",
                    "other settings",
                    "Use another folder.",
                )
    digest, data_file = _data_digest(inputs, labels, shards), folder / f"{name}-data.sha256"
    if len(missing) == len(files):
        data_file.write_text(digest)
    elif not data_file.exists() or data_file.read_text() != digest:
        raise InvalidArgument(
            str(folder),
            "teachers of these data and shards",
            "teachers of others",
            "A record could be in the data of more teachers than is promised. Keep the key of assign_shards, or use "
            "another folder.",
        )
    if not missing:
        return files
    steps = settings.epochs * settings.steps_per_epoch(shard_size)
    seeds = _seeds(len(shards), insecure_seed)
    if workers is None:
        workers = 1 if device.startswith("cuda") else len(os.sched_getaffinity(0))
    context = prepare_workers()
    counter, stop = context.Value("q", 0), context.Value("b", 0, lock=False)
    bar = tqdm(total=steps * len(missing), desc=f"{name}s", unit="step", disable=not progress, dynamic_ncols=True)
    with (
        bar,
        ProcessPoolExecutor(
            min(workers, len(missing)), mp_context=context, initializer=_start_worker, initargs=(counter, stop)
        ) as pool,
    ):
        # What is left when every worker has had the same number shares the cores, once they are free.
        even = len(missing) - len(missing) % workers
        try:
            for wave in (missing[:even], missing[even:]):
                pending: set[Future[None]] = set()
                for number in wave:
                    rows = torch.from_numpy(shards[number])
                    data = (inputs[rows].numpy(), labels[rows].numpy())
                    threads = max(1, workers // len(wave))
                    job = (files[number], build_model, *data, shard_size, settings, seeds[number], device, threads)
                    pending.add(pool.submit(_train_one, *job))
                while pending:
                    done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                    bar.update(counter.value - bar.n)
                    for future in done:
                        future.result()
        except BaseException:
            stop.value = 1  # or else a teacher on its way would be written later, over one of the next attempt
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return files


def _read_teacher(file: Path) -> dict[str, Any]:
    """The settings and the accountant of a file that ``train_teachers`` wrote."""
    cure = "Use another folder; or move the file away, to have a teacher trained in its place."
    try:
        record = Checkpoint.read(file, name=str(file)).rest
    except InvalidArgument as error:
        raise InvalidArgument(
            str(file), "a teacher's file", f"one that cannot be read ({error.cure:.80})", cure
        ) from None
    if not {"privacy_accountant_state_dict", "settings", "shard_size"} <= record.keys():
        raise InvalidArgument(str(file), "a teacher's file", f"one with {sorted(record)}", cure)
    return record


def _data_digest(inputs: Tensor, labels: Tensor, shards: Sequence[NDArray[np.int64]]) -> str:
    cut = {f"shard {number}": torch.as_tensor(shard) for number, shard in enumerate(shards)}
    return weights_digest({"inputs": inputs, "labels": labels, **cut})


def _seeds(count: int, insecure_seed: int | None) -> list[tuple[int, int]]:
    """Two seeds a teacher, one for initial weights and batches and one for the noise; all of them different."""
    if insecure_seed is None:
        return [(secrets.randbits(63), secrets.randbits(63)) for _ in range(count)]
    words = np.random.SeedSequence(insecure_seed).generate_state(2 * count, dtype=np.uint64) >> np.uint64(1)
    return [(int(a), int(b)) for a, b in words.reshape(count, 2)]


_counter: Any = None
_stop: Any = None


def _start_worker(counter: Any, stop: Any) -> None:
    global _counter, _stop
    _counter, _stop = counter, stop
    parent = multiprocessing.parent_process()
    if parent is not None:  # a killed parent must not leave its workers behind
        watch = threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True)
        watch.start()


def _exit_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _train_one(
    file: Path,
    build_model: Callable[[], nn.Module],
    inputs: NDArray[np.float32],
    labels: NDArray[np.int64],
    shard_size: int,
    settings: TrainingSettings,
    seeds: tuple[int, int],
    device: str,
    threads: int,
) -> None:
    torch.set_num_threads(threads)
    record: dict[str, Any] = train_teacher(
        build_model,
        torch.from_numpy(inputs).to(device),
        torch.from_numpy(labels).to(device),
        shard_size=shard_size,
        settings=settings,
        seeds=seeds,
        device=device,
        on_step=_count_step,
    )
    with write_whole(file) as temporary:
        torch.save(record, temporary)


def _count_step() -> None:
    if _stop.value:
        os._exit(1)
    with _counter.get_lock():
        _counter.value += 1


class _Batches(TensorDataset):
    """Whole batches by one indexing, also empty ones, instead of record by record."""

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, ...]:
        return tuple(tensor[rows] for tensor in self.tensors)


def _as_it_is(batch: Any) -> Any:
    return batch


@contextmanager
def _without_known_warnings() -> Iterator[None]:
    """Silence what Opacus and Torch say at every teacher of things that are as they should be."""
    with warnings.catch_warnings():
        for message in (
            "Secure RNG turned off",  # torchcsprng, which it would need, is no longer published
            "Full backward hook is firing",
            "grad and param do not obey the gradient layout contract",
        ):
            warnings.filterwarnings("ignore", message=message)
        yield


def _first_parameters(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """The cheapest parameter of each layer that no other layer comes before.

    DP-SGD takes each record's gradient from Opacus' hooks and throws Torch's own sums away, which are a fifth of the
    work. Asked for the sums of these parameters only, Torch still walks back through every layer, and all hooks run.
    """
    found: list[Tensor] = []

    def note(layer: nn.Module, given: tuple[Any, ...]) -> None:
        own = [parameter for parameter in layer.parameters(recurse=False) if parameter.requires_grad]
        if own and not any(isinstance(value, Tensor) and value.requires_grad for value in given):
            found.append(min(own, key=Tensor.numel))

    hooks = [layer.register_forward_pre_hook(note) for layer in model.modules()]
    model.eval()(inputs)
    model.train()
    for hook in hooks:
        hook.remove()
    return found


@_without_known_warnings()
def train_teacher(
    build_model: Callable[[], nn.Module],
    inputs: Tensor,
    labels: Tensor,
    *,
    shard_size: int,
    settings: TrainingSettings,
    seeds: tuple[int, int],
    device: str = "cpu",
    on_step: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train one teacher in this process and return what its file holds (see :func:`load_teacher`)."""
    from opacus import PrivacyEngine
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    torch.manual_seed(seeds[0])
    # Convolutions and pooling are faster in this layout; nothing else changes.
    model = build_model().to(device).to(memory_format=torch.channels_last).train()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
    criterion = nn.CrossEntropyLoss()
    steps = settings.steps_per_epoch(shard_size)
    dataset = _Batches(inputs, labels)
    accountant = wanted = None
    trained: nn.Module = model
    if settings.noise_multiplier is None:
        loader = DataLoader(dataset, batch_size=settings.batch_size, shuffle=True, collate_fn=_as_it_is)
    else:
        wanted = _first_parameters(model, inputs[:1])
        engine = PrivacyEngine(accountant="prv")
        trained, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(
                dataset,
                batch_sampler=UniformWithReplacementSampler(
                    num_samples=len(dataset), sample_rate=1 / steps, steps=steps
                ),
                collate_fn=_as_it_is,
            ),
            noise_multiplier=settings.noise_multiplier,
            max_grad_norm=settings.max_grad_norm,
            noise_generator=torch.Generator(device=device).manual_seed(seeds[1]),
        )
        optimizer.expected_batch_size = settings.batch_size  # Opacus takes it from the shard's true size
        accountant = engine.accountant
    for _ in range(settings.epochs):
        for images, targets in loader:
            optimizer.zero_grad()
            criterion(trained(images), targets).backward(inputs=wanted)
            optimizer.step()
            on_step()
    return {
        "module_state_dict": {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()},
        "privacy_accountant_state_dict": None if accountant is None else accountant.state_dict(),
        "sampling": "shuffled" if accountant is None else "poisson",
        "settings": asdict(settings),
        "shard_size": shard_size,
    }
