"""Reading real Opacus teachers: reference values, every wrapping, and everything that must be refused."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from darrm_torch import (
    InvalidArgument,
    NoiseFreeMajority,
    PrivacyProfile,
    PrivateMajorityEnsemble,
    UnprovenPrivacy,
    read_privacy,
)
from darrm_torch.teachers.checkpoints import filled_buffers, weights_digest
from darrm_torch.teachers.reading import read_teachers
from tests.processes import processor_seconds
from tests.teachers.helpers import RUNS, STEPS, Net, Teacher, noisy, save

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:GDP accounting is experimental"),
]


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Teacher()


# --- reading ----------------------------------------------------------------------------------------------------------


def test_reference_values_of_the_papers_teacher():
    """sigma 12, q 1/35, 175 steps: 0.0852 (Opacus PRV), 0.0975 (Opacus RDP), 0.0751 (PLD)."""
    reading = read_privacy([(12.0, 1 / 35, 175)], delta=1e-4).reading
    theirs = dict(reading.accountant_epsilons)
    assert theirs["prv"] == pytest.approx(0.0852, abs=5e-4)
    assert theirs["rdp"] == pytest.approx(0.0975, abs=5e-4)
    assert reading.epsilon == pytest.approx(0.0751, abs=5e-4)


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_an_engine_is_read_with_everything_seen(accountant):
    teacher = Teacher(accountant=accountant)
    profile = teacher.read(delta=1e-5, steps=10)
    assert profile == PrivacyProfile.from_dp_sgd(RUNS)
    reading = profile.reading
    assert (reading.accountant, reading.sampling, reading.records) == (accountant, "poisson", 100)
    assert reading.digest == weights_digest(teacher.net)
    assert dict(reading.accountant_epsilons)[accountant] == float(teacher.engine.get_epsilon(1e-5))
    assert all(type(value) is float for _, value in reading.accountant_epsilons)
    assert len(reading.notes) == 1
    assert "number of records (100) must be public" in reading.notes[0]
    json.dumps(asdict(reading), allow_nan=False)


def test_an_accountant_a_history_and_a_state_agree(teacher):
    profiles = [read_privacy(source) for source in (teacher.engine, teacher.engine.accountant, STEPS, tuple(STEPS))]
    assert len(set(profiles)) == 1
    for profile in profiles:
        assert profile.reading.sampling == "assumed"
        assert any("loader was not given" in note for note in profile.reading.notes)
        assert any("weights were not given" in note for note in profile.reading.notes)


def test_reading_copies_the_history(teacher):
    reading = read_privacy(teacher.engine).reading
    before = copy.deepcopy(teacher.engine.accountant.history)
    assert reading.history == tuple(map(tuple, before))
    assert teacher.engine.accountant.history == before


@pytest.mark.slow
def test_a_changing_noise_multiplier_is_read_in_full():
    teacher = Teacher()
    teacher.optimizer.noise_multiplier = 0.8
    teacher.train()
    assert teacher.read().dp_sgd == ((0.8, *RUNS[0][1:]), (1.0, *RUNS[0][1:]))


# --- every wrapping -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "private",
    [
        {"grad_sample_mode": "hooks"},
        {"grad_sample_mode": "functorch"},
        {"grad_sample_mode": "ghost"},
        {"wrap_model": False},
        {"clipping": "per_layer", "max_grad_norm": [1.0] * 4},
    ],
    ids=str,
)
def test_every_way_of_training_is_read(private):
    teacher = Teacher(**private)
    profile = teacher.read(accept=["ghost"])
    assert profile.dp_sgd == RUNS
    assert profile.reading.digest == weights_digest(teacher.net)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_opacus_is_read(teacher, tmp_path):
    file = tmp_path / "teacher-000.pt"
    teacher.engine.save_checkpoint(path=file, module=teacher.module, optimizer=teacher.optimizer)
    profile = read_privacy(file)
    assert profile == PrivacyProfile.from_dp_sgd(RUNS)
    assert profile.reading.digest == weights_digest(teacher.net)
    assert profile.reading.sampling == "assumed"


def test_a_file_speaks_of_the_weights_that_it_holds(tmp_path):
    teacher, file = Teacher(), tmp_path / "teacher-000.pt"
    teacher.engine.save_checkpoint(path=file, module=teacher.module)
    assert read_privacy(file, module=teacher.net).reading.digest == weights_digest(teacher.net)
    read_teachers([file], modules=[copy.deepcopy(teacher.net).half()])
    teacher.train()
    for read in (lambda: read_privacy(file, module=teacher.net), lambda: read_teachers([file], modules=[teacher.net])):
        with pytest.raises(UnprovenPrivacy, match="trained further"):
            read()


def test_what_ties_an_engine_to_a_teacher_is_seen_or_said(teacher):
    unseen = read_privacy(teacher.engine, module=teacher.module, data_loader=teacher.loader).reading
    assert any("nothing checks that these are the steps of this teacher" in note for note in unseen.notes)


def test_a_folder_is_read_in_order(tmp_path):
    for number in (2, 0, 1):
        teacher = Teacher(seed=number, noise_multiplier=1.0 + number)
        save(tmp_path / f"teacher-{number:03d}.pt", teacher, sampling="poisson", shard_size=5000, global_step=10)
    profiles = read_privacy(tmp_path)
    assert [profile.dp_sgd[0][0] for profile in profiles] == [1.0, 2.0, 3.0]
    assert all(p.reading.sampling == "poisson" and p.reading.records == 5000 for p in profiles)
    assert all(not profile.reading.notes for profile in profiles)


def test_a_file_that_was_not_sampled_by_poisson_or_not_private_is_refused(teacher, tmp_path):
    save(tmp_path / "a.pt", teacher, sampling="shuffled")
    with pytest.raises(UnprovenPrivacy, match="Poisson"):
        read_privacy(tmp_path / "a.pt")
    save(tmp_path / "b.pt", teacher, privacy_accountant_state_dict=None)
    with pytest.raises(UnprovenPrivacy, match="non_private"):
        read_privacy(tmp_path / "b.pt")


def test_files_that_cannot_be_read_are_refused(teacher, tmp_path):
    torch.save(teacher.net, tmp_path / "pickled.pt")
    torch.save({"state_dict": teacher.net.state_dict()}, tmp_path / "lightning.ckpt")
    (tmp_path / "noise.pt").write_bytes(b"no checkpoint at all")
    for name, word in (
        ("pickled.pt", "pickled module is refused"),
        ("lightning.ckpt", "Lightning checkpoint holds no accountant"),
        ("noise.pt", "readable checkpoint"),
        ("missing.pt", "readable checkpoint"),
    ):
        with pytest.raises(InvalidArgument, match=word):
            read_privacy(tmp_path / name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgument, match=r"a folder with \.pt files"):
        read_privacy(tmp_path / "empty")


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


def test_a_malicious_file_is_never_executed(tmp_path):
    torch.save({"module_state_dict": Bomb(), "privacy_accountant_state_dict": {}}, tmp_path / "bomb.pt")
    with pytest.raises(InvalidArgument):
        read_privacy(tmp_path / "bomb.pt")


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_an_empty_history_is_refused():
    from opacus import PrivacyEngine

    for source in (PrivacyEngine(), PrivacyEngine(accountant="rdp").accountant, []):
        with pytest.raises(UnprovenPrivacy, match=r"recorded no step.*Give the engine"):
            read_privacy(source)


def test_gdp_is_no_guarantee_unless_named():
    teacher = Teacher(accountant="gdp")
    with pytest.raises(UnprovenPrivacy, match=r'central limit.*accept=\["gdp"\]'):
        teacher.read()
    profile = teacher.read(accept=["gdp"])
    assert profile == PrivacyProfile.from_dp_sgd(RUNS)
    assert any("vouches" in note for note in profile.reading.notes)


def test_batches_without_poisson_sampling_are_refused_unless_named():
    teacher = Teacher(poisson_sampling=False)
    with pytest.raises(UnprovenPrivacy, match="poisson_sampling=True"):
        teacher.read()
    reading = teacher.read(accept=["sampling"]).reading
    assert reading.sampling == "not poisson"
    assert any("no guarantee" in note for note in reading.notes)


def test_another_loader_is_refused(teacher):
    other = Teacher(records=50, seed=5)
    from opacus.data_loader import DPDataLoader

    slower = DPDataLoader.from_data_loader(DataLoader(other.loader.dataset, batch_size=10))
    with pytest.raises(UnprovenPrivacy, match="not the loader"):
        teacher.read(data_loader=slower)


@pytest.mark.slow
def test_accumulated_batches_are_refused(teacher):
    """Two batches for a step: a record may be in both. Opacus records twice the rate, which is no bound."""
    accumulating = Teacher(seed=7)
    accumulating.module.allow_grad_accumulation()
    for number, (x, y) in enumerate(accumulating.loader):
        if number % 2 == 0:
            accumulating.optimizer.zero_grad()
        accumulating.criterion(accumulating.module(x), y).backward()
        if number % 2:
            accumulating.optimizer.step()
    assert accumulating.engine.accountant.history[-1][1] == 0.2
    accumulating.train()  # the last steps are as they should be
    seen = {"module": accumulating.module, "data_loader": accumulating.loader, "optimizer": accumulating.optimizer}
    for left_out in ("data_loader", "optimizer"):
        some = {name: value for name, value in seen.items() if name != left_out}
        with pytest.raises(UnprovenPrivacy, match=r"other sample rates \(0\.2\) than a batch is drawn at \(0\.1\)"):
            read_privacy(accumulating.engine, **some)
    vouched = read_privacy(accumulating.engine, **seen, accept=["sampling"])
    assert any("vouches that steps at other sample rates" in note for note in vouched.reading.notes)
    # What would be wrong with it: one such step at noise 1, rates 0.1, against what the history says.
    epsilon = PrivacyProfile.from_dp_sgd([(1.0, 0.2, 1)]).epsilon(1e-5)
    x = torch.linspace(-10, 12, 100_001, dtype=torch.float64)
    none, once, twice = (torch.exp(-((x - shift) ** 2) / 2) / math.sqrt(2 * math.pi) for shift in range(3))
    excess = 0.81 * none + 0.18 * once + 0.01 * twice - math.exp(epsilon) * none
    assert float(torch.trapezoid(excess.clamp(min=0), x)) > 1e-4


def test_ghost_clipping_is_refused_unless_accepted_by_name():
    """It allows batches to be accumulated, and its accountant counts one batch for each step."""
    ghost = Teacher(grad_sample_mode="ghost")
    for number, (x, y) in enumerate(ghost.loader):
        ghost.criterion(ghost.module(x), y).backward()
        if number % 2:
            ghost.optimizer.step()
            ghost.optimizer.zero_grad()
    with pytest.raises(UnprovenPrivacy, match=r'accept=\["ghost"\] if every step had one batch'):
        ghost.read()
    profile = ghost.read(accept=["ghost"])
    assert profile.dp_sgd == ((*RUNS[0][:2], 15),)
    assert any("vouches for one batch a step" in note for note in profile.reading.notes)


def test_training_after_the_reading_is_noticed():
    teacher = Teacher()
    reading = teacher.read().reading
    reading.check(teacher.engine, module=teacher.module)
    with torch.no_grad():
        teacher.net.out.bias += 1e-6  # without an accountant
    reading.check(teacher.engine)
    with pytest.raises(UnprovenPrivacy, match="weights are not those"):
        reading.check(module=teacher.module)
    teacher.train()
    with pytest.raises(UnprovenPrivacy, match="other steps"):
        reading.check(teacher.engine)


class Normed(Net):
    def __init__(self, **options) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6, affine=False, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden(x)
        return self.out(self.norm(hidden) if len(hidden) > 1 or not self.training else hidden)


def test_statistics_of_raw_batches_are_refused_unless_named():
    teacher = Teacher(net=Normed())
    with pytest.raises(UnprovenPrivacy, match=r"running_mean.*GroupNorm"):
        teacher.read()
    assert any("vouches" in note for note in teacher.read(accept=["buffers"]).reading.notes)
    frozen = Normed()
    frozen.norm.eval()
    assert not [note for note in read_privacy(STEPS, module=frozen).reading.notes if "running" in note]


def test_ghost_clipping_with_another_bound_is_refused():
    teacher = Teacher(grad_sample_mode="ghost")
    teacher.read(accept=["ghost"])
    teacher.optimizer.max_grad_norm = 0.01
    with pytest.raises(UnprovenPrivacy, match=r"clips gradients to 1\.0, the optimizer scales its noise to 0\.01"):
        teacher.read(accept=["ghost"])


def test_the_adaptive_clipping_engine_is_refused():
    from opacus.utils.adaptive_clipping.adaptive_clipping_utils import PrivacyEngineAdaptiveClipping

    engine = PrivacyEngineAdaptiveClipping()
    engine.accountant.history = list(STEPS)
    with pytest.raises(UnprovenPrivacy, match="without bound"):
        read_privacy(engine)


@pytest.mark.parametrize(
    "run",
    [
        (math.nan, 0.1, 10),
        (0.0, 0.1, 10),
        (-1.0, 0.1, 10),
        (math.inf, 0.1, 10),
        (1.0, 0.0, 10),
        (1.0, 1.5, 10),
        (1.0, math.nan, 10),
        (1.0, 0.1, 0),
        (1.0, 0.1, 2.5),
        (1.0, 0.1),
        (None, 0.1, 1),
        "abc1",
    ],
    ids=str,
)
def test_numbers_out_of_range_never_reach_an_accountant(run, monkeypatch):
    monkeypatch.setattr(
        "darrm_torch.teachers.reading.accountant_epsilon", lambda *_: pytest.fail("the accountant was asked")
    )
    from opacus.accountants import create_accountant

    accountant = create_accountant("prv")
    accountant.history = [run]
    for source in ([run], accountant):
        with pytest.raises(InvalidArgument):
            read_privacy(source)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan, "a"])
def test_delta_is_checked_first(delta):
    with pytest.raises(InvalidArgument, match="delta"):
        read_privacy(STEPS, delta=delta)


@pytest.mark.parametrize("source", [None, 3, Net(), {"history": []}], ids=lambda source: type(source).__name__)
def test_what_has_no_history_is_refused(source):
    with pytest.raises(InvalidArgument, match="PrivacyEngine"):
        read_privacy(source)
    with pytest.raises(InvalidArgument, match="module or a state dict"):
        read_privacy(STEPS, module=object())


class Centred(Net):
    """Remembers the mean of the raw batches that it saw, outside the state dict too."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return super().forward(x - self.mean)


