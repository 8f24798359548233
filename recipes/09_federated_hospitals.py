"""Eleven hospitals: votes in one shot, a student, and federated averaging, for the same epsilon of a patient.

    python -m recipes.09_federated_hospitals

The people are the 5,912 of the RAND Health Insurance Experiment (public domain; statsmodels ships the table). The
question is whether somebody will spend more on medicines than most, from age, income, health and insurance. A fifth of
the patients are in two hospitals. All hospitals train logistic regressions by DP-SGD with a declared sampling rate, and
a patient's epsilon covers every step of both hospitals: in one shot the teachers, in federated averaging all rounds.

Each method's learning rate is chosen in the same way, on public data alone: a rehearsal in which every hospital's
patients are drawn, with replacement, from 300 people whose outcomes are public. Another 1,000 people have public
records without outcomes: the student's training data.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

import darrm_torch as dt
from darrm_torch.federated import LocalTeacher, RegisteredSite, RemoteLabeler, Site
from recipes.reproduce import linear

HOSPITALS, OVERLAP, IN_TWO, DELTA = 11, 2, 0.2, 1e-5
RATE, STEPS = 0.25, 40  # of DP-SGD
KNOWN, PUBLIC, TEST = 300, 1000, 1000  # people with public outcomes, with public records, to test with
LEARNING_RATES, CLIPS = (0.3, 1.0, 3.0, 10.0), (0.03, 0.1, 0.3)
AVERAGED = 10  # rounds of the federated averaging that protects hospitals
COLUMNS = """
    xage female black linc educdec disea physlm hlthg hlthf hlthp lnum child fchild logc idp lpi fmde mhi tookphys
"""  # as they were when somebody joined the experiment


def people() -> tuple[np.ndarray, np.ndarray]:
    """Records ``(5912, 22)`` of all people, and what they spent on medicines in a year, on average."""
    package = importlib.util.find_spec("statsmodels")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("The table comes with statsmodels: pip install statsmodels")
    years = defaultdict(list)
    file = Path(package.submodule_search_locations[0]) / "datasets" / "randhie" / "src" / "randhie.csv"
    with file.open(encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            years[line["zper"]].append({name: float(text or 0) for name, text in line.items()})
    first = [min(one, key=lambda year: year["year"]) for one in years.values()]
    records = np.array([[one[name] for name in COLUMNS.split()] for one in first])
    age, female = records[:, 0], records[:, 1]
    spent = np.array([np.mean([year["drugdol"] for year in one]) for one in years.values()])
    return np.column_stack([records, age**2, np.maximum(age - 18, 0), age * female]), spent


@dataclass(frozen=True, kw_only=True)
class Study:
    """One split of the people: inputs and outcomes of all of them, and who is where."""

    inputs: Tensor
    outcomes: Tensor
    known: np.ndarray
    public: np.ndarray
    test: np.ndarray
    hospitals: list[np.ndarray]

    @property
    def size(self) -> int:
        """The declared number of patients of a hospital."""
        return round(1.2 * (len(self.inputs) - KNOWN - PUBLIC - TEST) / HOSPITALS)

    def rehearsal(self, seed: int) -> Study:
        """The same with people whose outcomes are public, as patients, as the public and to test with."""
        random = np.random.default_rng([seed, 1])
        patients = [random.choice(self.known, self.size) for _ in range(HOSPITALS)]
        return Study(**{**vars(self), "hospitals": patients, "test": self.known})


def split(seed: int) -> Study:
    """Who is public and who is a patient of which hospital, at random; records scaled by the public people's."""
    records, spent = people()
    random = np.random.default_rng(seed)
    known, public, test, private = np.split(random.permutation(len(records)), np.cumsum([KNOWN, PUBLIC, TEST]))
    seen = np.concatenate([known, public])
    scaled = (records - records[seen].mean(axis=0)) / records[seen].std(axis=0)
    scaled = np.column_stack([scaled, np.ones(len(scaled))])
    first = random.integers(HOSPITALS, size=len(private))
    second = (first + random.integers(1, HOSPITALS, size=len(private))) % HOSPITALS
    both = random.random(len(private)) < IN_TWO
    return Study(
        inputs=functional.normalize(torch.tensor(scaled, dtype=torch.float32)),
        outcomes=torch.tensor(spent > np.median(spent[known])).long(),
        known=known,
        public=public,
        test=test,
        hospitals=[private[(first == one) | (both & (second == one))] for one in range(HOSPITALS)],
    )


# --- methods: weights or labels, from a study, the noise multiplier, a learning rate and a seed -----------------------


def trained(study: Study, noise: float, rate: float, seed: int, **how: Any) -> Tensor:
    """The weights ``(hospitals, features, 2)`` after DP-SGD in each hospital."""
    models = [
        linear.LinearModel(rows=rows, noise=noise, learning_rate=rate, size=study.size) for rows in study.hospitals
    ]
    steps = {"steps": STEPS, **how}
    return linear.train(study.inputs, study.outcomes, models, classes=2, sample_rate=RATE, seed=seed, **steps)


