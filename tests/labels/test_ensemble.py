"""The ensemble: right votes from any teacher, labels charged once, and nothing that belongs to others."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import darrm_torch as dt
from darrm_torch.labels.identity import input_digests
from darrm_torch.privacy.guarantees import format_bound
from darrm_torch.teachers.stacking import LARGEST_BATCH
from tests.labels.helpers import POINT, Returns, Says, free, train_with_opacus


def test_votes_and_majority() -> None:
    ensemble = free([Says(0.1), Says(0.5), Says(0.9)])
    inputs = torch.tensor([[0.0], [0.3], [0.7], [1.0]])
    assert ensemble.sensitive_counts(inputs).tolist() == [[3, 0], [2, 1], [1, 2], [0, 3]]
    labels = ensemble(inputs)
    assert labels.tolist() == [0, 0, 1, 1]
    assert labels.dtype == torch.int64
    assert ensemble(inputs[:0]).shape == (0,)


def test_the_same_question_is_charged_once_and_keeps_its_answer() -> None:
    noise = dt.self_bounding_noise(teachers=3, allowance=1.0)
    profiles = [dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=0.1))] * 3
    ensemble = dt.PrivateMajorityEnsemble([Says(0.1), Says(0.5), Says(0.9)], dt.DaRRM(noise), profiles=profiles)
    inputs = torch.rand(40, 1)
    labels = ensemble(inputs)
    assert ensemble.ledger.count == 40
    for _ in range(5):
        assert torch.equal(ensemble(inputs.flip(0)).flip(0), labels)
    assert ensemble.ledger.count == 40
    total = ensemble.privacy_report(as_dict=True)["total"]
    assert total["epsilon"] == pytest.approx(3 * 0.1, rel=1e-3)  # publishing the three teachers, not 40 labels
    assert total["labels"] == 40


def test_budget_refuses_the_whole_batch() -> None:
    noise = dt.self_bounding_noise(teachers=51, allowance=1.0)
    pure = dt.PrivacyGuarantee(epsilon=0.1)
    ledger = dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=1.05))
    models = [Says(i / 51) for i in range(51)]
    ensemble = dt.PrivateMajorityEnsemble(
        models, dt.DaRRM(noise), profiles=[dt.PrivacyProfile.from_guarantee(pure)] * 51, ledger=ledger
    )
    ensemble(torch.rand(8, 1))
    with pytest.raises(dt.BudgetExceeded, match="2 more labels fit"):
        ensemble(torch.rand(3, 1))
    assert ledger.count == 8
    ensemble(torch.rand(2, 1))
    assert ledger.count == 10


def test_a_ledger_serves_its_own_ensemble(tmp_path: Path) -> None:
    file = tmp_path / "labels.ledger"
    models = [Says(0.1), Says(0.5), Says(0.9)]
    inputs = torch.rand(5, 1)
    labels = free(models, ledger=dt.PrivacyLedger(file))(inputs)
    again = free(models, ledger=dt.PrivacyLedger(file))
    assert torch.equal(again(inputs), labels)
    assert again.ledger.count == 5
    with pytest.raises(dt.LedgerError, match="teachers"):
        free([Says(0.1), Says(0.5), Says(0.8)], ledger=dt.PrivacyLedger(file))
    with pytest.raises(dt.LedgerError, match="rules"):
        free(models, ledger=dt.PrivacyLedger(file), overlap=1)
    mechanism = dt.DaRRM(dt.self_bounding_noise(teachers=3, allowance=1.0))
    profiles = [dt.PrivacyProfile.from_guarantee(POINT)] * 3
    ledger = dt.PrivacyLedger(file)
    with pytest.raises(dt.LedgerError, match="mechanism"):
        dt.PrivateMajorityEnsemble(models, mechanism, profiles=profiles, ledger=ledger)


def test_an_ensemble_spends_from_another_ledger_with_the_same_teachers() -> None:
    first = free([Says(0.1), Says(0.5), Says(0.9)], ledger=dt.PrivacyLedger())
    second = first.spending_from(dt.PrivacyLedger())
    second(torch.rand(4, 1))
    assert (first.ledger.count, second.ledger.count) == (0, 4)
    assert second.identity == first.identity == second.get_extra_state()
    assert next(second.parameters()) is next(first.parameters())
    with pytest.raises(dt.InvalidArgument, match="ledger must be as it was"):
        second.ledger = first.ledger


def test_what_labels_are_priced_by_stays_as_it_was() -> None:
    """Else labels of one mechanism would be charged, and reported, at the price of another."""
    pure = [dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=0.1))] * 3
    noise = dt.self_bounding_noise(teachers=3, allowance=1.0)
    ensemble = dt.PrivateMajorityEnsemble([Says(0.1), Says(0.5), Says(0.9)], dt.DaRRM(noise), profiles=pure)
    for name, value in {
        "mechanism": dt.NoiseFreeMajority(classes=2, teachers=3),
        "profiles": [dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=0.001))] * 3,
        "overlap": 1,
        "classes": (1, 0),
        "delta": 0.5,
        "ledger": dt.PrivacyLedger(),
    }.items():
        before = getattr(ensemble, name)
        with pytest.raises(dt.InvalidArgument, match="as it was when the ensemble was built"):
            setattr(ensemble, name, value)
        assert getattr(ensemble, name) is before
    assert copy.deepcopy(ensemble).mechanism == ensemble.mechanism


def test_a_pickled_ensemble_spends_from_the_same_file(tmp_path: Path) -> None:
    pure = dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=0.1))
    mechanism = dt.SelfBoundingPlurality(teachers=3, classes=2, allowance=2.0)
    ensemble = dt.PrivateMajorityEnsemble(
        [Says(0.1), Says(0.5), Says(0.9)],
        mechanism,
        profiles=[pure] * 3,
        ledger=dt.PrivacyLedger(tmp_path / "labels.ledger", dt.PrivacyGuarantee(epsilon=0.31)),
    )
    inputs = torch.rand(5, 1)
    labels = ensemble(inputs)
    again = pickle.loads(pickle.dumps(ensemble))
    assert torch.equal(again(inputs), labels)
    mine, theirs = (one.privacy_report(as_dict=True) | {"date": None} for one in (ensemble, again))
    assert theirs == mine
    again(torch.rand(2, 1))
    assert ensemble.ledger.count == 7


def test_every_form_of_output() -> None:
    sigmoid = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False))
    nn.init.ones_(sigmoid[1].weight)
    two = copy.deepcopy(sigmoid)
    nn.init.constant_(two[1].weight, 2.0)
    assert free([sigmoid, two]).sensitive_counts(torch.tensor([[-1.0], [1.0]])).tolist() == [[2, 0], [0, 2]]
    ten = [Returns(*((1 + n) * torch.eye(10)[c]).tolist()) for n, c in enumerate((8, 8, 5, 3))]
    assert free(ten).sensitive_counts(torch.rand(1, 1))[0].tolist() == [0, 0, 0, 1, 0, 1, 0, 0, 2, 0]
    # Among 5 and 8 only, the teacher that says 3 has equal logits: the first of the two.
    assert free(ten, classes=(5, 8)).sensitive_counts(torch.rand(1, 1)).tolist() == [[2, 2]]


@pytest.mark.parametrize(
    ("models", "how", "message"),
    [
        ([], {}, "number of models"),
        ([Says(0.1)] * 2, {}, "teachers 0 and 1 with the same weights"),
        ([Says(0.1)], {"overlap": 2}, "overlap"),
        ([Says(0.1)], {"classes": (1,)}, "classes"),
        ([Says(0.1)], {"classes": (1, 1)}, "classes"),
        ([Says(0.1)], {"classes": (0, -1)}, "classes"),
        ([Says(0.1)], {"classes": (0, 1.0)}, "classes"),
        ([Says(0.1)], {"classes": 1}, "classes"),
        ([Says(0.1)], {"delta": 1.5}, "delta"),
        ([object()], {}, "PyTorch module"),
    ],
)
def test_wrong_construction(models: list[Any], how: dict[str, Any], message: str) -> None:
    with pytest.raises(dt.InvalidArgument, match=message):
        free(models, **how)


@pytest.mark.parametrize(
    ("models", "how", "message"),
    [
        ([Returns(0.0, 1.0), Returns(0.0, 1.0, 2.0)], {}, "of 2 classes"),
        ([Returns(0.0, 1.0)], {"classes": (5, 8)}, "below the 2 outputs"),
        ([nn.Flatten(start_dim=0)], {}, "logits of shape"),
    ],
)
def test_wrong_teachers_cost_nothing(models: list[nn.Module], how: dict[str, Any], message: str) -> None:
    ensemble = free(models, **how)
    with pytest.raises(dt.InvalidArgument, match=message):
        ensemble(torch.rand(2, 1))
    assert ensemble.ledger.count == 0


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize(
    ("inputs", "got"),
    [
        (torch.rand(2, 3), r"float32 of shape \(2, 3\)'. "),
        (
            torch.arange(8).reshape(2, 4).byte(),
            r"uint8 of shape \(2, 4\)'. Convert them as in .* inputs.float\(\) / 255",
        ),
        (list(torch.rand(9, 4)), r"inputs\[0\] float32 of shape \(4,\), .* 5 more'. A batch is one .*torch.stack\(inp"),
    ],
)
def test_inputs_that_are_not_for_the_teachers_cost_nothing(count: int, inputs: Tensor, got: str) -> None:
    ensemble = free([nn.Linear(4, 2) for _ in range(count)])
    expected = r"inputs must be what teacher 0 takes, whose first weights are float32 of shape \(2, 4\), got '"
    with pytest.raises(dt.InvalidArgument, match=f"{expected}{got}.*(RuntimeError: mat1 and mat2|TypeError)"):
        ensemble(inputs)
    assert ensemble.ledger.count == 0


def test_what_torchscript_says_about_inputs_is_its_last_line() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        ensemble = free([torch.jit.script(nn.Linear(4, 2)) for _ in range(3)])
    with pytest.raises(dt.InvalidArgument, match=r"'. RuntimeError: mat1 and mat2 shapes cannot be multiplied"):
        ensemble(torch.rand(2, 3))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((2, 4), np.float32), "got 'ndarray'. Of a table take torch.tensor"),
        (list(np.zeros((2, 4), np.float32)), r"^inputs\[0\] must be .* of a list of arrays np.stack first"),
        (torch.rand(4), r"got \(2,\). Inputs are a batch: one alone is inputs\[None\]"),
    ],
)
def test_an_error_says_how_inputs_become_a_batch(inputs: Any, message: str) -> None:
    with pytest.raises(dt.InvalidArgument, match=message):
        free([nn.Linear(4, 2) for _ in range(3)])(inputs)


def test_a_mechanism_for_more_classes_than_the_teachers_have_is_refused() -> None:
    teachers = [nn.Linear(4, 3) for _ in range(3)]
    with pytest.raises(
        dt.InvalidArgument, match=r"have 3 outputs and NoiseFreeMajority is for 7.*Build it for 3 classes"
    ):
        dt.PrivateMajorityEnsemble(teachers, dt.NoiseFreeMajority(classes=7), ledger=dt.PrivacyLedger())(
            torch.rand(2, 4)
        )


def test_a_mechanism_for_others_is_refused_before_anything_is_charged() -> None:
    two = dt.DaRRM(dt.self_bounding_noise(teachers=3, allowance=1.0))

    def ensemble(outputs: int, count: int = 3, **how: Any) -> dt.PrivateMajorityEnsemble:
        return dt.PrivateMajorityEnsemble([nn.Linear(4, outputs) for _ in range(count)], two, **how)

    three = ensemble(3)
    with pytest.raises(
        dt.InvalidArgument, match=r"because the teachers have 3 outputs and DaRRM is for 2, .*classes=\(0, 1\)"
    ):
        three(torch.rand(2, 4))
    assert three.ledger.count == 0
    assert ensemble(3, classes=(0, 2))(torch.rand(2, 4)).shape == (2,)
    with pytest.raises(dt.InvalidArgument, match="classes must be 2 of them"):
        ensemble(3, classes=3)
    with pytest.raises(dt.InvalidArgument, match="mechanism must be built for 4 teachers, got 'one for 3'"):
        ensemble(2, count=4)
    with pytest.raises(dt.InvalidArgument, match="mechanism must be a Mechanism"):
        dt.PrivateMajorityEnsemble([Says(0.1)], "gnmax")  # type: ignore[arg-type]
    with pytest.raises(dt.InvalidArgument, match=r"profiles must be a PrivacyProfile for each teacher.*from_guarantee"):
        dt.PrivateMajorityEnsemble([Says(0.1)], dt.NoiseFreeMajority(), profiles=[(8.0, 1e-5)])  # type: ignore[list-item]


def test_a_refusal_that_is_due_to_a_missing_overlap_says_so() -> None:
    budget = dt.PrivacyGuarantee(epsilon=1.5, delta=0.0)
    pure = dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=1.0))

    def ensemble(**how: Any) -> dt.PrivateMajorityEnsemble:
        models = [Says(number / 50) for number in range(50)]
        mechanism = dt.DaRRM(dt.self_bounding_noise(teachers=50, allowance=1.0))
        ledger = dt.PrivacyLedger(budget=budget)
        return dt.PrivateMajorityEnsemble(models, mechanism, profiles=[pure] * 50, ledger=ledger, **how)

    inputs, message = torch.rand(20, 1), r"over the budget .* in the data of all 50 teachers.*pass overlap="
    with pytest.raises(dt.BudgetExceeded, match=message):
        ensemble()(inputs)
    with pytest.raises(dt.BudgetExceeded, match=message):
        ensemble().check_budget([inputs])
    with pytest.raises(dt.BudgetExceeded) as plain:
        ensemble(overlap=2)(inputs)
    assert "all 50" not in str(plain.value)
    assert ensemble(overlap=1)(inputs).shape == (20,)


TARGET = dt.PrivacyGuarantee(epsilon=8.0, delta=1e-5)


@pytest.mark.parametrize(
    "mechanism",
    [
        dt.GNMax.calibrated(TARGET, labels=150),
        dt.LNMax(scale=20.0, overlap=2),
        dt.PermuteAndFlip(epsilon=0.1),
        dt.ExponentialMechanism(epsilon=0.1),
        dt.ConfidentGNMax(threshold=4.0, sigma_check=3.0, sigma=2.0),
        dt.SelfBoundingPlurality(teachers=5, classes=2, allowance=1.0, overlap=2),
        dt.DaRRM(dt.self_bounding_noise(teachers=5, allowance=1.0, overlap=2)),
        dt.DaRRM(
            dt.optimize_noise(teachers=5, teacher=POINT, target=dt.PrivacyGuarantee(epsilon=0.2, delta=1e-5), overlap=1)
        ),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_a_mechanism_for_a_smaller_overlap_is_refused(mechanism: dt.Mechanism) -> None:
    """Its claim would stand beside labels that do not have it."""
    models = [Says(number / 5) for number in range(5)]
    with pytest.raises(dt.InvalidArgument, match=r"overlap must be at most [12], .*got '5 \(all teachers, because no"):
        dt.PrivateMajorityEnsemble(models, mechanism)
    with pytest.raises(dt.InvalidArgument, match=r"overlap must be at most [12], .*got 3"):
        dt.PrivateMajorityEnsemble(models, mechanism, overlap=3)
    assert dt.PrivateMajorityEnsemble(models, mechanism, overlap=1).overlap == 1


# --- nothing is revealed without a charge -----------------------------------------------------------------------------


class Raises(nn.Module):
    """Fails where its weight says so: an error would be a free answer about the weight."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.tensor(threshold))

    def forward(self, inputs: Tensor) -> Tensor:
        if bool((inputs[:, 0] > self.threshold).any()):
            raise RuntimeError(f"secret threshold {self.threshold}")
        return inputs[:, :1].expand(-1, 2)


