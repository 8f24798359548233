"""The exact worst case of one noise function: seconds against how many compositions of corners there are.

On the chain of a monotone noise function each composition takes one number here and one there, so with r = K the work
is the count of compositions. Below K = 3,000 most of the time is that of K rounds of calls to numpy, so a composition
takes less time the more there are: the ratio to the size before is below 1.
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
    """How many ways there are to place r teachers at the corners, times the votes of the others."""
    return math.comb(overlap + corners - 1, corners - 1) * (teachers - overlap + 1)


def measure(*, sizes: Sequence[int], repeat: int) -> list[Record]:
    """Monotone noise functions with one guarantee (three corners) and r = K, as in the paper, and r = 2."""
    records = [alone(_one, teachers, teachers, repeat) for teachers in sizes]
    for before, record in itertools.pairwise(records):
        each, each_before = record["nanoseconds_per_composition"], before["nanoseconds_per_composition"]
        record["per_composition_against_the_size_before"] = round(each / each_before, 2)
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
