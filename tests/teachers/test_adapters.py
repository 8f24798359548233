"""Adapters on one base: each votes as in peft, the base is in memory once, and nothing trained reaches others."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import darrm_torch as dt
from darrm_torch.labels.voting import VotingTeachers
from darrm_torch.teachers.checkpoints import weights_digest


class Late:
    """A module that is imported when a test needs it: importing both takes seconds."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.name), attribute)


peft, transformers = Late("peft"), Late("transformers")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(find_spec, ("peft", "transformers"))), reason="the extra adapters is not installed"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning", "ignore:Adapter name"),
]
IDS = torch.randint(1, 50, (12, 7))


def bert(**how: Any) -> Any:
    torch.manual_seed(0)
    how = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 50, **how}
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(num_labels=3, num_attention_heads=2, **how)
    )


def config(**how: Any) -> Any:
    how = {"task_type": "SEQ_CLS", "r": 2, "target_modules": ["query", "value", "word_embeddings"], **how}
    return peft.LoraConfig(**how)


def moved(model: Any, *, seed: int = 0) -> Any:
    """The model with adapters as training leaves them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                weight.add_(0.5 * torch.randn(weight.shape, generator=generator).to(weight))
    return model


def with_adapters(count: int = 3, base: Any = None, **how: Any) -> Any:
    model = peft.get_peft_model(bert() if base is None else base, config(**how), adapter_name="one 0")
    for number in range(1, count):
        model.add_adapter(f"one {number}", config(**{**how, "r": 2 + number}))
    return moved(model)


def switched(model: Any, inputs: Any) -> torch.Tensor:
    """The logits of each adapter, one activated after another."""
    outputs = []
    for name in model.peft_config:
        model.set_adapter(name)
        with torch.no_grad():
            outputs.append(model.eval()(**inputs).logits)
    return torch.stack(outputs)


def storage(teachers: Any) -> int:
    parts = [one.untyped_storage() for teacher in teachers for one in teacher.parameters()]
    return sum({part.data_ptr(): part.nbytes() for part in parts}.values())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_adapters_vote_as_peft_switches_them_and_the_base_is_there_once(kind: torch.dtype) -> None:
    base = bert().to(kind)
    before = weights_digest(base)
    model = with_adapters(base=base)
    teachers = dt.adapter_teachers(model)
    expected = switched(model, {"input_ids": IDS})
    with torch.no_grad():
        assert all(torch.equal(t(input_ids=IDS).logits, one) for t, one in zip(teachers, expected, strict=True))
    ensemble = dt.PrivateMajorityEnsemble(teachers, dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger())
    alone = torch.cat([switched(model, {"input_ids": row[None]}).argmax(dim=-1) for row in IDS], dim=1)
    assert torch.equal(ensemble.sensitive_votes({"input_ids": IDS}), alone)
    bytes_of_base = sum(one.untyped_storage().nbytes() for one in bert().to(kind).parameters())
    adapters = storage([model]) - bytes_of_base
    for kept in (teachers, ensemble._teachers):
        assert storage(kept) == bytes_of_base + adapters
    assert weights_digest(model.unload()) != before  # unload() leaves a head that was trained
    assert len({weights_digest(one) for one in teachers}) == 3
    assert all(not weight.requires_grad for one in teachers for weight in one.parameters())


def test_the_callers_model_stays_as_it_is() -> None:
    model = with_adapters()
    model.set_adapter("one 1")
    before = {name: (one.clone(), one.requires_grad) for name, one in model.named_parameters()}
    state = torch.get_rng_state()
    teachers = dt.adapter_teachers(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert {name for name, _ in model.named_parameters()} == before.keys()
    for name, one in model.named_parameters():
        assert torch.equal(one, before[name][0])
        assert one.requires_grad == before[name][1]
    assert model.active_adapter == "one 1"
    heads = [value for name, value in teachers[0].state_dict().items() if "original_module.weight" in name]
    assert torch.equal(heads[0], bert().classifier.weight)  # not what adapter 1 trained


def test_folders_are_read_onto_one_base(tmp_path: Path) -> None:
    model = with_adapters()
    model.save_pretrained(tmp_path)
    folders = [tmp_path / name for name in model.peft_config]
    base = bert()
    gradients = [one.requires_grad for one in base.parameters()]
    teachers = dt.adapter_teachers(base, folders)
    assert [weights_digest(one) for one in teachers] == [weights_digest(one) for one in dt.adapter_teachers(model)]
    assert [one.requires_grad for one in base.parameters()] == gradients
    with pytest.raises(dt.InvalidArgument, match="folders with adapter_config"):
        dt.adapter_teachers(base, [tmp_path / "none"])
    other = bert(max_position_embeddings=20)
    other.bert.encoder.layer[0].attention.self.query = nn.Linear(16, 8)
    with pytest.raises(dt.InvalidArgument, match="adapters for this base"):
        dt.adapter_teachers(other, folders)
    (folders[1] / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(dt.InvalidArgument, match="readable adapters"):
        dt.adapter_teachers(base, folders)


def merged() -> Any:
    model = with_adapters()
    model.merge_adapter()
    return model


def thawed() -> Any:
    model = with_adapters()
    model.base_model.model.bert.encoder.layer[0].attention.self.query.base_layer.requires_grad_()
    return model


def prompts() -> Any:
    return peft.get_peft_model(bert(), peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (merged, "not merged"),
        (thawed, "base is frozen"),
        (lambda: peft.get_peft_model(bert(), config(), adapter_name="0"), "other names than its layers, got '0'"),
        (lambda: with_adapters(1, bias="lora_only"), "leave the base as it is"),
        (prompts, "adapters inside its layers"),
        (bert, "a PeftModel, or folders"),
    ],
)
def test_what_one_adapter_trained_must_not_reach_the_others(build: Any, message: str) -> None:
    with pytest.raises(dt.InvalidArgument, match=message):
        dt.adapter_teachers(build())


@pytest.mark.parametrize("folders", ["text", 3, torch.zeros(2), [3], [None], [torch.zeros(2)], {}])
def test_folders_of_another_type_are_refused_by_name(folders: Any) -> None:
    with pytest.raises(dt.InvalidArgument, match=r"^(folders|model) must be"):
        dt.adapter_teachers(nn.Linear(2, 2), folders)


def test_adapters_of_other_kinds() -> None:
    """Other adapters than LoRA, other layers than linear ones, modules of the user's own."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model = peft.get_peft_model(network, peft.IA3Config(target_modules=["0"], feedforward_modules=[]), adapter_name="a")
    model.add_adapter("b", peft.IA3Config(target_modules=["0"], feedforward_modules=[]))
    gpt = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50, num_labels=3, pad_token_id=0)
    base = transformers.GPT2ForSequenceClassification(gpt)
    for one, inputs in (
        (model, torch.rand(5, 4)),
        (with_adapters(2, base, target_modules=["c_attn"], fan_in_fan_out=True), IDS),
        (with_adapters(2, use_dora=True, target_modules=["query"]), IDS),
    ):
        with torch.no_grad():
            for name, weight in one.named_parameters():
                weight.add_(0.1 * torch.randn_like(weight) if "ia3" in name else 0)
            for name, teacher in zip(one.peft_config, dt.adapter_teachers(one), strict=True):
                one.set_adapter(name)
                outputs = [each(inputs) for each in (one.eval(), teacher)]
                assert torch.equal(*(getattr(output, "logits", output) for output in outputs))


