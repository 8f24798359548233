"""``darrm label``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BudgetExceeded, InvalidArgument, check_integer
from .files import check_ending, existing, read_tensor, saved, teacher_files
from .networks import competing, load_model
from .parser import Command, option_names
from .promises import add_accept, naming
from .showing import print_json, progress, search_progress
from .values import guarantee, read_guarantee

if TYPE_CHECKING:
    from ..ledger import PrivacyLedger

__all__ = ["COMMAND", "STRENGTHS"]


# How the strength of each mechanism can be said.
STRENGTHS: dict[str, tuple[str, ...]] = {
    "darrm": ("allowance", "label_target"),
    "darrm-point": ("allowance", "label_target"),
    "self-bounding": ("allowance", "label_target", "total_target"),
    "subsampling": ("allowance", "label_target", "total_target"),
    "noise-free": (),
    "vote-private": ("label_target", "total_target"),
    "gnmax": ("label_target", "total_target"),
    "permute-and-flip": ("label_target", "total_target"),
    "exponential": ("label_target", "total_target"),
    "randomized-response": ("label_target", "total_target"),
}


_WITH_TEACHERS = ("darrm", "darrm-point", "self-bounding", "subsampling", "noise-free")  # whose privacy rests on theirs


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--inputs", required=True, metavar="FILE", help=".npy, .npz or .pt: what to label, (N, ...)")
    parser.add_argument(
        "--models",
        nargs="+",
        required=True,
        metavar="FILE",
        help="TorchScript files; or weights, with --build; or one folder of teacher-*.pt",
    )
    parser.add_argument("--build", metavar="MODULE:FUNCTION", help="makes the network the weights belong to")
    parser.add_argument("--ledger", required=True, metavar="FILE", help="keeps every label with its charge")
    parser.add_argument("--out", required=True, metavar="FILE", help=".npy, .pt or .csv for the labels")
    parser.add_argument("--classes", type=int, nargs="+", metavar="C", help="outputs that compete, such as 5 8")
    parser.add_argument("--overlap", type=int, metavar="R", help="teachers one record can touch (default: all)")
    parser.add_argument("--batch-size", type=int, default=256, metavar="N", help="inputs asked at once")
    parser.add_argument("--budget", type=guarantee, metavar="EPS,DELTA", help="the most all labels may cost")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    noise = parser.add_argument_group("noise")
    noise.add_argument(
        "--mechanism",
        choices=list(STRENGTHS),
        default="darrm",
        metavar="NAME",
        help=f"private through the teachers: {', '.join(_WITH_TEACHERS)}; through its own coins, whatever the "
        f"teachers are: {', '.join(name for name in STRENGTHS if name not in _WITH_TEACHERS)} (default: darrm)",
    )
    noise.add_argument("--allowance", type=float, metavar="M", help="a label costs what M teachers do")
    noise.add_argument("--label-target", type=guarantee, metavar="EPS,DELTA", help="or: what one label may cost")
    noise.add_argument("--total-target", type=guarantee, metavar="EPS,DELTA", help="or: what all may cost together")
    noise.add_argument("--labels", type=int, metavar="Q", help="how many all are (default: the inputs)")
    teachers = parser.add_argument_group("what the teachers promise")
    teachers.add_argument(
        "--accountants",
        nargs="+",
        metavar="FILE",
        help="Opacus' checkpoints, one a model (default: the models' files, or none where coins protect)",
    )
    teachers.add_argument("--delta", type=float, default=1e-5, help="of one teacher")
    add_accept(teachers)


def _run(chosen: Any) -> int:
    import torch

    from ..ensemble import PrivateMajorityEnsemble
    from ..ledger import PrivacyLedger

    check_ending("--out", chosen.out, ".npy", ".pt", ".csv")
    check_integer("--batch-size", chosen.batch_size, low=1)
    strength = _strength(chosen)
    most = chosen.budget or chosen.total_target
    budget = None if most is None else read_guarantee(most)
    new = not Path(chosen.ledger).exists()
    ledger = PrivacyLedger(":memory:" if new else chosen.ledger, budget)
    inputs = read_tensor("--inputs", chosen.inputs)
    if len(chosen.models) == 1 and Path(chosen.models[0]).is_dir():
        chosen.models = teacher_files("--models", chosen.models[0])
    models = [load_model(existing("--models", path), chosen.build) for path in chosen.models]
    ensemble = _ensemble(chosen, inputs, models, strength, ledger)
    with saved("--out", chosen.out) as save:
        batches = inputs.split(chosen.batch_size)
        try:
            ensemble.check_budget(batches)
        except BudgetExceeded as error:
            option = "--total-target" if chosen.total_target else "--budget" if chosen.budget else "the ledger's budget"
            cure = "raise it" if new else "a ledger keeps its budget"
            raise BudgetExceeded(f"{error}. Label no more new inputs than that, or see {option}: {cure}") from None
        if new:  # made only now: what is refused leaves none behind
            ensemble = PrivateMajorityEnsemble(
                models,
                ensemble.mechanism,
                profiles=ensemble.profiles,
                overlap=chosen.overlap,
                classes=chosen.classes,
                ledger=PrivacyLedger(chosen.ledger, budget),
                delta=ensemble.delta,
            )
        labels = []
        with progress(len(inputs), "labels") as bar:
            for batch in batches:
                labels.append(ensemble(batch))
                bar.update(len(batch))
        save(torch.cat(labels))
    if chosen.json:
        print_json(ensemble.privacy_report(as_dict=True))
    else:
        print(ensemble.privacy_report())
    return 0


def _ensemble(chosen: Any, inputs: Any, models: list[Any], strength: dict[str, Any], ledger: PrivacyLedger) -> Any:
    """The teachers and the noise that were asked for."""
    from ..candidates import strongest_mechanism
    from ..ensemble import PrivateMajorityEnsemble
    from ..guarantees import PrivacyProfile
    from ..mechanisms import NoiseFreeMajority
    from ..opacus import read_teachers

    kind = chosen.mechanism
    accountants: list[Path] | None = None
    if chosen.accountants is not None:
        accountants = [existing("--accountants", path) for path in chosen.accountants]
        if len(accountants) != len(models):
            raise InvalidArgument("--accountants", f"one for each of {len(models)} models", len(accountants))
    elif kind in _WITH_TEACHERS:
        if chosen.build is None:
            raise InvalidArgument("--accountants", "given with TorchScript models", None, "They hold no accountant.")
        accountants = [Path(path) for path in chosen.models]
    classes = competing(models[0], inputs, chosen.classes)
    where = "--models" if chosen.accountants is None else "--accountants"
    if kind in ("darrm", "darrm-point"):
        assert accountants is not None
        if classes > 2:
            cure = "Choose two with --classes, or another mechanism, such as self-bounding."
            raise InvalidArgument(f"--mechanism {kind}", "used with two classes", classes, cure)
        with naming(where), search_progress() as each:
            return PrivateMajorityEnsemble.from_opacus(
                models,
                accountants,
                delta=chosen.delta,
                allowance=strength.get("allowance"),
                target=strength.get("label_target"),
                overlap=chosen.overlap,
                use="profile" if kind == "darrm" else "point",
                classes=chosen.classes,
                ledger=ledger,
                accept=chosen.accept,
                each=each,
            )
    profiles = None
    if accountants is not None:
        with naming(where):
            profiles = read_teachers(accountants, modules=models, delta=chosen.delta, accept=chosen.accept)
    mechanism = (
        NoiseFreeMajority(classes=classes, teachers=len(models))
        if kind == "noise-free"
        else strongest_mechanism(
            kind,
            teachers=len(models),
            classes=classes,
            teacher=None if profiles is None else PrivacyProfile.weakest(profiles),
            overlap=chosen.overlap,
            labels=len(inputs) if chosen.labels is None else chosen.labels,
            **strength,
        )
    )
    promise = ledger.budget or strength.get("label_target")
    return PrivateMajorityEnsemble(
        models,
        mechanism,
        profiles=profiles,
        overlap=chosen.overlap,
        classes=chosen.classes,
        ledger=ledger,
        delta=min(1.0, strength.get("allowance", 1) * chosen.delta) if promise is None else promise.delta,
    )


def _strength(chosen: Any) -> dict[str, Any]:
    """How strong the noise is to be, in the one way that was said; as its mechanism takes it."""
    ways = STRENGTHS[chosen.mechanism]
    given = [name for name in ("allowance", "label_target", "total_target") if getattr(chosen, name) is not None]
    if (len(given) != 1 or given[0] not in ways) if ways else given:
        cure = "The most that all labels may cost is --budget." if "total_target" not in ways else ""
        raise InvalidArgument(
            f"--mechanism {chosen.mechanism}",
            f"used with {f'one of {option_names(ways)}' if ways else 'no allowance or target'}",
            option_names(given) or "none",
            cure,
        )
    if "total_target" not in given and chosen.labels is not None:
        raise InvalidArgument("--labels", "used with --total-target", chosen.labels)
    if "total_target" in given and chosen.budget is not None:
        raise InvalidArgument("--budget", "left out with --total-target, which is the budget", chosen.budget)
    return {
        name: value if name == "allowance" else read_guarantee(value)
        for name, value in ((name, getattr(chosen, name)) for name in given)
    }


COMMAND = Command(
    words="Private labels from models, charged to a ledger.",
    example="darrm label --inputs x.npy --models t0.pt t1.pt --build nets:build \\\n"
    "      --mechanism self-bounding --total-target 1,1e-5 --overlap 1 \\\n"
    "      --ledger labels.sqlite --out y.npy",
    add_arguments=_add_arguments,
    run=_run,
)
