"""The privacy report: complete, readable, and without a fingerprint of the teachers."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from opacus import PrivacyEngine
from torch import nn

import darrm_torch as dt
from tests.labels.helpers import Returns, Says


def test_report_is_for_people_and_for_programs(trained: list[tuple[nn.Module, nn.Module, PrivacyEngine]]) -> None:
    _, models, engines = zip(*trained, strict=True)
    ensemble = dt.PrivateMajorityEnsemble.from_opacus(models, engines, delta=1e-3, allowance=1.0)
    assert ensemble.privacy_report(as_dict=True)["total"] is None
    ensemble(torch.rand(4, 4))
    text = ensemble.privacy_report()
    for part in (
        "4 labels",
        "operating system",
        "One label",
        "All 4 labels together",
        "Assumptions:",
        "Teachers 0-2: ",
        "Secrecy",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) < 80
    marked = ensemble.privacy_report(markdown=True)
    assert marked.startswith("# Privacy report\n\nReleased: 4 labels, by DaRRM from 3 teachers. Randomness: ")
    assert "\n\nAssumptions:\n\n- Neighbours: " in marked
    assert "".join(marked.split()) == "#Privacyreport" + "".join(text.split())
    assert f"One label is {ensemble.total_privacy(labels=1).guarantee}, by " in marked


def test_the_report_says_where_when_and_by_what(tmp_path: Path) -> None:
    ledger = dt.PrivacyLedger(tmp_path / "week.ledger", dt.PrivacyGuarantee(epsilon=20.0, delta=1e-5))
    mechanism = dt.GNMax(sigma=12.5546, teachers=5, classes=3)
    ensemble = dt.PrivateMajorityEnsemble(
        [Returns(*((1 + n) * torch.eye(3)[c]).tolist()) for n, c in enumerate((0, 1, 1, 2, 0))],
        mechanism,
        overlap=1,
        ledger=ledger,
    )
    reported = ensemble.privacy_report(as_dict=True)
    assert (reported["version"], reported["date"][:2]) == (dt.__version__, "20")
    assert reported["ledger"] == {
        "file": "week.ledger",
        "budget": {"epsilon": 20.0, "delta": 1e-5},
        "trust": ledger.trust,
    }
    assert ledger.trust in " ".join(ensemble.privacy_report().split())
    assert reported["total"] is None
    assert str(tmp_path) not in str(reported)
    ensemble(torch.rand(1, 1))
    one = " ".join(ensemble.privacy_report().split())
    assert "Released: 1 label, by GNMax (sigma 12.5546, overlap 1) from 5 teachers. Randomness:" in one
    assert "All 1" not in one
    assert "Ledger: week.ledger, budget (20, 1e-05)-DP. Reported by darrm-torch" in one
    ensemble(torch.rand(500, 1))
    # Two bounds are proven for noise on the counts; the report says which one it uses.
    text = " ".join(ensemble.privacy_report().split())
    counts = dt.GNMax(sigma=12.5546).guarantee(labels=501, delta=1e-5)
    assert ensemble.total_privacy(labels=501).epsilon < counts.epsilon
    assert (
        "by the worst curve of the label itself, over all votes of 5 teachers for 3 classes, sigma = 12.5546." in text
    )
    other = dt.PrivateMajorityEnsemble([Says(0.1), Says(0.5)], dt.GNMax(sigma=12.5546), overlap=1)
    assert "by the Gaussian mechanism on the counts, sigma = 12.5546." in " ".join(other.privacy_report().split())
    assert "Ledger: :memory:, no budget." in other.privacy_report()
    randomized = dt.PrivateMajorityEnsemble([Says(0.1), Says(0.5)], dt.PermuteAndFlip(epsilon=0.25), overlap=1)
    randomized(torch.rand(2, 1))
    text = " ".join(randomized.privacy_report().split())
    assert "Released: 2 labels, by PermuteAndFlip (epsilon 0.25, overlap 1) from 2 teachers." in text
    assert "by the theorem of PermuteAndFlip. All 2" in text
    assert "by the theorem of PermuteAndFlip for one label, and composition of 2." in text


def test_a_report_of_what_is_not_proven_says_so() -> None:
    ensemble = dt.PrivateMajorityEnsemble([Says(0.1), Says(0.5)], dt.NoiseFreeMajority(classes=2))
    ensemble(torch.rand(3, 1))
    text, reported = ensemble.privacy_report(), ensemble.privacy_report(as_dict=True)
    assert "One label is not proven to be private" in text
    assert "All 3 labels together are not proven to be private" in text
    assert "(inf" not in text
    assert (reported["label"]["epsilon"], reported["label"]["route"]) == (None, None)
    assert not any(route["applies"] for route in reported["total"]["routes"] if route["epsilon"] is None)
    json.dumps(reported, allow_nan=False)


def test_the_report_holds_no_fingerprint_of_the_weights(
    trained: list[tuple[nn.Module, nn.Module, PrivacyEngine]],
) -> None:
    _, models, engines = zip(*trained, strict=True)
    ensemble = dt.PrivateMajorityEnsemble.from_opacus(models, engines, delta=1e-3, allowance=2.0, noise="self-bounding")
    ensemble(torch.rand(2, 4))
    said = str(ensemble.privacy_report(as_dict=True)) + ensemble.privacy_report()
    for profile in ensemble.profiles:
        assert profile.reading.digest
        assert profile.reading.digest not in said
