"""Sites in this process: honest ones, and some that lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import darrm_torch as dt
from darrm_torch.federated import RegisteredSite, RemoteLabeler, Site

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")

HALF = dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=0.5, delta=1e-5))


class Stored:
    """Votes by the position of an input in a public list."""

    def __init__(self, digest: str, votes: Any) -> None:
        self.digest, self._votes, self.asked = digest, np.asarray(votes), 0

    def vote(self, inputs: np.ndarray) -> Any:
        self.asked += len(inputs)
        return self._votes[inputs]


def key() -> Any:
    return ed25519.Ed25519PrivateKey.generate()


def sites(count: int, votes: Any = (0, 1, 1, 0), *, classes: int = 2) -> list[Site]:
    return [Site(Stored(f"teacher {number}", votes), key=key(), classes=classes) for number in range(count)]


class Wire:
    """An exchange in this process; ``tamper`` turns an honest answer into the messages that arrive instead."""

    def __init__(self, sites: list[Site], tamper: dict[int, Callable[[bytes, bytes], list[bytes]]] | None = None):
        self.sites, self.tamper, self.requests = sites, tamper or {}, 0

    def __call__(self, request: bytes) -> Iterator[tuple[str, bytes]]:
        self.requests += 1
        for number, site in enumerate(self.sites):
            honest = site.answer(request)
            for message in self.tamper.get(number, lambda request, honest: [honest])(request, honest):
                yield f"node {number}", message


def registered(sites: list[Site]) -> list[RegisteredSite]:
    return [RegisteredSite(name=f"clinic {number}", **site.registration) for number, site in enumerate(sites)]


def remote(sites: list[Site], exchange: Any, *, classes: int = 2, ledger: Any = None, **how: Any) -> RemoteLabeler:
    known = registered(sites)
    labeler = dt.PrivateLabeler(
        dt.NoiseFreeMajority(),
        teachers=[site.digest for site in known],
        profiles=[HALF] * len(sites),
        overlap=2,
        classes=classes,
        ledger=dt.PrivacyLedger() if ledger is None else ledger,
    )
    return RemoteLabeler(labeler, known, exchange, **how)
