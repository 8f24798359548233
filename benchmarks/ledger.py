"""How fast the ledger answers: new labels, repeated questions, and several processes on one file.

    python benchmarks/ledger.py [--labels 100000] [--batch 1000] [--json result.json]

Times depend on the disk, as every batch is on it before it is given out; the machine is described in the result.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import tempfile
import time
from pathlib import Path

from darrm_torch import PrivacyGuarantee, PrivacyLedger

COST = PrivacyGuarantee(epsilon=1e-6, delta=1e-12)
BUDGET = PrivacyGuarantee(epsilon=1.0, delta=1e-6)


def ask(file: Path, first: int, labels: int, batch: int) -> float:
    """Seconds for ``labels`` questions from ``first`` on, ``batch`` at a time."""
    ledger = PrivacyLedger(file, cost=COST)
    begin = time.perf_counter()
    for start in range(first, first + labels, batch):
        keys = [number.to_bytes(16, "big") for number in range(start, min(start + batch, first + labels))]
        ledger.answer(keys, lambda new: [0] * len(new))
    seconds = time.perf_counter() - begin
    ledger.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ledger.sqlite"
        PrivacyLedger(file, BUDGET).close()
        new = ask(file, 0, options.labels, options.batch)
        again = ask(file, 0, options.labels, options.batch)
        single = ask(file, 10**12, 500, 1)
        shares = [
            (file, 10**9 * (1 + number), options.labels // options.processes, options.batch)
            for number in range(options.processes)
        ]
        with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
            begin = time.perf_counter()
            pool.starmap(ask, shares)
            together = time.perf_counter() - begin
        size = file.stat().st_size
        count = PrivacyLedger(file).count
    result = {
        "labels": options.labels,
        "batch": options.batch,
        "new labels, seconds": round(new, 3),
        "repeated questions, seconds": round(again, 3),
        "one label at a time, milliseconds each": round(1000 * single / 500, 3),
        f"{options.processes} processes, seconds": round(together, 3),
        "bytes per label": round(size / count, 1),
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
