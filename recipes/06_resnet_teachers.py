"""Images: heads on a public ResNet learn four kinds of clothes that it never saw; their labels teach a student.

    python -m recipes.06_resnet_teachers                 # a small ResNet, trained here on public images
    python -m recipes.06_resnet_teachers --weights       # ResNet-18 with torchvision's weights, downloaded once

The data are Fashion-MNIST. Trousers, dresses, sandals, sneakers, bags and boots are public, and the small ResNet learns
them. T-shirts, pullovers, coats and shirts are private: no public image shows one with its label. Each private image is
in two of five shards, drawn at random and in secret. The ResNet is frozen, so its features are computed once for each
image, and its batch normalisation reads statistics of public images only. A head is trained by DP-SGD on each shard.

Prints the accuracies of labels and student, and of what else the same total buys. Noise and shards come from the
operating system, so no two runs are equal. A run that is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet, ResNet18_Weights, resnet18

import darrm_torch as dt
from darrm_torch.cli.parser import Command
from darrm_torch.cli.running import run_command
from darrm_torch.errors import check_integer
from darrm_torch.files import write_whole

from . import rivals
from .data import Task, load_all_classes
from .options import quieten
from .rivals import Labelled

PRIVATE_CLASSES = [0, 2, 4, 6]  # T-shirt, pullover, coat, shirt
PUBLIC_CLASSES = [1, 3, 5, 7, 8, 9]
FEATURES = 512
PUBLIC_IMAGES, PRIVATE_IMAGES, QUERIES = 6000, 12_000, 1000  # the first of their classes; the numbers are public
MOMENTUM = functools.partial(torch.optim.SGD, momentum=0.9)
# The settings were chosen on the private images that the recipe does not use, the 12,001st to the 24,000th.
PLAN = rivals.Plan(
    total=dt.PrivacyGuarantee(epsilon=1.0, delta=1e-5),
    teachers=5,
    overlap=2,
    records=PRIVATE_IMAGES,
    classes=len(PRIVATE_CLASSES),
    unit="image",
    private=dt.TrainingSettings(batch_size=960, epochs=20, learning_rate=0.3, optimizer=MOMENTUM),
    plain=dt.TrainingSettings(noise_multiplier=None, batch_size=64, epochs=6, learning_rate=0.1),
    one=dt.TrainingSettings(batch_size=2400, epochs=20, learning_rate=0.3, optimizer=MOMENTUM),
    student_epochs=3,
)


def small_resnet() -> nn.Module:
    """The first two stages of a ResNet for small grey images; returns features (B, 512): 128 of each quarter."""
    network = ResNet(BasicBlock, [1, 1, 1, 1])
    network.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
    network.layer3 = network.layer4 = network.fc = nn.Identity()
    network.avgpool = nn.AdaptiveAvgPool2d(2)  # where a sleeve or a collar is tells more than that there is one
    return network


def resnet_of_torchvision(*, download: bool) -> nn.Module:
    """ResNet-18 for grey images, whose weights were trained on ImageNet; returns features (B, 512)."""
    network = resnet18(weights=ResNet18_Weights.DEFAULT if download else None)
    grey = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
    grey.weight.data = network.conv1.weight.data.sum(dim=1, keepdim=True)  # one channel stands for three
    network.conv1, network.fc = grey, nn.Identity()
    return network


def of_classes(images: Tensor, classes: Tensor, wanted: Sequence[int], *, at_most: int | None = None) -> Labelled:
    """The images of some classes, which are numbered from 0."""
    rows = torch.isin(classes, torch.tensor(wanted)).nonzero().flatten()[:at_most]
    return images[rows], torch.searchsorted(torch.tensor(wanted), classes[rows])


def train_backbone(images: Tensor, classes: Tensor, *, epochs: int) -> nn.Module:
    """The small ResNet, trained on public images without privacy."""
    torch.manual_seed(0)
    backbone = small_resnet()
    network = nn.Sequential(backbone, nn.Linear(FEATURES, len(PUBLIC_CLASSES)))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images[batch]), classes[batch]).backward()
            optimizer.step()
    return backbone


def build(file: Path, *, weights: bool, frozen: bool) -> nn.Module:
    """The public backbone, frozen or not, and a new head."""
    backbone = resnet_of_torchvision(download=False) if weights else small_resnet()
    backbone.load_state_dict(torch.load(file, weights_only=True))
    head = nn.Linear(FEATURES, len(PRIVATE_CLASSES))
    nn.init.zeros_(head.weight)  # random weights would only add to the noise
    return nn.Sequential(backbone.requires_grad_(not frozen), nn.LayerNorm(FEATURES, elementwise_affine=False), head)


def compare(folder: Path, task: Task, plan: rivals.Plan, *, weights: bool, runs: int) -> list[rivals.Results]:
    """The backbone, and several times teachers and rivals on it."""
    folder = folder / ("resnet18" if weights else "small")
    file = folder / "backbone.pt"
    if not file.exists():
        public = of_classes(task.private_images, task.private_labels, PUBLIC_CLASSES, at_most=PUBLIC_IMAGES)
        backbone = resnet_of_torchvision(download=True) if weights else train_backbone(*public, epochs=3)
        folder.mkdir(parents=True, exist_ok=True)
        with write_whole(file) as beside:
            torch.save(backbone.state_dict(), beside)
    return [
        rivals.compare(
            folder / f"run-{number}",
            plan,
            private=of_classes(task.private_images, task.private_labels, PRIVATE_CLASSES, at_most=PRIVATE_IMAGES),
            queries=of_classes(task.public_images, task.public_labels, PRIVATE_CLASSES, at_most=QUERIES),
            heldout=of_classes(task.heldout_images, task.heldout_labels, PRIVATE_CLASSES),
            build_teacher=functools.partial(build, file, weights=weights, frozen=True),
            build_student=functools.partial(build, file, weights=weights, frozen=False),
            seed=number,
        )
        for number in range(runs)
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this recipe's options."""
    parser.add_argument("--weights", action="store_true", help="ResNet-18 with torchvision's weights (a download)")
    parser.add_argument("--run", type=Path, default=Path("runs/resnet"), help="run folder (default: %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=1, help="how often, each with noise and shards of its own", metavar="N"
    )
    parser.add_argument("--limit", type=int, help="use only the first N images, for a trial", metavar="N")


def run(options: argparse.Namespace) -> int:
    """The recipe, step by step."""
    quieten()
    check_integer("runs", options.runs, low=1, high=100)
    plan = PLAN
    if options.limit is not None:
        check_integer("limit", options.limit, low=100)
        plan = dataclasses.replace(PLAN.small(), records=options.limit)
    task = load_all_classes("fashion-mnist", limit=options.limit)
    results = compare(options.run, task, plan, weights=options.weights, runs=options.runs)
    print(rivals.summary(results, plan))
    return 0


COMMAND = Command(
    summary=(__doc__ or "").partition("\n")[0],
    example="python -m recipes.06_resnet_teachers",
    add_arguments=add_arguments,
    run=run,
    stopped="stopped; run the same command again to go on",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe; the exit status is 2 where the images are missing, which one line says."""
    return run_command(COMMAND, arguments, prog="06_resnet_teachers")


if __name__ == "__main__":
    sys.exit(main())
