"""How long a million private labels take, from given counts: ``python benchmarks/labelling.py [--items N] [--out F]``.

Bits come from the operating system and are part of the time; so is whatever a mechanism prepares on its first batch.
Each figure is the best of three. Result: JSON with a description of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path

import numpy as np

import darrm_torch as dt

TEACHERS = 11
TARGET = dt.PrivacyGuarantee(epsilon=0.2556, delta=3e-4)


def mechanisms() -> dict[str, tuple[dt.Mechanism, int]]:
    """Name -> (mechanism, classes)."""
    teacher = dt.PrivacyGuarantee(epsilon=0.0852, delta=1e-4)
    return {
        "DaRRM": (dt.DaRRM(dt.optimize_noise(teachers=TEACHERS, teacher=teacher, target=TARGET)), 2),
        "GNMax, analytic": (dt.GNMax.calibrated(TARGET), 2),
        "GNMax, analytic, 10 classes": (dt.GNMax.calibrated(TARGET), 10),
        "GNMax, RDP": (dt.GNMax.calibrated(TARGET, method="rdp"), 2),
        "ConfidentGNMax": (dt.ConfidentGNMax(threshold=7, sigma_check=13.4, sigma=13.4, delta=3e-4), 2),
        "LNMax": (dt.LNMax(scale=2 / TARGET.epsilon), 2),
        "PermuteAndFlip": (dt.PermuteAndFlip(epsilon=TARGET.epsilon), 2),
        "ExponentialMechanism": (dt.ExponentialMechanism(epsilon=TARGET.epsilon), 2),
        "NoiseFreeMajority": (dt.NoiseFreeMajority(), 2),
    }


def seconds(mechanism: dt.Mechanism, counts: np.ndarray) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        mechanism.aggregate(counts)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000, help="labels to draw (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    results = {}
    for name, (mechanism, classes) in mechanisms().items():
        chances = np.full(classes, 0.3 / (classes - 1))
        chances[0] = 0.7
        counts = generator.multinomial(TEACHERS, chances, size=options.items)
        results[name] = round(seconds(mechanism, counts), 4)
    report = {
        "what": f"seconds for {options.items} labels, {TEACHERS} teachers, best of 3",
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "seconds": results,
    }
    text = json.dumps(report, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
