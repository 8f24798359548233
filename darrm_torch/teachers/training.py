"""K trainings in parallel processes, and the folder from which a stopped run resumes."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import re
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..arguments import checked
from ..errors import DarrmError, InvalidArgument, UnprovenPrivacy, check_integer
from ..files import make_private_folder, owner_unmasked, write_whole
from ..privacy.allocation import RandomAllocation
from ..privacy.calibration import calibrate_noise
from ..privacy.guarantees import PrivacyGuarantee
from .checkpoints import Checkpoint, migrate, weights_digest
from .dp_sgd import TrainingSettings, train_teacher
from .reading import drawn_rate
from .secure import SECURE
from .shards import Shards, as_shards, open_private
from .workers import prepare_workers

__all__ = ["train_teachers"]


@owner_unmasked()
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
    total: PrivacyGuarantee | None = None,
    private_folder: str | os.PathLike[str] | None = None,
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
    Once all teachers with the price of a random allocation are trained, none of them is trained again.

    The teachers' files, the only output outside ``private_folder``, record the allocation of the records to the shards,
    or why they have none. Nothing in them, in their names and modification times, or in an error shows the draws, apart
    from the weights themselves. An empty shard is trained like any other. :func:`forget_draws` deletes draws and key
    afterwards.

    Args:
        folder: receives ``{name}-000.pt``, ... (see :func:`load_teacher`), each written completely or not at all.
        build_model: returns an untrained model; a function or class of a module, because it is sent to other processes.
        inputs: ``(N, ...)`` float tensor, the private records. Those that :func:`ignored_records` lists contribute
            zero, silently, because an error would depend on single records.
        labels: ``(N,)`` integer tensor, class numbers from 0.
        shards: the positions of each teacher's records. Those of :func:`assign_shards` have the price of a random
            allocation; the first private training on them records it.
        shard_size: a declared, public number of records of a shard, such as a published number of records times
            ``overlap / K``. It fixes the sample rate ``1 / ceil(shard_size / batch_size)`` and the steps of every
            teacher, whatever the true size of its shard. Never compute it from the private records.
        settings: see :class:`TrainingSettings`.
        total: what all teachers together may cost; it replaces ``settings.noise_multiplier`` by the smallest one that
            keeps it (see :func:`~darrm_torch.calibrate_noise`). It needs shards of :func:`assign_shards`.
        private_folder: receives what must stay with the private data, readable by the owner only: a digest of data and
            shards, and the text of errors. ``None``: that of ``shards``, or else ``folder / "private"``.
        name: first part of the file names.
        workers: number of parallel processes; default: the number of usable cores (1 on CUDA).
        device: ``"cpu"`` or ``"cuda"``, which falls back to the CPU without CUDA.
        insecure_seed: makes the run repeatable. Anyone who knows the seed knows the noise: for tests and studies only.
        secure: draw noise and batches from AES-256 in counter mode, keyed by the operating system, instead of Torch's
            generator with a 63-bit seed, and protect the noise against floating-point attacks as Opacus' secure mode
            does. Training the paper's network (16,386 weights, batches of 32, one thread) takes about a third longer:
            2.8 s become 3.7 s of processor time for 128 steps. It needs ``pip install 'darrm-torch[secure]'``.
        progress: show a progress bar.

    Returns:
        The K files, in the order of the shards.

    Raises:
        InvalidArgument: repeated or negative positions, tensors of different lengths, a ``name`` that is no file name,
            ``total`` with other shards, a private folder that others can read, a finished training with a random
            allocation of which files are missing, or a file in the folder that is damaged, was trained with other
            settings, on other data or with other shards, or was written by a newer version.
        DarrmError: a training failed. The reason is in the private folder, because it may show a record.
    """
    if secure and insecure_seed is not None:
        raise InvalidArgument("insecure_seed", "None with secure=True", "a seed", "Leave one of them out.")
    if not re.fullmatch(r"\w[\w .-]*", name):
        raise InvalidArgument("name", "a file name of letters, digits, spaces, dots and hyphens", name)
    check_integer("shard_size", shard_size, low=1, high=2**53)
    if workers is not None:
        check_integer("workers", workers, low=1, high=1024)
    if insecure_seed is not None:
        check_integer("insecure_seed", insecure_seed, low=0)
    _check_data(inputs, labels, build_model)
    shards = as_shards(shards, records=len(inputs))
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise InvalidArgument("device", "cpu or cuda", device) from None
    if kind == "cuda" and not torch.cuda.is_available():
        device = "cpu"
    make_private_folder(folder)
    private = open_private(private_folder or shards.private_folder or folder / "private")
    allocation, reason = _allocation_for(shards, folder / name, settings, total, insecure_seed)
    if total is not None:
        settings = replace(settings, noise_multiplier=_calibrated(total, settings, shards, shard_size, allocation))
    facts = {
        "allocation": None if allocation is None else allocation.to_dict(),
        "no_allocation": reason,
        "draw": shards.draw,
    }
    files = [folder / f"{name}-{number:03d}.pt" for number in range(len(shards))]
    missing = [number for number, file in enumerate(files) if not file.exists()]
    for file in files:
        if file.exists():
            record = _read_teacher(file)
            as_secure = record.get("randomness") == SECURE or not secure
            same = (record["settings"], record["shard_size"]) == (asdict(settings), shard_size)
            if not (same and as_secure and record.get("allocation") == facts["allocation"]):
                raise InvalidArgument(
                    str(file),
                    f"trained with {settings} on shards of {shard_size}",
                    "other settings",
                    "Use another folder.",
                )
    digest, data_file = _data_digest(inputs, labels, shards), private / f"{name}-data.sha256"
    if len(missing) == len(files):
        with write_whole(data_file, private=True) as temporary:
            temporary.write_text(digest)
    elif not data_file.exists() or data_file.read_text() != digest:
        raise InvalidArgument(
            str(folder),
            "a folder with teachers of these data and shards",
            "teachers of others",
            "A record could be in the data of more teachers than promised. Use the same draw of assign_shards, or "
            "another folder.",
        )
    for file in files:
        if file.exists():
            migrate(file)
    if missing and allocation is not None and shards.finished:
        cure = (
            "A teacher that is trained again may have been chosen by its results, which voids the price of the random "
            "allocation. Put the files back, or train all in another folder: those teachers have a price of their own."
        )
        raise InvalidArgument(str(folder), "all teachers of a finished training", f"{len(missing)} fewer", cure)
    if not missing:
        if allocation is not None:
            shards.finish()
        return files
    steps = settings.epochs * settings.steps_per_epoch(shard_size)
    seeds = _seeds(len(shards), insecure_seed)
    if workers is None:
        workers = 1 if device.startswith("cuda") else len(os.sched_getaffinity(0))
    context = prepare_workers()
    counter, stop = context.Value("q", 0), context.Value("b", 0, lock=False)
    bar = tqdm(
        total=steps * len(missing),
        desc=f"{name}s",
        unit="step",
        disable=not progress,
        dynamic_ncols=True,
        bar_format=None if allocation is None else "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}",  # no times
    )
    started = time.time_ns()  # the time of all files: theirs would show how long each training took
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
                    job = (files[number], private, facts | {"shard": number}, started, build_model, *data, *how)
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
    if allocation is not None:
        shards.finish()
    return files


