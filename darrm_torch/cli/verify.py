"""``darrm verify``."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidArgument, PrivacyViolation
from .files import read_text
from .noise import report_noise
from .parser import Command
from .showing import progress

__all__ = ["COMMAND"]


def _add_arguments(parser: Any) -> None:
    parser.add_argument("file", help="a file that `darrm noise --out` wrote")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(options: Any) -> int:
    from ..noise.function import NoiseFunction

    text = read_text("file", options.file)
    try:
        with progress(None, "proof"):
            noise = NoiseFunction.from_json(text)
    except InvalidArgument as error:
        cure = "" if error.name == "text" else str(error)
        raise InvalidArgument("file", "a file that `darrm noise --out` wrote", options.file, cure) from None
    except PrivacyViolation as error:
        raise PrivacyViolation(f"{options.file}: {error}") from None
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