def linear(number: int, outputs: int, weight: float, bias: float) -> nn.Module:
    layer = nn.Linear(1, outputs)
    with torch.no_grad():
        layer.weight.fill_(weight * (1 - number / 1000))
        layer.bias.fill_(bias)
    return layer


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize(
    "teacher",
    [
        lambda number: linear(number, 2, 1.0, math.nan),
        lambda number: linear(number, 1, 1.0, math.nan),
        lambda number: nn.Sequential(linear(number, 1, 3e38, 0.0), linear(number, 1, 3e38, -math.inf)),
        lambda number: Raises(0.1 + number / 1000),
    ],
    ids=["NaN of two", "NaN of one", "overflow", "raises"],
)
def test_a_vote_is_always_cast_and_charged(
    count: int, teacher: Any, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ensemble, inputs = free([teacher(number) for number in range(count)]), torch.tensor([[0.3], [0.4]])
    assert ensemble(inputs).tolist() == [0, 0]
    assert ensemble.ledger.count == 2
    assert ensemble.sensitive_votes(inputs).tolist() == [[0, 0]] * count
    assert (capfd.readouterr(), caplog.records) == (("", ""), [])
    assert ensemble.sensitive_events


def test_only_the_owner_sees_that_a_teacher_is_broken() -> None:
    ensemble = free([Raises(0.1), Returns(float("nan"), 1.0), Says(0.5)])
    assert ensemble.sensitive_events == ()
    ensemble(torch.tensor([[0.3]]))
    raised, broken = ensemble.sensitive_events
    assert raised.startswith("teacher 0 raised RuntimeError: secret threshold")
    assert broken == "teacher 1 returned NaN for 1 votes"
    assert "secret threshold" not in f"{ensemble!r} {ensemble.privacy_report()} {ensemble.state_dict()}"


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e39])
def test_inputs_that_are_not_finite_are_refused_before_any_teacher_is_asked(value: float) -> None:
    """Else signs of weights could be read from who returns NaN."""
    ensemble = free([Says(0.1), Raises(-1.0), Says(0.5)])
    with pytest.raises(dt.InvalidArgument, match="inputs must be finite as float32 numbers"):
        ensemble(torch.tensor([[0.5], [value]], dtype=torch.float64))
    with pytest.raises(dt.InvalidArgument, match="finite"):
        ensemble.check_budget([torch.rand(2, 1), torch.tensor([[value]], dtype=torch.float64)])
    assert ensemble.ledger.count == 0
    assert ensemble(torch.tensor([[3e38]])).tolist() == [1]  # two of three