def scores(study: Study, weights: Tensor) -> np.ndarray:
    """The probability of the second class for the people to test with."""
    return torch.softmax(study.inputs[study.test] @ weights, dim=1)[:, 1].numpy()


def without_patients(study: Study, noise: float, rate: float, seed: int) -> Iterator[np.ndarray]:
    """A model of the people whose outcomes are public; it needs no hospital."""
    targets = functional.one_hot(study.outcomes[study.known], 2).float()
    yield scores(study, linear.student(study.inputs[study.known], targets))


def alone(study: Study, noise: float, rate: float, seed: int) -> Iterator[np.ndarray]:
    """Each hospital uses its own teacher."""
    return (scores(study, weights) for weights in trained(study, noise, rate, seed))


def majority(study: Study, noise: float, rate: float, seed: int) -> Iterator[np.ndarray]:
    """The majority of the teachers' votes."""
    votes = [scores(study, weights) > 0.5 for weights in trained(study, noise, rate, seed)]
    yield np.mean(votes, axis=0) > 0.5


def taught(study: Study, noise: float, rate: float, seed: int) -> Iterator[np.ndarray]:
    """A student that learns from the majority's labels of the public records."""
    inputs = study.inputs[study.public]
    labels = remote_labels(trained(study, noise, rate, seed), inputs, noise)[0]
    yield scores(study, linear.student(inputs, functional.one_hot(labels, 2).float()))


