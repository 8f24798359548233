"""Values as they are typed: guarantees, rates, priors of the votes. Each is checked when it is read."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from ..errors import DarrmError, InvalidArgument

# Each command imports slow modules when it needs them, here and in the other files.
if TYPE_CHECKING:
    from ..noise.priors import Prior
    from ..noise.tables import PluralityVotes
    from ..privacy.guarantees import PrivacyGuarantee

__all__ = ["OF_MANY", "OF_TWO", "checked_prior", "guarantee", "read_guarantee", "read_prior", "read_rate"]


def guarantee(text: str) -> str:
    """The text EPSILON,DELTA, checked."""
    read_guarantee(text)
    return text


def read_guarantee(text: str) -> PrivacyGuarantee:
    """The guarantee EPSILON,DELTA; DELTA defaults to 0."""
    from ..privacy.guarantees import PrivacyGuarantee

    try:
        numbers = [float(part) for part in text.split(",")]
        if len(numbers) not in (1, 2):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be EPSILON,DELTA such as 0.1,1e-4, got {text!r}") from None
    try:
        return PrivacyGuarantee(epsilon=numbers[0], delta=numbers[1] if len(numbers) == 2 else 0.0)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(f"must be EPSILON,DELTA such as 0.1,1e-4: {error}") from None


def read_rate(text: str) -> float:
    """A number or a fraction, such as 1/35."""
    from fractions import Fraction

    try:
        return float(Fraction(str(text)))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise argparse.ArgumentTypeError(f"must be a number or a fraction such as 1/35, got {text!r}") from None


def checked_prior(text: str) -> str:
    """The text of a prior, checked."""
    read_prior(text)
    return text


def read_prior(text: str) -> Prior | PluralityVotes:
    """The prior of the votes that ``OF_TWO`` or ``OF_MANY`` describes."""
    from ..noise.priors import BetaVotes, IndependentVotes, SharedVotes
    from ..noise.tables import PluralityVotes

    kind, _, rest = text.partition(":")
    try:
        numbers = [float(part) for part in rest.split(",")]
        if kind == "independent" and len(numbers) == 1:
            return IndependentVotes(mean=numbers[0])
        if kind == "shared" and len(numbers) == 2:
            return SharedVotes(low=numbers[0], high=numbers[1])
        if kind == "beta" and len(numbers) == 2:
            return BetaVotes(a=numbers[0], b=numbers[1])
        if kind == "plurality" and len(numbers) in (1, 2):
            return PluralityVotes(accuracy=numbers[0], concentration=numbers[1] if numbers[1:] else math.inf)
    except DarrmError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be {OF_TWO} or {OF_MANY}, got {text!r}")


OF_TWO = "independent:MEAN, shared:LOW,HIGH or beta:A,B"
OF_MANY = "plurality:ACCURACY[,CONCENTRATION]"