@pytest.mark.parametrize("persistent", [True, False])
def test_buffers_fed_by_raw_batches_are_refused_unless_named(persistent):
    teacher = Teacher(net=Centred(persistent))
    with pytest.raises(UnprovenPrivacy, match=r"mean may hold statistics of raw training batches"):
        teacher.read()
    assert any("vouches that mean" in note for note in teacher.read(accept=["buffers"]).reading.notes)


@pytest.mark.parametrize("within", [False, True])
def test_an_embedding_that_rescales_the_words_of_raw_batches_is_refused(within: bool) -> None:
    words: nn.Module = nn.Embedding(5, 3, max_norm=1.0)
    net = nn.Sequential(words, nn.Linear(3, 2)) if within else words
    name = "0.weight" if within else "weight"
    assert filled_buffers(net, None) == [name]
    assert filled_buffers(net, copy.deepcopy(net.state_dict())) == []
    words.max_norm = None
    assert filled_buffers(net, None) == []


def test_a_reading_without_weights_is_an_assumption_of_the_report(teacher):
    def assumptions(**options) -> str:
        profile = read_privacy(teacher.engine, **options)
        ensemble = PrivateMajorityEnsemble([teacher.module], NoiseFreeMajority(), profiles=[profile])
        return " ".join(ensemble.privacy_report(as_dict=True)["assumptions"])

    assert "1 teachers, read without their weights, were not trained further" in assumptions()
    assert "read without their weights" not in assumptions(module=teacher.module)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused(bad, tmp_path):
    teacher = Teacher()
    with torch.no_grad():
        teacher.net.out.bias[0] = bad
    save(tmp_path / "teacher-0.pt", teacher)
    for read in (teacher.read, lambda: read_privacy(tmp_path / "teacher-0.pt")):
        with pytest.raises(InvalidArgument, match=r"must be finite weights.*out\.bias is not finite"):
            read()