def averaged(study: Study, noise: float, rate: float, seed: int, *, rounds: int) -> Iterator[np.ndarray]:
    """Federated averaging: in each round every hospital makes some steps of DP-SGD with its own noise."""
    weights = torch.zeros(study.inputs.shape[1], 2)
    for number in range(rounds):
        how = {"steps": STEPS // rounds, "start": weights}
        weights = trained(study, noise, rate, 1000 * seed + number, **how).mean(dim=0)
    yield scores(study, weights)


def hospital_private(study: Study, noise: float, rate: float, seed: int, *, clip: float) -> Iterator[np.ndarray]:
    """Flower's client-level privacy: hospitals train without noise; the server clips each update and adds the noise."""
    weights = torch.zeros(study.inputs.shape[1], 2)
    random = torch.Generator().manual_seed(seed)
    for number in range(AVERAGED):
        how = {"steps": STEPS // AVERAGED, "start": weights}
        updates = trained(study, 0.0, rate, 1000 * seed + number, **how) - weights
        norms = updates.flatten(start_dim=1).norm(dim=1).clamp_min(1e-12)
        clipped = updates * (clip / norms).clamp_max(1.0)[:, None, None]
        drawn = noise * clip * torch.randn(weights.shape, generator=random)
        weights = weights + (clipped.sum(dim=0) + drawn) / HOSPITALS
    yield scores(study, weights)


# --- the wire and the price -------------------------------------------------------------------------------------------


def remote_labels(weights: Tensor, inputs: Tensor, noise: float) -> tuple[Tensor, float, int]:
    """Labels by the library's own protocol, in this process; a patient's epsilon; the bytes of all messages."""
    sent = 0
    sites = []
    for one in weights:
        model = nn.Linear(one.shape[0], 2, bias=False)
        model.weight.data = one.T.contiguous()
        sites.append(Site(LocalTeacher(model), key=new_key(), classes=2))

    def exchange(request: bytes) -> Iterator[tuple[str, bytes]]:
        nonlocal sent
        for number, site in enumerate(sites):
            answer = site.answer(request)
            sent += len(request) + len(answer)
            yield f"node {number}", answer

    known = [RegisteredSite(name=f"hospital {number}", **site.registration) for number, site in enumerate(sites)]
    profiles = [dt.PrivacyProfile.from_dp_sgd([(noise, RATE, STEPS)]) if noise else dt.PrivacyProfile.non_private()]
    labeler = dt.PrivateLabeler(
        dt.NoiseFreeMajority(),
        teachers=[site.digest for site in known],
        profiles=profiles * len(known),
        overlap=OVERLAP,
        classes=2,
        delta=DELTA,
        ledger=dt.PrivacyLedger(),
    )
    labels = RemoteLabeler(labeler, known, exchange)(inputs.numpy())
    return torch.from_numpy(labels), labeler.total_privacy(labels=len(labels)).epsilon, sent


def new_key() -> Any:
    """A signing key that is not kept; a hospital keeps its key: site_key(FILE)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


# --- the comparison ---------------------------------------------------------------------------------------------------

Method = Callable[[Study, float, float, int], Iterator[np.ndarray]]
METHODS: dict[str, tuple[Sequence[Method], int, str]] = {  # variants that the rehearsal chooses from; rounds; unit
    "300 public outcomes, no hospital": ([without_patients], 0, "nobody"),
    "a hospital alone": ([alone], 0, "patient"),
    "one shot: majority of votes": ([majority], 1, "patient"),
    "one shot and student": ([taught], 1, "patient"),
    "federated averaging": ([partial(averaged, rounds=10)], 10, "patient"),
    "federated averaging ": ([partial(averaged, rounds=40)], 40, "patient"),
    "client-level privacy": ([partial(hospital_private, clip=clip) for clip in CLIPS], AVERAGED, "hospital"),
}


def quality(study: Study, guesses: Iterator[np.ndarray]) -> np.ndarray:
    """Balanced accuracy and area under the curve, the mean over the models; no area for labels without scores."""
    truth = study.outcomes[study.test].numpy()
    found = []
    for one in guesses:
        area = roc_auc_score(truth, one) if one.dtype.kind == "f" else math.nan
        found.append((balanced_accuracy_score(truth, one > 0.5), area))
    return np.mean(found, axis=0)


def rehearsed(study: Study, variants: Sequence[Method], noise: float, seed: int) -> tuple[Method, float]:
    """The variant and learning rate with the best balanced accuracy in five rehearsals on public people."""
    plays = [study.rehearsal(number) for number in range(5)]
    choices = [(variant, rate) for variant in variants for rate in LEARNING_RATES]
    return max(
        choices,
        key=lambda one: sum(
            quality(play, one[0](play, noise, one[1], 100 + 10 * seed + number))[0] for number, play in enumerate(plays)
        ),
    )


def main(*, epsilons: Sequence[float] = (1.0, 2.0, 4.0), seeds: int = 5) -> list[dict[str, Any]]:
    """Compare all methods; returns the rows that it prints."""
    torch.set_num_threads(1)
    studies = [split(seed) for seed in range(seeds)]
    features = studies[0].inputs.shape[1]
    rows = []
    for epsilon in epsilons:
        total = dt.PrivacyGuarantee(epsilon=epsilon, delta=DELTA)
        noise = dt.calibrate_noise(total=total, sample_rate=RATE, steps=OVERLAP * STEPS)
        hospital_noise = dt.calibrate_noise(total=total, sample_rate=1.0, steps=AVERAGED)
        teacher = dt.PrivacyProfile.from_dp_sgd([(noise, RATE, STEPS)])
        by_rounds = teacher.compose(OVERLAP).epsilon(DELTA)
        some = torch.arange(HOSPITALS * features * 2.0).view(HOSPITALS, features, 2)  # any weights have this price
        _, by_labels, one_shot = remote_labels(some, studies[0].inputs[:PUBLIC], noise)
        prices = {"nobody": 0.0, "patient": by_rounds, "hospital": epsilon}
        for name, (variants, rounds, unit) in METHODS.items():
            level = hospital_noise if unit == "hospital" else noise
            found = []
            for seed, study in enumerate(studies):
                method, rate = rehearsed(study, variants, level, seed)
                found.append(quality(study, method(study, level, rate, seed)))
            mean, deviation = np.mean(found, axis=0), np.std(found, axis=0, ddof=min(1, seeds - 1))
            moved = one_shot if rounds == 1 else 2 * HOSPITALS * rounds * features * 2 * 4
            rows.append(
                {
                    "method": name.strip(),
                    "epsilon": by_labels if rounds == 1 else prices[unit],
                    "unit": unit,
                    "balanced_accuracy": [mean[0], deviation[0]],
                    "area_under_curve": None if math.isnan(mean[1]) else [mean[1], deviation[1]],
                    "rounds": rounds,
                    "kilobytes": round(moved / 1000),
                }
            )
            print(as_line(rows[-1]), flush=True)
    return rows


def as_line(row: dict[str, Any]) -> str:
    """A row of the table in Markdown."""
    accuracy, deviation = row["balanced_accuracy"]
    area = "" if row["area_under_curve"] is None else "{:.3f} ({:.3f})".format(*row["area_under_curve"])
    cells = [
        f"{row['epsilon']:.2f}",
        row["unit"],
        f"{accuracy:.3f} ({deviation:.3f})",
        area,
        row["rounds"],
        row["kilobytes"],
    ]
    return f"| {row['method']} | " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="splits of the people (default: %(default)s)")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 2.0, 4.0], help="of a patient")
    parser.add_argument("--out", type=Path, help="write the rows as JSON to this file")
    options = parser.parse_args()
    print("| method | epsilon | of a | balanced accuracy (std) | area under curve (std) | rounds | kB |")
    print("|---|---|---|---|---|---|---|")
    table = main(epsilons=options.epsilons, seeds=options.seeds)
    if options.out:
        options.out.write_text(json.dumps(table, indent=2) + "\n")
