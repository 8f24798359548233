"""How fast noise functions are found: ``python benchmarks/solver.py [--quick] [--repeat N] [--out F]``.

Each case runs in a process of its own, on one thread, after a warm-up: median seconds and that process's peak memory.
The last part solves the same problems by enumerating every constraint with scipy's linprog, in the same run. Result:
JSON with a description of the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize

from darrm_torch import PrivacyGuarantee, optimize_noise, self_bounding_noise
from darrm_torch.priors import IndependentVotes, majority_lead, vote_law
from darrm_torch.regions import Region

POINT = PrivacyGuarantee(epsilon=0.1, delta=1e-5)
PURE = PrivacyGuarantee(epsilon=0.1)
PROFILE = tuple(
    PrivacyGuarantee(epsilon=epsilon, delta=delta)
    for epsilon, delta in [(0.0, 0.0126), (0.02, 0.005), (0.05, 0.001), (0.0751, 1e-4)]
)
TWO = (PrivacyGuarantee(epsilon=0.03, delta=0.003), PrivacyGuarantee(epsilon=0.0852, delta=3.78e-5))


def times(point: PrivacyGuarantee, m: float) -> PrivacyGuarantee:
    return PrivacyGuarantee(epsilon=m * point.epsilon, delta=1 - (1 - point.delta) ** m)


# name: (arguments of optimize_noise, seconds allowed)
CASES: dict[str, tuple[dict[str, Any], float]] = {
    "K=11 free Delta>0": ({"teachers": 11, "teacher": POINT, "target": times(POINT, 3), "shape": "free"}, 0.05),
    "K=41 free Delta>0": ({"teachers": 41, "teacher": POINT, "target": times(POINT, 5), "shape": "free"}, 10),
    "K=101 free pure": ({"teachers": 101, "teacher": PURE, "target": times(PURE, 10), "shape": "free"}, 1),
    "K=101 monotone Delta>0": ({"teachers": 101, "teacher": POINT, "target": times(POINT, 10)}, 1),
    "K=301 monotone Delta>0": ({"teachers": 301, "teacher": POINT, "target": times(POINT, 10)}, 5),
    "K=1001 monotone Delta>0": ({"teachers": 1001, "teacher": POINT, "target": times(POINT, 10)}, 60),
    "K=11 monotone, 4 profile points": (
        {"teachers": 11, "teacher": PROFILE, "target": PrivacyGuarantee(epsilon=0.15, delta=3e-4)},
        10,
    ),
    "K=101 monotone, 2 profile points": (
        {"teachers": 101, "teacher": TWO, "target": PrivacyGuarantee(epsilon=0.5, delta=1e-4)},
        60,
    ),
    "K=1001 r=1": (
        {"teachers": 1001, "teacher": POINT, "target": PrivacyGuarantee(epsilon=0.05, delta=1e-5), "overlap": 1},
        1,
    ),
}


def measure(solve: Callable[..., Any], arguments: dict[str, Any], repeat: int) -> dict[str, Any]:
    """Median wall-clock seconds and this process's peak memory."""
    optimize_noise(teachers=3, teacher=PURE, target=PURE)
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        noise = solve(**arguments)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": round(statistics.median(seconds), 4),
        "peak_mib": round(peak / (1024 if sys.platform != "darwin" else 1 << 20)),
        "optimality_gap": noise.certificate.optimality_gap,
    }


def objective_weights(teachers: int) -> np.ndarray:
    return majority_lead(IndependentVotes(mean=0.75).law(teachers))


def enumerate_all(teachers: int, teacher: PrivacyGuarantee, target: PrivacyGuarantee) -> tuple[float, int]:
    """The optimum with every constraint of the free problem written down, as the paper's authors do."""
    corners = np.array([(0.0, 0.0), (1.0, 1.0), *map(tuple, Region(guarantees=(teacher,)).tilted)], dtype=np.float64)
    chosen = np.array(list(itertools.combinations_with_replacement(range(len(corners)), teachers)))
    here, there = (majority_lead(vote_law(corners[:, side][chosen])) for side in (0, 1))
    limit = math.expm1(target.epsilon) + 2 * target.delta
    rows = (here - math.exp(target.epsilon) * there) / limit
    best = optimize.linprog(-objective_weights(teachers), A_ub=rows, b_ub=np.ones(len(rows)), bounds=(0, 1))
    return -float(best.fun), len(rows)


def side_by_side(sizes: list[int], repeat: int) -> list[dict[str, Any]]:
    results = []
    for teachers in sizes:
        target = times(POINT, 2)
        start = time.perf_counter()
        value, rows = enumerate_all(teachers, POINT, target)
        enumerated = time.perf_counter() - start
        ours = []
        for _ in range(repeat):
            start = time.perf_counter()
            noise = optimize_noise(teachers=teachers, teacher=POINT, target=target, shape="free")
            ours.append(time.perf_counter() - start)
        reached = float(objective_weights(teachers) @ noise.gamma[teachers // 2 + 1 :])
        results.append(
            {
                "teachers": teachers,
                "constraints": rows,
                "enumerated_seconds": round(enumerated, 4),
                "seconds": round(statistics.median(ours), 4),
                "ratio": round(enumerated / statistics.median(ours), 1),
                "objective_difference": reached - value,
            }
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="also write the JSON to this file")
    parser.add_argument("--repeat", type=int, default=5, help="runs of which the median is taken (default 5)")
    parser.add_argument("--quick", action="store_true", help="leave out what takes more than a second or so")
    options = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    spawn = multiprocessing.get_context("spawn")
    cases = {name: (optimize_noise, arguments, limit) for name, (arguments, limit) in CASES.items()}
    cases["K=10001 self-bounding"] = (self_bounding_noise, {"teachers": 10_001, "allowance": 40}, 5)
    results = {}
    for name, (solve, arguments, limit) in cases.items():
        if options.quick and limit > 5:
            continue
        with spawn.Pool(1) as pool:
            results[name] = {**pool.apply(measure, (solve, arguments, options.repeat)), "allowed_seconds": limit}
    sizes = [5, 7, 9] if options.quick else [5, 7, 9, 11, 13]
    with spawn.Pool(1) as pool:
        compared = pool.apply(side_by_side, (sizes, options.repeat))
    report = {
        "machine": {
            "platform": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "cases": results,
        "enumeration": compared,
    }
    text = json.dumps(report, indent=2)
    print(text)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
