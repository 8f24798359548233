"""The student: any backbone, trained on private labels by the ordinary Lightning loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from ..arguments import checked, is_dense
from ..errors import InvalidArgument, check_integer, check_number
from ..labels.identity import check_finite_inputs
from ..labels.questions import checked_findings, logits_by_finding
from ..mechanisms.base import Mechanism
from ..noise.plurality_priors import PluralityVotes
from ..noise.priors import Prior
from ..planning.expectation import label_chances
from ..teachers.checkpoints import unwrap_module
from ..teachers.structures import Structure, call, form_of, logits_of, size_of
from .consistency import Consistency

__all__ = ["StudentModule", "label_transition"]


class StudentModule(L.LightningModule):
    """A classifier that is trained on private labels, and on inputs without any.

    It costs no privacy: training on released labels is post-processing. The module holds no teacher, so neither do its
    checkpoints and hyper-parameters. Labels of -1 (the mechanism declined to answer) are ignored. Soft labels, rows of
    probabilities ``(B, classes)``, are learned by cross-entropy with probabilities; accuracies compare with their
    largest entry.

    * supervised: the default, cross-entropy;
    * noise-aware: give ``transition``, how the mechanism errs (see :func:`label_transition`);
    * semi-supervised: give ``consistency``, :class:`VirtualAdversarialTraining` or :class:`FixMatch`, and let the data
      module serve unlabelled batches too (``unlabelled_batch_size``);
    * both. Noisy labels pull an undecided student less than exact ones, by a factor that is the smallest singular value
      of ``transition`` (2 k - 1 if a share k of the labels of two classes is right). The loss on unlabelled inputs is
      multiplied by this factor; otherwise it would overrule the labels. This may not be enough: see ``balance_weight``
      of :class:`VirtualAdversarialTraining`.

    Args:
        backbone: maps inputs to logits ``(B, classes)``; of any structure, as for
            :class:`~darrm_torch.PrivateMajorityEnsemble`.
        classes: C >= 2.
        findings: the names of F findings, as of the ensemble. Outputs are then ``(B, F)``, ``(B, F, 2)`` or
            ``(B, 2 F)``, labels ``(B, F)``, and the loss is the mean of F binary cross-entropies. Each finding's
            accuracy is logged under its name, such as ``test_accuracy/edema``. Not with ``consistency``.
        transition: ``(C, C)``; row y is the distribution of the given label if y is right. The loss is then the
            negative log-likelihood of the given label (forward correction, Patrini et al. 2017); its minimum is the
            distribution of the right label. It must be computed from public numbers.
        consistency: the loss on unlabelled inputs.
        learning_rate: of Adam; override ``configure_optimizers`` for anything else.
        weight_decay: of Adam, decoupled (AdamW).
        logits: a function from what the backbone returns to its logits, if they are elsewhere.

    Raises:
        InvalidArgument: a number out of range, or a transition that is no such matrix; in training, validation and
            test: inputs that are not finite, a label that is no class, rows that are no probabilities, soft labels with
            a transition, or a backbone with another number of outputs.
    """

    @checked
    def __init__(
        self,
        backbone: nn.Module,
        *,
        classes: int = 2,
        findings: Sequence[str] | None = None,
        transition: Tensor | None = None,
        consistency: Consistency | None = None,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-2,
        logits: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self.classes = check_integer("classes", classes, low=2)
        self.findings = checked_findings(findings, classes if classes != 2 else None)
        unwrap_module(backbone, "backbone")
        self.backbone, self._logits = backbone, logits
        if consistency is not None and not (hasattr(consistency, "loss") and hasattr(consistency, "augment")):
            raise InvalidArgument("consistency", "one like FixMatch() or VirtualAdversarialTraining()", consistency)
        if consistency is not None and self.findings is not None:
            raise InvalidArgument("consistency", "None with findings", consistency)
        self.consistency = consistency
        self.transition: Tensor | None
        self.register_buffer("transition", _checked_transition(transition, classes), persistent=False)
        self._pull = 1.0 if self.transition is None else float(torch.linalg.matrix_norm(self.transition, ord=-2))
        self.learning_rate = check_number("learning_rate", learning_rate, low=0, low_open=True, high_open=True)
        self.weight_decay = check_number("weight_decay", weight_decay, low=0, high_open=True)
        self.val_accuracy = MulticlassAccuracy(classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(classes, average="micro")
        self.val_accuracies, self.test_accuracies = (
            nn.ModuleList(MulticlassAccuracy(2, average="micro") for _ in self.findings or ()) for _ in range(2)
        )

    def forward(self, inputs: Structure) -> Tensor:
        """Logits ``(B, classes)``, or ``(B, F, 2)`` with findings, of the right label."""
        logits = logits_of(call(self.backbone, inputs), self._logits)
        if self.findings is not None:
            return logits_by_finding("outputs of the backbone", logits, (size_of(inputs),), len(self.findings))
        if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] != self.classes:
            cure = "Give classes=..., as many as the backbone has outputs."
            raise InvalidArgument("backbone", f"one with outputs (B, {self.classes})", form_of(logits), cure)
        return logits

    def _checked(self, labels: Tensor, *, least: int) -> Tensor:
        """Labels ``(B,)`` or ``(B, F)`` from ``least`` to C - 1, int64; or soft labels ``(B, C)``."""
        if not isinstance(labels, Tensor) or not is_dense(labels):
            got = f"{labels.dtype}, {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
            raise InvalidArgument("labels", "integers (B,)", got)
        soft = labels.is_floating_point()
        if self.findings is not None:
            if soft or labels.dim() != 2 or labels.shape[1] != len(self.findings):
                expected = f"integers (B, {len(self.findings)}), one for each finding"
                raise InvalidArgument("labels", expected, f"{labels.dtype}, {tuple(labels.shape)}")
        elif labels.dim() != 1 + soft or (soft and labels.shape[1] != self.classes):
            expected = f"integers (B,), or probabilities (B, {self.classes})"
            raise InvalidArgument("labels", expected, f"{labels.dtype}, {tuple(labels.shape)}")
        if soft:
            if not bool(((labels >= 0).all(dim=1) & ((labels.sum(dim=1) - 1).abs() < 1e-3)).all()):
                raise InvalidArgument("labels", "rows of probabilities that sum to 1", "others")
            return labels
        labels = labels.long()
        if labels.numel():
            first, last = torch.stack(torch.aminmax(labels)).tolist()  # one wait for the device
            if first < least or last >= self.classes:
                cure = "Set StudentModule(..., classes=...) to the number of classes; labels count from 0."
                raise InvalidArgument("labels", f"from {least} to {self.classes - 1}", f"{first} to {last}", cure)
        return labels

    def _classes_of(self, labels: Tensor) -> Tensor:
        """The classes ``(B,)`` of labels, or the largest entries of soft labels."""
        labels = self._checked(labels, least=0)
        return labels.argmax(dim=1) if labels.is_floating_point() else labels

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean negative log-likelihood of labels ``(B,)`` or ``(B, F)`` that are not -1, corrected for their noise.

        For soft labels ``(B, C)``: the mean cross-entropy with these probabilities.
        """
        labels = self._checked(labels, least=-1)
        if len(labels) != len(logits):
            raise InvalidArgument("labels", f"one for each of the {len(logits)} inputs", len(labels))
        if self.findings is not None:
            logits, labels = logits.flatten(0, 1), labels.flatten()
        log_law = F.log_softmax(logits, dim=1)
        if labels.is_floating_point():
            if self.transition is not None:
                cure = "Soft labels have no law of wrong labels to correct for."
                raise InvalidArgument("transition", "None with soft labels", "a matrix", cure)
            return -(labels.to(log_law.dtype) * log_law).sum() / max(len(labels), 1)
        if self.transition is not None:
            log_law = torch.logsumexp(log_law[:, :, None] + self.transition.log(), dim=1)
        total = F.nll_loss(log_law, labels, ignore_index=-1, reduction="sum")
        return total / (labels >= 0).sum().clamp_min(1)

    def training_step(self, batch: Any, batch_index: int) -> Tensor:
        """The loss of one batch: (inputs, labels), or {"labelled": (inputs, labels), "unlabelled": inputs}."""
        inputs, labels = _inputs_and_labels(batch)
        if self.consistency is None:
            loss = self.label_loss(self(inputs), labels)
        else:
            if not isinstance(batch, Mapping) or "unlabelled" not in batch:
                expected, got = 'dictionaries with "labelled" and "unlabelled"', type(batch).__name__
                raise InvalidArgument("batches", expected, got, "Give the data module unlabelled_batch_size.")
            loss = self.label_loss(self(self.consistency.augment(inputs)), labels)
            loss = loss + self._pull * self.consistency.loss(self, batch["unlabelled"])
        self.log("train_loss", loss, batch_size=len(labels))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> None:
        """Accuracy on the validation part."""
        self._measure("val_accuracy", batch, self.val_accuracy, self.val_accuracies)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> None:
        """Accuracy on the test part."""
        self._measure("test_accuracy", batch, self.test_accuracy, self.test_accuracies)

    def _measure(self, name: str, batch: tuple[Tensor, Tensor], metric: Metric, by_finding: Iterable[Any]) -> None:
        """Log the accuracy of all labels, and that of each finding's."""
        inputs, labels = _inputs_and_labels(batch)
        logits, classes, size = self(inputs), self._classes_of(labels), len(labels)
        for number, (finding, one) in enumerate(zip(self.findings or (), by_finding, strict=True)):
            one(logits[:, number], classes[:, number])
            self.log(f"{name}/{finding}", one, batch_size=size)
        metric(logits.flatten(0, -2), classes.flatten())
        self.log(name, metric, batch_size=size)

    def configure_optimizers(self) -> Any:
        """AdamW over the student's own parameters."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)


def _inputs_and_labels(batch: Any) -> tuple[Tensor, Tensor]:
    """The labelled part of a batch. One NaN among its inputs would spoil all weights silently."""
    pair = batch.get("labelled") if isinstance(batch, Mapping) else batch
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        expected = 'pairs (inputs, labels), or dictionaries with "labelled" and "unlabelled"'
        raise InvalidArgument("batches", expected, type(batch).__name__)
    inputs, labels = pair
    if isinstance(inputs, Mapping | tuple | list) or (isinstance(inputs, Tensor) and is_dense(inputs)):
        check_finite_inputs(inputs)
    return inputs, labels


def _checked_transition(transition: Any, classes: int) -> Tensor | None:
    if transition is None:
        return None
    if not isinstance(transition, Tensor) or not is_dense(transition) or not transition.is_floating_point():
        raise InvalidArgument("transition", f"a floating-point tensor ({classes}, {classes})", transition)
    matrix = transition.detach().float()
    if matrix.shape != (classes, classes):
        raise InvalidArgument("transition", f"of shape ({classes}, {classes})", tuple(matrix.shape))
    if not bool((matrix >= 0).all()) or not torch.allclose(matrix.sum(dim=1), torch.ones(classes), atol=1e-5):
        raise InvalidArgument("transition", "rows of probabilities that sum to 1", matrix.tolist())
    if torch.linalg.matrix_rank(matrix, atol=1e-6) < classes:
        cure = "Labels with this noise say nothing about some classes."
        raise InvalidArgument("transition", "a matrix that can be inverted", matrix.tolist(), cure)
    return matrix.clone()


@checked
def label_transition(mechanism: Mechanism, *, teachers: int, prior: Prior | PluralityVotes, classes: int = 2) -> Tensor:
    """The distribution of a mechanism's label for each right label, if the votes follow the prior.

    Computed from the mechanism's exact law and the prior, which are public. It reads no vote, so it costs nothing.

    Args:
        mechanism: turns votes into labels; it must treat classes alike, as all mechanisms of this library do.
        teachers: K.
        prior: the law of the votes. A prior for two classes says how many vote *right*: its votes for 1 are those for
            the right class.
        classes: C.

    Returns:
        ``(C, C)`` float64, row y: the law of the label that is given when y is right. Where the mechanism can decline:
        the law of the labels that are given. Exact, but where more than 1000 histograms of the votes are possible: then
        to within a few thousandths, from some 1000 that are drawn with a fixed seed.

    Raises:
        InvalidArgument: a prior for two classes with more of them.

    >>> from darrm_torch import DaRRM, IndependentVotes, subsampling_noise
    >>> one_of_eleven = DaRRM(subsampling_noise(teachers=11, allowance=1), uncertified=True)
    >>> label_transition(one_of_eleven, teachers=11, prior=IndependentVotes(mean=0.75)).round(decimals=6)
    tensor([[0.7500, 0.2500],
            [0.2500, 0.7500]], dtype=torch.float64)
    """
    right, given, _ = label_chances(mechanism, teachers=teachers, classes=classes, prior=prior)
    kept = right / given
    matrix = torch.full((classes, classes), (1 - kept) / (classes - 1), dtype=torch.float64)
    return matrix.fill_diagonal_(kept)
