"""Training the teachers: shards decided record by record, K Opacus runs in parallel processes, a folder to resume from.

A teacher's privacy is only worth what its training did, so three things are fixed by construction here:

* which shards a record enters depends on that record alone (:func:`assign_shards`), so adding or removing it changes
  the data of exactly ``overlap`` teachers;
* sample rate, number of steps and the divisor of the noisy gradient are computed from public numbers, never from the
  size of the shard at hand, so that a neighbouring data set is trained in exactly the same way;
* every teacher draws its noise from its own generator, seeded by the operating system.
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import multiprocessing.connection
import os
import secrets
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from .reading import unwrapped, weights_digest
from .workers import prepare_workers

__all__ = ["TrainingSettings", "assign_shards", "contiguous_shards", "load_teacher", "train_teachers"]


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


def assign_shards(records: Sequence[bytes], *, teachers: int, overlap: int = 1, key: bytes) -> list[NDArray[np.int64]]:
    """Shards that hold every record exactly ``overlap`` times, decided by a keyed hash of the record alone.

    Each record ranks the teachers by a keyed hash of (record, teacher) and enters the shards of the first ``overlap``.
    Adding or removing a record therefore changes ``overlap`` shards and leaves the others as they are.

    Args:
        records: what identifies each record, for example a digest of its content.
        teachers: K.
        overlap: r, in ``[1, K]``.
        key: at most 64 bytes; keep it with the private data, since it tells which shard a known record is in.

    Returns:
        K sorted arrays of positions in ``records``.

    Raises:
        InvalidArgument: ``teachers < 1`` or ``overlap`` outside ``[1, teachers]``.

    >>> shards = assign_shards([b"a", b"b", b"c"], teachers=4, overlap=2, key=b"k")
    >>> sum(len(shard) for shard in shards)
    6
    """
    check_integer("teachers", teachers, low=1)
    check_integer("overlap", overlap, low=1, high=teachers, cure="A record can be in at most all of the shards.")
    members: list[list[int]] = [[] for _ in range(teachers)]
    for position, record in enumerate(records):
        ranks = []
        for teacher in range(teachers):
            digest = hashlib.blake2b(record, key=key, salt=teacher.to_bytes(8, "little"), digest_size=16).digest()
            ranks.append((digest, teacher))
        for _, teacher in sorted(ranks)[:overlap]:
            members[teacher].append(position)
    return [np.asarray(shard, dtype=np.int64) for shard in members]


def contiguous_shards(count: int, *, teachers: int) -> list[NDArray[np.int64]]:
    """Equal slices by position, as the paper cuts its data.

    No statement about the overlap comes with them: removing one record moves the cuts after it, so all K teachers may
    change (``overlap = K``). :func:`assign_shards` does not have this flaw.

    >>> [len(shard) for shard in contiguous_shards(11, teachers=3)]
    [4, 4, 3]
    """
    check_integer("teachers", teachers, low=1)
    return [np.asarray(part, dtype=np.int64) for part in np.array_split(np.arange(count), teachers)]


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
            kept = _read(file)
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


def load_teacher(file: str | os.PathLike[str], model: nn.Module) -> dict[str, Any]:
    """Load a teacher's weights into ``model`` and return the rest of the file.

    Files that hold only tensors and plain values (they are opened with ``weights_only=True``): those of
    :func:`train_teachers`; ``PrivacyEngine.save_checkpoint``'s; Lightning's checkpoints; or a state dict alone. What
    Opacus, DDP, ``torch.compile`` or a LightningModule put before the names of the weights does not matter. The first
    kind holds ``module_state_dict`` and ``privacy_accountant_state_dict`` as Opacus' own checkpoints do (the latter
    ``None`` without privacy), ``sampling``, ``settings`` and ``shard_size``.

    Raises:
        InvalidArgument: no such file, no weights in it, or those of another network than ``model``; the message says
            which, and ``model`` is as it was.
    """
    return load_checkpoint(
        file, model, cure="Load it into the network that was trained, or train this one in a new folder."
    )


def load_checkpoint(file: str | os.PathLike[str], model: nn.Module, *, cure: str) -> dict[str, Any]:
    """:func:`load_teacher`, with what the caller can do where the weights are those of another network."""
    try:
        record = torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:  # Torch raises many kinds on a damaged or foreign file
        only = f"It cannot be read ({type(error).__name__}); tensors and plain values are, opened as weights_only."
        raise InvalidArgument("file", "a checkpoint", str(file), only) from None
    rest: dict[str, Any] = record if isinstance(record, dict) else {}
    kind = next((name for name in ("module_state_dict", "state_dict") if isinstance(rest.get(name), Mapping)), None)
    state, rest = (record, {}) if kind is None else (rest.pop(kind), rest)
    if not (isinstance(state, Mapping) and any(isinstance(value, Tensor) for value in state.values())):
        found = ", ".join(map(str, record)) if isinstance(record, Mapping) else type(record).__name__
        expected = "a checkpoint with module_state_dict or state_dict, or a state dict"
        raise InvalidArgument("file", expected, str(file), f"It holds {found or 'nothing'}.")
    own = model.state_dict()
    if state.keys() != own.keys():
        parts = {name: unwrapped(name) for name in state}
        if kind == "state_dict":  # Lightning's: of a module that holds the network, or of the network itself
            firsts = {tuple(words[:1]) for words in parts.values()}
            if len(firsts) == 1 and firsts.isdisjoint(tuple(unwrapped(name)[:1]) for name in own):
                parts = {name: words[1:] for name, words in parts.items()}
        names = {tuple(unwrapped(name)): name for name in own}
        state = {names.get(tuple(words), ".".join(words)): state[name] for name, words in parts.items()}
    _check_weights(model, state, file, cure)
    model.load_state_dict(state)
    return rest


def _check_weights(model: nn.Module, state: Mapping[str, Any], file: str | os.PathLike[str], cure: str) -> None:
    own = {name: tuple(value.shape) for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    there = {name: tuple(value.shape) for name, value in state.items() if isinstance(value, Tensor)}
    different = [name for name in {**own, **there} if own.get(name) != there.get(name)]
    if different:
        name, *more = different
        words = f"not in {'the file' if name in own else 'the network'}"
        if name in own and name in there:
            words = f"{there[name]} in the file, {own[name]} in the network"
        if more:
            words += f", and {len(more)} more differ"
        expected = f"the weights of this {type(model).__name__}"
        raise InvalidArgument(str(file), expected, "those of another network", f"{name} is {words}. {cure}")


def _read(file: Path) -> dict[str, Any]:
    """A file that train_teachers left here, or what it takes for one."""
    cure = "Use another folder; or move the file away, to have a teacher trained in its place."
    try:
        record: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
        complete = {"module_state_dict", "privacy_accountant_state_dict", "settings", "shard_size"} <= record.keys()
    except Exception as error:  # Torch raises many kinds on a damaged file
        raise InvalidArgument(str(file), "a teacher's file", f"one that cannot be read ({error!r:.80})", cure) from None
    if not complete:
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
    partial = file.with_suffix(".partial")
    torch.save(record, partial)
    os.replace(partial, file)


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
