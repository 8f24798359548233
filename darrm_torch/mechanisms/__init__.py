"""Mechanisms: counts of votes in, private labels out, under one small protocol (:class:`Mechanism`)."""

from .base import Mechanism
from .confident import ConfidentGNMax
from .darrm import DaRRM
from .gnmax import GNMax
from .laplace import LNMax
from .noise_free import MeanProbabilities, NoiseFreeMajority
from .pate_rdp import DataDependentGuarantee, DataDependentLoss
from .plurality import SelfBoundingPlurality, VotePrivatePlurality
from .selection import ExponentialMechanism, PermuteAndFlip, RandomizedPlurality

__all__ = [
    "ConfidentGNMax",
    "DaRRM",
    "DataDependentGuarantee",
    "DataDependentLoss",
    "ExponentialMechanism",
    "GNMax",
    "LNMax",
    "MeanProbabilities",
    "Mechanism",
    "NoiseFreeMajority",
    "PermuteAndFlip",
    "RandomizedPlurality",
    "SelfBoundingPlurality",
    "VotePrivatePlurality",
]
