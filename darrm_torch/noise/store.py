"""A cache of certified noise functions on disk: each is solved once and proven again whenever it is read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import platformdirs

from ..arguments import checked
from ..errors import DarrmError, InvalidArgument, check_integer, warn_caller
from ..files import keep_copy, write_whole
from ..limits import MOST_TEXT, read_file
from ..privacy.guarantees import PrivacyGuarantee
from .certificate import Certificate, certify_scaled
from .function import NoiseFunction
from .grid import on_grid
from .priors import IndependentVotes, Prior, check_prior
from .program import MOST_OPTIMIZED, TOO_MANY, optimize_noise
from .regions import Region, Teacher, check_overlap, check_target, teacher_profile

__all__ = ["fetch_noise"]

FORMAT = 2  # of the files; those of format 1 have no number


@checked
def fetch_noise(
    *,
    teachers: int,
    teacher: Teacher,
    target: PrivacyGuarantee,
    overlap: int | None = None,
    prior: Prior = IndependentVotes(mean=0.75),  # noqa: B008 (frozen)
    shape: Literal["monotone", "free", "constant"] = "monotone",
    objective: str = "surrogate",
    cache_dir: str | os.PathLike[str] | None = None,
    on_progress: Callable[[float], None] = lambda excess: None,
) -> NoiseFunction:
    """:func:`optimize_noise` with a cache on disk.

    Formal guarantee: as for :func:`optimize_noise`. A stored noise function is proven again when it is read. If a file
    is damaged, belongs to other arguments or fails its check, the noise function is solved again and the file is
    replaced, with a warning. Files are replaced as a whole, so any number of processes can share a folder. A file that
    a newer version wrote is left alone, with a warning; one of an older format is rewritten, and the old one is kept.
    Where the platform's cache folder does not exist and cannot be created, or is read-only, nothing is stored, with a
    warning.

    Args:
        teachers, teacher, target, overlap, prior, shape, objective, on_progress: as for :func:`optimize_noise`.
        cache_dir: the folder of the cache; None for the platform's cache folder.

    Raises:
        InvalidArgument: bad input, or a ``cache_dir`` that cannot be written to.

    >>> import tempfile
    >>> teacher, target = PrivacyGuarantee(epsilon=0.1), PrivacyGuarantee(epsilon=0.2)
    >>> with tempfile.TemporaryDirectory() as folder:  # the second call reads what the first one stored
    ...     noises = [fetch_noise(teachers=3, teacher=teacher, target=target, cache_dir=folder) for _ in range(2)]
    >>> noises[0] == noises[1]
    True
    """
    count = check_integer("teachers", teachers, low=1, high=MOST_OPTIMIZED, cure=TOO_MANY)
    profile = teacher_profile(teacher, count)
    arguments: dict[str, Any] = {
        "teachers": count,
        "teacher": profile.guarantees(),
        "target": check_target(target),
        "overlap": check_overlap(overlap, count),
        "prior": check_prior(prior),
        "shape": shape,
        "objective": objective,
    }
    question = json.dumps({name: repr(value) for name, value in arguments.items()}, sort_keys=True)
    folder = _user_folder() if cache_dir is None else Path(cache_dir)
    path = folder / f"noise-{hashlib.sha256(question.encode()).hexdigest()[:32]}.json"
    newer = False
    try:
        noise, number = _read(path, question, arguments)
        if number < FORMAT:
            with contextlib.suppress(OSError):  # in a folder that cannot be written to it stays as it is
                keep_copy(path, number)
                _write(path, question, noise)
        return noise
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, DarrmError, ValueError, RecursionError) as reason:
        newer = isinstance(reason, _NewerFormatError)
        warn_caller(f"{path} is ignored and solved again: {reason}")
    noise = optimize_noise(**arguments | {"teacher": profile}, on_progress=on_progress)
    if newer:
        return noise
    try:
        if cache_dir is None and not folder.is_absolute():
            raise OSError("this user has no home folder")
        _write(path, question, noise)
    except OSError as reason:
        if cache_dir is not None:
            expected = "a folder that can be written to"
            raise InvalidArgument("cache_dir", expected, str(cache_dir)[:200], reason.strerror or str(reason)) from None
        warn_caller(
            f"the noise function is not stored in {folder}: {reason}. It will be solved again the next time, unless "
            "XDG_CACHE_HOME names a folder that can be written to"
        )
    return noise


def _user_folder() -> Path:
    """Where this user's noise functions are stored; a relative path if the user has no home folder."""
    try:
        return Path(platformdirs.user_cache_dir("darrm-torch"))
    except RuntimeError:  # platformdirs raises it in some versions, and returns such a path in others
        return Path("~/.cache/darrm-torch")


class _NewerFormatError(ValueError):
    """A newer version of this library wrote the file."""


def _digest(question: str, noise: str) -> str:
    return hashlib.sha256(f"{question}\n{noise}".encode()).hexdigest()


def _read(path: Path, question: str, arguments: dict[str, Any]) -> tuple[NoiseFunction, int]:
    """The noise function in a file, proven again, and the file's format."""
    if not path.exists():
        raise FileNotFoundError(path)
    stored = json.loads(read_file("cache_dir", path, most=MOST_TEXT))
    number = stored.get("format", 1) if isinstance(stored, dict) else 1
    if not isinstance(number, int) or number > FORMAT:
        raise _NewerFormatError(f"it has format {number}, which a newer version of darrm-torch wrote; it is left alone")
    if not isinstance(stored, dict) or stored.get("question") != question:
        raise ValueError("it is for other arguments")
    text = stored.get("noise")
    if not isinstance(text, str) or stored.get("digest") != _digest(question, text):
        raise ValueError("it was changed after it was written")
    noise = NoiseFunction.from_json(text)
    proven = noise.certificate
    if not isinstance(proven, Certificate) or any(
        getattr(proven, name) != arguments[name] for name in ("teachers", "teacher", "target", "overlap")
    ):
        raise ValueError("its certificate is for other arguments")
    if proven.optimality_gap is None or _is_worse_than_needed(noise, arguments):
        raise ValueError("it is not the best noise")
    return noise, number


def _is_worse_than_needed(noise: NoiseFunction, arguments: dict[str, Any]) -> bool:
    """Whether it reports the majority less often, at every number of votes, than one coin for all of them would."""
    teachers = arguments["teachers"]
    constant, _ = certify_scaled(
        on_grid([1.0] * (teachers + 1)),
        region=Region(guarantees=arguments["teacher"]),
        overlap=arguments["overlap"],
        target=arguments["target"],
    )
    return bool((noise.gamma < constant - 1e-6)[teachers // 2 + 1 :].all())


def _write(path: Path, question: str, noise: NoiseFunction) -> None:
    text = noise.to_json()
    content = json.dumps({"format": FORMAT, "question": question, "noise": text, "digest": _digest(question, text)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
