"""Ensembles of logistic regressions by DP-SGD, all teachers at once in NumPy: honest, and with planted faults."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

import darrm_torch as dt


@dataclass(frozen=True, kw_only=True)
class Setting:
    """K logistic regressions; each record draws ``overlap`` of the K shards."""

    teachers: int = 10
    overlap: int = 1
    noise: float = 2.0
    rate: float = 1.0  # of Poisson sampling
    steps: int = 1
    divisor: float = 100.0
    learning_rate: float = 0.5
    clip: float = 1.0

    def profile(self) -> dt.PrivacyProfile:
        return dt.PrivacyProfile.from_dp_sgd([(self.noise, self.rate, self.steps)])

    def total(self, mechanism: Any = None, *, labels: int = 1, delta: float = 1e-6, **options: Any) -> dt.TotalPrivacy:
        return dt.total_privacy(
            teachers=[self.profile()] * self.teachers,
            overlap=self.overlap,
            mechanism=mechanism or dt.NoiseFreeMajority(),
            labels=labels,
            delta=delta,
            **options,
        )

    @property
    def allocation(self) -> dt.RandomAllocation:
        return dt.RandomAllocation(teachers=self.teachers, overlap=self.overlap)


Shards = Callable[[Setting, np.random.Generator, np.ndarray, np.ndarray], np.ndarray]


def drawn_shards(setting: Setting, generator: np.random.Generator, inputs: Any, labels: Any) -> np.ndarray:
    """Whether each record is in each shard, (N, K): uniform subsets, one draw for each record."""
    ranks = generator.random((len(labels), setting.teachers)).argsort(axis=1).argsort(axis=1)
    return ranks < setting.overlap


def shards_by_content(setting: Setting, generator: np.random.Generator, inputs: Any, labels: Any) -> np.ndarray:
    """One shard for each record, from a keyed digest of its content: equal records go together."""
    key, member = generator.bytes(32), np.zeros((len(labels), setting.teachers), dtype=bool)
    for row, (record, label) in enumerate(zip(inputs, labels, strict=True)):
        digest = hashlib.blake2b(record.tobytes() + bytes([label]), key=key, digest_size=8).digest()
        member[row, int.from_bytes(digest, "little") % setting.teachers] = True
    return member


def all_shards(setting: Setting, generator: np.random.Generator, inputs: Any, labels: Any) -> np.ndarray:
    return np.ones((len(labels), setting.teachers), dtype=bool)


def trained(
    setting: Setting,
    generator: np.random.Generator,
    inputs: np.ndarray,
    labels: np.ndarray,
    *,
    shards: Shards = drawn_shards,
    noise: float | None = None,
    equal_seeds: bool = False,
    batch_clipping: bool = False,
) -> np.ndarray:
    """The weights of the teachers, (K, d)."""
    member = shards(setting, generator, inputs, labels)
    norms = np.linalg.norm(inputs, axis=1, keepdims=True)
    weights = np.zeros((setting.teachers, inputs.shape[1]))
    scale = setting.clip * (setting.noise if noise is None else noise)
    for _ in range(setting.steps):
        drawn = member & (generator.random(member.shape) < setting.rate)
        slopes = (special.expit(inputs @ weights.T) - labels[:, None]) * drawn
        if batch_clipping:  # the mean gradient is clipped instead of each record's
            sums = slopes.T @ inputs / setting.divisor
            sums /= np.maximum(1, np.linalg.norm(sums, axis=1, keepdims=True) / (setting.clip / 2))
            sums *= setting.divisor
        else:
            sums = (slopes * np.minimum(1, setting.clip / np.maximum(np.abs(slopes) * norms, 1e-12))).T @ inputs
        normals = generator.standard_normal((1 if equal_seeds else setting.teachers, inputs.shape[1]))
        weights -= setting.learning_rate * (sums + scale * normals) / setting.divisor
    return weights


def models(weights: np.ndarray) -> list[Callable[[np.ndarray], np.ndarray]]:
    return [lambda queries, one=one: queries @ one for one in weights]


def counts_of(weights: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The votes for the two classes, (Q, 2)."""
    ones = (queries @ weights.T > 0).sum(axis=1)
    return np.stack([len(weights) - ones, ones], axis=1)