def test_repeated_positions_of_a_shard_are_refused(teacher):
    from opacus.data_loader import DPDataLoader

    repeated = torch.utils.data.Subset(teacher.loader.dataset, [*range(99), 3])
    loader = DPDataLoader.from_data_loader(DataLoader(repeated, batch_size=10))
    with pytest.raises(UnprovenPrivacy, match="one record several times in a batch"):
        teacher.read(data_loader=loader)


def test_batches_drawn_by_several_processes_are_refused_unless_named(teacher, monkeypatch):
    from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler

    drawn = []
    for rank in range(2):
        monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
        monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
        generator = torch.Generator().manual_seed(2**40)
        sampler = DistributedUniformWithReplacementSampler(total_size=100, sample_rate=0.1, generator=generator)
        torch.manual_seed(0)
        order = torch.randperm(100, generator=torch.Generator().manual_seed(0))[rank::2].tolist()
        drawn.append([order.index(position) for position in next(iter(sampler)).tolist()])
    assert drawn[0] == drawn[1]  # the same places of their parts
    loader = DataLoader(teacher.loader.dataset, batch_sampler=sampler)
    with pytest.raises(UnprovenPrivacy, match=r"each batch is drawn by 2 processes"):
        teacher.read(data_loader=loader)
    reading = teacher.read(data_loader=loader, accept=["sampling"]).reading
    assert any("processes that drew the batches" in note for note in reading.notes)


