"""K trainings in parallel processes, and the folder from which a stopped run resumes."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..arguments import checked
from ..errors import InvalidArgument, check_integer
from ..files import write_whole
from .checkpoints import Checkpoint, weights_digest
from .dp_sgd import TrainingSettings, train_teacher
from .secure import SECURE
from .shards import check_shards
from .workers import prepare_workers

__all__ = ["train_teachers"]


@checked
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
    secure: bool = False,
    progress: bool = True,
) -> list[Path]:
    """Train one teacher for each shard in parallel processes, and store each in ``folder`` when it is finished.

    A teacher that is already in the folder is not trained again. A teacher whose training was interrupted starts again
    with fresh noise; nothing of the interrupted training was kept, so it costs nothing. A folder accepts only the data
    and shards that it was started with. With others, a record could be in the data of more than ``overlap`` teachers.

    Args:
        folder: receives ``{name}-000.pt``, ... (see :func:`load_teacher`), each written completely or not at all, and
            ``{name}-data.sha256``, a digest of the private data and shards, which is as private as they are.
        build_model: returns an untrained model; a function or class of a module, because it is sent to other processes.
        inputs: ``(N, ...)`` float tensor, the private records.
        labels: ``(N,)`` integer tensor, class numbers from 0.
        shards: the positions of each teacher's records.
        shard_size: the nominal number of records of a shard, a public number. It fixes the sample rate
            ``1 / ceil(shard_size / batch_size)`` and the steps of every teacher, whatever the true size of its shard.
        settings: see :class:`TrainingSettings`.
        name: first part of the file names.
        workers: number of parallel processes; default: the number of usable cores (1 on CUDA).
        device: ``"cpu"`` or ``"cuda"``, which falls back to the CPU without CUDA.
        insecure_seed: makes the run repeatable. Anyone who knows the seed knows the noise: for tests and studies only.
        secure: draw noise and batches from AES-256 in counter mode, keyed by the operating system, instead of Torch's
            generator with a 63-bit seed, and protect the noise against floating-point attacks as Opacus' secure mode
            does. It needs ``pip install 'darrm-torch[secure]'``.
        progress: show a progress bar.

    Returns:
        The K files, in the order of the shards.

    Raises:
        InvalidArgument: an empty shard, repeated or negative positions, tensors of different lengths, or a file in the
            folder that is damaged or was trained with other settings, on other data or with other shards.
    """
    if secure and insecure_seed is not None:
        raise InvalidArgument("insecure_seed", "None with secure=True", insecure_seed, "Leave one of them out.")
    _check_data(inputs, labels, build_model)
    check_shards(shards, records=len(inputs))
    check_integer("shard_size", shard_size, low=1, high=2**53)
    if workers is not None:
        check_integer("workers", workers, low=1, high=1024)
    if insecure_seed is not None:
        check_integer("insecure_seed", insecure_seed, low=0)
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
            record = _read_teacher(file)
            as_secure = record.get("randomness") == SECURE or not secure
            if (record["settings"], record["shard_size"]) != (asdict(settings), shard_size) or not as_secure:
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
            "a folder with teachers of these data and shards",
            "teachers of others",
            "A record could be in the data of more teachers than promised. Use the same key for assign_shards, or "
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
        # First as many teachers as divide evenly among the workers; then the rest, with more threads each.
        even = len(missing) - len(missing) % workers
        try:
            for wave in (missing[:even], missing[even:]):
                pending: set[Future[None]] = set()
                for number in wave:
                    rows = torch.from_numpy(shards[number])
                    data = (inputs[rows].numpy(), labels[rows].numpy())
                    threads = max(1, workers // len(wave))
                    how = (shard_size, settings, seeds[number], secure, device, threads)
                    job = (files[number], build_model, *data, *how)
                    pending.add(pool.submit(_train_one, *job))
                while pending:
                    done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                    bar.update(counter.value - bar.n)
                    for future in done:
                        future.result()
        except BaseException:
            stop.value = 1  # otherwise a teacher could finish later and replace one of the next run
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return files


def _read_teacher(file: Path) -> dict[str, Any]:
    """The settings and the accountant of a file that ``train_teachers`` wrote."""
    cure = "Use another folder, or move the file away to train a teacher in its place."
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


def _check_data(inputs: Tensor, labels: Tensor, build_model: Callable[[], nn.Module]) -> None:
    if not inputs.is_floating_point() or not inputs.dim() or not bool(inputs.isfinite().all()):
        cure = "Divide bytes by 255; remove or replace records with NaN."
        raise InvalidArgument("inputs", "finite floats (N, ...)", f"{inputs.dtype} {tuple(inputs.shape)}", cure)
    if labels.dtype != torch.int64 or labels.shape != (len(inputs),):
        got = f"{labels.dtype} {tuple(labels.shape)}"
        raise InvalidArgument("labels", f"int64 ({len(inputs)},), one for each of the inputs", got, "Use labels.long()")
    if len(labels):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            outputs = build_model().eval()(inputs[:1]).shape[-1]
        first, last = (int(one) for one in torch.aminmax(labels))
        if first < 0 or last >= outputs:
            cure = "Labels count from 0; give the network an output for each class."
            raise InvalidArgument("labels", f"from 0 to {outputs - 1}", f"{first} to {last}", cure)


def _seeds(count: int, insecure_seed: int | None) -> list[tuple[int, int]]:
    """Two seeds for each teacher, all different: one for initial weights and batches, one for the noise."""
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
    if parent is not None:  # workers must not outlive a killed parent
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
    secure: bool,
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
        secure=secure,
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
