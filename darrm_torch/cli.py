"""The ``darrm`` command: plans, noise, readings of teachers, labels and students without a line of Python.

Exit status: 0 when it was done, 1 when it was checked and refused (a proof that fails, a budget that is spent, teachers
whose accountant is no guarantee), 2 for a mistake in the command or its files, 130 when it was stopped. What goes wrong
is one line, ``darrm: error: ...``. Files are written beside and moved into place, whole or not at all.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import io
import json
import math
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import jsonargparse

from .errors import (
    BudgetExceeded,
    DarrmError,
    InvalidArgument,
    LedgerError,
    PrivacyViolation,
    UnprovenPrivacy,
    check_integer,
    check_number,
)

# What takes long to import is imported by the command that needs it.
if TYPE_CHECKING:
    from .guarantees import PrivacyGuarantee, PrivacyProfile
    from .ledger import PrivacyLedger
    from .noise import NoiseFunction
    from .plurality import PluralityVotes
    from .priors import Prior

__all__ = ["main"]

_REFUSED = (PrivacyViolation, UnprovenPrivacy, BudgetExceeded)


class _Parser(jsonargparse.ArgumentParser):
    """Says what is wrong in one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # -0.1,1e-4 is a value, if a wrong one, and no option

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise _UsageError(_in_words(_one_line(message), self)) from None


class _UsageError(DarrmError):
    """A command line that cannot be read."""


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


def _in_words(message: str, parser: argparse.ArgumentParser) -> str:
    """The parser's message with options as they are typed, and a cure."""
    cure = f"see {parser.prog} --help"
    if found := re.match(r'Parser key "([\w.]+)": Expected an? <class \'(\w+)\'>. Got value: (.*)', message):
        kind = {"int": "an integer", "float": "a number"}.get(found[2], found[2])
        return f"{_option(found[1])} must be {kind}, got {found[3]!r} ({cure})"
    if found := re.match(r"the following arguments are required: (.*)", message):
        command = f"{found[1].partition('.')[0]} " if "." in found[1] else ""
        return f"missing {', '.join(map(_option, found[1].split(', ')))} (see darrm {command}--help)"
    if "subcommand" in message:
        return f"no command is given ({cure})"
    unknown = re.match(r"unrecognized arguments: (\S+)|.*invalid choice: '([^']*)'", message)
    if unknown:
        known = [option for action in parser._actions for option in action.option_strings]
        known += [name for action in parser._actions for name in action.choices or ()]
        near = difflib.get_close_matches((unknown[1] or unknown[2]).split("=")[0], known, n=1)
        cure = f"did you mean {near[0]}?" if near else cure
    return f"{message} ({cure})"


def _option(key: str) -> str:
    name = key.rpartition(".")[2]
    return name if name in _POSITIONAL else "--" + name.replace("_", "-")


_POSITIONAL = ("file", "sources")


# --- values on the command line -------------------------------------------------------------------------------------


def _guarantee(text: str) -> str:
    """Checked where it is read: EPSILON,DELTA."""
    _read_guarantee(text)
    return text


def _read_guarantee(text: str) -> PrivacyGuarantee:
    from .guarantees import PrivacyGuarantee

    try:
        numbers = [float(part) for part in text.split(",")]
        if len(numbers) not in (1, 2):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be EPSILON,DELTA such as 0.1,1e-4, got {text!r}") from None
    try:
        return PrivacyGuarantee(epsilon=numbers[0], delta=numbers[1] if len(numbers) == 2 else 0.0)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(f"must be EPSILON,DELTA such as 0.1,1e-4: {error}") from None


def _rate(text: str) -> float:
    from fractions import Fraction

    try:
        return float(Fraction(str(text)))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise argparse.ArgumentTypeError(f"must be a number or a fraction such as 1/35, got {text!r}") from None


def _prior(text: str) -> str:
    _read_prior(text)
    return text


def _read_prior(text: str) -> Prior | PluralityVotes:
    from .plurality import PluralityVotes
    from .priors import BetaVotes, IndependentVotes, SharedVotes

    kind, _, rest = text.partition(":")
    try:
        numbers = [float(part) for part in rest.split(",")]
        if kind == "independent" and len(numbers) == 1:
            return IndependentVotes(mean=numbers[0])
        if kind == "shared" and len(numbers) == 2:
            return SharedVotes(low=numbers[0], high=numbers[1])
        if kind == "beta" and len(numbers) == 2:
            return BetaVotes(a=numbers[0], b=numbers[1])
        if kind == "plurality" and len(numbers) in (1, 2):
            return PluralityVotes(accuracy=numbers[0], concentration=numbers[1] if numbers[1:] else math.inf)
    except DarrmError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be {_OF_TWO} or {_OF_MANY}, got {text!r}")


_OF_TWO = "independent:MEAN, shared:LOW,HIGH or beta:A,B"
_OF_MANY = "plurality:ACCURACY[,CONCENTRATION]"


