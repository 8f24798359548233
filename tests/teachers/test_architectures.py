"""Ten architectures of torchvision and transformers, made private by Opacus in three ways, as teachers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torchvision
from opacus import PrivacyEngine
from opacus.validators import ModuleValidator
from torch import nn
from torch.utils.data import DataLoader, StackDataset

from darrm_torch.teachers.structures import Rows, call, logits_of, rows_of
from tests.teachers.helpers import ensemble_of

CLASSES, RECORDS = 3, 6
IMAGES: Any = torch.rand(2 * RECORDS, 3, 32, 32)
IDS = torch.randint(1, 40, (2 * RECORDS, 6))
TOKENS: Any = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
# Opacus needs one row of positions for each record: models that make positions themselves share one among all.
PLACED: Any = {**TOKENS, "position_ids": torch.arange(6).repeat(len(IDS), 1)}


def vision(name: str, *arguments: Any, **how: Any) -> nn.Module:
    return getattr(torchvision.models, name)(*arguments, num_classes=CLASSES, **how)


def resnet() -> nn.Module:
    block = torchvision.models.resnet.BasicBlock
    return vision("ResNet", block, [1, 1, 1, 1], norm_layer=partial(nn.GroupNorm, 8))


def mobilenet() -> nn.Module:
    setting = torchvision.models.mobilenetv3.InvertedResidualConfig
    blocks = [setting(16, 3, 16, 16, True, "RE", 2, 1, 1.0), setting(16, 3, 32, 24, False, "HS", 2, 1, 1.0)]
    return vision("MobileNetV3", blocks, last_channel=32, norm_layer=partial(nn.GroupNorm, 8))


def convnext() -> nn.Module:
    setting = torchvision.models.convnext.CNBlockConfig
    return vision("ConvNeXt", [setting(8, 16, 1), setting(16, None, 1)])


def text(kind: str, **how: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(vocab_size=40, num_labels=CLASSES, pad_token_id=0, **how)
    return getattr(transformers, f"{kind}ForSequenceClassification")(config)


def image_transformer() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8, num_labels=CLASSES)
    return transformers.ViTForImageClassification(config)


def distilled(*, frozen: bool = True) -> nn.Module:
    network = text("DistilBert", dim=16, n_layers=2, n_heads=2, hidden_dim=32)
    network.distilbert.embeddings.position_embeddings.requires_grad_(not frozen)
    return network


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "SqueezeNet": (partial(vision, "squeezenet1_1"), IMAGES),
    "MobileNetV3": (mobilenet, IMAGES),
    "VisionTransformer": (
        partial(vision, "VisionTransformer", 32, 8, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=32),
        IMAGES,
    ),
    "ConvNeXt": (convnext, IMAGES),
    "BERT": (partial(text, "Bert", **SMALL), PLACED),
    "DistilBERT": (distilled, TOKENS),
    "GPT-2": (partial(text, "GPT2", n_embd=16, n_layer=2, n_head=2), PLACED),
    "RoBERTa": (partial(text, "Roberta", **SMALL), PLACED),
    "ELECTRA": (partial(text, "Electra", **SMALL, embedding_size=16), PLACED),
    "ViT": (image_transformer, {"pixel_values": IMAGES}),
}
# What Opacus cannot train, in any of its modes, and why. The page "Transformers and adapters" lists them.
REFUSED: dict[str, tuple[Callable[[], nn.Module], Any, str]] = {
    "ResNet": (resnet, IMAGES, "modified inplace"),
    "DenseNet": (
        partial(vision, "DenseNet", growth_rate=4, block_config=(2, 2), num_init_features=8),
        IMAGES,
        "modified inplace",
    ),
    "DistilBERT with its positions": (partial(distilled, frozen=False), TOKENS, "equal size"),
}
MODES = ("hooks", "functorch", "ghost")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:In CPU autocast", "ignore:.*gradient_checkpointing:FutureWarning"),
]


def trained(network: nn.Module, inputs: Any, *, mode: str) -> tuple[Any, ...]:
    """A model after three steps of Opacus, with its engine, optimizer and loader."""
    data: Any = StackDataset(Rows(inputs), torch.randint(0, CLASSES, (RECORDS,)))
    engine, ghost = PrivacyEngine(), mode == "ghost"
    how: dict[str, Any] = {"criterion": nn.CrossEntropyLoss()} if ghost else {}
    parts = engine.make_private(
        module=network.train(),
        optimizer=torch.optim.SGD([one for one in network.parameters() if one.requires_grad], lr=0.1),
        data_loader=DataLoader(data, batch_size=3),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
        **how,
    )
    model, optimizer, *criterion, loader = parts
    loss = criterion[0] if ghost else nn.CrossEntropyLoss()
    for batch, labels in (batch for _ in range(3) for batch in loader):
        if len(labels):
            optimizer.zero_grad()
            loss(logits_of(call(model, batch)), labels).backward()
            optimizer.step()
            if sum(steps for *_, steps in engine.accountant.history) == 3:
                break
    return model, engine, optimizer, loader


def repaired(build: Callable[[], nn.Module]) -> nn.Module:
    """A network as Opacus wants it: without BatchNorm, and without activations that overwrite their inputs."""
    network: nn.Module = ModuleValidator.fix(build())
    for part in network.modules():
        if getattr(part, "inplace", False):
            part.inplace = False  # type: ignore[assignment]
    return network


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_votes_as_the_bare_model(name: str, mode: str) -> None:
    """Two teachers after three steps each; the bare models vote on one input after another."""
    build, inputs = ARCHITECTURES[name]
    networks, parts = [], []
    for number in range(2):
        torch.manual_seed(number)
        networks.append(network := repaired(build))
        rows = range(number * RECORDS, (number + 1) * RECORDS)
        parts.append(trained(network, rows_of(inputs, rows), mode=mode))
    ensemble = ensemble_of(parts, noise="self-bounding", classes=CLASSES, accept=["ghost"] if mode == "ghost" else [])
    with torch.no_grad():
        alone = [
            torch.cat([logits_of(call(network.eval(), rows_of(inputs, [row]))) for row in range(2 * RECORDS)])
            for network in networks
        ]
    assert ensemble(inputs).shape == (2 * RECORDS,)
    assert torch.equal(ensemble.sensitive_votes(inputs), torch.stack(alone).argmax(dim=-1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_opacus_cannot_train_is_listed(name: str, mode: str) -> None:
    build, inputs, message = REFUSED[name]
    with pytest.raises(RuntimeError, match=message):
        trained(repaired(build), rows_of(inputs, range(RECORDS)), mode=mode)
