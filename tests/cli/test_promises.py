"""Options about teachers: one way of stating their guarantee, complete or refused."""

from __future__ import annotations

from typing import Any

import pytest

import darrm_torch as dt
from darrm_torch.cli.parser import Parser
from darrm_torch.cli.promises import add_accept, add_common, add_teacher, naming, read_teacher
from darrm_torch.teachers.findings import FINDINGS


def read(*arguments: str) -> Any:
    parser = Parser()
    add_teacher(parser)
    add_common(parser, prior=None, default="none")
    add_accept(parser)
    return parser.read(arguments)


def test_a_guarantee_or_the_settings_of_training() -> None:
    assert read_teacher(read()) is None
    assert read_teacher(read("--teacher", "0.1,1e-5")) == dt.PrivacyGuarantee(epsilon=0.1, delta=1e-5)
    settings = ("--noise-multiplier", "12", "--sample-rate", "1/35", "--steps", "175")
    assert read_teacher(read(*settings)) == dt.PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 175)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--teacher", "0.1", "--steps", "3"), "^--teacher must be given once, got 'several ways'"),
        (("--steps", "3"), "must be all three, got 'no --noise-multiplier, --sample-rate'"),
        (("--noise-multiplier", "1e-3", "--sample-rate", "0.1", "--steps", "3"), "^--noise-multiplier must be"),
    ],
)
def test_half_a_guarantee_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(dt.InvalidArgument, match=message):
        read_teacher(read(*arguments))


def test_every_finding_can_be_accepted_and_nothing_else() -> None:
    assert read("--accept", *FINDINGS).accept == list(FINDINGS)
    with pytest.raises(dt.DarrmError, match="must be one of"):
        read("--accept", "everything")


def test_errors_about_files_name_the_option() -> None:
    with pytest.raises(dt.InvalidArgument, match=r"^--models must be a file"), naming("--models"):
        raise dt.InvalidArgument("source", "a file", "x")
    with pytest.raises(dt.InvalidArgument, match=r"^delta must be"), naming("--models"):
        raise dt.InvalidArgument("delta", "in (0, 1)", 2)
