"""A site: it keeps its teacher, answers requests with votes, and signs which teacher voted. Imports no Torch."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..arrays import IntArray
from ..errors import InvalidArgument, check_integer
from .messages import MOST_CLASSES, Answer, MessageRefused, Request, public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["Site", "Teacher"]

_log = logging.getLogger(__name__)


class Teacher(Protocol):
    """What a site asks for votes: :class:`LocalTeacher`, or any object with a name and votes.

    Attributes:
        digest: names the teacher, and changes whenever the teacher does.
    """

    digest: str

    def vote(self, inputs: npt.NDArray[Any], /) -> npt.ArrayLike:
        """Votes ``(B,)`` for inputs ``(B, ...)``: a class for each, -1 where the teacher has no vote."""


class Site:
    """Answers the server's requests for one teacher.

    A vote is a function of the teacher and the input, whatever happens: NaN is a vote for the first class, and a
    teacher that raises an error, or returns something else than classes, has no vote on the whole batch. The reason
    stands in the site's own log and never in the answer.

    Args:
        teacher: votes; see :class:`Teacher`.
        key: the site's signing key, see :func:`site_key`.
        classes: C, the number of classes.
        agreement: the terms that this site has agreed to, as :attr:`RemoteLabeler.agreement` shows them. Requests under
            other terms are not answered. ``None``: the site answers under any terms.

    >>> class Threshold:
    ...     digest = "ward 3, model 1"
    ...     def vote(self, inputs):
    ...         return inputs.mean(axis=1) > 0.5
    >>> site = Site(Threshold(), key=site_key("site.pem"), classes=2)  # doctest: +SKIP
    """

    @checked
    def __init__(self, teacher: Teacher, *, key: Any, classes: int, agreement: str | None = None) -> None:
        if not isinstance(getattr(teacher, "digest", None), str) or not callable(getattr(teacher, "vote", None)):
            raise InvalidArgument("teacher", "an object with a digest and a method vote(inputs)", teacher)
        if not callable(getattr(key, "public_key", None)):
            raise InvalidArgument("key", "a signing key, such as site_key(FILE)", type(key).__name__)
        self.classes = check_integer("classes", classes, low=2, high=MOST_CLASSES)
        self.teacher, self.agreement = teacher, agreement
        self._key: Ed25519PrivateKey = key

    def __repr__(self) -> str:
        return f"<Site: {self.classes} classes, {type(self.teacher).__name__}>"

    @property
    def registration(self) -> dict[str, str]:
        """What the server must know of the site. The digest is for the server only: it is a function of the teacher."""
        return {"digest": self.teacher.digest, "public_key": public_key(self._key)}

    def answer(self, request: bytes) -> bytes:
        """The signed answer to a request; empty bytes where the site answers none, which its log explains."""
        try:
            asked = Request.from_bytes(request)
            if self.agreement not in (None, asked.agreement):
                raise MessageRefused("it is under other terms than this site has agreed to")
            if asked.classes != self.classes:
                raise MessageRefused(f"it is about {asked.classes} classes; the teacher has {self.classes}")
        except MessageRefused as error:
            _log.warning("a request was not answered: %s", error)
            return b""
        try:
            votes = self._votes(asked.inputs)
        except Exception as error:  # the site's own teacher
            _log.warning(
                "the teacher has no votes on %s inputs: %s: %s", len(asked.inputs), type(error).__name__, error
            )
            votes = np.full(len(asked.inputs), -1)
        answer = Answer(
            request=Request.digest(request), site=public_key(self._key), teacher=self.teacher.digest, votes=votes
        )
        return answer.signed(self._key)

    def _votes(self, inputs: npt.NDArray[Any]) -> IntArray:
        votes = np.asarray(self.teacher.vote(inputs.copy()))  # a teacher may write into its inputs
        if votes.shape != (len(inputs),) or votes.dtype.kind not in "iubf":
            raise InvalidArgument("votes", f"classes of shape ({len(inputs)},)", f"{votes.dtype} of {votes.shape}")
        if votes.dtype.kind == "f":
            votes = np.where(np.isnan(votes), 0, votes)
        classes = votes.astype(np.int64) if np.isfinite(votes).all() else None
        if classes is None or (classes != votes).any() or classes.min() < -1 or classes.max() >= self.classes:
            raise InvalidArgument("votes", f"classes in 0..{self.classes - 1}, or -1", "others")
        return classes
