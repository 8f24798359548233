"""The lowest declared version of whatever the tests import.

Prints them as ``name==version``, those of Torch only with --torch. With --check FILE it prints nothing, and fails if
FILE has other versions.
"""

import re
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

TOOLS = ("build", "mypy", "pylint", "pyright", "ruff", "setuptools", "twine", "uv")  # not imported by the tests
text = Path("pyproject.toml").read_text(encoding="utf-8")
text = re.sub(r"^docs = .*$", "", text, flags=re.MULTILINE)
pins = []
for name, extras, version, marker in re.findall(
    r'"([\w.-]+)(\[[\w,]+\])?>=([\w.]+)[^";]*(;[^"]*)?"', text.split("[tool.", 1)[0]
):
    if name not in TOOLS and (not name.startswith("torch") or "--torch" in sys.argv):
        pins.append((name, extras, version, marker))

if "--check" not in sys.argv:
    print("\n".join(f"{name}{extras}=={version}{marker}" for name, extras, version, marker in pins))
else:
    file = Path(sys.argv[sys.argv.index("--check") + 1])
    lines = [Requirement(line) for line in file.read_text(encoding="utf-8").splitlines()]
    locked = {line.name.lower(): str(line.specifier).removeprefix("==") for line in lines}
    for name, _, version, _ in pins:
        if Version(locked.get(name.lower(), "0")) != Version(version):
            sys.exit(f"{file} lacks {name}=={version}, which pyproject.toml declares. Run .ci/lowest --lock")
