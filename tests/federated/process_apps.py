"""The two sides of a federation of processes; Flower loads them. A site imports no Torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from darrm_torch.federated import Site, client_app, public_key, site_key

FOLDER = "DARRM_TEST_FEDERATION"  # environment variable: the folder of the federation, also what its processes share


def settings() -> dict[str, Any]:
    """The federation's folder, and its numbers of sites, inputs and inputs in a batch."""
    folder = Path(os.environ[FOLDER])
    return {"folder": folder, **json.loads((folder / "settings.json").read_text())}


class Stored:
    """Votes of a site for the positions of the inputs: mostly right."""

    def __init__(self, number: int, inputs: int) -> None:
        self.digest = f"teacher {number}"
        right = np.random.default_rng([number, 1]).random(inputs) < 0.7
        self._votes = np.where(right, truth(inputs), 1 - truth(inputs))

    def vote(self, inputs: np.ndarray) -> np.ndarray:
        return self._votes[inputs]


def truth(inputs: int) -> np.ndarray:
    return np.arange(inputs) % 2


def key_of(folder: Path, number: int) -> Any:
    return site_key(folder / f"site-{number}.pem")


def client() -> Any:
    """The ClientApp: which site it is stands in the configuration of its node."""
    how = settings()

    def site(context: Any) -> Site:
        number = int(context.node_config["site"])
        return Site(Stored(number, how["inputs"]), key=key_of(how["folder"], number), classes=2)

    return client_app(site)


def labeler(folder: Path, sites: int, inputs: int) -> Any:
    """Only the mechanism's own randomness protects, so each label costs; the budget pays for these inputs exactly."""
    import darrm_torch as dt

    mechanism = dt.GNMax(sigma=20.0, overlap=2)
    budget = dt.total_privacy(
        teachers=[dt.PrivacyProfile.non_private()] * sites, mechanism=mechanism, overlap=2, labels=inputs, delta=1e-5
    ).guarantee
    return dt.PrivateLabeler(
        mechanism,
        teachers=[f"teacher {number}" for number in range(sites)],
        overlap=2,
        classes=2,
        ledger=dt.PrivacyLedger(folder / "labels.ledger", budget=budget, head=folder / "labels.head"),
        delta=1e-5,
    )


def server() -> Any:
    """The ServerApp: labels all inputs in batches, and publishes each batch in a file."""
    from flwr.serverapp import ServerApp

    from darrm_torch.federated import FlowerExchange, RegisteredSite, RemoteLabeler

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        how = settings()
        folder, count, inputs = how["folder"], how["sites"], how["inputs"]
        known = [
            RegisteredSite(name=f"site {one}", digest=f"teacher {one}", public_key=public_key(key_of(folder, one)))
            for one in range(count)
        ]
        exchange = FlowerExchange(grid, patience=how["patience"], retry=how["patience"] / 2, pause=0.5)
        remote = RemoteLabeler(labeler(folder, count, inputs), known, exchange, log=folder / "private.log")
        for start in range(0, inputs, how["batch"]):
            labels = remote(np.arange(start, start + how["batch"]))
            with open(folder / "published.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps([start, labels.tolist()]) + "\n")
                file.flush()
                os.fsync(file.fileno())
        (folder / "done").touch()

    return app
