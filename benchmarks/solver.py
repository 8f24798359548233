"""The time to compute noise functions, compared with the number of compositions and with enumerating all constraints.

Each case runs in its own process, on one thread, after a warm-up. "Oracle calls" are calls of the exact oracle, "cuts"
the constraints that it returned, "compositions" all constraints that exist.

"K=... against enumerating + linprog" solves one problem (Delta > 0, free shape) twice in one process: with this
library, and by enumerating every multiset of the 8 corners and passing all rows to SciPy's linprog. The speed-up
depends on how the rows are computed, so three ways are measured. "Library": one multiset after another, with SciPy's
Poisson binomial, the obvious way (and that of the paper's authors). "Loop": the same with lean arithmetic.
"Vectorised": all multisets in one array; at K = 11 the gain over this is small, and linprog takes half of the time. The
gain grows with K: there are C(K + 7, 7) rows, 31,824 at K = 11 but 73,629,072 at K = 41 (12 GB), where this library
solves "K=41 free".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

from darrm_torch import PrivacyGuarantee, optimize_noise, self_bounding_noise
from darrm_torch.noise import program

from .measuring import Record, alone, peak_mib, seconds
from .oracle import compositions
from .problems import POINT, PROFILE, PURE, TWO, enumerate_all, times, weights

Arguments = dict[str, Any]


def problems(sizes: Sequence[int]) -> dict[str, Arguments]:
    """The growth with K in the paper's setting, and other uses of the solver."""
    largest = max(sizes)
    growth: dict[str, Arguments] = {
        f"K={teachers} monotone": {"teachers": teachers, "teacher": POINT, "target": times(POINT, teachers / 10)}
        for teachers in sizes
    }
    others: dict[str, Arguments] = {
        "K=11 free": {"teachers": 11, "teacher": POINT, "target": times(POINT, 3), "shape": "free"},
        "K=41 free": {"teachers": 41, "teacher": POINT, "target": times(POINT, 5), "shape": "free"},
        "K=101 free, pure": {"teachers": 101, "teacher": PURE, "target": times(PURE, 10), "shape": "free"},
        "K=11 monotone, 4 profile points": {
            "teachers": 11,
            "teacher": PROFILE,
            "target": PrivacyGuarantee(epsilon=0.15, delta=3e-4),
        },
        "K=101 monotone, 2 profile points": {
            "teachers": 101,
            "teacher": TWO,
            "target": PrivacyGuarantee(epsilon=0.5, delta=1e-4),
        },
        "K=1001 monotone, r=1": {
            "teachers": 1001,
            "teacher": POINT,
            "target": PrivacyGuarantee(epsilon=0.05, delta=1e-5),
            "overlap": 1,
        },
    }
    return growth | (others if largest > 101 else {"K=11 free": others["K=11 free"]})


def measure(*, sizes: Sequence[int], repeat: int, enumerated: Sequence[int]) -> list[Record]:
    """One record per problem; then, for each K in ``enumerated``, one that compares with enumeration."""
    records = [alone(_solve, case, arguments, repeat) for case, arguments in problems(sizes).items()]
    if max(sizes) > 101:
        records.append(alone(_self_bounding, repeat))
    return records + [alone(_compare, teachers, repeat) for teachers in enumerated]


def _solve(case: str, arguments: Arguments, repeat: int) -> Record:
    optimize_noise(teachers=3, teacher=PURE, target=PURE)
    before = peak_mib()
    noises: list[Any] = []
    took = seconds(lambda: noises.append(optimize_noise(**arguments)), repeat=repeat)
    peak = peak_mib()
    calls, cuts = _calls_and_cuts(arguments)
    record = {
        "case": case,
        "teachers": arguments["teachers"],
        "seconds": round(took, 4),
        "peak_mib": peak,
        "problem_mib": round(peak - before, 1),
        "oracle_calls": calls,
        "cuts": cuts,
        "optimality_gap": noises[0].certificate.optimality_gap,
    }
    if case == f"K={arguments['teachers']} monotone":
        record["compositions"] = compositions(arguments["teachers"], overlap=arguments["teachers"], corners=3)
    return record


def _calls_and_cuts(arguments: Arguments) -> tuple[int, int]:
    """The number of oracle calls during the solution, and of constraints they returned."""
    with (
        mock.patch.object(program, "worst_losses", side_effect=program.worst_losses) as oracle,
        mock.patch.object(program._Problem, "_rows", autospec=True, side_effect=program._Problem._rows) as cut,
    ):
        optimize_noise(**arguments)
    return oracle.call_count, sum(len(call.args[1].losses) for call in cut.call_args_list)


def _self_bounding(repeat: int) -> Record:
    took = seconds(lambda: self_bounding_noise(teachers=10_001, allowance=40), repeat=repeat)
    return {"case": "K=10001 self-bounding", "teachers": 10_001, "seconds": round(took, 4), "peak_mib": peak_mib()}


def _compare(teachers: int, repeat: int) -> Record:
    target = times(POINT, 2)
    optimize_noise(teachers=3, teacher=PURE, target=PURE)
    noises: list[Any] = []
    took = seconds(
        lambda: noises.append(optimize_noise(teachers=teachers, teacher=POINT, target=target, shape="free")),
        repeat=repeat,
    )
    written = enumerate_all(teachers, target)
    reached = float(weights(teachers) @ noises[0].gamma[teachers // 2 + 1 :])
    return {
        "case": f"K={teachers} against enumerating + linprog",
        "teachers": teachers,
        "seconds": round(took, 4),
        "constraints": written["constraints"],
        **{f"{way}_seconds": round(value, 3) for way, value in written["seconds"].items()},
        **{f"times_faster_than_{way}": round(value / took, 1) for way, value in written["seconds"].items()},
        "objective_difference": max((reached - value for value in written["values"].values()), key=abs),
    }
