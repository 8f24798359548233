"""Teachers that tests train with Opacus."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import darrm_torch as dt
from darrm_torch import PrivacyProfile, read_privacy

STEPS = [(1.0, 0.1, 10)]
RUNS = ((1.0, 1677722 / 2**24, 10),)  # 24 random bits are below 0.1 slightly more often than that


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 6)
        self.out = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(x)))


class Teacher:
    """One epoch of DP-SGD with Opacus, in the way that a test asks for."""

    def __init__(
        self,
        *,
        seed=0,
        accountant="prv",
        records=100,
        net=None,
        lr=0.1,
        optimizer=torch.optim.SGD,
        batches=None,
        **private,
    ):
        from opacus import PrivacyEngine

        torch.manual_seed(seed)
        self.net = Net() if net is None else net
        self.engine = PrivacyEngine(accountant=accountant)
        data = TensorDataset(torch.randn(records, 4), torch.randint(0, 2, (records,)))
        settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0} | private
        self.module, self.optimizer, *rest = self.engine.make_private(
            module=self.net,
            optimizer=optimizer(self.net.parameters(), lr=lr),
            data_loader=DataLoader(data, batch_size=records // 10, generator=batches),
            **(settings | ({"criterion": nn.CrossEntropyLoss()} if "ghost" in str(private) else {})),
        )
        self.loader = rest[-1]
        self.criterion = rest[0] if len(rest) == 2 else nn.CrossEntropyLoss()
        self.train()

    def train(self) -> None:
        callable_ = self.module if isinstance(self.module, nn.Module) else self.net
        for x, y in self.loader:
            self.optimizer.zero_grad()
            self.criterion(callable_(x), y).backward()
            self.optimizer.step()

    def read(self, **options) -> PrivacyProfile:
        given = {"module": self.module, "data_loader": self.loader, "optimizer": self.optimizer}
        return read_privacy(self.engine, **(given | options))


def ensemble_of(trained: list[tuple[Any, ...]], **how: Any) -> dt.PrivateMajorityEnsemble:
    """An ensemble of teachers, each given as its model, engine, optimizer and loader."""
    models, engines, optimizers, loaders = map(list, zip(*trained, strict=True))
    settings = {"delta": 1e-5, "allowance": 1, "overlap": 1} | how
    return dt.PrivateMajorityEnsemble.from_opacus(
        models, engines, optimizers=optimizers, data_loaders=loaders, ledger=dt.PrivacyLedger(), **settings
    )


class Centred(nn.Module):
    """Subtracts the mean of the raw batches that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return self.head(x - self.mean)


def save(file, teacher, **extra):
    state = {"module_state_dict": teacher.net.state_dict(), **extra}
    state.setdefault("privacy_accountant_state_dict", dict(teacher.engine.accountant.state_dict()))
    torch.save(state, file)


def zero_net() -> Net:
    net = Net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    net.hidden.weight.requires_grad_(True)
    return net


def noisy(seed: int, data_seed: int) -> Teacher:
    """Noise dominates, data differ: teachers with one seed differ only by what they learned."""
    torch.manual_seed(data_seed)
    from opacus import PrivacyEngine

    teacher = Teacher.__new__(Teacher)
    teacher.net, teacher.engine = zero_net(), PrivacyEngine()
    data = TensorDataset(torch.randn(100, 4), torch.randint(0, 2, (100,)))
    teacher.module, teacher.optimizer, teacher.loader = teacher.engine.make_private(
        module=teacher.net,
        optimizer=torch.optim.SGD(teacher.net.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=10),
        noise_multiplier=50.0,
        max_grad_norm=1.0,
    )
    teacher.criterion = nn.CrossEntropyLoss()
    torch.manual_seed(seed)
    teacher.train()
    return teacher


def build() -> nn.Module:
    """A network for :func:`some_data`."""
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))


def zeros() -> nn.Module:
    """The same with weights of zero."""
    model = build()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def wide_zeros() -> nn.Module:
    """With so many weights that two noises are never alike by chance."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 32))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def some_data(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 4, generator=generator), torch.randint(0, 2, (count,), generator=generator)
