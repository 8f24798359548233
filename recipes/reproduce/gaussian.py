"""How much Gaussian noise GNMax needs: the paper's search over lambda, and the exact amount."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

import darrm_torch as dt

from . import published
from .drawing import STYLES, grid, legend
from .result import Result, Table

TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}


def label_target(source: str, allowance: int) -> dt.PrivacyGuarantee:
    """(m epsilon, m Delta), what one label may cost."""
    return dt.PrivacyGuarantee(
        epsilon=allowance * published.EPSILON[source], delta=min(1.0, allowance * published.DELTA)
    )


def searched(target: dt.PrivacyGuarantee) -> tuple[np.ndarray, np.ndarray]:
    """The paper's grid of lambda (steps of 0.5 up to 500) and sigma**2 at each.

    The mechanism is (lambda, lambda / sigma**2)-RDP; the grid begins one step above the lambda at which sigma is infinite.
    """
    log = math.log(1 / target.delta)
    orders = np.arange(log / target.epsilon + 1.5, 500, 0.5)
    return orders, orders / (target.epsilon - log / (orders - 1))


def paper_sigma(target: dt.PrivacyGuarantee) -> tuple[float, float]:
    """lambda and sigma as the paper chooses them."""
    orders, squares = searched(target)
    best = int(squares.argmin())
    return float(orders[best]), math.sqrt(squares[best])


def gaussian() -> Result:
    """Figure "lambda vs. sigma^2" and table "Parameters of the RDP bound"."""
    rows = []
    for source, (order, sigma) in published.RDP.items():
        for allowance in published.ALLOWANCES:
            target = label_target(source, allowance)
            found_order, found = paper_sigma(target)
            printed = (order, sigma, found - sigma) if allowance == 3 else (None, None, None)
            exact = dt.GNMax.calibrated(target).sigma
            rows.append((TITLES[source], allowance, str(target), found_order, found, *printed, exact, found / exact))
    curves = {source: [part.tolist() for part in searched(label_target(source, 3))] for source in published.RDP}

    def draw(file: Path) -> None:
        with grid(file, 1, 2, size=(9, 4), sharey=True) as (figure, (panels,)):
            for panel, (source, (orders, squares)) in zip(panels, curves.items(), strict=True):
                target = label_target(source, 3)
                order, sigma = paper_sigma(target)
                panel.plot(orders, squares, color=STYLES[0]["color"], label="RDP bound at this order (the paper)")
                panel.plot(order, sigma**2, "o", color=STYLES[0]["color"], label="its least, the paper's choice")
                exact = dt.GNMax.calibrated(target).sigma
                panel.axhline(exact**2, color=STYLES[1]["color"], linestyle="--", label="exact, without Renyi orders")
                panel.set(
                    xscale="log",
                    yscale="log",
                    xlabel="order lambda",
                    title=f"{TITLES[source]}, one label ({target.epsilon:g}, {target.delta:g})-DP",
                )
            panels[0].set_ylabel("sigma squared, in votes squared")
            legend(figure, panels[0], columns=3)

    return Result(
        name="gaussian",
        title="GNMax: lambda against sigma^2 (the paper's figure and its table of RDP parameters)",
        tables=(
            Table(
                caption="Standard deviation of GNMax's noise for one label.",
                columns=(
                    "data", "m", "one label", "lambda", "sigma", "paper's lambda", "paper's sigma", "difference",
                    "exact sigma", "times too much",
                ),
                rows=tuple(rows),
                digits=2,
            ),
        ),
        notes=(
            "The Renyi bound is loose: the exact condition on the Gaussian's (epsilon, delta) needs about half the noise.",
        ),
        data=curves,
        draw=draw,
    )  # fmt: skip
