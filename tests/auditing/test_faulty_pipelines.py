"""The gallery: every planted fault is flagged, and honest pipelines of every route are not. Seeds are fixed."""

from __future__ import annotations

import pytest

from tests.auditing.faulty_pipelines import FAULTS, STRUCTURAL
from tests.auditing.honest_pipelines import exceeded

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Secure RNG turned off")]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_flagged(name: str) -> None:
    result = FAULTS[name](1)
    assert result.flagged
    if name in STRUCTURAL:
        assert result.findings[0].startswith("UnprovenPrivacy")
    else:  # by the lower bound alone, at 95 % confidence
        assert result.refuted
        assert result.lower_bound() > 1.1 * result.claim.epsilon


def test_an_honest_pipeline_of_each_route_is_not_refuted() -> None:
    rows = exceeded(range(1))
    assert {name.split(",")[0] for name in rows} == {
        "publishing",
        "self-bounding",
        "certified",
        "label-curve",
        "own-randomness",
        "private-votes",
        "allocation",
        "allocation-self-bounding",
    }
    assert [name for name, row in rows.items() if row[3]] == []


@pytest.mark.long
def test_200_honest_runs() -> None:
    """More than 17 of 200 true claims would be refuted at 95 % with a probability of 1.2 % at most."""
    rows = exceeded(range(20))
    assert sum(row[2] for row in rows.values()) <= 17
    assert sum(row[3] for row in rows.values()) == 0
