"""Files of weights, as Opacus, Lightning, DDP and torch.save write them, and digests of weights in every wrapping."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from darrm_torch import InvalidArgument, load_teacher
from darrm_torch.teachers.checkpoints import weights_digest
from tests.teachers.helpers import Net


def build() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))


def some_data(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 4, generator=generator), torch.randint(0, 2, (count,), generator=generator)


def test_a_digest_does_not_depend_on_wrappers():
    net = Net()
    state = net.state_dict()
    digest = weights_digest(net)

    class Lit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = net

    for wrapped in (state, Lit(), nn.DataParallel(net), nn.ModuleDict({"_module": Lit()})):
        assert weights_digest(wrapped) == digest
    for prefix in ("_module.", "_module.module.", "_orig_mod._module.", "_forward_module.teacher._module."):
        assert weights_digest({prefix + name: value for name, value in state.items()}) == digest


@pytest.mark.slow  # it imports the compiler
def test_a_digest_does_not_depend_on_the_compiler():
    net = Net()
    assert weights_digest(torch.compile(net)) == weights_digest(net)


def test_a_digest_depends_on_names_values_shapes_and_types():
    net = Net()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    changed = [
        {**state, "out.bias": state["out.bias"] + 1e-7},
        {**state, "out.bias": state["out.bias"].reshape(1, 2)},
        {**state, "out.bias": state["out.bias"].view(torch.int32)},
        {name.replace("bias", "offset"): value for name, value in state.items()},
        {name: value for name, value in state.items() if name != "out.bias"},
    ]
    assert len({weights_digest(one) for one in [state, *changed]}) == 6


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (nn.Linear(4, 3), "weight is (2, 4) in the file, (3, 4) in the network, and 1 more differ."),
        (nn.Linear(4, 2, bias=False), "bias is not in the network."),
        (nn.Sequential(nn.Linear(4, 2)), "0.weight is not in the file, and 3 more differ."),
        (nn.BatchNorm1d(2), "weight is (2, 4) in the file, (2,) in the network, and 3 more differ."),
    ],
    ids=["shape", "too few", "names", "buffers"],
)
def test_weights_of_another_network_are_one_clear_error(tmp_path: Path, network: nn.Module, words: str) -> None:
    file = tmp_path / "teacher-000.pt"
    record = {"privacy_accountant_state_dict": None, "settings": {}, "shard_size": 3}
    torch.save({**record, "module_state_dict": nn.Linear(4, 2).state_dict()}, file)
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(InvalidArgument) as refused:
        load_teacher(file, network)
    message = str(refused.value)
    assert message.startswith(f"{file} must be the weights of this {type(network).__name__}, got 'those of another")
    assert "train this one in a new folder" in message
    assert "\n" not in message
    assert words in message
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def checkpoints(folder: Path) -> tuple[nn.Module, list[Path]]:
    """A network, and files of it as Opacus, Lightning, DDP and torch.save leave them."""
    network = build()
    plain = network.state_dict()
    kept = {
        "opacus": {"module_state_dict": {f"_module.{name}": value for name, value in plain.items()}, "more": 3},
        "lightning": {"state_dict": {f"net._module.{name}": value for name, value in plain.items()}, "epoch": 2},
        "itself": {"state_dict": plain},
        "ddp": {f"module.{name}": value for name, value in plain.items()},
        "alone": plain,
    }
    files = [folder / f"{name}.pt" for name in kept]
    for file, record in zip(files, kept.values(), strict=True):
        torch.save(record, file)
    return network, files


def test_teachers_of_others_are_loaded(tmp_path: Path) -> None:
    network, files = checkpoints(tmp_path)
    inputs = torch.rand(3, 4)
    rest = []
    for file in files:
        fresh = build()
        rest.append(load_teacher(str(file), fresh))
        assert torch.equal(fresh(inputs), network(inputs))
    assert rest == [{"more": 3}, {"epoch": 2}, {}, {}, {}]
    wrapped = torch.nn.Module()
    wrapped._module = build()
    load_teacher(files[0], wrapped)
    assert torch.equal(wrapped._module(inputs), network(inputs))


def test_a_checkpoint_of_opacus_is_a_teacher(tmp_path: Path) -> None:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    network, engine, fresh = build(), PrivacyEngine(), build()
    private, _, _ = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(*some_data(8)), batch_size=4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    engine.save_checkpoint(path=tmp_path / "teacher-0.pt", module=private)
    rest = load_teacher(tmp_path / "teacher-0.pt", fresh)
    assert rest["privacy_accountant_state_dict"]["mechanism"] == "prv"
    assert torch.equal(fresh[1].weight, network[1].weight)


class Opened:
    """Would tell that it was unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('opened')",)


@pytest.mark.parametrize("content", [b"junk", None, Opened(), [torch.ones(2)], {"settings": {}}, {}, {"state_dict": 3}])
def test_no_message_says_to_delete_a_file(tmp_path: Path, content: Any) -> None:
    file = tmp_path / "model.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    with pytest.raises(
        InvalidArgument, match=r"file must be a (readable )?checkpoint.* got '.*model\.pt'\. (It |Check )"
    ) as refused:
        load_teacher(file, build())
    assert not any(word in refused.value.cure for word in ("elete", "emove", "rain"))
