"""`flower-supernode`, whose ClientApp runs in the SuperNode's own process: dozens of sites fit on one machine.

Flower starts a process for each message to a site, which takes seconds of a core. Everything else here is Flower's.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from tests.federated.process_apps import client


def main() -> None:
    """Run a SuperNode with the options of `flower-supernode`; the last one is the configuration, such as ``site=3``."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supernode import start_client_internal as node
    from flwr.supernode.cli import flower_supernode

    app, push = client(), node._push_messages
    name, _, value = sys.argv[-1].partition("=")
    context: Any = SimpleNamespace(node_config={name: value})

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
    flower_supernode()


if __name__ == "__main__":
    main()
