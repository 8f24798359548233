"""What all figures share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import darrm_torch as dt
from darrm_torch.figures import axes_or_new, looks
from darrm_torch.plots import plot_noise

pytest.importorskip("matplotlib")


def test_lines_differ_in_more_than_colour() -> None:
    shapes = [(look["marker"], look["linestyle"]) for look in looks()]
    assert len(set(shapes)) == len(shapes) == 10
    with pytest.raises(dt.InvalidArgument, match="axes must be matplotlib Axes or None"):
        axes_or_new("mine")


def test_axes_of_the_caller_are_used() -> None:
    from matplotlib.figure import Figure

    mine = Figure().subplots()
    assert plot_noise(dt.self_bounding_noise(teachers=3, allowance=1), axes=mine) is mine


@pytest.mark.slow
def test_nothing_global_is_changed(tmp_path: Path) -> None:
    code = (
        "import sys, darrm_torch as dt; "
        f"dt.plot_noise(dt.self_bounding_noise(teachers=3, allowance=1)).figure.savefig({str(tmp_path / 'a.png')!r}); "
        "print('matplotlib.pyplot' in sys.modules, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]