def test_eleven_adapters_take_one_base_and_eleven_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_adapters(11)
    teachers = VotingTeachers(dt.adapter_teachers(model), classes=None, mechanism=dt.NoiseFreeMajority())
    bytes_of_base = sum(one.untyped_storage().nbytes() for one in bert().parameters())
    adapters = storage([model]) - bytes_of_base
    assert storage(teachers) <= bytes_of_base + 1.1 * adapters
    layer, passes = type(bert().bert.encoder.layer[0]), []
    forward = layer.forward

    def counted(self: Any, hidden: Any, *args: Any, **how: Any) -> Any:
        passes.append(len(hidden))
        return forward(self, hidden, *args, **how)

    monkeypatch.setattr(layer, "forward", counted)
    teachers.check({"input_ids": IDS}, range(11))
    passes.clear()
    votes = teachers.votes({"input_ids": IDS}, range(11))
    assert passes.count(len(IDS)) == 11 * 2  # layers; close votes are asked again, one input at a time
    monkeypatch.undo()
    alone = torch.cat([switched(model, {"input_ids": row[None]}).argmax(dim=-1) for row in IDS], dim=1)
    assert torch.equal(votes, alone)


# --- idle adapters ----------------------------------------------------------------------------------------------------


def test_adapters_that_are_disabled_or_never_moved_are_named() -> None:
    teachers = list(dt.adapter_teachers(with_adapters()))
    with torch.no_grad():  # the teachers share the weights of a model that nothing else uses
        for name, weight in teachers[1].named_parameters():
            weight.mul_(0 if "lora_B" in name or "embedding_B" in name else 1)
    with pytest.warns(UserWarning, match="teacher 1 never moved"):
        dt.PrivateMajorityEnsemble(teachers, dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger())
    with pytest.warns(UserWarning, match="teacher 1 never moved"):
        dt.check_independent(modules=[one.state_dict() for one in teachers])
    disabled = moved(copy.deepcopy(teachers[1]), seed=5)
    disabled.disable_adapter_layers()
    with pytest.warns(UserWarning, match="teacher 1 are disabled"):
        dt.PrivateMajorityEnsemble([teachers[0], disabled], dt.NoiseFreeMajority(), ledger=dt.PrivacyLedger())


