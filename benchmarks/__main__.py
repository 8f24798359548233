"""The runner: measures, writes JSON, a summary and the growth plot, and compares ratios with their bounds."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import config
from .measuring import Record, machine

TRIES = 3  # a busy machine disturbs one measurement, a regression all of them


def run(name: str, sizes: dict[str, Any]) -> list[Record]:
    """The records of one benchmark."""
    return list(importlib.import_module(f"benchmarks.{name}").measure(**sizes))


def check(results: dict[str, list[Record]], bounds: Sequence[config.Bound], size: str) -> list[str]:
    """One message for each ratio that is outside its bounds or missing."""
    complaints = []
    for bound in bounds:
        if bound.benchmark not in results or size not in bound.sizes:
            continue
        records = {record["case"]: record for record in results[bound.benchmark]}
        value = records.get(bound.case, {}).get(bound.ratio)
        if bound.case not in records:
            complaints.append(f"{bound.benchmark}: there is no case {bound.case!r}, only {', '.join(records)}")
        elif value is None:
            complaints.append(f"{bound.benchmark}, {bound.case}: there is no {bound.ratio} to compare")
        elif not bound.at_least <= value <= bound.at_most:  # NaN fails too
            complaints.append(
                f"{bound.benchmark}, {bound.case}: {bound.ratio} is {value:g}, "
                f"expected {bound.at_least:g} to {bound.at_most:g}"
            )
    return complaints


def summary(report: dict[str, Any]) -> str:
    """The records as Markdown: for each benchmark its module's docstring and a table."""
    lines = ["# Benchmarks", "", ", ".join(f"{key} {value}" for key, value in report["machine"].items()), ""]
    for name, records in report["results"].items():
        columns = list(dict.fromkeys(key for record in records for key in record))
        lines += [f"## {name}", "", str(inspect.getdoc(importlib.import_module(f"benchmarks.{name}"))), ""]
        lines.append("| " + " | ".join(column.replace("_", " ") for column in columns) + " |")
        lines.append("|" + "---|" * len(columns))
        lines += ["| " + " | ".join(_cell(record.get(column)) for column in columns) + " |" for record in records]
        lines.append("")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks", description="Measure speed and memory.")
    parser.add_argument("names", nargs="*", choices=[[], *config.FULL], help="which (default: all)", metavar="name")
    parser.add_argument("--small", action="store_true", help="small sizes, under a minute")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a ratio is outside its bounds")
    parser.add_argument("--json", type=Path, help="write the JSON to this file as well")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"), help="folder (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit status is 1 for a regression (with ``--check``)."""
    chosen = read_arguments(arguments)
    sizes = config.SMALL if chosen.small else config.FULL
    bounds = config.BOUNDS if chosen.check else ()
    results: dict[str, list[Record]] = {}
    complaints: list[str] = []
    for name in chosen.names or sizes:
        if name not in sizes:
            print(f"{name}: has no small size", file=sys.stderr)
            continue
        for _ in range(TRIES):
            start = time.perf_counter()
            results[name] = run(name, sizes[name])
            print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
            wrong = check({name: results[name]}, bounds, "small" if chosen.small else "full")
            if not wrong:
                break
        complaints += wrong
    report = {"machine": machine(), "small": chosen.small, "results": results}
    chosen.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1)
    for file in [chosen.out / "results.json", *([chosen.json] if chosen.json else [])]:
        file.write_text(text + "\n")
    (chosen.out / "summary.md").write_text(summary(report) + "\n")
    if {"solver", "certificate", "oracle"} & set(results):
        from .growth import plot

        plot(results, chosen.out / "growth.svg")
    print(summary(report))
    for complaint in complaints:
        print(f"regression: {complaint}", file=sys.stderr)
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
