"""Lightning: private labels into a student. The only part of the library that imports Lightning."""

from .data import PrivateLabelDataModule
from .report import PrivacyReport
from .student import StudentModule

__all__ = ["PrivacyReport", "PrivateLabelDataModule", "StudentModule"]
