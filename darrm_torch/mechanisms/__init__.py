"""Mechanisms: counts of votes in, private labels out, under one small protocol (:class:`Mechanism`)."""

from .base import Mechanism
from .darrm import DaRRM
from .gnmax import GNMax
from .noise_free import NoiseFreeMajority

__all__ = ["DaRRM", "GNMax", "Mechanism", "NoiseFreeMajority"]
