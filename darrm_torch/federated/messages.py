"""What the server and the sites say to each other: a line of JSON and one array, versioned, bounded, signed.

A message is read without pickle: its header may have 4,096 bytes and exactly the fields of its kind, and the bytes
after it must be exactly those of the array that the header describes, of one of a few types of numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..arrays import IntArray
from ..errors import DarrmError, InvalidArgument, check_integer
from ..files import write_private
from ..limits import read_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["FORMAT", "LARGEST_MESSAGE", "Answer", "MessageRefused", "Request", "public_key", "site_key"]

FORMAT = 1
LARGEST_MESSAGE = 64 * 2**20  # bytes
MOST_CLASSES = 2**20

_HEADER, _SIGNATURE = 4096, 64  # bytes
_INPUTS = ("<f4", "<i8", "|u1", "|b1")
_VOTES = "<i4"


class MessageRefused(DarrmError):
    """A message is not what its reader accepts; the error says why, and nothing of what it contains."""


@checked
@dataclass(frozen=True, kw_only=True)
class Request:
    """The server asks every site for the votes on the same inputs.

    Attributes:
        round: names the request; fresh for each one, so that an old answer fits no new request.
        agreement: a digest of the terms that server and sites have agreed on.
        classes: C, the number of classes.
        inputs: ``(B, ...)``: float32, int64, uint8 or bool. Float64 and float16 become float32, other integers int64.

    Raises:
        InvalidArgument: inputs of another type, none, or more than a message may hold.
    """

    round: str
    agreement: str
    classes: int
    inputs: npt.NDArray[Any]

    def __post_init__(self) -> None:
        check_integer("classes", self.classes, low=2, high=MOST_CLASSES)
        object.__setattr__(self, "inputs", _sendable(self.inputs))

    def to_bytes(self) -> bytes:
        """The message."""
        fields = {"round": self.round, "agreement": self.agreement, "classes": self.classes}
        return _packed("request", fields, self.inputs)

    @classmethod
    def from_bytes(cls, message: bytes) -> Request:
        """Read a message.

        Raises:
            MessageRefused: it is not a request of this format.
        """
        fields, inputs = _unpacked("request", message, ("round", "agreement", "classes"), _INPUTS, LARGEST_MESSAGE)
        if type(fields["classes"]) is not int or not 2 <= fields["classes"] <= MOST_CLASSES:
            raise MessageRefused("the number of classes is not an integer in its range")
        if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
            raise MessageRefused("the inputs are not all finite")
        return cls(round=fields["round"], agreement=fields["agreement"], classes=fields["classes"], inputs=inputs)

    @staticmethod
    def digest(message: bytes) -> str:
        """What an answer names its request by: SHA-256 of the message."""
        return hashlib.sha256(message).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A site's votes, signed together with the digests of the request and of the teacher that voted.

    Attributes:
        request: the digest of the request that it answers.
        site: the site's public key, in hexadecimal.
        teacher: the digest of the teacher that voted.
        votes: ``(B,)`` int64: a class for each input, -1 where the teacher has no vote.
    """

    request: str
    site: str
    teacher: str
    votes: IntArray

    def signed(self, key: Ed25519PrivateKey) -> bytes:
        """The message, with the site's signature at its end."""
        fields = {"request": self.request, "site": self.site, "teacher": self.teacher}
        message = _packed("votes", fields, np.asarray(self.votes).astype(_VOTES))
        return message + key.sign(message)

    @classmethod
    def from_bytes(cls, message: bytes, *, sites: Collection[str], inputs: int) -> Answer:
        """Read a message and check its signature.

        Args:
            message: the bytes.
            sites: the public keys that are known.
            inputs: B, the number of inputs that were asked about: a longer message is not read at all.

        Raises:
            MessageRefused: it is not an answer of this format, or not signed by one of the sites.
        """
        largest = _HEADER + inputs * np.dtype(_VOTES).itemsize + _SIGNATURE
        if not isinstance(message, bytes) or not _SIGNATURE < len(message) <= largest:
            raise MessageRefused(f"empty, or longer than {largest} bytes")
        signed, signature = message[:-_SIGNATURE], message[-_SIGNATURE:]
        fields, votes = _unpacked("votes", signed, ("request", "site", "teacher"), (_VOTES,), largest)
        if fields["site"] not in sites:
            raise MessageRefused("from no registered site")
        if not _is_signed(fields["site"], signed, signature):
            raise MessageRefused("the signature is not that of the site that the message names")
        return cls(**fields, votes=votes.astype(np.int64))