def test_a_sampler_for_processes_that_leaves_out_empty_batches_is_refused_for_one_process(teacher, monkeypatch):
    from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler

    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    few = DistributedUniformWithReplacementSampler(total_size=2, sample_rate=0.1, steps=50)
    assert all(len(batch) for batch in few)
    sampler = DistributedUniformWithReplacementSampler(total_size=100, sample_rate=0.1)
    with pytest.raises(UnprovenPrivacy, match="leaves out parts without a record"):
        teacher.read(data_loader=DataLoader(teacher.loader.dataset, batch_sampler=sampler))


def test_random_records_in_the_place_of_empty_batches_are_refused_unless_named():
    """A record that is drawn alone takes the place of the random one: the sum moves by two clipping bounds."""
    teacher = Teacher(rand_on_empty=True)
    with pytest.raises(UnprovenPrivacy, match="two clipping bounds"):
        teacher.read()
    assert any("no batch was ever empty" in note for note in teacher.read(accept=["sampling"]).reading.notes)


class ByHand(Teacher):
    """A loop of one's own over what ``make_private`` returned, or not."""

    def __init__(self, loop: Callable[[ByHand, Any], None], **private: Any) -> None:
        self.loop = loop
        super().__init__(**private)

    def train(self) -> None:
        self.loop(self, DataLoader(self.loader.dataset, batch_size=10, shuffle=True))


