"""The server: asks the sites for votes, refuses what it cannot trust, and labels through the ledger."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ..arguments import checked
from ..arrays import IntArray
from ..errors import DarrmError, InvalidArgument, check_integer
from ..labels.identity import input_digests
from ..labels.labeler import PrivateLabeler
from ..labels.questions import MISSING
from ..limits import check_file
from .messages import Answer, MessageRefused, Request

__all__ = ["Exchange", "RegisteredSite", "RemoteLabeler"]

Exchange: TypeAlias = Callable[[bytes], Iterable[tuple[str, bytes]]]
"""Sends a request to all sites and yields (sender, answer) as answers arrive, until its patience ends."""


@checked
@dataclass(frozen=True, kw_only=True)
class RegisteredSite:
    """A site as the server knows it.

    Attributes:
        name: what the private log calls it.
        digest: of its teacher.
        public_key: verifies its signatures, 64 hexadecimal digits.

    Raises:
        InvalidArgument: no name, no digest, or another key.
    """

    name: str
    digest: str
    public_key: str

    def __post_init__(self) -> None:
        for field in ("name", "digest"):
            if not getattr(self, field):
                raise InvalidArgument(field, "a text that is not empty", getattr(self, field))
        if len(self.public_key) != 64 or set(self.public_key) - set("0123456789abcdef"):
            raise InvalidArgument("public_key", "64 hexadecimal digits, as Site.registration has them", self.public_key)


class RemoteLabeler:
    """Labels from teachers at remote sites: one request to all, the votes of those that answer, labels by the ledger.

    Formal guarantee: that of the ``labeler``; see :meth:`~darrm_torch.PrivateLabeler.total_privacy`. The server sees
    the votes and is trusted with them.

    The budget is checked before any site is asked. The votes of a site that is late or dead, or whose answer is
    refused, are missing and are replaced by the labeler's public rule; the others' votes count. A message is refused
    unless it is signed by a registered site, answers this very request, names the teacher that the ledger is bound to,
    and has one class for each input; a second answer of a site is refused too. Only :attr:`sensitive_events` and the
    log say which site it was. Errors do not, because Flower shows them to others.

    Charge and labels are stored in one entry of the ledger before the labels are returned. A server that was killed can
    be started again with the same ledger: inputs that have labels keep them, and the others are asked again.

    Args:
        labeler: its ``teachers`` are the digests of the sites, in the same order.
        sites: one for each teacher.
        exchange: sends a request and yields answers, such as :class:`FlowerExchange`.
        quorum: the number of sites that must answer, or nothing is labelled or charged; ``None``: more than half.
        log: a file to which events are appended, readable by its owner only.

    Raises:
        InvalidArgument: sites that are not those of the labeler, or a quorum above their number.
    """

    @checked
    def __init__(
        self,
        labeler: PrivateLabeler,
        sites: Sequence[RegisteredSite],
        exchange: Callable[[bytes], Iterable[tuple[str, bytes]]],
        *,
        quorum: int | None = None,
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        if not all(isinstance(site, RegisteredSite) for site in sites):
            raise InvalidArgument("sites", "a RegisteredSite for each teacher", "others")
        if tuple(site.digest for site in sites) != labeler.teachers:
            cure = "Pass teachers=[site.digest for site in sites] to the labeler."
            raise InvalidArgument("sites", "those of the labeler's teachers, in the same order", "others", cure)
        self._numbers = {site.public_key: number for number, site in enumerate(sites)}
        if len(self._numbers) < len(sites):
            raise InvalidArgument("sites", "sites with keys of their own", "two with one key")
        if labeler.mechanism.shares > 1:
            raise InvalidArgument("labeler", "one whose mechanism counts votes", type(labeler.mechanism).__name__)
        if labeler.findings is not None:
            raise InvalidArgument("labeler", "one without findings, which messages to sites have no place for", labeler)
        if labeler.classes is None and labeler.mechanism.classes is None:
            raise InvalidArgument("labeler", "one with a number of classes", None, "Pass classes=... to it.")
        self.labeler, self.sites, self._exchange = labeler, tuple(sites), exchange
        self.classes = int(labeler.classes or labeler.mechanism.classes or 0)
        half = len(sites) // 2 + 1
        self.quorum = half if quorum is None else check_integer("quorum", quorum, low=1, high=len(sites))
        self._events, self._log = deque[str](maxlen=1000), None if log is None else Path(log)
        try:
            if log is not None and os.path.lexists(log):
                check_file("log", log, expected="a file to append to", may_be_empty=True)
            self._write("")
        except (OSError, ValueError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument("log", "a file that can be written", str(log), f"{error}.") from None

    def __repr__(self) -> str:
        return f"<RemoteLabeler: {len(self.sites)} sites, quorum {self.quorum}, {self.labeler!r}>"

    @property
    def agreement(self) -> str:
        """A digest of all terms: the teachers, their promises, the mechanism, the rules such as overlap and unit, the
        budget. The sites compare it with what they have agreed to.
        """
        budget = self.labeler.ledger.budget
        terms = {**self.labeler.identity, "budget": None if budget is None else [budget.epsilon, budget.delta]}
        return hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()

    @property
    def sensitive_events(self) -> tuple[str, ...]:
        """The last 1,000 answers that were missing or refused, by the name of the site; for the server's owner only."""
        return tuple(self._events)

    @checked
    def __call__(self, inputs: npt.ArrayLike, *, batch: int = 1000) -> IntArray:
        """Private labels ``(B,)`` int64 for these inputs; the sites are asked for the new ones.

        Args:
            inputs: ``(B, ...)``: numbers that all teachers take, or positions in a public set that all sites hold.
            batch: how many inputs go into one request. A server that is killed loses the votes of one request.

        Raises:
            InvalidArgument: inputs that cannot be sent.
            BudgetExceeded: all labels together would cost more than the budget. No site was asked.
            DarrmError: fewer sites than the quorum answered. Batches before this one are labelled and stored.
        """
        check_integer("batch", batch, low=1)
        try:
            array = np.asarray(inputs)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgument("inputs", "an array (B, ...)", inputs, str(error)) from None
        parts = [array[start : start + batch] for start in range(0, len(array), batch)] if array.ndim else [array]
        requests = [self._request(part) for part in parts]
        keys = [input_digests(torch.from_numpy(request.inputs.copy())) for request in requests]
        self.labeler.check_budget([key for part in keys for key in part])
        labels = [
            self.labeler.label(part, partial(self._votes, request))
            for part, request in zip(keys, requests, strict=True)
        ]
        return np.concatenate(labels) if labels else np.zeros(0, dtype=np.int64)

    def _request(self, inputs: npt.NDArray[Any]) -> Request:
        return Request(round=secrets.token_hex(16), agreement=self.agreement, classes=self.classes, inputs=inputs)

    def _votes(self, whole: Request, rows: Sequence[int]) -> IntArray:
        """The votes ``(K, rows)`` of the sites on these inputs of a request, -1 where there is none."""
        request = self._request(whole.inputs[list(rows)])
        message = request.to_bytes()
        votes = np.full((len(self.sites), len(rows)), MISSING)
        answered: set[int] = set()
        for sender, data in self._exchange(message):
            who = sender
            try:
                answer = Answer.from_bytes(data, sites=self._numbers, inputs=len(rows))
                number = self._numbers[answer.site]
                who = f"{self.sites[number].name} ({sender})"
                self._check(answer, number, Request.digest(message), len(rows))
                if number in answered:
                    raise MessageRefused("the site has answered before")
            except MessageRefused as error:
                self._note(request, f"{who}: an answer was refused: {error}")
                continue
            votes[number] = answer.votes
            answered.add(number)
            if len(answered) == len(self.sites):
                break
        for number in sorted(set(range(len(self.sites))) - answered):
            self._note(request, f"{self.sites[number].name}: no answer that counts")
        if len(answered) < self.quorum:
            raise DarrmError(
                f"fewer than {self.quorum} of the {len(self.sites)} sites answered as they must. Nothing was charged "
                "for these inputs. The server's private log names the sites"
            )
        return votes

    def _check(self, answer: Answer, number: int, request: str, inputs: int) -> None:
        if answer.request != request:
            raise MessageRefused("it answers another request")
        if answer.teacher != self.sites[number].digest:
            raise MessageRefused("another teacher voted than the ledger is bound to")
        if answer.votes.shape != (inputs,):
            raise MessageRefused("not one vote for each input")
        if answer.votes.min() < MISSING or answer.votes.max() >= self.classes:
            raise MessageRefused("classes that do not exist")

    def _note(self, request: Request, text: str) -> None:
        line = f"{datetime.now(timezone.utc).isoformat(timespec='seconds')} round {request.round}: {text}"
        self._events.append(line)
        self._write(line + "\n")

    def _write(self, text: str) -> None:
        """Append to the log, if there is one."""
        if self._log is not None:
            with open(os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as file:
                file.write(text)