def test_what_is_refused_does_not_depend_on_the_weights() -> None:
    """Shapes, ranges of integers and outputs are checked with constants in the place of the weights."""
    words = [nn.Sequential(nn.EmbeddingBag(50, 4), nn.Linear(4, 3)) for _ in range(3)]
    cases: list[tuple[list[nn.Module], Tensor, str]] = [
        (words, torch.tensor([[3, 50]]), "what teacher 0 takes"),
        (
            [Returns(0.0, 1.0), Returns(0.0, 1.0, 2.0)],
            torch.rand(1, 1),
            "of 2 classes, like those of the teachers before",
        ),
        ([nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(3, 2)], torch.rand(1, 4), "what teacher 0 takes"),
    ]
    for models, inputs, message in cases:
        seen = set()
        for seed in range(3):
            torch.manual_seed(seed)
            for model in models:
                for weight in model.parameters():
                    nn.init.uniform_(weight, 0.2, 0.9)
            ensemble = free(models)
            with pytest.raises(dt.InvalidArgument, match=message) as refused:
                ensemble(inputs)
            assert ensemble.ledger.count == 0
            seen.add(str(refused.value))
        assert len(seen) == 1


@pytest.mark.parametrize(
    "inputs",
    [torch.rand(2, 1).to_sparse(), torch.rand(2, 1, device="meta"), torch.rand(2, 1, dtype=torch.complex64)],
    ids=["sparse", "meta", "complex"],
)
def test_inputs_are_dense_and_real(inputs: Tensor) -> None:
    with pytest.raises(dt.InvalidArgument, match="a dense tensor of real numbers"):
        free([Says(0.1)])(inputs)


