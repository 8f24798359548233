"""Representations that fit on a screen, however much an object holds."""

from __future__ import annotations

import re
import reprlib
import textwrap
from collections.abc import Callable
from dataclasses import fields
from typing import Any

__all__ = ["cut", "fenced", "short_repr", "text_or_nothing", "wrapped"]


class _Short(reprlib.Repr):
    def repr_instance(self, value: Any, level: int) -> str:
        """On one line, without the address of a function or object; the middle is cut out."""
        text = " ".join(re.sub(r" at 0x[0-9a-fA-F]+", "", text_or_nothing(lambda: repr(value))).split())
        half = self.maxother // 2
        return text if len(text) <= self.maxother else f"{text[: half - 3]}...{text[-half:]}"


_SHORT = _Short()
_SHORT.maxtuple = _SHORT.maxlist = _SHORT.maxdict = 4
_SHORT.maxstring = _SHORT.maxother = 100


def short_repr(value: Any) -> str:
    """``Type(field=value, ...)`` of a dataclass, on one line, with long values cut and without addresses.

    >>> from darrm_torch import PrivacyProfile
    >>> PrivacyProfile.from_dp_sgd([(2.0 + step, 0.1, 1) for step in range(100)])
    PrivacyProfile(dp_sgd=((2.0, 0.1, 1), (3.0, 0.1, 1), (4.0, 0.1, 1), (5.0, 0.1, 1), ...), promises=())
    """
    pairs = [(field.name, getattr(value, field.name)) for field in fields(value) if field.repr]
    return f"{type(value).__name__}({', '.join(f'{name}={_SHORT.repr(part)}' for name, part in pairs)})"


def cut(value: Any) -> str:
    """The representation of a value, cut to 300 characters."""
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:296]} ..."


def wrapped(text: str, indent: str = "  ") -> str:
    """A paragraph of at most 79 columns; its lines after the first begin with ``indent``."""
    return textwrap.fill(text, 79, subsequent_indent=indent, break_on_hyphens=False)


def fenced(value: Any) -> str:
    """The text of a value as Markdown, for notebooks."""
    return f"```text\n{value}\n```"


def text_or_nothing(text: Callable[[], str]) -> str:
    """A text that may need a file which is closed or in use: a representation must not fail."""
    try:
        return text()
    except Exception:
        return ""
