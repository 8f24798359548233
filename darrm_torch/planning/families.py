"""The registry of mechanisms that the planner knows: one entry for each kind.

A new mechanism needs one entry here. The entry serves :func:`darrm_torch.plan`, :func:`strongest_mechanism`,
``PrivateMajorityEnsemble.from_opacus(mechanism=...)``, ``darrm label --mechanism``, the table of kinds in the
documentation, and the tests that every mechanism must pass. Without ``explain`` the plan describes it by its guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..arguments import checked
from ..errors import DarrmError, InvalidArgument
from ..mechanisms.base import Mechanism
from ..mechanisms.laplace import LNMax
from ..mechanisms.noise_free import NoiseFreeMajority
from ..mechanisms.selection import ExponentialMechanism, PermuteAndFlip, RandomizedPlurality
from ..noise.plurality_priors import PluralityPrior
from ..noise.priors import Prior
from ..privacy.allocation import RandomAllocation
from ..privacy.guarantees import PrivacyGuarantee, format_bound
from ..privacy.profiles import PrivacyProfile
from . import builders
from .beliefs import Belief, typical_votes
from .expectation import expected_accuracy
from .request import Request, missing_target
from .strategies import RestsOn, Strategy, in_python

__all__ = ["FAMILIES", "Family", "check_kind", "families", "strongest_mechanism"]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of mechanism: how the strongest is built, and how a plan presents it.

    Attributes:
        kind: its name in Python and on the command line.
        two, many: what a plan of two, or of more, classes calls it; None: such a plan leaves it out.
        build: the strongest mechanism for a request.
        by_any_proof: a stronger one, where more can be proven than what ``rests_on`` says; a plan does not use it.
        rests_on: what its privacy rests on, in a plan.
        combined: what a plan calls it where the teachers' training and the mechanism's own randomness are counted
            together; None: that is not tried.
        strengths: the ways of saying how strong it is to be: "allowance", "label_target", "total_target".
        binary: whether it is for two classes only.
        optimised: whether it is optimised for a prior.
        explain: why it is as strong as it is, in sentences.
        part: the kind of which a plan shows a row too, where all teachers cost too much.
        applies: whether a plan tries it for a request.
        combines: whether a plan tries ``combined`` for a request.
    """

    kind: str
    two: str | None
    many: str | None
    build: builders.Build
    by_any_proof: builders.Build | None = None
    rests_on: RestsOn = "randomness"
    combined: str | None = None
    strengths: tuple[str, ...] = ("label_target", "total_target")
    binary: bool = False
    optimised: bool = False
    explain: builders.Text = builders.explain
    part: str | None = None
    applies: Callable[[Request], bool] = lambda request: True
    combines: Callable[[Request], bool] = lambda request: True

    @property
    def adds_up(self) -> bool:
        """Whether any number of its labels cost what as many times ``allowance`` teachers do."""
        return {"allowance", "total_target"} <= set(self.strengths)

    def name(self, classes: int) -> str | None:
        """What a plan calls it."""
        return self.two if classes == 2 else self.many

    def with_training(self) -> Family:
        """The entry whose plan counts the teachers' training, too."""
        return replace(self, two=self.two and self.combined, many=self.combined, rests_on="both", applies=self.combines)

    def typical_prior(self, classes: int) -> Belief:
        """The prior that it is optimised for where none is stated."""
        return typical_votes(classes, plain=self.rests_on == "randomness")

    def strongest(self, request: Request, build: builders.Build | None = None) -> Mechanism:
        """The mechanism with the least noise that keeps the targets, or the allowance; by ``build`` if that is given.

        Raises:
            DarrmError: there is none.
        """
        if self.binary and request.classes > 2:
            cure = "Take one for many classes, such as self-bounding or vote-private."
            raise InvalidArgument("classes", f"2 for {self.kind}", request.classes, cure)
        on_teachers = self.rests_on != "randomness" and self.strengths and request.allowance is None
        if on_teachers and not request.teacher.is_private:
            cure = "Its privacy rests on the teachers' own. The mechanism's own randomness protects with other kinds."
            raise InvalidArgument("teacher", f"a promise that {self.kind} can build on", None, cure)
        return (build or self.by_any_proof or self.build)(request)

    def rows(self, request: Request) -> list[Strategy]:
        """Its strategies for a request: one, none where it does not apply, two where fewer teachers are tried."""
        if self.rests_on == "randomness":
            request = request.with_plain_teachers()
        if not self.applies(request):
            return []
        try:
            mechanism = self.strongest(request, self.build)
        except DarrmError as error:
            reason = f"Not possible: {str(error).removesuffix('.')}."
            return [self._strategy(request, reason=reason)]
        row = self._priced(request, mechanism)
        if self.part is None or row.meets or not request.teacher.is_private or request.teachers == 1:
            return [row]
        part = FAMILIES[self.part]
        fewer = part._priced(request, part.build(request))
        return [row, replace(fewer, name=f"{self.kind}, {fewer.voters} of {request.teachers}")]

    def _strategy(self, request: Request, *, mechanism: Mechanism | None = None, reason: str = "") -> Strategy:
        return Strategy(
            kind=self.kind,
            name=self.name(request.classes) or self.kind,
            rests_on=self.rests_on,
            mechanism=mechanism,
            voters=getattr(mechanism, "jury", None) or request.teachers,
            label=None,
            total=None,
            accuracy=None,
            agreement=None,
            meets=False,
            reason=reason,
        )

    def _priced(self, request: Request, mechanism: Mechanism) -> Strategy:
        """What one label costs, and all; how often a label is what most teachers say; and why."""
        first, last = request.targets[0], request.targets[-1]
        label = request.price(mechanism, 1, first.delta)
        same = request.labels == 1 and first.delta == last.delta
        total = label if same else request.price(mechanism, request.labels, last.delta)
        over = [
            (what, bound, target)
            for what, bound, target in (
                ("one label", label, request.label_target),
                ("all labels", total, request.total_target),
            )
            if target is not None and bound.epsilon > target.epsilon
        ]
        agreement, error = builders.agreement(request, mechanism)
        accuracy, error_too = expected_accuracy(
            mechanism, teachers=mechanism.jury or request.teachers, classes=request.classes, prior=request.belief
        )
        row = replace(
            self._strategy(request, mechanism=mechanism),
            label=label,
            total=total,
            accuracy=accuracy,
            agreement=agreement,
            standard_error=max(error, error_too),
            meets=not over,
        )
        row = replace(row, reason=self.explain(request, row), code=self._code(request, mechanism))
        for what, bound, target in over if self.strengths else ():
            nearly = " by rounding alone" * (format_bound(bound.epsilon) == format_bound(target.epsilon))
            cost = f" It fails for {what}, which cost {bound.guarantee} where the target is {target}{nearly}."
            row = replace(row, reason=f"{row.reason}{cost} {bound.route.explanation}")
        return row

    def _code(self, request: Request, mechanism: Mechanism) -> str:
        """The call that builds the mechanism, also where it does not keep the targets."""
        if isinstance(mechanism, NoiseFreeMajority):
            jury = "" if mechanism.jury is None else f", jury={mechanism.jury}"
            return f"dt.NoiseFreeMajority(teachers={request.teachers}, classes={request.classes}{jury})"
        given: dict[str, Any] = {"teachers": mechanism.teachers or request.teachers, "classes": request.classes}
        if self.adds_up:
            given |= {"overlap": mechanism.certificate.overlap, "allowance": mechanism.certificate.allowance}
        elif self.strengths:
            teacher = request.teacher if request.teacher.is_private else None
            given |= {"teacher": teacher, "overlap": request.overlap, "label_target": request.label_target}
            given |= {"allocation": request.allocation if self.rests_on == "both" else None}
            if "total_target" in self.strengths:
                labels = request.labels if request.labels > 1 else None
                given |= {"labels": labels, "total_target": request.total_target}
            else:
                given["label_target"] = request.one_label
        if self.optimised and request.prior not in (None, self.typical_prior(request.classes)):
            given["prior"] = request.prior
        arguments = ", ".join(f"{name}={in_python(value)}" for name, value in given.items() if value is not None)
        return f'dt.strongest_mechanism("{self.kind}", {arguments})'