def test_the_default_ledger_warns_and_a_chosen_one_does_not() -> None:
    with pytest.warns(UserWarning, match="no ledger file"):
        free([Says(0.1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        free([Says(0.1)], ledger=dt.PrivacyLedger())


def test_teachers_stay_in_eval_mode_and_the_originals_unchanged() -> None:
    dropped = nn.Sequential(nn.Linear(1, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    norm = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2))
    ensemble = free([dropped, norm])
    assert dropped.training
    assert all(p.requires_grad for p in dropped.parameters())
    parent = nn.ModuleList([ensemble]).train()
    inputs = torch.rand(200, 1)
    buffers = {name: value.clone() for name, value in ensemble.state_dict().items() if "running" in name}
    votes = parent[0].sensitive_votes(inputs)
    assert torch.equal(votes, parent[0].sensitive_votes(inputs))
    assert all(torch.equal(ensemble.state_dict()[name], value) for name, value in buffers.items())
    assert not any(p.requires_grad for p in ensemble.parameters())
    with torch.no_grad():
        dropped[0].weight.zero_()  # further training of the original does not reach the copy
    assert torch.equal(votes, ensemble.sensitive_votes(inputs))


def test_votes_ignore_autocast_and_survive_half() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 2)) for _ in range(5)]
    ensemble = free(models)
    inputs = torch.rand(300, 20)
    votes = ensemble.sensitive_votes(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ensemble.sensitive_votes(inputs), votes)
    thresholds = dt.DaRRM(dt.self_bounding_noise(teachers=5, allowance=2.0))
    noisy = dt.PrivateMajorityEnsemble(models, thresholds, profiles=[dt.PrivacyProfile.from_guarantee(POINT)] * 5)
    counts = torch.tensor([[0, 5], [2, 3]])
    before = noisy.mechanism.label_probabilities(counts)
    noisy.half()
    assert torch.equal(noisy.mechanism.label_probabilities(counts), before)
    assert noisy(inputs).shape == (300,)


def test_state_dict_carries_its_identity() -> None:
    models = [Says(0.1), Says(0.5), Says(0.9)]
    one, same = free(models), free(models)
    same.load_state_dict(one.state_dict())
    other = free([Says(0.1), Says(0.5), Says(0.8)])
    with pytest.raises(dt.UnprovenPrivacy, match="another ensemble"):
        one.load_state_dict(other.state_dict())


def test_a_state_dict_with_the_right_name_and_other_weights_is_refused() -> None:
    models = [nn.Linear(4, 2) for _ in range(3)]
    ensemble, state = free(models), free(models).state_dict()
    for lower in (torch.float16, torch.bfloat16):
        ensemble.load_state_dict(free(models).to(lower).state_dict())
        ensemble.load_state_dict(state)
        free(models).to(lower).load_state_dict(state)
    before = pickle.dumps([weight.numpy() for weight in ensemble.parameters()])
    weight = state["_teachers.1.weight"]
    for trained_further in (weight + 0.1, weight * 1.001, (weight * 1.001).half()):
        state["_teachers.1.weight"] = trained_further
        with pytest.raises(dt.UnprovenPrivacy, match=r"_teachers\.1\.weight"):
            ensemble.load_state_dict(state)
    assert pickle.dumps([weight.numpy() for weight in ensemble.parameters()]) == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_the_compiler_leaves_the_draws_alone() -> None:
    models = [Says(0.1), Says(0.5), Says(0.9)]
    mechanism = dt.DaRRM(dt.self_bounding_noise(teachers=3, allowance=1.0))
    ensemble = dt.PrivateMajorityEnsemble(models, mechanism, ledger=dt.PrivacyLedger())
    compiled, inputs = torch.compile(ensemble, backend="eager"), torch.rand(40, 1)
    labels = compiled(inputs)
    assert torch.equal(ensemble(inputs), labels)
    compiled(torch.rand(40, 1))
    assert ensemble.ledger.count == 80


