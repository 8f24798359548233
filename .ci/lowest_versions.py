"""Prints ``name==version``, the lowest declared version of whatever the tests import; Torch only with --torch."""

import re
import sys
from pathlib import Path

TOOLS = ("build", "mypy", "pylint", "pyright", "ruff", "twine", "uv")  # not imported by the tests
text = Path("pyproject.toml").read_text(encoding="utf-8")
text = re.sub(r"^docs = .*$", "", text, flags=re.MULTILINE)
for name, extras, version in re.findall(r'"([\w.-]+)(\[[\w,]+\])?>=([\w.]+)[^"]*"', text.split("[tool.", 1)[0]):
    skipped = name in TOOLS or name == "setuptools" or (name.startswith("torch") and "--torch" not in sys.argv)
    if not skipped:
        print(f"{name}{extras}=={version}")
