"""What one input is: its identity covers the whole structure, in any order and any padding."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import darrm_torch as dt
from darrm_torch.labels.identity import checked_inputs, input_digests, input_keys

IDS = torch.tensor([[5, 6, 7, 0], [5, 6, 0, 0]])
MASK = (IDS != 0).long()
TEXT = {"input_ids": IDS, "attention_mask": MASK}


def test_order_of_keys_and_kind_of_sequence_do_not_matter() -> None:
    other = {"attention_mask": MASK.bool(), "input_ids": IDS.int()}
    assert input_digests(other) == input_digests(TEXT)
    rows = torch.rand(2, 3)
    assert input_digests([rows, IDS]) == input_digests((rows.double(), IDS))


def test_whatever_differs_is_another_input() -> None:
    rows = torch.rand(2, 4)
    forms: list[Any] = [
        rows, (rows,), {"a": rows}, {"b": rows}, (rows, IDS), (IDS, rows), {"a": rows, "b": IDS}, {"a": (rows, IDS)},
        ((rows,), IDS), {"input_ids": IDS}, TEXT, {**TEXT, "attention_mask": torch.ones_like(IDS)}, (rows.half(),),
        {"a": IDS, "b": MASK}, {"a": MASK, "b": IDS}, {"a": IDS.float(), "b": MASK}, {"a": IDS[:, :, None], "b": MASK},
    ]  # fmt: skip
    digests = [digest for form in forms for digest in input_digests(form)]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize("right", [0, 2])
def test_padding_that_the_mask_names_is_no_part_of_the_identity(left: int, right: int) -> None:
    def pad(part: torch.Tensor, value: int) -> torch.Tensor:
        return torch.nn.functional.pad(part, (left, right), value=value)

    types = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    padded = {"input_ids": pad(IDS, 9), "attention_mask": pad(MASK, 0), "types": pad(types, 3)}
    assert input_digests(padded) == input_digests({**TEXT, "types": types})
    nested = ({"text": padded},)
    assert input_digests(nested) == input_digests(({"text": {**TEXT, "types": types}},))
    if left + right:  # no mask names it
        del padded["attention_mask"]
        assert input_digests(padded) != input_digests({"input_ids": IDS, "types": types})


def test_only_integers_of_the_masks_shape_are_cut() -> None:
    """Columns of numbers beside a mask are not its tokens, and a mask of real numbers may be added to scores."""
    mask = torch.tensor([[1, 1, 0]])
    for kept, part in itertools.product((mask, mask.float()), (torch.rand(1, 3), torch.rand(1, 3, 2))):
        other = part.clone()
        other[:, 2] += 1
        one, two = ({"attention_mask": kept, "pixels": values} for values in (part, other))
        assert input_digests(one) != input_digests(two)
    ids = torch.tensor([[4, 5, 6]])
    added = {"attention_mask": torch.tensor([[0.0, 0.0, -1e9]]), "input_ids": ids}
    assert input_digests(added) != input_digests({**added, "input_ids": torch.tensor([[4, 5, 7]])})
    inside = {"attention_mask": torch.tensor([[1, 0, 1]]), "input_ids": ids}
    assert input_digests(inside) != input_digests({**inside, "input_ids": torch.tensor([[4, 9, 6]])})


def test_a_row_that_keeps_nothing_stays_whole() -> None:
    empty = {"attention_mask": torch.zeros(2, 3, dtype=torch.int64), "input_ids": torch.tensor([[1, 2, 3], [1, 2, 4]])}
    assert len(set(input_digests(empty))) == 2
    assert input_digests({"attention_mask": torch.ones(0, 3).long(), "input_ids": torch.ones(0, 3).long()}) == []


def test_keys_of_the_caller() -> None:
    assert input_keys(TEXT, [b"one", b"two"]) == [b"one", b"two"]
    assert input_keys(TEXT, None) == input_digests(TEXT)
    for keys, message in (([b"one"], "one for each of the 2 inputs"), (["one", "two"], "non-empty bytes")):
        with pytest.raises(dt.InvalidArgument, match=message):
            input_keys(TEXT, keys)  # type: ignore[arg-type]


def test_numbers_that_are_not_finite_are_named() -> None:
    with pytest.raises(dt.InvalidArgument, match=r"inputs\['a'\]\[1\] must be finite"):
        checked_inputs({"a": (torch.ones(1, 2), torch.tensor([[torch.inf, 0.0]]))})
