"""Messages: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch.federated import Answer, MessageRefused, Request, public_key, site_key
from darrm_torch.federated.messages import LARGEST_MESSAGE
from tests.federated.helpers import key

INPUTS = np.arange(6, dtype=np.float32).reshape(3, 2)


def request(inputs: Any = INPUTS) -> Request:
    return Request(round="r1", agreement="terms", classes=3, inputs=inputs)


def with_header(message: bytes, **changes: Any) -> bytes:
    line, _, body = message.partition(b"\n")
    return json.dumps({**json.loads(line), **changes}).encode() + b"\n" + body


@pytest.mark.parametrize("kind", ["f4", "f8", "f2", "i8", "i4", "u1", "u2", "?"])
def test_requests_survive_the_wire(kind: str) -> None:
    inputs = (INPUTS % 2).astype(kind)
    back = Request.from_bytes(request(inputs).to_bytes())
    assert (back.round, back.agreement, back.classes) == ("r1", "terms", 3)
    np.testing.assert_array_equal(back.inputs, inputs)


@pytest.mark.parametrize(
    "inputs",
    [[1, 2], np.float32(1), np.zeros((0, 2)), np.array(["a"]), np.array([None]), np.array([1j]), np.array([np.nan]),
     np.array([1e39]), np.array([2**63], dtype=np.uint64),
     np.broadcast_to(np.uint8(0), LARGEST_MESSAGE)],
)  # fmt: skip
def test_inputs_that_cannot_be_sent_are_refused(inputs: Any) -> None:
    with pytest.raises(dt.InvalidArgument, match="inputs must be"):
        request(inputs)


@pytest.mark.parametrize(
    "changes",
    [{"format": 2}, {"format": True}, {"format": "1"}, {"kind": "votes"}, {"classes": 1}, {"classes": 2.0},
     {"classes": True}, {"classes": 2**40}, {"round": 5}, {"agreement": None}, {"dtype": "|O"}, {"dtype": "<f8"},
     {"dtype": [["a", "<f4"]]}, {"shape": [3, 3]}, {"shape": [-3, -2]}, {"shape": [0, 2]}, {"shape": []},
     {"shape": 6}, {"shape": [6.0]}, {"shape": [True, 6]}, {"shape": [2**40, 2**40]}, {"shape": [1] * 40},
     {"extra": 1}],
)  # fmt: skip
def test_headers_that_are_not_exactly_right_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(MessageRefused):
        Request.from_bytes(with_header(request().to_bytes(), **changes))


@pytest.mark.parametrize(
    "message",
    [b"", b"\n", b"{}\n", b"[]\n", b"null\n", b"{", b"[" * 4095 + b"\n", b"\xff\xfe\n", b"\x80\x04K\x01.", b"x" * 10**5,
     b" " * 5000 + request().to_bytes(), request().to_bytes()[:-1], request().to_bytes() + b"\0", "text", None],
)  # fmt: skip
def test_garbage_is_refused(message: Any) -> None:
    with pytest.raises(MessageRefused):
        Request.from_bytes(message)
    with pytest.raises(MessageRefused):
        Answer.from_bytes(message, sites=["00" * 32], inputs=3)


def test_inputs_that_are_not_finite_or_no_truth_values_are_refused() -> None:
    message = request().to_bytes()
    with pytest.raises(MessageRefused, match="finite"):
        Request.from_bytes(message[:-4] + np.float32(np.nan).tobytes())
    message = request(np.array([True, False])).to_bytes()
    with pytest.raises(MessageRefused, match="truth"):
        Request.from_bytes(message[:-1] + b"\2")


def test_answers_are_signed_by_the_site_that_they_name() -> None:
    mine, other = key(), key()
    answer = Answer(request="d", site=public_key(mine), teacher="t", votes=np.array([0, -1, 2]))
    message = answer.signed(mine)
    known = [public_key(mine), public_key(other)]
    back = Answer.from_bytes(message, sites=known, inputs=3)
    assert (back.request, back.site, back.teacher, back.votes.tolist()) == ("d", public_key(mine), "t", [0, -1, 2])
    with pytest.raises(MessageRefused, match="no registered site"):
        Answer.from_bytes(message, sites=known[1:], inputs=3)
    for forged in (
        answer.signed(other),
        message[:-1] + bytes([message[-1] ^ 1]),
        message[:-70] + bytes([message[-70] ^ 1]) + message[-69:],
    ):
        with pytest.raises(MessageRefused, match="signature"):
            Answer.from_bytes(forged, sites=known, inputs=3)
    with pytest.raises(MessageRefused, match="longer than"):
        Answer.from_bytes(message + b"\0" * 5000, sites=known, inputs=3)


def test_a_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "site.pem"
    first = public_key(site_key(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert public_key(site_key(file)) == first
    file.write_text("no key")
    os.mkfifo(tmp_path / "pipe")
    for place in (file, tmp_path, tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(dt.InvalidArgument, match="path must be a PEM file"):
            site_key(place)
    with pytest.raises(dt.InvalidArgument, match="path must be a file that can be written"):
        site_key(tmp_path / "no folder" / "site.pem")
