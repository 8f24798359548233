"""The configuration of the documentation (`make docs`). Neither the build nor its pages fetch anything."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import latex2mathml.converter
import numpy.typing
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

import darrm_torch
from darrm_torch.planning.families import FAMILIES

project = "darrm-torch"
author = "the darrm-torch authors"
copyright = "the darrm-torch authors, Apache-2.0"
version = release = darrm_torch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "package.md"]  # the second is the description on a package index
nitpicky = True
# Other projects are named, not linked: resolving a link would need the network.
_OTHERS = (
    "torch numpy np npt matplotlib lightning L nn collections concurrent fractions functools pathlib os typing abc"
)
nitpick_ignore_regex = [("py:.*", rf"({'|'.join(_OTHERS.split())})\..*")]
# Internal names that docstrings mention.
_INNER = (
    "AnyVotes Attack Belief Charge FloatArray IntArray LabelProfile NoiseFree NoisyCounts PricedMechanism "
    "ProtectedUnit Ed25519PrivateKey PureLabels Standings VoteTable _Table gamma_digest smooth_release_renyi "
    "split_votes"
)
nitpick_ignore_regex += [("py:.*", rf"(darrm_torch\.[\w.]+\.)?{name}") for name in _INNER.split()]

html_theme = "furo"
html_title = f"darrm-torch {release}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["pages.css"]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False

# Expanded, ArrayLike is a union of eight types.
numpy.typing.ArrayLike = type("ArrayLike", (), {"__module__": "numpy.typing"})

# Public names are documented under the name that users write, not under their module.
for _name in darrm_torch.__all__:
    if getattr(getattr(darrm_torch, _name), "__module__", "").startswith("darrm_torch."):
        getattr(darrm_torch, _name).__module__ = "darrm_torch"


_OUTSIDE = re.compile(
    r"""<(?:script|img|link)\b[^>]*?\b(?:src|href)=["'](?:https?:)?//[^>]*>|@import|url\(["']?(?:https?:)?//"""
)


def _exports(module: str) -> list[str]:
    """The names that ``darrm_torch`` exports from a module, or from all modules of a wing, according to its stub."""
    stub = ast.parse(Path(darrm_torch.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
    return [alias.name for node in imports if f"{node.module}.".startswith(f"{module}.") for alias in node.names]


class Exports(SphinxDirective):
    """``.. exports:: module``: documents every name that ``darrm_torch`` exports from a module or a wing."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        lines = [".. currentmodule:: darrm_torch", ""]
        for name in _exports(self.arguments[0]):
            thing: Any = getattr(darrm_torch, name)
            if not inspect.isclass(thing):
                lines += [f".. autofunction:: {name}", ""]
            elif issubclass(thing, Exception):
                lines += [f".. autoexception:: {name}", "   :show-inheritance:", ""]
            else:
                options = ["   :show-inheritance:"] if set(thing.__mro__) - {thing, object} else []
                options += ["   :inherited-members: Mechanism"] if issubclass(thing, darrm_torch.Mechanism) else []
                lines += [f".. autoclass:: {name}", "   :members:", *options, ""]
        return self.parse_text_to_nodes(StringList(lines, source=self.get_source_info()[0]))


class Kinds(SphinxDirective):
    """``.. kinds::``: a table of the kinds of mechanism that the planner knows, from their registry."""

    def run(self) -> list[nodes.Node]:
        lines = [".. list-table::", "   :header-rows: 1", ""]
        rows = [["kind", "in a plan of two classes", "of more classes", "what protects", "how its strength is given"]]
        for family in FAMILIES.values():
            strengths = ", ".join(f"``{name}``" for name in family.strengths)
            protects = "the teachers' training" if family.rests_on == "teachers" else "its own randomness"
            rows.append([f"``{family.kind}``", family.two or "", family.many or "", protects, strengths])
        for row in rows:
            lines += [f"   {' ' if place else '*'} - {cell}" for place, cell in enumerate(row)]
        return self.parse_text_to_nodes(StringList(lines, source=self.get_source_info()[0]))


def mathml(writer: Any, node: nodes.math | nodes.math_block, display: str) -> None:
    """Formulas as MathML, which browsers render without a script or a font."""
    writer.body.append(latex2mathml.converter.convert(node.astext(), display=display))
    raise nodes.SkipNode


def inline_mathml(writer: Any, node: nodes.math) -> None:
    mathml(writer, node, "inline")


def block_mathml(writer: Any, node: nodes.math_block) -> None:
    mathml(writer, node, "block")


def public_bases(app: Sphinx, name: str, thing: type, options: Any, bases: list[type]) -> None:
    """Replace internal base classes by their own public bases."""
    while inner := [base for base in bases if base.__module__.startswith("darrm_torch.")]:
        bases[:] = [above for base in bases for above in (base.__bases__ if base in inner else [base])]


def before_napoleon(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Put a comment first: "Two: DaRRM is binary." in a property would be read as a type and its meaning."""
    if what == "property":
        lines[:0] = ["..", ""]


def after_napoleon(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Escape a lone "K.", which would be read as the number of a list item."""
    lines[:] = [re.sub(r"^((?:\s*:param \w+:)?\s*)([A-Z]\.)$", r"\1\\\2", line) for line in lines]


def by_public_name(app: Sphinx, environment: Any, node: Any, content: Any) -> Any:
    """Resolve annotations, which name the module of a class, to the name that users write."""
    *home, name = node["reftarget"].split(".")
    kind = (
        "type" if name in ("Prior", "Teacher") else node["reftype"]
    )  # aliases, which Sphinx 8 does not take for classes
    if home[:1] != ["darrm_torch"] and kind != "type":
        return None
    domain = environment.get_domain("py")
    return domain.resolve_xref(environment, node["refdoc"], app.builder, kind, f"darrm_torch.{name}", node, content)


def check_nothing_outside(app: Sphinx, failure: Exception | None) -> None:
    """Fail if a page loads a script, style, font or picture from elsewhere."""
    for file in [] if failure else sorted(Path(app.outdir).rglob("*.[ch][st][sm]*")):
        text = file.read_text(encoding="utf-8")
        found = _OUTSIDE.search(text)
        if found:
            raise ExtensionError(f"{file} loads something from elsewhere: {found[0]}")


def setup(app: Sphinx) -> None:
    app.add_directive("exports", Exports)
    app.add_directive("kinds", Kinds)
    app.add_html_math_renderer("mathml", (inline_mathml, None), (block_mathml, None))
    app.connect("autodoc-process-bases", public_bases)
    app.connect("autodoc-process-docstring", before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", after_napoleon, priority=600)
    app.connect("missing-reference", by_public_name)
    app.connect("build-finished", check_nothing_outside)