# --- trained with Opacus ----------------------------------------------------------------------------------------------


def trained(model: Any, *, seed: int, rate: float = 1.0, head: float = 1.0) -> tuple[Any, ...]:
    """An engine, optimizer and loader that trained the active adapter of a model, and the model in its wrapper."""
    torch.manual_seed(seed)
    data = TensorDataset(IDS[seed * 4 : seed * 4 + 4], torch.tensor([0, 1, 2, 0]))
    engine = PrivacyEngine()
    weights = {name: one for name, one in model.named_parameters() if one.requires_grad}
    groups = [{"params": [one for name, one in weights.items() if ("lora" in name) == idle]} for idle in (True, False)]
    optimizer = torch.optim.SGD([{**groups[0], "lr": rate}, groups[1]], lr=head)
    private, optimizer, loader = engine.make_private(
        module=model.train(),
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=2),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for ids, labels in (batch for _ in range(2) for batch in loader):
        optimizer.zero_grad()
        if len(labels):
            nn.functional.cross_entropy(private(input_ids=ids).logits, labels).backward()
            optimizer.step()
    return engine, optimizer, loader, private


def test_adapters_trained_in_turn_on_one_base() -> None:
    model = with_adapters(3, target_modules=["query", "value"])
    teachers, parts = [], []
    for seed, name in enumerate(model.peft_config):
        model.set_adapter(name)
        *part, private = trained(model, seed=seed)
        model = private.to_standard_module()
        parts.append(part)
    teachers = dt.adapter_teachers(model)
    engines, _, loaders = zip(*parts, strict=True)
    profiles = dt.read_teachers(engines, modules=teachers, data_loaders=loaders, overlap=1)
    assert {profile.reading.digest for profile in profiles} == {weights_digest(one) for one in teachers}
    ensemble = dt.PrivateMajorityEnsemble(
        teachers, dt.NoiseFreeMajority(), profiles=profiles, overlap=1, ledger=dt.PrivacyLedger()
    )
    assert any("Common part" in one for one in ensemble.total_privacy(labels=1).assumptions)
    assert ensemble({"input_ids": IDS}).shape == (12,)
    with pytest.raises(dt.UnprovenPrivacy, match="weights of teacher 0"):  # in another order
        dt.PrivateMajorityEnsemble(teachers[::-1], dt.NoiseFreeMajority(), profiles=profiles, ledger=dt.PrivacyLedger())


def test_adapters_that_started_alike_need_the_start() -> None:
    start = peft.get_peft_model(bert(), config(target_modules=["query"]))
    hardly = [trained(copy.deepcopy(start), seed=seed, rate=0.001, head=0.001) for seed in range(2)]
    engines, optimizers, loaders, models = zip(*hardly, strict=True)
    how: dict[str, Any] = {"modules": models, "data_loaders": loaders, "optimizers": optimizers}
    dt.read_teachers(engines, **how, initial=start)
    with pytest.raises(dt.UnprovenPrivacy, match="give initial="):
        dt.read_teachers(engines, **how)


