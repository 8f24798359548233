"""The ledger: budgets, crashes, several processes, files that cannot be used."""

from __future__ import annotations

import contextlib
import copy
import decimal
import gc
import io
import json
import math
import multiprocessing
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

import darrm_torch.labels.ledger as ledger_module
import darrm_torch.labels.ledger_file as file_module
from darrm_torch import BudgetExceeded, InvalidArgument, LedgerError, PrivacyGuarantee, PrivacyLedger
from tests.processes import HANGS, processor_seconds, running

ONE = PrivacyGuarantee(epsilon=0.01, delta=1e-7)
FOR_100 = PrivacyGuarantee(epsilon=1.0, delta=1e-5)


def keys(*numbers: int) -> list[bytes]:
    return [number.to_bytes(8, "big") for number in numbers]


def ones(new):
    return [1] * len(new)


def forbidden(new):
    pytest.fail("labels were drawn")


# --- answers and charges ----------------------------------------------------------------------------------------------


def test_the_same_question_has_the_same_answer_free_of_charge():
    ledger, calls = PrivacyLedger(), []

    def draw(new):
        calls.append(list(new))
        return [10 + i for i in new]

    assert ledger.answer(keys(1, 2, 1, 3, 2), draw) == [10, 11, 10, 13, 11]
    assert calls == [[0, 1, 3]]
    assert ledger.count == 3
    assert ledger.answer(keys(3, 1), forbidden) == [13, 10]
    assert ledger.answer([], forbidden) == []
    assert ledger.answer(keys(3, 9), draw) == [13, 11]
    assert calls[-1] == [1]
    assert ledger.count == 4


def test_one_label_is_one_label():
    with pytest.raises(BudgetExceeded, match=r"^1 label would cost \(2, 0\)-DP.*0 more labels fit$"):
        PrivacyLedger(budget=ONE, cost=PrivacyGuarantee(epsilon=2.0)).answer(keys(1), forbidden)
    with pytest.raises(BudgetExceeded, match=r"^2 labels would cost.*; 1 more label fits$"):
        PrivacyLedger(budget=ONE, cost=ONE).answer(keys(1, 2), forbidden)


def test_the_budget_is_checked_before_anything_is_drawn_and_sums_are_decimal():
    ledger = PrivacyLedger(budget=FOR_100, cost=ONE)
    assert ledger.left(1000) == 100
    for number in range(100):  # in floating point, 100 additions of 0.01 exceed 1
        assert ledger.answer(keys(number), ones) == [1]
    assert ledger.spent() == FOR_100
    with pytest.raises(BudgetExceeded, match="0 more labels fit"):
        ledger.answer(keys(100), forbidden)
    assert ledger.answer(keys(0, 99), forbidden) == [1, 1]


def test_a_batch_over_the_budget_gives_out_nothing_and_says_what_is_left():
    ledger = PrivacyLedger(budget=FOR_100, cost=ONE)
    ledger.answer(keys(*range(93)), ones)
    with pytest.raises(BudgetExceeded, match=r"101 labels would cost \(1.01, 1.01e-05\)-DP.* 7 more labels fit"):
        ledger.answer(keys(1, *range(200, 208)), forbidden)
    assert ledger.count == 93
    ledger.answer(keys(*range(200, 207)), ones)
    assert ledger.left(5) == 0


def test_a_check_charges_nothing_and_counts_what_is_new():
    ledger = PrivacyLedger(budget=PrivacyGuarantee(epsilon=0.03), cost=PrivacyGuarantee(epsilon=0.01))
    ledger.answer(keys(1), ones)
    ledger.check(keys(1, 2, 3, 2))
    with pytest.raises(BudgetExceeded, match="2 more labels fit"):
        ledger.check(keys(1, 2, 3, 4))
    assert (ledger.count, ledger.report()["batches"]) == (1, 1)
    with pytest.raises(InvalidArgument, match="keys"):
        ledger.check(["1"])