def test_a_loader_that_was_never_used_is_refused():
    def all_records(teacher: ByHand, given: DataLoader) -> None:
        for x, y in given:
            teacher.optimizer.zero_grad()
            teacher.criterion(teacher.module(x), y).backward()
            teacher.optimizer.step()

    teacher = ByHand(all_records)
    with pytest.raises(UnprovenPrivacy, match="has not drawn a batch yet"):
        teacher.read()
    assert any("Poisson sampling is assumed" in note for note in teacher.read(data_loader=None).reading.notes)


def only_out(teacher: ByHand, _: DataLoader, *, also: Any = None) -> None:
    for x, y in teacher.loader:
        teacher.module.zero_grad()
        teacher.optimizer.zero_grad()
        teacher.criterion(teacher.module(x), y).backward()
        teacher.optimizer.step()
        if also is not None:
            also.step()


def test_weights_that_another_optimizer_may_have_trained_are_refused_unless_named():
    net = Net()
    start = copy.deepcopy(net.state_dict())
    other = torch.optim.SGD(net.hidden.parameters(), lr=0.1)
    trained = {"net": net, "optimizer": lambda _, lr: torch.optim.SGD(net.out.parameters(), lr=lr)}
    teacher = ByHand(partial(only_out, also=other), **trained)
    for given in ({}, {"initial": start}):
        with pytest.raises(UnprovenPrivacy, match=r"does not train hidden\.weight, which requires a gradient"):
            teacher.read(**given)
    notes = teacher.read(accept=["buffers"]).reading.notes
    assert any("vouches that hidden.weight, hidden.bias come from public data" in note for note in notes)