def test_what_training_left_on_a_teacher_stays_with_the_original(tmp_path: Path) -> None:
    bare, wrapped, _ = train_with_opacus(0, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    secret = torch.rand(16, 4)
    wrapped.train()(secret)  # Opacus keeps the inputs for a backward pass that never comes
    assert bare[0].activations
    for given in (bare, wrapped):
        ensemble = free([given], ledger=dt.PrivacyLedger(tmp_path / "labels.ledger"))
        content = pickle.dumps(ensemble)
        assert secret.numpy().tobytes() not in content
        assert b"opacus" not in content
        with torch.no_grad():
            assert torch.equal(ensemble.sensitive_votes(secret)[0], bare(secret).argmax(dim=1))
    assert bare[0].activations
    assert secret.numpy().tobytes() in pickle.dumps(bare)


def test_from_opacus_reads_fetches_and_labels(trained: list[tuple[nn.Module, nn.Module, PrivacyEngine]]) -> None:
    bare, wrapped, engines = zip(*trained, strict=True)
    inputs = torch.rand(10, 4)
    votes = []
    for models in (bare, wrapped):
        ensemble = dt.PrivateMajorityEnsemble.from_opacus(
            models, engines, delta=1e-3, allowance=1.0, teacher_promise="point"
        )
        votes.append(ensemble.sensitive_votes(inputs))
        stated = max(engine.get_epsilon(1e-3) for engine in engines)
        assert ensemble.noise.target.epsilon == pytest.approx(stated, abs=1e-9)
        assert ensemble.noise.certificate.margin >= 0
        assert ensemble(inputs).shape == (10,)
        assert ensemble.total_privacy(labels=1).epsilon <= stated
    assert torch.equal(votes[0], votes[1])


def test_profiles_are_of_the_weights_that_vote() -> None:
    """Trained further without an accountant, or in another order: the printed guarantee would be of others."""
    _, models, engines = zip(*(train_with_opacus(seed) for seed in range(2)), strict=True)
    profiles = dt.read_teachers(engines, modules=models)
    majority = dt.NoiseFreeMajority(classes=2, teachers=2)
    dt.PrivateMajorityEnsemble(models, majority, profiles=profiles)
    with pytest.raises(dt.UnprovenPrivacy, match="another order"):
        dt.PrivateMajorityEnsemble(models[::-1], majority, profiles=profiles)
    with torch.no_grad():
        next(models[1].parameters()).add_(1e-3)
    with pytest.raises(dt.UnprovenPrivacy, match="teacher 1 are not those"):
        dt.PrivateMajorityEnsemble(models, majority, profiles=profiles)


@pytest.mark.parametrize("wrong", ["one file for all", "another order", "untrained models"])
def test_files_are_tied_to_the_models(
    trained: list[tuple[nn.Module, nn.Module, PrivacyEngine]], tmp_path: Path, wrong: str
) -> None:
    models, files = [bare for bare, _, _ in trained], [tmp_path / f"teacher-{number}.pt" for number in range(3)]
    for file, (_, wrapped, engine) in zip(files, trained, strict=True):
        engine.save_checkpoint(path=file, module=wrapped)
    how: Any = {"delta": 1e-3, "allowance": 1.0, "noise": "self-bounding"}
    dt.PrivateMajorityEnsemble.from_opacus(models, files, **how)
    if wrong == "untrained models":
        models = [nn.Linear(4, 2) for _ in models]
    else:
        files = [files[0]] * 3 if wrong == "one file for all" else files[::-1]
    with pytest.raises(dt.UnprovenPrivacy, match="weights are not those in"):
        dt.PrivateMajorityEnsemble.from_opacus(models, files, **how)


def test_the_whole_profile_needs_less_noise_than_one_point(
    trained: list[tuple[nn.Module, nn.Module, PrivacyEngine]],
) -> None:
    _, models, engines = zip(*trained, strict=True)
    point, profile = (
        dt.PrivateMajorityEnsemble.from_opacus(models, engines, delta=1e-3, allowance=1.0, teacher_promise=use)
        for use in ("point", "profile")
    )
    assert profile.noise.target == point.noise.target
    prior = dt.IndependentVotes(mean=0.75)
    assert profile.noise.expected_error(prior)[0] < point.noise.expected_error(prior)[0] - 0.01


def test_from_opacus_takes_a_kind_or_a_mechanism(trained: list[tuple[nn.Module, nn.Module, PrivacyEngine]]) -> None:
    _, models, engines = zip(*trained, strict=True)
    target = dt.PrivacyGuarantee(epsilon=1.0, delta=1e-3)
    flip = dt.PrivateMajorityEnsemble.from_opacus(
        models, engines, delta=1e-3, target=target, mechanism="permute-and-flip"
    )
    assert isinstance(flip.mechanism, dt.PermuteAndFlip)
    assert flip.total_privacy(labels=1).epsilon <= 1.0
    same = dt.PrivateMajorityEnsemble.from_opacus(models, engines, delta=1e-3, mechanism=flip.mechanism)
    assert same.mechanism is flip.mechanism
    for wrong in ({"mechanism": flip.mechanism, "target": target}, {"mechanism": "gnmax"}, {"mechanism": "gnmx"}):
        with pytest.raises(dt.InvalidArgument):
            dt.PrivateMajorityEnsemble.from_opacus(models, engines, delta=1e-3, **wrong)


def test_from_opacus_states_totals_where_the_budget_is(
    trained: list[tuple[nn.Module, nn.Module, PrivacyEngine]],
) -> None:
    _, models, engines = zip(*trained, strict=True)
    ledger = dt.PrivacyLedger(budget=dt.PrivacyGuarantee(epsilon=50.0, delta=1e-4))
    ensemble = dt.PrivateMajorityEnsemble.from_opacus(models, engines, delta=1e-3, allowance=2.0, ledger=ledger)
    assert ensemble.delta == 1e-4
    assert ensemble(torch.rand(3, 4)).shape == (3,)  # at 2e-3 no label would be within the budget
    assert dt.PrivateMajorityEnsemble.from_opacus(models, engines, delta=1e-3, allowance=2.0).delta == 2e-3


def test_from_opacus_self_bounding_adds_up(trained: list[tuple[nn.Module, nn.Module, PrivacyEngine]]) -> None:
    _, models, engines = zip(*trained, strict=True)
    ensemble = dt.PrivateMajorityEnsemble.from_opacus(models, engines, delta=1e-3, allowance=1.0, noise="self-bounding")
    routes = {route.key: route for route in ensemble.total_privacy(labels=2, delta=2e-3).routes}
    stated = max(profile.epsilon(1e-3) for profile in ensemble.profiles)
    assert routes["self-bounding"].epsilon == pytest.approx(2 * stated, rel=1e-6)
    assert not routes["certified"].applies


def test_from_opacus_for_three_classes() -> None:
    _, models, engines = zip(*(train_with_opacus(seed, nn.Linear(4, 3)) for seed in range(3)), strict=True)
    how: dict[str, Any] = {"delta": 1e-3, "allowance": 1.5, "noise": "self-bounding"}
    for classes in ((2, 0, 1), 3):
        ensemble = dt.PrivateMajorityEnsemble.from_opacus(models, engines, classes=classes, overlap=2, **how)
        made = dt.SelfBoundingPlurality(teachers=3, classes=3, allowance=1.5, overlap=2)
        assert ensemble.mechanism.describe() == made.describe()
        assert ensemble.classes == ((2, 0, 1) if classes != 3 else (0, 1, 2))
        assert set(ensemble(torch.randn(30, 4)).tolist()) <= {0, 1, 2}
        routes = {route.key: route for route in ensemble.total_privacy(labels=2, delta=3e-3).routes}
        stated = max(profile.epsilon(1e-3) for profile in ensemble.profiles)
        assert routes["self-bounding"].epsilon == pytest.approx(2 * 1.5 * stated, rel=1e-6)
    # Two of the three are a matter for DaRRM; what is binary says so before anything is solved or charged.
    pair = dt.PrivateMajorityEnsemble.from_opacus(models, engines, classes=(2, 0), **how)
    assert isinstance(pair.mechanism, dt.DaRRM)
    with pytest.raises(dt.InvalidArgument, match=r'DaRRM is binary\. Pass noise="self-bounding"'):
        dt.PrivateMajorityEnsemble.from_opacus(models, engines, classes=3, **{**how, "noise": "one-label"})
    unsaid = dt.PrivateMajorityEnsemble.from_opacus(models, engines, **how)
    with pytest.raises(dt.InvalidArgument, match="DaRRM is for two classes"):
        unsaid(torch.randn(30, 4))
    assert unsaid.ledger.count == 0


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "allowance"),
        ({"allowance": 1.0, "noise": "none"}, "one-label"),
        ({"allowance": 0.0}, r"^allowance must be a number in \(0, inf\), got 0.0"),
        ({"allowance": True}, "^allowance must be a number"),
        ({"allowance": math.nan}, "^allowance must be a number"),
        ({"allowance": math.inf, "noise": "self-bounding"}, "^allowance must be a number"),
        ({"allowance": 1.0, "target": POINT}, "both"),
        ({"allowance": 1.0, "delta": 0.0}, "delta"),
        ({"target": POINT, "noise": "self-bounding"}, "allowance"),
    ],
)
def test_from_opacus_wrong_arguments(
    trained: list[tuple[nn.Module, nn.Module, PrivacyEngine]], how: dict[str, Any], message: str
) -> None:
    _, models, engines = zip(*trained, strict=True)
    with pytest.raises(dt.InvalidArgument, match=message):
        dt.PrivateMajorityEnsemble.from_opacus(models, engines, **{"delta": 1e-3, **how})
    with pytest.raises(dt.InvalidArgument, match="one for each of the 3 models"):
        dt.PrivateMajorityEnsemble.from_opacus(models, engines[:2], delta=1e-3, allowance=1.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda() -> None:
    for count in (3, 40):  # one after another, and at once
        models = [Says((number + 0.5) / count) if count < 32 else nn.Linear(1, 2) for number in range(count)]
        ensemble, inputs = free(models).to("cuda"), torch.rand(20, 1)
        labels = ensemble(inputs.cuda())
        assert labels.device.type == "cuda"
        assert torch.equal(labels.cpu(), free(models)(inputs))
        assert ensemble(torch.rand(20, 1)).device.type == "cpu"  # the labels go where the inputs are
    mixed = free([Says(0.1).cuda(), Says(0.5), Says(0.9).half().cuda()])
    assert torch.equal(mixed(inputs), free([Says(0.1), Says(0.5), Says(0.9)])(inputs))


@pytest.mark.parametrize("count", [5, 40])
@pytest.mark.parametrize("of_teachers", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_votes_are_taken_in_the_precision_of_the_teachers(count: int, of_teachers: torch.dtype) -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 2)) for _ in range(count)]
    inputs = torch.rand(LARGEST_BATCH, 20)
    ensemble = free(models).to(of_teachers)
    with torch.no_grad():
        expected = torch.stack([model.to(of_teachers)(inputs.to(of_teachers)).argmax(dim=1) for model in models])
    # Sums in another order move a logit by a few units in the last place.
    allowed = 0 if count < 32 else expected.numel() * {torch.float32: 1e-4, torch.float64: 0}.get(of_teachers, 0.02)
    for context in (None, torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=context or torch.bfloat16, enabled=context is not None):
            assert (ensemble.sensitive_votes(inputs) != expected).sum() <= allowed
            assert (ensemble.sensitive_votes(inputs.double()) != expected).sum() <= allowed