@given(st.integers(0, 300), st.lists(st.integers(1, 40), max_size=30))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_few_prices_are_asked_for_and_the_limit_is_exact(limit, batches):
    prices = []

    def cost(labels):
        prices.append(labels)
        return PrivacyGuarantee(epsilon=float(labels))

    ledger, given_out = PrivacyLedger(budget=PrivacyGuarantee(epsilon=float(limit)), cost=cost), 0
    for number, size in enumerate(batches):
        asked = [b"%d %d" % (number, one) for one in range(size)]
        if given_out + size <= limit:
            ledger.answer(asked, ones)
            given_out += size
        else:
            before = len(prices)
            with pytest.raises(BudgetExceeded):
                ledger.answer(asked, forbidden)
            del prices[before:]  # what the message says is not counted
        assert ledger.count == given_out
    assert len(prices) <= 40


def test_budgets_do_not_depend_on_the_decimal_context():
    with decimal.localcontext(decimal.Context(prec=2)):  # in which 101 times 0.01 is 1.0
        ledger = PrivacyLedger(budget=FOR_100, cost=ONE)
        with pytest.raises(BudgetExceeded, match=r"101 labels would cost \(1.01, 1.01e-05\)-DP"):
            ledger.answer(keys(*range(101)), forbidden)
        ledger.answer(keys(*range(100)), ones)
    endless = PrivacyGuarantee(epsilon=math.inf)
    assert PrivacyLedger(budget=endless, cost=endless).answer(keys(1), ones) == [1]
    with pytest.raises(BudgetExceeded):
        PrivacyLedger(budget=FOR_100, cost=endless).answer(keys(1), forbidden)


def test_a_price_that_falls_again_is_still_a_bound_for_fewer():
    """A price of many labels that fits covers any few of them."""

    def cost(labels):
        return PrivacyGuarantee(epsilon=5.0 if labels % 7 else 0.5)

    ledger = PrivacyLedger(budget=PrivacyGuarantee(epsilon=1.0), cost=cost)
    assert cost(ledger.left(1000)).epsilon == 0.5
    given = 0
    for number in range(100):
        try:
            given += len(ledger.answer(keys(number), ones))
        except BudgetExceeded:
            break
    assert given == ledger.count
    assert any(cost(more).epsilon <= 1.0 for more in range(given, 3 * given + 1))


@pytest.mark.parametrize("budget", [PrivacyGuarantee(epsilon=1.0), PrivacyGuarantee(epsilon=0.0, delta=1.0)])
def test_epsilon_and_delta_are_both_limits(budget):
    with pytest.raises(BudgetExceeded):
        PrivacyLedger(budget=budget, cost=ONE).answer(keys(1), forbidden)


def test_a_cost_may_stop_growing():
    ledger = PrivacyLedger(
        budget=PrivacyGuarantee(epsilon=0.3), cost=lambda n: PrivacyGuarantee(epsilon=min(0.1 * n, 0.3))
    )
    ledger.answer(keys(*range(1000)), ones)
    assert ledger.left(10**9) == 10**9
    assert ledger.spent() == PrivacyGuarantee(epsilon=0.3)


def test_a_budget_needs_a_cost():
    ledger = PrivacyLedger(budget=FOR_100)
    with pytest.raises(InvalidArgument, match="bind"):
        ledger.answer(keys(1), forbidden)
    ledger.bind({"teachers": "a"}, cost=ONE)
    assert ledger.answer(keys(1), ones) == [1]


@pytest.mark.parametrize("draw", [lambda new: [], lambda new: [1, 2, 3], lambda new: [0.5, 1.0], lambda new: 1 / 0])
def test_a_failed_draw_charges_nothing(draw):
    ledger = PrivacyLedger(budget=FOR_100, cost=ONE)
    with pytest.raises((InvalidArgument, ZeroDivisionError)):
        ledger.answer(keys(1, 2), draw)
    assert ledger.count == 0
    assert ledger.answer(keys(1), ones) == [1]


