"""Lower bounds from outside: draw from a mechanism, and bound its epsilon from below."""

from .mechanisms import Audit, audit

__all__ = ["Audit", "audit"]