def test_training_that_leaves_the_adapters_as_they_are_is_named() -> None:
    """As in Opacus' issue 820: a head learns beside them, steps are counted, and the adapters stay as they were."""
    start = peft.get_peft_model(bert(), config(target_modules=["query"]))
    engine, _, loader, model = trained(copy.deepcopy(start), seed=0, rate=0.0)
    other = trained(copy.deepcopy(start), seed=1)
    assert engine.accountant.history
    with pytest.warns(UserWarning, match="teacher 0 never moved"):
        dt.read_teachers([engine, other[0]], modules=[model, other[3]], data_loaders=[loader, other[2]], initial=start)


def lora() -> Any:
    """A frozen base with one adapter, as train_teachers builds it for each teacher."""
    return peft.get_peft_model(bert(), config(target_modules=["query", "value"]))


def idle_lora() -> Any:
    """Its adapters are disabled: nothing that the optimizer holds would learn."""
    model = lora()
    model.disable_adapter_layers()
    for name, weight in model.named_parameters():
        weight.requires_grad_("lora_" in name)
    return model


def head_alone() -> Any:
    """A head learns beside adapters that the user froze."""
    model = lora()
    for name, weight in model.named_parameters():
        weight.requires_grad_("modules_to_save" in name)
    return model


def disabled_lora() -> Any:
    """A head learns beside adapters that the user disabled."""
    model = lora()
    model.disable_adapter_layers()
    model.base_model.model.classifier.original_module.requires_grad_()
    return model


class Texts(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return len(IDS)

    def __getitem__(self, index: int) -> Any:
        return {"input_ids": IDS[index], "labels": torch.tensor(index % 3)}


def test_train_teachers_trains_adapters_and_resumes(tmp_path: Path) -> None:
    settings = dt.TrainingSettings(noise_multiplier=1.0, batch_size=3, epochs=2, learning_rate=0.5)
    shards = [range(number, 12, 3) for number in range(3)]
    how: dict[str, Any] = {
        "dataset": Texts(),
        "shards": [torch.tensor(shard).numpy() for shard in shards],
        "shard_size": 4,
        "settings": settings,
        "progress": False,
    }
    with ThreadPoolExecutor(1) as executor:
        files = dt.train_teachers(tmp_path, build_model=lora, executor=executor, **how)
        kept = files[0].read_bytes()
        files[1].unlink()
        assert dt.train_teachers(tmp_path, build_model=lora, executor=executor, **how) == files
        assert files[0].read_bytes() == kept
        with pytest.raises(dt.InvalidArgument, match="does not require grad"):
            dt.train_teachers(tmp_path / "idle", build_model=idle_lora, executor=executor, **how)
        for number, (build, words) in enumerate([(head_alone, "are frozen"), (disabled_lora, "are disabled")]):
            with pytest.warns(UserWarning, match=f"the adapters of every teacher {words}"):
                dt.train_teachers(tmp_path / f"idle-{number}", build_model=build, executor=executor, **how)
    teachers = [lora() for _ in files]
    for file, teacher in zip(files, teachers, strict=True):
        dt.load_teacher(file, teacher)
    start = dict(lora().named_parameters())
    for teacher in teachers:
        moved = {name for name, weight in teacher.named_parameters() if not torch.equal(weight, start[name])}
        assert any("lora_" in name for name in moved)
        assert all(
            "lora_" in name or "modules_to_save" in name for name in moved
        )  # adapters, and peft's copy of a head
    profiles = dt.read_teachers(files, modules=teachers, overlap=1, initial=lora())
    ensemble = dt.PrivateMajorityEnsemble(
        teachers, dt.NoiseFreeMajority(), profiles=profiles, overlap=1, ledger=dt.PrivacyLedger()
    )
    with torch.no_grad():
        alone = torch.stack(
            [torch.cat([one.eval()(input_ids=row[None]).logits.argmax(dim=-1) for row in IDS]) for one in teachers]
        )
    assert torch.equal(ensemble.sensitive_votes({"input_ids": IDS}), alone)
