"""A callback that writes the privacy report into a student's checkpoints."""

from __future__ import annotations

import math
from typing import Any

import lightning as L

from ..arguments import checked
from ..labels.ensemble import PrivateMajorityEnsemble

__all__ = ["PrivacyReport"]


class PrivacyReport(L.Callback):
    """Logs the guarantee of the labels so far and writes the ensemble's report into every checkpoint.

    The checkpoint holds the report only (numbers and text under ``"darrm_privacy_report"``), opens with
    ``weights_only=True``, and holds no teacher, no vote and none of the mechanism's randomness.
    """

    @checked
    def __init__(self, ensemble: PrivateMajorityEnsemble) -> None:
        self._ensemble = ensemble

    def __repr__(self) -> str:
        return f"PrivacyReport({self._ensemble!r})"

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log ``privacy/labels``, and epsilon and delta of one label and of all together, to every logger.

        They are called ``privacy/label_epsilon``, ``privacy/total_delta`` and so on; where nothing is proven, epsilon
        is infinite.
        """
        report = self._ensemble.privacy_report(as_dict=True)
        metrics = {"privacy/labels": float(report["labels"])}
        for name in ("label", "total"):
            if (guarantee := report[name]) is not None:
                epsilon = guarantee["epsilon"]
                metrics[f"privacy/{name}_epsilon"] = math.inf if epsilon is None else float(epsilon)
                metrics[f"privacy/{name}_delta"] = float(guarantee["delta"])
        for logger in trainer.loggers:
            logger.log_metrics(metrics)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put the report into the checkpoint."""
        checkpoint["darrm_privacy_report"] = self._ensemble.privacy_report(as_dict=True)
