"""One DP-SGD model instead of an ensemble: the noise with which it keeps the same total.

For discussion beside a plan, and not one of its strategies: whether one model is more accurate depends on the data.
:func:`darrm_torch.design` compares designs before anything is trained.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from ..errors import InvalidArgument
from ..privacy.calibration import calibrate_noise
from ..privacy.guarantees import format_bound
from ..privacy.units import RECORD
from .request import Request

__all__ = ["OneModel", "one_model"]


@dataclass(frozen=True, kw_only=True)
class OneModel:
    """One private model on all records, which keeps the target for any number of labels.

    Attributes:
        noise_multiplier: the smallest that keeps the target, to a thousandth, with the teachers' sample rate and steps.
        ensemble_noise: the noise of the mean of the teachers, as the noise multiplier of such a model, to first order:
            their own times sqrt(K) / r.
    """

    noise_multiplier: float
    ensemble_noise: float

    @property
    def relative_noise(self) -> float:
        """The noise of the mean of the teachers, divided by that of one model."""
        return self.ensemble_noise / self.noise_multiplier

    def to_dict(self) -> dict[str, float]:
        """All of it, ready for JSON."""
        return asdict(self) | {"relative_noise": self.relative_noise}

    def __str__(self) -> str:
        advice = "it carries less noise than they do, and needs no rule for labels"
        if self.relative_noise <= 1:
            advice = (
                "the teachers carry no more noise; noise-free votes or their mean can use that, noisy labels may not"
            )
        return (
            "One private model instead: DP-SGD on all records, with the teachers' sample rate and steps and a noise "
            f"multiplier of {format_bound(self.noise_multiplier, 3)}, keeps the target for any number of labels. The "
            f"mean of all teachers carries the noise of one with {format_bound(self.ensemble_noise, 3)} (first order): "
            f"{advice}. `darrm design` compares them. Ensembles are for records that cannot be pooled, teachers that "
            "exist, unlike models, and votes whose disagreement is a signal."
        )


def one_model(request: Request) -> OneModel | None:
    """The one model that keeps the target of all labels (or of one); None where their DP-SGD is unknown or unlike."""
    teacher = request.teacher
    if len(teacher.dp_sgd) != 1 or teacher.promises or teacher.unlike or teacher.unit != RECORD:
        return None
    ((noise, rate, steps, *_),) = teacher.dp_sgd
    try:
        needed = calibrate_noise(request.targets[-1], sample_rate=rate, steps=steps)
    except InvalidArgument:
        return None
    return OneModel(noise_multiplier=needed, ensemble_noise=noise * math.sqrt(request.teachers) / request.overlap)
