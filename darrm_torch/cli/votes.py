"""``darrm label --votes``: labels for votes in a file, if the teachers' networks are elsewhere."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import darrm_torch as dt

from ..errors import InvalidArgument, check_number
from .files import check_ending, given_files
from .parser import option_name, option_names
from .promises import checks, for_stated_unit, naming, stated_unit, terms_of_labels
from .showing import progress
from .values import guarantee, read_guarantee

__all__ = ["OF_VOTES", "Votes", "add_arguments"]

_OF_MODELS = ("inputs", "ids", "tokenizer", "models", "build", "classes", "findings", "initial")
OF_VOTES = ("teachers", "class_names", "class_count", "layout", "keys", "header", "missing", "array", "teacher")
_LAYOUTS = ("inputs-by-teachers", "teachers-by-inputs", "counts")


def add_arguments(parser: Any) -> None:
    """Add the options about votes."""
    votes = parser.add_argument_group("votes instead of --models and --inputs")
    votes.add_argument(
        "--votes", metavar="FILE", help=".csv, .tsv (also .gz), .npy, .npz, .parquet, or a folder of Parquet files"
    )
    votes.add_argument(
        "--teachers", type=int, metavar="K", help="number of teachers (default: as many as --accountants)"
    )
    votes.add_argument(
        "--class-names", nargs="+", metavar="C", help="the classes as the file writes them, in the order of the labels"
    )
    votes.add_argument(
        "--class-count", type=int, metavar="C", help="or: number of classes, if the file writes them as 0..C-1"
    )
    votes.add_argument("--layout", choices=_LAYOUTS, help="what lines and columns stand for, if that is ambiguous")
    votes.add_argument(
        "--keys",
        metavar="COLUMN",
        help="name or position of the column that identifies an input (default: the line number)",
    )
    votes.add_argument(
        "--header", choices=("yes", "no"), help="whether the first line is a header, if it could be votes"
    )
    votes.add_argument(
        "--missing",
        nargs="+",
        default=[],
        metavar="V",
        help='values that mean a missing vote, such as -1; "nan" for empty cells',
    )
    votes.add_argument("--array", metavar="NAME", help="which array of an .npz file with several arrays")
    votes.add_argument("--teacher", type=guarantee, metavar="EPS,DELTA", help="the guarantee of each teacher")


class Votes:
    """The votes that the options name, and the labels that they become."""

    columns = None  # the ledger is bound to those of the teachers

    def __init__(self, chosen: Any) -> None:
        given = [name for name in _OF_MODELS if getattr(chosen, name) is not None]
        if given:
            raise InvalidArgument("--votes", "given without options about models", option_names(given))
        check_ending("--out", chosen.out, ".csv", ".npy")
        if os.path.isdir(chosen.votes):  # the order of its parts says nothing, and only .csv holds the keys
            check_ending("--out", chosen.out, ".csv")
        self.accountants = None if chosen.accountants is None else given_files("--accountants", chosen.accountants)
        if self.accountants is not None and chosen.teacher is not None:
            cure = "PrivateLabeler takes both kinds of guarantees, in Python."
            raise InvalidArgument("--teacher", "left out with --accountants", chosen.teacher, cure)
        count = len(self.accountants) if chosen.teachers is None and self.accountants is not None else chosen.teachers
        if chosen.class_names is not None and chosen.class_count is not None:
            raise InvalidArgument("--class-names", "left out with --class-count", chosen.class_names)
        self._chosen = chosen
        try:
            with progress(None, "votes"):
                self.file = dt.VoteFile(
                    chosen.votes,
                    teachers=count,
                    classes=chosen.class_names or chosen.class_count,
                    layout=chosen.layout,
                    keys=chosen.keys,
                    header=None if chosen.header is None else chosen.header == "yes",
                    missing=chosen.missing,
                    array=chosen.array,
                )
        except InvalidArgument as error:
            names = {"path": "--votes", "classes": "--class-names"}
            name = names.get(error.name, option_name(error.name))
            raise InvalidArgument(name, error.expected, error.got, error.cure) from None
        self.teachers, self.classes, self.inputs = count, len(self.file.classes), len(self.file)

    def build(
        self, strength: dict[str, Any], ledger: dt.PrivacyLedger, on_progress: Callable[[float], None]
    ) -> dt.PrivateLabeler:
        """The labeler that the options ask for."""
        from ..planning.families import FAMILIES

        chosen, names, profiles = self._chosen, list(self.file.names), None
        if self.accountants is not None:
            with naming("--accountants"):
                how = {**checks(chosen), **stated_unit(chosen)}
                profiles = dt.read_teachers(self.accountants, overlap=chosen.overlap, **how)
            digests = [profile.reading.digest for profile in profiles if profile.reading is not None]
            names = [digest or name for digest, name in zip(digests, names, strict=True)]
        elif chosen.teacher is not None:
            profile = dt.PrivacyProfile.from_guarantee(read_guarantee(chosen.teacher))
            profiles = (for_stated_unit(chosen, profile),) * self.teachers
        if "allowance" in strength and profiles is not None and not FAMILIES[chosen.mechanism].adds_up:
            strength = {"label_target": self._worth_of(strength["allowance"], profiles)}
        terms = terms_of_labels(
            chosen, strength, ledger, teachers=self.teachers, classes=self.classes, profiles=profiles
        )
        return dt.PrivateLabeler(
            **terms,
            teachers=names,
            classes=self.classes,
            rules={
                "names": self.file.classes,
                "keys": chosen.keys,
                "columns": None if self.accountants is None else self.file.names,
                "votes": self.file.digest,
            },
        )

    def _worth_of(self, allowance: float, profiles: Sequence[dt.PrivacyProfile]) -> dt.PrivacyGuarantee:
        """What a label may cost that costs at most as much as ``allowance`` teachers."""
        chosen = self._chosen
        check_number("--allowance", allowance, low=0, low_open=True, high_open=True)
        if self.accountants is None:
            (teacher,) = profiles[0].guarantees()[:1]
        else:
            epsilon = max(profile.epsilon(chosen.delta) for profile in profiles)
            teacher = dt.PrivacyGuarantee(epsilon=epsilon, delta=chosen.delta)
        return dt.PrivacyGuarantee(epsilon=allowance * teacher.epsilon, delta=min(1.0, allowance * teacher.delta))

    def check_budget(self, labeler: dt.PrivateLabeler) -> None:
        """Check that all inputs fit in the budget, as if all keys were different where there are many."""
        if labeler.ledger.budget is not None and labeler.ledger.left(self.inputs) < self.inputs:
            labeler.check_budget([key for batch in self.file for key in batch.keys])

    def release(self, labeler: dt.PrivateLabeler, file: Path, advance: Callable[[int], Any]) -> None:
        """Buy the labels part by part, and write them with the keys of their inputs."""
        labels, named = [], self._chosen.keys is not None
        with file.open("w", encoding="utf-8", newline="") if file.suffix == ".csv" else nullcontext() as stream:
            if stream is not None:
                writer = csv.writer(stream)
                writer.writerow(["key" if named else "index", "label"])
            start = 0
            for keys, votes, counts in self.file:
                if counts is not None:
                    part = labeler.label_counts(keys, counts)
                else:
                    assert votes is not None
                    part = labeler.label(keys, votes)
                if stream is None:
                    labels.append(part)
                else:
                    first = [key.decode() for key in keys] if named else range(start, start + len(keys))
                    writer.writerows(zip(first, part.tolist(), strict=True))
                start += len(keys)
                advance(len(keys))
        if stream is None:
            np.save(file, np.concatenate(labels))
