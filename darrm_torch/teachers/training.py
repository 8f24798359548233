"""K trainings in parallel processes, and the folder from which a stopped run resumes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from tqdm.auto import tqdm

from ..arguments import checked
from ..errors import DarrmError, InvalidArgument, UnprovenPrivacy, check_integer
from ..files import make_private_folder, owner_unmasked, write_whole
from ..privacy.allocation import RandomAllocation
from ..privacy.calibration import calibrate_noise
from ..privacy.guarantees import PrivacyGuarantee
from .adapters import warn_of_untrained_adapters
from .additivity import check_additive
from .checkpoints import Checkpoint, migrate, unwrap_module
from .dp_sgd import TrainingSettings, train_teacher
from .jobs import Job, QueuedJob, run_jobs
from .reading import drawn_rate
from .records import data_digest, example_of, shard_of
from .secure import SECURE
from .shards import Shards, as_shards, open_private
from .structures import checked_device, tensors_of

__all__ = ["Training", "check_training", "prepare_training", "run_trainings", "train_teachers"]


@owner_unmasked()
@checked
def train_teachers(
    folder: Path,
    *,
    build_model: Callable[[], nn.Module],
    dataset: Any,
    shards: Sequence[NDArray[np.int64]],
    shard_size: int,
    settings: TrainingSettings,
    total: PrivacyGuarantee | None = None,
    private_folder: str | os.PathLike[str] | None = None,
    name: str = "teacher",
    executor: Executor | None = None,
    workers: int | None = None,
    device: str = "cpu",
    insecure_seed: int | None = None,
    secure: bool = False,
    progress: bool = True,
) -> list[Path]:
    """Train one teacher for each shard in parallel processes, and store each in ``folder`` when it is finished.

    A teacher that is already in the folder is not trained again. A teacher whose training was interrupted, because this
    process or its worker died, starts again with fresh noise and batches. That costs nothing: the interrupted training
    released nothing, and whether a worker dies does not depend on what it computes (an assumption about the machine).
    So the teacher that is kept has the distribution of one whole training, which does not depend on the first. A folder
    accepts only the data and shards that it was started with. With others, a record could be in the data of more than
    ``overlap`` teachers. Once all teachers with the price of a random allocation are trained, none of them is trained
    again.

    The teachers' files, the only output outside ``private_folder``, record the allocation of the records to the shards,
    or why they have none. Nothing in them, in their names and modification times, or in an error shows the draws, apart
    from the weights themselves. An empty shard is trained like any other. :func:`forget_draws` deletes draws and key
    afterwards.

    With an ``executor``, the records of a shard and the trained weights travel between this process and the executor's
    workers, through a scheduler if it has one: use only machines that may see the private records, and encrypt their
    connections (``tls://`` in Dask). Workers write nothing and log no record. Logs of how long each job took hint at
    the sizes of the shards, so they are private too.

    Args:
        folder: receives ``{name}-000.pt``, ... (see :func:`load_teacher`), each written completely or not at all.
        build_model: returns an untrained model; a function or class of a module, because it is sent to other processes.
        dataset: the N private records, a map-style data set: ``TensorDataset(inputs, labels)``, or any other whose
            items are ``(input, target)`` or, as those of Hugging Face, mappings with ``"labels"``. A ``TensorDataset``
            is cut into shards. Any other is sent whole to each process, which then reads the records of its shard, so
            it should hold paths rather than contents; it must not change while a folder is being filled. Records that
            :func:`ignored_records` lists contribute zero, silently, because an error would depend on single records.
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
        executor: runs the trainings in place of processes of this machine: ``distributed.Client(...).get_executor()``
            of Dask, an ``MPIPoolExecutor`` of mpi4py, or any other executor of ``concurrent.futures``.
        workers: number of parallel processes; default: the number of usable cores (1 on CUDA). With an ``executor``,
            how many trainings it is given at a time; default: all.
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
        InvalidArgument: repeated or negative positions, records that the network, the loss or the optimizer does not
            take (a step on zeros of their shape is tried first), a ``name`` that is no file name, ``total`` with other
            shards, a private folder that others can read, a finished training with a random allocation of which files
            are missing, or a file in the folder that is damaged, was trained with other settings, on other data or with
            other shards, or was written by a newer version.
        UnprovenPrivacy: training changes the network other than by its noisy steps; or, tried on random numbers of the
            records' shapes, a layer or the loss mixes the records of a batch, layers see rows that are no records, or
            the network remembers what it has read.
        DarrmError: a process died; or a training failed, for a reason that is in the private folder, because it may
            show a record.
    """
    prepared = prepare_training(
        folder,
        build_model=build_model,
        dataset=dataset,
        shards=shards,
        shard_size=shard_size,
        settings=settings,
        total=total,
        private_folder=private_folder,
        name=name,
        workers=workers,
        device=device,
        insecure_seed=insecure_seed,
        secure=secure,
    )
    run_trainings([prepared], executor=executor, workers=workers, device=device, progress=progress)
    return prepared.files


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Training:
    """The teachers of one call of :func:`train_teachers`: their files, and the jobs of those that are missing."""

    name: str
    files: list[Path]
    steps: int  # of one job
    queue: list[QueuedJob]
    untimed: bool  # the sizes of the shards are secret, and times would show them


def run_trainings(
    trainings: Sequence[Training],
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    device: str = "cpu",
    progress: bool = True,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Train what is missing side by side, see :func:`train_teachers`: no process is idle while another waits.

    ``meanwhile`` is called once while others train, for what this process needs later, such as an import.
    """
    queue = [job for training in trainings for job in training.queue]
    steps = sum(training.steps * len(training.queue) for training in trainings)
    untimed = any(training.untimed for training in trainings)
    bar = tqdm(
        desc=", ".join(f"{training.name}s" for training in trainings if training.queue),
        disable=not progress or not queue,
        dynamic_ncols=True,
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}" if untimed else None,
        **({"unit": "step", "total": steps} if executor is None else {"unit": "teacher", "total": len(queue)}),
    )
    with bar:
        run_jobs(queue, bar, executor=executor, workers=workers, device=device, meanwhile=meanwhile)


