"""What public objects look like in a session: short, whatever they hold."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import darrm_torch as dt
from tests.test_wrong_inputs import CALLS, PLACES, a_plan, call, function, network, signature

NOT_SHOWN = {"declared_loader", "plot_label_profile", "plot_ledger", "plot_noise", "plot_plurality"} | {
    "plot_audit",
    "plot_frontier",
    "train_teachers",
    "tune_teachers",
    "load_teacher",
    "forget_draws",
    "DistributedEnsemble",
    "plan",
    "federated.client_app",
    "federated.site_key",
}
HALF = dt.PrivacyGuarantee(epsilon=0.5, delta=1e-5)


def check_short(value: Any) -> None:
    text = repr(value)
    assert len(text) < 1000, text
    assert text.count("\n") < 24
    assert " at 0x" not in text


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in CALLS
        if "." not in name.removeprefix("lightning.").removeprefix("federated.") and name not in NOT_SHOWN
    ],
)
def test_what_a_call_returns(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "votes.npy", np.zeros((3, 5), dtype=np.int64))
    torch.save(network().state_dict(), tmp_path / "weights.pt")
    PLACES.update(cache=tmp_path, votes=tmp_path / "votes.npy", weights=tmp_path / "weights.pt")
    PLACES["votes-folder"] = tmp_path / "voting"
    function: Any = dt
    for part in name.split("."):
        function = getattr(function, part)
    check_short(function(**CALLS[name]()))


TAKE_FUNCTIONS = [
    (name, parameter.name)
    for name in CALLS
    if name not in NOT_SHOWN and inspect.isclass(function(name))
    for parameter in signature(name)
    if "Callable" in str(parameter.annotation) or "Transform" in str(parameter.annotation)
]


@pytest.mark.parametrize(("name", "parameter"), TAKE_FUNCTIONS)
def test_no_address_of_a_function_that_users_give(name: str, parameter: str, tmp_path: Path) -> None:
    torch.save(network().state_dict(), tmp_path / "weights.pt")
    PLACES.update(weights=tmp_path / "weights.pt")
    check_short(call(name, {parameter: lambda *given, **more: None}))


@pytest.mark.slow
def test_large_objects() -> None:
    many = dt.PrivacyProfile.from_dp_sgd([(2.0 + step / 100, 0.01, 1) for step in range(40)])
    points = [dt.PrivacyGuarantee(epsilon=step / 10, delta=0.1 / (step + 1)) for step in range(9)]
    noise = dt.self_bounding_noise(teachers=1001, allowance=3)
    networks = [nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)], nn.Linear(4, 2)) for _ in range(11)]
    ensemble = dt.PrivateMajorityEnsemble(networks, dt.DaRRM(dt.self_bounding_noise(teachers=11, allowance=3)))
    ensemble(torch.rand(40, 4))
    total = dt.total_privacy(teachers=[HALF] * 3, mechanism=dt.NoiseFreeMajority(), labels=9, delta=1e-4)
    certified = dt.optimize_noise(
        teachers=5,
        teacher=dt.PrivacyProfile.from_guarantee(*points),
        target=dt.PrivacyGuarantee(epsilon=2.0, delta=0.1),
    )
    results = (
        many,
        dt.PrivacyProfile.from_guarantee(*points),
        noise,
        dt.DaRRM(noise),
        ensemble,
        ensemble.ledger,
        total,
    )
    more = (total.route, certified, certified.certificate, a_plan(), *a_plan().rows, a_plan().teachers_needed(0.5))
    for value in (*results, *more, dt.read_privacy([(2.0, 0.1, 10)] * 6).reading, dt.assign_shards(1000, teachers=3)):
        check_short(value)


def test_a_ledger_shows_what_it_holds(tmp_path: Path) -> None:
    ledger = dt.PrivacyLedger(tmp_path / "l.ledger", budget=HALF, cost=dt.PrivacyGuarantee(epsilon=0.1))
    ledger.answer([b"a", b"b"], lambda new: [1 for _ in new])
    assert repr(ledger).endswith("l.ledger': 2 labels, budget (0.5, 1e-05)-DP>")
    ledger.close()
    check_short(ledger)


def test_notebooks_show_the_text_of_a_plan_and_of_a_design() -> None:
    assert a_plan()._repr_markdown_() == f"```text\n{a_plan()}\n```"


def test_every_export_that_users_call_has_an_example() -> None:
    """A doctest in the docstring of the function or class, or for a result, in that of what returns it.

    Two are left out, because they start processes.
    """
    results = {
        "Audit": dt.audit,
        "Certificate": dt.certify,
        "TeachersNeeded": dt.plan,
        "VoteBatch": dt.VoteFile,
        "Voter": dt.PrivateLabeler,
        "DataDependentGuarantee": dt.DataDependentLoss,
        "DesignRow": dt.design,
        "PipelineAudit": dt.audit_pipeline,
        "PrivacyReading": dt.read_privacy,
        "PrivacyRoute": dt.total_privacy,
        "SelfBoundingCertificate": dt.self_bounding_noise,
        "Shards": dt.assign_shards,
        "Strategy": dt.plan,
        "TotalPrivacy": dt.total_privacy,
        "TunedTeachers": dt.tune_teachers,
        "WorstCase": dt.certify,
        "Design": dt.design,
        "OneModel": dt.plan,
        "Plan": dt.plan,
    }
    without = []
    for name in dt.__all__:
        export = results.get(name, getattr(dt, name))
        if name in ("lightning", "DistributedEnsemble", "train_teachers") or (
            inspect.isclass(export) and issubclass(export, Exception)
        ):
            continue
        if callable(export) and ">>> " not in (inspect.getdoc(export) or ""):
            without.append(name)
    assert without == []