def test_integers_reach_the_teachers_as_they_are() -> None:
    words = [nn.Sequential(nn.EmbeddingBag(50, 4), nn.Linear(4, 3)) for _ in range(3)]
    tokens = torch.randint(50, (8, 6))
    expected = torch.stack([model(tokens).argmax(dim=1) for model in words])
    assert torch.equal(free(words).sensitive_votes(tokens), expected)


def test_an_input_is_known_by_its_shape_and_its_values_as_float32() -> None:
    rows = torch.arange(12.0).reshape(3, 4) + 0.1
    same = [rows, rows.clone(), torch.cat([rows, rows])[3:], rows.T.contiguous().T, rows.clone().requires_grad_()]
    same += [rows.double(), rows.double() + 1e-12, torch.cat([rows[:1].double(), rows[1:].double()])]
    assert len({tuple(input_digests(one)) for one in same}) == 1
    assert [input_digests(row[None])[0] for row in rows] == input_digests(rows)
    assert input_digests(torch.tensor([[0.0]])) == input_digests(torch.tensor([[-0.0]]))
    other = [rows.reshape(3, 2, 2), rows.half(), rows.to(torch.bfloat16), rows.long(), rows + 1]
    digests = [digest for one in (rows, *other) for digest in input_digests(one)]
    assert len(set(digests)) == len(digests)
    whole = rows.long()
    assert input_digests(whole) == input_digests(whole.byte()) == input_digests(whole.int())
    assert input_digests(rows.half()) == input_digests(rows.half().float())  # equal as float32
    assert input_digests(torch.zeros(0, 4)) == []
    assert len(set(input_digests(torch.zeros(2, 0)))) == 1


