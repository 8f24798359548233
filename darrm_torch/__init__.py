"""Private labels from ensembles of differentially private teachers.

Names are loaded when first used: ``import darrm_torch`` is quick, and the solver never imports Torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "privacy.guarantees": ("PrivacyGuarantee", "PrivacyProfile"),
    "privacy.composition": ("general_composition", "optimal_composition", "simple_composition"),
    "privacy.totals": ("PrivacyRoute", "TotalPrivacy", "as_if_redrawn", "total_privacy"),
    "planning.candidates": (
        "PluralityCandidate",
        "expected_accuracy",
        "expected_agreement",
        "plurality_candidates",
        "strongest_mechanism",
    ),
    "planning.strategies": ("Strategy",),
    "planning.planner": ("Plan", "TeachersNeeded", "plan"),
    "labels.ledger": ("PrivacyLedger",),
    "teachers.reading": ("PrivacyReading", "check_independent", "read_privacy", "read_teachers"),
    "noise.certificate": (
        "Certificate",
        "SelfBoundingCertificate",
        "WorstCase",
        "certify",
        "label_profile",
        "self_bounding_allowance",
    ),
    "noise.function": (
        "NoiseFunction",
        "constant_noise",
        "double_subsampling_noise",
        "self_bounding_noise",
        "subsampling_noise",
    ),
    "noise.priors": ("BetaVotes", "IndependentVotes", "SharedVotes"),
    "noise.program": ("optimize_noise",),
    "noise.store": ("fetch_noise",),
    "noise.tables": ("PluralityVotes",),
    "mechanisms": (
        "ConfidentGNMax",
        "DaRRM",
        "DataDependentGuarantee",
        "DataDependentLoss",
        "ExponentialMechanism",
        "GNMax",
        "LNMax",
        "Mechanism",
        "NoiseFreeMajority",
        "PermuteAndFlip",
        "RandomizedPlurality",
        "SelfBoundingPlurality",
        "VotePrivatePlurality",
    ),
    "auditing": ("Audit", "audit"),
    "labels.ensemble": ("PrivateMajorityEnsemble",),
    "labels.distributed": ("DistributedEnsemble",),
    "plots": ("plot_frontier", "plot_label_profile", "plot_ledger", "plot_noise", "plot_plurality"),
    "teachers.training": ("TrainingSettings", "assign_shards", "contiguous_shards", "load_teacher", "train_teachers"),
    "errors": (
        "BudgetExceeded",
        "DarrmError",
        "InvalidArgument",
        "LedgerError",
        "PrivacyViolation",
        "UnprovenPrivacy",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["__version__", "lightning", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    if name == "lightning":
        return importlib.import_module(f"{__name__}.lightning")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
