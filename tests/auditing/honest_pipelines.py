"""Honest pipelines, one for each route of a total: how often does an audit exceed a true claim?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import darrm_torch as dt
from tests.auditing.faulty_pipelines import Setting, X, audited, counts_of

PUBLISHED, ONE = Setting(), Setting(teachers=1, noise=1.0)
VOTING = Setting(teachers=11, noise=3.0)
TARGET = dt.PrivacyGuarantee(epsilon=2.0, delta=1e-4)


def claim_of(key: str, setting: Setting, mechanism: Any = None, *, labels: int = 1, **options: Any) -> Any:
    """What one route claims."""
    total = setting.total(mechanism, labels=labels, delta=options.pop("delta", 1e-6), **options)
    route = next(route for route in total.routes if route.key == key)
    assert route.applies
    return dt.PrivacyGuarantee(epsilon=route.epsilon, delta=total.delta)


@cache
def certified() -> dt.DaRRM:
    """One label, against teachers with a few points of the profile of ``VOTING``."""
    teacher = dt.PrivacyProfile.from_guarantee(*VOTING.profile().guarantees([1e-5]))
    return dt.DaRRM(dt.optimize_noise(teachers=11, teacher=teacher, target=TARGET, overlap=1), insecure_seed=1)


@cache
def mechanisms() -> dict[str, Any]:
    return {
        "self-bounding": dt.DaRRM(dt.self_bounding_noise(teachers=11, allowance=1), insecure_seed=1),
        "one response": dt.RandomizedPlurality(epsilon=1.0, teachers=1, insecure_seed=1),
        "majority": dt.NoiseFreeMajority(teachers=11, classes=2, insecure_seed=1),
        "response": dt.RandomizedPlurality(epsilon=2.0, teachers=11, insecure_seed=1),
    }


def labelled(
    key: str,
    name: str,
    *,
    queries: int,
    runs: int,
    setting: Setting = VOTING,
    noise: float | None = None,
    **options: Any,
) -> Any:
    """The audit of labels of the canaries, one mechanism and one route."""

    def run(seed: int) -> dt.PipelineAudit:
        mechanism = certified() if name == "certified" else mechanisms()[name]
        claim = claim_of(key, setting, mechanism, labels=queries, **options)

        def release(weights: Any, asked: Any) -> Any:
            return mechanism.aggregate(counts_of(weights, asked))

        canaries = (50.0 * np.eye(X.shape[1])[-queries:], np.ones(queries, dtype=np.int64))
        return audited(setting, claim, seed, release, {"runs": runs, "canaries": canaries}, noise=noise)

    return run


def released(key: str, setting: Setting, **chosen: Any) -> Any:
    """The audit of published teachers."""

    def run(seed: int) -> dt.PipelineAudit:
        options = {"allocation": setting.allocation} if key == "allocation" else {}
        return audited(setting, claim_of(key, setting, **options), seed, options=chosen)

    return run


ROUTES: dict[str, Callable[[int], dt.PipelineAudit]] = {
    "publishing": released("publishing", PUBLISHED),
    "publishing, one teacher": released("publishing", ONE),
    "allocation": released("allocation", PUBLISHED),
    "allocation, equal records": released("allocation", PUBLISHED, copies=4),
    "self-bounding": labelled("self-bounding", "self-bounding", queries=2, runs=500),
    "certified": labelled("certified", "certified", queries=1, runs=500, delta=1e-4),
    "label-curve": labelled("label-curve", "majority", queries=1, runs=500),
    "own-randomness": labelled("own-randomness", "one response", queries=1, runs=1000, setting=ONE, noise=0.0),
    "private-votes": labelled("private-votes", "response", queries=4, runs=250),
    "allocation-self-bounding": labelled(
        "allocation-self-bounding", "self-bounding", queries=2, runs=500, allocation=VOTING.allocation
    ),
}


def exceeded(seeds: range) -> dict[str, tuple[float, float, int, int]]:
    """For each route: the claim, the largest bound at 95 %, and how many bounds exceed the claim at 95 and 99.9 %."""
    found = {}
    for name, run in ROUTES.items():
        results = [run(seed) for seed in seeds]
        claim, above = results[0].claim.epsilon, Counter[float]()
        for result in results:
            for level in (0.95, 0.999):
                above[level] += result.lower_bound(level) > claim
        found[name] = (claim, max(result.lower_bound() for result in results), above[0.95], above[0.999])
    return found


def main() -> None:
    """200 honest runs, 20 of each kind."""
    rows = exceeded(range(20))
    print("| route | claimed | largest bound of 20, 95 % | above, 95 % | above, 99.9 % |\n|---|---|---|---|---|")
    for name, (claim, largest, often, rarely) in rows.items():
        print(f"| {name} | {claim:.2f} | {largest:.2f} | {often} | {rarely} |")
    print(f"of 200: {sum(row[2] for row in rows.values())} at 95 %, {sum(row[3] for row in rows.values())} at 99.9 %")


if __name__ == "__main__":
    main()
