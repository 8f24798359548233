"""``darrm noise``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument, check_integer
from .files import whole
from .parser import Command, option_name
from .promises import add_common, add_teacher, read_teacher
from .showing import check_figure, fill, print_json, save_figure, search_progress
from .values import guarantee, read_guarantee, read_prior

if TYPE_CHECKING:
    from ..noise.function import NoiseFunction

__all__ = ["COMMAND", "report_noise"]


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--teachers", type=int, required=True, metavar="K", help="how many")
    add_teacher(parser)
    add_common(parser)
    parser.add_argument("--target", type=guarantee, metavar="EPS,DELTA", help="of one label: the optimum for it")
    parser.add_argument("--allowance", type=float, metavar="M", help="or: labels add up, each at M teachers' cost")
    parser.add_argument("--shape", choices=["monotone", "free"], default="monotone", help="of the optimum")
    parser.add_argument("--out", metavar="FILE", help="write it here as JSON (default: print it)")
    parser.add_argument("--plot", metavar="FILE", help="draw it")
    parser.add_argument("--json", action="store_true", help="say what was proven as JSON")


def _run(chosen: Any) -> int:
    from ..noise.function import self_bounding_noise
    from ..noise.program import optimize_noise

    if (chosen.target is None) == (chosen.allowance is None):
        raise InvalidArgument(
            "--target", "given, or else --allowance", "neither" if chosen.target is None else "both", "Give one."
        )
    for name in ("teacher", "noise_multiplier", "sample_rate", "steps", "shape"):
        given = getattr(chosen, name)
        if chosen.target is None and given not in (None, "monotone"):
            cure = "An allowance says what a label costs in teachers, whatever they promise."
            raise InvalidArgument(option_name(name), "left out with --allowance", given, cure)
    check_integer("--teachers", chosen.teachers, low=1, high=100_000)
    check_figure(chosen.plot)
    prior: Any = read_prior(chosen.prior)  # which the library refuses if it is for many classes
    if chosen.target is not None:
        teacher = read_teacher(chosen)
        if teacher is None:
            raise InvalidArgument("--teacher", "given", None, "Or give --noise-multiplier, --sample-rate and --steps.")
        with search_progress() as on_progress:
            noise = optimize_noise(
                teachers=chosen.teachers,
                teacher=teacher,
                target=read_guarantee(chosen.target),
                overlap=chosen.overlap,
                prior=prior,
                shape=chosen.shape,
                on_progress=on_progress,
            )
    else:
        noise = self_bounding_noise(teachers=chosen.teachers, allowance=chosen.allowance, overlap=chosen.overlap)
    if chosen.plot is not None:
        from ..plots import plot_noise

        save_figure(plot_noise(noise), chosen.plot)
    if chosen.out is None:
        print(noise.to_json())
        return 0
    with whole("--out", chosen.out) as beside:
        beside.write_text(noise.to_json())
    report_noise(noise, chosen)
    return 0


def report_noise(noise: NoiseFunction, chosen: Any) -> None:
    """What was proven of it, in words or as JSON."""
    from ..noise.certificate import Certificate

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
    else:
        plain |= {"kind": "self-bounding", "allowance": proven.allowance, "smallest": proven.smallest}
    if chosen.json:
        print_json(plain)
    else:
        print(fill(str(proven)))


COMMAND = Command(
    summary="Find the best noise function, prove it, write it as JSON.",
    example="darrm noise --teachers 11 --teacher 0.1,1e-5 --target 0.3,1e-4 --out n.json",
    add_arguments=_add_arguments,
    run=_run,
)
