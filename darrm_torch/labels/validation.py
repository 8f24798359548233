"""How good labels, teachers and a student are on held-out records: private counts, released once and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from ..arguments import checked
from ..arrays import FloatArray, IntArray
from ..errors import BudgetExceeded, DarrmError, InvalidArgument, UnprovenPrivacy, check_integer, check_number
from ..files import write_private
from ..mechanisms.counts import private_counts
from ..mechanisms.sampling import RandomBits
from ..privacy.validation import PrivateValidation, Reads
from ..teachers.checkpoints import unwrap_module, weights_digest
from ..teachers.records import batch_of, data_digest, example_of, finite_rows
from ..teachers.shards import Shards, as_shards
from ..teachers.structures import Structure, call, evaluating, logits_of, mapped, probabilities_of, rows_of, size_of
from .accuracy import AccuracyEstimate, keep_estimate
from .ensemble import PrivateMajorityEnsemble

__all__ = ["validate"]

_Answers = tuple[IntArray, FloatArray | None, int]  # (B,) classes, (B,) confidences, number of classes
_ROWS = 500  # of a batch


@checked
def validate(
    ensemble: PrivateMajorityEnsemble,
    dataset: Any,
    shards: Shards,
    *,
    of: Literal["labels", "teachers"] | nn.Module = "labels",
    by: Literal["class", "confidence", "all"] = "class",
    bins: int = 10,
    confidence: float = 0.95,
    insecure_seed: int | None = None,
) -> AccuracyEstimate:
    """Release how many held-out records are answered right and wrong, with exact noise.

    Formal guarantee: the noisy counts, together with all labels and whatever else the ensemble's total covers, have the
    guarantee of :meth:`PrivateMajorityEnsemble.total_privacy`, because the ensemble's allocation declares a
    :class:`PrivateValidation` (theory, section 17). Each question draws noise once. The ledger keeps the counts,
    so asking it again returns the same answer, free of charge. Labels of held-out records are neither released nor
    kept.

    Args:
        ensemble: one whose allocation declares the validation: its teachers were trained by :func:`train_teachers` on
            shards of ``assign_shards(holdout=, validation=)``.
        dataset: the N private records, as for :func:`train_teachers`. Targets are numbers of classes, ``(N,)``: those
            in ``ensemble.classes``, or 0..C-1. A record that is not finite, or whose target is none of them, counts
            nowhere, silently.
        shards: the draw that the teachers were trained on; only records in ``shards.held_out`` are read.
        of: "labels": those that the ensemble's mechanism would give; items that it leaves unanswered count nowhere.
            "teachers": a teacher drawn for each record, which gives the accuracy of a single teacher. Or a student
            network, which must have learned nothing private except labels that were charged.
        by: "class": counts for each class of the records. "confidence": for each of ``bins`` equal bins of the
            confidence, which is the share of votes for the label or the student's largest probability: calibration.
            "all": one count of right and one of wrong, with the least noise for the accuracy of all.
        bins: the number of bins of confidence.
        confidence: the confidence level of the intervals.
        insecure_seed: for tests: anyone who knows it knows the noise.

    Returns:
        The noisy counts, with the accuracy and its interval.

    Raises:
        InvalidArgument: nothing was declared or held out, the declaration does not cover ``of``, the teachers were
            trained on another draw or other tensors or do not take the inputs, or the ensemble has findings.
        UnprovenPrivacy: no bound covers a validation of these teachers: they promise nothing by themselves.
        BudgetExceeded: all declared releases were made, or the total exceeds the ledger's budget; nothing was drawn.
        DarrmError: a record could not be read. The reason is in the private folder of the shards, and nowhere else.

    >>> from darrm_torch import NoiseFreeMajority, PrivacyGuarantee, PrivacyLedger, PrivacyProfile, assign_shards
    >>> shards = assign_shards(1000, teachers=3, holdout=0.3, validation=PrivateValidation(epsilon=0.5))
    >>> ensemble = PrivateMajorityEnsemble(  # of teachers that were trained on these shards
    ...     [nn.Linear(4, 2) for _ in range(3)], NoiseFreeMajority(), allocation=shards.allocation,
    ...     profiles=[PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.5))] * 3, ledger=PrivacyLedger(),
    ... )
    >>> dataset = TensorDataset(torch.randn(1000, 4), torch.randint(2, (1000,)))
    >>> estimate = validate(ensemble, dataset, shards)
    >>> low, high = estimate.interval
    >>> 0 < low < estimate.accuracy < high < 1
    True
    """
    if isinstance(of, nn.Module):
        unwrap_module(of, "of")
    reads: Reads = of if isinstance(of, str) else "student"
    check_number("confidence", confidence, low=0.0, high=1.0, low_open=True, high_open=True)
    check_integer("bins", bins, low=1, high=1000)
    declared = _checked_declaration(ensemble, shards, reads)
    if by == "confidence" and of == "teachers":
        raise InvalidArgument("by", '"class" or "all" for teachers, whose votes have no confidence', by)
    answers = _answers(ensemble, of)
    example, target = batch_of(example_of(dataset), [0], _device(ensemble, of))
    if len(dataset) <= max(int(positions.max(initial=-1)) for positions in (*shards, shards.held_out)):
        raise InvalidArgument("dataset", "the records that the shards were drawn from", f"only {len(dataset)} of them")
    as_shards(shards, records=len(dataset))
    _check_data(dataset, shards)
    if getattr(target, "shape", None) != (1,):
        raise InvalidArgument("dataset", "one whose targets are numbers of classes", type(target).__name__)
    try:
        classes = answers(example)[2]  # zeros: what a network does not take shows here, without a record
    except InvalidArgument as error:
        name = "dataset" if error.name.startswith("inputs") else error.name
        raise InvalidArgument(name, error.expected, error.got, error.cure) from None
    except DarrmError:
        raise
    except Exception as error:  # the student's own
        raise InvalidArgument("of", "a network that takes the inputs", type(of).__name__, str(error)) from None
    cells = {"class": classes, "confidence": bins, "all": 1}[by]

    def draw() -> AccuracyEstimate:
        table = np.zeros((cells, 2), dtype=np.int64)
        try:
            for targets, (answered, sure, _) in _batches(ensemble, dataset, shards, _device(ensemble, of), answers):
                places = targets if by == "class" else np.zeros_like(targets)
                if by == "confidence" and sure is not None:
                    places = np.minimum((sure * bins).astype(np.int64), bins - 1)
                known = (targets >= 0) & (targets < classes) & (answered >= 0)
                np.add.at(table, (places[known], (answered != targets)[known].astype(np.int64)), 1)
        except Exception as error:  # its text may show the record
            raise _unreadable(error, shards) from None
        noisy = private_counts(table, epsilon=declared.epsilon, insecure_seed=insecure_seed)
        right, wrong = (tuple(column) for column in noisy.T.tolist())
        return AccuracyEstimate(
            of=reads, right=right, wrong=wrong, epsilon=declared.epsilon, by=by, confidence=confidence
        )

    name = weights_digest(of) if isinstance(of, nn.Module) else of
    kept = keep_estimate(ensemble.ledger, f"{name} {by} {cells}", draw, releases=declared.releases)
    if kept is None:
        raise BudgetExceeded(
            f"{declared.releases} release{'s' * (declared.releases > 1)} of a validation were declared, and all were "
            "made. Nothing was released"
        )
    return replace(kept, confidence=confidence)


def _unreadable(error: Exception, shards: Shards) -> DarrmError:
    """The error that stands for this one, whose text goes into the private folder."""
    place = "is not shown"
    if shards.private_folder is not None:
        file = shards.private_folder / "failed-validation.txt"
        place = f"is in {file} and nowhere else"
        write_private(file, f"{type(error).__name__}: {error}\n")
    return DarrmError(f"a held-out record of the dataset could not be read. The reason {place}")


def _checked_declaration(ensemble: PrivateMajorityEnsemble, shards: Shards, reads: Reads) -> PrivateValidation:
    """What was declared; refuse what was not, what has no price, and what exceeds the budget."""
    declared = None if ensemble.allocation is None else ensemble.allocation.validation
    cure = "Declare it before training: assign_shards(holdout=..., validation=PrivateValidation(...))."
    if declared is None:
        raise InvalidArgument("ensemble", "one with a declared validation", "none", cure)
    if not shards.holdout:
        raise InvalidArgument("shards", "some held out", "none", cure)
    if ensemble.findings is not None:
        raise InvalidArgument(
            "ensemble", "one without findings", "findings", "A record would change a count of each finding."
        )
    covers = {"student": 0, "labels": 1, "teachers": 2}
    if covers[reads] > covers[declared.reads]:
        raise InvalidArgument("of", f"covered by the declared reads={declared.reads!r}", reads, cure)
    drawn = {profile.reading.shard[0] for profile in ensemble.profiles if getattr(profile.reading, "shard", None)}
    if drawn - {shards.draw} or len(shards) != len(ensemble.profiles):
        cure = "Those teachers may have been trained on records that this draw holds out."
        raise InvalidArgument("shards", "the draw that the teachers were trained on", "another draw", cure)
    total = ensemble.total_privacy(labels=max(1, ensemble.ledger.count))
    if total.epsilon == float("inf"):
        raise UnprovenPrivacy(
            "nothing bounds what a validation of these teachers reveals: one record that a teacher was trained on can "
            "change its answer to every held-out record, and the mechanism's randomness covers single labels. Train "
            'the teachers with DP-SGD, or validate a student only, with reads="student"'
        )
    budget = ensemble.ledger.budget
    if budget is not None and (total.epsilon > budget.epsilon or total.delta > budget.delta):
        raise BudgetExceeded(f"with the validation the total is {total.guarantee}, over the budget of {budget}")
    return declared


def _check_data(dataset: Any, shards: Shards) -> None:
    """Refuse tensors that are not those of the training, such as the same rows in another order.

    With ids records may come and go, and other data sets may be read with other transformations.
    """
    folder, keyed = shards.private_folder, shards.allocation is not None and shards.allocation.keyed
    kept = [] if folder is None or keyed else [file.read_text() for file in folder.glob("*-data.sha256")]
    if kept and isinstance(dataset, TensorDataset) and data_digest(dataset, shards) not in kept:
        cure = "In another order of the rows, records that were trained on would be validated."
        raise InvalidArgument("dataset", "the one that the teachers were trained on", "another", cure)


def _batches(
    ensemble: PrivateMajorityEnsemble,
    dataset: Any,
    shards: Shards,
    device: torch.device,
    answers: Callable[[Structure], _Answers],
) -> Iterator[tuple[IntArray, _Answers]]:
    """Places of the targets among the classes, -1 where there is none, and the answers, of held-out records."""
    for start in range(0, len(shards.held_out), _ROWS):
        inputs, targets = batch_of(dataset, shards.held_out[start : start + _ROWS].tolist(), device)
        inputs = mapped(inputs, lambda part: part.float() if part.is_floating_point() else part)
        rows = torch.nonzero(finite_rows(inputs, size_of(inputs))).flatten().tolist()
        if not rows:
            continue
        numbers = targets.to("cpu", torch.float64).numpy()[rows]
        named = {name: place for place, name in enumerate(ensemble.classes or ())}
        if ensemble.classes is None:
            places = np.where((numbers == np.round(numbers)) & (np.abs(numbers) < 2**31), numbers, -1).astype(np.int64)
        else:
            places = np.array([named.get(number, -1) for number in numbers.tolist()], dtype=np.int64)
        yield places, answers(rows_of(inputs, rows))


def _device(ensemble: PrivateMajorityEnsemble, of: Any) -> torch.device:
    network = of if isinstance(of, nn.Module) else ensemble
    return next((weight.device for weight in network.parameters()), torch.device("cpu"))


def _answers(ensemble: PrivateMajorityEnsemble, of: Any) -> Callable[[Structure], _Answers]:
    """What answers inputs: the class for each, how sure it is, and how many classes there are."""

    def labels(inputs: Structure) -> _Answers:
        juries = ensemble._labeler._juries(size_of(inputs))
        counts = ensemble.sensitive_counts(inputs, juries=juries).cpu().numpy()
        released = ensemble.mechanism.aggregate(counts)
        chosen = released.argmax(axis=1) if released.ndim > 1 else released
        sure = np.take_along_axis(counts, np.maximum(chosen, 0)[:, None], axis=1)[:, 0] / counts.sum(axis=1)
        return chosen.astype(np.int64), sure, counts.shape[1]

    def one_teacher(inputs: Structure) -> _Answers:
        classes = ensemble._teachers.check(inputs, range(len(ensemble.profiles)))
        votes = ensemble.sensitive_votes(inputs).cpu().numpy()
        drawn = RandomBits().below(np.full(votes.shape[1], votes.shape[0]))
        return votes[drawn, np.arange(votes.shape[1])], None, classes

    def student(inputs: Structure) -> _Answers:
        with evaluating(of):
            logits = logits_of(call(of, inputs)).float().cpu()
        probabilities = probabilities_of(logits).numpy()
        return probabilities.argmax(axis=1), probabilities.max(axis=1), probabilities.shape[1]

    return student if isinstance(of, nn.Module) else labels if of == "labels" else one_teacher
