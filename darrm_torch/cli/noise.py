"""``darrm noise``."""

from __future__ import annotations

import json
from typing import Any

import darrm_torch as dt

from ..errors import InvalidArgument, PrivacyViolation, check_integer
from ..reprs import wrapped
from .files import read_text, whole
from .parser import Command, one_of, option_name, require
from .promises import add_common, add_teacher, read_teacher
from .showing import check_figure, print_json, progress, save_figure, search_progress
from .values import guarantee, read_guarantee, read_prior

__all__ = ["COMMAND", "read_noise", "report_noise"]


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--teachers", type=int, metavar="K", help="required: number of teachers")
    add_teacher(parser)
    default = "independent:0.75: each teacher is right with probability 0.75, independently of the others"
    add_common(parser, prior="independent:0.75", default=default)
    parser.add_argument(
        "--target", type=guarantee, metavar="EPS,DELTA", help="compute the optimum for one label that keeps this"
    )
    parser.add_argument(
        "--allowance", type=float, metavar="M", help="or: labels add up, and each costs what M teachers cost"
    )
    parser.add_argument(
        "--shape",
        type=one_of("monotone", "free", "constant"),
        default="monotone",
        metavar="{monotone,free,constant}",
        help="of the optimum (default: monotone)",
    )
    parser.add_argument("--out", metavar="FILE", help="write the noise function as JSON (default: print it)")
    parser.add_argument("--plot", metavar="FILE", help="draw the noise function")
    parser.add_argument("--json", action="store_true", help="print the proven guarantee as JSON")


def _run(options: Any) -> int:
    needed = {"--teachers": (options.teachers,), "--target or --allowance": (options.target, options.allowance)}
    if options.allowance is None:
        promises = (options.teacher, options.noise_multiplier, options.sample_rate, options.steps)
        needed["--teacher, or --noise-multiplier, --sample-rate and --steps"] = promises
    require("noise", needed)
    if options.target is not None and options.allowance is not None:
        raise InvalidArgument("--target", "left out with --allowance", options.target)
    for name in ("teacher", "noise_multiplier", "sample_rate", "steps", "shape"):
        given = getattr(options, name)
        if options.target is None and given not in (None, "monotone"):
            cure = "An allowance is counted in teachers, so it does not depend on their guarantee."
            raise InvalidArgument(option_name(name), "left out with --allowance", given, cure)
    check_integer("--teachers", options.teachers, low=1, high=100_000)
    check_figure(options.plot)
    prior: Any = read_prior(options.prior)  # the library refuses one for many classes
    if options.target is not None:
        teacher = read_teacher(options)
        assert teacher is not None
        with search_progress() as on_progress:
            noise = dt.optimize_noise(
                teachers=options.teachers,
                teacher=teacher,
                target=read_guarantee(options.target),
                overlap=options.overlap,
                prior=prior,
                shape=options.shape,
                on_progress=on_progress,
            )
    else:
        noise = dt.self_bounding_noise(teachers=options.teachers, allowance=options.allowance, overlap=options.overlap)
    if options.plot is not None:
        save_figure(dt.plot_noise(noise), options.plot)
    if options.out is None:
        print(noise.to_json())
        return 0
    with whole("--out", options.out) as beside:
        beside.write_text(noise.to_json())
    report_noise(noise, options)
    return 0


def read_noise(name: str, path: str) -> dt.NoiseFunction:
    """The noise function in a file of ``darrm noise --out``; what is proven about it is proven again."""
    text = read_text(name, path)
    try:
        with progress(None, "proof"):
            return dt.NoiseFunction.from_json(text)
    except InvalidArgument as error:
        cure = "" if error.name == "text" else str(error)
        raise InvalidArgument(name, "a file that `darrm noise --out` wrote", path, cure) from None
    except PrivacyViolation as error:
        raise PrivacyViolation(f"{path}: {error}") from None


def report_noise(noise: dt.NoiseFunction, options: Any) -> None:
    """Print the proven guarantee of a noise function, as text or JSON."""
    proven = noise.certificate
    assert proven is not None
    if options.json:
        certificate = json.loads(noise.to_json())["certificate"]
        print_json({"teachers": noise.teachers, **certificate, "margin": proven.margin, "proof": str(proven)})
    else:
        print(wrapped(str(proven)))


COMMAND = Command(
    summary="Compute the best noise function and prove it private.",
    example="darrm noise --teachers 11 --teacher 0.1,1e-5 --target 0.3,1e-4 --out n.json",
    add_arguments=_add_arguments,
    run=_run,
)
