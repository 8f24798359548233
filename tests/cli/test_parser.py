"""The parser: a mistake is one line that names the option and, where one is near, what was probably meant."""

from __future__ import annotations

import pytest

from darrm_torch.cli.parser import Parser, UsageError, one_line, one_of, option_name, typed


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="darrm test")
    parser.add_argument("--label-target", type=float)
    parser.add_argument("--labels", type=int, default=1)
    parser.add_argument("--kind", type=one_of("gnmax", "darrm"), nargs="+")
    return parser


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--label-traget", "1"], "unrecognized arguments: --label-traget 1. Did you mean --label-target?"),
        (["--xyz"], "unrecognized arguments: --xyz. See darrm test --help."),
        (["--label", "3"], "unrecognized arguments: --label 3. Did you mean --labels?"),  # no abbreviations
        (["--labels", "2.5"], "--labels must be an integer, got '2.5'"),
        (["--label-target", "much"], "--label-target must be a number, got 'much'"),
        (["--labels"], "--labels expected one argument"),
        (["--kind", "darm"], "--kind must be one of gnmax, darrm, got 'darm'. Did you mean darrm?"),
        (["--kind", "x" * 20_000], "--kind must be one of gnmax, darrm, got"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_mistake_is_one_line(parser: Parser, arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parser.read(arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 10_000


def test_numbers_below_zero_are_values(parser: Parser) -> None:
    assert parser.read(["--label-target", "-0.5"]).label_target == -0.5
    assert parser.read(["--label-target", "-.5", "--labels", "-3"]).labels == -3


def test_options_are_shown_as_they_are_typed(parser: Parser) -> None:
    options = {"label_target": 0.5, "kind": ["gnmax", "darrm"]}
    assert typed(options) == "--label-target 0.5 --kind gnmax darrm"
    read = parser.read(typed(options).split())
    assert {name: getattr(read, name) for name in options} == options
    assert option_name("file") == "file"  # a positional argument has no dashes


def test_long_messages_are_cut_between_words() -> None:
    assert one_line("This is\n a long message of Torch", 20) == "This is a long ..."
    assert one_line("word " * 100, limit=30) == "word word word word word ..."
