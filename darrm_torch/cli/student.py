"""``darrm student``."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from ..errors import InvalidArgument, check_integer, check_number
from .files import ARRAYS, check_ending, read_inputs, read_tensor, whole
from .networks import build_network, check_outputs
from .parser import Command
from .showing import print_json

__all__ = ["COMMAND"]


def _add_arguments(parser: Any) -> None:
    parser.add_argument(
        "--inputs", required=True, metavar="FILE", help=f"{ARRAYS}, (N, ...), or several arrays by name"
    )
    parser.add_argument("--tokenizer", metavar="FOLDER", help="inputs have one text in each line, for this tokenizer")
    parser.add_argument(
        "--labels", required=True, metavar="FILE", help="what `darrm label --out` wrote: (N,), or soft (N, C)"
    )
    parser.add_argument("--build", required=True, metavar="MODULE:FUNCTION", help="returns the untrained student")
    parser.add_argument("--out", required=True, metavar="FILE", help="write its weights to this .pt file")
    parser.add_argument("--classes", type=int, metavar="C", help="number of classes (default: the student's outputs)")
    parser.add_argument("--epochs", type=int, default=20, metavar="N", help="passes over the labels (default: 20)")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="labels per step (default: 32)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, metavar="L", help="of Adam (default: 0.001)")
    parser.add_argument("--test-inputs", metavar="FILE", help="held-out inputs")
    parser.add_argument("--test-labels", metavar="FILE", help="labels of the held-out inputs")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _inputs(name: str, path: str, tokenizer: str | None) -> Any:
    """The inputs in a file, as a student takes them."""
    from torch import Tensor

    from ..labels.identity import checked_inputs

    inputs = read_inputs(name, path, tokenizer)
    try:  # a single array may hold integers that are pixels
        return checked_inputs(inputs.float() if isinstance(inputs, Tensor) else inputs)
    except InvalidArgument as error:
        raise InvalidArgument(name, error.expected, error.got, error.cure) from None


def _labelled(name: str, path: str, inputs: Any, *, classes: int, least: int) -> Any:
    """The data set of the inputs and of their labels in a file, which are integers from ``least``, or soft."""
    from torch.utils.data import StackDataset

    from ..teachers.structures import Rows, size_of

    count = size_of(inputs)
    labels = read_tensor(name, path, column="label")
    if labels.dim() == 2 and labels.is_floating_point() and 0 < len(labels) == count:  # soft labels
        sums = labels.double().sum(dim=1)
        if labels.shape[1] != classes or not bool(((labels >= 0).all(dim=1) & ((sums - 1).abs() < 1e-3)).all()):
            expected = f"integers, one for each of {count} inputs, or rows of {classes} probabilities"
            raise InvalidArgument(name, expected, f"others of shape {tuple(labels.shape)}")
        labels = labels.float()
    else:
        if labels.dim() != 1 or count != len(labels) or not len(labels) or labels.is_floating_point():
            got = f"{labels.dtype} of shape {tuple(labels.shape)}"
            raise InvalidArgument(name, f"integers, one for each of {count} inputs", got)
        labels = labels.long()
        first, last = int(labels.min()), int(labels.max())
        if first < least or last >= classes:
            cure = "-1 stands for an input without a label." if least < 0 else ""
            expected = f"from {least} to {classes - 1}, for the {classes} outputs of the student"
            raise InvalidArgument(name, expected, f"{first} to {last}", cure)
        if last < 0:
            raise InvalidArgument(name, "one label or more", "-1 (no label) everywhere")
    return StackDataset(Rows(inputs), labels)


def _run(options: Any) -> int:
    from ..teachers.structures import rows_of, tensors_of

    check_ending("--out", options.out, ".pt")
    size = check_integer("--batch-size", options.batch_size, low=1, high=2**31)
    check_number("--learning-rate", options.learning_rate, low=0.0, low_open=True, high=1000.0)
    if options.classes is not None:
        check_integer("--classes", options.classes, low=2, high=2**20)
    epochs = check_integer("--epochs", options.epochs, low=1, high=10**6)
    if (options.test_inputs is None) != (options.test_labels is None):
        raise InvalidArgument("--test-inputs", "given together with --test-labels", "only one of them")
    inputs, test = _inputs("--inputs", options.inputs, options.tokenizer), None
    network = build_network("--build", options.build)
    classes = check_outputs(network, rows_of(inputs, [0]), options.classes)
    train = _labelled("--labels", options.labels, inputs, classes=classes, least=-1)
    if options.test_inputs is not None:
        unseen = _inputs("--test-inputs", options.test_inputs, options.tokenizer)
        check_outputs(network, rows_of(unseen, [0]), classes)
        test = _labelled("--test-labels", options.test_labels, unseen, classes=classes, least=0)
    labels = train.datasets[1]
    taught = int((labels.reshape(len(labels), -1)[:, 0] >= 0).sum())
    import logging  # after all checks: Lightning takes seconds to import

    import lightning as L
    import torch
    from torch.utils.data import DataLoader

    from ..lightning import StudentModule

    student = StudentModule(network, classes=classes, learning_rate=options.learning_rate)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings(), whole("--out", options.out) as beside:
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
            enable_progress_bar=sys.stderr.isatty() and not options.json,
        )
        accuracy = None
        trainer.fit(student, DataLoader(train, batch_size=size, shuffle=True))
        if not all(weight.isfinite().all() for weight in student.backbone.parameters()):
            expected = "so small that the student's weights stay finite"
            largest = max(float(part.abs().max()) for _, part in tensors_of(inputs))
            cure = f"Or scale --inputs, which reach {largest:.3g}."
            raise InvalidArgument("--learning-rate", expected, options.learning_rate, cure)
        if test is not None:
            (scores,) = trainer.test(student, DataLoader(test, batch_size=size), verbose=False)
            accuracy = float(scores["test_accuracy"])
        torch.save(student.backbone.state_dict(), beside)
    if options.json:
        print_json({"weights": options.out, "labels": taught, "epochs": epochs, "test_accuracy": accuracy})
    else:
        print(f"Trained on {taught} labels for {epochs} epochs; weights in {options.out}.")
        if accuracy is not None:
            print(f"Accuracy on {len(test or ())} held-out inputs: {accuracy:.3f}")
    return 0


COMMAND = Command(
    summary="Train a student on labels or soft labels; this costs no privacy.",
    example="darrm student --inputs x.npy --labels y.npy --build nets:build --out s.pt",
    add_arguments=_add_arguments,
    run=_run,
)
