"""Processor time of imports, each in a new process: the solver alone, and everything with Torch."""

from __future__ import annotations

import os
import subprocess
import sys

from .measuring import Record, seconds

CASES = {
    "nothing": "pass",
    "numpy, scipy and HiGHS": "import numpy, scipy.optimize, scipy.special, scipy.sparse, highspy",
    "darrm_torch": "import darrm_torch",
    "optimize_noise": "from darrm_torch import optimize_noise",
    "torch and opacus": "import torch, opacus",
    "PrivateMajorityEnsemble": "from darrm_torch import PrivateMajorityEnsemble",
}
# What each import needs.
NEEDS = {
    "darrm_torch": "nothing",
    "optimize_noise": "numpy, scipy and HiGHS",
    "PrivateMajorityEnsemble": "torch and opacus",
}


def measure(*, repeat: int, torch: bool) -> list[Record]:
    """One record per import; ``times_what_it_needs`` compares with importing only its dependencies."""
    times = {}
    for case, statement in CASES.items():
        if not torch and case in ("torch and opacus", "PrivateMajorityEnsemble"):
            continue
        command = [sys.executable, "-W", "ignore", "-c", statement]
        times[case] = seconds(
            lambda command=command: subprocess.run(command, check=True),
            repeat=repeat,
            clock=lambda: sum(os.times()[2:4]),  # of children that have ended
        )
    records: list[Record] = [{"case": case, "seconds": round(value, 3)} for case, value in times.items()]
    for record in records:
        if (needed := NEEDS.get(record["case"])) is not None:
            record["times_what_it_needs"] = round(times[record["case"]] / times[needed], 2)
    return records
