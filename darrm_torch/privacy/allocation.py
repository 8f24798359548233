"""How records were allocated to shards: the public facts about it, which decide what labels cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..arguments import checked, validate
from ..errors import InvalidArgument, check_integer, check_number
from .validation import PrivateValidation

__all__ = ["RandomAllocation"]


@checked
@dataclass(frozen=True, kw_only=True)
class RandomAllocation:
    """Public facts about how records were allocated to shards: each unit drew its shards at random, in secret.

    Every unit draws independently of all other units and of all data, uniformly, and its draw stays secret. If you
    build an allocation by hand, you promise this yourself: the library cannot check it afterwards.

    Args:
        teachers: K, the number of shards, at most a million.
        overlap: r, the number of shards that a unit draws.
        blocks: sizes of ``overlap`` blocks of consecutive shards, of which a unit draws one shard each; ``None``: any
            ``overlap`` of the shards with equal probability.
        unit: what draws its shards and what the guarantee protects, such as "record" or "person".
        holdout: the probability that a unit is in no shard at all, by a secret coin of its own: it is held out for
            validation. Only the price of training and validation together uses it.
        validation: what will be released about the units that are held out; every total covers it.
        weights: the probability of each shard where they are not equal, for ``overlap=1`` and without ``blocks``.
        source: who answers for the draws, "made by the library" or "stated".
        keyed: whether the draws follow from ids and a secret key instead of being drawn for each unit.

    Raises:
        InvalidArgument: a value out of range, or values that do not fit together.

    >>> RandomAllocation(teachers=11, overlap=3).block_sizes
    (4, 4, 3)
    """

    teachers: int
    overlap: int = 1
    blocks: tuple[int, ...] | None = None
    unit: str = "record"
    holdout: float = 0.0
    validation: PrivateValidation | None = None
    weights: tuple[float, ...] | None = None
    source: Literal["stated", "made by the library"] = "stated"
    keyed: bool = False

    def __post_init__(self) -> None:
        validate(self, "teachers", check_integer, low=1, high=10**6)
        validate(self, "overlap", check_integer, low=1, high=self.teachers)
        validate(self, "holdout", low=0.0, high=1.0, high_open=True)
        if self.validation is not None and not self.holdout:
            raise InvalidArgument("validation", "a PrivateValidation with a holdout above 0", self.validation)
        if self.blocks is not None:
            blocks = tuple(check_integer("blocks", size, low=1) for size in self.blocks)
            if len(blocks) != self.overlap or sum(blocks) != self.teachers:
                raise InvalidArgument("blocks", f"{self.overlap} sizes that add up to {self.teachers}", self.blocks)
            object.__setattr__(self, "blocks", blocks)
        if self.weights is not None:
            weights = tuple(check_number("weights", weight, low=0.0, high=1.0) for weight in self.weights)
            whole = len(weights) == self.teachers and abs(math.fsum(weights) - 1) <= 1e-9
            if self.overlap > 1 or self.blocks or not whole:
                expected = f"{self.teachers} probabilities that add up to 1, with overlap=1 and without blocks"
                raise InvalidArgument("weights", expected, self.weights)
            object.__setattr__(self, "weights", None if len(set(weights)) == 1 else weights)
        if not self.unit.strip():
            raise InvalidArgument("unit", 'a word such as "record" or "person"', self.unit)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Sizes of the blocks that the price is computed with: those given, or as equal as possible."""
        if self.blocks is not None:
            return self.blocks
        size, larger = divmod(self.teachers, self.overlap)
        return (size + 1,) * larger + (size,) * (self.overlap - larger)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a price with this allocation rests on, outside the library."""
        shards = "shard" if self.overlap == 1 else f"{self.overlap} shards"
        whose = "stated by the user, not checked" if self.source == "stated" else "made by the library"
        return (
            f"Allocation: each {self.unit} drew its {shards} of {self.teachers} at random, independently of all other "
            f"{self.unit}s and of all data ({whose}).",
            f"Unit: the {self.unit} that draws is the {self.unit} that the teachers' accounting protects, added or "
            "removed. Rows that share a draw, such as those of one person, cost far more.",
            "No refusal: no check of private contents, such as one for duplicates, decided whether a training ran. Ids "
            "are unique by schema, or rows drew for themselves.",
            "Nothing chosen: shards were not balanced, resized or drawn again, and no teacher was chosen, weighted or "
            f"stopped early by private results. A {self.unit} held out for validation was held out by a coin of its "
            "own, not to reach a fixed number.",
            "Public constants: sample rate, steps, expected batch size, clipping bound and noise do not depend on a "
            "shard; empty shards train too.",
            "Secret draws: key, lists, sizes of shards, durations, loss curves, and everything else that shows them, "
            "stay with the private data.",
            *(
                (
                    "Key: ids are unique by schema and are not computed from contents. The secrecy of the draws is "
                    "computational: it rests on a key of at least 16 random bytes that nobody else has.",
                )
                if self.keyed
                else ()
            ),
            "One price: everything else that is released from these shards is charged separately.",
            "If the draws leak, only the bounds without random allocation hold.",
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON; :meth:`from_dict` restores the value."""
        return {
            "version": 1,
            "teachers": self.teachers,
            "overlap": self.overlap,
            "blocks": None if self.blocks is None else list(self.blocks),
            "unit": self.unit,
            "holdout": self.holdout,
            "weights": None if self.weights is None else list(self.weights),
            "source": self.source,
            "keyed": self.keyed,
            **({} if self.validation is None else {"validation": asdict(self.validation)}),
        }

    @classmethod
    @checked
    def from_dict(cls, value: Mapping[str, Any]) -> RandomAllocation:
        """The allocation that :meth:`to_dict` described.

        Raises:
            InvalidArgument: not such a description, or one of a later version.

        >>> allocation = RandomAllocation(teachers=11, overlap=2, blocks=(6, 5))
        >>> RandomAllocation.from_dict(allocation.to_dict()) == allocation
        True
        """
        try:
            fields = dict(value)
            version = fields.pop("version")
            blocks, weights, validation = fields.pop("blocks"), fields.pop("weights"), fields.pop("validation", None)
            if version == 1:
                return cls(
                    blocks=None if blocks is None else tuple(blocks),
                    weights=None if weights is None else tuple(weights),
                    validation=None if validation is None else PrivateValidation(**validation),
                    **fields,
                )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument("allocation", "a description by RandomAllocation.to_dict", value) from error
        raise InvalidArgument("allocation", "a description of version 1", value, "Update darrm-torch.")
