"""Values as they are typed: what was meant is read exactly, and what cannot be read is refused with an example."""

from __future__ import annotations

import argparse
import math

import pytest
from hypothesis import given, strategies as st

import darrm_torch as dt
from darrm_torch.cli.values import checked_prior, guarantee, read_guarantee, read_prior, read_rate

SHARES = st.floats(0, 1, exclude_max=True)


@given(st.floats(0, 1e6), SHARES)
def test_a_guarantee_is_read_as_it_is_printed(epsilon: float, delta: float) -> None:
    assert read_guarantee(f"{epsilon!r},{delta!r}") == dt.PrivacyGuarantee(epsilon=epsilon, delta=delta)
    assert read_guarantee(repr(epsilon)) == dt.PrivacyGuarantee(epsilon=epsilon)
    assert guarantee(repr(epsilon)) == repr(epsilon)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_rate_is_a_number_or_a_fraction(numerator: int, denominator: int) -> None:
    assert read_rate(f"{numerator}/{denominator}") == numerator / denominator
    assert read_rate(repr(numerator / denominator)) == numerator / denominator


@pytest.mark.parametrize(
    ("text", "prior"),
    [
        ("independent:0.7", dt.IndependentVotes(mean=0.7)),
        ("shared:0.6,0.9", dt.SharedVotes(low=0.6, high=0.9)),
        ("beta:2,3", dt.BetaVotes(a=2.0, b=3.0)),
        ("plurality:0.8", dt.PluralityVotes(accuracy=0.8)),
        ("plurality:0.8,5", dt.PluralityVotes(accuracy=0.8, concentration=5.0)),
    ],
)
def test_priors_are_those_of_the_library(text: str, prior: object) -> None:
    assert read_prior(text) == prior
    assert checked_prior(text) == text


@pytest.mark.parametrize(
    "text", ["", "x", "1,2,3", "0.1;1e-4", "0.1,", "nan", "-0.1", "0.1,2", "0.1,1", f"{math.pi},-1e-5"]
)
def test_what_is_no_guarantee_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"^must be EPSILON,DELTA such as 0\.1,1e-4"):
        read_guarantee(text)


@pytest.mark.parametrize("text", ["", "1/0", "a/b", "1/2/3", "1e999/1", "1e100000000", "nan", "inf"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"^must be a number or a fraction such as 1/35, got "):
        read_rate(text)


@pytest.mark.parametrize("text", ["", "independent", "independent:", "shared:0.6", "beta:1,2,3", "uniform:0.5"])
def test_what_is_no_prior_is_refused_with_all_forms(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"^must be independent:MEAN, shared:LOW,HIGH or beta:A,B or"):
        read_prior(text)


def test_a_prior_out_of_range_says_which_number() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"^'independent:1.5': mean must be"):
        read_prior("independent:1.5")
