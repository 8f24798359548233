"""A ledger's head: a restored backup and a lost tail are noticed."""

from __future__ import annotations

import json
import os

import pytest

from darrm_torch import LedgerError, PrivacyGuarantee, PrivacyLedger

ONE = PrivacyGuarantee(epsilon=0.01, delta=1e-7)
FOR_20 = PrivacyGuarantee(epsilon=0.2, delta=2e-6)


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def ones(new):
    return [1] * len(new)


def test_a_head_notices_a_restored_backup_and_a_lost_tail(tmp_path):
    file, head = tmp_path / "ledger", tmp_path / "head"
    ledger = PrivacyLedger(file, FOR_20, cost=ONE, head=head)
    ledger.answer([key(1)], ones)
    ledger.close()
    backup, old_head = file.read_bytes(), head.read_bytes()
    ledger.answer([key(2)], ones)
    ledger.close()
    newest, new_head = file.read_bytes(), head.read_bytes()
    file.write_bytes(backup)
    assert PrivacyLedger(file).count == 1  # the file alone cannot tell
    with pytest.raises(LedgerError, match="One of them is an older copy"):
        PrivacyLedger(file, head=head)
    PrivacyLedger(file, cost=ONE).answer([key(3)], ones)  # as long as the newest again, with another label
    with pytest.raises(LedgerError, match="disagree"):
        PrivacyLedger(file, head=head)
    file.write_bytes(newest)
    assert PrivacyLedger(file, head=head).count == 2
    head.write_bytes(old_head)  # an older head does no harm
    assert PrivacyLedger(file, head=head, cost=ONE).answer([key(4), key(2)], ones) == [1, 1]
    assert json.loads(head.read_text())["entries"] > json.loads(new_head)["entries"]


def test_a_head_that_is_missing_damaged_or_of_another_ledger_is_refused(tmp_path):
    file, head = tmp_path / "ledger", tmp_path / "head"
    PrivacyLedger(file, head=head).answer([key(1)], ones)
    PrivacyLedger(tmp_path / "other", head=tmp_path / "other head")
    with pytest.raises(LedgerError, match="head of another ledger"):
        PrivacyLedger(file, head=tmp_path / "other head")
    head.write_text("{}")
    with pytest.raises(LedgerError, match="is no head"):
        PrivacyLedger(file, head=head)
    head.write_text('{"format": 99}')
    with pytest.raises(LedgerError, match="has format 99, and this version reads format 1: a newer version"):
        PrivacyLedger(file, head=head)
    head.unlink()
    os.mkfifo(head)
    with pytest.raises(LedgerError, match=r"is no head .* This is a pipe"):
        PrivacyLedger(file, head=head)
    head.unlink()
    with pytest.raises(LedgerError, match="is missing"):
        PrivacyLedger(file, head=head)
    assert PrivacyLedger(file).count == 1
    with pytest.raises(ValueError, match="left out for a ledger in memory"):
        PrivacyLedger(head=head)


def test_a_ledger_says_what_would_go_unnoticed(tmp_path):
    assert "ends with its process" in PrivacyLedger().trust
    assert "has no head" in PrivacyLedger(tmp_path / "ledger").trust
    assert "kept in head" in PrivacyLedger(tmp_path / "ledger", head=tmp_path / "head").trust


def test_a_head_that_is_restored_while_the_ledger_is_open_is_compared(tmp_path):
    file, head = tmp_path / "ledger", tmp_path / "head"
    ledger = PrivacyLedger(file, FOR_20, cost=ONE, head=head)
    ledger.answer([key(1)], ones)
    head.write_text(json.dumps(json.loads(head.read_text()) | {"digest": "0" * 64}))
    with pytest.raises(LedgerError, match="disagree"):
        ledger.answer([key(2)], ones)


def test_a_head_stays_where_a_link_leads(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "head").symlink_to(tmp_path / "disk" / "head")
    ledger = PrivacyLedger(tmp_path / "ledger", cost=ONE, head=tmp_path / "head")
    ledger.answer([key(1)], ones)
    assert (tmp_path / "head").is_symlink()
    assert json.loads((tmp_path / "disk" / "head").read_text())["entries"] == 3


def test_a_ledger_is_not_its_own_head(tmp_path):
    PrivacyLedger(tmp_path / "ledger").answer([key(1)], ones)
    with pytest.raises(LedgerError, match="is no head"):
        PrivacyLedger(tmp_path / "ledger", head=tmp_path / "ledger")
    assert PrivacyLedger(tmp_path / "ledger").count == 1
