"""Flower carries the messages: a ClientApp for a site, and the server's exchange over a Grid. Imports Flower when used.

The extra ``federated`` installs Flower. Turn its telemetry off with ``FLWR_TELEMETRY_ENABLED=0``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..arguments import checked
from ..errors import InvalidArgument, check_number
from .site import Site

__all__ = ["FlowerExchange", "client_app"]

_log = logging.getLogger(__name__)
_ACTION = "darrm_votes"
_RECORD, _FIELD = "darrm", "message"


@checked
def client_app(site: Site | Callable[[Any], Site]) -> Any:
    """A Flower ``ClientApp`` that answers the server's requests.

    Args:
        site: the site, or a function that builds it from Flower's ``Context``, whose ``node_config`` can name the
            files of this node. It is called for each request.

    Raises:
        ImportError: Flower is not installed.
    """
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query(_ACTION)
    def answer(message: Any, context: Any) -> Any:
        try:
            reply = (site if isinstance(site, Site) else site(context)).answer(_payload(message))
        except Exception:  # Flower would send its text to the server
            _log.exception("the site could not answer")
            reply = b""
        return Message(_content(reply), reply_to=message)

    return app


class FlowerExchange:
    """Sends a request to every node that is connected to a SuperLink and yields the answers as they arrive.

    Nodes that connect while it waits are asked too, and those that do not answer are asked again: a site that was
    started anew, under another node id, takes part. It stops when ``patience`` ends or nobody reads on.

    Args:
        grid: the ``Grid`` that Flower hands to a ``ServerApp``.
        patience: seconds to wait for answers to one request.
        retry: seconds after which a node that has not answered is asked again.
        pause: seconds between two looks for answers.
    """

    @checked
    def __init__(self, grid: Any, *, patience: float = 600.0, retry: float = 60.0, pause: float = 1.0) -> None:
        for method in ("get_node_ids", "push_messages", "pull_messages"):
            if not callable(getattr(grid, method, None)):
                raise InvalidArgument("grid", "the Grid of a ServerApp", type(grid).__name__)
        self._grid = grid
        self._patience = check_number("patience", patience, low=0.0, high=1e9)
        self._retry = check_number("retry", retry, low=0.0, low_open=True, high=1e9)
        self._pause = check_number("pause", pause, low=0.0, high=1e9)

    def __repr__(self) -> str:
        return f"<FlowerExchange: patience {self._patience:g} s>"

    def __call__(self, request: bytes) -> Iterator[tuple[str, bytes]]:
        """Yields (node, answer). A node for which Flower reports an error is asked again."""
        from flwr.app import Message

        end = time.monotonic() + self._patience
        asked: dict[int, float] = {}  # node: when
        waiting: set[str] = set()
        done: set[int] = set()
        while (now := time.monotonic()) < end:
            new = [
                node
                for node in self._grid.get_node_ids()
                if node not in done and now >= asked.get(node, -self._retry) + self._retry
            ]
            ttl = max(1.0, end - now)
            messages = [Message(_content(request), node, f"query.{_ACTION}", ttl=ttl) for node in new]
            asked |= dict.fromkeys(new, now)
            waiting |= {name for name in self._grid.push_messages(messages) if name} if messages else set()
            for reply in self._grid.pull_messages(list(waiting)) if waiting else ():
                waiting.discard(reply.metadata.reply_to_message_id)
                node = reply.metadata.src_node_id
                if reply.has_content() and node not in done:  # a node that was asked twice answers twice
                    done.add(node)
                    yield f"node {node}", _payload(reply)
            time.sleep(self._pause)


def _content(message: bytes) -> Any:
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_RECORD: ConfigRecord({_FIELD: message})})


def _payload(message: Any) -> bytes:
    """The bytes of a message of Flower; empty where it has none."""
    content: Any = message.content if message.has_content() else {}
    value = content[_RECORD].get(_FIELD, b"") if hasattr(content.get(_RECORD), "get") else b""
    return value if isinstance(value, bytes) else b""