def _known(request: Request) -> dict[str, Any]:
    """What a mechanism must know of a request; with the classes it composes labels along the curve of one of them."""
    classes = request.classes if builders.lists_quickly(request) else None
    return {"overlap": request.overlap, "teachers": request.teachers, "classes": classes}


# A plan prefers the earlier entry where agreements are equal.
FAMILIES: dict[str, Family] = {
    family.kind: family
    for family in (
        Family(
            kind="noise-free",
            two="noise-free majority",
            many="noise-free plurality",
            build=builders.noise_free,
            part="jury",
            rests_on="teachers",
            strengths=(),
            explain=builders.explain_noise_free,
        ),
        Family(
            kind="mean-probabilities",
            two=None,
            many=None,
            build=builders.mean_probabilities,
            rests_on="teachers",
            strengths=(),
        ),
        Family(
            kind="jury",
            two=None,
            many=None,
            build=builders.jury,
            rests_on="teachers",
            explain=builders.explain_noise_free,
        ),
        Family(
            kind="optimal",
            two="optimal majority",
            many=None,
            combined="optimal majority + training",
            build=builders.optimal,
            binary=True,
            optimised=True,
        ),
        Family(
            kind="randomized-response",
            two=None,
            many="randomized response",
            combined="randomized response + training",
            build=builders.by_strength(
                lambda request, epsilon: RandomizedPlurality(
                    epsilon=epsilon, classes=request.classes, teachers=request.teachers
                ),
                1e-5,
                50.0,
            ),
        ),
        Family(
            kind="permute-and-flip",
            two="permute-and-flip",
            many="permute-and-flip",
            combined="permute-and-flip + training",
            build=builders.by_strength(
                lambda request, vote: PermuteAndFlip(epsilon=request.overlap * vote, **_known(request)), 2.0**-14, 50.0
            ),
        ),
        Family(
            kind="exponential",
            two="exponential mechanism",
            many="exponential mechanism",
            combined="exponential mechanism + training",
            build=builders.by_strength(
                lambda request, vote: ExponentialMechanism(epsilon=request.overlap * vote, **_known(request)),
                2.0**-14,
                50.0,
            ),
        ),
        Family(
            kind="lnmax",
            two=None,
            many=None,
            build=builders.by_strength(lambda request, vote: LNMax(scale=2 / vote, **_known(request)), 2.0**-14, 50.0),
        ),
        Family(
            kind="vote-private",
            two=None,
            many="vote-private table",
            combined="vote-private table + training",
            build=builders.vote_private,
            optimised=True,
        ),
        Family(
            kind="gnmax",
            two="GNMax",
            many="GNMax",
            combined="GNMax + training",
            combines=lambda request: not builders.gaussian_prices_the_label(request),
            build=builders.gaussian("analytic"),
        ),
        Family(
            kind="gnmax-label",
            two="GNMax, calibrated on the label",
            many="GNMax, calibrated on the label",
            combined="GNMax + training",
            combines=builders.gaussian_prices_the_label,
            applies=lambda request: request.classes > 2 or builders.gaussian_prices_the_label(request),
            build=builders.gaussian("label"),
        ),
        Family(
            kind="darrm",
            two="DaRRM, whole profile",
            many=None,
            build=builders.one_label_by_profile,
            rests_on="teachers",
            strengths=("allowance", "label_target"),
            binary=True,
            optimised=True,
            applies=builders.profile_has_several_points,
        ),
        Family(
            kind="darrm-point",
            two="DaRRM, one point",
            many=None,
            build=builders.one_label_by_point,
            rests_on="teachers",
            strengths=("allowance", "label_target"),
            binary=True,
            optimised=True,
        ),
        Family(
            kind="self-bounding",
            two="self-bounding noise",
            many="self-bounding plurality",
            build=builders.self_bounding,
            by_any_proof=builders.self_bounding_by_any_proof,
            rests_on="teachers",
            strengths=("allowance", "label_target", "total_target"),
            optimised=True,
        ),
        Family(
            kind="subsampling",
            two="subsampling",
            many="subsampling",
            build=builders.subsampling,
            rests_on="teachers",
            strengths=("allowance", "label_target", "total_target"),
        ),
    )
}


