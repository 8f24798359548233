"""A ledger keeps the mechanism that it was started with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import darrm_torch as dt
from darrm_torch.labels.kept import check_built_for, described
from tests.labels.helpers import POINT, Says


def solved_elsewhere(mechanism: Any) -> tuple[Any, Any]:
    """The mechanism, and the same with a table whose last digits differ: mixed with a little of the uniform one."""
    table = mechanism.table
    uniform = table.space.ties / table.space.classes * 2**53
    shares = np.floor((1 - 1e-9) * table.shares + 1e-9 * uniform).astype(np.int64)
    for histogram in range(table.space.histograms):
        here = np.flatnonzero(table.space.histogram == histogram)
        shares[here[shares[here].argmax()]] += 2**53 - shares[here].sum()
    return mechanism, mechanism.with_shares(shares.tolist())


@pytest.mark.parametrize("kind", ["darrm", "gnmax", "self-bounding", "vote-private"])
def test_a_ledger_is_continued_with_its_own_noise_on_another_machine(tmp_path: Path, kind: str) -> None:
    """There a solver's last digits differ."""
    target = dt.PrivacyGuarantee(epsilon=0.25, delta=1e-5)
    noise = dt.optimize_noise(teachers=3, teacher=POINT, target=target)
    gamma = noise.gamma * (1 - 1e-9)
    other = dt.NoiseFunction(gamma=gamma, certificate=dt.certify(gamma, teachers=3, teacher=POINT, target=target))
    first, again = {
        "darrm": (dt.DaRRM(noise), dt.DaRRM(other)),
        "gnmax": (dt.GNMax(sigma=7.0, overlap=3), dt.GNMax(sigma=7.0 * (1 + 1e-12), overlap=3)),
        "self-bounding": solved_elsewhere(dt.SelfBoundingPlurality(teachers=3, classes=2, allowance=1.4)),
        "vote-private": solved_elsewhere(dt.VotePrivatePlurality(teachers=3, classes=2, epsilon=0.5, overlap=3)),
    }[kind]
    assert first.describe() != again.describe()
    models, inputs = [Says(0.1), Says(0.5), Says(0.9)], torch.rand(5, 1)

    def ensemble(mechanism: dt.Mechanism) -> dt.PrivateMajorityEnsemble:
        profiles = [dt.PrivacyProfile.from_guarantee(POINT)] * 3
        ledger = dt.PrivacyLedger(tmp_path / "ledger")
        return dt.PrivateMajorityEnsemble(models, mechanism, profiles=profiles, ledger=ledger)

    labels = ensemble(first)(inputs)
    continued = ensemble(again)
    assert torch.equal(continued(inputs), labels)
    assert continued.mechanism.describe() == first.describe()
    proof = first.certificate
    if kind == "self-bounding":  # only the solver knows how good a table is
        proof = replace(proof, optimality_gap=None)
    assert continued.mechanism.certificate == proof
    far = (
        dt.DaRRM(dt.self_bounding_noise(teachers=3, allowance=1.0))
        if kind == "darrm"
        else dt.GNMax(sigma=8.0, overlap=3)
    )
    with pytest.raises(dt.LedgerError, match="different mechanism"):
        ensemble(far)


@pytest.mark.parametrize("kind", [dt.SelfBoundingPlurality, dt.VotePrivatePlurality])
def test_a_table_for_another_prior_is_another_mechanism(tmp_path: Path, kind: Any) -> None:
    """Two tables are exchanged only if the ledger's is as good for the prior that was given."""
    strength = {"allowance": 2.0} if kind is dt.SelfBoundingPlurality else {"epsilon": 2.0}
    models = [nn.Linear(1, 3) for _ in range(5)]

    def ensemble(**prior: Any) -> dt.PrivateMajorityEnsemble:
        mechanism = kind(teachers=5, classes=3, overlap=5, **strength, **prior)
        return dt.PrivateMajorityEnsemble(models, mechanism, overlap=5, ledger=dt.PrivacyLedger(tmp_path / "ledger"))

    ensemble(prior=dt.PluralityVotes(accuracy=0.99))(torch.rand(2, 1))
    with pytest.raises(dt.LedgerError, match="different mechanism"):
        ensemble(prior=dt.PluralityVotes(accuracy=0.4))


def test_shares_of_other_tables_are_refused() -> None:
    mechanism = dt.SelfBoundingPlurality(teachers=3, classes=3, allowance=1.0)
    shares = mechanism.table.shares.tolist()
    assert mechanism.with_shares(shares).certificate.smallest == mechanism.certificate.smallest
    for wrong in ([], shares[:-1], [2 * one for one in shares], [-1, *shares[1:]], [float(one) for one in shares]):
        with pytest.raises(dt.InvalidArgument, match="shares must be for each standing"):
            mechanism.with_shares(wrong)
    with pytest.raises(dt.PrivacyViolation, match=r"is not 1\.0-self-bounding"):
        mechanism.with_shares(dt.SelfBoundingPlurality(teachers=3, classes=3, allowance=2.0).table.shares.tolist())
    mechanism = dt.VotePrivatePlurality(teachers=3, classes=3, epsilon=1.0)
    with pytest.raises(dt.PrivacyViolation, match=r"does not keep epsilon = 1\.0"):
        mechanism.with_shares(dt.VotePrivatePlurality(teachers=3, classes=3, epsilon=2.0).table.shares.tolist())


def test_the_overlap_of_a_mechanism_is_read_from_its_noise_or_its_certificate() -> None:
    certified = dt.DaRRM(dt.self_bounding_noise(teachers=3, allowance=1.0, overlap=2))
    for mechanism in (dt.GNMax(sigma=5.0, overlap=2), certified):
        check_built_for(mechanism, 2, stated=True)
        with pytest.raises(
            dt.InvalidArgument, match=r"^overlap must be at most 2, for which the mechanism was built, got"
        ):
            check_built_for(mechanism, 3, stated=False)
    check_built_for(dt.NoiseFreeMajority(), 3, stated=True)  # nothing was built for any overlap


def test_a_description_is_what_decides_the_labels() -> None:
    assert described(dt.GNMax(sigma=5.0)) == described(dt.GNMax(sigma=5.0))
    others = (
        dt.GNMax(sigma=6.0),
        dt.GNMax(sigma=5.0, teachers=3),
        dt.GNMax(sigma=5.0, insecure_seed=1),
        dt.LNMax(scale=5.0),
    )
    assert len({described(one) for one in (dt.GNMax(sigma=5.0), *others)}) == 5