def test_frozen_weights_are_an_assumption_unless_they_are_those_of_the_start():
    net = Net()
    net.hidden.requires_grad_(False)
    start = copy.deepcopy(net.state_dict())
    teacher = ByHand(only_out, net=net, optimizer=lambda _, lr: torch.optim.SGD(net.out.parameters(), lr=lr))
    assert any("does not train 2 of the weights" in note for note in teacher.read().reading.notes)
    assert not any("does not train" in note for note in teacher.read(initial=start).reading.notes)


def test_normalisation_by_the_batch_is_refused():
    class Mixing(Net):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6, affine=False, track_running_stats=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.hidden(x)
            return self.out(self.norm(hidden) if len(hidden) > 1 else hidden)

    teacher = Teacher(net=Mixing())
    assert not list(teacher.net.buffers())
    with pytest.raises(UnprovenPrivacy, match="norm normalises each batch by its own mean"):
        teacher.read(accept=["buffers"])


def test_statistics_of_raw_batches_in_an_attribute_are_refused_unless_named():
    net = Centred(True)
    del net.mean
    net.mean = torch.zeros(4)
    teacher = Teacher(net=net)
    assert "mean" not in dict(net.named_buffers())
    with pytest.raises(UnprovenPrivacy, match="mean may hold statistics of raw training batches"):
        teacher.read()
    teacher.read(accept=["buffers"])


@pytest.mark.parametrize("seed", [0, 2**32 - 1, None])
def test_seeds_that_can_be_found_are_refused_unless_named(seed):
    generator = torch.Generator() if seed is None else torch.Generator().manual_seed(seed)
    teacher = Teacher(noise_generator=generator)
    with pytest.raises(UnprovenPrivacy, match="generator of the noise has a seed that can be found"):
        teacher.read()
    assert any("nobody can find the seed" in note for note in teacher.read(accept=["seeds"]).reading.notes)
    Teacher(noise_generator=torch.Generator().manual_seed(2**32)).read()
    teacher = Teacher(batches=generator)
    with pytest.raises(UnprovenPrivacy, match="generator of the batches has a seed that can be found"):
        teacher.read()


def test_the_steps_in_the_file_of_an_optimizer_are_compared(tmp_path):
    teacher, file = Teacher(optimizer=torch.optim.Adam), tmp_path / "teacher.pt"
    kept = {"module": teacher.module, "optimizer": teacher.optimizer}
    teacher.engine.save_checkpoint(path=file, **kept)
    assert not any("counted the steps" in note for note in read_privacy(file).reading.notes)
    teacher.engine.accountant.history = [(1.0, 0.1, 3)]
    teacher.engine.save_checkpoint(path=file, **kept)
    with pytest.raises(UnprovenPrivacy, match="optimizer took 10 steps, the accountant recorded 3"):
        read_privacy(file)


def test_a_second_optimizer_without_privacy_is_an_assumption(teacher, tmp_path):
    save(tmp_path / "teacher.ckpt", teacher, public_steps=7, global_step=17)
    notes = read_privacy(tmp_path / "teacher.ckpt").reading.notes
    assert any("took 7 steps on other weights" in note for note in notes)


