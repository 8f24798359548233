"""Values as they are typed: guarantees, rates, priors of the votes. Each is checked when it is read."""

from __future__ import annotations

import argparse
import math
from fractions import Fraction

import darrm_torch as dt

from ..errors import DarrmError, InvalidArgument, check_number

__all__ = ["OF_MANY", "OF_TWO", "checked_prior", "guarantee", "read_guarantee", "read_prior", "read_rate", "shares"]


def guarantee(text: str) -> str:
    """The text EPSILON,DELTA, checked."""
    read_guarantee(text)
    return text


def read_guarantee(text: str) -> dt.PrivacyGuarantee:
    """The guarantee EPSILON,DELTA; DELTA defaults to 0."""
    try:
        numbers = [float(part) for part in text.split(",")]
        if len(numbers) not in (1, 2):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be EPSILON,DELTA such as 0.1,1e-4, got {text!r}") from None
    try:
        check_number("delta", numbers[-1] if len(numbers) == 2 else 0.0, low=0.0, high=1.0, high_open=True)
        return dt.PrivacyGuarantee(epsilon=numbers[0], delta=numbers[1] if len(numbers) == 2 else 0.0)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(f"must be EPSILON,DELTA such as 0.1,1e-4: {error}") from None


def read_rate(text: str) -> float:
    """A number or a fraction, such as 1/35."""
    try:  # a fraction of 1e100000000 would be computed
        number = float(Fraction(text) if "/" in text else text)
        if not math.isfinite(number):
            raise ValueError
        return number
    except (ValueError, ZeroDivisionError, OverflowError):
        raise argparse.ArgumentTypeError(f"must be a number or a fraction such as 1/35, got {text!r}") from None


def checked_prior(text: str) -> str:
    """The text of a prior, checked."""
    read_prior(text)
    return text


def read_prior(text: str) -> dt.IndependentVotes | dt.SharedVotes | dt.BetaVotes | dt.PluralityVotes:
    """The prior of the votes that ``OF_TWO`` or ``OF_MANY`` describes."""
    name, _, rest = text.partition(":")
    try:
        numbers = [float(part) for part in rest.split(",")]
        match name, numbers:
            case "independent", [mean]:
                return dt.IndependentVotes(mean=mean)
            case "shared", [low, high]:
                return dt.SharedVotes(low=low, high=high)
            case "beta", [a, b]:
                return dt.BetaVotes(a=a, b=b)
            case "plurality", [accuracy]:
                return dt.PluralityVotes(accuracy=accuracy)
            case "plurality", [accuracy, concentration]:
                return dt.PluralityVotes(accuracy=accuracy, concentration=concentration)
        raise ValueError
    except DarrmError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {OF_TWO} or {OF_MANY}, got {text!r}") from None


OF_TWO = "independent:MEAN, shared:LOW,HIGH or beta:A,B"
OF_MANY = "plurality:ACCURACY[,CONCENTRATION]"


def shares(text: str) -> float | tuple[float, ...]:
    """One number, or two: A or A,ALL."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
        if len(numbers) not in (1, 2) or not all(0 < number < 1 for number in numbers):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers between 0 and 1, A or A,ALL, got {text!r}") from None
    return numbers[0] if len(numbers) == 1 else numbers