def _teacher(chosen: Any) -> PrivacyProfile | PrivacyGuarantee | tuple[PrivacyProfile, ...] | None:
    """What the teachers promise, however it was said; None: nothing was."""
    from .guarantees import PrivacyProfile

    run = {name: getattr(chosen, name) for name in ("noise_multiplier", "sample_rate", "steps")}
    given = [value for value in run.values() if value is not None]
    ways = [bool(given), chosen.teacher is not None, getattr(chosen, "teachers_folder", None) is not None]
    if sum(ways) > 1:
        raise InvalidArgument(
            "--teacher", "given once", "several ways", "Choose --teacher, or the settings of DP-SGD, or a folder."
        )
    if given and len(given) < 3:
        missing = ", ".join("--" + name.replace("_", "-") for name, value in run.items() if value is None)
        raise InvalidArgument("the settings of DP-SGD", "all three", f"no {missing}", "Give these as well.")
    if given:
        check_number("--noise-multiplier", run["noise_multiplier"], low=0.01)  # with less, dp-accounting takes hours
        return PrivacyProfile.from_dp_sgd([(run["noise_multiplier"], run["sample_rate"], run["steps"])])
    if chosen.teacher is not None:
        return _read_guarantee(chosen.teacher)
    if getattr(chosen, "teachers_folder", None) is None:
        return None
    from .opacus import read_teachers

    with _named("--teachers-folder"):
        return read_teachers(_teacher_files("--teachers-folder", chosen.teachers_folder))


