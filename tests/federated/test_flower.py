"""Flower carries requests and answers. Here a grid in this process; real SuperLinks: `test_flower_processes.py`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

import pytest

import darrm_torch as dt
from darrm_torch.federated import FlowerExchange, client_app
from tests.federated.helpers import remote, sites

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
flwr = pytest.importorskip("flwr.app")


@pytest.fixture(autouse=True)
def _run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages belong to a run; Flower sets it in the process of a ServerApp."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:  # older versions ask no process
        return
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """Delivers messages to ClientApps; ``lost`` is how many messages to a node get lost, ``broken`` nodes fail."""

    def __init__(self, apps: dict[int, Any], *, lost: dict[int, int] | None = None, broken: Iterable[int] = ()) -> None:
        self.apps, self.lost, self.broken = apps, dict(lost or {}), set(broken)
        self.replies: dict[str, Any] = {}
        self.sent = itertools.count(1)

    def get_node_ids(self) -> list[int]:
        return list(self.apps)

    def push_messages(self, messages: list[Any]) -> list[str | None]:
        return [self.push(message) for message in messages]

    def push(self, message: Any) -> str | None:
        node, name = message.metadata.dst_node_id, f"message {next(self.sent)}"
        message.metadata.__dict__["_message_id"] = name
        if self.lost.get(node, 0):
            self.lost[node] -= 1
            return name
        if node in self.broken:
            self.replies[name] = flwr.Message(flwr.Error(0, "it broke"), reply_to=message)
        else:
            self.replies[name] = self.apps[node](message, context=None)
        return name

    def pull_messages(self, names: list[str]) -> list[Any]:
        return [self.replies.pop(name) for name in names if name in self.replies]


def connected(count: int, patience: float = 60.0, **how: Any) -> tuple[Any, Grid, Any]:
    clinics = sites(count)
    grid = Grid({number + 100: client_app(clinic) for number, clinic in enumerate(clinics)}, **how)
    return clinics, grid, remote(clinics, FlowerExchange(grid, patience=patience, retry=0.05, pause=0.0))


def test_labels_come_over_flower() -> None:
    _, _, server = connected(3)
    assert server([0, 1, 2, 3]).tolist() == [0, 1, 1, 0]
    assert server.sensitive_events == ()


def test_dead_sites_are_waited_for_and_then_missing() -> None:
    _, _, server = connected(5, patience=0.5, lost={101: 10**6}, broken=[103])
    assert server([0, 1, 2, 3]).tolist() == [0, 1, 1, 0]
    missing = [line for line in server.sensitive_events if "no answer that counts" in line]
    assert ["clinic 1" in missing[0], "clinic 3" in missing[1], len(missing)] == [True, True, 2]


def test_a_message_that_got_lost_is_sent_again() -> None:
    clinics, _, server = connected(3, lost={101: 2})
    assert server([0, 1]).tolist() == [0, 1]
    assert server.sensitive_events == ()
    assert [clinic.teacher.asked for clinic in clinics] == [2, 2, 2]


def test_a_site_that_starts_anew_takes_part() -> None:
    """It has another node id, and its old node never answers."""
    clinics, grid, server = connected(3, lost={102: 10**6})
    grid.apps[777] = client_app(lambda context: clinics[2])
    assert server([0, 1]).tolist() == [0, 1]
    assert server.sensitive_events == ()


def test_messages_of_another_kind_are_refused() -> None:
    clinics, grid, server = connected(3, patience=0.2)
    grid.apps[101] = lambda message, context: flwr.Message(
        flwr.RecordDict({"darrm": flwr.ConfigRecord({"message": "text"})}), reply_to=message
    )
    grid.apps[102] = lambda message, context: flwr.Message(
        flwr.RecordDict({"darrm": flwr.MetricRecord({"message": 1})}), reply_to=message
    )
    grid.apps[103] = lambda message, context: flwr.Message(flwr.RecordDict(), reply_to=message)
    with pytest.raises(dt.DarrmError, match="fewer than 2"):
        server([0, 1])
    reply = client_app(clinics[0])(flwr.Message(flwr.RecordDict(), 1, "query.darrm_votes"), context=None)
    assert reply.content["darrm"]["message"] == b""


def test_what_goes_wrong_at_a_site_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    def broken(context: Any) -> Any:
        raise OSError("/home/clinic/secret.pt is missing")

    reply = client_app(broken)(flwr.Message(flwr.RecordDict(), 1, "query.darrm_votes"), context=None)
    assert reply.content["darrm"]["message"] == b""
    assert "secret" in caplog.text


def test_a_grid_is_needed() -> None:
    with pytest.raises(dt.InvalidArgument, match="grid must be the Grid"):
        FlowerExchange(object())
