"""Several teachers: accountants, weights and noise of their own."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from darrm_torch import (
    InvalidArgument,
    NoiseFreeMajority,
    PrivateMajorityEnsemble,
    UnprovenPrivacy,
    check_independent,
    read_teachers,
)
from darrm_torch.teachers.independence import check_different, check_noise, largest_signal
from tests.teachers.helpers import Net, Teacher, noisy

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]


def test_one_object_as_two_teachers_is_refused():
    teacher = Teacher()
    for pair in ([teacher.module] * 2, [teacher.module, teacher.net], [teacher.net] * 2):
        with pytest.raises(UnprovenPrivacy, match="same object"):
            check_independent(modules=pair)


def test_teachers_that_share_their_seed_are_refused():
    one, same, other = noisy(0, 1), noisy(0, 2), noisy(3, 2)
    with pytest.raises(UnprovenPrivacy, match=r"teachers 0 and 1 have weights that correlate by 0\.99"):
        check_all([one, same, other])
    with pytest.raises(UnprovenPrivacy, match=r"teachers 0 and 1 have weights that correlate by 0\.99"):
        read_all([one, same, other])
    check_all([one, other])
    check_all([one, same], accept=["seeds"])
    with pytest.raises(UnprovenPrivacy, match=r"teachers 0 and 1 have weights that correlate by 0\.99"):
        check_independent(modules=[one.module, same.module, other.module])
    check_independent(modules=[one.module, other.module])
    check_independent(modules=[one.module, same.module], accept=["seeds"])
    with pytest.raises(UnprovenPrivacy, match=r"1\.0000 and are equal up to rounding: they are copies of one teacher"):
        check_independent(modules=[one.net, copy.deepcopy(one.net)], accept=["seeds"])


def test_noise_generators_of_one_seed_are_refused():
    """Where the teachers began with different weights, or saw different data, their weights do not tell."""
    teachers = [Teacher(seed=n, noise_generator=torch.Generator().manual_seed(2**40)) for n in range(2)]
    engines, modules, optimizers = zip(*((one.engine, one.module, one.optimizer) for one in teachers), strict=True)
    read_teachers(engines, modules=modules)
    with pytest.raises(
        UnprovenPrivacy,
        match="noise generator of teacher 1 began with the same seed",
    ):
        read_teachers(engines, modules=modules, optimizers=optimizers)
    read_teachers(engines, modules=modules, optimizers=optimizers, accept=["seeds"])
    going_on = torch.Generator().manual_seed(5)
    check_independent(optimizers=[Teacher(seed=n, noise_generator=going_on).optimizer for n in range(2)])
    check_independent(optimizers=[teachers[0].optimizer, Teacher().optimizer])


def test_a_common_start_is_taken_off():
    start = Net()
    with torch.no_grad():
        for parameter in start.parameters():
            parameter *= 100
    one, other = (Teacher(seed=seed, net=copy.deepcopy(start), noise_multiplier=5.0) for seed in (1, 2))
    with pytest.raises(UnprovenPrivacy, match="started alike"):
        check_all([one, other])
    check_all([one, other], initial=start)


def check_all(teachers, **options):
    check_independent(
        [one.engine for one in teachers],
        modules=[one.module for one in teachers],
        data_loaders=[one.loader for one in teachers],
        **options,
    )


def read_all(teachers, **options):
    return read_teachers(
        [one.engine for one in teachers],
        modules=[one.module for one in teachers],
        optimizers=[one.optimizer for one in teachers],
        **({"data_loaders": [one.loader for one in teachers]} | options),
    )


def test_shared_batches_are_refused():
    """Five teachers from one loop over one loader cost almost four times what independent batches cost."""
    teachers = [Teacher(seed=seed) for seed in range(3)]
    read_all(teachers)
    shared = teachers[0].loader
    with pytest.raises(UnprovenPrivacy, match=r"teachers 0 and 2 share one data loader"):
        read_all(teachers, data_loaders=[shared, teachers[1].loader, shared])
    with pytest.raises(UnprovenPrivacy, match=r"teachers 0 and 1 share one batch sampler"):
        check_independent(data_loaders=[DataLoader(shared.dataset, batch_sampler=shared.batch_sampler) for _ in "ab"])
    with pytest.raises(UnprovenPrivacy, match=r"teachers 0 and 1 share one sampler"):
        check_independent(data_loaders=[DataLoader(shared.dataset, sampler=shared.sampler) for _ in "ab"])
    check_independent(data_loaders=[shared, shared], accept=["seeds"])


def loader(generator):
    from opacus.data_loader import DPDataLoader

    return DPDataLoader.from_data_loader(
        DataLoader(TensorDataset(torch.rand(50, 2)), batch_size=10), generator=generator
    )


def test_sampler_generators_that_repeat_batches_are_refused():
    seeds = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    check_independent(data_loaders=[loader(seeds[0]), loader(seeds[2])])
    with pytest.raises(UnprovenPrivacy, match="the sampler generator of teacher 1 are one object"):
        check_independent(data_loaders=[loader(seeds[0]), loader(seeds[0])])
    with pytest.raises(UnprovenPrivacy, match="the sampler generator of teacher 1 began with the same seed"):
        check_independent(data_loaders=[loader(seeds[0]), loader(seeds[1])])
    moved = torch.Generator().manual_seed(7)
    moved.set_state(seeds[0].get_state())
    with pytest.raises(UnprovenPrivacy, match="in the same state"):
        check_independent(data_loaders=[loader(seeds[0]), loader(moved)])
    check_independent(data_loaders=[loader(seeds[0]), loader(seeds[1])], accept=["seeds"])


def test_noise_from_the_seed_of_a_sampler_is_refused():
    """The same bits would decide who is drawn and what noise is added."""
    teacher = Teacher(noise_generator=torch.Generator().manual_seed(3))
    for owners in ([teacher.optimizer], [None, teacher.optimizer]):
        with pytest.raises(UnprovenPrivacy, match="the sampler generator of teacher 0 began with the same seed"):
            check_independent(optimizers=owners, data_loaders=[loader(torch.Generator().manual_seed(3))])


def test_shards_that_were_none_are_refused():
    """Opacus drops the sampler of a loader, so every teacher saw all records."""
    from opacus import PrivacyEngine

    data, teachers = TensorDataset(torch.randn(60, 4), torch.zeros(60, dtype=torch.int64)), []
    for number in range(3):
        teacher = Teacher.__new__(Teacher)
        teacher.net, teacher.engine, teacher.criterion = Net(), PrivacyEngine(), torch.nn.CrossEntropyLoss()
        sampler = SubsetRandomSampler(range(20 * number, 20 * number + 20))
        teacher.module, teacher.optimizer, teacher.loader = teacher.engine.make_private(
            module=teacher.net,
            optimizer=torch.optim.SGD(teacher.net.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=5, sampler=sampler),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        teacher.train()
        teachers.append(teacher)
    with pytest.raises(UnprovenPrivacy, match=r"in the data loaders of 3 teachers, but overlap is 1.*or overlap=3"):
        read_all(teachers, overlap=1)
    engines, modules = [one.engine for one in teachers], [one.module for one in teachers]
    options = {"data_loaders": [one.loader for one in teachers], "delta": 1e-5}
    with pytest.raises(UnprovenPrivacy, match="in the data loaders of 3 teachers, but overlap is 2"):
        PrivateMajorityEnsemble.from_opacus(modules, engines, allowance=1, overlap=2, **options)
    profiles = read_all(teachers, overlap=3)
    assert [profile.reading.overlap for profile in profiles] == [3] * 3
    with pytest.raises(UnprovenPrivacy, match="in the data loaders of 3 teachers, but overlap is 1"):
        PrivateMajorityEnsemble(modules, NoiseFreeMajority(), profiles=profiles, overlap=1)


INPUTS, NOISES = (1, 2, 5, 20, 100), (0.5, 1.0, 3.0, 12.0)


def logistic_teachers(
    inputs: int, noise_multiplier: float, *, seed: int, alike: bool = True, shared: bool = False, rate: float = 1.0
) -> tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor] | None, list[float | None]]:
    """Four linear models by DP-SGD on records of one task: weights, the start if they have one, their signals."""
    generator = torch.Generator().manual_seed(seed)
    records, batch, steps = 200, 50, 100
    targets = torch.randint(2, (4, records), generator=generator)
    direction = nn.functional.normalize(torch.randn(inputs, generator=generator), dim=0)
    data = torch.randn(4, records, inputs, generator=generator) + 3 * (2 * targets[..., None] - 1) * direction
    start = torch.rand(4, 2, inputs, generator=generator) - 0.5
    start = start[:1].expand(4, -1, -1) if alike else start
    weights = start.clone()
    for _ in range(steps):
        drawn = torch.rand(4, records, generator=generator) < batch / records
        errors = torch.softmax(data @ weights.mT, dim=-1) - nn.functional.one_hot(targets, 2)
        norms = errors.norm(dim=-1) * data.norm(dim=-1)
        gradients = (errors * (drawn / norms.clamp(min=1.0))[..., None]).mT @ data
        noise = torch.randn((2, inputs) if shared else gradients.shape, generator=generator)
        weights = weights - rate * (gradients + noise_multiplier * noise) / batch
    signal = largest_signal([(noise_multiplier, batch / records, steps)], records)
    states = [{"weight": one} for one in weights]
    return states, {"weight": start[0]} if alike else None, [signal] * 4


def refused(seeds: range, noises: tuple[float, ...] = NOISES, **how: Any) -> tuple[list[Any], int]:
    """The ensembles that are refused, with or without knowledge of their training; and how many correlate by .99."""
    found, correlated = [], 0
    for seed, inputs, noise in itertools.product(seeds, INPUTS, noises):
        states, initial, signals = logistic_teachers(inputs, noise, seed=seed, **how)
        for limits in (signals, [None] * 4):
            try:
                check_noise(states, limits, initial=initial, accept=())
            except UnprovenPrivacy:
                found.append((seed, inputs, noise, limits))
        updates = torch.stack([state["weight"] - (0 if initial is None else initial["weight"]) for state in states])
        correlated += bool((torch.corrcoef(updates.flatten(1)) - torch.eye(4) > 0.99).any())
    return found, correlated


def test_teachers_that_learned_the_same_task_well_are_accepted() -> None:
    """Linear models of few inputs come to one optimum: many of these correlate by more than .99."""
    found, correlated = refused(range(1), (0.5, 12.0), rate=1.0)
    assert not found
    assert correlated >= 2


@pytest.mark.slow
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("rate", [0.1, 1.0, 5.0])
def test_no_honest_ensemble_of_many_is_refused(rate: float, alike: bool) -> None:
    assert refused(range(1, 3), rate=rate, alike=alike)[0] == []


def test_shared_noise_is_seen_where_noise_dominates() -> None:
    for inputs in (20, 100):
        states, initial, signals = logistic_teachers(inputs, 50.0, seed=0, shared=True, rate=0.1)
        with pytest.raises(UnprovenPrivacy, match="trained with the same noise"):
            check_noise(states, signals, initial=initial, accept=())
    states, initial, signals = logistic_teachers(100, 50.0, seed=0, rate=0.1)
    check_noise(states, signals, initial=initial, accept=())


@pytest.mark.parametrize("weights", [1, 2, 4, 20, 1000])
def test_copies_are_seen_in_any_number_of_weights(weights: int) -> None:
    one = {"weight": torch.randn(1, weights, generator=torch.Generator().manual_seed(weights))}
    for again in (one["weight"].clone(), one["weight"] * (1 + 2.0**-23)):
        with pytest.raises(UnprovenPrivacy, match=r"correlate by 1\.0000"):
            check_independent(modules=[one, {"weight": again}], accept=["seeds"])
    other = {"weight": torch.randn(1, weights, generator=torch.Generator().manual_seed(weights + 1))}
    check_independent(modules=[one, other])
    check_independent(modules=[one, {"weight": 1.1 * one["weight"] + 0.1 * other["weight"]}])


@pytest.mark.parametrize("weights", [200, 5000, 100_000])
def test_copies_with_small_changes_are_seen_in_many_weights(weights: int) -> None:
    one = torch.randn(1, weights, generator=torch.Generator().manual_seed(0))
    for scale in (1e-5, 1e-3):
        states = [{"weight": one}, {"weight": one + scale * torch.randn(one.shape)}]
        with pytest.raises(UnprovenPrivacy, match="correlate by"):
            check_independent(modules=states)
        check_independent(modules=states, accept=["seeds"])


def test_the_largest_signal_is_that_of_the_longest_way() -> None:
    assert largest_signal([(2.0, 0.1, 25)], 1000) == pytest.approx(1000 * 0.1 * 5 / 2)
    assert largest_signal([(2.0, 0.1, 9), (2.0, 0.1, 16)], 1000) == pytest.approx(250)
    for history, records in (([(1e-320, 0.1, 1)], 10), ([(0, 0.1, 1)], 10), (None, 10), ("x", 10), ([], None)):
        assert largest_signal(history, records) in (None, float("inf"))


class Elsewhere(nn.Module):
    """The same layers under other names, with a buffer more."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.first, self.second = copy.deepcopy(net.hidden), copy.deepcopy(net.out)
        self.register_buffer("note", torch.rand(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def test_a_copy_under_other_names_is_refused():
    net = Net()
    with pytest.raises(InvalidArgument, match="teachers 0 and 1 with the same weights"):
        check_different([net, Elsewhere(net)])
    check_different([net, Elsewhere(Net())])


def test_one_teacher_several_times_is_refused_where_no_accountant_is_read():
    net, other = Net(), Net()
    copies = {
        "a copy": copy.deepcopy(net),
        "wrapped": torch.nn.DataParallel(net),
        "in half precision": copy.deepcopy(net).half(),
        "in double precision": copy.deepcopy(net).double(),
        "in a container": torch.nn.ModuleDict({"module": copy.deepcopy(net)}),
    }
    check_different([net, other, torch.nn.Flatten(), torch.nn.Flatten()])
    for name, again in copies.items():
        with pytest.raises(InvalidArgument, match="teachers 0 and 2 with the same weights"):
            check_different([net, other, again])
        if name != "in a container":
            with pytest.raises(InvalidArgument, match="teachers 0 and 2 with the same weights"):
                PrivateMajorityEnsemble([net, other, again], NoiseFreeMajority(), overlap=1)


def test_teachers_that_left_a_common_start_need_no_initial_weights() -> None:
    """Half of what they are is the start, and noise dominates the rest: all of that is known but the start."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(100, 100, generator=generator)
    for noise in (0.5, 0.2):
        states = [{"weight": start + noise * torch.randn(100, 100, generator=generator)} for _ in range(3)]
        for signals in ([0.0] * 3, [1.0] * 3, [None] * 3):
            check_noise(states, signals, initial=None, accept=())
            check_noise(states, signals, initial={"weight": start}, accept=())
    states = [{"weight": start + 0.01 * torch.randn(100, 100, generator=generator)} for _ in range(3)]
    with pytest.raises(UnprovenPrivacy, match="started alike and hardly moved"):
        check_noise(states, [1.0] * 3, initial=None, accept=())
    check_noise(states, [1.0] * 3, initial={"weight": start}, accept=())


@pytest.mark.parametrize("rate", [0.1, 1.0, 5.0])
def test_the_same_noise_leaves_the_sums_over_classes_equal(rate: float) -> None:
    """However well the teachers learned their task: cross-entropy moves no sum over the logits."""
    for inputs, noise in ((5, 0.5), (20, 3.0), (100, 12.0)):
        states, initial, _ = logistic_teachers(inputs, noise, seed=0, shared=True, rate=rate)
        for start in (None, initial):
            with pytest.raises(UnprovenPrivacy, match="equal sums over the outputs"):
                check_independent(modules=states, initial=start)
            check_independent(modules=states, initial=start, accept=["seeds"])
    more = [{**state, f"extra.{number}": torch.zeros(number, 2)} for number, state in enumerate(states, 1)]
    with pytest.raises(UnprovenPrivacy, match="weights with equal sums over the outputs"):
        check_independent(modules=more)


def test_sums_that_are_zero_by_construction_say_nothing() -> None:
    states, *_ = logistic_teachers(20, 3.0, seed=0, alike=False)
    check_independent(modules=[{"weight": one["weight"] - one["weight"].mean(dim=0)} for one in states])


def test_a_trunk_that_only_some_teachers_share_says_nothing_about_noise() -> None:
    generator = torch.Generator().manual_seed(3)
    trunks = [torch.randn(6, 5, generator=generator)] * 2 + [torch.randn(6, 5, generator=generator)]
    heads = [10 * torch.randn(2, 6, generator=generator) for _ in trunks]
    check_independent(
        modules=[{"0.weight": trunk, "1.weight": head} for trunk, head in zip(trunks, heads, strict=True)]
    )


def test_layers_whose_noise_has_unlike_scales_are_accepted() -> None:
    """A head that learns a hundred times as fast as the trunk, and weights that occur twice in a state dict."""
    generator = torch.Generator().manual_seed(0)
    head = 3000 * nn.functional.normalize(torch.randn(5000, generator=generator), dim=0)[None]
    fast = [
        {
            "head": head + torch.randn(1, 5000, generator=generator),
            "trunk": 0.01 * torch.randn(1, 100_000, generator=generator),
        }
        for _ in range(2)
    ]
    check_noise(fast, [10_000.0] * 2, initial={name: 0 * one for name, one in fast[0].items()}, accept=())
    for _ in range(20):
        tied = [300 * head[:, :4] + torch.randn(1, 4, generator=generator) for _ in range(2)]
        states = [{str(layer): one for layer in range(8)} for one in tied]
        norm = 300 * float(head[:, :4].norm())
        check_noise(states, [norm] * 2, initial={str(layer): 0 * tied[0] for layer in range(8)}, accept=())


def test_weight_decay_towards_zero_is_no_shared_noise() -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(10, 50, generator=generator)
    states = [{"weight": 0.2 * start + 1e-3 * torch.randn(10, 50, generator=generator)} for _ in range(2)]
    check_noise(states, [10.0] * 2, initial={"weight": start}, accept=())
    noise = 1e-3 * torch.randn(10, 50, generator=generator)
    states = [{"weight": decay * start + noise} for decay in (0.2, 0.3)]
    with pytest.raises(UnprovenPrivacy, match="trained with the same noise"):
        check_noise(states, [10.0] * 2, initial={"weight": start}, accept=())


def test_sums_that_did_not_move_from_their_start_show_no_noise() -> None:
    """Gradients leave the sums where they are; this noise is less than single precision holds."""
    generator = torch.Generator().manual_seed(2)
    start = torch.randn(3, 20, generator=generator)
    moves = (torch.randn(3, 20, generator=generator) for _ in range(2))
    noisy_moves = (one - one.mean(dim=0) + 1e-7 * torch.randn(3, 20, generator=generator) for one in moves)
    states = [{"weight": start + one} for one in noisy_moves]
    with pytest.raises(UnprovenPrivacy, match="give initial= if they started alike"):
        check_independent(modules=states)
    check_independent(modules=states, initial={"weight": start})
