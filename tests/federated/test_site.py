"""A site answers requests with votes, whatever its teacher does, and imports no Torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch.federated import Answer, Request, Site
from tests.federated.helpers import Stored, key


class Returns:
    digest = "t"

    def __init__(self, votes: Any) -> None:
        self.votes = votes

    def vote(self, inputs: np.ndarray) -> Any:
        inputs[:] = 0
        if isinstance(self.votes, Exception):
            raise self.votes
        return self.votes


def request(classes: int = 3, agreement: str = "terms") -> bytes:
    return Request(round="r", agreement=agreement, classes=classes, inputs=np.array([0, 1, 2])).to_bytes()


@pytest.mark.parametrize(
    ("votes", "answered"),
    [
        ([0, 2, -1], [0, 2, -1]),
        ([True, False, True], [1, 0, 1]),
        ([0.0, np.nan, 2.0], [0, 0, 2]),  # NaN is a vote for the first class
        ([0.5, 1, 2], [-1, -1, -1]),
        ([0.0, np.inf, 2.0], [-1, -1, -1]),
        ([0, 1, 3], [-1, -1, -1]),
        ([0, 1, -2], [-1, -1, -1]),
        ([0, 1], [-1, -1, -1]),
        (["a", "b", "c"], [-1, -1, -1]),
        (None, [-1, -1, -1]),
        (RuntimeError("secret weight .37"), [-1, -1, -1]),
    ],
)
def test_there_is_an_answer_whatever_the_teacher_does(votes: Any, answered: list[int]) -> None:
    site = Site(Returns(votes), key=key(), classes=3)
    message = site.answer(request())
    answer = Answer.from_bytes(message, sites=[site.registration["public_key"]], inputs=3)
    assert (answer.teacher, answer.request, answer.votes.tolist()) == ("t", Request.digest(request()), answered)
    assert b"secret" not in message


def test_requests_under_other_terms_are_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    teacher = Stored("t", [0, 1, 2])
    site = Site(teacher, key=key(), classes=3, agreement="terms")
    assert site.answer(request())
    for other in (request(agreement="others"), request(classes=2), b"garbage", request()[:-1]):
        assert site.answer(other) == b""
    assert teacher.asked == 3
    assert "other terms" in caplog.text


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"teacher": object()}, "teacher must be an object with a digest"),
        ({"key": "secret"}, "key must be a signing key"),
        ({"classes": 1}, "classes must be"),
    ],
)
def test_a_site_needs_a_teacher_a_key_and_classes(how: dict[str, Any], message: str) -> None:
    with pytest.raises(dt.InvalidArgument, match=message) as error:
        Site(**{"teacher": Stored("t", []), "key": key(), "classes": 2, **how})
    assert "secret" not in str(error.value)


def test_a_site_imports_no_torch() -> None:
    code = "import sys; from darrm_torch.federated import Site, client_app, site_key; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
