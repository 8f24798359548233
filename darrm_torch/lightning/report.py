"""A callback that makes a student's checkpoint tell what its labels cost."""

from __future__ import annotations

from typing import Any

import lightning as L

from ..ensemble import PrivateMajorityEnsemble

__all__ = ["PrivacyReport"]


class PrivacyReport(L.Callback):
    """Logs the guarantee of the labels given out so far and writes the ensemble's report into every checkpoint.

    Only the report travels (plain numbers and words under ``"darrm_privacy_report"``); the checkpoint opens with
    ``weights_only=True`` and holds no teacher, vote or coin.
    """

    def __init__(self, ensemble: PrivateMajorityEnsemble) -> None:
        self._ensemble = ensemble

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log ``privacy/labels``, ``privacy/total_epsilon`` and ``privacy/total_delta`` to every logger."""
        report = self._ensemble.privacy_report(as_dict=True)
        metrics = {"privacy/labels": float(report["labels"])}
        if report["total"] is not None:
            metrics["privacy/total_epsilon"] = float(report["total"]["epsilon"])
            metrics["privacy/total_delta"] = float(report["total"]["delta"])
        for logger in trainer.loggers:
            logger.log_metrics(metrics)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put the report into the checkpoint."""
        checkpoint["darrm_privacy_report"] = self._ensemble.privacy_report(as_dict=True)