def families(classes: int) -> tuple[Family, ...]:
    """What a plan tries, in its order of preference; entries that count the teachers' training too come last."""
    known = [family for family in FAMILIES.values() if family.name(classes) is not None]
    return (*known, *(family.with_training() for family in known if family.combined))


def check_kind(kind: str, name: str = "kind") -> Family:
    """The entry of a kind, or :class:`InvalidArgument` where there is none."""
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise InvalidArgument(name, f"one of {', '.join(FAMILIES)}", kind)
    return FAMILIES[kind]


@checked
def strongest_mechanism(
    kind: str,
    *,
    teachers: int,
    classes: int,
    teacher: PrivacyProfile | PrivacyGuarantee | Iterable[PrivacyProfile | PrivacyGuarantee] | None = None,
    overlap: int | None = None,
    labels: int = 1,
    allowance: float | None = None,
    label_target: PrivacyGuarantee | None = None,
    total_target: PrivacyGuarantee | None = None,
    prior: Prior | PluralityPrior | None = None,
    allocation: RandomAllocation | None = None,
) -> Mechanism:
    """The mechanism of one kind with the least noise that keeps the targets.

    Formal guarantee: for K teachers that each promise ``teacher``, where one record is in the training data of at
    most ``overlap`` of them, the bound of :func:`total_privacy` is within ``label_target`` for one label and within
    ``total_target`` for ``labels`` labels.

    Args:
        kind: "darrm", "darrm-point" (two classes, one label), "self-bounding", "subsampling", "noise-free", "jury"
            (the largest that keeps the targets) or "mean-probabilities" (soft labels), which rest on the teachers' own
            privacy; or "optimal" (two classes), "vote-private", "gnmax", "gnmax-label" (few teachers and classes,
            overlap 1), "permute-and-flip", "exponential", "lnmax" or "randomized-response", whose own randomness
            protects.
        teachers: K.
        classes: C.
        teacher: the guarantee of each trained teacher, or a sequence with one for each; None: they promise nothing.
        overlap: r, the most teachers that one record can affect; None: all.
        labels: Q, how many labels ``total_target`` is for, all of the same trained teachers.
        allowance: m: a label costs as much as m teachers. For "self-bounding" and "subsampling", instead of targets.
        label_target: what each label must keep by itself.
        total_target: what all labels together must keep.
        prior: how the teachers are believed to vote, from public knowledge: what noise and tables are optimised for. It
            does not affect privacy. None: as in :func:`plan`.
        allocation: how records were allocated to the teachers' shards, if each drew its shards at random and in
            secret; not with ``allowance``, which needs no price.

    Raises:
        InvalidArgument: bad input, or targets that no noise of this kind keeps.

    >>> target = PrivacyGuarantee(epsilon=8.0, delta=1e-5)
    >>> gnmax = strongest_mechanism("gnmax-label", teachers=11, classes=10, overlap=1, labels=100, total_target=target)
    >>> round(gnmax.sigma, 2), round(gnmax.guarantee(labels=100).epsilon, 1)
    (6.38, 8.0)
    """
    family = check_kind(kind)
    if prior is None and family.binary and classes == 2:
        prior = typical_votes(2, plain=family.rests_on == "randomness" and teacher is None)
    if allowance is not None and (not family.adds_up or label_target is not None or total_target is not None):
        additive = " or ".join(one.kind for one in FAMILIES.values() if one.adds_up)
        raise InvalidArgument("allowance", f"given without targets, for {additive}", allowance)
    if family.strengths and allowance is None and label_target is None and total_target is None:
        raise missing_target()
    request = Request(
        teachers=teachers,
        classes=classes,
        teacher=teacher,  # type: ignore[arg-type]  # checked and converted there
        overlap=overlap,  # type: ignore[arg-type]
        labels=labels,
        allowance=allowance,
        label_target=label_target,
        total_target=total_target,
        prior=prior,  # type: ignore[arg-type]
        allocation=allocation,
    )
    mechanism = family.strongest(request)
    if not request.keeps(mechanism):
        raise request.unmet()
    return mechanism
