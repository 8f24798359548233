"""Calls that mypy --strict and pyright must report, each on the line that ends in "# wrong". It is checked, not run."""

import darrm_torch as dt
from darrm_torch import PrivacyGuarantee

point = PrivacyGuarantee(epsilon=0.1, delta=1e-5)

PrivacyGuarantee(0.1, 1e-5)  # wrong
PrivacyGuarantee(epsilon="0.1")  # wrong
PrivacyGuarantee(eps=0.1)  # wrong
dt.optimize_noise(teachers="11", teacher=point, target=point)  # wrong
dt.optimize_noise(teachers=11, teacher=point)  # wrong
dt.optimize_noise(teachers=11, teacher=point, target=point, shape="smooth")  # wrong
dt.optimise_noise(teachers=11, teacher=point, target=point)  # wrong
dt.self_bounding_noise(teachers=11, allowance="3")  # wrong
dt.GNMax(sigma="2")  # wrong
dt.GNMax.calibrated(0.1)  # wrong
dt.plan(teachers=11, label_target=(0.1, 1e-5), total=point)  # wrong
dt.PrivacyLedger(budget=0.1)  # wrong
label: str = dt.PrivacyLedger().count  # wrong
point.epsilon = 0.2  # wrong