def test_equal_questions_in_another_type_or_batch_have_one_answer() -> None:
    noise = dt.DaRRM(dt.self_bounding_noise(teachers=5, allowance=1.0))
    ensemble = dt.PrivateMajorityEnsemble([nn.Linear(4, 2) for _ in range(5)], noise)
    inputs = torch.rand(150, 4)
    labels = ensemble(inputs)
    assert torch.equal(ensemble(inputs.double()), labels)
    assert torch.equal(torch.cat([ensemble(row[None]) for row in inputs]), labels)
    assert ensemble.ledger.count == 150
    ensemble(inputs.half())
    assert ensemble.ledger.count == 300


@pytest.mark.parametrize("inputs", [[[1.0]], torch.tensor(1.0), "text", None, {}, {"pixels": [1]}, {1: torch.rand(1)}])
def test_inputs_are_made_of_tensors(inputs: Any) -> None:
    with pytest.raises(dt.InvalidArgument, match=r"^inputs[^ ]* must be a (tensor|mapping)"):
        free([Says(0.1)])(inputs)


def test_inputs_of_another_structure_are_refused_by_name() -> None:
    with pytest.raises(dt.InvalidArgument, match=r"what teacher 0 takes.*inputs\['pixels'\] float32 of shape \(2, 1\)"):
        free([Says(0.1)])({"pixels": torch.rand(2, 1)})
    with pytest.raises(dt.InvalidArgument, match="equal numbers of rows"):
        free([Says(0.1)])((torch.rand(2, 1), torch.rand(3, 1)))


def test_teachers_of_one_and_of_two_logits_vote_together() -> None:
    sigmoid = nn.Linear(1, 1, bias=False)
    nn.init.ones_(sigmoid.weight)
    counts = free([sigmoid, Says(0.0), Returns(3.0, 1.0)]).sensitive_counts(torch.tensor([[-1.0], [1.0]]))
    assert counts.tolist() == [[3, 0], [1, 2]]


@pytest.mark.parametrize("strict", [True, False])
def test_weights_that_do_not_say_whose_they_are_change_nothing(strict: bool) -> None:
    def ensemble() -> dt.PrivateMajorityEnsemble:
        return dt.PrivateMajorityEnsemble([torch.nn.Linear(2, 2) for _ in range(3)], dt.NoiseFreeMajority(classes=2))

    mine, other = ensemble(), ensemble()
    before = {name: value.clone() for name, value in mine._teachers.state_dict().items()}
    weights = {name: value for name, value in other.state_dict().items() if name != "_extra_state"}
    with pytest.raises(dt.UnprovenPrivacy):
        mine.load_state_dict(weights, strict=strict)
    assert all(torch.equal(value, before[name]) for name, value in mine._teachers.state_dict().items())


class WritesIntoItsInputs(nn.Module):
    """A teacher whose first step is in place, by its own weight."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, inputs: Tensor) -> Tensor:
        inputs.mul_(self.scale)
        return torch.stack([-inputs[:, 0], inputs[:, 0]], dim=1)


@pytest.mark.parametrize("count", [3, 40])
def test_no_teacher_changes_what_another_sees(count: int) -> None:
    ensemble = free([WritesIntoItsInputs(-1.0 - n) for n in range(count)])
    inputs = torch.ones(2, 1)
    assert ensemble.sensitive_votes(inputs).tolist() == [[0, 0]] * count
    assert ensemble(inputs).tolist() == [0, 0]
    assert inputs.tolist() == [[1.0], [1.0]]


class StaysInTraining(nn.Module):
    """As for dropout at test time."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 64), nn.Dropout(0.9), nn.BatchNorm1d(64), nn.Linear(64, 2))

    def train(self, mode: bool = True) -> StaysInTraining:
        return super().train(True)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)


def test_teachers_vote_in_eval_mode_in_any_parent_and_any_mode() -> None:
    plain = nn.Sequential(nn.Linear(1, 64), nn.Dropout(0.9), nn.BatchNorm1d(64), nn.Linear(64, 2))
    parent = nn.ModuleList([free([StaysInTraining(), plain])])
    inputs = torch.rand(50, 1)
    votes, mean = parent[0].sensitive_votes(inputs), parent[0]._teachers[1][2].running_mean.clone()
    parent.apply(lambda module: module.train())
    assert torch.equal(parent[0].sensitive_votes(inputs), votes)
    assert torch.equal(parent[0]._teachers[1][2].running_mean, mean)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
def test_teachers_in_torchscript() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.9), nn.Linear(8, 2))

    plain = [model(), model()]
    ensemble = free([torch.jit.script(one) for one in plain])
    ensemble.apply(lambda module: module.train())
    inputs = torch.randn(30, 1)
    assert torch.equal(ensemble.sensitive_votes(inputs), free(plain).sensitive_votes(inputs))


def test_the_ledger_of_an_ensemble_carries_no_teacher(tmp_path: Path) -> None:
    ensemble = free([Says(0.123), Says(0.5)], ledger=dt.PrivacyLedger(tmp_path / "labels.ledger"))
    content = pickle.dumps(ensemble.ledger)
    assert all(weight.numpy().tobytes() not in content for weight in ensemble.parameters())
    assert pickle.loads(content).spent() is not None


