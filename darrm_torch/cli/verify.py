"""``darrm verify``."""

from __future__ import annotations

from typing import Any

from ..errors import PrivacyViolation
from .noise import read_noise, report_noise
from .parser import Command

__all__ = ["COMMAND"]


def _add_arguments(parser: Any) -> None:
    parser.add_argument("file", help="a file that `darrm noise --out` wrote")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(options: Any) -> int:
    noise = read_noise("file", options.file)
    if noise.certificate is None:
        raise PrivacyViolation(
            f"{options.file} has no certificate, so it proves nothing. Compute one with `darrm noise`"
        )
    report_noise(noise, options)
    return 0


COMMAND = Command(
    summary="Check the proof of a noise function again.",
    example="darrm verify n.json",
    add_arguments=_add_arguments,
    run=_run,
)
