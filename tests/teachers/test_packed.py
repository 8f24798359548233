"""Teachers whose weights a state dict does not hold as plain tensors are told apart, and copies of them are found."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from darrm_torch import InvalidArgument, NoiseFreeMajority, PrivateMajorityEnsemble, UnprovenPrivacy, check_independent
from darrm_torch.teachers.checkpoints import weights_digest
from darrm_torch.teachers.packed import packed_weights, unpacked_state

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit"),
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated"),
    pytest.mark.filterwarnings("ignore:.*quantiz"),
    pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated"),
]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.out = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.out(self.cells(x[:, None])[0][:, 0])
        return answer


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


def quantized(model: nn.Module, dtype: torch.dtype = torch.qint8) -> Any:
    if "x86" not in torch.backends.quantized.supported_engines or not hasattr(torch.ao, "quantization"):
        pytest.skip("this Torch has no quantized kernels here")
    return torch.ao.quantization.quantize_dynamic(model.eval(), {nn.Linear, nn.LSTM}, dtype=dtype)


def traced(model: nn.Module) -> Any:
    return torch.jit.trace(model, torch.zeros(3, 4))


def head_on_a_trunk(trunk: nn.Module) -> nn.Module:
    return nn.Sequential(trunk, quantized(nn.Sequential(nn.Linear(4, 2))))


KINDS: dict[str, Callable[[], nn.Module]] = {
    "quantized": lambda: quantized(network()),
    "in half precision": lambda: quantized(network(), torch.float16),
    "a recurrent network": lambda: quantized(Recurrent()),
    "quantized and traced": lambda: traced(quantized(network())),
    "frozen": lambda: torch.jit.freeze(traced(network())),
    "a script in a module": lambda: nn.Sequential(torch.jit.freeze(traced(network()))),
    "a script": lambda: torch.jit.script(network()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_packed_weights_tell_teachers_apart(kind: str) -> None:
    models = [KINDS[kind]() for _ in range(3)]
    assert len({weights_digest(model) for model in models}) == 3
    ensemble = PrivateMajorityEnsemble(models, NoiseFreeMajority(insecure_seed=1), overlap=1)
    assert ensemble(torch.zeros(2, 4)).shape == (2,)
    check_independent(modules=models)
    again = copy.deepcopy(models[0])
    assert weights_digest(again) == weights_digest(models[0])
    with pytest.raises(InvalidArgument, match="teachers 0 and 2 with the same weights"):
        PrivateMajorityEnsemble([*models[:2], again], NoiseFreeMajority(), overlap=1)


def test_quantized_copies_are_found_by_their_weights() -> None:
    model = network()
    with pytest.raises(UnprovenPrivacy, match=r"correlate by 1\.0000"):
        check_independent(modules=[quantized(model), quantized(model)], accept=["seeds"])


def test_quantized_heads_on_a_common_trunk_are_several_teachers() -> None:
    trunk = nn.Linear(4, 4)
    PrivateMajorityEnsemble([head_on_a_trunk(trunk) for _ in range(3)], NoiseFreeMajority(), overlap=1)


def test_a_state_dict_is_unpacked_as_its_module_is() -> None:
    model = quantized(network())
    state = unpacked_state(model.state_dict())
    assert all(torch.equal(value, unpacked_state(model)[name]) for name, value in state.items() if "dtype" not in name)
    assert weights_digest(model.state_dict()) == weights_digest(model)
    assert {value.dtype for value in packed_weights(model).values()} == {torch.float32}


def test_plain_modules_have_nothing_packed() -> None:
    model = network()
    assert packed_weights(model) == {}
    assert unpacked_state(model).keys() == model.state_dict().keys()
    script = torch.jit.script(model)
    assert packed_weights(script) == {}
    buffer = io.BytesIO()
    torch.jit.save(script, buffer)
    buffer.seek(0)
    assert weights_digest(torch.jit.load(buffer)) == weights_digest(script)