def test_other_promises_of_the_same_teachers_do_not_make_labels_cheaper(tmp_path: Path) -> None:
    file, models = tmp_path / "labels.ledger", [Says(i / 5) for i in range(5)]

    def ensemble(epsilon: float) -> dt.PrivateMajorityEnsemble:
        profiles = [dt.PrivacyProfile.from_guarantee(dt.PrivacyGuarantee(epsilon=epsilon))] * 5
        mechanism = dt.DaRRM(dt.self_bounding_noise(teachers=5, allowance=1.0))
        ledger = dt.PrivacyLedger(file, dt.PrivacyGuarantee(epsilon=0.35))
        return dt.PrivateMajorityEnsemble(models, mechanism, profiles=profiles, ledger=ledger, delta=0.0)

    ensemble(0.1)(torch.rand(3, 1))
    with pytest.raises(dt.LedgerError, match="promises"):
        ensemble(1e-6)
    assert ensemble(0.1).ledger.count == 3


def small_net() -> nn.Module:
    return nn.Linear(2, 2)


@pytest.fixture(scope="module")
def allocated_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three teachers of ``train_teachers`` on shards that were drawn at random."""
    folder = tmp_path_factory.mktemp("allocated")
    inputs = torch.rand(60, 2, generator=torch.Generator().manual_seed(0))
    return dt.train_teachers(
        folder / "teachers",
        build_model=small_net,
        dataset=TensorDataset(inputs, torch.arange(60) % 2),
        shards=dt.assign_shards(60, teachers=3, private_folder=folder / "private"),
        shard_size=20,
        settings=dt.TrainingSettings(noise_multiplier=2.0, batch_size=10, epochs=1),
        progress=False,
        workers=1,
    )


def loaded(files: list[Path]) -> list[nn.Module]:
    models = [small_net() for _ in files]
    for file, model in zip(files, models, strict=True):
        dt.load_teacher(file, model)
    return models


PLAIN_MAJORITY: dict[str, Any] = {"delta": 1e-3, "mechanism": dt.NoiseFreeMajority(classes=2)}


def test_teachers_of_one_draw_cost_less(allocated_files: list[Path], tmp_path: Path) -> None:
    models, file = loaded(allocated_files), tmp_path / "labels"
    how = PLAIN_MAJORITY
    ensemble = dt.PrivateMajorityEnsemble.from_opacus(models, allocated_files, ledger=dt.PrivacyLedger(file), **how)
    allocation = ensemble.allocation
    assert allocation is not None
    assert (allocation.source, ensemble.overlap) == ("made by the library", 1)
    ensemble(torch.rand(9, 2))
    total = ensemble.total_privacy(labels=9)
    routes = {route.key: route.epsilon for route in total.routes}
    assert total.route.key == "allocation"
    assert total.epsilon < 0.8 * routes["publishing"]
    spent = ensemble.ledger.spent()
    assert spent is not None
    assert spent.epsilon == total.epsilon
    report = " ".join(ensemble.privacy_report().split())
    assert "by random allocation. Each record drew 1 of 3 shards in secret" in report
    assert f"Without random allocation the bound is {format_bound(routes['publishing'], 6)}." in report
    assert "(made by the library)" in report
    assert "If the draws leak, only the bounds without random allocation hold." in report
    facts = ensemble.privacy_report(as_dict=True)
    assert facts["readings"][0]["allocation"]["teachers"] == 3
    # A ledger is for one price: with another overlap it is another ensemble.
    careful = dt.PrivateMajorityEnsemble.from_opacus(
        models, allocated_files, overlap=3, ledger=dt.PrivacyLedger(), **how
    )
    assert careful.allocation is None
    assert careful.total_privacy(labels=9).epsilon > routes["publishing"]
    with pytest.raises(dt.LedgerError):
        dt.PrivateMajorityEnsemble.from_opacus(models, allocated_files, overlap=3, ledger=dt.PrivacyLedger(file), **how)


def test_some_of_the_teachers_have_no_allocation(allocated_files: list[Path]) -> None:
    two = allocated_files[:2]
    some = dt.PrivateMajorityEnsemble.from_opacus(loaded(two), two, ledger=dt.PrivacyLedger(), **PLAIN_MAJORITY)
    assert (some.allocation, some.overlap) == (None, 2)


def test_a_stated_allocation_is_printed_as_unchecked() -> None:
    stated = dt.RandomAllocation(teachers=3)
    ensemble = free([Says(0.1), Says(0.5), Says(0.9)], allocation=stated, ledger=dt.PrivacyLedger())
    assert ensemble.overlap == 1
    assert "allocation" in {route.key for route in ensemble.total_privacy(labels=1).routes}
    assert "(stated by the user, not checked)" in " ".join(ensemble.privacy_report().split())
    for wrong, match in (
        ({"overlap": 2}, "overlap must be 1"),
        ({"neighbours": "replace-one"}, "add or remove a record"),
    ):
        with pytest.raises(dt.InvalidArgument, match=match):
            free([Says(0.1), Says(0.5), Says(0.9)], allocation=stated, ledger=dt.PrivacyLedger(), **wrong)


def test_from_opacus_asks_who_vouches_for_public_constants(
    trained: list[tuple[nn.Module, nn.Module, PrivacyEngine]],
) -> None:
    models, engines = [one[1] for one in trained], [one[2] for one in trained]
    how = PLAIN_MAJORITY | {"allocation": dt.RandomAllocation(teachers=3), "ledger": dt.PrivacyLedger()}
    with pytest.raises(dt.UnprovenPrivacy, match="Opacus computes them from the true size of each shard"):
        dt.PrivateMajorityEnsemble.from_opacus(models, engines, **how)
    ensemble = dt.PrivateMajorityEnsemble.from_opacus(models, engines, accept=["constants"], **how)
    assert ensemble.allocation == how["allocation"]


def test_slices_are_priced_for_replacing_a_record(
    trained: list[tuple[nn.Module, nn.Module, PrivacyEngine]],
) -> None:
    models, engines = [one[1] for one in trained], [one[2] for one in trained]
    totals = [
        dt.PrivateMajorityEnsemble.from_opacus(
            models, engines, overlap=1, neighbours=neighbours, ledger=dt.PrivacyLedger(), **PLAIN_MAJORITY
        ).total_privacy(labels=5)
        for neighbours in ("add/remove", "replace-one")
    ]
    assert totals[0].epsilon < totals[1].epsilon
    assert "replacing one record" in totals[1].assumptions[0]
