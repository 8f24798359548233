"""The ensemble: K teachers in, private labels out, each charged to a ledger before it is seen."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import __version__
from ..errors import BudgetExceeded, DarrmError, InvalidArgument, UnprovenPrivacy, check_integer, check_number
from ..mechanisms import DaRRM, Mechanism, SelfBoundingPlurality
from ..noise.function import NoiseFunction, self_bounding_noise
from ..noise.store import fetch_noise
from ..privacy.guarantees import PrivacyGuarantee, drop_implied, format_bound
from ..privacy.profiles import PrivacyProfile
from ..privacy.totals import TotalPrivacy, total_privacy
from ..teachers.checkpoints import unwrap_module, weights_digest
from ..teachers.findings import Finding
from ..teachers.reading import read_teachers
from ..teachers.stacking import LARGEST_BATCH, StackedNetworks
from .ledger import PrivacyLedger

__all__ = ["PrivateMajorityEnsemble"]


class PrivateMajorityEnsemble(nn.Module):
    """K teachers that vote on each input; a mechanism turns the votes into a label; a ledger pays for it.

    Formal guarantee: see :meth:`total_privacy` and :meth:`privacy_report`; it covers the labels that calling the
    ensemble returns, and nothing else. Votes are sensitive and leave only through :meth:`sensitive_counts`.

    The teachers are copied, unwrapped from whatever Opacus or DDP put around them, frozen and always in eval mode, also
    inside a module that is set to train. They vote in their own precision whatever autocast says, one after another or,
    where that is quicker, in one pass: dozens of small teachers of one architecture and small batches. The two ways
    round alike but for the order of sums. The same input asked again gets the label it got before, free of charge.

    Args:
        models: K classifiers ``(B, ...) -> (B, outputs)`` logits; one output means a sigmoid and two classes.
        mechanism: turns vote counts into labels, for example ``DaRRM(noise)``.
        profiles: what each teacher promises, one for each; ``None``: nothing, only the mechanism's
            own randomness protects.
        overlap: r, how many teachers' training sets one record can be in; ``None``: all K.
        classes: which logits compete, in the order of the labels: ``(5, 8)`` makes label 1 class 8; a number C: the
            first C. ``None``: all.
        ledger: where labels and charges are kept; ``None``: in memory, for the life of this object.
        delta: the delta of the total guarantee; ``None``: that of the ledger's budget, else of the mechanism's label
            target, else 1e-5.

    Raises:
        InvalidArgument: no models, profiles that are not one for each, overlap > K, classes that cannot compete, a
            mechanism for another number of teachers or classes.
        UnprovenPrivacy: a teacher whose weights are not those that its profile was read with.
        LedgerError: the ledger was kept for other teachers, other promises, another mechanism or other rules.
    """

    def __init__(
        self,
        models: Iterable[nn.Module],
        mechanism: Mechanism,
        *,
        profiles: Sequence[PrivacyProfile] | None = None,
        overlap: int | None = None,
        classes: Sequence[int] | int | None = None,
        ledger: PrivacyLedger | None = None,
        delta: float | None = None,
    ) -> None:
        super().__init__()
        models = list(models)
        count = check_integer("the number of models", len(models), low=1)
        if len({id(unwrap_module(model)) for model in models}) < count:
            raise InvalidArgument("models", "different objects", "the same one twice", "Train each teacher on its own.")
        if profiles is None:
            profiles = [PrivacyProfile.non_private()] * count
        if len(profiles) != count:
            raise InvalidArgument("profiles", f"one for each of the {count} models", f"{len(profiles)} of them")
        for profile in profiles:
            if not isinstance(profile, PrivacyProfile):
                cure = "PrivacyProfile.from_guarantee(PrivacyGuarantee(epsilon=..., delta=...)) makes one of a pair."
                raise InvalidArgument("profiles", "a PrivacyProfile for each model", profile, cure)
        if not isinstance(mechanism, Mechanism):
            raise InvalidArgument("mechanism", "a Mechanism, such as DaRRM(noise)", mechanism)
        if mechanism.teachers not in (None, count):
            raise InvalidArgument("mechanism", f"made for {count} teachers", f"one for {mechanism.teachers}")
        for number, (model, profile) in enumerate(zip(models, profiles, strict=True)):
            if profile.reading is not None and profile.reading.digest not in (None, weights_digest(model)):
                raise UnprovenPrivacy(
                    f"the weights of teacher {number} are not those that its profile was read with: it was trained "
                    "further or converted since, or the profiles are in another order. Read the teachers as they are, "
                    "read_teachers(..., modules=models)"
                )
        self.overlap = count if overlap is None else check_integer("overlap", overlap, low=1, high=count)
        self._overlap_unknown = overlap is None and count > 1
        self.classes = _class_numbers(classes)
        if self.classes is not None and mechanism.classes not in (None, len(self.classes)):
            raise InvalidArgument("classes", f"{mechanism.classes} of them, as the mechanism is for", classes)
        self.mechanism = mechanism
        self.profiles = tuple(profiles)
        self._teachers = nn.ModuleList(_plain_copy(model) for model in models)
        self._stacked: tuple[list[Any], StackedNetworks | None] | None = None
        self._teachers.requires_grad_(False)
        super().train(False)
        self.ledger = PrivacyLedger() if ledger is None else ledger
        if delta is None:
            promises = (self.ledger.budget, getattr(mechanism.certificate, "target", None))
            delta = next((promise.delta for promise in promises if promise is not None), 1e-5)
        self.delta = check_number("delta", delta, low=0, high=1)
        self._identity = {
            "teachers": weights_digest(self._teachers),
            "mechanism": json.dumps(_numbers_only(mechanism.describe()), sort_keys=True),
            "promises": hashlib.sha256(json.dumps([one.to_dict() for one in self.profiles]).encode()).hexdigest(),
            "rules": json.dumps({"overlap": self.overlap, "classes": self.classes, "delta": self.delta}),
        }
        price = partial(
            _price, teachers=self.profiles, overlap=self.overlap, mechanism=mechanism, delta=self.delta
        )  # which knows no teacher: a ledger may go where they may not
        self.ledger.bind(self._identity, cost=price)

    @classmethod
    def from_opacus(
        cls,
        models: Iterable[nn.Module],
        engines: Iterable[Any],
        *,
        delta: float,
        allowance: float | None = None,
        target: PrivacyGuarantee | None = None,
        overlap: int | None = None,
        noise: Literal["one-label", "self-bounding"] = "one-label",
        teacher_promise: Literal["profile", "point"] = "profile",
        classes: Sequence[int] | int | None = None,
        ledger: PrivacyLedger | None = None,
        data_loaders: Iterable[Any] | None = None,
        optimizers: Iterable[Any] | None = None,
        accept: Collection[Finding] = (),
        on_progress: Callable[[float], None] = lambda excess: None,
    ) -> PrivateMajorityEnsemble:
        """Teachers trained with Opacus: read what each promises, fetch the best certified noise, wrap.

        Args:
            models: K trained teachers, in whatever wrapping Opacus left them.
            engines: what :func:`~darrm_torch.read_privacy` reads, one for each teacher: its ``PrivacyEngine``, its
                accountant, or a file or history of it.
            delta: the Delta at which the accountants are asked for their epsilon. The total is stated at the delta of
                the ledger's budget, if it has one, else at that of one label.
            allowance: m; one label is (m epsilon, m Delta)-DP, where epsilon is the largest of the teachers'.
            target: the guarantee of one label, instead of ``allowance``.
            overlap: r, how many teachers' training sets one record can be in; ``None``: all K.
            noise: ``"one-label"``, the optimum for labels that are judged one by one (two classes), or
                ``"self-bounding"``, whose costs add up over many labels (needs ``allowance``; for any number of
                classes: :class:`~darrm_torch.SelfBoundingPlurality` where ``classes`` names more than two).
            teacher_promise: ``"profile"`` uses the whole privacy profile of the teachers, ``"point"`` only (epsilon,
                Delta), as the
                paper does.
            classes: see the class.
            ledger: see the class.
            data_loaders: the loaders they were trained with, one for each, to see that they drew Poisson samples.
            optimizers: the optimizers that trained them, one for each, to see that each engine counted the steps of
                its own teacher; nothing else can tell.
            accept: findings to go on with, by name, see :func:`~darrm_torch.read_privacy`.
            on_progress: called as the search for noise goes on, see :func:`~darrm_torch.optimize_noise`.

        Raises:
            InvalidArgument: neither or both of ``allowance`` and ``target``, not one engine for each model, or more
                than two classes with noise for one label.
            UnprovenPrivacy: an accountant whose word is no guarantee; the message says why and what to do.
        """
        models, engines = list(models), list(engines)
        if len(engines) != len(models):
            raise InvalidArgument("engines", f"one for each of the {len(models)} models", f"{len(engines)} of them")
        if (allowance is None) == (target is None):
            raise InvalidArgument(
                "allowance", "given, or else target", "both" if target else "neither", "One of them sets the noise."
            )
        check_number("delta", delta, low=0, high=1, low_open=True, high_open=True)
        if allowance is not None:
            check_number("allowance", allowance, low=0, low_open=True, high_open=True)
        if noise not in ("one-label", "self-bounding"):
            raise InvalidArgument("noise", '"one-label" or "self-bounding"', noise)
        competing = _class_numbers(classes)
        labels = 2 if competing is None else len(competing)
        if labels > 2 and noise == "one-label":
            raise InvalidArgument(
                "classes",
                'two of them with noise="one-label"',
                competing,
                'DaRRM is binary. Say noise="self-bounding" and allowance=..., or build the ensemble with another '
                "mechanism: SelfBoundingPlurality, GNMax, PermuteAndFlip, LNMax or NoiseFreeMajority",
            )
        profiles = read_teachers(
            engines, modules=models, data_loaders=data_loaders, optimizers=optimizers, delta=delta, accept=accept
        )
        count = len(profiles)
        point = PrivacyGuarantee(epsilon=max(map(_stated_epsilon, profiles)), delta=delta)
        if noise == "self-bounding":
            if allowance is None:
                raise InvalidArgument("allowance", "given with self-bounding noise", None)
            mechanism: Mechanism = (
                SelfBoundingPlurality(teachers=count, classes=labels, allowance=allowance, overlap=overlap)
                if labels > 2
                else DaRRM(self_bounding_noise(teachers=count, allowance=allowance, overlap=overlap))
            )
        else:
            if target is None:
                assert allowance is not None
                target = PrivacyGuarantee(epsilon=allowance * point.epsilon, delta=min(1.0, allowance * delta))
            teacher = (point,) if teacher_promise == "point" else PrivacyProfile.weakest(profiles).guarantees()
            if teacher_promise == "profile" and overlap == 1:
                # One teacher's promise is then the whole cost: at m = 1 it leaves no noise.
                teacher = drop_implied((*teacher, point))
            mechanism = DaRRM(
                fetch_noise(teachers=count, teacher=teacher, target=target, overlap=overlap, on_progress=on_progress)
            )
        budget = None if ledger is None else ledger.budget
        if budget is not None:
            total_delta = budget.delta
        else:
            total_delta = min(1.0, (allowance or 1) * delta) if target is None else target.delta
        return cls(
            models,
            mechanism,
            profiles=profiles,
            overlap=overlap,
            classes=classes,
            ledger=ledger,
            delta=total_delta,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and name in vars(self):
            cure = "The ledger prices labels by it. Build another ensemble, with a ledger of its own."
            raise InvalidArgument(name, "as it was when the ensemble was built", value, cure)
        super().__setattr__(name, value)

    @property
    def noise(self) -> NoiseFunction | None:
        """The noise function, for mechanisms that have one."""
        return getattr(self.mechanism, "noise", None)

    def train(self, mode: bool = True) -> PrivateMajorityEnsemble:
        """Teachers stay in eval mode: dropout would make a vote a random draw of its own."""
        return self

    def sensitive_votes(self, inputs: Tensor) -> Tensor:
        """Each teacher's vote ``(K, B)`` int64, and nothing about privacy: no guarantee covers what this returns.

        A tie between logits goes to the lower class.

        Raises:
            InvalidArgument: outputs that are not ``(B, outputs)``, differ between teachers, are NaN, or lack a class.
        """
        return self._votes(inputs, range(len(self._teachers)))[0]

    def sensitive_counts(self, inputs: Tensor, *, teachers: Sequence[int] | None = None) -> Tensor:
        """Votes per class ``(B, C)`` int64; as sensitive as :meth:`sensitive_votes`, with its errors.

        Args:
            inputs: ``(B, ...)``.
            teachers: the numbers of those that vote; ``None``: all.
        """
        votes, classes = self._votes(inputs, range(len(self._teachers)) if teachers is None else teachers)
        return nn.functional.one_hot(votes, classes).sum(dim=0)

    @torch.no_grad()
    def _votes(self, inputs: Tensor, teachers: Sequence[int]) -> tuple[Tensor, int]:
        """Votes ``(len(teachers), B)``, and how many classes could be voted for."""
        for module in self._teachers.modules():  # whatever was applied to a parent, or a teacher thinks of eval()
            if module.training:
                module.training = False
        together = self._at_once(inputs, teachers)
        if together is not None:
            logits = self._competing("outputs of the teachers", together, (len(teachers), len(inputs)))
            return logits.argmax(dim=-1).to(inputs.device), logits.shape[-1]
        votes: list[Tensor] = []
        classes = 0
        for number in teachers:
            name = f"outputs of teacher {number}"
            try:
                outputs = _ask(self._teachers[number], inputs)
            except (DarrmError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # the user's own network, or inputs that are not for it
                raise _not_for(self._teachers[number], number, inputs, error) from error
            logits = self._competing(name, outputs, (len(inputs),))
            if votes and logits.shape[1] != classes:
                raise InvalidArgument(
                    name, f"logits of {classes} classes, as of teacher {teachers[0]}", logits.shape[1]
                )
            classes = logits.shape[1]
            votes.append(logits.argmax(dim=1).to(inputs.device))
        return torch.stack(votes), classes

    def _at_once(self, inputs: Tensor, teachers: Sequence[int]) -> Tensor | None:
        """What all these teachers say ``(len(teachers), B, outputs)``, where one pass for all is the quicker way."""
        if not 0 < len(inputs) <= LARGEST_BATCH:
            return None
        asked = [self._teachers[number] for number in teachers]
        # The first weight tells whether all were moved or converted; nothing else can change them.
        state = [(teachers, weight.device, weight.dtype, weight.data_ptr()) for weight in asked[0].parameters()][:1]
        known = self._stacked
        if known is None or known[0] != state:
            known = self._stacked = state, StackedNetworks.where_quicker(asked)
        stacked = known[1]
        if stacked is None:
            return None
        try:
            outputs = _ask(stacked, inputs)
        except Exception:  # torch.func cannot do what they do; or something is wrong that each will tell by itself
            return None
        return outputs if isinstance(outputs, Tensor) else None

    def _competing(self, name: str, logits: Any, rows: tuple[int, ...]) -> Tensor:
        """The logits ``(*rows, C)`` of the classes that compete, checked."""
        if not isinstance(logits, Tensor) or logits.dim() < 1 or logits.shape[:-1] != rows or not logits.shape[-1]:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise InvalidArgument(name, f"logits of shape ({', '.join(map(str, rows))}, outputs)", shape)
        scores: Tensor = logits
        if scores.isnan().any():
            raise InvalidArgument(name, "numbers", "NaN", "Check the inputs and how the teacher was trained.")
        if scores.shape[-1] == 1:
            scores = torch.cat([torch.zeros_like(scores), scores], dim=-1)
        if self.classes is None:
            wanted, found = self.mechanism.classes, scores.shape[-1]
            if wanted not in (None, found):
                kind = type(self.mechanism).__name__
                expected = f"given, since the teachers have {found} outputs and {kind} is for {wanted}"
                cure = f"Say which compete, such as classes=(0, 1). {self.mechanism._classes_cure()}"
                raise InvalidArgument("classes", expected, None, cure)
            return scores
        if max(self.classes) >= scores.shape[-1]:
            raise InvalidArgument("classes", f"below the {scores.shape[-1]} outputs of the teachers", self.classes)
        return scores[..., list(self.classes)]

    # The compiler would rewrite the exact draws. This is torch.compiler.disable, but for importing the compiler now.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def forward(self, inputs: Tensor) -> Tensor:
        """Private labels ``(B,)`` int64 on the device of ``inputs``; charged and stored before they are returned.

        Raises:
            InvalidArgument: inputs that the teachers do not take, or outputs that cannot vote; nothing was charged.
            BudgetExceeded: the batch would cost more than the ledger's budget; nothing was asked or given out.
        """
        keys = input_digests(inputs)

        def draw(rows: Sequence[int]) -> list[int]:
            labels: list[int] = self.mechanism.aggregate(self.sensitive_counts(inputs[list(rows)])).tolist()
            return labels

        with self._hinting():
            return torch.tensor(self.ledger.answer(keys, draw), dtype=torch.int64, device=inputs.device)

    @contextmanager
    def _hinting(self) -> Iterator[None]:
        """What cannot be afforded may be dear only because nobody said how the data were split."""
        try:
            yield
        except BudgetExceeded as error:
            if not self._overlap_unknown:
                raise
            raise BudgetExceeded(
                f"{error}. No overlap was given, so a record may have been seen by all {len(self.profiles)} teachers; "
                "if the shards were cut so that fewer have, say so (overlap): it costs less"
            ) from None

    def check_budget(self, batches: Iterable[Tensor]) -> None:
        """Whether labels for all these inputs would fit in the ledger's budget; none is asked for or charged.

        Raises:
            BudgetExceeded: those that are new would not fit.
        """
        if self.ledger.budget is not None:
            with self._hinting():
                self.ledger.check([key for inputs in batches for key in input_digests(inputs)])

    def total_privacy(self, *, labels: int, delta: float | None = None) -> TotalPrivacy:
        """What ``labels`` labels cost together, at ``delta`` (default: the ensemble's)."""
        return total_privacy(
            teachers=self.profiles,
            overlap=self.overlap,
            mechanism=self.mechanism,
            labels=labels,
            delta=self.delta if delta is None else delta,
        )

    def privacy_report(self, *, as_dict: bool = False, markdown: bool = False) -> Any:
        """What was given out, what one label and all labels cost, by which argument, under which assumptions.

        No digest of the teachers is in it, nor of their weights: an exact function of the training is no label, and
        whoever guesses the weights could tell. Which teachers these are is in the ledger.

        Args:
            as_dict: a dictionary ready for JSON; ``label``, ``total`` and their ``routes`` are those of
                :meth:`TotalPrivacy.to_dict`: an epsilon is None where nothing is proven.
            markdown: the text in Markdown.

        Returns:
            Text for whoever answers for the data, or the same as a dictionary.
        """
        given, budget = self.ledger.count, self.ledger.budget
        label = self.total_privacy(labels=1)
        total = self.total_privacy(labels=given) if given else None
        mechanism = self.mechanism.describe()
        readings = [asdict(profile.reading) for profile in self.profiles if profile.reading is not None]
        for reading in readings:
            del reading["digest"]
        file = self.ledger.path if self.ledger.path == ":memory:" else os.path.basename(self.ledger.path)
        made = {"library": "darrm-torch", "version": __version__, "date": datetime.now(timezone.utc).date().isoformat()}
        if as_dict:
            return {
                **made,
                "ledger": {"file": file, "budget": None if budget is None else asdict(budget)},
                "labels": given,
                "teachers": len(self.profiles),
                "overlap": self.overlap,
                "mechanism": mechanism,
                "label": label.to_dict(),
                "total": None if total is None else total.to_dict(),
                "readings": readings,
                "assumptions": list(label.assumptions),
            }
        numbers = [
            f"{name} {format_bound(n, 6)}" for name, n in mechanism["parameters"].items() if type(n) in (int, float)
        ]
        strength = f" ({', '.join(numbers)})" if numbers else ""
        about = [f"randomness: {mechanism['randomness']}", *mechanism["notes"]]
        paragraphs = [
            f"Released: {given} label{'s' * (given != 1)}, by {mechanism['kind']}{strength} from {len(self.profiles)} "
            f"teachers. {' '.join(f'{note[0].upper()}{note[1:]}.' for note in about)}",
            _told("One label is", label),
        ]
        if total is not None and given > 1:
            others = [r for r in total.routes if r.applies and r is not total.route and math.isfinite(r.epsilon)]
            paragraphs.append(
                _told(f"All {given} labels together are", total)
                + "".join(f" By {other.name} it would be {format_bound(other.epsilon)}." for other in others)
            )
        limit = "no budget" if budget is None else f"budget {budget}"
        paragraphs.append(
            f"Ledger: {file}, {limit}. Reported by {made['library']} {made['version']} on {made['date']}."
        )
        notes = dict.fromkeys(note for reading in readings for note in reading["notes"])
        for title, items in (("What this rests on:", label.assumptions), ("Found when the teachers were read:", notes)):
            if items:
                lines = [title, *([""] if markdown else []), *(f"- {item}" for item in items)]
                paragraphs.append("\n".join(lines if markdown else map(_wrapped, lines)))
        if markdown:
            return "\n\n".join(["# Privacy report", *paragraphs]) + "\n"
        return "\n".join(_wrapped(paragraph) if "\n" not in paragraph else paragraph for paragraph in paragraphs)

    def get_extra_state(self) -> dict[str, str]:
        """Which teachers and mechanism a ``state_dict`` belongs to."""
        return dict(self._identity)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # Torch reports a missing extra state only after it has loaded the weights, and not at all if not strict.
        if any(name.startswith(prefix) for name in state_dict):
            self.set_extra_state(state_dict.get(prefix + "_extra_state", {}))
            teachers = self._teachers.state_dict(prefix=prefix + "_teachers.")
            for name in teachers.keys() & state_dict.keys():
                if not _equal_weights(teachers[name], state_dict[name]):
                    raise UnprovenPrivacy(
                        f"{name} of this state_dict is not what the teacher was trained to. {_OTHERS}"
                    )
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def set_extra_state(self, state: dict[str, str]) -> None:
        """Refuse weights that the profiles, the noise and the ledger of this ensemble were not made for."""
        different = [name for name, value in self._identity.items() if state.get(name) != value]
        if different:
            raise UnprovenPrivacy(
                f"this state_dict belongs to another ensemble (other {', '.join(different)}). {_OTHERS}"
            )


_FIXED = {"mechanism", "profiles", "overlap", "classes", "delta", "ledger"}

_OTHERS = (
    "Its labels would not have the guarantee of this one. Build an ensemble from those teachers and their own "
    "accountants"
)


def _equal_weights(mine: Any, given: Any) -> bool:
    """Whether these are the same numbers, in whatever precision one or the other was kept meanwhile."""
    if not (isinstance(mine, Tensor) and isinstance(given, Tensor)) or mine.shape != given.shape:
        return True  # Torch has an error of its own for that
    one, other = (weight.detach().cpu() for weight in (mine, given))
    if not (one.is_floating_point() and other.is_floating_point()):
        return torch.equal(one, other)
    return any(
        torch.equal(exact.to(kind).double(), rounded.double())
        for kind in {one.dtype, other.dtype, torch.float32, torch.float16, torch.bfloat16}
        for exact, rounded in ((one, other), (other, one))
    )


def _told(whose: str, total: TotalPrivacy) -> str:
    if math.isinf(total.epsilon):
        return f"{whose} not proven to be private: no bound holds at delta {format_bound(total.delta, 3)}."
    return f"{whose} {total.guarantee}, by {total.route.name}. {total.route.explanation}"


def _price(labels: int, **situation: Any) -> PrivacyGuarantee:
    return total_privacy(labels=labels, **situation).guarantee


def _stated_epsilon(profile: PrivacyProfile) -> float:
    """The epsilon that a teacher's accountant states, or ours where it is the weaker."""
    reading = profile.reading
    return float(max(dict(reading.accountant_epsilons).get(reading.accountant, 0.0), reading.epsilon))


def _class_numbers(classes: Sequence[int] | int | None) -> tuple[int, ...] | None:
    """The numbers of the logits that compete, checked."""
    if classes is None:
        return None
    if isinstance(classes, int):
        return tuple(range(check_integer("classes", classes, low=2)))
    numbers = tuple(check_integer("classes", number, low=0) for number in classes)
    if len(numbers) < 2 or len(set(numbers)) < len(numbers):
        raise InvalidArgument("classes", "at least two different class numbers, or how many", classes)
    return numbers


def _plain_copy(model: nn.Module) -> nn.Module:
    """The user's own network, copied, without what DP-SGD hung on it: hooks, and activations of training data."""
    with torch.no_grad():  # where gradients are on, the copied weights of TorchScript are no leaves
        network = copy.deepcopy(unwrap_module(model))
    hooked = [module for module in network.modules() if "autograd_grad_sample_hooks" in vars(module)]
    for module in hooked:
        for handle in vars(module)["autograd_grad_sample_hooks"]:
            handle.remove()
        for part in module.modules():
            for name in ("autograd_grad_sample_hooks", "activations", "max_batch_len", "ft_compute_sample_grad"):
                vars(part).pop(name, None)
    return network


def _ask(network: nn.Module | StackedNetworks, inputs: Tensor) -> Any:
    """What it says, on the device and in the precision of its own weights."""
    weight = next(iter(network.parameters()), inputs)
    kind = weight.dtype if inputs.is_floating_point() else inputs.dtype
    # A copy: what one teacher writes into its inputs must not reach another, whose vote is independent.
    inputs = inputs.to(weight.device, kind, copy=True)
    with torch.autocast(inputs.device.type, enabled=False):
        return network(inputs)


def _not_for(network: nn.Module, number: int, inputs: Tensor, error: Exception) -> InvalidArgument:
    """What a teacher's failure tells of the inputs, before any of them is charged."""
    weight = next(iter(network.parameters()), None)
    takes = f"what teacher {number} takes"
    if weight is not None:
        takes += f", whose first weights are {_looks(weight.shape, weight.dtype)}"
    reason = f"{type(error).__name__}: {' '.join(str(error).split()) or 'without a word'}"
    return InvalidArgument("inputs", takes, _looks(inputs.shape, inputs.dtype), textwrap.shorten(reason, 160))


def _looks(shape: torch.Size, kind: torch.dtype) -> str:
    return f"{str(kind).removeprefix('torch.')} of shape {tuple(shape)}"


def _numbers_only(description: dict[str, Any]) -> dict[str, Any]:
    """What decides a mechanism's labels, without words that another version may choose differently."""
    return {name: description[name] for name in ("kind", "classes", "teachers", "parameters", "secure")}


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 79, subsequent_indent="  ")


def input_digests(inputs: Tensor) -> list[bytes]:
    """What the ledger knows each of the inputs ``(B, ...)`` by: its type, its shape and its numbers."""
    if not isinstance(inputs, Tensor) or not inputs.dim():
        raise InvalidArgument("inputs", "a tensor (B, ...)", type(inputs).__name__)
    kind = f"{inputs.dtype}:{tuple(inputs.shape[1:])}:".encode()
    contents = (row.reshape(-1).view(torch.uint8).numpy().tobytes() for row in inputs.detach().cpu().contiguous())
    return [hashlib.blake2b(kind + content, digest_size=16).digest() for content in contents]
