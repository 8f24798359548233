"""The largest cost of unlike profiles: the same number as of all of them, at the price of a few."""

from __future__ import annotations

import pytest

from darrm_torch import PrivacyProfile
from darrm_torch.privacy.largest import largest_cost
from darrm_torch.privacy.profiles import largest_of


@pytest.mark.parametrize("count", [1, 2, 8, 9, 50, 513])
def test_it_is_the_largest_of_all(count: int) -> None:
    costs = [((7 * place + 3) % 101) / 10 for place in range(count)]
    assert largest_cost(costs, lambda cost: cost, max) == max(costs)
    assert largest_cost(costs, lambda cost: cost, lambda group: max(group) + 1.5) == max(costs)


def test_few_of_many_unlike_teachers_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hospitals of 1,000 to 21,000 records, one batch size: no two alike, and none implied by another."""
    profiles = [PrivacyProfile.from_dp_sgd([(1.5, 64 / n, n // 8)]) for n in range(1_000, 21_000, 10)]
    computed: list[PrivacyProfile] = []
    exact = PrivacyProfile.epsilon

    def epsilon(self: PrivacyProfile, delta: float) -> float:
        computed.append(self)
        return exact(self, delta)

    smallest = profiles[0].epsilon(1e-5)
    monkeypatch.setattr(PrivacyProfile, "epsilon", epsilon)
    assert largest_of(profiles, lambda profile: profile.epsilon(1e-5)) == smallest
    assert len(set(computed)) < 40
