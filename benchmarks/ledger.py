"""The speed of the ledger: new labels, repeated questions, and several processes on one file.

Times depend on the disk, because every batch is written to it before the labels are returned.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import time
from pathlib import Path

from darrm_torch import PrivacyGuarantee, PrivacyLedger

from .measuring import Record

COST = PrivacyGuarantee(epsilon=1e-6, delta=1e-12)
BUDGET = PrivacyGuarantee(epsilon=1.0, delta=1e-6)
SINGLES = 200


def ask(file: Path, first: int, labels: int, batch: int) -> float:
    """Seconds for ``labels`` questions numbered from ``first``, ``batch`` at a time."""
    ledger = PrivacyLedger(file, cost=COST)
    begin = time.perf_counter()
    for start in range(first, first + labels, batch):
        keys = [number.to_bytes(16, "big") for number in range(start, min(start + batch, first + labels))]
        ledger.answer(keys, lambda new: [0] * len(new))
    seconds = time.perf_counter() - begin
    ledger.close()
    return seconds


def measure(*, labels: int, batch: int, processes: int) -> list[Record]:
    """One record per way of asking; ``times_a_new_label`` compares with the time of a new label in a batch."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "labels.ledger"
        PrivacyLedger(file, BUDGET).close()
        seconds = {
            f"new labels, {batch} at a time": ask(file, 0, labels, batch) / labels,
            "repeated questions": ask(file, 0, labels, batch) / labels,
            "new labels, one at a time": ask(file, 10**12, SINGLES, 1) / SINGLES,
        }
        share = labels // processes
        shares = [(file, 10**9 * (1 + number), share, batch) for number in range(processes)]
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            pool.map(abs, range(processes))  # so that all processes have started
            begin = time.perf_counter()
            pool.starmap(ask, shares)
            seconds[f"{processes} processes at once"] = (time.perf_counter() - begin) / (share * processes)
        with contextlib.closing(PrivacyLedger(file)) as ledger:
            size = file.stat().st_size / ledger.count
    new = next(iter(seconds.values()))
    records: list[Record] = [
        {"case": case, "microseconds_per_label": round(1e6 * value, 2), "times_a_new_label": round(value / new, 3)}
        for case, value in seconds.items()
    ]
    records[0]["bytes_per_label"] = round(size, 1)
    return records