@pytest.mark.parametrize(
    "rate", [1e-6, 0.1, 1.0, *(pytest.param(rate, marks=pytest.mark.slow) for rate in (3e-5, 1 / 35, 0.5))]
)
def test_the_24_bits_of_a_sampler_are_accounted_for(rate):
    """Counted: the multiples of 2**-24 that Torch finds below the rate."""
    accounted = read_privacy([(1.0, rate, 1)]).dp_sgd[0][1]
    steps = torch.arange(2**24, dtype=torch.float32) * 2.0**-24
    assert accounted == int((steps < rate).sum()) / 2**24
    assert accounted >= rate
    assert accounted / rate < 1.02


# --- Opacus' accountants fail -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "word"), [(ValueError("Discrete mean differs"), "failed"), (-0.2, "returned -0.2")]
)
def test_an_accountant_that_fails_is_replaced_and_said_so(epsilon, word, monkeypatch):
    from opacus.accountants import PRVAccountant

    def get_epsilon(self, delta):
        if isinstance(epsilon, Exception):
            raise epsilon
        return epsilon

    monkeypatch.setattr(PRVAccountant, "get_epsilon", get_epsilon)
    reading = read_privacy([(1.0, 0.1, 11 + len(word))], delta=1e-5).reading
    assert dict(reading.accountant_epsilons)["prv"] == reading.epsilon
    assert any(word in note and "our own bound stands in" in note for note in reading.notes)


@pytest.mark.slow
def test_an_accountant_that_would_take_long_is_not_run():
    for history in ([(0.1, 0.01, 100)], [(1.0 + 0.01 * i, 0.1, 3) for i in range(25)]):
        notes = read_privacy(history).reading.notes
        assert any("prv accountant was not asked, as it would take long" in note for note in notes)


@pytest.mark.parametrize(
    "run", [(0.25, 0.1, 5000), (0.05, 0.5, 10_000), (0.2, 1.0, 60), (1.0, 0.01, 10**15), (1e300, 0.5, 10)], ids=str
)
def test_no_history_makes_reading_hang(run):
    readings = []
    assert processor_seconds(lambda: readings.append(read_privacy([run]).reading), below=5) < 5
    reading = readings[0]
    assert reading.epsilon <= reading.stated_epsilon < math.inf
    assert any("our own bound stands in for it" in note for note in reading.notes)


def test_noise_that_hides_nothing_promises_nothing():
    assert read_privacy([(1e-6, 0.5, 10)]).reading.epsilon == math.inf


@pytest.mark.slow
def test_a_noise_of_its_own_for_each_step_is_read_within_seconds():
    history, readings = [(1 + step / 1000, 0.01, 1) for step in range(1000)], []
    assert processor_seconds(lambda: readings.append(read_privacy(history).reading), below=60) < 60
    reading = readings[0]
    assert read_privacy([(1.5, 0.01, 1000)]).reading.epsilon < reading.epsilon
    assert reading.epsilon < read_privacy([(1.0, 0.01, 1000)]).reading.epsilon


# --- several teachers -------------------------------------------------------------------------------------------------


def test_several_teachers_are_read_together():
    teachers = [Teacher(seed=seed) for seed in range(3)]
    profiles = read_teachers(
        [teacher.engine for teacher in teachers],
        modules=[teacher.module for teacher in teachers],
        data_loaders=[teacher.loader for teacher in teachers],
    )
    assert [profile.reading.digest for profile in profiles] == [weights_digest(teacher.net) for teacher in teachers]
    with pytest.raises(InvalidArgument, match="one for each"):
        read_teachers([teacher.engine for teacher in teachers], modules=[teachers[0].module])


