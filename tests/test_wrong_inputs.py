"""Wrong inputs: every parameter of every export refuses them with an error of the library that names the parameter.

The matrix builds itself: each public callable has one valid call in ``CALLS``, its signature gives the parameters and
their types, and ``VALUES`` gives what is wrong for each type. What is accepted on purpose stands in ``ACCEPTED``.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import re
import signal
import types
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import darrm_torch as dt

SECONDS = 5
HALF = dt.PrivacyGuarantee(epsilon=0.5, delta=1e-5)
VOTES = np.array([[2, 1], [0, 3]])


# --- valid calls ------------------------------------------------------------------------------------------------------


@functools.cache
def tuned_shards() -> dt.Shards:
    return dt.assign_shards(6, teachers=2, holdout=0.2)


@functools.cache
def noise() -> dt.NoiseFunction:
    return dt.self_bounding_noise(teachers=3, allowance=1)


@functools.cache
def certified() -> dt.NoiseFunction:
    return dt.optimize_noise(teachers=3, teacher=HALF, target=dt.PrivacyGuarantee(epsilon=1.0, delta=1e-4))


@functools.cache
def profile() -> dt.PrivacyProfile:
    return dt.PrivacyProfile.from_dp_sgd([(12.0, 1 / 35, 10)])


@functools.cache
def a_plan() -> dt.Plan:
    return dt.plan(teachers=3, teacher=HALF, labels=2, label_target=dt.PrivacyGuarantee(epsilon=1.0, delta=1e-4))


@functools.cache
def networks() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(4, 2) for _ in range(3)]


def ensemble() -> dt.PrivateMajorityEnsemble:
    return dt.PrivateMajorityEnsemble(networks(), dt.DaRRM(noise()))


def allocation() -> dt.RandomAllocation:
    return dt.RandomAllocation(teachers=3)


def network() -> nn.Module:
    return nn.Linear(4, 2)


def student() -> dt.lightning.StudentModule:
    return dt.lightning.StudentModule(network())


def counted() -> dt.DataDependentLoss:
    return dt.DataDependentLoss(mechanism=dt.GNMax(sigma=2.0), counts=VOTES)


class Site:
    digest = "site"

    def vote(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(inputs), dtype=torch.int64)


def validated() -> dict[str, Any]:
    declared = dt.RandomAllocation(teachers=3, holdout=0.5, validation=dt.PrivateValidation(epsilon=0.5))
    settings = {"profiles": [profile()] * 3, "allocation": declared, "ledger": dt.PrivacyLedger()}
    return {
        "ensemble": dt.PrivateMajorityEnsemble(networks(), dt.NoiseFreeMajority(), **settings),
        "dataset": TensorDataset(torch.zeros(6, 4), torch.zeros(6, dtype=torch.int64)),
        "shards": dt.assign_shards(6, teachers=3, holdout=0.5),
    }


def site_ledger() -> dt.PrivacyLedger:
    return dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=100.0))


def labeler() -> dt.PrivateLabeler:
    return dt.PrivateLabeler(
        dt.NoiseFreeMajority(), teachers=["a", "b", "c"], classes=2, overlap=1, ledger=dt.PrivacyLedger()
    )


def registered_sites() -> list[dt.federated.RegisteredSite]:
    return [dt.federated.RegisteredSite(name=name, digest=name, public_key=f"{ord(name):064x}") for name in "abc"]


def no_answers(request: bytes) -> list[tuple[str, bytes]]:
    return []


def signing_key() -> Any:
    return pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519").Ed25519PrivateKey.generate()


def a_site() -> dt.federated.Site:
    pytest.importorskip("flwr")
    return dt.federated.Site(dt.federated.LocalTeacher(network()), key=signing_key(), classes=2)


def a_grid() -> Any:
    return types.SimpleNamespace(get_node_ids=list, push_messages=list, pull_messages=list)


def drawn_labels(new: Any) -> list[int]:
    return [1 for _ in new]


def a_pipeline(inputs: Any, labels: Any) -> Any:
    return lambda queries: np.zeros(len(queries))


def an_audit() -> dt.PipelineAudit:
    return dt.audit_pipeline(**CALLS["audit_pipeline"]())


def total_of(labels: int) -> dt.TotalPrivacy:
    return dt.total_privacy(teachers=[HALF] * 3, mechanism=dt.NoiseFreeMajority(), labels=labels, delta=1e-4)


def used_ledger() -> dt.PrivacyLedger:
    ledger = dt.PrivacyLedger(cost=dt.PrivacyGuarantee(epsilon=0.1))
    ledger.answer([b"a"], drawn_labels)
    return ledger


@functools.cache
def no_figure() -> Any:
    return pytest.importorskip("matplotlib.figure").Figure().add_subplot()


X, PUBLIC = torch.zeros(2, 4), torch.zeros(6, 4)
RUNS = [(12.0, 1 / 35, 10)]
IMAGES = torch.zeros(2, 1, 8, 8)

# For a function or class: its arguments. For a method: the object, or what builds it, and the arguments.
CALLS: dict[str, Callable[[], Any]] = {
    "BetaVotes": lambda: {"a": 2.0, "b": 1.0},
    "ConfidentGNMax": lambda: {"threshold": 2.0, "sigma_check": 2.0, "sigma": 1.0},
    "ConfidentGNMax.calibrated": lambda: (dt.ConfidentGNMax, {"target": HALF, "threshold": 2.0}),
    "DaRRM": lambda: {"noise": noise()},
    "DataDependentLoss": lambda: {"mechanism": dt.GNMax(sigma=2.0), "counts": VOTES},
    "DataDependentLoss.guarantee": lambda: (counted(), {"delta": 1e-5}),
    "DataDependentLoss.labels_within": lambda: (
        counted(),
        {"target": dt.PrivacyGuarantee(epsilon=9.0, delta=1e-5), "order": 8.0},
    ),
    "DataDependentLoss.renyi": lambda: (counted(), {"orders": [2.0]}),
    "DataDependentLoss.sanitised": lambda: (counted(), {"delta": 1e-5, "order": 8.0}),
    "DistributedEnsemble": lambda: {"ensemble": ensemble()},
    "ExponentialMechanism": lambda: {"epsilon": 1.0},
    "GNMax": lambda: {"sigma": 2.0},
    "GNMax.calibrated": lambda: (dt.GNMax, {"target": HALF}),
    "IndependentVotes": lambda: {"mean": 0.7},
    "InteractiveGNMax": lambda: {"threshold": 2.0, "sigma_check": 2.0, "sigma": 1.0},
    "InteractiveGNMax.calibrated": lambda: (dt.InteractiveGNMax, {"target": HALF, "threshold": 2.0}),
    "InteractiveGNMax.given": lambda: (
        dt.InteractiveGNMax(threshold=2.0, sigma_check=2.0, sigma=1.0),
        {"guesses": [[0.5, 0.5]]},
    ),
    "LNMax": lambda: {"scale": 2.0},
    "LNMax.calibrated": lambda: (dt.LNMax, {"target": dt.PrivacyGuarantee(epsilon=0.5)}),
    "NoiseFreeMajority": dict,
    "NoiseFunction": lambda: {"gamma": [1.0, 0.5, 0.5, 1.0]},
    "NoiseFunction.error": lambda: (noise(), {"vote_probabilities": [0.2, 0.5, 0.9]}),
    "NoiseFunction.expected_error": lambda: (noise(), {"prior": dt.IndependentVotes(mean=0.5), "samples": 50}),
    "NoiseFunction.from_json": lambda: (dt.NoiseFunction, {"text": noise().to_json()}),
    "NoiseFunction.label_probability": lambda: (noise(), {"counts": [0, 1, 3]}),
    "PermuteAndFlip": lambda: {"epsilon": 1.0},
    "Plan.at": lambda: (a_plan(), {"epsilon": 1.0}),
    "Plan.costs": lambda: (a_plan(), {"agreement": 0.5}),
    "Plan.teachers_needed": lambda: (a_plan(), {"agreement": 0.5}),
    "PluralityVotes": lambda: {"accuracy": 0.7},
    "PrivacyGuarantee": lambda: {"epsilon": 0.5, "delta": 1e-5},
    "PrivacyLedger": lambda: {"path": ":memory:", "budget": HALF, "cost": dt.PrivacyGuarantee(epsilon=0.1)},
    "PrivacyLedger.answer": lambda: (dt.PrivacyLedger(), {"keys": [b"a"], "draw": drawn_labels}),
    "PrivacyLedger.bind": lambda: (dt.PrivacyLedger(), {"identity": {"mechanism": "m"}}),
    "PrivacyLedger.bound": lambda: (dt.PrivacyLedger(), {"name": "mechanism"}),
    "PrivacyLedger.check": lambda: (dt.PrivacyLedger(), {"keys": [b"a"]}),
    "PrivacyLedger.differences": lambda: (dt.PrivacyLedger(), {"identity": {"mechanism": "m"}}),
    "PrivacyLedger.export_json": lambda: (dt.PrivacyLedger(), {"stream": __import__("io").StringIO()}),
    "PrivacyLedger.left": lambda: (dt.PrivacyLedger(budget=HALF, cost=dt.PrivacyGuarantee(epsilon=0.1)), {"most": 3}),
    "PrivacyLedger.note": lambda: (dt.PrivacyLedger(), {"name": "for", "text": "a survey"}),
    "PrivacyLedger.spent": lambda: (dt.PrivacyLedger(budget=HALF, cost=HALF), {"labels": 1}),
    "PrivacyProfile.compose": lambda: (profile(), {"other": 2}),
    "PrivacyProfile.delta": lambda: (profile(), {"epsilon": 0.1}),
    "PrivacyProfile.epsilon": lambda: (profile(), {"delta": 1e-5}),
    "PrivacyProfile.from_dict": lambda: (dt.PrivacyProfile, {"value": profile().to_dict()}),
    "PrivacyProfile.from_dp_sgd": lambda: (dt.PrivacyProfile, {"history": RUNS}),
    "PrivacyProfile.from_guarantee": lambda: (dt.PrivacyProfile, {"guarantee": HALF}),
    "PrivacyProfile.guarantees": lambda: (profile(), {"deltas": [1e-5]}),
    "PrivacyProfile.weakest": lambda: (dt.PrivacyProfile, {"profiles": [profile(), HALF]}),
    "PrivacyReading.check": lambda: (dt.read_privacy(RUNS, delta=1e-5).reading, {"source": RUNS}),
    "PrivateMajorityEnsemble": lambda: {"models": networks(), "mechanism": dt.DaRRM(noise())},
    "PrivateMajorityEnsemble.check_budget": lambda: (
        dt.PrivateMajorityEnsemble(
            networks(), dt.DaRRM(noise()), profiles=[profile()] * 3, ledger=dt.PrivacyLedger(budget=HALF)
        ),
        {"batches": [X]},
    ),
    "PrivateMajorityEnsemble.forward": lambda: (ensemble(), {"inputs": X}),
    "PrivateMajorityEnsemble.from_opacus": lambda: (
        dt.PrivateMajorityEnsemble,
        {
            "models": networks(),
            "engines": [list(RUNS) for _ in range(3)],
            "delta": 1e-5,
            "allowance": 1.0,
            "noise": "self-bounding",
        },
    ),
    "PrivateMajorityEnsemble.privacy_report": lambda: (ensemble(), {}),
    "PrivateMajorityEnsemble.sensitive_counts": lambda: (ensemble(), {"inputs": X}),
    "PrivateMajorityEnsemble.sensitive_votes": lambda: (ensemble(), {"inputs": X}),
    "PrivateMajorityEnsemble.set_extra_state": lambda: (lambda e: (e, {"state": e.get_extra_state()}))(ensemble()),
    "PrivateMajorityEnsemble.spending_from": lambda: (ensemble(), {"ledger": dt.PrivacyLedger()}),
    "PrivateMajorityEnsemble.total_privacy": lambda: (ensemble(), {"labels": 2}),
    "RandomAllocation": lambda: {"teachers": 3},
    "RandomAllocation.from_dict": lambda: (dt.RandomAllocation, {"value": allocation().to_dict()}),
    "RandomizedPlurality": lambda: {"epsilon": 1.0},
    "SelfBoundingPlurality": lambda: {"teachers": 3, "classes": 3, "allowance": 1.0},
    "SelfBoundingPlurality.expected_accuracy": lambda: (
        dt.SelfBoundingPlurality(teachers=3, classes=3, allowance=1.0),
        {"prior": dt.PluralityVotes(accuracy=0.7)},
    ),
    "VotePrivatePlurality.expected_accuracy": lambda: (
        dt.VotePrivatePlurality(teachers=3, classes=3, epsilon=1.0),
        {"prior": dt.PluralityVotes(accuracy=0.7)},
    ),
    "SharedVotes": lambda: {"low": 0.5, "high": 0.9},
    "ignored_records": lambda: {"inputs": torch.zeros(3, 2), "labels": torch.tensor([0, 1, 2]), "classes": 2},
    "TrainingSettings": lambda: {"noise_multiplier": 2.0, "max_grad_norm": 1.0, "batch_size": 4, "epochs": 1},
    "TrainingSettings.steps_per_epoch": lambda: (dt.TrainingSettings(), {"shard_size": 100}),
    "VotePrivatePlurality": lambda: {"teachers": 3, "classes": 3, "epsilon": 1.0},
    "PrivateValidation": lambda: {"epsilon": 0.5},
    "AccuracyEstimate": lambda: {"of": "labels", "right": (90, 80), "wrong": (10, 20), "epsilon": 0.5},
    "validate": lambda: validated(),
    "private_counts": lambda: {"counts": [[3, 1]], "epsilon": 0.5},
    "accuracy_interval": lambda: {"right": 9, "wrong": 1, "epsilon": 0.5},
    "allocated_delta": lambda: {"profile": HALF, "allocation": allocation(), "epsilon": 0.1},
    "allocated_epsilon": lambda: {"profile": HALF, "allocation": allocation(), "delta": 1e-4},
    "as_if_redrawn": lambda: {"label": HALF, "labels": 3, "slack": 1e-6},
    "assign_shards": lambda: {"records": ["a", "b", "c"], "teachers": 3, "key": bytes(16)},
    "audit": lambda: {
        "mechanism": dt.GNMax(sigma=4.0, classes=2),
        "claim": HALF,
        "teachers": 3,
        "samples": 2000,
        "seed": 0,
    },
    "audit_pipeline": lambda: {
        "pipeline": a_pipeline,
        "inputs": np.zeros((5, 4)),
        "labels": np.array([0, 1, 0, 1, 0]),
        "claim": HALF,
        "canaries": 3,
        "runs": 1,
        "copies": 1,
        "seed": 0,
    },
    "calibrate_noise": lambda: {"total": HALF, "sample_rate": 0.05, "steps": 10},
    "certify": lambda: {
        "gamma": certified().gamma,
        "teachers": 3,
        "teacher": HALF,
        "target": dt.PrivacyGuarantee(epsilon=1.0, delta=1e-4),
    },
    "PrivateLabeler": lambda: {
        "mechanism": dt.NoiseFreeMajority(),
        "teachers": ["a", "b", "c"],
        "classes": 2,
        "ledger": dt.PrivacyLedger(),
    },
    "PrivateLabeler.label": lambda: (labeler(), {"keys": [b"a", b"b"], "votes": [[0, 1], [1, 1], [0, 1]]}),
    "PrivateLabeler.label_counts": lambda: (labeler(), {"keys": [b"a", b"b"], "counts": [[2, 1], [0, 3]]}),
    "PrivateLabeler.answer": lambda: (labeler(), {"keys": [b"a"], "counts": lambda rows, juries: np.array([[2, 1]])}),
    "PrivateLabeler.check_budget": lambda: (labeler(), {"keys": [b"a"]}),
    "PrivateLabeler.spending_from": lambda: (labeler(), {"ledger": dt.PrivacyLedger()}),
    "PrivateLabeler.total_privacy": lambda: (labeler(), {"labels": 2}),
    "PrivateLabeler.privacy_report": lambda: (labeler(), {"as_dict": True}),
    "StoredTeacher": lambda: {"file": PLACES["weights"], "build_model": network},
    "StoredTeacher.vote": lambda: (dt.StoredTeacher(PLACES["weights"], network), {"inputs": torch.zeros(2, 4)}),
    "label_loader": lambda: {
        "labeler": dt.PrivateLabeler(dt.NoiseFreeMajority(), teachers=[Site()], classes=2, ledger=dt.PrivacyLedger()),
        "loader": [torch.zeros(2, 4), torch.ones(2, 4)],
        "private_folder": PLACES["votes-folder"],
        "progress": False,
    },
    "RandomizedVotes": lambda: {"teacher": Site(), "classes": 2, "epsilon": 1.0, "ledger": site_ledger()},
    "RandomizedVotes.vote": lambda: (
        dt.RandomizedVotes(Site(), classes=2, epsilon=1.0, ledger=site_ledger()),
        {"inputs": X},
    ),
    "VoteFile": lambda: {"path": PLACES["votes"], "teachers": 3, "classes": 2},
    "check_independent": lambda: {"sources": [list(RUNS), list(RUNS)]},
    "constant_noise": lambda: {"teachers": 3, "teacher": HALF, "target": dt.PrivacyGuarantee(epsilon=1.0, delta=1e-4)},
    "contiguous_shards": lambda: {"count": 9, "teachers": 3},
    "declared_loader": lambda: {
        "dataset": torch.utils.data.TensorDataset(torch.zeros(9, 4)),
        "shard_size": 10,
        "batch_size": 5,
    },
    "PrivacyProfile.from_fixed_batches": lambda: {
        "noise_multiplier": 4.0,
        "records": 100,
        "batch_size": 10,
        "steps": 5,
    },
    "design": lambda: {
        "records": 1000,
        "total": dt.PrivacyGuarantee(epsilon=1.0, delta=1e-5),
        "sample_rate": 0.05,
        "steps": 10,
        "teachers": 3,
        "overlaps": [1],
    },
    "distinct_voters": lambda: {"teachers": 3, "labels": 2},
    "double_subsampling_noise": lambda: {"teachers": 3, "allowance": 2},
    "exact_self_bounding_delta": lambda: {"teacher": HALF, "epsilon": 0.5, "teachers": 3, "allowance": 1.0},
    "exact_self_bounding_epsilon": lambda: {"teacher": HALF, "delta": 1e-3, "teachers": 3, "allowance": 1.0},
    "expected_accuracy": lambda: {"mechanism": dt.DaRRM(noise()), "teachers": 3, "classes": 2},
    "expected_agreement": lambda: {"mechanism": dt.DaRRM(noise()), "teachers": 3, "classes": 2},
    "fetch_noise": lambda: {
        "teachers": 3,
        "teacher": HALF,
        "target": dt.PrivacyGuarantee(epsilon=1.0, delta=1e-4),
        "cache_dir": PLACES["cache"],
    },
    "forget_draws": lambda: {"private_folder": PLACES["private"]},
    "general_composition": lambda: {"guarantee": HALF, "count": 2, "slack": 1e-6},
    "jury_delta": lambda: {"profile": HALF, "epsilon": 0.1, "teachers": 3, "voters": 2},
    "jury_epsilon": lambda: {"profile": HALF, "delta": 1e-4, "teachers": 3, "voters": 2},
    "label_profile": lambda: {"gamma": certified().gamma, "teachers": 3, "teacher": HALF},
    "load_teacher": lambda: {"file": PLACES["weights"], "model": network()},
    "optimal_composition": lambda: {"guarantee": HALF, "count": 2, "delta": 1e-4},
    "optimize_noise": lambda: {"teachers": 3, "teacher": HALF, "target": dt.PrivacyGuarantee(epsilon=1.0, delta=1e-4)},
    "plan": lambda: {
        "teachers": 3,
        "teacher": HALF,
        "labels": 2,
        "label_target": dt.PrivacyGuarantee(epsilon=1.0, delta=1e-4),
    },
    "plot_audit": lambda: {"result": an_audit(), "axes": no_figure()},
    "plot_frontier": lambda: {"plan": a_plan(), "epsilons": [0.5], "axes": no_figure()},
    "plot_label_profile": lambda: {"noise": certified(), "teacher": HALF, "points": 3, "axes": no_figure()},
    "plot_ledger": lambda: {"ledger": used_ledger(), "axes": no_figure()},
    "plot_noise": lambda: {"noise": noise(), "axes": no_figure()},
    "plot_plurality": lambda: {
        "mechanism": dt.SelfBoundingPlurality(teachers=3, classes=3, allowance=1.0),
        "axes": no_figure(),
    },
    "plot_totals": lambda: {"total": total_of, "labels": [1, 2], "axes": no_figure()},
    "read_privacy": lambda: {"source": list(RUNS)},
    "read_teachers": lambda: {"sources": [list(RUNS), list(RUNS)]},
    "self_bounding_allowance": lambda: {"gamma": noise().gamma, "teachers": 3},
    "self_bounding_delta": lambda: {"profile": HALF, "allocation": allocation(), "epsilon": 0.1, "allowance": 1.0},
    "self_bounding_epsilon": lambda: {"profile": HALF, "allocation": allocation(), "delta": 1e-4, "allowance": 1.0},
    "self_bounding_noise": lambda: {"teachers": 3, "allowance": 1.0},
    "simple_composition": lambda: {"guarantee": HALF, "count": 2},
    "strongest_mechanism": lambda: {
        "kind": "subsampling",
        "teachers": 3,
        "classes": 2,
        "teacher": HALF,
        "allowance": 1.0,
    },
    "subsampling_noise": lambda: {"teachers": 3, "allowance": 1},
    "total_privacy": lambda: {"teachers": [HALF] * 3, "mechanism": dt.DaRRM(noise()), "labels": 2, "delta": 1e-4},
    "train_teachers": lambda: {
        "folder": PLACES["teachers"],
        "build_model": network,
        "dataset": TensorDataset(torch.zeros(6, 4), torch.zeros(6, dtype=torch.int64)),
        "shards": [np.array([0, 1]), np.array([2, 3])],
        "shard_size": 2,
        "settings": dt.TrainingSettings(epochs=1),
    },
    "RandomRuns": lambda: {"mean": 5.0, "shape": 1.0},
    "RandomRuns.chance_of_missing": lambda: (dt.RandomRuns(mean=5.0), {"share": 0.1}),
    "tune_teachers": lambda: {
        "folder": PLACES["teachers"],
        "candidates": [dt.TrainingSettings(epochs=1, batch_size=2)],
        "runs": dt.RandomRuns(mean=1.0),
        "total": HALF,
        "build_model": network,
        "dataset": TensorDataset(torch.zeros(6, 4), torch.zeros(6, dtype=torch.int64)),
        "shards": tuned_shards(),
        "shard_size": 2,
        "score_epsilon": 0.1,
        "workers": 1,
    },
    "tuning_delta": lambda: {"training": HALF, "epsilon": 0.5, "runs": dt.RandomRuns(mean=5.0)},
    "tuning_epsilon": lambda: {"training": HALF, "delta": 1e-4, "runs": dt.RandomRuns(mean=5.0)},
    "lightning.AccountantCheckpoint": lambda: {"engine": engine()},
    "lightning.FixMatch": dict,
    "lightning.FixMatch.augment": lambda: (dt.lightning.FixMatch(), {"inputs": IMAGES}),
    "lightning.PrivacyReport": lambda: {"ensemble": ensemble()},
    "lightning.PrivateLabelDataModule": lambda: {
        "ensemble": ensemble(),
        "public": PUBLIC,
        "queries": 3,
        "rounds": 2,
        "acquire": "margin",
    },
    "lightning.StudentModule": lambda: {"backbone": network()},
    "lightning.VirtualAdversarialTraining": lambda: {"radius": 1.0},
    "lightning.label_transition": lambda: {
        "mechanism": dt.DaRRM(noise()),
        "teachers": 3,
        "prior": dt.IndependentVotes(mean=0.7),
    },
}

CALLS |= {
    "federated.FlowerExchange": lambda: {"grid": a_grid()},
    "federated.LocalTeacher": lambda: {"model": network()},
    "federated.LocalTeacher.vote": lambda: (dt.federated.LocalTeacher(network()), {"inputs": X}),
    "federated.RegisteredSite": lambda: {"name": "clinic", "digest": "a", "public_key": "0" * 64},
    "federated.RemoteLabeler": lambda: {"labeler": labeler(), "sites": registered_sites(), "exchange": no_answers},
    "federated.Request": lambda: {"round": "r", "agreement": "terms", "classes": 2, "inputs": X.numpy()},
    "federated.Site": lambda: {"teacher": dt.federated.LocalTeacher(network()), "key": signing_key(), "classes": 2},
    "federated.client_app": lambda: {"site": a_site()},
    "federated.site_key": lambda: {"path": PLACES["key"]},
}

BUILT: dict[str, Callable[[], Any]] = {
    "ConfidentGNMax": lambda: dt.ConfidentGNMax(threshold=2.0, sigma_check=2.0, sigma=1.0, teachers=3, classes=2),
    "DaRRM": lambda: dt.DaRRM(noise()),
    "ExponentialMechanism": lambda: dt.ExponentialMechanism(epsilon=1.0, teachers=3),
    "GNMax": lambda: dt.GNMax(sigma=2.0, teachers=3, classes=2),
    "InteractiveGNMax": lambda: dt.InteractiveGNMax(threshold=2.0, sigma_check=2.0, sigma=1.0, teachers=3, classes=2),
    "LNMax": lambda: dt.LNMax(scale=2.0, teachers=3),
    "NoiseFreeMajority": lambda: dt.NoiseFreeMajority(teachers=3),
    "PermuteAndFlip": lambda: dt.PermuteAndFlip(epsilon=1.0, teachers=3),
    "RandomizedPlurality": lambda: dt.RandomizedPlurality(epsilon=1.0, teachers=3),
    "SelfBoundingPlurality": lambda: dt.SelfBoundingPlurality(teachers=3, classes=2, allowance=1.0),
    "VotePrivatePlurality": lambda: dt.VotePrivatePlurality(teachers=3, classes=2, epsilon=1.0),
}
SHARES = np.asarray(VOTES) * 2**24  # of votes: the counts of mean probabilities
BUILT["MeanProbabilities"] = lambda: dt.MeanProbabilities(teachers=3)
for _kind in ("SelfBoundingPlurality", "VotePrivatePlurality"):
    CALLS[f"{_kind}.with_shares"] = lambda build=BUILT[_kind]: (build(), {"shares": build().table.shares})
for _kind, _build in BUILT.items():
    for _method, _arguments in {
        "aggregate": {"counts": VOTES},
        "label_probabilities": {"counts": VOTES},
        "guarantee": {"labels": 2, "delta": 1e-5},
        "proof": {"labels": 2, "delta": 1e-5},
        "self_bounding_allowance": {"teachers": 3},
    }.items():
        if _kind == "MeanProbabilities" and "counts" in _arguments:
            _arguments = {"counts": SHARES}
        CALLS[f"{_kind}.{_method}"] = lambda build=_build, arguments=_arguments: (build(), dict(arguments))
CALLS["NoiseFreeMajority.draw_juries"] = lambda: (dt.NoiseFreeMajority(jury=2), {"teachers": 3, "items": 2})
CALLS["MeanProbabilities"] = lambda: {"teachers": 3}
CALLS["MeanProbabilities.draw_juries"] = lambda: (dt.MeanProbabilities(jury=2), {"teachers": 3, "items": 2})


@functools.cache
def engine() -> Any:
    from opacus import PrivacyEngine

    return PrivacyEngine(accountant="rdp")


PLACES: dict[str, Path] = {}  # filled by a fixture

# Exports that nobody calls with values of their own.
NOT_CALLED = {
    "Audit, Certificate, DataDependentGuarantee, Plan, PrivacyReading, PrivacyRoute, SelfBoundingCertificate": "",
    "OneModel, Strategy, TeachersNeeded, TotalPrivacy, TunedTeachers, WorstCase": "results: the library makes them",
    "LabelWarning*, *Exceeded*, *Error*, InvalidArgument*, PrivacyViolation*, UnprovenPrivacy*": "errors",
    "Mechanism*": "abstract: its methods are tested through every mechanism",
    "Design*": "results of design",
    "PipelineAudit*": "results of audit_pipeline: tests/auditing/test_pipelines.py",
    "PrivacyProfile.for_unit": "named as in read_privacy(unit=, records_per_unit=)",
    "*.label_promise": "called by total_privacy",
    "VoteBatch*": "results of VoteFile",
    "Voter*": "a protocol",
    "adapter_teachers": "it needs peft, which is slow to import: tests/teachers/test_adapters.py",
    "SelfBoundingCertificate.*": "a result",
    "Shards*": "made by assign_shards and contiguous_shards",
    "PrivacyProfile": "made by its class methods",
    "lightning.Consistency*": "abstract: its methods are tested through FixMatch and VirtualAdversarialTraining",
    "Plan.keeps, Plan.price, Plan.sample_sizes, Plan.strongest, Plan.unmet": "called by the planner's entries",
    "BetaVotes.*, IndependentVotes.*, PluralityVotes.*, SharedVotes.*": "called by the library with checked numbers",
    "DistributedEnsemble.forward, DistributedEnsemble.train": "needs a group; forward is the ensemble's",
    "PrivateMajorityEnsemble.train": "an override of Torch's",
    "lightning.AccountantCheckpoint.*, lightning.PrivacyReport.*, lightning.StudentModule.*, "
    "lightning.PrivateLabelDataModule.*": "called by Lightning; ask: tests/lightning/test_acquisition.py",
    "lightning.FixMatch.loss, lightning.VirtualAdversarialTraining.*": "called by StudentModule",
    "lightning.FixMatch.view": "called by PrivateLabelDataModule.ask",
    "federated.Answer*, federated.Request.*": "read by the server and the sites: tests/federated/test_messages.py",
    "federated.Site.answer, federated.MessageRefused*, federated.public_key": "tests/federated",
    "watch_training": "needs an optimizer of Opacus: tests/teachers/test_watching.py",
}


# --- wrong values -----------------------------------------------------------------------------------------------------

COLUMNS = torch.tensor([[2, 1], [0, 3]])
VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "str": lambda: "x.sqlite",
    "digits": lambda: "3",
    "bytes": lambda: b"3",
    "True": lambda: True,
    "2": lambda: 2,
    "2.0": lambda: 2.0,
    "2.5": lambda: 2.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "negative": lambda: -1,
    "complex": lambda: 1 + 2j,
    "complex of NumPy": lambda: np.complex128(1 + 2j),
    "digits of NumPy": lambda: np.str_("3"),
    "complex of Torch": lambda: torch.tensor(1 + 0j),
    "number without a value": lambda: torch.tensor(1.0, device="meta"),
    "signalling nan": lambda: Decimal("sNaN"),
    "huge int": lambda: 10**30,
    "beyond float": lambda: 10**5000,  # nor can Python write it
    "huge float": lambda: 1e308,
    "object": lambda: object(),
    "class": lambda: dict,
    "endless": lambda: itertools.repeat(1),
    "range": lambda: range(10**12),
    "[]": list,
    "[None]": lambda: [None],
    "['x']": lambda: ["everything"],
    "[nan]": lambda: [math.nan],
    "[-1]": lambda: [-1],
    "{}": dict,
    "{'a': 1}": lambda: {"a": 1},
    "{'x'}": lambda: {"everything"},
    "ragged": lambda: [[1, 2], [3]],
    "table": lambda: type("DataFrame", (list,), {})(["a", "b"]),  # iterates over the names of its columns
    "module": lambda: nn.Linear(4, 2),
    "lazy module": lambda: nn.LazyLinear(2),
    "meta module": lambda: nn.Linear(4, 2, device="meta"),
    "tensor": lambda: torch.zeros(2, 4),
    "sparse": lambda: COLUMNS.to_sparse(),
    "spread": lambda: torch.tensor([[2, 1]]).expand(10**12, 2),  # of no memory, until it is copied
    "meta": lambda: torch.empty(2, 2, device="meta"),
    "complex tensor": lambda: torch.zeros(2, 2, dtype=torch.complex64),
    "bool tensor": lambda: COLUMNS > 1,
    "empty tensor": lambda: torch.zeros(0),
    "requires_grad": lambda: torch.ones(2, 2, requires_grad=True),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2, 2), 1.0, 0, torch.qint8),
    "nan tensor": lambda: torch.full((2, 2), math.nan),
    "negative tensor": lambda: -COLUMNS,
    "three axes": lambda: torch.zeros(1, 2, 3, 4, 5, 6),
    "scalar tensor": lambda: torch.tensor([[7]]),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "masked": lambda: np.ma.array([[2, 1], [0, 3]], mask=[[0, 0], [1, 1]]),
    "object array": lambda: np.array([[None, "a"]]),
    "str array": lambda: np.array(["a", "b"]),
    "dates": lambda: np.array(["2020-01-01"], dtype="M8[D]"),
}
ALL = set(VALUES)
NUMBERS = {"2", "2.0", "2.5", "negative", "inf", "huge int", "huge float", "beyond float", "nan", "True"}
TENSORS = ALL - set(list(VALUES)[: list(VALUES).index("tensor")])
ARRAYS = TENSORS | {"[]", "[None]", "['x']", "[nan]", "[-1]", "ragged"}
SEQUENCES = {"[]", "[None]", "['x']", "[nan]", "[-1]", "{'x'}", "{}", "{'a': 1}", "ragged", "str", "digits", "bytes"}

# For the parts of an annotation: the values that may be right. Everything else in VALUES is wrong.
RIGHT: dict[str, set[str]] = {
    "None": {"None"},
    "int": {"2"},
    "float": {"2", "2.0", "2.5"},
    "bool": {"True"},
    "str": {"str", "digits", "digits of NumPy"},
    "bytes": {"bytes"},
    "Mapping": {"{}", "{'a': 1}"},
    "dict": {"{}", "{'a': 1}"},
    "Sequence": {"[]", "empty tensor"},
    "Iterable": {"[]", "{}", "empty tensor"},
    "Collection": {"[]", "empty tensor"},
    "Module": {"module"},
    "Callable": {"class", "module", "lazy module", "meta module"},
}


def right_values(annotation: str) -> set[str]:
    """The values that may be right for a parameter with this annotation."""
    outer = annotation
    while "[" in outer:  # what stands in brackets says nothing about the value itself
        outer = re.sub(r"\[[^\[\]]*\]", "", outer)
    parts = {part.strip().split(".")[-1] for part in outer.split("|")}
    return set().union(*(RIGHT.get(part, set()) for part in parts))


# Accepted on purpose, by callable, parameter and value ("*" for any).
ACCEPTED: dict[tuple[str, str], str] = {
    ("*", "insecure_seed"): "huge int, beyond float",
    ("*", "seed"): "huge int, beyond float",
    ("*", "cost"): "class, module, lazy module, meta module",  # functions
    ("*", "axes"): "None",
    ("*", "timeout"): "huge int, huge float",
    ("*", "allowance"): "huge int, huge float",  # above every useful one: no noise
    ("Plan.at", "epsilon"): "huge int, huge float",
    ("RandomRuns", "shape"): "inf",  # Poisson
    ("tuning_delta", "epsilon"): "huge int, huge float",
    ("PrivacyProfile.delta", "epsilon"): "huge int, huge float",
    ("PrivacyProfile.compose", "other"): "huge int, beyond float",
    ("NoiseFunction.label_probability", "counts"): "2",
    ("PrivateLabeler", "teachers"): "['x'], str array",  # names
    ("PrivateLabeler", "assumptions"): "['x'], str array",
    ("*", "findings"): "['x']",  # names
    ("*", "guesses"): "None",  # for mechanisms that take none
    ("VoteFile", "classes"): "str array",
    ("VoteFile", "missing"): "['x'], str array",
    ("PrivacyLedger.left", "most"): "huge int, beyond float",
    (
        "PrivateMajorityEnsemble.check_budget",
        "batches",
    ): "tensor, empty tensor, requires_grad, negative tensor, bool tensor, "
    "three axes, scalar tensor",  # a tensor of batches
    (
        "check_independent",
        "sources",
    ): "[None], ['x'], {'x'}, ragged, [-1], [nan], tensor, sparse, meta, complex tensor, "
    "bool tensor, empty tensor, requires_grad, quantized, nan tensor, negative tensor, three axes, scalar tensor, "
    "object array, str array, dates, masked",  # histories are compared as objects only; read_teachers reads them
    ("check_independent", "optimizers"): "[None]",
    ("check_independent", "data_loaders"): "[None]",
    ("*", "initial"): "None, {}, {'a': 1}, module",
    ("read_privacy", "module"): "None, {}, {'a': 1}, module",
    ("read_privacy", "data_loader"): "None",
    ("label_loader", "loader"): "*",  # a tensor holds batches, too, and this voter takes any
    ("read_privacy", "optimizer"): "None",
    ("lightning.FixMatch", "weak"): "class, module, lazy module, meta module",
    ("lightning.FixMatch", "strong"): "class, module, lazy module, meta module",
    ("check_independent", "overlap"): "huge int, beyond float",
    ("read_teachers", "overlap"): "huge int, beyond float",
    ("NoiseFreeMajority.self_bounding_allowance", "overlap"): "huge int, beyond float",
    ("allocated_delta", "epsilon"): "huge int, huge float",
    ("jury_delta", "epsilon"): "huge int, huge float",
    ("self_bounding_delta", "epsilon"): "huge int, huge float",
    ("self_bounding_delta", "allowance"): "inf, huge int, huge float",
    ("self_bounding_epsilon", "allowance"): "inf, huge int, huge float",
    ("private_counts", "counts"): "[], empty tensor, scalar tensor",  # counts of nothing, or one count
    ("accuracy_interval", "right"): "negative",  # noise may exceed a count
    ("accuracy_interval", "wrong"): "negative",
    ("*", "voters"): "huge int, beyond float",  # more than there are: all of them
    ("PrivacyReading.check", "source"): "None",
    ("PrivacyReading.check", "module"): "None, {}, {'a': 1}, module",
    ("*", "inputs"): "tensor, empty tensor",
    (
        "RandomizedVotes.vote",
        "inputs",
    ): "tensor, bool tensor, empty tensor, requires_grad, negative tensor, three axes, "
    "scalar tensor",  # whatever its own teacher takes
    ("TrainingSettings", "*"): "huge int, beyond float, huge float",
    ("lightning.VirtualAdversarialTraining", "*"): "huge int, beyond float, huge float",
    ("lightning.FixMatch", "*"): "huge int, beyond float, huge float",
    ("lightning.StudentModule", "*"): "huge int, beyond float, huge float",
    ("lightning.PrivateLabelDataModule", "*"): "huge int, beyond float, huge float",
    ("lightning.PrivateLabelDataModule", "acquire"): "class, module, lazy module, meta module",  # functions
    ("audit_pipeline", "canaries"): "None, 2",  # a number, or a pair
    ("assign_shards", "records"): "huge int, beyond float, ['x'], [-1], [], str array",  # a number, or ids
    ("train_teachers", "shards"): "ragged",  # of unlike sizes
    ("exact_self_bounding_delta", "allowance"): "inf",  # all teachers
    ("exact_self_bounding_epsilon", "allowance"): "inf",
    ("design", "model_cost"): "huge int, huge float",
    ("BetaVotes", "a"): "huge int, huge float",
    ("BetaVotes", "b"): "huge int, huge float",
    ("ConfidentGNMax", "threshold"): "negative",  # then every item is answered
    ("ConfidentGNMax.calibrated", "threshold"): "negative",
    ("InteractiveGNMax", "threshold"): "negative",
    ("InteractiveGNMax.calibrated", "threshold"): "negative",
    ("PluralityVotes", "concentration"): "inf, huge int, huge float",
    ("PrivacyGuarantee", "epsilon"): "inf, huge int, huge float",
    ("DataDependentLoss.renyi", "orders"): "2, 2.0, 2.5, huge int, huge float, [], empty tensor, scalar tensor",
}


# Errors that name the thing as the user knows it, where the parameter has a general name.
ALSO_CALLED = {
    ("PrivacyProfile.from_dict", "value"): ("profile",),
    ("as_if_redrawn", "label"): ("guarantee",),
    ("strongest_mechanism", "label_target"): ("target",),
    ("strongest_mechanism", "total_target"): ("target",),
    ("PrivacyProfile.from_guarantee", "more"): ("guarantee",),
    ("PrivacyReading.check", "source"): ("history", "accountant"),
    ("PrivateMajorityEnsemble.check_budget", "batches"): ("inputs",),
    ("label_loader", "loader"): ("inputs",),
    ("PrivateMajorityEnsemble.set_extra_state", "state"): ("state_dict",),
    ("RandomAllocation.from_dict", "value"): ("allocation",),
    ("PrivateMajorityEnsemble.from_opacus", "data_loaders"): ("data loader",),
    ("read_teachers", "data_loaders"): ("data loader", "data_loader"),
    ("read_privacy", "source"): ("history", "accountant"),
    ("read_teachers", "sources"): ("history", "accountant"),
}


SLOW_CALLS = {"DistributedEnsemble", "train_teachers", "tune_teachers"}  # process groups, processes


class TooLong(BaseException):
    """A call that took longer than SECONDS."""


def function(name: str) -> Any:
    """The public callable of this name."""
    return functools.reduce(getattr, name.split("."), dt)


def signature(name: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function(name)).parameters.values())
    return [one for one in parameters if one.name != "self"]


def call(name: str, changes: dict[str, Any]) -> Any:
    """The valid call of this name, with other values of some parameters."""
    built = CALLS[name]()
    owner, arguments = built if isinstance(built, tuple) else (None, built)
    target = function(name) if owner is None else getattr(owner, name.rsplit(".", 1)[-1])
    extra = [changes.pop(one.name) for one in signature(name) if one.kind is one.VAR_POSITIONAL and one.name in changes]
    return target(*arguments.values(), *extra) if extra else target(**(arguments | changes))


def outcome(name: str, parameter: str, value: Any) -> str:
    """What is wrong with how the callable takes this value; empty if it refuses it as it should."""

    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = call(name, {parameter: value})
    except dt.DarrmError as error:
        words = "|".join((re.sub("(?<=[a-z])(?<!s)s$", "", parameter), *ALSO_CALLED.get((name, parameter), ())))
        named = re.search(rf"\b({words})s?\b", str(error))
        return "" if named else f"does not name it: {str(error)[:150]}"
    except TooLong:
        return f"takes more than {SECONDS} s"
    except Exception as error:
        return f"raw {type(error).__name__}: {str(error)[:150]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return f"accepted: {' '.join(repr(result).split())[:60]}"


FEW = {
    "None",
    "str",
    "2.5",
    "nan",
    "negative",
    "huge int",
    "object",
    "[]",
    "[None]",
    "['x']",
    "{}",
    "sparse",
    "nan tensor",
    "complex of NumPy",
    "digits of NumPy",
    "number without a value",
}


def rows() -> Iterator[tuple[str, str, list[str]]]:
    """Each parameter of each public callable, and the wrong values for it."""
    for name in CALLS:
        for parameter in signature(name):
            right = right_values(str(parameter.annotation))
            for key in ((name, parameter.name), ("*", parameter.name), (name, "*")):
                right |= set(ACCEPTED.get(key, "").split(", "))
            if "*" not in right:
                wrong = [label for label in VALUES if label not in right]
                yield name, parameter.name, [label for label in wrong if label in FEW]
                yield name, parameter.name, [label for label in wrong if label not in FEW]


# --- tests ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _files(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("wrong")
    torch.save(network().state_dict(), folder / "weights.pt")
    np.save(folder / "votes.npy", np.zeros((3, 5), dtype=np.int64))
    PLACES["votes"] = folder / "votes.npy"
    PLACES.update(
        weights=folder / "weights.pt",
        cache=folder / "cache",
        key=folder / "site.pem",
        teachers=folder / "teachers",
        private=folder / "private",
        **{"votes-folder": folder / "voting"},
    )


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def public_callables() -> set[str]:
    """The functions, classes and methods of ``dt.__all__`` and of the wings that are used by name."""
    found = set()
    for prefix, names in (("", dt.__all__), ("lightning.", dt.lightning.__all__), ("federated.", dt.federated.__all__)):
        for name in names:
            one = function(prefix + name)
            if not callable(one):
                continue
            found.add(prefix + name)
            for method, value in inspect.getmembers(one, inspect.isroutine) if inspect.isclass(one) else ():
                owner = next((kind for kind in one.__mro__ if method in vars(kind)), object)
                own = owner.__module__.startswith("darrm_torch") and not method.startswith("_")
                if own and set(inspect.signature(value).parameters) - {"self"}:
                    found.add(f"{prefix}{name}.{method}")
    return found


def test_every_public_callable_has_a_valid_call_or_a_reason() -> None:
    excused = [name for names in NOT_CALLED for name in names.split(", ")]
    missing = public_callables() - set(CALLS)
    assert not {name for name in missing if not any(fnmatch(name, one) for one in excused)}
    assert not set(CALLS) - public_callables()


@pytest.mark.parametrize("name", [name for name in CALLS if name not in SLOW_CALLS])
def test_the_valid_call_is_accepted(name: str) -> None:
    call(name, {})


ROWS = [
    pytest.param(
        *row, id=f"{row[0]}-{row[1]}-{'rest' if rest else 'few'}", marks=[pytest.mark.slow, pytest.mark.long] * rest
    )
    for rest, row in zip(itertools.cycle((0, 1)), rows(), strict=False)
]


@pytest.mark.parametrize(("name", "parameter", "labels"), ROWS)
def test_wrong_values_are_refused_by_name(name: str, parameter: str, labels: list[str]) -> None:
    found = {label: outcome(name, parameter, VALUES[label]()) for label in labels}
    assert not {label: problem for label, problem in found.items() if problem}


@pytest.mark.parametrize("name", ["PrivateLabeler", "PrivateMajorityEnsemble", "RandomizedVotes"])
@pytest.mark.parametrize("label", ["None", "2", "2.5", "[None]", "complex of NumPy", "one"])
def test_a_refused_call_leaves_the_ledger_free_for_the_right_one(name: str, label: str) -> None:
    for parameter in signature(name):
        arguments = CALLS[name]()
        arguments.setdefault("ledger", dt.PrivacyLedger())
        try:
            function(name)(**arguments | {parameter.name: 1 if label == "one" else VALUES[label]()})
        except dt.DarrmError:
            function(name)(**arguments)


def test_functions_that_return_no_price_are_named() -> None:
    ledger = dt.PrivacyLedger(budget=HALF, cost=lambda labels: labels)
    with pytest.raises(dt.InvalidArgument, match="cost must be a function that returns a PrivacyGuarantee, got"):
        ledger.answer([b"a"], drawn_labels)
    assert not ledger.charges
    for plot, parameter in (("plot_ledger", "cost"), ("plot_totals", "total")):
        with pytest.raises(dt.InvalidArgument, match=f"{parameter} must be a function that returns a"):
            call(plot, {parameter: lambda labels: labels})


def test_complex_labels_and_no_teachers_are_refused() -> None:
    with pytest.raises(dt.InvalidArgument, match="teachers must be the numbers of one or more"):
        ensemble().sensitive_counts(X, teachers=[])
    numbers, labels = torch.zeros(3, 2), torch.zeros(3)
    with pytest.raises(dt.InvalidArgument, match="labels must be a dense tensor of real numbers"):
        dt.ignored_records(numbers, labels.to(torch.complex64), classes=2)
    for inputs in (numbers.to_sparse_csr(), numbers.to("meta")):
        with pytest.raises(dt.InvalidArgument, match="inputs must be a dense tensor of real numbers"):
            dt.ignored_records(inputs, labels, classes=2)


def test_fixmatch_refuses_what_its_transforms_would_spoil() -> None:
    for images in (255 * torch.rand(2, 1, 8, 8), torch.rand(2, 4, 8, 8), torch.rand(2, 5), torch.zeros(0, 1, 8, 8)):
        with pytest.raises(dt.InvalidArgument, match="inputs must be"):
            dt.lightning.FixMatch().augment(images)


ODD_TENSORS = ("sparse", "meta", "complex tensor", "nan tensor", "empty tensor", "None", "str")


@pytest.mark.parametrize("label", ODD_TENSORS)
def test_losses_refuse_what_is_no_batch_of_numbers(label: str) -> None:
    for consistency in (dt.lightning.FixMatch(), dt.lightning.VirtualAdversarialTraining()):
        with pytest.raises(dt.InvalidArgument, match="inputs must be"):
            consistency.loss(network(), VALUES[label]())


def test_a_network_that_works_in_place_is_trained(tmp_path: Path) -> None:
    from darrm_torch.teachers.dp_sgd import train_teacher

    settings = dt.TrainingSettings(epochs=1, batch_size=2)
    build = functools.partial(nn.Sequential, nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2))
    records = TensorDataset(torch.zeros(6, 4), torch.zeros(6, dtype=torch.int64))
    assert train_teacher(build, records, shard_size=6, settings=settings, seeds=(0, 1))


def test_training_refuses_inputs_that_the_network_does_not_take(tmp_path: Path) -> None:
    for kind in (torch.float64, torch.float16):
        records = TensorDataset(torch.zeros(6, 4, dtype=kind), torch.zeros(6, dtype=torch.int64))
        arguments = CALLS["train_teachers"]() | {"folder": tmp_path, "dataset": records}
        with pytest.raises(dt.InvalidArgument, match="dataset must be what the network of build_model can be trained"):
            dt.train_teachers(**arguments)


def test_numbers_of_numpy_in_a_checkpoint_are_named(tmp_path: Path) -> None:
    accountant = {"history": [(np.float64(3.0), 1 / 6, np.int64(60))], "mechanism": "rdp"}
    weights = network().state_dict()
    torch.save({"module_state_dict": weights, "privacy_accountant_state_dict": accountant}, tmp_path / "teacher.pt")
    with pytest.raises(dt.InvalidArgument, match=r"a number or an array of NumPy. Save it as float"):
        dt.read_privacy(tmp_path / "teacher.pt")


def test_virtual_adversarial_training_refuses_an_empty_batch() -> None:
    with pytest.raises(dt.InvalidArgument, match=r"inputs must be floats .* one input or more"):
        dt.lightning.VirtualAdversarialTraining().loss(network(), torch.zeros(0, 4))


def test_equal_histories_are_plain_data() -> None:
    same = [[(3.0, 1 / 6, 60)]] * 6
    assert len(dt.read_teachers(same)) == 6
    models = [network() for _ in same]
    dt.PrivateMajorityEnsemble.from_opacus(models, same, delta=1e-5, allowance=2, noise="self-bounding")


@pytest.mark.parametrize("compiled", [False, True])
def test_an_opacus_model_votes_inside_any_module(compiled: bool) -> None:
    from opacus import GradSampleModule

    def inner() -> nn.Module:
        plain = nn.Sequential(nn.Linear(4, 2))
        return torch.compile(plain, backend="eager") if compiled else plain

    torch.manual_seed(0)
    wrapped = [GradSampleModule(inner()) for _ in range(3)]
    models = wrapped if compiled else [nn.Sequential(nn.Flatten(), one) for one in wrapped]
    models[0](torch.randn(2, 4)).sum().backward()
    ensemble = dt.PrivateMajorityEnsemble(models, dt.DaRRM(noise()))
    assert ensemble(X).shape == (2,)
    models[0](torch.randn(2, 4))  # the user's own keeps its hooks
    assert vars(models[0] if compiled else models[0][1])["autograd_grad_sample_hooks"]


@pytest.mark.parametrize("build", [lambda: 1 / 0, lambda: None, lambda: nn.Identity(), lambda: nn.Linear(4, 1)])
def test_training_names_the_function_that_builds_no_classifier(tmp_path: Path, build: Callable[[], Any]) -> None:
    arguments = CALLS["train_teachers"]() | {"folder": tmp_path, "build_model": build}
    with pytest.raises(dt.InvalidArgument, match="build_model must be"):
        dt.train_teachers(**arguments)