def prepare_training(
    folder: Path,
    *,
    build_model: Callable[[], nn.Module],
    dataset: Any,
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
) -> Training:
    """Check everything, claim the folder, and name the teachers that are missing; see :func:`train_teachers`."""
    if secure and insecure_seed is not None:
        raise InvalidArgument("insecure_seed", "None with secure=True", "a seed", "Leave one of them out.")
    if not re.fullmatch(r"\w[\w .-]*", name):
        raise InvalidArgument("name", "a file name of letters, digits, spaces, dots and hyphens", name)
    check_integer("shard_size", shard_size, low=1, high=2**53)
    if insecure_seed is not None:
        check_integer("insecure_seed", insecure_seed, low=0)
    check_training(build_model, dataset, settings, workers=workers, device=device, private=total is not None)
    shards = as_shards(shards, records=len(dataset))
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
            trained = TrainingSettings().to_dict() | record["settings"]  # older files lack newer settings
            same = (trained, record["shard_size"]) == (settings.to_dict(), shard_size)
            if not (same and as_secure and record.get("allocation") == facts["allocation"]):
                raise InvalidArgument(
                    str(file),
                    f"trained with {settings} on shards of {shard_size}",
                    "other settings",
                    "Use another folder.",
                )
    digest, data_file = data_digest(dataset, shards), private / f"{name}-data.sha256"
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
    started = time.time_ns()  # the time of all files: theirs would show how long each training took
    seeds = _seeds(len(shards), insecure_seed)
    unfinished = {*missing}

    def finish_if_complete() -> None:
        if allocation is not None and not unfinished:
            shards.finish()

    def job_of(number: int, threads: int | None) -> Job:
        return Job(
            build_model=build_model,
            dataset=shard_of(dataset, shards[number]),
            shard_size=shard_size,
            settings=settings,
            seeds=seeds[number],
            secure=secure,
            device=device,
            threads=threads,
            facts=facts | {"shard": number},
        )

    def store(number: int, kind: str, content: bytes) -> None:
        if kind == "unproven":
            raise UnprovenPrivacy(content.decode())
        report, trained = private / "failed-training.txt", kind == "trained"
        if not (trained and files[number].exists()):  # else another run was quicker, and its teacher may be in use
            with write_whole(files[number] if trained else report, private=True) as temporary:
                temporary.write_bytes(content)
                os.utime(temporary, ns=(started, started))
        if not trained:
            raise DarrmError(
                f"a training failed. The reason is in {report} and nowhere else, because it may show a record or its "
                "shard"
            )
        unfinished.discard(number)
        finish_if_complete()  # at once: what is trained beside these teachers may be stopped

    finish_if_complete()
    return Training(
        name=name,
        files=files,
        steps=settings.epochs * settings.steps_per_epoch(shard_size),
        queue=[
            QueuedJob(job=partial(job_of, number), store=partial(store, number), records=settings.epochs * shard_size)
            for number in missing
        ],
        untimed=allocation is not None,
    )


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


