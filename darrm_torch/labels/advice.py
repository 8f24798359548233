"""What is worth knowing before the first label: labels that are not kept, useless noise, no budget, poor labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import LabelWarning, warn_caller
from ..mechanisms.base import MOST_LABELS, Mechanism
from ..mechanisms.noise_free import NoiseFree, NoiseFreeMajority
from ..privacy.totals import total_privacy
from .ledger import PrivacyLedger

__all__ = ["LITTLE", "memory_ledger", "warn_before_labels"]

_AGREE = 0.75  # of the teachers; as the planner's default prior expects
LITTLE = 0.1  # more than guessing, up to which labels are poor


def warn_before_labels(
    mechanism: Mechanism, ledger: PrivacyLedger, situation: dict[str, Any], delta: float, *, labels: int = 1
) -> None:
    """Warn about the first labels: the budget cannot pay for one, the noise buys nothing, or they are poor.

    Args:
        mechanism: makes the labels.
        ledger: keeps them; nothing is said about one that has labels.
        situation: the arguments of :func:`~darrm_torch.total_privacy` but ``labels`` and ``delta``.
        delta: of the total.
        labels: how many there will be at least.
    """
    if ledger.count or not labels:
        return
    budget, count = ledger.budget, len(situation["teachers"])
    these = total_privacy(labels=labels, delta=delta, **situation)
    if labels == 1 and budget is not None and not (these.epsilon <= budget.epsilon and these.delta <= budget.delta):
        warn_caller(
            f"the labels cannot be paid for: a single one costs {these.guarantee}, over the budget of {budget}. Use "
            "more noise, state how many teachers one record can affect (overlap=...), or raise the budget",
            LabelWarning,
        )
        return
    if isinstance(mechanism, NoiseFree):  # its labels carry no noise to warn about
        return
    free = NoiseFreeMajority(classes=mechanism.classes)
    without = total_privacy(labels=MOST_LABELS, delta=delta, **situation | {"mechanism": free})
    pays = budget is not None and without.epsilon <= budget.epsilon and without.delta <= budget.delta
    if math.isfinite(without.epsilon) and (pays or without.epsilon <= these.epsilon):
        why = "which the budget pays" if pays else f"and {'this one costs' if labels == 1 else f'these {labels} cost'}"
        warn_caller(
            f"the labels carry noise that buys nothing: without it any number of labels from these teachers costs "
            f"{without.guarantee}, {why if pays else f'{why} {these.guarantee}'}. Give "
            "mechanism=dt.NoiseFreeMajority(), which adds none (darrm label --mechanism noise-free)",
            LabelWarning,
        )
    elif labels == 1 and count > 1 and mechanism.classes in (None, 2):  # one vote that a site randomizes may be poor
        most = math.ceil(_AGREE * count)
        chance = float(mechanism.label_probabilities(np.array([[count - most, most]]))[0, 1])
        if chance < 0.5 + LITTLE:
            warn_caller(
                f"the labels are hardly better than guessing: where {most} of {count} teachers agree, a label says so "
                f"with chance {math.floor(chance * 100) / 100:.2f}. Allow more, or have more teachers",
                LabelWarning,
            )


def memory_ledger() -> PrivacyLedger:
    """A ledger in memory for a caller who named none, with a warning."""
    warn_caller(_IN_MEMORY)
    return PrivacyLedger()


_IN_MEMORY = (
    "the labels have no ledger file: they are forgotten when the process ends, and a second run draws and pays for "
    "them again. Pass ledger=PrivacyLedger(FILE), or ledger=PrivacyLedger() if that is what you want"
)
