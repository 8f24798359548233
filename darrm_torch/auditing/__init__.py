"""Lower bounds from outside: of a mechanism's epsilon, by its draws, and of a whole pipeline's, by canaries."""

from .mechanisms import Audit, audit
from .pipelines import PipelineAudit, audit_pipeline

__all__ = ["Audit", "PipelineAudit", "audit", "audit_pipeline"]