@checked
def site_key(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """A site's signing key (Ed25519), from a PEM file; a new one, readable by its owner only, where there is no file.

    Raises:
        InvalidArgument: the file holds something else, or cannot be read or created.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    file = Path(path)
    if not os.path.exists(file):
        key = Ed25519PrivateKey.generate()
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            write_private(file, text)
        except OSError as error:
            raise InvalidArgument("path", "a file that can be written", str(file), error.strerror or "") from None
        return key
    expected = "a PEM file with an Ed25519 key without a password"
    try:
        content = read_file("path", file, expected=expected, most=2**16)
        found = serialization.load_pem_private_key(content, password=None)
    except InvalidArgument:
        raise
    except (ValueError, TypeError, OSError, UnsupportedAlgorithm):  # other bytes, or a key with a password
        found = None
    if not isinstance(found, Ed25519PrivateKey):
        raise InvalidArgument("path", expected, str(file))
    return found


def public_key(key: Ed25519PrivateKey) -> str:
    """The public half of a site's key, 64 hexadecimal digits: what the site registers at the server."""
    return key.public_key().public_bytes_raw().hex()


def _is_signed(site: str, message: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(site)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _sendable(inputs: Any) -> npt.NDArray[Any]:
    """Inputs in one of the types that messages have, in order in memory."""
    if (
        not isinstance(inputs, np.ndarray)
        or not inputs.ndim
        or not len(inputs)
        or inputs.dtype.kind not in "fiub"
        or np.ma.is_masked(inputs)
    ):
        raise InvalidArgument("inputs", "an array (B, ...) of real numbers or integers", inputs)
    kind = inputs.dtype.str if inputs.dtype.str in _INPUTS else "<f4" if inputs.dtype.kind == "f" else "<i8"
    if inputs.size * np.dtype(kind).itemsize > LARGEST_MESSAGE - _HEADER:
        cure = "Ask about fewer inputs at a time."
        raise InvalidArgument("inputs", f"at most {LARGEST_MESSAGE - _HEADER} bytes", inputs, cure)
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(inputs, dtype=kind)
    if not np.isfinite(array).all() or (kind == "<i8" and (array != inputs).any()):
        raise InvalidArgument("inputs", "finite as float32 numbers, or integers of 64 bits", inputs)
    return array


def _packed(kind: str, fields: Mapping[str, Any], array: npt.NDArray[Any]) -> bytes:
    header = {"format": FORMAT, "kind": kind, **fields, "dtype": array.dtype.str, "shape": array.shape}
    return json.dumps(header).encode() + b"\n" + array.tobytes()


def _unpacked(
    kind: str, message: bytes, names: Collection[str], types: Collection[str], largest: int
) -> tuple[dict[str, Any], npt.NDArray[Any]]:
    """The fields and the array of a message of this kind; nothing is allocated before the sizes agree."""
    if not isinstance(message, bytes) or len(message) > largest:
        raise MessageRefused(f"empty, or longer than {largest} bytes")
    line, end, _ = message[:_HEADER].partition(b"\n")
    try:
        header = json.loads(line) if end else None
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or type(header.get("format")) is not int:
        raise MessageRefused("no message of this library")
    if header["format"] != FORMAT:
        raise MessageRefused(f"another format of messages than {FORMAT}")
    if header.get("kind") != kind or set(header) != {"format", "kind", "dtype", "shape", *names}:
        raise MessageRefused(f"not of the kind {kind!r}, or with other fields")
    if any(not isinstance(header[name], str) for name in names if name != "classes"):
        raise MessageRefused("a field that is no text")
    shape, dtype = header["shape"], header["dtype"]
    if dtype not in types or not isinstance(shape, list) or not 1 <= len(shape) <= 8:
        raise MessageRefused("another type of array")
    if any(type(size) is not int or size < 0 for size in shape) or not shape[0]:
        raise MessageRefused("an array without a shape")
    if len(message) - len(line) - 1 != math.prod(shape) * np.dtype(dtype).itemsize:
        raise MessageRefused("another number of bytes than the header says")
    array = np.frombuffer(message, dtype=dtype, offset=len(line) + 1).reshape(shape)
    if dtype == "|b1" and array.view(np.uint8).max(initial=0) > 1:
        raise MessageRefused("truth values other than 0 and 1")
    return {name: header[name] for name in names}, array
