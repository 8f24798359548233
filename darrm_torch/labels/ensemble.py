"""The ensemble: K teachers in, private labels out, each charged to a ledger before it is returned."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..arguments import checked
from ..arrays import BoolArray
from ..errors import InvalidArgument, UnprovenPrivacy, check_integer, check_number
from ..mechanisms.base import Mechanism
from ..mechanisms.darrm import DaRRM
from ..noise.function import NoiseFunction
from ..privacy.allocation import RandomAllocation
from ..privacy.guarantees import PrivacyGuarantee
from ..privacy.profiles import PrivacyProfile
from ..privacy.totals import TotalPrivacy
from ..privacy.units import Neighbours
from ..reprs import cut
from ..teachers.allocations import check_constants, check_slices, settled_allocation
from ..teachers.checkpoints import unwrap_module, weights_digest
from ..teachers.findings import Finding
from ..teachers.independence import check_different, check_weights
from ..teachers.reading import read_teachers
from ..teachers.structures import Structure, device_of, rows_of, size_of
from .identity import checked_inputs, input_keys
from .kept import check_strength, mechanism_for
from .labeler import PrivateLabeler
from .ledger import PrivacyLedger
from .questions import checked_findings, class_numbers, label_shape
from .voting import VotingTeachers, equal_weights

__all__ = ["PrivateMajorityEnsemble"]


class PrivateMajorityEnsemble(nn.Module):
    """K teachers vote on each input; a mechanism turns the votes into one private label; a ledger charges for it.

    Formal guarantee: see :meth:`total_privacy` and :meth:`privacy_report`. It covers the labels that calling the
    ensemble returns, and nothing else. Votes are sensitive; only :meth:`sensitive_votes` and
    :meth:`sensitive_counts` return them.

    The ensemble works on frozen copies of the teachers, without what Opacus or DDP put around them. They are always in
    eval mode, and they vote in the precision of their own weights, whatever autocast says: one after another or, where
    that is quicker, in one pass (many small teachers of one architecture, small batches). Sums are rounded differently
    in one pass and in batches of other sizes. Where that could decide a vote, because a teacher's two best logits are
    nearly equal, the teacher votes on that input alone; of equal logits the first wins. So no vote depends on the rest
    of its batch. An input that was labelled before gets the same label again, free of charge.

    Args:
        models: K classifiers ``(B, ...) -> (B, outputs)`` logits; one output means a sigmoid and two classes. Inputs
            are tensors, or tuples or mappings of tensors, such as tokenizers return: mappings are passed by keyword.
            Outputs are logits, an object or a mapping with ``logits``, or a tuple whose first element is one of these.
        mechanism: turns vote counts into labels, for example ``DaRRM(noise)``.
        profiles: the privacy profile of each teacher; ``None``: the teachers promise nothing, and only the
            mechanism's own randomness protects.
        overlap: r, the largest number of teachers whose training data can contain one record; ``None``: that of the
            allocation, or else all K.
        allocation: how records were allocated to the shards, if at random and in secret: all labels then cost much
            less. ``None``: what files of :func:`~darrm_torch.train_teachers` record, unless ``overlap`` differs.
        neighbours: the neighbouring data sets for which ``overlap`` holds, see :func:`~darrm_torch.total_privacy`.
        classes: which logits compete, in the order of the labels: ``(5, 8)`` makes label 1 class 8; a number C: the
            first C. ``None``: all.
        findings: F names, such as ``["edema", "effusion"]``, of what is in an input (1) or not (0). Labels are then
            ``(B, F)``, see :class:`PrivateLabeler`, and outputs one logit for each, ``(B, F)``, or two, ``(B, F, 2)``
            or ``(B, 2 F)``, in the order of the names.
        ledger: where labels and charges are kept; ``None``: in memory, for the life of this object, with a warning. A
            mechanism that differs from the ledger's by rounding only (solved on another machine) is replaced by that.
        delta: the delta of the total guarantee; ``None``: that of the ledger's budget, else of the mechanism's label
            target, else 1e-5.
        logits: a function from what a teacher returns to its logits, if they are elsewhere.

    Raises:
        InvalidArgument: no models, not one profile for each model, overlap > K, classes that cannot compete, or a
            mechanism built for another number of teachers or classes or for a smaller overlap.
        UnprovenPrivacy: the weights of a teacher are not those that its profile was read with.
        LedgerError: the ledger belongs to other teachers, other promises, another mechanism or other rules.

    >>> from darrm_torch import DaRRM, PrivacyLedger, self_bounding_noise
    >>> teacher = PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=0.1))
    >>> mechanism = DaRRM(self_bounding_noise(teachers=3, allowance=1))
    >>> ensemble = PrivateMajorityEnsemble(
    ...     [nn.Linear(4, 2) for _ in range(3)], mechanism, profiles=[teacher] * 3, ledger=PrivacyLedger()
    ... )
    >>> ensemble(torch.rand(5, 4)).shape
    torch.Size([5])
    >>> print(ensemble.total_privacy(labels=1).guarantee)
    (0.099981, 1e-05)-DP
    """

    @checked
    def __init__(
        self,
        models: Iterable[nn.Module],
        mechanism: Mechanism,
        *,
        profiles: Sequence[PrivacyProfile] | None = None,
        overlap: int | None = None,
        allocation: RandomAllocation | None = None,
        neighbours: Neighbours = "add/remove",
        classes: Sequence[int] | int | None = None,
        findings: Sequence[str] | None = None,
        ledger: PrivacyLedger | None = None,
        delta: float | None = None,
        logits: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        models = list(models)
        check_integer("the number of models", len(models), low=1)
        for model in models:
            unwrap_module(model, "models")
        check_different(models)
        if profiles is not None and [type(profile) for profile in profiles] == [PrivacyProfile] * len(models):
            check_weights(models, profiles)
        self.classes, self.findings = class_numbers(classes), checked_findings(findings, classes)
        self._teachers = VotingTeachers(models, self.findings, classes=self.classes, mechanism=mechanism, logits=logits)
        super().train(False)
        labeler = PrivateLabeler(
            mechanism,
            teachers=[f"{number} {weights_digest(teacher)}" for number, teacher in enumerate(self._teachers)],
            profiles=profiles,
            overlap=overlap,
            allocation=allocation,
            neighbours=neighbours,
            classes=None if self.classes is None else len(self.classes),
            findings=self.findings,
            ledger=ledger,
            delta=delta,
            rules={"classes": self.classes},
            assumptions=(),
        )
        self.mechanism, self.profiles, self.overlap = labeler.mechanism, labeler.profiles, labeler.overlap
        self.allocation, self.neighbours = labeler.allocation, labeler.neighbours
        self.delta, self.ledger, self._labeler = labeler.delta, labeler.ledger, labeler

    def __repr__(self) -> str:
        networks = f"{len(self.profiles)} x {type(self._teachers[0]).__name__}"
        return (
            f"<PrivateMajorityEnsemble of {networks}: {cut(self.mechanism)}, overlap {self.overlap}, {self.ledger!r}>"
        )

    @classmethod
    @checked
    def from_opacus(
        cls,
        models: Iterable[nn.Module],
        engines: Iterable[Any],
        *,
        delta: float,
        allowance: float | None = None,
        target: PrivacyGuarantee | None = None,
        overlap: int | None = None,
        allocation: RandomAllocation | None = None,
        neighbours: Neighbours = "add/remove",
        unit: str = "record",
        records_per_unit: int = 1,
        noise: Literal["one-label", "self-bounding"] = "one-label",
        teacher_promise: Literal["profile", "point"] = "profile",
        mechanism: str | Mechanism | None = None,
        classes: Sequence[int] | int | None = None,
        findings: Sequence[str] | None = None,
        ledger: PrivacyLedger | None = None,
        data_loaders: Iterable[Any] | None = None,
        optimizers: Iterable[Any] | None = None,
        initial: Any = None,
        accept: Collection[Finding] = (),
        logits: Callable[[Any], Any] | None = None,
        on_progress: Callable[[float], None] = lambda excess: None,
    ) -> PrivateMajorityEnsemble:
        """Build an ensemble of teachers that were trained with Opacus, with the best certified noise for them.

        Args:
            models: K trained teachers, in whatever wrapping Opacus left them.
            engines: one source for each teacher that :func:`~darrm_torch.read_privacy` can read: its
                ``PrivacyEngine``, its accountant, or a file or history of it.
            delta: the Delta at which the accountants report their epsilon. The total is stated at the delta of the
                ledger's budget, if there is one, else at that of one label.
            allowance: m; one label is (m epsilon, m Delta)-DP, where epsilon is the largest of the teachers'.
            target: the guarantee of one label, instead of ``allowance``.
            overlap, allocation, neighbours: see the class. Engines of Opacus say nothing about an allocation, and their
                loaders take sample rate and steps from the shard; ``accept=["constants"]`` if they were declared.
            unit, records_per_unit: what to protect, such as "patient", and how many records it has at most in the data
                of one teacher. ``overlap`` then says how many teachers have records of one unit.
            noise: ``"one-label"``: the optimum for one label of two classes. ``"self-bounding"``: noise whose costs
                add up over many labels; it needs ``allowance``. With more than two ``classes`` it is
                :class:`~darrm_torch.SelfBoundingPlurality`.
            teacher_promise: ``"profile"`` uses the whole privacy profile of the teachers; ``"point"`` uses only
                (epsilon, Delta), as the paper does.
            mechanism: instead of ``noise`` and ``teacher_promise``, a mechanism, or a kind of
                :func:`~darrm_torch.strongest_mechanism`, as strong as ``allowance`` or ``target`` allows.
            classes, findings, ledger: see the class.
            data_loaders: the loader that trained each teacher, to check that it drew Poisson samples.
            optimizers: the optimizer that trained each teacher. Only it shows that the engine counted its steps.
            initial: the weights that all teachers started from, such as those of a pretrained network, see
                :func:`~darrm_torch.read_teachers`.
            accept: findings to accept, by name, see :func:`~darrm_torch.read_privacy`.
            logits: see the class.
            on_progress: called during the search for noise, see :func:`~darrm_torch.optimize_noise`.

        Raises:
            InvalidArgument: neither or both of ``allowance`` and ``target``, not one engine for each model, or more
                than two classes with noise for one label.
            UnprovenPrivacy: an accountant that does not prove a guarantee; the message says why and what to do.
        """
        models, engines = list(models), list(engines)
        for model in models:
            unwrap_module(model, "models")
        data_loaders, optimizers = (None if part is None else list(part) for part in (data_loaders, optimizers))
        if len(engines) != len(models):
            raise InvalidArgument("engines", f"one for each of the {len(models)} models", f"{len(engines)} of them")
        check_number("delta", delta, low=0, high=1, low_open=True, high_open=True)
        competing = class_numbers(classes)
        check_strength(mechanism, allowance, target, noise=noise, competing=competing)
        readings = read_teachers(
            engines,
            modules=models,
            data_loaders=data_loaders,
            optimizers=optimizers,
            overlap=overlap,
            initial=initial,
            unit=unit,
            records_per_unit=records_per_unit,
            delta=delta,
            accept=accept,
        )
        check_constants(allocation, readings, optimizers=optimizers, accept=accept)
        allocation, overlap = settled_allocation(readings, allocation, overlap, neighbours)
        if neighbours == "add/remove":
            check_slices(data_loaders, overlap=overlap or len(readings), accept=accept)
        if not isinstance(mechanism, Mechanism):
            profiles = readings if neighbours == "add/remove" else tuple(one.for_replacement() for one in readings)
            mechanism = mechanism_for(
                profiles,
                mechanism,
                classes=2 if competing is None else len(competing),
                delta=delta,
                allowance=allowance,
                target=target,
                overlap=overlap,
                noise=noise,
                teacher_promise=teacher_promise,
                on_progress=on_progress,
            )
        label_delta = None
        if ledger is None or ledger.budget is None:
            label_delta = (allowance or 1) * delta if target is None else target.delta
            if allowance is not None and label_delta >= 1:
                raise InvalidArgument(
                    "allowance", f"below {1 / delta:g}, for a label whose delta is below 1", allowance
                )
        return cls(
            models,
            mechanism,
            profiles=readings,
            overlap=overlap,
            allocation=allocation,
            neighbours=neighbours,
            classes=classes,
            findings=findings,
            ledger=ledger,
            delta=label_delta,
            logits=logits,
        )

    @checked
    def spending_from(self, ledger: PrivacyLedger) -> PrivateMajorityEnsemble:
        """The same ensemble with another ledger; both have the same teachers in memory.

        Raises:
            LedgerError: the ledger belongs to another ensemble.
        """
        labeler, same = self._labeler.spending_from(ledger), copy.copy(self)
        vars(same).update(_labeler=labeler, ledger=labeler.ledger, mechanism=labeler.mechanism)
        return same

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and name in vars(self):
            cure = "The price of a label depends on it. Build another ensemble, with a ledger of its own."
            raise InvalidArgument(name, "as it was when the ensemble was built", value, cure)
        super().__setattr__(name, value)

    @property
    def noise(self) -> NoiseFunction:
        """The noise function. Raises InvalidArgument for a mechanism without one: only DaRRM has one."""
        if not isinstance(self.mechanism, DaRRM):
            raise InvalidArgument("mechanism", "a DaRRM, which has a noise function", self.mechanism)
        return self.mechanism.noise

    @property
    def identity(self) -> dict[str, str]:
        """The teachers, mechanism, promises and rules that the ledger is bound to."""
        return dict(self._labeler.identity)

    def train(self, mode: bool = True) -> PrivateMajorityEnsemble:
        """Keep the teachers in eval mode: with dropout a vote would be random."""
        return self

    def sensitive_votes(self, inputs: Structure) -> Tensor:
        """Each teacher's vote ``(K, B)`` int64, ``(K, B, F)`` on findings. No guarantee covers what this returns.

        A tie between logits goes to the lower class; a teacher whose logits are NaN, or that raises, votes for the
        first class.

        Raises:
            InvalidArgument: inputs that the teachers do not take, or outputs that are not ``(B, outputs)``, differ
                between teachers or lack a class. Constants stand in for the weights when this is checked.
        """
        inputs, everyone = checked_inputs(inputs), range(len(self._teachers))
        self._teachers.check(inputs, everyone)
        return self._teachers.votes(inputs, everyone)

    @checked
    def sensitive_counts(
        self, inputs: Structure, *, teachers: Sequence[int] | None = None, juries: BoolArray | None = None
    ) -> Tensor:
        """Votes per class ``(B, C)`` or ``(B, F, 2)`` int64; sensitive, and with the errors of :meth:`sensitive_votes`.

        For :class:`~darrm_torch.MeanProbabilities` they are shares of votes. A teacher with an output that is not
        finite, or that raises, then counts as the uniform row.

        Args:
            inputs: B inputs.
            teachers: the numbers of the teachers that vote; ``None``: all.
            juries: ``(B, K)`` or ``(B, F, K)``, which teachers vote on which question; ``None``: all of them.
        """
        inputs, most = checked_inputs(inputs), len(self._teachers) - 1
        numbers = range(most + 1) if teachers is None else teachers
        numbers = [check_integer("teachers", number, low=0, high=most) for number in numbers]
        if not numbers:
            raise InvalidArgument("teachers", "the numbers of one or more", teachers)
        classes = self._teachers.check(inputs, numbers)
        if juries is not None:
            shape = (*label_shape(size_of(inputs), self.findings), most + 1)
            if not isinstance(juries, np.ndarray) or juries.dtype.kind != "b" or juries.shape != shape:
                raise InvalidArgument("juries", f"booleans of shape {shape}", type(juries).__name__)
            numbers = [number for number in numbers if juries[..., number].any()]
            juries = juries[..., numbers]
        return self._teachers.counts(inputs, numbers, classes=classes, juries=juries)

    @property
    def sensitive_events(self) -> tuple[str, ...]:
        """The last 1,000 times that a teacher raised or returned NaN; for the owner of the teachers only."""
        return tuple(self._teachers.events)

    # The compiler would rewrite the exact draws. This is torch.compiler.disable without importing the compiler now.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def forward(self, inputs: Structure, *, keys: Sequence[bytes] | None = None, guesses: Any = None) -> Tensor:
        """Private labels ``(B,)`` int64 on the device of ``inputs``; charged and stored before they are returned.

        Labels ``(B, F)`` with findings; soft labels ``(B, C)`` float32 with :class:`~darrm_torch.MeanProbabilities`.
        Nothing that this raises depends on the teachers' weights.

        Args:
            inputs: B inputs: a tensor ``(B, ...)``, or a tuple, a list or a mapping of such structures.
            keys: what identifies each input, such as its identifier in a database as bytes; of inputs with equal keys
                only the first is ever voted on. ``None``: shapes and values, real numbers as float32, integers as
                integers, without padding that an ``attention_mask`` names, see
                ``darrm_torch.labels.identity.input_digests``.
            guesses: a student's class probabilities ``(B, C)``, for :class:`InteractiveGNMax`.

        Raises:
            InvalidArgument: inputs that are not finite, that the teachers do not take, or whose outputs cannot vote;
                nothing was charged.
            BudgetExceeded: the batch would cost more than the ledger's budget; no teacher voted, nothing was charged.
        """
        inputs = checked_inputs(inputs)
        keys = input_keys(inputs, keys)

        def counts(rows: Sequence[int], juries: BoolArray | None) -> Tensor:
            return self.sensitive_counts(inputs if len(rows) == len(keys) else rows_of(inputs, rows), juries=juries)

        return torch.from_numpy(self._labeler.answer(keys, counts, guesses=guesses)).to(device_of(inputs))

    @checked
    def check_budget(self, batches: Iterable[Structure] = (), *, keys: Sequence[bytes] | None = None) -> None:
        """Check that labels for all these inputs fit in the ledger's budget. Draws and charges nothing.

        Args:
            batches: the inputs, in batches.
            keys: their keys, as for calls, instead of the inputs.

        Raises:
            InvalidArgument: inputs that are not finite.
            BudgetExceeded: the new labels would not fit.
        """
        if keys is None:
            keys = [key for inputs in batches for key in input_keys(inputs, None)]
        self._labeler.check_budget(keys)

    @checked
    def total_privacy(self, *, labels: int, delta: float | None = None) -> TotalPrivacy:
        """The cost of ``labels`` labels together, F for each input with findings, at ``delta`` (of the ensemble)."""
        return self._labeler.total_privacy(labels=labels, delta=delta)

    @checked
    def privacy_report(self, *, as_dict: bool = False, markdown: bool = False) -> Any:
        """What was released and what it costs, see :meth:`PrivateLabeler.privacy_report`."""
        return self._labeler.privacy_report(as_dict=as_dict, markdown=markdown)

    def get_extra_state(self) -> dict[str, str]:
        """The teachers, mechanism, promises and rules that a ``state_dict`` belongs to."""
        return self.identity

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # Torch reports a missing extra state only after it has loaded the weights, and not at all if not strict.
        if any(name.startswith(prefix) for name in state_dict):
            self.set_extra_state(state_dict.get(prefix + "_extra_state", {}))
            teachers = self._teachers.state_dict(prefix=prefix + "_teachers.")
            for name in teachers.keys() & state_dict.keys():
                if not equal_weights(teachers[name], state_dict[name]):
                    raise UnprovenPrivacy(f"{name} of this state_dict is not the weight of the teacher. {_OTHERS}")
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @checked
    def set_extra_state(self, state: dict[str, str]) -> None:
        """Refuse weights that do not belong to the profiles, the noise and the ledger of this ensemble."""
        different = [name for name, value in self.identity.items() if state.get(name) != value]
        if different:
            raise UnprovenPrivacy(
                f"this state_dict belongs to another ensemble (different {', '.join(different)}). {_OTHERS}"
            )


_FIXED = {"mechanism", "profiles", "overlap", "allocation", "neighbours", "classes", "findings", "delta", "ledger"}

_OTHERS = (
    "Labels of other teachers do not have this ensemble's guarantee. Build an ensemble from those teachers and their "
    "own accountants"
)
