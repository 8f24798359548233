"""Proving a noise function private: seconds, also in calls of the oracle, and seconds with ball arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from darrm_torch import certify
from darrm_torch.noise.grid import label_law
from darrm_torch.noise.regions import Region, growth_at_least
from darrm_torch.noise.worst_case import worst_losses

from .measuring import Record, alone, peak_mib, seconds
from .problems import POINT, smooth_noise, times


def measure(*, sizes: Sequence[int], repeat: int) -> list[Record]:
    """One record per K."""
    return [alone(_one, teachers, repeat) for teachers in sizes]


def _one(teachers: int, repeat: int) -> Record:
    gamma, target = smooth_noise(teachers), times(POINT, 3)
    took = seconds(lambda: certify(gamma, teachers=teachers, teacher=POINT, target=target), repeat=repeat)
    one_call = seconds(
        lambda: worst_losses(
            label_law(gamma),
            region=Region(guarantees=(POINT,)),
            overlap=teachers,
            growth=growth_at_least(target.epsilon),
            monotone=True,
        ),
        repeat=repeat,
    )
    peak = peak_mib()
    rigorous = seconds(lambda: certify(gamma, teachers=teachers, teacher=POINT, target=target, rigorous=True), repeat=1)
    return {
        "case": f"K={teachers}",
        "teachers": teachers,
        "seconds": round(took, 5),
        "oracle_calls": round(took / one_call, 2),
        "rigorous_seconds": round(rigorous, 3),
        "peak_mib": peak,
    }
