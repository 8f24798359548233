"""Lower bounds of epsilon from outside: of a mechanism from its draws, of a whole pipeline from canaries."""

from .mechanisms import Audit, audit
from .pipelines import PipelineAudit, audit_pipeline

__all__ = ["Audit", "PipelineAudit", "audit", "audit_pipeline"]