_CURES = (  # for errors of Torch on networks that Opacus cannot train
    ("modified inplace", "No layer's output may be overwritten: use x = x + y in place of x += y, and no inplace=True"),
    (
        "stack expects each tensor",
        "Every layer needs one row for each record, in the first dimension: use batch_first=True, positions of each "
        "record, and no parts of a record as rows",
    ),
)


def _said(error: Exception) -> str:
    """The error of a user's own function, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"


def check_training(
    build_model: Callable[[], nn.Module],
    dataset: Any,
    settings: TrainingSettings,
    *,
    workers: int | None,
    device: str,
    private: bool,
) -> None:
    """Train on zeros and random numbers of the records' shapes: what fails here fails on every shard, and shows none.

    Raises:
        InvalidArgument: it fails, or ``workers`` or ``device`` is no such thing.
        UnprovenPrivacy: see :func:`train_teacher` and :func:`check_additive`.
    """
    if workers is not None:
        check_integer("workers", workers, low=1, high=1024)
    checked_device(device)
    example = example_of(dataset)
    noise = 1.0 if settings.noise_multiplier is None and private else settings.noise_multiplier
    step = replace(settings, noise_multiplier=noise, batch_size=1, epochs=1)
    networks: list[nn.Module] = []

    def build() -> nn.Module:
        try:
            networks.append(build_model())
        except Exception as error:  # the user's own
            raise InvalidArgument(
                "build_model", "a function that returns a network", "one that fails", _said(error)
            ) from None
        if not any(weight.requires_grad for weight in unwrap_module(networks[0], "build_model").parameters()):
            raise InvalidArgument("build_model", "a function that returns a network", "one without trainable weights")
        return networks[0]

    try:
        train_teacher(build, example, shard_size=1, settings=step, seeds=(0, 0))
        if noise is not None:
            check_additive(networks[0], example, step)
    except UnprovenPrivacy:
        raise
    except Exception as error:  # the user's own network, loss or optimizer
        if isinstance(error, InvalidArgument):
            raise
        got = ", ".join(f"{part.dtype} of shape {tuple(part.shape)}" for _, part in tensors_of(example[0]))
        cure = ". ".join([_said(error), *(cure for sign, cure in _CURES if sign in str(error))])
        raise InvalidArgument("dataset", "what the network of build_model can be trained on", got, cure) from None
    warn_of_untrained_adapters(networks[0])


def _seeds(count: int, insecure_seed: int | None) -> Sequence[tuple[int, int] | None]:
    """Two seeds for each teacher, all different: one for initial weights and batches, one for the noise."""
    if insecure_seed is None:
        return [None] * count
    words = np.random.SeedSequence(insecure_seed).generate_state(2 * count, dtype=np.uint64) >> np.uint64(1)
    return [(int(a), int(b)) for a, b in words.reshape(count, 2)]
