"""``darrm audit``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import darrm_torch as dt

from ..errors import InvalidArgument
from ..reprs import wrapped
from .networks import find_function, modules_here, result_of
from .noise import read_noise
from .parser import Command, UsageError, one_of, option_name, require
from .promises import add_teacher, read_teacher
from .showing import check_figure, print_json, progress, save_figure
from .values import guarantee, read_guarantee

__all__ = ["COMMAND"]


def _add_arguments(parser: Any) -> None:
    from ..planning.families import FAMILIES

    parser.add_argument("--mechanism", type=one_of(*FAMILIES), metavar="KIND", help=f"one of {', '.join(FAMILIES)}")
    parser.add_argument("--noise", metavar="FILE", help="or: a noise function that `darrm noise --out` wrote")
    parser.add_argument("--teachers", type=int, metavar="K", help="how many (default: as the noise function says)")
    parser.add_argument("--classes", type=int, default=2, metavar="C", help="number of classes (default: 2)")
    add_teacher(parser, "what each teacher promises, where the mechanism rests on it")
    parser.add_argument("--overlap", type=int, metavar="R", help="most teachers a record can affect (default: all)")
    parser.add_argument("--label-target", type=guarantee, metavar="EPS,DELTA", help="what one label may cost")
    parser.add_argument("--allowance", type=float, metavar="M", help="or: a label costs as much as M teachers")
    parser.add_argument("--claim", type=guarantee, metavar="EPS,DELTA", help="what to refute (default: its guarantee)")
    parser.add_argument(
        "--samples", type=int, default=5_000_000, metavar="N", help="most labels on each data set (default: 5000000)"
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=0.999,
        help="that of the lower bound (default: 0.999); a pipeline is judged at 0.95",
    )
    parser.add_argument(
        "--pipeline", metavar="MODULE:FUNCTION", help="audit your own function of records, which returns a release"
    )
    parser.add_argument("--records", metavar="MODULE:FUNCTION", help="returns the private inputs and labels")
    parser.add_argument("--strength", default="gradient", type=one_of("gradient", "far-out", "mislabelled"),
                        help="kind of canaries: gradient (default), far-out or mislabelled")  # fmt: skip
    parser.add_argument(
        "--canaries",
        type=int,
        metavar="M",
        help="number of canaries (default: 500, or one for each dimension if those are fewer)",
    )
    parser.add_argument(
        "--query-control", action="store_true", help="the function takes queries, too: it is given the canaries"
    )
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="how often to run the function (default: 1)")
    parser.add_argument(
        "--copies", type=int, default=0, metavar="N", help="copies of each canary that are always in (default: 0)"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw claims and bounds into this file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(chosen: Any) -> int:
    if [chosen.mechanism, chosen.noise, chosen.pipeline].count(None) != 2:
        raise UsageError("give --mechanism KIND, --noise FILE or --pipeline MODULE:FUNCTION (see darrm audit --help)")
    if chosen.pipeline is not None:
        return _run_pipeline(chosen)
    if chosen.records is not None or chosen.plot is not None:
        raise UsageError("--records and --plot go with --pipeline (see darrm audit --help)")
    mechanism = _from_file(chosen) if chosen.mechanism is None else _of_kind(chosen)
    claim = next((read_guarantee(text) for text in (chosen.claim, chosen.label_target) if text is not None), None)
    worst_case = _worst_case(mechanism, claim, chosen)
    with progress(None, "draws"):
        result = dt.audit(
            mechanism,
            claim=claim,
            worst_case=worst_case,
            teachers=chosen.teachers if worst_case is None else None,
            overlap=chosen.overlap,
            samples=chosen.samples,
            confidence=chosen.confidence,
        )
    if chosen.json:
        plain = {"epsilon": result.epsilon, "claim": {"epsilon": result.claim.epsilon, "delta": result.claim.delta}}
        print_json({**plain, **{name: getattr(result, name) for name in ("draws", "confidence", "worst_case")}})
    else:
        print(
            wrapped(
                f"Not refuted: one label is {result.claim}. From {result.draws} labels, epsilon is at least "
                f"{result.epsilon:.4g} at this delta, with confidence {result.confidence:g}. This proves nothing; an "
                "audit only finds grave mistakes."
            )
        )
    return 0


def _run_pipeline(chosen: Any) -> int:
    """Audit the user's own function; 1 if its claim is refuted or the library refused it."""
    require("audit", {"--records": (chosen.records,), "--claim": (chosen.claim,)})
    check_figure(chosen.plot)
    pipeline = find_function("--pipeline", chosen.pipeline)
    records = result_of("--records", chosen.records, "(inputs, labels)")
    if not isinstance(records, tuple) or len(records) != 2:
        raise InvalidArgument("--records", "a function that returns (inputs, labels)", type(records).__name__)
    with modules_here(), progress(chosen.runs, "runs") as bar:
        result = dt.audit_pipeline(
            pipeline,
            *records,
            claim=read_guarantee(chosen.claim),
            strength=chosen.strength,
            canaries=chosen.canaries,
            query_control=chosen.query_control,
            runs=chosen.runs,
            copies=chosen.copies,
            on_progress=lambda run: bar.update(),
        )
    if chosen.json:
        print_json(result.to_dict())
    else:
        print(result)
    if chosen.plot is not None:
        save_figure(dt.plot_audit(result), chosen.plot)
    return int(result.flagged)


def _from_file(chosen: Any) -> dt.Mechanism:
    """DaRRM with the noise function of ``--noise``, proven again."""
    noise = read_noise("--noise", chosen.noise)
    if chosen.teachers not in (None, noise.teachers):
        raise InvalidArgument("--teachers", f"{noise.teachers}, as the noise function says", chosen.teachers)
    return dt.DaRRM(noise, uncertified=noise.certificate is None)


def _of_kind(chosen: Any) -> dt.Mechanism:
    """The strongest mechanism of the kind ``--mechanism``."""
    from ..planning.families import FAMILIES

    needed: dict[str, Sequence[Any]] = {"--teachers": (chosen.teachers,)}
    if strengths := [name for name in FAMILIES[chosen.mechanism].strengths if name != "total_target"]:
        needed[" or ".join(map(option_name, strengths))] = (chosen.allowance, chosen.label_target)
    require("audit", needed)
    return dt.strongest_mechanism(
        chosen.mechanism,
        teachers=chosen.teachers,
        classes=chosen.classes,
        teacher=read_teacher(chosen),
        overlap=chosen.overlap,
        allowance=chosen.allowance,
        label_target=None if chosen.label_target is None else read_guarantee(chosen.label_target),
    )


def _worst_case(mechanism: dt.Mechanism, claim: dt.PrivacyGuarantee | None, chosen: Any) -> dt.WorstCase | None:
    """The worst teachers under the noise of two classes, where the certificate does not name them."""
    teacher = read_teacher(chosen)
    if not isinstance(mechanism, dt.DaRRM) or isinstance(mechanism.certificate, dt.Certificate) or teacher is None:
        return None
    if claim is None:
        raise InvalidArgument(
            "--claim", "given with this noise", None, "For an allowance M, it is what M teachers promise."
        )
    gamma, overlap = mechanism.noise.gamma, chosen.overlap or getattr(mechanism.certificate, "overlap", None)
    return dt.certify(gamma, teachers=len(gamma) - 1, teacher=teacher, target=claim, overlap=overlap).worst_case


COMMAND = Command(
    summary="Try to refute the guarantee of a label, or of a whole pipeline.",
    example="darrm audit --mechanism gnmax --teachers 11 --overlap 1 --label-target 1,1e-5",
    add_arguments=_add_arguments,
    run=_run,
)
