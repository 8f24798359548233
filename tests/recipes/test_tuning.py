"""The tuning study: its noise keeps the total, the best score wins, and its report says what pays."""

from __future__ import annotations

import pytest
import torch

from recipes.reproduce import study, tuning


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> study.Features:
    """Two classes that a line separates, and two candidates: one gets all records wrong, the other all right."""

    def ensembles(task, chosen, rows, noise, **_):  # type: ignore[no-untyped-def]
        line = torch.zeros(tuning.TEACHERS, 4, 2)
        line[:, 0, 1] = 1.0
        return [line * (1 if number else -1) for number in chosen]

    monkeypatch.setattr(tuning, "ensembles", ensembles)
    monkeypatch.setattr(tuning, "noises", lambda tuned: {})
    monkeypatch.setattr(tuning, "CANDIDATES", ((0.1, 1.0, 70), (4.0, 1.0, 70)))
    generator = torch.Generator().manual_seed(5)
    parts = []
    for count in (2000, 200, 200):
        inputs = torch.randn(count, 4, generator=generator)
        parts.append((inputs, (inputs[:, 0] > 0).long()))
    return study.Features(name="line", classes=2, private=parts[0], public=parts[1], heldout=parts[2], records=2000)


@pytest.mark.slow
def test_the_noise_of_all_candidates_together_keeps_the_total() -> None:
    found = tuning.noises(tuned=True)
    assert 0.98 < tuning.tuned_epsilon(found) <= tuning.TOTAL.epsilon
    assert tuning.prices().rows[0][2] == pytest.approx(tuning.prices().rows[0][-1], rel=1e-3)  # one run


def test_tuning_finds_the_candidate_that_is_right(task: study.Features) -> None:
    assert tuning.every(task, 1, alone=False) == [0.0, 1.0]
    found = [tuning.tuned(task, seed) for seed in range(8)]
    assert min(count for _, count in found) >= 1
    assert all(accuracy == 1.0 for accuracy, count in found if count > 8)  # seeds are fixed: all of one kind in none
    assert any(count > 8 for _, count in found)
