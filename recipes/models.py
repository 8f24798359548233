"""The paper's teacher: a small convolutional network."""

from __future__ import annotations

from torch import Tensor, nn


class PaperCNN(nn.Module):
    """Two 5x5 convolutions (16 and 32 channels), each followed by max pooling and tanh, and one linear layer.

    Bounded activations keep gradients small, which DP-SGD clips and drowns in noise (Papernot et al., AAAI 2021); with
    ReLU the majority is about as good, but single teachers are worse and seeds differ more. Tanh is monotone, so it
    gives the same after pooling as before, on a quarter of the numbers.

    Input ``(B, 1, 28, 28)``, output ``(B, classes)`` logits.
    """

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=5, padding=2),
            nn.MaxPool2d(2),
            nn.Tanh(),
            nn.Conv2d(16, 32, kernel_size=5, padding=2),
            nn.MaxPool2d(2),
            nn.Tanh(),
        )
        self.head = nn.Linear(32 * 7 * 7, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of each class."""
        return self.head(self.features(images).flatten(1))