def _allocation_for(
    shards: Shards,
    training: Path,
    settings: TrainingSettings,
    total: PrivacyGuarantee | None,
    insecure_seed: int | None,
) -> tuple[RandomAllocation | None, str]:
    """The allocation that this training has, or ``None`` and the reason."""
    if insecure_seed is not None:
        return None, "The teachers were trained with an insecure_seed, and anyone who knows it knows their noise."
    if settings.noise_multiplier is None and total is None:
        return None, "The teachers were trained without privacy of their own."
    return shards.allocation_for(str(training.resolve()))


def _calibrated(
    total: PrivacyGuarantee,
    settings: TrainingSettings,
    shards: Shards,
    shard_size: int,
    allocation: RandomAllocation | None,
) -> float:
    if shards.neighbours != "add/remove":
        raise InvalidArgument("total", "None with these shards", total, f"{shards.reason} Use assign_shards.")
    per_epoch = settings.steps_per_epoch(shard_size)
    return calibrate_noise(
        total,
        sample_rate=drawn_rate(1 / per_epoch),
        steps=settings.epochs * per_epoch,
        overlap=shards.overlap,
        allocation=allocation,
    )


def _read_teacher(file: Path) -> dict[str, Any]:
    """The settings and the accountant of a file that ``train_teachers`` wrote, in this format or an older one."""
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
    """Check kind and shape; a message about values would depend on single records."""
    if not inputs.is_floating_point() or not inputs.dim():
        raise InvalidArgument("inputs", "floats (N, ...)", f"{inputs.dtype}", "Divide bytes by 255.")
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise InvalidArgument("labels", "int64 (N,)", f"{labels.dtype}, {labels.dim()} axes", "Use labels.long()")
    if len(inputs) != len(labels):
        raise InvalidArgument("labels", "as long as inputs", "another length")
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            build_model().eval()(inputs.new_zeros(1, *inputs.shape[1:]))
    except Exception as error:  # the user's own network, or inputs that it does not take
        got, cure = f"{inputs.dtype} of shape {tuple(inputs.shape[1:])}", f"{type(error).__name__}: {error!s:.160}"
        raise InvalidArgument("inputs", "what the network of build_model takes", got, cure) from None


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
    private: Path,
    facts: dict[str, Any],
    started: int,
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
    try:
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
    except UnprovenPrivacy:
        raise  # about the model, and it names no record
    except Exception:
        report = private / "failed-training.txt"
        with write_whole(report, private=True) as temporary:
            temporary.write_text(traceback.format_exc())
        raise DarrmError(
            f"a training failed. The reason is in {report} and nowhere else, because it may show a record or its shard"
        ) from None
    with write_whole(file, private=True) as temporary:
        torch.save(record | facts, temporary)
        os.utime(temporary, ns=(started, started))


def _count_step() -> None:
    if _stop.value:
        os._exit(1)
    with _counter.get_lock():
        _counter.value += 1
