"""The server: labels from votes of sites, some of which are late, dead or lie."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import darrm_torch as dt
from darrm_torch.federated import Answer, LocalTeacher, RegisteredSite, RemoteLabeler, Request, Site, public_key
from darrm_torch.labels.identity import input_digests
from tests.federated.helpers import Stored, Wire, key, registered, remote, sites
from tests.labels.helpers import Says

KEYS = [0, 1, 2, 3]


def test_labels_are_those_of_the_votes_and_paid_for_once() -> None:
    clinics = sites(5)
    wire = Wire(clinics)
    server = remote(clinics, wire)
    assert server(KEYS).tolist() == [0, 1, 1, 0]
    assert server(KEYS[:2]).tolist() == [0, 1]
    assert server(np.array(KEYS), batch=1).tolist() == [0, 1, 1, 0]
    assert (wire.requests, server.labeler.ledger.count, server.sensitive_events) == (1, 4, ())
    assert server([]).tolist() == []


def test_the_price_is_that_of_the_labeler() -> None:
    clinics = sites(5)
    total = remote(clinics, Wire(clinics)).labeler.total_privacy(labels=4, delta=3e-5).guarantee
    assert 0.5 < total.epsilon <= 1.0  # two teachers of a patient


def signed(clinic: Site, asked: bytes, /, **changes: Any) -> list[bytes]:
    """An answer to this request that is not what the site should say, with its signature."""
    private = clinic._key
    fields = {"request": Request.digest(asked), "site": public_key(private), "teacher": clinic.teacher.digest}
    return [Answer(**{**fields, "votes": np.array([1, 1, 1, 1]), **changes}).signed(private)]


LIES: dict[str, tuple[Callable[[Site, bytes, bytes], list[bytes]], str]] = {
    "dead": (lambda site, request, honest: [], "clinic 4: no answer"),
    "shape": (lambda site, request, honest: signed(site, request, votes=np.ones(3)), "clinic 4 .*one vote for each"),
    "axes": (lambda site, request, honest: signed(site, request, votes=np.ones((4, 1))), "clinic 4 .*one vote for"),
    "classes": (lambda site, request, honest: signed(site, request, votes=np.array([0, 1, 2, 0])), "clinic 4 .*exist"),
    "negative": (lambda site, request, honest: signed(site, request, votes=np.full(4, -2)), "clinic 4 .*do not exist"),
    "digest": (lambda site, request, honest: signed(site, request, teacher="another"), "clinic 4 .*another teacher"),
    "replay": (lambda site, request, honest: signed(site, request, request="0" * 64), "clinic 4 .*another request"),
    "oversize": (lambda site, request, honest: [honest + b"\0" * 10**7], "node 4: .*longer than"),
    "garbage": (lambda site, request, honest: [b"\x80\x04K\x01."], "node 4: .*refused"),
    "empty": (lambda site, request, honest: [b""], "node 4: .*refused"),
    "no bytes": (lambda site, request, honest: [None], "node 4: .*refused"),  # type: ignore[list-item]
    "forged": (lambda site, request, honest: [honest[:-1] + bytes([honest[-1] ^ 1])], "node 4: .*signature"),
    "stranger": (lambda site, request, honest: [Site(Stored("t", [1] * 4), key=key(), classes=2).answer(request)],
                 "node 4: .*no registered site"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_site_that_lies_loses_its_votes_and_nothing_else(lie: str) -> None:
    tamper, event = LIES[lie]
    clinics = sites(5)
    server = remote(clinics, Wire(clinics, {4: lambda request, honest: tamper(clinics[4], request, honest)}))
    assert server(KEYS).tolist() == [0, 1, 1, 0]
    assert server.labeler.ledger.count == 4
    assert any(re.search(event, line) for line in server.sensitive_events)
    assert "clinic 0" not in "".join(server.sensitive_events)


def test_of_two_answers_of_a_site_the_first_counts() -> None:
    clinics = sites(3)
    late = {0: lambda request, honest: [honest, *signed(clinics[0], request), honest]}
    server = remote(clinics, Wire(clinics, late))
    assert server(KEYS).tolist() == [0, 1, 1, 0]
    assert [("answered before" in line, "clinic 0" in line) for line in server.sensitive_events] == [(True, True)] * 2


def test_a_site_cannot_answer_for_another() -> None:
    clinics = sites(3)
    stolen = {2: lambda request, honest: signed(clinics[2], request, site=public_key(clinics[0]._key))}
    server = remote(clinics, Wire(clinics, stolen))
    assert server(KEYS).tolist() == [0, 1, 1, 0]
    assert "node 2: an answer was refused: the signature" in server.sensitive_events[0]


def test_missing_votes_follow_the_labelers_rule() -> None:
    """Labels depend on the votes that came and the public rule only: the same as with -1 in the table."""
    clinics = sites(3)
    dead = {number: lambda request, honest: [] for number in (0, 2)}
    server = remote(clinics, Wire(clinics, dead), quorum=1)
    local = remote(clinics, Wire(clinics)).labeler
    table = [[-1] * 4, [0, 1, 1, 0], [-1] * 4]
    assert server(KEYS).tolist() == local.label(input_digests(torch.tensor(KEYS)), table).tolist()


def test_below_the_quorum_nothing_is_charged_and_nobody_is_named(tmp_path: Path) -> None:
    clinics = sites(5)
    for place in (tmp_path, tmp_path / "no folder" / "log"):  # before any site is asked
        with pytest.raises(dt.InvalidArgument, match="log must be a file"):
            remote(clinics, Wire(clinics), log=place)
    wire = Wire(clinics, {number: lambda request, honest: [b"garbage"] for number in range(3)})
    server = remote(clinics, wire, log=tmp_path / "log")
    with pytest.raises(dt.DarrmError, match="fewer than 3 of the 5 sites") as error:
        server(KEYS)
    assert "clinic" not in str(error.value)
    assert server.labeler.ledger.count == 0
    wire.tamper = {}
    assert server(KEYS).tolist() == [0, 1, 1, 0]
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600
    assert (tmp_path / "log").read_text().splitlines() == list(server.sensitive_events)


def test_no_site_is_asked_over_the_budget() -> None:
    clinics = sites(5)
    wire = Wire(clinics)
    server = remote(clinics, wire, ledger=dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=0.6, delta=1e-5)))
    with pytest.raises(dt.BudgetExceeded):
        server(KEYS)
    assert wire.requests == 0


def test_an_exchange_that_breaks_costs_nothing() -> None:
    def broken(request: bytes) -> Any:
        yield "node 0", clinics[0].answer(request)
        raise ConnectionError("gone")

    clinics = sites(3)
    server = remote(clinics, broken)
    with pytest.raises(ConnectionError):
        server(KEYS)
    assert server.labeler.ledger.count == 0


def test_a_server_that_starts_again_draws_no_second_label(tmp_path: Path) -> None:
    """Some batches are stored; the teachers now say the opposite, and the stored labels stay."""
    clinics = sites(5)
    first = remote(clinics, Wire(clinics), ledger=dt.PrivacyLedger(tmp_path / "labels.ledger"))
    assert first(KEYS[:2]).tolist() == [0, 1]
    for clinic in clinics:
        clinic.teacher._votes = 1 - clinic.teacher._votes
    second = remote(clinics, Wire(clinics), ledger=dt.PrivacyLedger(tmp_path / "labels.ledger"))
    assert second.agreement == first.agreement
    assert second(KEYS).tolist() == [0, 1, 0, 1]
    assert second.labeler.ledger.count == 4


def test_other_sites_cannot_use_the_ledger(tmp_path: Path) -> None:
    clinics = sites(3)
    remote(clinics, Wire(clinics), ledger=dt.PrivacyLedger(tmp_path / "labels.ledger"))
    clinics[1].teacher.digest = "retrained"
    with pytest.raises(dt.LedgerError, match="different teachers"):
        remote(clinics, Wire(clinics), ledger=dt.PrivacyLedger(tmp_path / "labels.ledger"))


def test_sites_hold_the_server_to_its_terms() -> None:
    clinics = sites(3)
    server = remote(clinics, Wire(clinics))
    for clinic in clinics:
        clinic.agreement = server.agreement
    assert server(KEYS).tolist() == [0, 1, 1, 0]
    bigger = remote(clinics, Wire(clinics), ledger=dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=9, delta=1e-3)))
    with pytest.raises(dt.DarrmError, match="fewer than 2"):
        bigger(KEYS)


def test_networks_at_sites_label_as_an_ensemble_does() -> None:
    clinics = [Site(LocalTeacher(Says(at)), key=key(), classes=2) for at in (0.2, 0.5, 0.8)]
    inputs = np.random.default_rng(0).random((20, 1), dtype=np.float32)
    assert remote(clinics, Wire(clinics))(inputs).tolist() == (inputs[:, 0] > 0.5).astype(int).tolist()


def test_findings_are_not_asked_at_sites() -> None:
    clinics = sites(3)
    known = registered(clinics)
    names = [one.digest for one in known]
    several = dt.PrivateLabeler(dt.NoiseFreeMajority(), teachers=names, findings=["edema"], ledger=dt.PrivacyLedger())
    with pytest.raises(dt.InvalidArgument, match="labeler must be one without findings"):
        RemoteLabeler(several, known, Wire(clinics))


def test_probabilities_are_no_votes() -> None:
    clinics = sites(3)
    known = registered(clinics)
    soft = dt.PrivateLabeler(
        dt.MeanProbabilities(), teachers=[one.digest for one in known], classes=2, ledger=dt.PrivacyLedger()
    )
    with pytest.raises(dt.InvalidArgument, match="labeler must be one whose mechanism counts votes"):
        RemoteLabeler(soft, known, Wire(clinics))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda known: known[::-1], "sites must be those of the labeler's teachers, in the same order"),
        (lambda known: known[:2], "sites must be those"),
        (lambda known: ["a", "b", "c"], "sites must be a RegisteredSite"),
        (lambda known: [RegisteredSite(name="x", digest=one.digest, public_key="0" * 64) for one in known], "two with"),
    ],
)
def test_sites_that_are_not_the_labelers_are_refused(change: Any, message: str) -> None:
    clinics = sites(3)
    server = remote(clinics, Wire(clinics))
    with pytest.raises(dt.InvalidArgument, match=message):
        RemoteLabeler(server.labeler, change(registered(clinics)), Wire(clinics))


@pytest.mark.parametrize("field", [{"name": ""}, {"digest": ""}, {"public_key": "ab"}, {"public_key": "g" * 64}])
def test_a_site_registers_with_name_digest_and_key(field: dict[str, str]) -> None:
    with pytest.raises(dt.InvalidArgument):
        RegisteredSite(**{"name": "x", "digest": "t", "public_key": "0" * 64, **field})
