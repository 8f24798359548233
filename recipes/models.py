"""The paper's teacher: a small convolutional network."""

from __future__ import annotations

from torch import Tensor, nn


class PaperCNN(nn.Module):
    """Two 5x5 convolutions (16 and 32 channels), each followed by average pooling, and one linear layer.

    Input ``(B, 1, 28, 28)``, output ``(B, classes)`` logits.
    """

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=5),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(16, 32, kernel_size=5),
            nn.ReLU(),
            nn.AvgPool2d(2),
        )
        self.head = nn.Linear(32 * 4 * 4, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of each class."""
        return self.head(self.features(images).flatten(1))
