"""The student: any backbone, trained on private labels by the ordinary Lightning loop."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy

from ..errors import check_integer, check_number

__all__ = ["StudentModule"]


class StudentModule(L.LightningModule):
    """A classifier trained with cross-entropy on whatever labels it is given.

    It costs no privacy: training on labels that are already out is post-processing. The module holds no teacher, so its
    checkpoints and hyper-parameters hold none either.

    Args:
        backbone: maps inputs ``(B, ...)`` to logits ``(B, classes)``.
        classes: C >= 2.
        learning_rate: of Adam; override ``configure_optimizers`` for anything else.
        weight_decay: of Adam, decoupled (AdamW).
    """

    def __init__(
        self, backbone: nn.Module, *, classes: int = 2, learning_rate: float = 1e-3, weight_decay: float = 1e-2
    ) -> None:
        super().__init__()
        check_integer("classes", classes, low=2)
        self.backbone = backbone
        self.learning_rate = check_number("learning_rate", learning_rate, low=0, low_open=True, high_open=True)
        self.weight_decay = check_number("weight_decay", weight_decay, low=0, high_open=True)
        self.val_accuracy = MulticlassAccuracy(classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(classes, average="micro")

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits ``(B, classes)``."""
        logits: Tensor = self.backbone(inputs)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> Tensor:
        """Cross-entropy of one labelled batch."""
        inputs, labels = batch
        loss = F.cross_entropy(self(inputs), labels)
        self.log("train_loss", loss, batch_size=len(labels))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> None:
        """Accuracy on the validation part."""
        inputs, labels = batch
        self.val_accuracy(self(inputs), labels)
        self.log("val_accuracy", self.val_accuracy, batch_size=len(labels))

    def test_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> None:
        """Accuracy on the test part."""
        inputs, labels = batch
        self.test_accuracy(self(inputs), labels)
        self.log("test_accuracy", self.test_accuracy, batch_size=len(labels))

    def configure_optimizers(self) -> Any:
        """AdamW over the student's own parameters."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
