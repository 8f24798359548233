"""``darrm student``."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from ..errors import InvalidArgument, check_integer, check_number
from .files import check_ending, read_tensor, whole
from .networks import build_network, check_outputs
from .parser import Command
from .showing import print_json

__all__ = ["COMMAND"]


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--inputs", required=True, metavar="FILE", help=".npy, .npz or .pt, (N, ...)")
    parser.add_argument("--labels", required=True, metavar="FILE", help=".npy, .npz or .pt, (N,), as of `darrm label`")
    parser.add_argument("--build", required=True, metavar="MODULE:FUNCTION", help="makes the untrained student")
    parser.add_argument("--out", required=True, metavar="FILE", help=".pt for its weights")
    parser.add_argument("--classes", type=int, default=2, metavar="C", help="how many")
    parser.add_argument("--epochs", type=int, default=20, metavar="N", help="passes over the labels")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="of a step")
    parser.add_argument("--learning-rate", type=float, default=1e-3, metavar="L", help="of Adam")
    parser.add_argument("--test-inputs", metavar="FILE", help="held-out inputs")
    parser.add_argument("--test-labels", metavar="FILE", help="and their labels")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _run(chosen: Any) -> int:
    import logging

    import lightning as L
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from ..lightning import StudentModule

    def dataset(inputs: str, labels: str, which: str) -> TensorDataset:
        x, y = read_tensor(f"--{which}inputs", inputs), read_tensor(f"--{which}labels", labels)
        if y.dim() != 1 or len(x) != len(y) or not len(y) or y.is_floating_point():
            raise InvalidArgument(f"--{which}labels", f"integers, one for each of {len(x)} inputs", tuple(y.shape))
        if y.max() >= chosen.classes:
            raise InvalidArgument(f"--{which}labels", f"below --classes {chosen.classes}", int(y.max()))
        return TensorDataset(x.float(), y.long())

    check_ending("--out", chosen.out, ".pt")
    size = check_integer("--batch-size", chosen.batch_size, low=1)
    check_number("--learning-rate", chosen.learning_rate, low=0.0, low_open=True, high=1000.0)
    epochs = check_integer("--epochs", chosen.epochs, low=1)
    train = dataset(chosen.inputs, chosen.labels, "")
    if (chosen.test_inputs is None) != (chosen.test_labels is None):
        raise InvalidArgument("--test-inputs", "given together with --test-labels", "only one of them")
    test = None if chosen.test_inputs is None else dataset(chosen.test_inputs, chosen.test_labels, "test-")
    network = build_network("--build", chosen.build)
    for part in (train, test):
        if part is not None:
            check_outputs(network, part.tensors[0][:1], chosen.classes)
    student = StudentModule(network, classes=chosen.classes, learning_rate=chosen.learning_rate)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings(), whole("--out", chosen.out) as beside:
        warnings.filterwarnings("ignore", message=".*does not have many workers")
        warnings.filterwarnings("ignore", message="You defined a `validation_step`")
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        trainer = L.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=sys.stderr.isatty() and not chosen.json,
        )
        accuracy = None
        try:
            trainer.fit(student, DataLoader(train, batch_size=size, shuffle=True))
            if not all(weight.isfinite().all() for weight in student.backbone.parameters()):
                rate = chosen.learning_rate
                raise InvalidArgument("--learning-rate", "small enough for weights that stay finite", rate)
            if test is not None:
                (scores,) = trainer.test(student, DataLoader(test, batch_size=size), verbose=False)
                accuracy = float(scores["test_accuracy"])
        except SystemExit:  # what Lightning makes of Ctrl-C
            raise KeyboardInterrupt from None
        torch.save(student.backbone.state_dict(), beside)
    if chosen.json:
        print_json({"weights": chosen.out, "labels": len(train), "epochs": epochs, "test_accuracy": accuracy})
    else:
        print(f"Trained on {len(train)} labels for {epochs} epochs; weights in {chosen.out}.")
        if accuracy is not None:
            print(f"Accuracy on {len(test or ())} held-out inputs: {accuracy:.3f}")
    return 0


COMMAND = Command(
    summary="Train a student on labels; costs no privacy.",
    example="darrm student --inputs x.npy --labels y.npy --build nets:build --out s.pt",
    add_arguments=_add_arguments,
    run=_run,
)
