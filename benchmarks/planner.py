"""The planner's regret: how much less accurate the recommendation is than the best strategy that the planner lists.

Each setting is a pair of Fashion-MNIST classes, K, r, the noise multiplier of the private teachers, Q and a total. Real
teachers vote on the pair's 2,000 test images; the accuracy of a strategy is exact: the mean over the images of
`label_probabilities`. Strategies that rest on the mechanism's own randomness read teachers trained without privacy. The
oracle is the most accurate of all strategies that keep the total.

`regret`: the planner is told what a user can know in public: the accuracies of one teacher and of the majority, private
and plain, on another pair of classes (the proxy), for teachers trained in the same way. `regret_if_told_nothing`: by
the default beliefs.

`settings.json` has the 18 settings of the test, and 12 others on other pairs of classes, on which every choice was made
(`development`). `python -m benchmarks.planner FILE` measures the settings of another file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import darrm_torch as dt

from .measuring import Record
from .votes import RATE, STEPS, accuracies, votes

FILE = Path(__file__).with_name("settings.json")
DELTA = 1e-5
PROXIES = {"2v4": "0v6", "0v6": "2v4", "5v8": "1v9", "5v7": "1v3"}  # pairs of the test: another pair of a like kind
DEVELOPMENT = {"0v3": "1v2", "2v6": "3v4", "7v9": "5v1", "4v6": "0v2"}


def draw(count: int, *, seed: int, pairs: dict[str, str]) -> list[dict[str, Any]]:
    """Settings from the stated ranges: K 5 to 33, r 1 to K, sigma 1 to 12, Q 1 to 100, epsilon 0.1 to 5."""
    rng, settings = np.random.default_rng(seed), []
    for number in range(count):
        teachers = int(rng.integers(5, 34))
        pair = list(pairs)[number % len(pairs)]
        settings.append(
            {
                "pair": pair,
                "proxy": pairs[pair],
                "teachers": teachers,
                "overlap": int(rng.integers(1, teachers + 1)),
                "noise_multiplier": round(float(np.exp(rng.uniform(0, np.log(12)))), 2),
                "labels": round(float(np.exp(rng.uniform(0, np.log(100))))),
                "epsilon": round(float(np.exp(rng.uniform(np.log(0.1), np.log(5)))), 2),
                "seed": number,
            }
        )
    return settings


def accuracy(row: dt.Strategy, given: Any, truth: Any) -> float:
    """The exact accuracy of a strategy on these votes; where fewer vote, over all ways of choosing them."""
    assert row.mechanism is not None
    teachers, read = given.shape[1], np.arange(row.voters + 1)
    law = row.mechanism.label_probabilities(np.stack([row.voters - read, read], axis=1))[:, :2]
    chosen = stats.hypergeom.pmf(read, teachers, np.arange(teachers + 1)[:, None], row.voters)  # (K + 1, voters + 1)
    return float((chosen @ law)[given.sum(axis=1), truth].mean())


def examine(setting: dict[str, Any], folder: Path | None = None) -> Record:
    """The regret of one setting."""
    teachers, noise = setting["teachers"], setting["noise_multiplier"]
    ask: dict[str, Any] = {"teachers": teachers, "overlap": setting["overlap"], "seed": setting["seed"]}

    def read(pair: str, noise: float | None) -> tuple[Any, Any]:
        return votes(f"fashion-mnist {pair}", noise=noise, folder=folder, **ask)

    known = {
        name: tuple(max(0.501, share) for share in accuracies(*read(setting["proxy"], given)))
        for name, given in (("teacher_accuracy", noise), ("plain_accuracy", None))
    }
    question: dict[str, Any] = {
        "teachers": teachers,
        "overlap": setting["overlap"],
        "teacher": dt.PrivacyProfile.from_dp_sgd([(noise, RATE, STEPS)]),
        "labels": setting["labels"],
        "total_target": dt.PrivacyGuarantee(epsilon=setting["epsilon"], delta=DELTA),
    }
    private, plain = read(setting["pair"], noise), read(setting["pair"], None)
    best: dict[str, tuple[float, str]] = {}
    rivals: list[tuple[float, str]] = []
    for name, told in (("told", known), ("default", {})):
        rows = [row for row in dt.plan(**question, **told).rows if row.meets]
        measured = [(accuracy(row, *(plain if row.own_randomness else private)), row.name) for row in rows]
        best[name] = measured[0]
        rivals += measured
    oracle = max(rivals)
    case = (
        f"{setting['pair']}, K={teachers}, r={setting['overlap']}, sigma={noise}, Q={setting['labels']}, "
        f"epsilon={setting['epsilon']}"
    )
    return {
        "case": case,
        "recommended": best["told"][1],
        "accuracy": round(best["told"][0], 4),
        "oracle": oracle[1],
        "oracle_accuracy": round(oracle[0], 4),
        "regret": round(oracle[0] - best["told"][0], 4),
        "regret_if_told_nothing": round(oracle[0] - best["default"][0], 4),
        "private": "{:.3f}, {:.3f}".format(*accuracies(*private)),
        "plain": "{:.3f}, {:.3f}".format(*accuracies(*plain)),
    }


def measure(
    *, settings: str, count: int | None = None, file: Path = FILE, folder: Path = Path("runs/benchmarks/votes")
) -> list[Record]:
    """One record per setting, and one of the largest regret."""
    records = []
    for setting in json.loads(file.read_text())[settings][:count]:
        records.append(examine(setting, folder))
        print(json.dumps(records[-1]), file=sys.stderr, flush=True)
    names = ("regret", "regret_if_told_nothing")
    return [*records, {"case": "largest"} | {name: max(record[name] for record in records) for name in names}]


if __name__ == "__main__":
    measure(settings=(sys.argv[2:] or ["settings"])[0], file=Path(sys.argv[1]))
