"""Lightning: private labels into a student. The only part of the library that imports Lightning."""

from .accountant import AccountantCheckpoint
from .consistency import Consistency, FixMatch, VirtualAdversarialTraining
from .data import PrivateLabelDataModule
from .report import PrivacyReport
from .student import StudentModule, label_transition

__all__ = [
    "AccountantCheckpoint",
    "Consistency",
    "FixMatch",
    "PrivacyReport",
    "PrivateLabelDataModule",
    "StudentModule",
    "VirtualAdversarialTraining",
    "label_transition",
]
