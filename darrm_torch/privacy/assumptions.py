"""What a total assumes and the library cannot check, for the person who is responsible for the data."""

from __future__ import annotations

from collections.abc import Sequence

from .allocation import RandomAllocation
from .profiles import PrivacyProfile
from .units import ProtectedUnit
from .validation import PrivateValidation

__all__ = ["TUNING", "assumptions_of"]

TUNING = (
    "Tuning: candidates are public, nothing but the noisy scores chose a run, and whether a run failed did not depend "
    "on the data. The runs that lost, their number, logs and times, and the draws of shards and of held-out records, "
    "stay with the private data."
)


def assumptions_of(
    profiles: Sequence[PrivacyProfile],
    *,
    affected: int,
    fresh: bool,
    unit: ProtectedUnit,
    allocation: RandomAllocation | None,
    secure: bool,
    jury: bool = False,
    validation: PrivateValidation | None = None,
) -> tuple[str, ...]:
    """The assumptions of a total of labels from these teachers, of which one ``unit`` affects ``affected``."""
    if affected == len(profiles):
        overlap = f"Overlap: none is assumed; one {unit.name} may affect every teacher."
    else:
        overlap = (
            f"Overlap: one {unit.name} affects at most {affected} of the {len(profiles)} teachers. This depends on how "
            "the data were split."
        )
        if unit.neighbours == "add/remove" and allocation is None:
            overlap += f" In equal slices of a list it is false: one more {unit.name} moves others."
    if unit.name == "record":
        limit = "A person with several records is protected less."
    elif unit.records > 1:
        limit = f"A {unit.name} with more records is protected less."
    else:
        limit = f"The training of the teachers accounts for whole {unit.name}s."
    together = any(profile.together for profile in profiles)
    assumed = [f"Neighbours: two data sets that differ by {unit}. {limit}", overlap]
    if any(profile.is_private for profile in profiles):
        assumed += [
            "Training: each teacher was trained as its accountant recorded (one without an accountant keeps the "
            "guarantee that was stated for it), each step on a batch of its own, drawn by Poisson sampling, from "
            "gradients of single records: no augmentation, layer or loss mixes the records of a batch, and each record "
            "is one row of it.",
            "Independence: nobody knows the seeds of training, and no two teachers share noise or batches of their "
            "training, through seeds, generators or loaders.",
            "Public: preprocessing, starting weights, numbers of records, sample rates, steps and all other settings "
            "of training do not depend on private records. No training was stopped early, repeated or selected by "
            "looking at them" + (", except by the tuning." if together else "."),
        ]
    if together:
        assumed.append(TUNING)
    if unwatched := sum(getattr(profile.reading, "watched", True) is False for profile in profiles):
        assumed.append(
            f"Clipping: the clipping bound of {unwatched} teacher{'s' * (unwatched > 1)}, which nothing recorded, "
            "never changed between clipping and noise, and no gradient that was added exceeded it."
        )
    if unseen := sum(getattr(profile.reading, "digest", "") is None for profile in profiles):
        assumed.append(f"Weights: {unseen} teachers, read without their weights, were not trained further.")
    if common := max((getattr(profile.reading, "common", 0) for profile in profiles), default=0):
        assumed.append(
            f"Common part: {common} weights and buffers are the same in all teachers, such as a frozen trunk. They "
            "come from public data, not from the private records."
        )
    assumed += [
        "Votes: each label has votes of its own, privatized with independent randomness."
        if fresh
        else "Votes: the same trained teachers vote on every input.",
        "Secrecy: only the labels are released: no votes, no counts, no teachers, no errors or logs of theirs and no "
        f"accuracy measured on private data{' except by the validation' * (validation is not None)}.",
        "Ledger: these labels are all that these teachers give out. What another ledger or another mechanism gives "
        "out adds to the cost.",
    ]
    if allocation is not None:
        assumed += allocation.assumptions
    if validation is not None:
        assumed += [
            f"Held out: no teacher was trained on a held-out {unit.name}. Whether one is held out does not depend on "
            f"other {unit.name}s: each has a coin of its own, and is one record. How many are held out, and how long "
            "the validation takes, stays with the private data.",
            f"Validation: its {validation.releases} release{'s' * (validation.releases > 1)} of noisy counts are all "
            "that is released about held-out data, from any ledger of these teachers. They chose no jury and no "
            "teachers.",
        ]
    if jury:
        assumed.append(
            "Jury: it is drawn at random, without looking at data, not again after votes were seen, and it stays "
            "secret. Nothing else is released from any of the teachers."
        )
    if not secure:
        assumed.append(
            "Randomness: nobody knows the mechanism's insecure_seed. Anyone who knows it can predict the noise."
        )
    return tuple(assumed)