def _teacher_files(name: str, path: str) -> list[Path]:
    """What lies in a folder of teachers, or in that of its run."""
    folder = _existing(name, path)
    files, below = (sorted(place.glob("teacher-*.pt")) for place in (folder, folder / "teachers"))
    if not files:
        cure = f"Did you mean {folder / 'teachers'}?" if below else "It holds none."
        raise InvalidArgument(name, "a folder with teacher-*.pt files", path, cure)
    return files


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Says where a file was given that the library cannot read."""
    try:
        yield
    except InvalidArgument as error:
        if error.name != "source":
            raise
        raise InvalidArgument(name, error.expected, error.got, error.cure) from None


def _existing(name: str, path: str) -> Path:
    if not Path(path).exists():
        raise InvalidArgument(name, "a file or folder that exists", path, "Check the spelling.")
    return Path(path)


def _check_places(chosen: Any) -> None:
    """Before any work: what can be known of the files that will be written."""
    for option in ("out", "plot", "ledger"):
        path = chosen.get(option)
        if path is None:
            continue
        goal = Path(path)
        if goal.is_dir():
            raise InvalidArgument(_option(option), "a file", path, "This is a folder.")
        if not goal.parent.is_dir() or not os.access(goal.parent, os.W_OK | os.X_OK):
            reason = "It may not be written to." if goal.parent.is_dir() else "There is no such folder."
            raise InvalidArgument(_option(option), "a file in a folder that can be written to", path, reason)


def _check_ending(name: str, path: str, *endings: str) -> None:
    if Path(path).suffix not in endings:
        raise InvalidArgument(name, f"a file that ends in {' or '.join(endings)}", path)


@contextlib.contextmanager
def _whole(name: str, path: str) -> Iterator[Path]:
    """A file to write beside ``path``, which becomes it when all went well."""
    goal = Path(path)
    try:
        handle, beside = tempfile.mkstemp(dir=goal.parent, prefix=f".{goal.stem}-", suffix=goal.suffix)
    except OSError as error:
        raise InvalidArgument(name, "a file in a folder that can be written to", path, error.strerror or "") from None
    os.close(handle)
    try:
        yield Path(beside)
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, goal)
    except OSError as error:
        raise InvalidArgument(name, "a file that can be written", path, error.strerror or "") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _check_figure(path: str | None) -> None:
    """Before any work: that a figure can be drawn and has a known ending."""
    if path is None:
        return
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        cure = "pip install 'darrm-torch[plots]'"
        raise InvalidArgument("--plot", "used where matplotlib is installed", "no matplotlib", cure) from None
    _check_ending("--plot", path, *(f".{ending}" for ending in sorted(FigureCanvasBase.filetypes)))


def _save_figure(axes: Any, path: str) -> None:
    with _whole("--plot", path) as beside:
        axes.figure.savefig(beside)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


def _bar(total: int | None, what: str) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=total, desc=what, leave=False, delay=1, dynamic_ncols=True, disable=None)


@contextlib.contextmanager
def _search_bar() -> Iterator[Callable[[float], None]]:
    """For a search of noise: told of each of its rounds."""
    with _bar(None, "noise") as bar:

        def each(excess: float) -> None:
            bar.set_postfix_str(f"delta over by {excess:.1e}", refresh=False)
            bar.update()

        yield each


# --- the commands ---------------------------------------------------------------------------------------------------


def _add_teacher(parser: Any, words: str = "what each teacher promises") -> None:
    group = parser.add_argument_group(words)
    group.add_argument("--teacher", type=_guarantee, metavar="EPS,DELTA", help="as one guarantee")
    group.add_argument("--noise-multiplier", type=float, metavar="S", help="as DP-SGD: noise")
    group.add_argument("--sample-rate", type=_rate, metavar="Q", help="as DP-SGD: chance of a record, such as 1/35")
    group.add_argument("--steps", type=int, metavar="N", help="as DP-SGD: steps")


def _add_common(parser: Any) -> None:
    parser.add_argument("--overlap", type=int, metavar="R", help="teachers one record can touch (default: all)")
    parser.add_argument(
        "--prior",
        type=_prior,
        default="independent:0.75",
        metavar="P",
        help="how teachers vote: independent:MEAN, shared:LOW,HIGH or beta:A,B (default: independent:0.75, each is "
        "right with chance 0.75, whatever the others vote: IndependentVotes(mean=0.75))",
    )


def _plan_parser(parser: Any) -> None:
    parser.add_argument("--teachers", type=int, metavar="K", help="how many (default: those in --teachers-folder)")
    _add_teacher(parser, "what each teacher promises (leave out: teachers without privacy)")
    parser.add_argument("--teachers-folder", metavar="FOLDER", help="or read teacher-*.pt, as Opacus left them")
    _add_common(parser)
    parser.set_defaults(prior=None)
    parser.add_argument(
        "--classes", type=int, default=2, metavar="C", help=f"with more than two: --prior {_OF_MANY} (default: several)"
    )
    parser.add_argument("--labels", type=int, default=1, metavar="Q", help="how many will be released")
    parser.add_argument("--label-target", type=_guarantee, metavar="EPS,DELTA", help="what one label may cost")
    parser.add_argument("--total-target", type=_guarantee, metavar="EPS,DELTA", help="what all may cost together")
    parser.add_argument(
        "--agreement", type=float, metavar="A", help="also: what this agreement costs, and what teachers it needs"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw agreement against epsilon")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _plan(chosen: Any) -> int:
    from .certificate import check_overlap
    from .guarantees import shown
    from .planner import plan
    from .plurality import PluralityVotes
    from .strategies import families

    if chosen.label_target is None and chosen.total_target is None:
        raise _UsageError("no target: give --label-target EPS,DELTA or --total-target EPS,DELTA")
    if chosen.teachers_folder is not None:
        count = len(_teacher_files("--teachers-folder", chosen.teachers_folder))
        if chosen.teachers not in (None, count):
            raise InvalidArgument("--teachers", f"left out, or {count}, as many as are in the folder", chosen.teachers)
        chosen.teachers = count
    if chosen.teachers is None:
        raise _UsageError("missing --teachers, or else --teachers-folder (see darrm plan --help)")
    check_integer("--teachers", chosen.teachers, low=1)  # here and below: before what takes long
    check_overlap(chosen.overlap, chosen.teachers)
    check_integer("--labels", chosen.labels, low=1)
    if chosen.agreement is not None:
        check_number("--agreement", chosen.agreement, low=0.0, high=1.0, low_open=True)
    _check_figure(chosen.plot)
    prior, many = None if chosen.prior is None else _read_prior(chosen.prior), chosen.classes > 2
    if prior is not None and isinstance(prior, PluralityVotes) != many:
        raise InvalidArgument("--prior", f"{_OF_MANY if many else _OF_TWO} with {chosen.classes} classes", chosen.prior)
    teacher, kinds = _teacher(chosen), len(families(chosen.classes))
    with _bar(kinds, "strategies") as bar:
        answer = plan(
            teachers=chosen.teachers,
            classes=chosen.classes,
            teacher=teacher,
            overlap=chosen.overlap,
            labels=chosen.labels,
            label_target=None if chosen.label_target is None else _read_guarantee(chosen.label_target),
            total_target=None if chosen.total_target is None else _read_guarantee(chosen.total_target),
            prior=prior,
            each=lambda name: bar.update(),
        )
    costs, needed = None, None
    if chosen.agreement is not None:
        with _bar(kinds, "costs") as bar:
            costs = answer.costs(chosen.agreement, each=lambda name: bar.update())
    if chosen.agreement is not None or not answer.teacher.is_private:
        with _bar(22, "teachers") as bar:
            needed = answer.teachers_needed(0.95 if chosen.agreement is None else chosen.agreement, each=bar.update)
    if chosen.plot is not None:
        from .plots import plot_frontier

        with _bar(13, "figure") as bar:
            axes = plot_frontier(answer, each=lambda epsilon: bar.update())
        _save_figure(axes, chosen.plot)
    if chosen.json:
        plain = answer.to_dict()
        plain["costs"] = None if costs is None else dict(costs)
        plain["teachers_needed"] = None if needed is None else needed.to_dict()
        _print_json(plain)
        return 0
    print(answer)
    if costs is not None:
        print(f"\nWhat an agreement of {chosen.agreement:g} costs, in epsilon:")
        for name, epsilon in costs:
            print(f"  {name:<32}{shown(epsilon):>10}")
    if needed is not None:
        print(f"\n{_fill(str(needed))}")
    return 0


def _fill(text: str) -> str:
    import textwrap

    return textwrap.fill(text, 79, subsequent_indent="  ")


def _noise_parser(parser: Any) -> None:
    parser.add_argument("--teachers", type=int, required=True, metavar="K", help="how many")
    _add_teacher(parser)
    _add_common(parser)
    parser.add_argument("--target", type=_guarantee, metavar="EPS,DELTA", help="of one label: the optimum for it")
    parser.add_argument("--allowance", type=float, metavar="M", help="or: labels add up, each at M teachers' cost")
    parser.add_argument("--shape", choices=["monotone", "free"], default="monotone", help="of the optimum")
    parser.add_argument("--out", metavar="FILE", help="write it here as JSON (default: print it)")
    parser.add_argument("--plot", metavar="FILE", help="draw it")
    parser.add_argument("--json", action="store_true", help="say what was proven as JSON")


def _noise(chosen: Any) -> int:
    from .noise import self_bounding_noise
    from .program import optimize_noise

    if (chosen.target is None) == (chosen.allowance is None):
        raise InvalidArgument(
            "--target", "given, or else --allowance", "neither" if chosen.target is None else "both", "Give one."
        )
    check_integer("--teachers", chosen.teachers, low=1, high=100_000)
    _check_figure(chosen.plot)
    prior: Any = _read_prior(chosen.prior)  # which the library refuses if it is for many classes
    if chosen.target is not None:
        teacher = _teacher(chosen)
        if teacher is None:
            raise InvalidArgument("--teacher", "given", None, "Or give --noise-multiplier, --sample-rate and --steps.")
        with _search_bar() as each:
            noise = optimize_noise(
                teachers=chosen.teachers,
                teacher=teacher,  # type: ignore[arg-type]
                target=_read_guarantee(chosen.target),
                overlap=chosen.overlap,
                prior=prior,
                shape=chosen.shape,
                each=each,
            )
    else:
        noise = self_bounding_noise(
            teachers=chosen.teachers, allowance=chosen.allowance, overlap=chosen.overlap, prior=prior
        )
    if chosen.plot is not None:
        from .plots import plot_noise

        _save_figure(plot_noise(noise), chosen.plot)
    if chosen.out is None:
        print(noise.to_json())
        return 0
    with _whole("--out", chosen.out) as beside:
        beside.write_text(noise.to_json())
    _report_noise(noise, chosen)
    return 0


def _report_noise(noise: NoiseFunction, chosen: Any) -> None:
    from .certificate import Certificate
    from .guarantees import shown

    proven = noise.certificate
    assert proven is not None
    plain: dict[str, Any] = {"teachers": noise.teachers, "overlap": proven.overlap, "margin": proven.margin}
    if isinstance(proven, Certificate):
        plain |= {
            "kind": "label",
            "target": [proven.target.epsilon, proven.target.delta],
            "loss": proven.loss,
            "worst_case": str(proven.worst_case),
        }
        words = (
            f"Proven: one label of {noise.teachers} teachers that are "
            f"{' and '.join(map(str, proven.teacher))} is {proven.target}, if a record touches at most "
            f"{proven.overlap} of them. Worst loss {shown(proven.loss, 6)}, margin {proven.margin:.2g}; worst case: "
            f"{proven.worst_case}."
        )
    else:
        plain |= {"kind": "self-bounding", "allowance": proven.allowance, "smallest": proven.smallest}
        words = (
            f"Proven: Q labels of {noise.teachers} (eps, delta)-DP teachers are together (Q m eps, Q m delta)-DP with "
            f"m = {shown(proven.allowance)}, if a record touches at most {proven.overlap} of them."
        )
    if chosen.json:
        _print_json(plain)
    else:
        print(_fill(words))


def _verify_parser(parser: Any) -> None:
    parser.add_argument("file", help="what `darrm noise --out` wrote")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _verify(chosen: Any) -> int:
    from .noise import NoiseFunction

    text = _text("file", chosen.file)
    try:
        noise = NoiseFunction.from_json(text)
    except InvalidArgument as error:
        cure = "" if error.name == "text" else str(error)
        raise InvalidArgument("file", "what `darrm noise --out` wrote", chosen.file, cure) from None
    except PrivacyViolation as error:
        raise PrivacyViolation(f"{chosen.file}: {error}") from None
    if noise.certificate is None:
        raise PrivacyViolation(f"{chosen.file} claims nothing: it has no certificate. Make one with `darrm noise`")
    _report_noise(noise, chosen)
    return 0


def _text(name: str, path: str) -> str:
    try:
        return _existing(name, path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(name, "a text file that can be read", path, str(error)) from None


def _teachers_parser(parser: Any) -> None:
    parser.add_argument("sources", nargs="+", help="files of Opacus or Lightning, or one folder of teacher-*.pt")
    parser.add_argument("--delta", type=float, default=1e-5, help="where epsilons are compared")
    _add_accept(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


def _add_accept(parser: Any) -> None:
    parser.add_argument(
        "--accept",
        nargs="+",
        choices=["gdp", "sampling", "buffers", "seeds"],
        default=[],
        metavar="FINDING",
        help="go on with a finding that would be refused, and say so: gdp, sampling, buffers, seeds",
    )


def _teachers(chosen: Any) -> int:
    from dataclasses import asdict

    from .guarantees import shown
    from .opacus import read_teachers

    paths = [_existing("sources", source) for source in chosen.sources]
    if len(paths) == 1 and paths[0].is_dir():
        paths = _teacher_files("sources", chosen.sources[0])
    with _named("sources"):
        profiles = read_teachers(paths, delta=chosen.delta, accept=chosen.accept)
    if chosen.json:
        _print_json(
            [
                {"file": str(path), "profile": profile.to_dict(), **asdict(profile.reading)}
                for path, profile in zip(paths, profiles, strict=True)
            ]
        )
        return 0
    print(f"Epsilon (nats) at delta {shown(chosen.delta, 3)}: ours, and by Opacus' accountants.\n")
    width = min(40, max(len(path.name) for path in paths))
    print(f"  {'teacher':<{width}}{'epsilon':>10}{'PRV':>10}{'RDP':>10}   sampling")
    for path, profile in zip(paths, profiles, strict=True):
        reading, theirs = profile.reading, dict(profile.reading.accountant_epsilons)
        numbers = "".join(shown(e).rjust(10) for e in (reading.epsilon, theirs["prv"], theirs["rdp"]))
        print(f"  {path.name[-width:]:<{width}}{numbers}   {reading.sampling}")
    for note in dict.fromkeys(note for profile in profiles for note in profile.reading.notes):
        print(_fill(f"- {note}"))
    return 0


# How the strength of each mechanism can be said.
_STRENGTHS: dict[str, tuple[str, ...]] = {
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


def _label_parser(parser: Any) -> None:
    parser.add_argument("--inputs", required=True, metavar="FILE", help=".npy or .pt: what to label, (N, ...)")
    parser.add_argument(
        "--models", nargs="+", required=True, metavar="FILE", help="TorchScript files; or weights, with --build"
    )
    parser.add_argument("--build", metavar="MODULE:FUNCTION", help="makes the network the weights belong to")
    parser.add_argument("--ledger", required=True, metavar="FILE", help="keeps every label with its charge")
    parser.add_argument("--out", required=True, metavar="FILE", help=".npy or .pt for the labels")
    parser.add_argument("--classes", type=int, nargs="+", metavar="C", help="outputs that compete, such as 5 8")
    parser.add_argument("--overlap", type=int, metavar="R", help="teachers one record can touch (default: all)")
    parser.add_argument("--batch-size", type=int, default=256, metavar="N", help="inputs asked at once")
    parser.add_argument("--budget", type=_guarantee, metavar="EPS,DELTA", help="the most all labels may cost")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    noise = parser.add_argument_group("noise")
    noise.add_argument(
        "--mechanism",
        choices=list(_STRENGTHS),
        default="darrm",
        metavar="NAME",
        help=f"private through the teachers: {', '.join(_WITH_TEACHERS)}; through its own coins, whatever the "
        f"teachers are: {', '.join(name for name in _STRENGTHS if name not in _WITH_TEACHERS)} (default: darrm)",
    )
    noise.add_argument("--allowance", type=float, metavar="M", help="a label costs what M teachers do")
    noise.add_argument("--label-target", type=_guarantee, metavar="EPS,DELTA", help="or: what one label may cost")
    noise.add_argument("--total-target", type=_guarantee, metavar="EPS,DELTA", help="or: what all may cost together")
    noise.add_argument("--labels", type=int, metavar="Q", help="how many all are (default: the inputs)")
    teachers = parser.add_argument_group("what the teachers promise")
    teachers.add_argument(
        "--accountants",
        nargs="+",
        metavar="FILE",
        help="Opacus' checkpoints, one a model (default: the models' files, or none where coins protect)",
    )
    teachers.add_argument("--delta", type=float, default=1e-5, help="of one teacher")
    _add_accept(teachers)


def _label(chosen: Any) -> int:
    import torch

    from .ensemble import PrivateMajorityEnsemble
    from .ledger import PrivacyLedger

    _check_ending("--out", chosen.out, ".npy", ".pt")
    check_integer("--batch-size", chosen.batch_size, low=1)
    strength = _strength(chosen)
    most = chosen.budget or chosen.total_target
    budget = None if most is None else _read_guarantee(most)
    new = not Path(chosen.ledger).exists()
    ledger = PrivacyLedger(":memory:" if new else chosen.ledger, budget)
    inputs = _tensor("--inputs", chosen.inputs)
    models = [_model(_existing("--models", path), chosen.build) for path in chosen.models]
    ensemble = _ensemble(chosen, inputs, models, strength, ledger)
    with _saved("--out", chosen.out) as save:
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
        with _bar(len(inputs), "labels") as bar:
            for batch in batches:
                labels.append(ensemble(batch))
                bar.update(len(batch))
        save(torch.cat(labels))
    if chosen.json:
        _print_json(ensemble.privacy_report(as_dict=True))
    else:
        print(ensemble.privacy_report())
    return 0


def _ensemble(chosen: Any, inputs: Any, models: list[Any], strength: dict[str, Any], ledger: PrivacyLedger) -> Any:
    """The teachers and the noise that were asked for."""
    from .candidates import strongest_mechanism
    from .ensemble import PrivateMajorityEnsemble
    from .guarantees import PrivacyProfile
    from .mechanisms import NoiseFreeMajority
    from .opacus import read_teachers

    kind = chosen.mechanism
    accountants: list[Path] | None = None
    if chosen.accountants is not None:
        accountants = [_existing("--accountants", path) for path in chosen.accountants]
        if len(accountants) != len(models):
            raise InvalidArgument("--accountants", f"one for each of {len(models)} models", len(accountants))
    elif kind in _WITH_TEACHERS:
        if chosen.build is None:
            raise InvalidArgument("--accountants", "given with TorchScript models", None, "They hold no accountant.")
        accountants = [Path(path) for path in chosen.models]
    classes = _competing(models[0], inputs, chosen.classes)
    where = "--models" if chosen.accountants is None else "--accountants"
    if kind in ("darrm", "darrm-point"):
        assert accountants is not None
        if classes > 2:
            cure = "Choose two with --classes, or another mechanism, such as self-bounding."
            raise InvalidArgument(f"--mechanism {kind}", "used with two classes", classes, cure)
        with _named(where), _search_bar() as each:
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
        with _named(where):
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
    ways = _STRENGTHS[chosen.mechanism]
    given = [name for name in ("allowance", "label_target", "total_target") if getattr(chosen, name) is not None]
    if (len(given) != 1 or given[0] not in ways) if ways else given:
        cure = "The most that all labels may cost is --budget." if "total_target" not in ways else ""
        raise InvalidArgument(
            f"--mechanism {chosen.mechanism}",
            f"used with {f'one of {_options(ways)}' if ways else 'no allowance or target'}",
            _options(given) or "none",
            cure,
        )
    if "total_target" not in given and chosen.labels is not None:
        raise InvalidArgument("--labels", "used with --total-target", chosen.labels)
    if "total_target" in given and chosen.budget is not None:
        raise InvalidArgument("--budget", "left out with --total-target, which is the budget", chosen.budget)
    return {
        name: value if name == "allowance" else _read_guarantee(value)
        for name, value in ((name, getattr(chosen, name)) for name in given)
    }


def _options(names: Sequence[str]) -> str:
    return ", ".join(map(_option, names))


def _competing(model: Any, inputs: Any, classes: Sequence[int] | None) -> int:
    """How many classes can be voted for, by what one teacher says of one input."""
    from .ensemble import PrivateMajorityEnsemble
    from .mechanisms import NoiseFreeMajority

    alone = PrivateMajorityEnsemble([model], NoiseFreeMajority(), classes=classes)
    try:
        return int(alone.sensitive_counts(inputs[:1]).shape[1])
    except DarrmError:
        raise
    except Exception as error:  # the user's own network, or inputs that are not for it
        raise InvalidArgument("--inputs", "what the models take", tuple(inputs.shape), _one_line(error)[:160]) from None


def _tensor(name: str, path: str) -> Any:
    import numpy as np
    import torch

    file = _existing(name, path)
    try:
        if file.suffix == ".npy":
            return torch.from_numpy(np.load(file, allow_pickle=False))
        if file.suffix == ".pt":
            tensor = torch.load(file, map_location="cpu", weights_only=True)
            if isinstance(tensor, torch.Tensor):
                return tensor
    except Exception as error:  # NumPy and Torch raise many kinds on a damaged file
        raise InvalidArgument(name, "an array in a .npy or .pt file", path, _one_line(error)[:80]) from None
    raise InvalidArgument(name, "an array in a .npy or .pt file", path)


@contextlib.contextmanager
def _saved(name: str, path: str) -> Iterator[Callable[[Any], None]]:
    """Ready to write an array before it is paid for."""
    import numpy as np
    import torch

    with _whole(name, path) as beside:

        def save(tensor: Any) -> None:
            if beside.suffix == ".npy":
                np.save(beside, tensor.numpy())
            else:
                torch.save(tensor, beside)

        yield save


def _model(path: Path, build: str | None) -> Any:
    """A network: TorchScript, or what ``build`` makes with the weights of a file."""
    import torch

    from .teachers import load_weights

    if build is None:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*torch.jit.load.* is deprecated")
                script = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
            for weight in script.parameters():
                weight.requires_grad_(False)  # else its copies are not leaves, and nobody could freeze them
            return script
        except (RuntimeError, ValueError) as error:
            cure = f"Weights need --build MODULE:FUNCTION. {_one_line(error)[:80]}"
            raise InvalidArgument("--models", "TorchScript files", str(path), cure) from None
    network = _built("--build", build)
    try:
        record = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # Torch raises many kinds on a damaged or foreign file
        cure = f"It cannot be read ({type(error).__name__}); tensors and plain values are."
        raise InvalidArgument("--models", "a checkpoint", str(path), cure) from None
    try:
        state = record.get("module_state_dict", record.get("state_dict", record))
        load_weights(
            network,
            {name.removeprefix("_module."): value for name, value in state.items()},
            path,
            cure="Does --build make the network that was trained?",
        )
    except InvalidArgument:
        raise
    except Exception as error:  # whatever was saved there is no state dict
        cure = f"{type(error).__name__}: {_one_line(error)[:160]}"
        raise InvalidArgument("--models", f"weights of what {build} makes", str(path), cure) from None
    return network


def _built(name: str, place: str) -> Any:
    from torch import nn

    module, _, function = place.partition(":")
    if not module or not function:
        raise InvalidArgument(name, "MODULE:FUNCTION", place, "For example mymodels:build.")
    sys.path.insert(0, os.getcwd())
    try:
        network = getattr(importlib.import_module(module), function)()
    except Exception as error:  # the user's own code
        cure = f"{type(error).__name__}: {_one_line(error)}. It is looked for in this folder and in what is installed."
        raise InvalidArgument(name, "MODULE:FUNCTION that makes a network without arguments", place, cure) from None
    finally:
        sys.path.pop(0)
    if not isinstance(network, nn.Module):
        raise InvalidArgument(name, "a function that returns a torch.nn.Module", type(network).__name__)
    return network


def _student_parser(parser: Any) -> None:
    parser.add_argument("--inputs", required=True, metavar="FILE", help=".npy or .pt, (N, ...)")
    parser.add_argument("--labels", required=True, metavar="FILE", help=".npy or .pt, (N,): what `darrm label` wrote")
    parser.add_argument("--build", required=True, metavar="MODULE:FUNCTION", help="makes the untrained student")
    parser.add_argument("--out", required=True, metavar="FILE", help=".pt for its weights")
    parser.add_argument("--classes", type=int, default=2, metavar="C", help="how many")
    parser.add_argument("--epochs", type=int, default=20, metavar="N", help="passes over the labels")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="of a step")
    parser.add_argument("--learning-rate", type=float, default=1e-3, metavar="L", help="of Adam")
    parser.add_argument("--test-inputs", metavar="FILE", help="held-out inputs")
    parser.add_argument("--test-labels", metavar="FILE", help="and their labels")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _student(chosen: Any) -> int:
    import logging

    import lightning as L
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from .lightning import StudentModule

    def dataset(inputs: str, labels: str, which: str) -> TensorDataset:
        x, y = _tensor(f"--{which}inputs", inputs), _tensor(f"--{which}labels", labels)
        if y.dim() != 1 or len(x) != len(y) or not len(y) or y.is_floating_point():
            raise InvalidArgument(f"--{which}labels", f"integers, one for each of {len(x)} inputs", tuple(y.shape))
        if y.max() >= chosen.classes:
            raise InvalidArgument(f"--{which}labels", f"below --classes {chosen.classes}", int(y.max()))
        return TensorDataset(x.float(), y.long())

    _check_ending("--out", chosen.out, ".pt")
    size = check_integer("--batch-size", chosen.batch_size, low=1)
    check_number("--learning-rate", chosen.learning_rate, low=0.0, low_open=True, high=1000.0)
    epochs = check_integer("--epochs", chosen.epochs, low=1)
    train = dataset(chosen.inputs, chosen.labels, "")
    if (chosen.test_inputs is None) != (chosen.test_labels is None):
        raise InvalidArgument("--test-inputs", "given together with --test-labels", "only one of them")
    test = None if chosen.test_inputs is None else dataset(chosen.test_inputs, chosen.test_labels, "test-")
    network = _built("--build", chosen.build)
    for part in (train, test):
        if part is not None:
            _check_outputs(network, part.tensors[0][:1], chosen.classes)
    student = StudentModule(network, classes=chosen.classes, learning_rate=chosen.learning_rate)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings(), _whole("--out", chosen.out) as beside:
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
        _print_json({"weights": chosen.out, "labels": len(train), "epochs": epochs, "test_accuracy": accuracy})
    else:
        print(f"Trained on {len(train)} labels for {epochs} epochs; weights in {chosen.out}.")
        if accuracy is not None:
            print(f"Accuracy on {len(test or ())} held-out inputs: {accuracy:.3f}")
    return 0


def _check_outputs(network: Any, inputs: Any, classes: int) -> None:
    """That a network takes the inputs and has one output for each class."""
    import torch

    training = network.training
    try:
        with torch.no_grad():
            outputs = tuple(network.eval()(inputs).shape)
    except Exception as error:  # the user's own network, or inputs that are not for it
        expected, cure = "inputs that the network of --build takes", _one_line(error)[:160]
        raise InvalidArgument("--inputs", expected, tuple(inputs.shape[1:]), cure) from None
    finally:
        network.train(training)
    if outputs != (1, classes):
        cure = "Give the number of the network's outputs."
        raise InvalidArgument("--classes", f"a network's outputs, (1, {classes}) for one input", outputs, cure)


_RECIPES = {
    "demo": ("recipes.01_private_labels", "--run", "runs/demo", ["results.json"]),
    "reproduce": ("recipes.reproduce.__main__", "--out", "runs/reproduce", []),
}


class _Prefixed:
    """Errors of a recipe, as the command says them."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> Any:
        return self._stream.write(re.sub(r"\A(?=error: |stopped)", "darrm: ", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _recipe(name: str, arguments: list[str]) -> int:
    """Runs a recipe of the source tree with its own arguments; with --json its results instead of its tables."""
    module, option, folder, files = _RECIPES[name]
    root = next(
        (place for place in (Path.cwd(), Path(__file__).parents[1]) if (place / "recipes" / "reproduce").is_dir()), None
    )
    if {"-h", "--help"} & set(arguments):
        _, words, example, _, _ = next(command for command in _COMMANDS if command[0] == name)
        print(f"{words}\n\nexample:\n  {example}\n\n--json prints the results as JSON. The rest is the recipe's own:\n")
    if root is None:
        raise _UsageError(
            f"{name} needs the source tree, which is not part of an installation: run it in a clone of the repository"
        )
    sys.path.insert(0, str(root))
    errors = _Prefixed(sys.stderr)
    recipe = importlib.import_module(module)
    run, asked = recipe.main, [argument for argument in arguments if argument != "--json"]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            names = getattr(recipe.read_arguments(asked), "names", ())
        except SystemExit as stop:
            if stop.code:
                raise _UsageError(_one_line(said.getvalue().rpartition("error: ")[2])) from None
            return 0
    for unknown in names:
        if unknown not in recipe.NAMES:
            raise InvalidArgument("name", f"one of {', '.join(recipe.NAMES)}", unknown)
    if "--json" not in arguments:
        with contextlib.redirect_stderr(errors):
            return int(run(arguments))
    if option in asked[:-1]:
        folder = asked[asked.index(option) + 1]
    else:
        asked += [option, folder]
    with contextlib.redirect_stdout(sys.stderr), contextlib.redirect_stderr(errors):
        status = int(run(asked))
    if status == 0:
        found = [Path(folder) / file for file in files] or sorted(Path(folder).glob("*.json"))
        _print_json({file.stem: json.loads(file.read_text(encoding="utf-8")) for file in found})
    return status


# name, what it does, an example, its arguments, what runs it
_COMMANDS: tuple[tuple[str, str, str, Any, Any], ...] = (
    (
        "demo",
        "Private images to teachers to private labels to a student.",
        "darrm demo --data fashion-mnist",
        None,
        None,
    ),
    (
        "plan",
        "Which way of releasing labels for which budget, and why.",
        "darrm plan --teachers 11 --noise-multiplier 12 --sample-rate 1/35 \\\n"
        "      --steps 175 --label-target 0.1,1e-4",
        _plan_parser,
        _plan,
    ),
    (
        "noise",
        "Find the best noise function, prove it, write it as JSON.",
        "darrm noise --teachers 11 --teacher 0.1,1e-5 --target 0.3,1e-4 --out n.json",
        _noise_parser,
        _noise,
    ),
    ("verify", "Prove a noise function again.", "darrm verify n.json", _verify_parser, _verify),
    (
        "teachers",
        "What teachers trained with Opacus promise.",
        "darrm teachers runs/demo/teachers --delta 1e-4",
        _teachers_parser,
        _teachers,
    ),
    (
        "label",
        "Private labels from models, charged to a ledger.",
        "darrm label --inputs x.npy --models t0.pt t1.pt --build nets:build \\\n"
        "      --mechanism self-bounding --total-target 1,1e-5 --overlap 1 \\\n"
        "      --ledger labels.sqlite --out y.npy",
        _label_parser,
        _label,
    ),
    (
        "student",
        "Train a student on labels; costs no privacy.",
        "darrm student --inputs x.npy --labels y.npy --build nets:build --out s.pt",
        _student_parser,
        _student,
    ),
    (
        "reproduce",
        "The paper's figures and tables.",
        "darrm reproduce losses --out runs/reproduce",
        None,
        None,
    ),
)


def _build_parser(chosen: str | None) -> _Parser:
    """The parser; only the chosen command's own is filled in."""
    parser = _Parser(
        prog="darrm",
        description="Private labels from ensembles of differentially private teachers.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  darrm plan --teachers 11 --teacher 0.1,1e-5 --label-target 0.3,1e-4\n\n"
        "Exit status: 0 done, 1 refused (no proof, or over budget), 2 a mistake in the\n"
        "command or its files. Each command has --help with an example, and --json.",
    )
    commands = parser.add_subcommands(metavar="command", title="commands")
    for name, words, example, fill, _ in _COMMANDS:
        command = _Parser(
            description=words,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if fill is not None and name == chosen:
            command.add_argument("--config", action="config", metavar="FILE", help="read options from YAML or JSON")
            fill(command)
        commands.add_subcommand(name, command, help=words)
        command.prog = f"darrm {name}"
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit status is 0, 1 (refused), 2 (a mistake) or 130 (stopped).

    Args:
        arguments: without the name of the program; None: those of this process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen: Any = None
    try:
        if given and given[0] in _RECIPES:
            return _recipe(given[0], given[1:])
        everything = _build_parser(given[0] if given else None).parse_args(given)
        chosen = everything[everything.subcommand]
        run = next(command[4] for command in _COMMANDS if command[0] == everything.subcommand)
        _check_places(chosen)
        return int(run(chosen))
    except DarrmError as error:
        message = _one_line(error)
        if isinstance(error, InvalidArgument) and error.name.partition(".")[0] in (chosen or ()):
            message = _option(error.name.partition(".")[0]) + message.removeprefix(error.name.partition(".")[0])
        if isinstance(error, LedgerError) and chosen is not None:
            message = f"--ledger: {message}"
        print(f"darrm: error: {message}", file=sys.stderr)
        return 1 if isinstance(error, _REFUSED) else 2
    except KeyboardInterrupt:
        print("darrm: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MemoryError, OverflowError) as error:
        print(f"darrm: error: a number is too large: {_one_line(error) or 'out of memory'}", file=sys.stderr)
        return 2
    except Exception as error:  # a mistake that no check foresaw, or a defect of ours
        if os.environ.get("DARRM_TRACEBACK"):
            raise
        message = f"unexpected {type(error).__name__}: {_one_line(error)[:300]} (DARRM_TRACEBACK=1 shows where)"
        print(f"darrm: error: {message}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