@settings(deadline=None, derandomize=True, max_examples=50)
@given(batches=st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=8), most=st.integers(0, 30))
def test_for_any_requests_the_ledger_is_a_map_within_its_budget(batches, most):
    """Against a dictionary: one label per key for ever, whole batches, never more than the budget."""
    ledger = PrivacyLedger(budget=PrivacyGuarantee(epsilon=float(most)), cost=PrivacyGuarantee(epsilon=1.0))
    model: dict[int, int] = {}
    fresh = iter(range(10**6))
    for batch in batches:
        new = set(batch) - model.keys()
        try:
            labels = ledger.answer(keys(*batch), lambda positions: [next(fresh) for _ in positions])
        except BudgetExceeded:
            assert len(model) + len(new) > most
            continue
        assert len(model) + len(new) <= most
        for number, label in zip(batch, labels, strict=True):
            assert model.setdefault(number, label) == label
        assert ledger.count == len(model)


def test_a_ledger_that_is_asked_while_it_answers_refuses_and_stays_whole():
    ledger = PrivacyLedger()

    def asks(new):
        with pytest.raises(LedgerError, match="while it is answering"):
            ledger.answer(keys(2), forbidden)
        return ones(new)

    assert ledger.answer(keys(1), asks) == [1]
    assert (ledger.count, ledger.report()["batches"]) == (1, 1)


@pytest.mark.slow
def test_an_interruption_at_any_moment_leaves_the_ledger_whole(tmp_path):
    """As by Ctrl-C, at each line that runs between the question and its answer."""
    ledger, other = (PrivacyLedger(tmp_path / "ledger.ledger", timeout=0.05) for _ in range(2))
    moment, interrupted = 0, True
    while interrupted:
        moment, interrupted, steps = moment + 1, False, 0

        def trace(frame, event, _, moment=moment):
            nonlocal steps, interrupted
            if frame.f_code.co_filename not in (ledger_module.__file__, file_module.__file__):
                return None
            steps += event == "line"
            if steps == moment and not interrupted:
                interrupted = True
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            ledger.answer(keys(moment), ones)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        gc.collect()
        count = ledger.count
        assert ledger.answer(keys(moment), ones) == [1]
        assert ledger.count - count in (0, 1)
        assert other.answer(keys(moment), forbidden) == [1]
        other.answer(keys(10_000 + moment), ones)
    assert moment > 20


@pytest.mark.parametrize("bad", [["text"], [b""], [1], [None]])
def test_keys_are_bytes(bad):
    with pytest.raises(InvalidArgument, match="digest"):
        PrivacyLedger().answer(bad, forbidden)


@pytest.mark.parametrize("change", [{"budget": 1.0}, {"cost": 0.1}, {"timeout": -1.0}])
def test_bad_arguments_are_refused(change):
    with pytest.raises(InvalidArgument):
        PrivacyLedger(**change)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_remembers_everything(tmp_path):
    file = tmp_path / "ledger.ledger"
    first = PrivacyLedger(file, FOR_100, cost=ONE)
    first.bind({"teachers": "abc", "rules": "r=1"})
    first.answer(keys(1, 2), lambda new: [7, 8])
    first.close()
    second = PrivacyLedger(file, cost=ONE)
    second.bind({"rules": "r=1", "teachers": "abc"})
    assert second.budget == FOR_100
    assert second.answer(keys(2, 1), forbidden) == [8, 7]
    assert second.spent() == PrivacyGuarantee(epsilon=0.02, delta=2e-7)
    assert first.count == 2  # opens again by itself


def test_a_ledger_in_memory_forgets_nothing_when_it_is_closed():
    ledger = PrivacyLedger(budget=PrivacyGuarantee(epsilon=0.01), cost=PrivacyGuarantee(epsilon=0.01))
    ledger.answer(keys(1), lambda new: [7])
    ledger.close()
    assert ledger.answer(keys(1), forbidden) == [7]
    with pytest.raises(BudgetExceeded):
        ledger.answer(keys(2), forbidden)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_taken_away_is_noticed(tmp_path, replaced):
    file = tmp_path / "ledger.ledger"
    ledger = PrivacyLedger(file)
    ledger.answer(keys(1), ones)
    for path in tmp_path.iterdir():
        path.rename(tmp_path / f"old-{path.name}")
    if replaced:
        PrivacyLedger(file).answer(keys(2), ones)
    with pytest.raises(LedgerError, match="moved or replaced"):
        ledger.answer(keys(1), forbidden)


