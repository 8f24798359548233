"""SuperNodes that are forked from one process and run their ClientApp themselves: dozens of sites fit on one machine.

`flower-supernode` starts a process for each message to a site, which takes seconds of a core. Everything else here is
Flower's. For each line ``number port`` of its input, this program starts a site and prints the site's process id.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

from tests.federated.process_apps import FOLDER, client


def main() -> None:
    """Start sites until the input ends."""
    importlib.import_module("flwr.supernode.main")  # before the fork, so that the sites share it
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supernode import start_client_internal as node
    from flwr.supernode.cli import flower_supernode

    assert "torch" not in sys.modules
    app, push = client(), node._push_messages
    context: Any = SimpleNamespace(node_config={})

    def answer_and_push(state: Any, object_store: Any, **how: Any) -> None:
        for message in state.get_messages_legacy(is_reply=False):
            name = message.metadata.message_id
            tree = object_store.get_object_tree(name)
            parts = {part.object_id: object_store.get(part.object_id) for part in iterate_object_tree(tree)}
            whole: Any = inflate_object_from_contents(name, parts)
            whole.metadata.__dict__["_message_id"] = name
            node._insert_message(app(whole, context), state, object_store)
        push(state=state, object_store=object_store, **how)

    node._push_messages = answer_and_push
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        number, port = line.split()
        process = os.fork()
        if process:
            print(process, flush=True)
            continue
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(f"{os.environ[FOLDER]}/site-{number}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        context.node_config["site"] = number
        sys.argv = [sys.argv[0], *sys.argv[1:], "--port", port]
        flower_supernode()
        os._exit(0)


if __name__ == "__main__":
    main()
