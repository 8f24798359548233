"""What several test modules of plans check."""

from __future__ import annotations

import darrm_torch as dt


def check_plan_of_many_classes(answer: dt.Plan) -> None:
    """The text fits a screen and names the recommendation; what needs no private teachers costs the same without."""
    assert answer.best is not None
    assert max(map(len, str(answer).splitlines())) < 80
    words = " ".join(str(answer).split())
    assert f"Recommendation: {answer.best.name}. " in words
    assert f"of {answer.classes} classes" in words
    assert "right with chance 0.5 or 0.7 or 0.9 or 0.7 (concentration 3)" in words
    own = [row for row in answer.rows if row.own_randomness and row.mechanism is not None]
    assert len(own) >= 4
    for row in own:  # they are what they are for teachers that promise nothing
        alone = dt.total_privacy(
            teachers=[dt.PrivacyProfile.non_private()] * answer.teachers,
            overlap=answer.overlap,
            mechanism=row.mechanism,
            labels=answer.labels,
            delta=row.total.delta,
        )
        assert row.total.epsilon == alone.epsilon <= max(target.epsilon for target in answer.targets)