def test_an_older_copy_in_the_place_of_the_file_is_noticed(tmp_path):
    """A restored backup forgets charges; a process that saw them does not go on."""
    file = tmp_path / "ledger.ledger"
    ledger = PrivacyLedger(file, FOR_100, cost=ONE)
    ledger.answer(keys(*range(40)), ones)
    ledger.close()
    content = file.read_bytes()
    ledger.answer(keys(*range(40, 100)), ones)
    ledger.close()
    file.write_bytes(content)
    with pytest.raises(LedgerError, match="has 3 entries and had 4: an older copy"):
        ledger.answer(keys(100), forbidden)


def test_a_copy_of_the_file_alone_has_every_charge(tmp_path):
    """As a backup script may copy it while it is open."""
    ledger, copied = PrivacyLedger(tmp_path / "ledger", FOR_100, cost=ONE), tmp_path / "copy"
    for number in range(5):
        ledger.answer(keys(number), ones)
        assert [path.name for path in tmp_path.iterdir() if path != copied] == ["ledger"]  # there is no second file
        copied.write_bytes((tmp_path / "ledger").read_bytes())
        copy_of_it = PrivacyLedger(copied)
        assert (copy_of_it.count, copy_of_it.budget) == (number + 1, FOR_100)
        copy_of_it.close()


def test_a_file_that_cannot_be_used_is_checked_again_when_it_can(tmp_path):
    file = tmp_path / "ledger"
    again = pickle.loads(pickle.dumps(PrivacyLedger(file, timeout=0.05)))
    content = filled(file)
    file.write_bytes(b"\0" * 100 + content[100:])
    with pytest.raises(LedgerError):
        again.answer(keys(1), forbidden)
    file.write_bytes(content.replace(b'": 1', b'": 0', 1))
    with pytest.raises(LedgerError, match="entry 2 of 2 is not the one that was committed"):
        again.answer(keys(1), forbidden)
    file.write_bytes(content)
    assert again.answer(keys(1), forbidden) == [1]


def test_a_ledger_of_others_is_refused(tmp_path):
    file = tmp_path / "ledger.ledger"
    PrivacyLedger(file).bind({"teachers": "abc", "mechanism": "m"})
    with pytest.raises(LedgerError, match=r"belongs to another ensemble \(different teachers\)"):
        PrivacyLedger(file).bind({"teachers": "xyz", "mechanism": "m"})


def test_another_budget_is_refused(tmp_path):
    PrivacyLedger(tmp_path / "limited", FOR_100, cost=ONE)
    with pytest.raises(LedgerError, match="was started with the budget"):
        PrivacyLedger(tmp_path / "limited", PrivacyGuarantee(epsilon=2.0))
    PrivacyLedger(tmp_path / "open").answer(keys(1), ones)
    with pytest.raises(LedgerError, match="no budget"):
        PrivacyLedger(tmp_path / "open", FOR_100)


def filled(file: Path, labels: int = 2000) -> bytes:
    ledger = PrivacyLedger(file, cost=ONE)
    ledger.answer(keys(*range(labels)), ones)
    ledger.close()
    return file.read_bytes()


def test_another_cost_of_a_label_is_refused(tmp_path):
    """Else ten labels of 0.01 would have cost 0.001 from now on, and many more would fit."""
    file = tmp_path / "ledger.ledger"
    PrivacyLedger(file, FOR_100, cost=ONE).answer(keys(*range(10)), ones)
    cheaper = PrivacyGuarantee(epsilon=ONE.epsilon / 10, delta=ONE.delta)
    for open_it in (
        lambda: PrivacyLedger(file, cost=cheaper),
        lambda: PrivacyLedger(file).bind({"teachers": "a"}, cost=cheaper),
    ):
        with pytest.raises(LedgerError, match=r"charges \(0\.01, 1e-07\)-DP a label, not \(0\.001, 1e-07\)-DP"):
            open_it()
    assert PrivacyLedger(file, cost=ONE).left(1000) == 90


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9])
def test_a_file_cut_short_is_refused(tmp_path, share):
    file = tmp_path / "ledger.ledger"
    content = filled(file)
    file.write_bytes(content[: max(50, int(len(content) * share))])
    with pytest.raises(LedgerError):  # the one without its first lines may be one that another process is creating
        PrivacyLedger(file, timeout=0.05).answer(keys(1), forbidden)


