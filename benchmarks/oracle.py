"""The exact worst case of one noise function: seconds against the number of compositions of corners.

For a monotone noise function each composition needs one number per neighbour, so with r = K the work is proportional to
the number of compositions. Below K = 3,000 most of the time goes to K rounds of NumPy calls, so the time per
composition falls as their number grows: the ratio to the previous size is below 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from darrm_torch.noise.grid import label_law
from darrm_torch.noise.regions import Region, growth_at_least
from darrm_torch.noise.worst_case import worst_losses

from .measuring import Record, alone, peak_mib, seconds
from .problems import POINT, smooth_noise, times


def compositions(teachers: int, *, overlap: int, corners: int) -> int:
    """The number of ways to place r teachers at the corners, times the vote counts of the others."""
    return math.comb(overlap + corners - 1, corners - 1) * (teachers - overlap + 1)


def measure(*, sizes: Sequence[int], repeat: int) -> list[Record]:
    """Monotone noise functions with one guarantee (three corners) and r = K, as in the paper, and r = 2."""
    records = [alone(_one, teachers, teachers, repeat) for teachers in sizes]
    for before, record in itertools.pairwise(records):
        time, time_before = record["nanoseconds_per_composition"], before["nanoseconds_per_composition"]
        record["per_composition_against_the_size_before"] = round(time / time_before, 2)
    return records + [alone(_one, teachers, 2, repeat) for teachers in sizes]


def _one(teachers: int, overlap: int, repeat: int) -> Record:
    region = Region(guarantees=(POINT,))
    law, growth = label_law(smooth_noise(teachers)), growth_at_least(times(POINT, 3).epsilon)
    took = seconds(
        lambda: worst_losses(law, region=region, overlap=overlap, growth=growth, monotone=True), repeat=repeat
    )
    count = compositions(teachers, overlap=overlap, corners=len(region.chain))
    return {
        "case": f"K={teachers}, r={overlap}",
        "teachers": teachers,
        "overlap": overlap,
        "compositions": count,
        "seconds": round(took, 5),
        "nanoseconds_per_composition": round(1e9 * took / count, 1),
        "peak_mib": peak_mib(),
    }
