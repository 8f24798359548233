"""Trainings as jobs for any executor: what they show, and that they never raise."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch.utils.data import TensorDataset

from darrm_torch import TrainingSettings
from darrm_torch.teachers.jobs import Job, run_job
from tests.teachers.helpers import Centred, build, some_data


def job(**other: Any) -> Job:
    given: dict[str, Any] = {
        "build_model": build,
        "dataset": TensorDataset(*some_data(20)),
        "shard_size": 20,
        "settings": TrainingSettings(batch_size=10, epochs=1),
        "seeds": None,
        "secure": False,
        "device": "cuda",  # falls back
        "threads": None,
        "facts": {"shard": 3},
    }
    return Job(**(given | other))


def test_outcomes() -> None:
    kind, content = run_job(job())
    record = torch.load(io.BytesIO(content), weights_only=True)
    assert (kind, record["shard"], record["sampling"]) == ("trained", 3, "poisson")
    kind, content = run_job(job(build_model=Centred))
    assert (kind, b"the buffer mean" in content) == ("unproven", True)
    kind, content = run_job(job(dataset=[("seven", 7)] * 20))
    assert (kind, b"Traceback" in content) == ("failed", True)


def test_a_job_that_runs_again_is_an_independent_training() -> None:
    first, second = (torch.load(io.BytesIO(run_job(same)[1]))["module_state_dict"] for same in [job()] * 2)
    assert not torch.equal(first["1.weight"], second["1.weight"])


def test_training_leaves_the_generator_of_the_process_as_it_was() -> None:
    """What a worker draws afterwards would otherwise follow from the seed of the batches."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    run_job(job())
    assert torch.equal(before, torch.get_rng_state())


def test_a_job_shows_nothing_of_its_records() -> None:
    one = job()
    assert "0." not in repr(one)
    assert len({one.__dask_tokenize__() for _ in range(3)}) == 3