def test_a_label_removed_from_the_file_is_noticed(tmp_path):
    file = tmp_path / "ledger"
    content = filled(file)
    file.write_bytes(content.replace(b'"0000000000000005": 1, ', b"", 1))
    with pytest.raises(LedgerError, match="damaged"):
        PrivacyLedger(file)


def test_what_is_no_ledger_is_refused(tmp_path):
    for name, content in {
        "empty": b"",
        "text": b"not a ledger, but long enough to look at" * 50,
        "database": b"SQLite format 3\0" + bytes(4000),
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(LedgerError, match="is no ledger"):
            PrivacyLedger(tmp_path / name, timeout=0.05)
        assert (tmp_path / name).read_bytes() == content
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "no" / "such" / "folder", tmp_path, tmp_path / "pipe"):
        with pytest.raises(LedgerError):
            PrivacyLedger(path)


def test_a_read_only_file_is_shown_and_answers_nothing_new(tmp_path, monkeypatch):
    file = tmp_path / "ledger"
    PrivacyLedger(file, FOR_100).bind({"teachers": "abc"}, cost=ONE)
    filled(file, 90)
    opened = io.FileIO

    def read_only(path, mode="r", closefd=True):
        """As for users who may only read; root may write any file."""
        if mode != "r":
            raise PermissionError(13, "Permission denied", path)
        return opened(path, mode, closefd)

    monkeypatch.setattr(io, "FileIO", read_only)
    ledger = PrivacyLedger(file, cost=ONE)
    assert (ledger.count, ledger.budget, ledger.left(100)) == (90, FOR_100, 10)
    assert ledger.report()["labels"] == 90
    with pytest.raises(LedgerError, match="is read-only"):
        ledger.answer(keys(1000), forbidden)


def test_a_locked_file_is_one_clear_error(tmp_path):
    file = tmp_path / "ledger"
    ledger, other = PrivacyLedger(file, timeout=0.05), PrivacyLedger(file, timeout=0.05)

    def asks_the_other(new):
        with pytest.raises(LedgerError, match="is locked: another process is answering"):
            other.answer(keys(1), forbidden)
        return ones(new)

    assert ledger.answer(keys(1), asks_the_other) == [1]
    assert other.answer(keys(1), forbidden) == [1]


