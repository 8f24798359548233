"""Questions: one for each input, or F about each input, one for each finding that is looked for in it.

A finding, such as edema on an X-ray, is there or not: class 1 or 0. Each finding of each input is a question with votes
and a label of its own. The questions about one input are asked, charged and stored together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..arguments import is_inflated
from ..arrays import BoolArray, IntArray, NumberArray
from ..errors import InvalidArgument, check_integer, is_integer
from ..mechanisms.base import Mechanism
from ..teachers.structures import class_logits, form_of

__all__ = [
    "MISSING",
    "checked_findings",
    "checked_votes",
    "class_numbers",
    "classes_of_votes",
    "counts_of_votes",
    "label_shape",
    "logits_by_finding",
    "question_keys",
    "restored_labels",
    "stored_labels",
    "table_of",
]

MISSING = -1


def checked_findings(findings: Sequence[str] | None, classes: object = None) -> tuple[str, ...] | None:
    """The names of the findings, in the order of the outputs; ``None``: one question for each input.

    Raises:
        InvalidArgument: no names, names that are empty or not text, one name twice, or names together with ``classes``.

    >>> checked_findings(["edema", "effusion"])
    ('edema', 'effusion')
    """
    if findings is None:
        return None
    names = tuple(findings) if isinstance(findings, Sequence) and not isinstance(findings, str) else ()
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise InvalidArgument("findings", "a list of different names, one for each finding", findings)
    if classes is not None:
        raise InvalidArgument("classes", "None with findings", classes, "A finding is there (1) or not (0).")
    return names


def label_shape(inputs: int, findings: Sequence[str] | None) -> tuple[int, ...]:
    """The shape of the labels of so many inputs: ``(B,)``, or ``(B, F)`` with findings."""
    return (inputs,) if findings is None else (inputs, len(findings))


def classes_of_votes(mechanism: Mechanism, classes: int | None) -> int:
    """C, as it was declared, or else as the mechanism needs it.

    Raises:
        InvalidArgument: the mechanism counts no votes, or neither says how many classes there are.
    """
    if mechanism.shares > 1:
        cure = "Use PrivateMajorityEnsemble, which asks models for probabilities."
        raise InvalidArgument("mechanism", "one that counts votes", type(mechanism).__name__, cure)
    number = mechanism.classes if classes is None else classes
    if number is None:
        expected = f"given, because {type(mechanism).__name__} takes any number of them"
        raise InvalidArgument("classes", expected, None, "The classes among the votes do not show it.")
    return number


def checked_votes(votes: Any, shape: tuple[int, ...], *, classes: int, cure: str = "") -> IntArray:
    """A copy of votes of this shape: classes in 0..C-1, or -1 where a vote is missing.

    Raises:
        InvalidArgument: others; the message shows no vote, and ``cure`` says what the shape means.
    """
    expected = f"integers of shape {shape}"
    table = table_of("votes", votes, expected)
    if table.shape != shape or (table.dtype.kind not in "iu" and table.size):
        raise InvalidArgument("votes", expected, f"{table.dtype} of shape {table.shape}", cure)
    if table.size and (table.min() < MISSING or table.max() >= classes):
        cure = "-1 stands for a vote that is missing."
        raise InvalidArgument("votes", f"classes in 0..{classes - 1}, or -1", "others", cure)
    return np.array(table, dtype=np.int64)


def class_numbers(classes: Sequence[int] | int | None) -> tuple[int, ...] | None:
    """The numbers of the logits that compete, checked; ``None``: all of them."""
    if classes is None:
        return None
    if is_integer(classes) or not isinstance(classes, Iterable):
        return tuple(range(check_integer("classes", classes, low=2, high=2**20)))
    numbers = tuple(check_integer("classes", number, low=0) for number in classes)
    if len(numbers) < 2 or len(set(numbers)) < len(numbers):
        raise InvalidArgument("classes", "at least two different class numbers", classes)
    return numbers


def question_keys(keys: Sequence[bytes], findings: tuple[str, ...] | None) -> list[bytes]:
    """The keys of all questions about these inputs, input by input.

    With findings, a question's key is that of the input followed by the finding's name and the length of the name, so
    that no two questions have one key.

    >>> question_keys([b"x", b"y"], ("a", "bc"))
    [b'xa\\x00\\x00\\x00\\x01', b'xbc\\x00\\x00\\x00\\x02', b'ya\\x00\\x00\\x00\\x01', b'ybc\\x00\\x00\\x00\\x02']
    """
    if findings is None:
        return list(keys)
    names = [name.encode() for name in findings]
    return [key + name + len(name).to_bytes(4, "big") for key in keys for name in names]


def logits_by_finding(name: str, logits: object, rows: tuple[int, ...], findings: int) -> Tensor:
    """The two logits of each finding, ``(*rows, F, 2)``.

    Args:
        name: the name of ``logits`` in error messages.
        logits: ``(*rows, F)``, where a finding is there if its logit is above 0; or pairs ``(*rows, F, 2)``, also with
            the last two dimensions as one, ``(*rows, 2 F)``: the two logits of the first finding come first.
        rows: the shape of the inputs, such as ``(B,)``.
        findings: F.

    Raises:
        InvalidArgument: another shape.

    >>> import torch
    >>> logits_by_finding("outputs", torch.tensor([[0.5, -1.0]]), (1,), 2)
    tensor([[[ 0.0000,  0.5000],
             [ 0.0000, -1.0000]]])
    """
    forms = [(*rows, *form) for form in ((findings,), (2 * findings,), (findings, 2), (findings, 1))]
    if not isinstance(logits, Tensor) or tuple(logits.shape) not in forms:
        expected = f"logits of shape {forms[0]}, one for each finding, or {forms[2]}"
        raise InvalidArgument(name, expected, form_of(logits))
    return class_logits(logits.reshape(*rows, findings, -1))


def counts_of_votes(votes: IntArray, keys: Sequence[bytes], classes: int, juries: BoolArray | None = None) -> IntArray:
    """Vote counts ``(N, C)``; a missing vote counts for a class that the key and the teacher's number decide.

    Args:
        votes: ``(K, N)``, -1 where a vote is missing.
        keys: the keys of the N questions.
        classes: C.
        juries: ``(N, K)``, which teachers vote on which question; ``None``: all of them.

    >>> counts_of_votes(np.array([[0, 1], [1, 1], [MISSING, 1]]), [b"a", b"b"], 2).tolist()
    [[2, 1], [0, 3]]
    """
    votes = votes.copy()
    for number, row in zip(*np.nonzero(votes == MISSING), strict=True):
        chance = hashlib.blake2b(keys[row], digest_size=8, salt=int(number).to_bytes(4, "big")).digest()
        votes[number, row] = int.from_bytes(chance, "big") % classes
    read = np.ones(votes.shape, dtype=np.bool_) if juries is None else juries.T
    return np.stack([((votes == one) & read).sum(axis=0) for one in range(classes)], axis=1)


def table_of(name: str, values: npt.ArrayLike, expected: str) -> Any:
    """``values`` as an array; otherwise ``name`` is refused."""
    if np.ma.is_masked(values):
        raise InvalidArgument(name, expected, "masked ones")
    if is_inflated(values):
        raise InvalidArgument(name, expected, type(values).__name__, "It would not fit in memory.")
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of different lengths, tensors that are no arrays
        raise InvalidArgument(name, expected, type(values).__name__, str(error)) from None


def stored_labels(labels: Any) -> list[int] | list[bytes]:
    """Labels ``(B,)`` as integers; soft labels ``(B, C)`` as the bytes of their float32 numbers, little-endian."""
    rows = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if rows.ndim == 1:
        return [int(label) for label in rows]
    return [row.tobytes() for row in rows.astype("<f4")]


def restored_labels(labels: Sequence[int] | Sequence[bytes], *, soft: bool) -> NumberArray:
    """The labels ``(B,)`` int64, or the soft labels ``(B, C)`` float32, that :func:`stored_labels` made these of."""
    if not soft:
        return np.array(labels, dtype=np.int64)
    whole = b"".join(bytes(row) for row in labels)
    numbers = np.frombuffer(whole, dtype="<f4").astype(np.float32)
    return numbers.reshape(len(labels), -1) if labels else numbers.reshape(0, 0)
