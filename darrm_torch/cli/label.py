"""``darrm label``."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import darrm_torch as dt

from ..errors import BudgetExceeded, InvalidArgument, check_integer
from ..privacy.guarantees import format_bound
from ..reprs import wrapped
from .files import ARRAYS, check_ending, given_files, read_ids, read_inputs, table_columns, whole, write_labels
from .ledger import check_columns, check_kept, keep, take_over, too_expensive, with_budget
from .networks import competing, load_model
from .parser import Command, one_of, option_names, require, typed
from .promises import (
    add_accept,
    add_allocation,
    add_unit,
    checks,
    naming,
    stated_allocation,
    stated_neighbours,
    stated_unit,
    terms_of_labels,
)
from .showing import print_json, progress, search_progress
from .values import guarantee, read_guarantee
from .votes import OF_VOTES, Votes, add_arguments

__all__ = ["COMMAND", "options_for"]


def _add_arguments(parser: Any) -> None:
    from ..planning.families import FAMILIES

    parser.add_argument(
        "--inputs", metavar="FILE", help=f"{ARRAYS}: the inputs to label, (N, ...), or several arrays by name"
    )
    parser.add_argument("--tokenizer", metavar="FOLDER", help="--inputs has one text in each line, for this tokenizer")
    parser.add_argument(
        "--ids", metavar="FILE", help="a text file with an identifier of each input in its line (default: its contents)"
    )
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="FILE",
        help="TorchScript files, or files of weights with --build, or one folder of .pt files",
    )
    parser.add_argument(
        "--build",
        metavar="MODULE:FUNCTION",
        help="returns the network that the weights of every model are loaded into; unlike networks come as TorchScript "
        "files, with --accountants",
    )
    parser.add_argument("--ledger", metavar="FILE", help="required: stores the labels, their cost and these options")
    parser.add_argument("--out", metavar="FILE", help="required: write the labels to this .npy, .pt or .csv file")
    parser.add_argument(
        "--classes", type=int, nargs="+", metavar="C", help="outputs to choose between, such as 5 8 (default: all)"
    )
    parser.add_argument(
        "--findings", nargs="+", metavar="NAME", help="several questions: what each output, or pair of them, looks for"
    )
    parser.add_argument(
        "--overlap", type=int, metavar="R", help="most teachers that one record can affect (default: all)"
    )
    add_allocation(parser, "train_teachers")
    parser.add_argument(
        "--batch-size", type=int, default=256, metavar="N", help="inputs per batch (default: %(default)s)"
    )
    parser.add_argument("--budget", type=guarantee, metavar="EPS,DELTA", help="the most that all labels may cost")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    noise = parser.add_argument_group("noise")
    on_teachers = [kind for kind, family in FAMILIES.items() if family.rests_on == "teachers"]
    noise.add_argument(
        "--mechanism",
        type=one_of(*FAMILIES),
        metavar="KIND",
        help=f"protected by the teachers' training: {', '.join(on_teachers)}; protected by the mechanism's own "
        f"randomness, for any teachers: {', '.join(kind for kind in FAMILIES if kind not in on_teachers)} "
        "(default: darrm)",
    )
    noise.add_argument("--allowance", type=float, metavar="M", help="one label costs at most as much as M teachers")
    noise.add_argument(
        "--label-target", type=guarantee, metavar="EPS,DELTA", help="or: the most that one label may cost"
    )
    noise.add_argument(
        "--total-target",
        type=guarantee,
        metavar="EPS,DELTA",
        help="or: the most that --labels labels may cost together",
    )
    noise.add_argument(
        "--labels", type=int, metavar="Q", help="number of labels of --total-target (default: the inputs)"
    )
    noise.add_argument(
        "--jury",
        type=int,
        metavar="N",
        help="only N teachers vote, drawn at random once (noise-free, mean-probabilities; the mechanism jury takes as "
        "many as the target allows)",
    )
    add_arguments(parser)
    teachers = parser.add_argument_group("the guarantees of the teachers")
    teachers.add_argument(
        "--accountants",
        nargs="+",
        metavar="FILE",
        help="checkpoints of Opacus, one for each model, or a folder of them (default: the --models files; none if "
        "the mechanism's own randomness protects)",
    )
    teachers.add_argument("--delta", type=float, help="delta of one teacher (default: 1e-5)")
    add_accept(teachers, "guesses")
    add_unit(parser)


def options_for(answer: dt.Plan) -> str | None:
    """The options of this command that build the mechanism that a plan recommends; None if there are none."""
    from ..labels.advice import LITTLE
    from ..planning.beliefs import typical_votes
    from ..planning.families import FAMILIES

    best = answer.best
    if best is None or best.mechanism is None:
        return None
    family = FAMILIES[best.kind]
    belief = answer.plain_prior if best.own_randomness else answer.prior
    if family.optimised and belief != typical_votes(answer.classes, plain=best.own_randomness):
        return None  # this command optimises for typical votes
    options: dict[str, Any] = {"mechanism": best.kind, "label_target": answer.label_target}
    if "total_target" not in family.strengths:
        options |= {"label_target": answer.one_label if family.strengths else None, "budget": answer.total_target}
        if best.kind == "darrm-point":
            options["delta"] = best.mechanism.certificate.teacher[0].delta
    elif answer.total_target is not None:
        if answer.label_target is not None:
            return None  # this command takes only one of them
        options |= {"total_target": answer.total_target, "labels": answer.labels}
    if answer.allocation is not None and best.rests_on != "randomness":
        if answer.allocation.weights or answer.allocation.blocks:
            return None
        options["allocation"] = "random" if answer.allocation.source == "stated" else None
    unit = answer.teacher.unit
    options |= {} if unit.name == "record" else {"unit": unit.name, "records_per_unit": unit.records}
    options |= {} if unit.neighbours == "add/remove" else {"neighbours": unit.neighbours}
    options |= {"overlap": answer.overlap, "accountants": "FILE ..." if best.rests_on == "both" else None}
    if best.agreement is not None and best.agreement < 1 / answer.classes + LITTLE + 0.05:  # this command estimates it
        options["accept"] = "guesses"
    for name, value in options.items():
        if isinstance(value, dt.PrivacyGuarantee):
            options[name] = f"{value.epsilon!r},{value.delta!r}"
    return typed({name: value for name, value in options.items() if value is not None})


def _run(chosen: Any) -> int:
    ledger = dt.PrivacyLedger(chosen.ledger) if chosen.ledger and os.path.exists(chosen.ledger) else None
    if chosen.ledger == ":memory:":
        cure = "A ledger in memory is gone when the command ends, and a second run would draw the labels again."
        raise InvalidArgument("--ledger", "a file", chosen.ledger, cure)
    if ledger is not None:
        take_over(chosen, ledger)
    chosen.mechanism = chosen.mechanism or "darrm"
    require("label", _required(chosen))
    check_ending("--out", chosen.out, ".npy", ".pt", ".csv")
    check_integer("--batch-size", chosen.batch_size, low=1)
    if chosen.mechanism == "mean-probabilities":
        check_ending("--out", chosen.out, ".npy", ".pt")
        if chosen.votes is not None:
            raise InvalidArgument("--mechanism mean-probabilities", "used with --models", "--votes")
    chosen.delta = 1e-5 if chosen.delta is None else chosen.delta
    strength = _strength(chosen)
    option = "--total-target" if chosen.total_target else "--budget"
    budget = read_guarantee(chosen.total_target or chosen.budget) if chosen.total_target or chosen.budget else None
    if ledger is not None:
        ledger = with_budget(ledger, budget, option)
        budget = ledger.budget
    source = _Models(chosen) if chosen.votes is None else Votes(chosen)
    if ledger is not None:
        check_columns(ledger, source.columns)
    if chosen.total_target and chosen.labels is None:
        chosen.labels = source.inputs
    # First with a ledger in memory: a refused command leaves no new file behind.
    with search_progress() as on_progress:
        ensemble: Any = source.build(strength, dt.PrivacyLedger(":memory:", budget), on_progress)
    if ledger is not None:
        check_kept(ledger, ensemble)
        ensemble = ensemble.spending_from(ledger)
    with whole("--out", chosen.out) as beside:
        try:
            with progress(None, "budget"):
                source.check_budget(ensemble)
        except BudgetExceeded as error:
            raise BudgetExceeded(too_expensive(error, ensemble, option if ledger is None else None)) from None
        agreement = None
        if ensemble.mechanism.shares == 1:
            agreement = _expected_agreement(ensemble, source.teachers, source.classes)
        if agreement is not None and not (ledger and ledger.count) and "guesses" not in chosen.accept:
            _refuse_guesses(ensemble, agreement, source.classes)
        if not chosen.json and agreement is not None:
            _show_noise(ensemble, agreement)
        if ledger is None:
            ensemble = ensemble.spending_from(dt.PrivacyLedger(chosen.ledger, budget))
        chosen.overlap = ensemble.overlap
        keep(chosen, ensemble.ledger, source.columns)
        before = ensemble.ledger.count
        with progress(source.inputs, "labels") as bar:
            source.release(ensemble, beside, bar.update)
    if chosen.json:
        shown = {"labels_before": before, "expected_agreement": agreement}
        print_json({**ensemble.privacy_report(as_dict=True), **shown})
    else:
        now = ensemble.ledger.count
        paid = f"The ledger had {before} before and has {now} now; those that it had were free."
        print(wrapped(f"Labels: {source.inputs}, in {chosen.out}. {paid}"))
        print(ensemble.privacy_report())
    return 0


# --- what is shown before anything is charged ----------------------------------------------------------------------

_DRAWS = 10_000  # labels of simulated votes: an agreement to about a hundredth, in about a second


def _expected_agreement(ensemble: Any, teachers: int, classes: int) -> float:
    """About how often a label is the majority of the teachers, for the votes that `darrm plan` expects by default."""
    from ..planning.beliefs import typical_votes

    prior = typical_votes(classes, plain=not all(profile.is_private for profile in ensemble.profiles))
    return dt.expected_agreement(ensemble.mechanism, teachers=teachers, classes=classes, prior=prior, draws=_DRAWS)[0]


def _show_noise(ensemble: Any, agreement: float) -> None:
    """Print the noise and the expected agreement before anything is charged."""
    described, proof = ensemble.mechanism.describe(), ensemble.mechanism.certificate
    strength = {"allowance": getattr(proof, "allowance", None), **described["parameters"]}
    parts = [
        described["kind"],
        *(f"{name} {format_bound(strength[name], 6)}" for name in _STRONG if strength.get(name) is not None),
    ]
    if getattr(proof, "target", None) is not None:
        parts.append(f"{proof.target} for each label")
    print(f"Noise: {', '.join(parts)}; expected agreement {_share(agreement)}.", file=sys.stderr)


def _refuse_guesses(ensemble: Any, agreement: float, classes: int) -> None:
    """Refuse to pay for the first labels of a ledger where the noise makes guesses of them."""
    from ..labels.advice import LITTLE

    affected, count = ensemble.overlap, len(ensemble.profiles)
    if agreement >= 1 / classes + LITTLE or count == 1:  # one vote that a site randomizes may be poor
        return
    cure = "Raise the target or the allowance, buy fewer labels, or use more teachers."
    if affected > 1:
        cure = f"One record is assumed to affect {affected} of {count} teachers: for disjoint shards pass --overlap 1."
    got = f"an expected agreement with the majority of {_share(agreement)}"
    cure = f"Nothing was charged. {cure} --accept guesses buys them anyway."
    raise InvalidArgument("the labels", "better than guesses", got, cure)


def _share(agreement: float) -> str:
    """Rounded down: 0.999 is not shown as 1."""
    return f"{math.floor(agreement * 100) / 100:.2f}"


_STRONG = ("allowance", "sigma", "epsilon")


# --- teachers and noise -----------------------------------------------------------------------------------------------


class _Models:
    """The networks and the inputs that the options name, and the labels that they become."""

    def __init__(self, chosen: Any) -> None:
        from ..teachers.structures import size_of

        given = [name for name in OF_VOTES if getattr(chosen, name) not in (None, [])]
        if given:
            raise InvalidArgument(option_names(given), "used with --votes", "--models")
        self._chosen, self._inputs = chosen, read_inputs("--inputs", chosen.inputs, chosen.tokenizer)
        self.columns = table_columns(chosen.inputs) if chosen.tokenizer is None else None
        self.files, self._models = given_files("--models", chosen.models), list[Any]()
        with progress(len(self.files), "models") as bar:
            for file in self.files:
                self._models.append(load_model(file, chosen.build))
                bar.update()
        self.teachers, self.inputs = len(self._models), size_of(self._inputs)
        self._ids = None if chosen.ids is None else read_ids("--ids", chosen.ids, self.inputs)
        self.inputs *= len(chosen.findings) if chosen.findings else 1
        self.classes = competing(self._models[0], self._inputs, chosen.classes, chosen.findings)

    def check_budget(self, ensemble: dt.PrivateMajorityEnsemble) -> None:
        """Check that all inputs fit in the budget."""
        ensemble.check_budget((inputs for inputs, _ in self._batches()), keys=self._ids)

    def release(self, ensemble: dt.PrivateMajorityEnsemble, file: Path, advance: Callable[[int], Any]) -> None:
        """Buy the labels batch by batch, and write them."""
        import torch

        labels = []
        for inputs, keys in self._batches():
            labels.append(ensemble(inputs, keys=keys))
            advance(len(labels[-1]) if ensemble.findings is None else labels[-1].numel())
        write_labels(file, torch.cat(labels), ensemble.findings)

    def _batches(self) -> Iterator[tuple[Any, list[bytes] | None]]:
        from ..teachers.structures import batches_of

        size = self._chosen.batch_size
        for number, inputs in enumerate(batches_of(self._inputs, size)):
            yield inputs, None if self._ids is None else self._ids[number * size : (number + 1) * size]

    def build(
        self, strength: dict[str, Any], ledger: dt.PrivacyLedger, on_progress: Callable[[float], None]
    ) -> dt.PrivateMajorityEnsemble:
        """The teachers and the noise that the options ask for."""
        from ..planning.families import FAMILIES

        chosen = self._chosen
        kind = chosen.mechanism
        accountants: list[Path] | None = None
        if chosen.accountants is not None:
            accountants = given_files("--accountants", chosen.accountants)
            if len(accountants) != self.teachers:
                raise InvalidArgument("--accountants", f"one for each of {self.teachers} models", len(accountants))
        elif FAMILIES[kind].rests_on == "teachers":
            if chosen.build is None:
                cure = "They hold no accountant."
                raise InvalidArgument("--accountants", "given with TorchScript models", None, cure)
            accountants = self.files
        where = "--models" if chosen.accountants is None else "--accountants"
        if kind in ("darrm", "darrm-point"):
            assert accountants is not None
            if self.classes > 2:
                cure = "Choose two with --classes, or another mechanism, such as self-bounding."
                raise InvalidArgument(f"--mechanism {kind}", "used with two classes", self.classes, cure)
            with naming(where):
                return dt.PrivateMajorityEnsemble.from_opacus(
                    self._models,
                    accountants,
                    allowance=strength.get("allowance"),
                    target=strength.get("label_target"),
                    overlap=chosen.overlap,
                    allocation=stated_allocation(chosen, self.teachers),
                    neighbours=stated_neighbours(chosen),
                    **stated_unit(chosen),
                    teacher_promise="profile" if kind == "darrm" else "point",
                    classes=chosen.classes,
                    findings=chosen.findings,
                    ledger=ledger,
                    **checks(chosen),
                    on_progress=on_progress,
                )
        profiles = None
        if accountants is not None:
            with naming(where):
                profiles = dt.read_teachers(accountants, modules=self._models, **checks(chosen), **stated_unit(chosen))
        terms = terms_of_labels(
            chosen, strength, ledger, teachers=self.teachers, classes=self.classes, profiles=profiles
        )
        return dt.PrivateMajorityEnsemble(self._models, **terms, classes=chosen.classes, findings=chosen.findings)


def _required(chosen: Any) -> dict[str, Sequence[Any]]:
    """The options that a command line needs, as they are typed, with what gives them."""
    from ..planning.families import FAMILIES

    kind = FAMILIES[chosen.mechanism]
    needed: dict[str, Sequence[Any]] = {"--ledger": (chosen.ledger,), "--out": (chosen.out,)}
    if chosen.votes is None:
        needed |= {"--inputs": (chosen.inputs,), "--models (or --votes)": (chosen.models,)}
    else:
        needed["--teachers"] = (chosen.teachers, chosen.accountants)
        needed["--class-names or --class-count"] = (chosen.class_names, chosen.class_count)
        if kind.rests_on == "teachers":
            needed["--accountants or --teacher"] = (chosen.accountants, chosen.teacher)
    if kind.strengths:
        example = "--allowance 1: what one teacher costs" if "allowance" in kind.strengths else "--total-target 1,1e-5"
        name = f"one of {option_names(kind.strengths)} (how strong the noise is, such as {example})"
        needed[name] = (chosen.allowance, chosen.label_target, chosen.total_target)
    return needed


def _strength(chosen: Any) -> dict[str, Any]:
    """The strength of the noise: the one of three options that was given, as a keyword of the mechanism's builder."""
    from ..planning.families import FAMILIES

    ways = FAMILIES[chosen.mechanism].strengths
    given = [name for name in ("allowance", "label_target", "total_target") if getattr(chosen, name) is not None]
    if (len(given) != 1 or given[0] not in ways) if ways else given:
        cure = "Set the most that all labels may cost with --budget." if "total_target" in given else ""
        raise InvalidArgument(
            f"--mechanism {chosen.mechanism}",
            f"used with {f'one of {option_names(ways)}' if ways else 'no allowance or target'}",
            option_names(given) or None,
            cure,
        )
    if chosen.jury is not None and chosen.mechanism not in ("noise-free", "mean-probabilities"):
        raise InvalidArgument("--jury", "used with noise-free or mean-probabilities", chosen.mechanism)
    if "total_target" not in given and chosen.labels is not None:
        raise InvalidArgument("--labels", "used with --total-target", chosen.labels)
    if "total_target" in given and chosen.budget is not None:
        raise InvalidArgument("--budget", "left out with --total-target, which is the budget", chosen.budget)
    return {
        name: value if name == "allowance" else read_guarantee(value)
        for name, value in ((name, getattr(chosen, name)) for name in given)
    }


COMMAND = Command(
    summary="Release private labels by models or votes, charged to a ledger.",
    example="darrm label --inputs x.npy --models t0.pt t1.pt --build nets:build \\\n"
    "      --mechanism self-bounding --total-target 1,1e-5 --overlap 1 \\\n"
    "      --ledger labels.ledger --out y.npy",
    add_arguments=_add_arguments,
    run=_run,
)