def test_a_full_disk_gives_out_nothing(tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger")
    ledger.answer(keys(1), ones)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(LedgerError, match="too large"):
            ledger.answer(keys(*range(2, 5000)), forbidden)  # noticed before any vote
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert ledger.count == 1
    assert ledger.answer(keys(2), ones) == [1]


def test_a_copy_of_an_ensemble_spends_from_the_same_ledger():
    ledger = PrivacyLedger()
    assert copy.deepcopy(ledger) is ledger


# --- reports ----------------------------------------------------------------------------------------------------------


def test_the_report_reads_only_and_holds_no_votes(tmp_path):
    file = tmp_path / "ledger.ledger"
    ledger = PrivacyLedger(file, FOR_100, cost=ONE)
    ledger.bind({"teachers": "abc"})
    ledger.answer(keys(1, 2), lambda new: [0, 1])
    ledger.answer(keys(3), ones)
    before, exported = file.read_bytes(), io.StringIO()
    report = json.loads(json.dumps(ledger.report(), allow_nan=False))
    ledger.export_json(exported)
    export = json.loads(exported.getvalue())
    assert file.read_bytes() == before
    assert (report["labels"], report["batches"]) == (3, 2)
    assert report["spent"] == {"epsilon": 0.03, "delta": 3e-7}
    assert report["budget"] == {"epsilon": 1.0, "delta": 1e-5}
    assert report["first"] <= report["last"]
    assert {**export, "charges": None} == {**report, "charges": None}
    assert [(charge["number"], charge["labels"]) for charge in export["charges"]] == [
        (1, {key.hex(): label for key, label in zip(keys(1, 2), (0, 1), strict=True)}),
        (2, {keys(3)[0].hex(): 1}),
    ]
    entries = [json.loads(line.rpartition(" ")[0]) for line in file.read_text().splitlines()[3:]]
    assert {name for entry in entries for name in entry} == {"fact", "value", "time", "labels"}


def test_no_report_holds_what_the_ledger_is_bound_to(tmp_path):
    """A digest of the teachers' weights is an exact function of the training data."""
    for path in (":memory:", tmp_path / "ledger"):
        ledger, exported = PrivacyLedger(path), io.StringIO()
        ledger.bind({"teachers": "5ec3e7", "rules": "r=1"})
        ledger.answer(keys(1), ones)
        ledger.export_json(exported)
        with pytest.raises(LedgerError) as refused:
            ledger.bind({"teachers": "07he2", "rules": "r=1"})
        for text in (exported.getvalue(), str(ledger.report()), repr(ledger), str(refused.value)):
            assert "5ec3e7" not in text
            assert "07he2" not in text
        assert (ledger.bound("rules"), ledger.bound("nothing")) == ("r=1", None)
        assert ledger.differences({"teachers": "07he2", "rules": "r=1"}) == ["teachers"]


# --- several threads and processes --------------------------------------------------------------------------------


def test_threads_share_one_ledger():
    ledger, given = PrivacyLedger(budget=FOR_100, cost=ONE), []

    def work(start):
        for number in range(start, start + 60):
            try:
                given.extend(ledger.answer(keys(number), ones))
            except BudgetExceeded:
                return

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == ledger.count == 100


WORKER = """
import random, sys
from darrm_torch import BudgetExceeded, PrivacyGuarantee, PrivacyLedger
file, start, shared = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ledger = PrivacyLedger(file, cost=PrivacyGuarantee(epsilon=0.01, delta=1e-7))
coin = random.Random(start)
for number in range(400):
    number = number % shared if shared else start + number
    key = number.to_bytes(8, "big")
    try:
        (label,) = ledger.answer([key], lambda new: [coin.randrange(2) for _ in new])
    except BudgetExceeded:
        print("over", flush=True)
        break
    print(key.hex(), label, flush=True)
"""


def labelling(file: Path, first: int, shared: int = 0) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WORKER, str(file), str(first), str(shared)]
    return running(command, stdout=subprocess.PIPE, text=True)


def given_out(process: subprocess.Popen[str]) -> list[tuple[str, int]]:
    lines = [line.split() for line in process.communicate()[0].splitlines() if line != "over"]
    return [(line[0], int(line[1])) for line in lines if len(line) == 2]


@pytest.mark.slow
def test_two_processes_never_overspend(tmp_path):
    file = tmp_path / "ledger.ledger"
    PrivacyLedger(file, FOR_100, cost=ONE).close()
    with labelling(file, 0) as one, labelling(file, 10_000) as other:
        given = [pair for process in (one, other) for pair in given_out(process)]
    assert len(given) == len(set(given)) == PrivacyLedger(file).count == 100


@pytest.mark.slow
def test_two_processes_give_the_same_answer_to_the_same_question(tmp_path):
    file = tmp_path / "ledger.ledger"
    PrivacyLedger(file).close()
    with labelling(file, 1, shared=40) as one, labelling(file, 2, shared=40) as other:
        answers = [dict(given_out(process)) for process in (one, other)]
    assert answers[0] == answers[1]
    assert len(answers[0]) == PrivacyLedger(file).count == 40


def open_new(file: Path, ready) -> None:
    ready.wait()
    PrivacyLedger(file, FOR_100, cost=ONE).answer([os.urandom(8)], ones)


@pytest.mark.slow
def test_several_processes_may_start_one_ledger_together(tmp_path):
    context = multiprocessing.get_context("forkserver")
    for attempt in range(3):
        ready = context.Event()
        children = [context.Process(target=open_new, args=(tmp_path / str(attempt), ready)) for _ in range(4)]
        for child in children:
            child.start()
        ready.set()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0] * 4
        assert PrivacyLedger(tmp_path / str(attempt)).count == 4


