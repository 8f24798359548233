"""Private tuning on Fashion-MNIST, everything included in the total: what it finds, and what it costs.

Five softmax regressions on fixed features, all trained on every record that is not held out (see
:mod:`recipes.reproduce.linear`), answer with their mean probabilities. Twelve candidates: learning rate, clipping bound
and steps. Each run draws one of them. Its score is the noisy accuracy on held-out records.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dp_accounting import dp_event, rdp

import darrm_torch as dt
from darrm_torch.errors import InvalidArgument

from ..data import load_task
from . import linear
from .result import Result, Table
from .study import Features, fashion, featured, mean_probabilities

TASKS = ("5v8", "2v4")
SEEDS = (31, 32, 33, 34, 35)
TOTAL = dt.PrivacyGuarantee(epsilon=1.0, delta=1e-5)
TEACHERS = 5
SAMPLE_RATE = 1 / 35
HELD_OUT = 0.1
RUNS = dt.RandomRuns(mean=30)
SCORE = 0.3  # epsilon of the score of a run
VALIDATION = dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=SCORE))
Candidate = tuple[float, float, int]  # learning rate, clipping bound, steps
CANDIDATES: tuple[Candidate, ...] = tuple(itertools.product((0.5, 4.0, 32.0), (0.1, 1.0), (70, 175)))
EXPECTED = (1, 5, 20, 100)


@functools.cache
def noises(*, tuned: bool) -> dict[int, float]:
    """The noise multiplier for each number of steps: of the best of several runs, or of one run with the total."""
    choosing: dict[str, Any] = {"runs": RUNS, "validation": VALIDATION} if tuned else {}
    found = {
        steps: dt.calibrate_noise(TOTAL, sample_rate=SAMPLE_RATE, steps=steps, overlap=TEACHERS, **choosing)
        for steps in sorted({steps for *_, steps in CANDIDATES})
    }
    while tuned and tuned_epsilon(found) > TOTAL.epsilon:  # each alone keeps it; now all together
        found = {steps: 1.001 * noise for steps, noise in found.items()}
    return found


def tuned_epsilon(found: dict[int, float]) -> float:
    """What the best run costs with these noise multipliers."""
    profiles = [dt.PrivacyProfile.from_dp_sgd([(noise, SAMPLE_RATE, steps)]) for steps, noise in found.items()]
    return dt.tuning_epsilon(profiles, TOTAL.delta, runs=RUNS, overlap=TEACHERS, validation=VALIDATION)


def prices() -> Table:
    """The price of tuning against the expected number of runs, for the noise of the tuned teachers."""
    steps, noise = max(noises(tuned=True).items())
    teacher = dt.PrivacyProfile.from_dp_sgd([(noise, SAMPLE_RATE, steps)])
    rows = []
    for mean in EXPECTED:
        costs = [
            dt.tuning_epsilon(teacher, TOTAL.delta, runs=dt.RandomRuns(mean=mean, shape=shape), overlap=TEACHERS)
            for shape in (0, 1, math.inf)
        ]
        step = dp_event.PoissonSampledDpEvent(SAMPLE_RATE, dp_event.GaussianDpEvent(noise))
        accountant = rdp.RdpAccountant()
        run = dp_event.SelfComposedDpEvent(step, steps * TEACHERS)
        accountant.compose(dp_event.RepeatAndSelectDpEvent(run, mean, 1))
        naive = teacher.compose(TEACHERS * mean).epsilon(TOTAL.delta)
        rows.append((mean, *costs, accountant.get_epsilon(TOTAL.delta), naive))
    return Table(
        caption=f"Epsilon at 1e-5 of the best of several trainings of {TEACHERS} teachers, each with {steps} steps and "
        f"a noise multiplier of {noise:.2f}.",
        columns=("expected runs", "logarithmic", "geometric", "Poisson", "geometric, Renyi", "all runs published"),
        rows=tuple(rows),
        digits=3,
    )


def ensembles(
    task: Features, chosen: Sequence[int], rows: np.ndarray, noise: dict[int, float], *, scale: float = 1.0, seed: str
) -> list[torch.Tensor]:
    """The weights ``(K, features, classes)`` of an ensemble for each number of a candidate in ``chosen``."""
    found: dict[int, torch.Tensor] = {}
    for clip, steps in sorted({CANDIDATES[number][1:] for number in chosen}):
        alike = [place for place, number in enumerate(chosen) if CANDIDATES[number][1:] == (clip, steps)]
        for part in (alike[start : start + 8] for start in range(0, len(alike), 8)):  # in little memory
            models = [
                linear.LinearModel(
                    rows=rows, noise=scale * noise[steps], learning_rate=CANDIDATES[chosen[place]][0], size=task.records
                )
                for place in part
                for _ in range(TEACHERS)
            ]
            weights = linear.train(
                *task.private,
                models,
                classes=task.classes,
                sample_rate=SAMPLE_RATE,
                steps=steps,
                clip=clip,
                seed=int.from_bytes(hashlib.sha256(f"{task.name} {seed} {part} {clip}".encode()).digest()[:6], "big"),
            )
            found |= dict(zip(part, weights.unflatten(0, (len(part), TEACHERS)), strict=True))
    return [found[place] for place in range(len(chosen))]


def answers(weights: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """``(N,)``: the most probable classes."""
    return mean_probabilities(linear.probabilities(weights, inputs)).argmax(dim=1)


def accuracy(task: Features, weights: torch.Tensor) -> float:
    """On the public and the test images: what no choice looks at."""
    inputs, truth = (torch.cat([task.public[part], task.heldout[part]]) for part in (0, 1))
    return float((answers(weights, inputs) == truth).double().mean())


def tuned(task: Features, seed: int) -> tuple[float, int]:
    """The accuracy of the best run, and how many runs there were."""
    random = np.random.default_rng([seed, len(task.name)])
    held_out = random.random(len(task.private[1])) < HELD_OUT
    count = 1 + int(random.negative_binomial(1, 1 / RUNS.mean))  # geometric, as RUNS; repeatable
    chosen = random.integers(len(CANDIDATES), size=count).tolist()
    runs = ensembles(task, chosen, np.flatnonzero(~held_out), noises(tuned=True), seed=f"tuned {seed}")
    inputs, truth = (part[torch.from_numpy(held_out)] for part in task.private)
    scores = []
    for number, weights in enumerate(runs):
        right = int((answers(weights, inputs) == truth).sum())
        noisy = dt.private_counts([right, len(truth) - right], epsilon=SCORE, insecure_seed=1000 * seed + number)
        scores.append(float(noisy[0] / max(1, noisy.sum())))
    return accuracy(task, runs[int(np.argmax(scores))]), count


def every(task: Features, seed: int, *, alone: bool, scale: float = 1.0) -> list[float]:
    """The accuracy of each candidate: at the price of one run of the tuning, or alone with the whole total."""
    random = np.random.default_rng([seed, len(task.name)])
    rows = np.flatnonzero(alone | (random.random(len(task.private[1])) >= HELD_OUT))
    numbers = range(len(CANDIDATES))
    weights = ensembles(task, numbers, rows, noises(tuned=not alone), scale=scale, seed=f"{alone} {seed}")
    return [accuracy(task, one) for one in weights]


def tuning(
    *,
    tasks: Sequence[str] = TASKS,
    seeds: Sequence[int] = SEEDS,
    data_folder: Path | None = None,
    limit: int | None = None,
) -> Result:
    """Tuning beside the best candidate in hindsight, and beside a choice on public digits."""
    title = f"Private tuning within a total of {TOTAL}: {len(CANDIDATES)} candidates, Fashion-MNIST"
    try:
        loaded = [fashion(name, data_folder=data_folder, limit=limit) for name in tasks]
    except InvalidArgument as error:
        return Result(name="tuning", title=title, tables=(), notes=(f"Not made: {error}",))
    digits = featured("digits, even-odd", load_task("mnist-5000"))
    rows, notes = [], []
    for task in loaded:
        won = np.array([tuned(task, seed) for seed in seeds])
        alike, alone = (np.array([every(task, seed, alone=one) for seed in seeds]) for one in (False, True))
        scale = digits.records / task.records
        proxy = int(np.argmax(np.mean([every(digits, seed, alone=True, scale=scale) for seed in seeds], axis=0)))
        found, best, whole = won[:, 0].mean(), alike.mean(axis=0).max(), alone.mean(axis=0)
        rows.append(
            (task.name, alike.mean(), found, best, best - found, whole.max(), whole.max() - found, whole[proxy])
        )
        notes.append(
            f"{task.name}: {[int(count) for count in won[:, 1]]} runs; tuning is "
            f"{'within' if best - found <= 0.01 else 'not within'} .01 of the best candidate at the same price of a "
            f"run. The candidate that the public digits choose, {CANDIDATES[proxy]}, costs nothing to find; with the "
            f"whole total it is {abs(whole[proxy] - found):.3f} {'better' if whole[proxy] >= found else 'worse'}."
        )
    table = Table(
        caption=f"Accuracy, mean of {len(seeds)} seeds.",
        columns=(
            "task",
            "a random candidate",
            "tuned",
            "best in hindsight",
            "gap",
            "best with the whole total",
            "gap",
            "chosen on digits, whole total",
        ),
        rows=tuple(rows),
        digits=4,
    )
    return Result(name="tuning", title=title, tables=(table, prices()), notes=tuple(notes))