def test_engines_of_other_teachers_are_refused_where_the_optimizers_are_given():
    own, other = ([Teacher(seed=seed, noise_multiplier=noise) for seed in range(2)] for noise in (1.0, 9.0))
    modules, optimizers = [one.module for one in own], [one.optimizer for one in own]
    reported = read_teachers([one.engine for one in own], modules=modules, optimizers=optimizers)
    assert reported[0].reading.history[0][0] == 1.0
    engines = [one.engine for one in other]
    with pytest.raises(UnprovenPrivacy, match="does not report its steps to this accountant"):
        read_teachers(engines, modules=modules, optimizers=optimizers)
    with pytest.raises(UnprovenPrivacy, match="trained other weights"):
        read_teachers(engines, modules=modules, optimizers=[one.optimizer for one in other])
    with pytest.raises(UnprovenPrivacy, match="trained other weights"):
        PrivateMajorityEnsemble.from_opacus(
            modules, engines, delta=1e-4, allowance=1.0, optimizers=[one.optimizer for one in other]
        )
    with pytest.raises(InvalidArgument, match="optimizer"):
        read_teachers(engines, modules=modules, optimizers=optimizers[:1])


def test_one_accountant_behind_two_teachers_is_refused(teacher):
    from opacus.accountants import create_accountant

    state = teacher.engine.accountant.state_dict()
    aliased = [create_accountant("prv"), create_accountant("prv")]
    for accountant in aliased:
        accountant.load_state_dict(state)
    for sources in ([teacher.engine] * 2, [teacher.engine, teacher.engine.accountant], aliased):
        with pytest.raises(UnprovenPrivacy, match="share one accountant or one history"):
            read_teachers(sources)
    read_teachers([copy.deepcopy(teacher.engine.accountant), teacher.engine])
    assert len(read_teachers([list(STEPS)] * 2)) == 2  # a plain list is data, which nobody adds to


def test_teachers_in_files_are_compared_too(tmp_path):
    for number, seed in enumerate((0, 0, 1)):
        save(tmp_path / f"teacher-{number}.pt", noisy(seed, number))
    with pytest.raises(UnprovenPrivacy, match="teachers 0 and 1"):
        read_privacy(tmp_path)
    assert len(read_privacy(tmp_path, accept=["seeds"])) == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("global_step", "x"),
        ("shard_size", None),
        ("shard_size", torch.ones(2)),
        ("allocation", [1]),
        ("tuning", None),
        ("tuning", {"question": {"total": 3}}),
        ("watched", "yes"),
        ("optimizer_state_dict", 3),
        ("privacy_accountant_state_dict", "x"),
        ("privacy_accountant_state_dict", torch.ones(2)),
        ("privacy_accountant_state_dict", {"history": [(4.0, 0.1, 10)]}),
        ("privacy_accountant_state_dict", {"history": [(4.0, 0.1)], "mechanism": "rdp"}),
    ],
)
def test_a_damaged_field_of_a_file_is_refused(tmp_path, field, value):
    accountant = {"history": [(4.0, 0.1, 10)], "mechanism": "rdp"}
    weights = {"weight": torch.ones(2, 4)}
    good = {"module_state_dict": weights, "privacy_accountant_state_dict": accountant}
    torch.save(good | {field: value}, tmp_path / "teacher.pt")
    with pytest.raises(InvalidArgument, match=r"^(source|history) must be"):
        read_privacy(tmp_path / "teacher.pt")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ([], r"^teacher 1: the accountant has recorded no step"),
        ([(1.0, 10, 100)], r"^sample_rate of teacher 1 must be"),
        (object(), r"^source of teacher 1 must be a PrivacyEngine"),
    ],
)
def test_an_error_about_one_of_several_teachers_names_it(second: Any, words: str) -> None:
    with pytest.raises((InvalidArgument, UnprovenPrivacy), match=words):
        read_teachers([RUNS, second])
    with pytest.raises(InvalidArgument, match=r"^delta must be"):  # of all of them
        read_teachers([RUNS, second], delta=2.0)


def test_an_error_about_one_of_several_files_names_it(teacher, tmp_path):
    good, bad = tmp_path / "good.pt", tmp_path / "bad.pt"
    save(good, teacher)
    save(bad, teacher, privacy_accountant_state_dict=None)
    with pytest.raises(UnprovenPrivacy, match=r"^\S*bad.pt: the accountant has recorded no step"):
        read_teachers([good, bad])
