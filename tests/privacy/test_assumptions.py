"""Assumptions: each one is stated exactly where a total rests on it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from darrm_torch import PrivacyGuarantee, PrivacyProfile, RandomAllocation
from darrm_torch.privacy.assumptions import assumptions_of
from darrm_torch.privacy.units import ProtectedUnit

PRIVATE = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.1))
PUBLIC = PrivacyProfile.non_private()


def names_of(profiles: list[PrivacyProfile] | None = None, **changes: Any) -> list[str]:
    """The word before the colon of each assumption."""
    situation: dict[str, Any] = {
        "affected": 1,
        "fresh": False,
        "unit": ProtectedUnit(),
        "allocation": None,
        "secure": True,
    }
    texts = assumptions_of([PRIVATE] * 3 if profiles is None else profiles, **situation | changes)
    return [text.partition(":")[0] for text in texts]


ALWAYS = ["Neighbours", "Overlap", "Training", "Independence", "Public", "Votes", "Secrecy", "Ledger"]


def test_what_every_total_of_private_teachers_assumes() -> None:
    assert names_of() == ALWAYS


def test_teachers_that_promise_nothing_need_no_training_as_recorded() -> None:
    assert set(ALWAYS) - set(names_of([PUBLIC] * 3)) == {"Training", "Independence", "Public"}
    assert names_of([PUBLIC, PRIVATE, PUBLIC]) == ALWAYS


def test_a_seed_that_predicts_labels_is_one() -> None:
    assert names_of(secure=False) == [*ALWAYS, "Randomness"]


@pytest.mark.parametrize(("digest", "unseen"), [(None, True), ("a digest", False)])
def test_teachers_that_were_read_without_their_weights_are_counted(digest: str | None, unseen: bool) -> None:
    read = replace(PRIVATE, reading=SimpleNamespace(digest=digest))
    assert ("Weights" in names_of([read, PRIVATE])) == unseen


def test_an_allocation_adds_its_own_and_a_jury_one_more() -> None:
    allocation = RandomAllocation(teachers=3)
    together = assumptions_of(
        [PRIVATE] * 3, affected=1, fresh=False, unit=ProtectedUnit(), allocation=allocation, secure=True
    )
    assert set(allocation.assumptions) <= set(together)
    assert "Jury" not in names_of(allocation=allocation)
    assert "Jury" in names_of(allocation=allocation, jury=True)


def test_slices_of_a_list_hold_for_replaced_records_only() -> None:
    added, replaced = (
        " ".join(
            assumptions_of(
                [PRIVATE] * 3,
                affected=1,
                fresh=False,
                unit=ProtectedUnit(neighbours=neighbours),
                allocation=None,
                secure=True,
            )
        )
        for neighbours in ("add/remove", "replace-one")
    )
    assert "equal slices" in added
    assert "equal slices" not in replaced
    assert "replacing one record" in replaced