def in_a_child(ledger: PrivacyLedger, queue) -> None:
    try:
        queue.put(ledger.answer(keys(1, 2), ones))
    except LedgerError as error:
        queue.put(str(error))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_a_forked_child_opens_the_file_again(tmp_path):
    context = multiprocessing.get_context("fork")
    for ledger, expected in ((PrivacyLedger(tmp_path / "l"), [7, 1]), (PrivacyLedger(), "memory")):
        ledger.answer(keys(1), lambda new: [7])
        queue = context.SimpleQueue()
        child = context.Process(target=in_a_child, args=(ledger, queue))
        child.start()
        answer = queue.get()
        child.join()
        assert expected == answer if isinstance(expected, list) else expected in answer


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_child_forked_while_another_thread_answers_does_not_wait_for_ever(tmp_path):
    ledger, asked, go_on = PrivacyLedger(tmp_path / "l", timeout=0.05), threading.Event(), threading.Event()

    def slow(new):
        asked.set()
        assert go_on.wait(HANGS)
        return ones(new)

    thread = threading.Thread(target=lambda: ledger.answer(keys(1), slow))
    thread.start()
    assert asked.wait(HANGS)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=in_a_child, args=(ledger, queue))
    child.start()
    try:
        assert "locked" in queue.get(timeout=HANGS)  # by the parent's thread
    finally:
        child.kill()
        child.join()
        go_on.set()
        thread.join()
    assert ledger.answer(keys(1), forbidden) == [1]
    assert PrivacyLedger(tmp_path / "l").count == 1


def test_a_pickled_ledger_is_the_name_of_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = PrivacyLedger("ledger.ledger", FOR_100, cost=ONE)
    ledger.answer(keys(1), lambda new: [7])
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(ledger))
    assert again.answer(keys(1, 2), ones) == [7, 1]
    assert (again.budget, again.spent(), ledger.count) == (FOR_100, PrivacyGuarantee(epsilon=0.02, delta=2e-7), 2)
    with pytest.raises(LedgerError, match="in memory"):
        pickle.dumps(PrivacyLedger())


def killed_at(file: Path, moment: float) -> list[tuple[str, int]]:
    """What a labelling process gave out before it was killed ``moment`` seconds after its first label."""
    with labelling(file, random.randrange(2**40)) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(moment)
        process.kill()
        rest = given_out(process)
    return [(first.split()[0], int(first.split()[1])), *rest]


def check_after_kills(file: Path, moments: list[float]) -> None:
    PrivacyLedger(file).close()
    for moment in moments:
        given = killed_at(file, moment)
        ledger = PrivacyLedger(file)  # checks that labels and charges agree
        stored = ledger.answer([bytes.fromhex(key) for key, _ in given], forbidden)
        assert stored == [label for _, label in given]
        ledger.close()


def test_every_label_given_out_survives_a_kill(tmp_path):
    check_after_kills(tmp_path / "ledger.ledger", [0.0, 0.002, 0.01, 0.03, 0.05])


@pytest.mark.slow
@pytest.mark.parametrize("kills", [30, pytest.param(200, marks=pytest.mark.long)])
def test_every_label_given_out_survives_many_kills(tmp_path, kills: int):
    moment = random.Random(1)
    check_after_kills(tmp_path / "ledger.ledger", [moment.uniform(0.0, 0.4) for _ in range(kills)])


def test_a_hundred_thousand_labels_in_batches_take_less_than_ten_seconds(tmp_path):
    def label() -> None:
        budget = PrivacyGuarantee(epsilon=1000.0, delta=0.01)
        ledger = PrivacyLedger(tmp_path / str(len([*tmp_path.iterdir()])), budget, cost=ONE)
        for number in range(0, 100_000, 1000):
            ledger.answer(keys(*range(number, number + 1000)), ones)
        assert ledger.count == 100_000

    assert processor_seconds(label, below=10) < 10