def records(seed: int, *, count: int = 400, size: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Two Gaussian classes in the first ten dimensions; the others are quiet."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    inputs = np.zeros((count, size))
    inputs[:, :10] = generator.standard_normal((count, 10)) + (2 * labels[:, None] - 1) * 0.5
    return inputs, labels


# --- the gallery ------------------------------------------------------------------------------------------------------

X, Y = records(1)
GNMAX = dt.GNMax(sigma=20.0, teachers=11, overlap=1, insecure_seed=1)  # on teachers without privacy of their own
QUERIES = 10


def audited(
    setting: Setting, claim: Any, seed: int, release: Any = None, options: Any = None, **fault: Any
) -> dt.PipelineAudit:
    """The audit of a pipeline that trains with a fault and releases its teachers, or ``release(weights, queries)``."""
    generator = np.random.default_rng([seed, 1])

    def published(inputs: np.ndarray, labels: np.ndarray) -> Any:
        return models(trained(setting, generator, inputs, labels, **fault))

    def answered(inputs: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> Any:
        return release(trained(setting, generator, inputs, labels, **fault), queries)

    options = {"runs": 20, "query_control": release is not None} | (options or {})
    return dt.audit_pipeline(answered if release else published, X, Y, claim=claim, seed=seed, **options)


def gnmax_claim() -> dt.PrivacyGuarantee:
    """What GNMax promises for one label of each query, whatever the teachers are."""
    routes = Setting(teachers=11).total(GNMAX, labels=QUERIES).routes
    return dt.PrivacyGuarantee(
        epsilon=next(route.epsilon for route in routes if route.key == "own-randomness"), delta=1e-6
    )


def audited_labels(seed: int, release: Any) -> dt.PipelineAudit:
    options = {"runs": 200, "canaries": QUERIES}
    return audited(Setting(teachers=11), gnmax_claim(), seed, release, options, noise=0.0)


def redrawn(weights: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """How often each class came in 1,000 labels of each query: no ledger answered the repetitions."""
    labels = GNMAX.aggregate(np.repeat(counts_of(weights, queries), 1000, axis=0)).reshape(len(queries), 1000)
    return np.stack([1000 - labels.sum(axis=1), labels.sum(axis=1)], axis=1)


def with_opacus(engine: Any, **private: Any) -> Callable[[np.ndarray, np.ndarray], Any]:
    """A pipeline that trains one teacher with Opacus, and reads its guarantee before it releases it."""

    def pipeline(inputs: np.ndarray, labels: np.ndarray) -> Any:
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        network = torch.nn.Linear(inputs.shape[1], 2)
        data = TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = engine.make_private(
                module=network,
                optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
                data_loader=DataLoader(data, batch_size=50, shuffle=True),
                criterion=torch.nn.CrossEntropyLoss(),
                noise_multiplier=2.0,
                max_grad_norm=1.0,
                **private,
            )
            module, optimizer, loader = made[0], made[1], made[-1]
            criterion = made[2] if len(made) == 4 else torch.nn.CrossEntropyLoss()
            for features, targets in loader:
                optimizer.zero_grad()
                criterion(module(features), targets).backward()
                optimizer.step()
        dt.read_teachers([engine], modules=[module], optimizers=[optimizer], data_loaders=[loader])
        return network

    return pipeline


def shuffled(seed: int) -> dt.PipelineAudit:
    from opacus import PrivacyEngine

    claim = dt.PrivacyProfile.from_dp_sgd([(2.0, 0.1, 10)]).guarantees([1e-6])[0]
    return dt.audit_pipeline(with_opacus(PrivacyEngine(), poisson_sampling=False), X, Y, claim=claim, seed=seed)


def adaptive_ghost(seed: int) -> dt.PipelineAudit:
    from opacus.utils.adaptive_clipping.adaptive_clipping_utils import PrivacyEngineAdaptiveClipping

    claim = dt.PrivacyProfile.from_dp_sgd([(2.0, 0.1, 10)]).guarantees([1e-6])[0]
    private = {
        "grad_sample_mode": "ghost",
        "target_unclipped_quantile": 0.5,
        "min_clipbound": 0.1,
        "max_clipbound": 10.0,
        "clipbound_learning_rate": 0.2,
    }
    return dt.audit_pipeline(with_opacus(PrivacyEngineAdaptiveClipping(), **private), X, Y, claim=claim, seed=seed)


def same_content_same_shard(seed: int) -> dt.PipelineAudit:
    setting = Setting(teachers=50, noise=1.0)
    claim = setting.total(allocation=setting.allocation)
    return audited(setting, claim, seed, options={"runs": 50, "copies": 8}, shards=shards_by_content)


TEN, TWENTY = Setting(), Setting(teachers=20)
FAULTS: dict[str, Callable[[int], dt.PipelineAudit]] = {
    "equal seeds": lambda seed: audited(TEN, TEN.total(), seed, equal_seeds=True),
    "no noise": lambda seed: audited(TEN, TEN.total(), seed, noise=0.0),
    "noise divided by K": lambda seed: audited(TEN, TEN.total(), seed, noise=TEN.noise / TEN.teachers),
    "batch-level clipping": lambda seed: audited(TEN, TEN.total(), seed, batch_clipping=True),
    "shuffled batches": shuffled,
    "adaptive clipping with ghost": adaptive_ghost,
    "shards by content": same_content_same_shard,
    "all shards, overlap 1 claimed": lambda seed: audited(TWENTY, TWENTY.total(), seed, shards=all_shards),
    "1,000 labels of one input": lambda seed: audited_labels(seed, redrawn),
    "logged margins": lambda seed: audited_labels(seed, counts_of),
}
STRUCTURAL = {"shuffled batches", "adaptive clipping with ghost"}


def main() -> None:
    """The table of the tutorial."""
    print("| fault | claimed | audited, 95 % | audited, 99.9 % | finding |\n|---|---|---|---|---|")
    for name, build in FAULTS.items():
        result = build(1)
        bounds = [f"{result.lower_bound(level):.2f}" if result.attacks else "" for level in (0.95, 0.999)]
        finding = result.findings[0][:70] if result.findings else ""
        print(f"| {name} | {result.claim.epsilon:.2f} | {bounds[0]} | {bounds[1]} | {finding} |", flush=True)


if __name__ == "__main__":
    main()
