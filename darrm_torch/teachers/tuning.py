"""Private tuning: the best of a random number of trainings, each with settings and randomness of its own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..arguments import checked
from ..errors import DarrmError, InvalidArgument, UnprovenPrivacy, check_integer, check_number
from ..files import make_private_folder, owner_unmasked, write_private
from ..mechanisms.counts import private_counts
from ..privacy.allocation import RandomAllocation
from ..privacy.assumptions import TUNING
from ..privacy.calibration import calibrate_noise
from ..privacy.guarantees import PrivacyGuarantee, check_guarantee
from ..privacy.profiles import PrivacyProfile
from ..privacy.tuning_prices import RandomRuns, tuning_epsilon
from .checkpoints import Checkpoint, copy_teacher, load_teacher
from .dp_sgd import TrainingSettings
from .reading import drawn_rate
from .records import batch_of, data_digest, finite_rows, shard_of, zeros_unless
from .shards import Shards, open_private
from .structures import call, logits_of, probabilities_of
from .training import check_training, train_teachers

__all__ = ["TunedTeachers", "counts_on", "tune_teachers"]

_STATE = "tuning.json"
_FAILED = (
    "a run of the tuning failed. The reason is in the private folder and nowhere else, because it may show a record"
)
_PRICED = "The teachers won a private tuning, and their price is its total."


@dataclass(frozen=True, kw_only=True)
class TunedTeachers:
    """The best run of a private tuning: all that it releases.

    Attributes:
        files: the teachers of the run, as :func:`train_teachers` writes them. They record the price of the tuning.
        settings: the candidate that the run drew, with its noise.
        right, wrong: noisy counts of the ensemble's answers on held-out records, the score of the run. Their
            accuracy is optimistic, because the best of several runs was chosen by it.
        total: what the teachers, the settings and the score cost together.
        assumptions: what the total rests on, outside the library.
    """

    files: tuple[Path, ...]
    settings: TrainingSettings
    right: int
    wrong: int
    total: PrivacyGuarantee
    assumptions: tuple[str, ...]

    @property
    def accuracy(self) -> float:
        """The noisy share of right answers, which the best run was chosen by."""
        return _accuracy((self.right, self.wrong))


@owner_unmasked()
@checked
def tune_teachers(
    folder: Path,
    *,
    candidates: Sequence[TrainingSettings],
    runs: RandomRuns,
    total: PrivacyGuarantee,
    build_model: Callable[[], nn.Module],
    dataset: Any,
    shards: Shards | Callable[[Path], Shards],
    shard_size: int,
    score_epsilon: float,
    private_folder: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    device: str = "cpu",
    secure: bool = False,
) -> TunedTeachers:
    """Train ensembles with settings drawn from ``candidates`` and keep the best: its settings, teachers and score.

    Formal guarantee: what is returned and what stands in ``folder`` is within ``total`` for adding or removing one
    record, all runs, their scores and the choice included (theory, section 19). The number of runs is drawn once. Each
    run draws one of the candidates, trains all teachers with it, and is scored by noisy counts of right and wrong
    answers on held-out records. The other runs, their number and their times stay secret: until the end they are in the
    private folder, from which a stopped tuning resumes; then they are deleted. How long the tuning took shows how many
    runs there were: do not publish it.

    Choose on public data first, as far as it goes: that is free, and fewer candidates need fewer runs.

    Args:
        folder: receives ``teacher-000.pt``, ...
        candidates: settings; each run draws one of them, all with equal chances. Their noise is set by ``total``.
        runs: the law of the number of runs. If a Poisson law draws 0, one run with the first candidate is made.
        total: what everything may cost.
        build_model, dataset, shard_size, executor, workers, device, secure: see :func:`train_teachers`.
        shards: those of ``assign_shards(..., holdout=)``, shared by all runs. The price is then that of the ``overlap``
            teachers of a record, because they are the same ones in every run. Or a function that takes a private
            folder, draws fresh shards and keeps them there; it is called for each run. The price is then that of the
            random allocation.
        score_epsilon: what the score of one run costs a held-out record.
        private_folder: keeps the runs; default: that of ``shards``, or else ``folder / "private"``.

    Raises:
        InvalidArgument: a value out of range, shards that hold nothing out or that the library did not draw, a folder
            with the teachers of another tuning, or other data than those that a stopped tuning was started with.
        DarrmError: a run failed; the reason is in the private folder.

    >>> import functools, tempfile
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from darrm_torch import assign_shards
    >>> records = torch.utils.data.TensorDataset(torch.randn(60, 3), torch.randint(2, (60,)))
    >>> with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(1) as executor:
    ...     best = tune_teachers(
    ...         Path(place),
    ...         candidates=[TrainingSettings(learning_rate=rate, epochs=1) for rate in (0.1, 1.0)],
    ...         runs=RandomRuns(mean=2),
    ...         total=PrivacyGuarantee(epsilon=2.0, delta=1e-5),
    ...         build_model=functools.partial(nn.Linear, 3, 2),
    ...         dataset=records,
    ...         shards=assign_shards(60, teachers=2, holdout=0.2),
    ...         shard_size=50,
    ...         score_epsilon=0.3,
    ...         executor=executor,
    ...     )
    >>> len(best.files), best.settings.learning_rate in (0.1, 1.0)
    (2, True)
    """
    check_guarantee("total", total)
    if len(candidates) == 0 or not all(isinstance(one, TrainingSettings) for one in candidates):
        raise InvalidArgument("candidates", "one or more TrainingSettings", candidates)
    check_number("score_epsilon", score_epsilon, low=2.0**-12, high=64.0)
    check_integer("shard_size", shard_size, low=1, high=2**53)
    alike = {
        replace(one, noise_multiplier=1.0, max_grad_norm=1.0, batch_size=1, epochs=1, learning_rate=1.0): one
        for one in candidates
    }
    for one in alike.values():
        check_training(build_model, dataset, one, workers=workers, device=device, private=True)
    make_private_folder(folder)
    shared = shards if isinstance(shards, Shards) else None
    private = open_private(private_folder or (shared and shared.private_folder) or folder / "private")
    draw = private / "example"
    example = shared or shards(draw)  # type: ignore[operator]
    shutil.rmtree(draw, ignore_errors=True)
    allocation = example.allocation
    if allocation is None or not allocation.holdout or allocation.validation is not None:
        raise InvalidArgument(
            "shards", "those of assign_shards with a holdout and no validation", "others", example.reason
        )
    fresh = allocation if shared is None else None
    priced = {"overlap": allocation.overlap, "allocation": fresh, "runs": runs}
    settings = _calibrated(candidates, total, shard_size, score_epsilon, priced)
    question = {
        "version": 1,
        "total": [total.epsilon, total.delta],
        "candidates": [one.to_dict() for one in settings],
        "runs": [runs.mean, str(runs.shape)],
        "score_epsilon": score_epsilon,
        "shard_size": shard_size,
        "allocation": allocation.to_dict(),
        "draw": None if shared is None else shared.draw,
    }
    files = tuple(folder / f"teacher-{number:03d}.pt" for number in range(allocation.teachers))
    if not (private / _STATE).exists() and files[-1].exists():  # written last
        return _winner(files, settings, total, question)
    digest = data_digest(dataset, shared or ())
    if not (private / _STATE).exists():
        chosen = [secrets.randbelow(len(settings)) for _ in range(runs.draw())]
        start = {"name": secrets.token_hex(8), "started": time.time_ns(), "data": digest}
        _keep(private, {"question": question, **start, "chosen": chosen or [0], "scores": [], "done": False})
    state = _read_state(private)
    if state["question"] != question:
        raise InvalidArgument("private_folder", "that of this tuning", "that of another tuning", "Use another folder.")
    if state["data"] != digest:
        cure = "A record could be held out in one run and trained on in another. Use another folder."
        raise InvalidArgument("dataset", "the one that the tuning was started with", "another", cure)
    for number in range(len(state["scores"]), len(state["chosen"])):
        place = private / f"run-{number:04d}"
        make_private_folder(place)
        try:
            drawn = shared or shards(place / "draw")  # type: ignore[operator]
            if drawn.allocation != allocation:
                raise InvalidArgument("shards", "a function that draws by the same rule each time", "another rule")
            trained = train_teachers(
                place / "teachers",
                build_model=build_model,
                dataset=dataset,
                shards=drawn,
                shard_size=shard_size,
                settings=settings[state["chosen"][number]],
                private_folder=place / "private",
                executor=executor,
                workers=workers,
                device=device,
                secure=secure,
                progress=False,
            )
            counts = counts_on(trained, build_model, shard_of(dataset, drawn.held_out))
        except Exception as error:
            if number == 0 and isinstance(error, (InvalidArgument, UnprovenPrivacy)):
                raise  # about the arguments
            write_private(private / "failed-tuning.txt", traceback.format_exc())
            raise DarrmError(_FAILED) from None
        state["scores"].append(private_counts(counts, epsilon=score_epsilon).tolist())
        _keep(private, state)
    if not state["done"]:
        _publish(private, files, state)
        _keep(private, state | {"done": True})
    for place in private.glob("run-*"):
        shutil.rmtree(place)
    for file in (*private.glob(f".{Path(_STATE).stem}-*"), private / _STATE):  # the first are what kills left
        file.unlink()
    return _winner(files, settings, total, question)


def _publish(private: Path, files: tuple[Path, ...], state: dict[str, Any]) -> None:
    """Write the teachers of the best run, with the price of the tuning in place of their own."""
    best = int(np.argmax([_accuracy(score) for score in state["scores"]]))  # of equal ones the first
    tuning = {name: state[name] for name in ("name", "question")}
    tuning |= {"chosen": state["chosen"][best], "score": state["scores"][best]}
    facts = {"allocation": None, "no_allocation": _PRICED, "tuning": tuning}
    for file in files:  # with the time of the start: the end would show how many runs there were
        copy_teacher(private / f"run-{best:04d}" / "teachers" / file.name, file, facts, written=state["started"])


def _calibrated(
    candidates: Sequence[TrainingSettings],
    total: PrivacyGuarantee,
    shard_size: int,
    score_epsilon: float,
    priced: dict[str, Any],
) -> list[TrainingSettings]:
    """The candidates with the noise that keeps the total: for each alone, then for all together."""
    validation = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=score_epsilon))
    if tuning_epsilon(validation, total.delta, **priced | {"allocation": None, "overlap": 1}) > total.epsilon:
        raise InvalidArgument("score_epsilon", f"small enough for a total of {total}", score_epsilon)
    schedules = []
    for one in candidates:
        steps = one.steps_per_epoch(shard_size)
        schedules.append((drawn_rate(1 / steps), steps * one.epochs))
    noises = {
        (rate, steps): calibrate_noise(total, sample_rate=rate, steps=steps, validation=validation, **priced)
        for rate, steps in sorted(set(schedules))
    }
    while True:
        profiles = [PrivacyProfile.from_dp_sgd([(noise, *schedule)]) for schedule, noise in noises.items()]
        if tuning_epsilon(profiles, total.delta, validation=validation, **priced) <= total.epsilon:
            break
        noises = {schedule: 1.001 * noise for schedule, noise in noises.items()}
    return [
        replace(one, noise_multiplier=noises[schedule]) for one, schedule in zip(candidates, schedules, strict=True)
    ]


def _read_state(private: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((private / _STATE).read_text())
        number = state["question"]["version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        number = None
    if type(number) is not int:
        cure = "Delete the private folder and the teachers, and tune again: runs that showed nothing cost nothing."
        raise InvalidArgument("private_folder", f"one with a complete {_STATE}", str(private), cure)
    if number > 1:
        cure = "A newer version of darrm-torch wrote it: install that one."
        raise InvalidArgument("private_folder", "one of format 1", f"{private}, of format {number}", cure)
    return state


def _keep(private: Path, state: dict[str, Any]) -> None:
    write_private(private / _STATE, json.dumps(state))


def _accuracy(score: Sequence[int]) -> float:
    right, wrong = score
    return min(1.0, max(0.0, right / (right + wrong))) if right + wrong > 0 else 0.5


@torch.no_grad()
def counts_on(files: Sequence[Path], build_model: Callable[[], nn.Module], dataset: Any) -> list[int]:
    """How many records the teachers' mean probabilities are right and wrong about.

    A record whose target is no class counts nowhere; a teacher's answer that is not finite counts for no class.
    """
    models = []
    for file in files:
        model = build_model()
        load_teacher(file, model)
        models.append(model.eval())
    counts = [0, 0]
    for start in range(0, len(dataset), 256):
        rows = range(start, min(start + 256, len(dataset)))
        inputs, targets = batch_of(dataset, list(rows), "cpu")
        usable = finite_rows(inputs, len(rows))
        inputs = zeros_unless(usable, inputs)
        votes: Any = sum(probabilities_of(logits_of(call(model, inputs)).double()) for model in models)
        known = usable & (targets >= 0) & (targets < votes.shape[-1])
        right = votes.argmax(dim=-1) == targets
        counts[0] += int((right & known).sum())
        counts[1] += int((~right & known).sum())
    return counts


def _winner(
    files: tuple[Path, ...], settings: list[TrainingSettings], total: PrivacyGuarantee, question: dict[str, Any]
) -> TunedTeachers:
    tuning = Checkpoint.read(files[0], name=str(files[0])).rest.get("tuning")
    if tuning is None or tuning["question"] != question:
        raise InvalidArgument(
            "folder", "new or the one of this tuning", "teachers of another tuning", "Use another folder."
        )
    allocation = RandomAllocation.from_dict(question["allocation"])
    right, wrong = tuning["score"]
    return TunedTeachers(
        files=files,
        settings=settings[tuning["chosen"]],
        right=right,
        wrong=wrong,
        total=total,
        assumptions=(TUNING, *allocation.assumptions),
    )
