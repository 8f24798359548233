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
    parser.add_argument("file", help="what `darrm noise --out` wrote")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _run(chosen: Any) -> int:
    from ..noise.function import NoiseFunction

    text = read_text("file", chosen.file)
    try:
        with progress(None, "proof"):
            noise = NoiseFunction.from_json(text)
    except InvalidArgument as error:
        cure = "" if error.name == "text" else str(error)
        raise InvalidArgument("file", "what `darrm noise --out` wrote", chosen.file, cure) from None
    except PrivacyViolation as error:
        raise PrivacyViolation(f"{chosen.file}: {error}") from None
    if noise.certificate is None:
        raise PrivacyViolation(f"{chosen.file} claims nothing: it has no certificate. Make one with `darrm noise`")
    report_noise(noise, chosen)
    return 0


COMMAND = Command(
    summary="Prove a noise function again.",
    example="darrm verify n.json",
    add_arguments=_add_arguments,
    run=_run,
)
