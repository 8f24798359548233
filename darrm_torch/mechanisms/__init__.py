"""Mechanisms: counts of votes in, private labels out, under one small protocol (:class:`Mechanism`)."""

from .base import Mechanism
from .confident import ConfidentGNMax
from .darrm import DaRRM
from .gnmax import GNMax
from .laplace import LNMax
from .noise_free import NoiseFreeMajority
from .selection import ExponentialMechanism, PermuteAndFlip

__all__ = [
    "ConfidentGNMax",
    "DaRRM",
    "ExponentialMechanism",
    "GNMax",
    "LNMax",
    "Mechanism",
    "NoiseFreeMajority",
    "PermuteAndFlip",
]
