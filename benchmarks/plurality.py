"""The time to compute and check the tables for many classes, and their accuracy.

C classes, K teachers (or a sample of s of them), a label that costs m teachers. "Accuracy at a": the probability that a
label is the true class when each vote is right with probability a and other classes are equally likely. Each case runs
in its own process, on one thread, after a warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence

from darrm_torch import PluralityVotes, SelfBoundingPlurality
from darrm_torch.noise.histograms import standings
from darrm_torch.noise.table_program import self_bounding_table

from .measuring import Record, alone, peak_mib, seconds

CASES: dict[str, tuple[int, int, tuple[float, ...]]] = {  # classes, votes, allowances
    "C=10, K=11": (10, 11, (1, 2, 3, 5)),
    "C=3, K=51": (3, 51, (1, 2, 3, 5)),
    "C=10, s=16": (10, 16, (3,)),
    "C=10, s=18": (10, 18, (3,)),
}


def measure(*, cases: Sequence[str], repeat: int) -> list[Record]:
    """One record per case and allowance."""
    return [
        alone(_table, case, classes, votes, allowance, repeat)
        for case in cases
        for classes, votes, allowances in [CASES[case]]
        for allowance in allowances
    ]


def _table(case: str, classes: int, votes: int, allowance: float, repeat: int) -> Record:
    SelfBoundingPlurality(teachers=3, classes=3, allowance=2)
    listed = seconds(lambda: standings.__wrapped__(votes, classes), repeat=repeat)
    space = standings(votes, classes)
    solved = seconds(lambda: self_bounding_table(space, allowance=allowance), repeat=repeat)
    table = self_bounding_table(space, allowance=allowance)
    peak = peak_mib()
    checked = seconds(lambda: table.lacking_allowance(allowance, votes), repeat=repeat)
    return {
        "case": f"{case}, m={allowance:g}",
        "histograms": space.histograms,
        "seconds": round(listed + solved, 3),
        "check_seconds": round(checked, 4),
        "peak_mib": peak,
        **{f"accuracy_at_{a:g}": round(table.accuracy(PluralityVotes(accuracy=a)), 4) for a in (0.5, 0.7)},
        "optimality_gap": table.certificate.optimality_gap if table.certificate else None,
    }
