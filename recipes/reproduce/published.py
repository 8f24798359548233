"""The numbers that the paper prints.

Jiang, Zhang, Joshi: Optimized Tradeoffs for Private Prediction with Majority Ensembling. TMLR, November 2024.
"""

from __future__ import annotations

QUERIES = (20, 50, 100)
ALLOWANCES = (1, 3, 5, 7)
DELTA = 1e-4  # of one teacher
SLACK = 1e-4  # delta' of general composition, in the totals

EPSILON = {"mnist": 0.0892, "fashion-mnist": 0.0852}  # of one teacher

# Table "The privacy loss per query and the total privacy loss": data -> m -> (epsilon, delta) for each of QUERIES.
TOTALS: dict[str, dict[int, tuple[tuple[float, float], ...]]] = {
    "mnist": {
        1: ((1.704, 0.002), (2.837, 0.005), (4.202, 0.010)),
        3: ((5.352, 0.006), (9.901, 0.015), (15.044, 0.030)),
        5: ((8.920, 0.010), (18.428, 0.025), (28.926, 0.049)),
        7: ((12.488, 0.014), (28.392, 0.035), (45.683, 0.068)),
    },
    "fashion-mnist": {
        1: ((1.620, 0.002), (2.695, 0.005), (3.988, 0.010)),
        3: ((5.112, 0.006), (9.382, 0.015), (14.219, 0.030)),
        5: ((8.520, 0.010), (17.398, 0.025), (27.223, 0.049)),
        7: ((11.928, 0.014), (26.738, 0.035), (42.873, 0.068)),
    },
}

# Table "Accuracy of the predicted labels": data -> m -> method -> (mean, standard deviation) for each of QUERIES.
ACCURACIES: dict[str, dict[int, dict[str, tuple[tuple[float, float], ...]]]] = {
    "mnist": {
        1: {
            "GNMax": ((0.54, 0.11), (0.51, 0.07), (0.57, 0.03)),
            "gamma_Sub": ((0.68, 0.07), (0.67, 0.05), (0.71, 0.03)),
            "gamma_opt": ((0.74, 0.08), (0.66, 0.05), (0.69, 0.04)),
        },
        3: {
            "GNMax": ((0.63, 0.09), (0.66, 0.06), (0.64, 0.04)),
            "gamma_Sub": ((0.76, 0.09), (0.75, 0.06), (0.76, 0.04)),
            "gamma_opt": ((0.79, 0.09), (0.79, 0.05), (0.80, 0.04)),
        },
        5: {
            "GNMax": ((0.73, 0.11), (0.75, 0.07), (0.72, 0.04)),
            "gamma_Sub": ((0.76, 0.09), (0.82, 0.04), (0.79, 0.05)),
            "gamma_opt": ((0.84, 0.07), (0.83, 0.04), (0.83, 0.03)),
        },
        7: {
            "GNMax": ((0.79, 0.07), (0.80, 0.05), (0.80, 0.04)),
            "gamma_Sub": ((0.80, 0.09), (0.82, 0.05), (0.80, 0.04)),
            "gamma_opt": ((0.85, 0.08), (0.85, 0.04), (0.83, 0.03)),
        },
    },
    "fashion-mnist": {
        1: {
            "GNMax": ((0.56, 0.10), (0.52, 0.05), (0.56, 0.04)),
            "gamma_Sub": ((0.92, 0.05), (0.89, 0.04), (0.89, 0.04)),
            "gamma_opt": ((0.89, 0.06), (0.92, 0.03), (0.91, 0.04)),
        },
        3: {
            "GNMax": ((0.65, 0.11), (0.59, 0.06), (0.64, 0.04)),
            "gamma_Sub": ((0.90, 0.07), (0.94, 0.03), (0.93, 0.02)),
            "gamma_opt": ((0.96, 0.03), (0.96, 0.02), (0.96, 0.02)),
        },
        5: {
            "GNMax": ((0.72, 0.10), (0.72, 0.08), (0.72, 0.06)),
            "gamma_Sub": ((0.96, 0.04), (0.96, 0.02), (0.97, 0.01)),
            "gamma_opt": ((0.97, 0.04), (0.97, 0.02), (0.97, 0.01)),
        },
        7: {
            "GNMax": ((0.79, 0.07), (0.79, 0.05), (0.79, 0.03)),
            "gamma_Sub": ((0.95, 0.04), (0.96, 0.03), (0.96, 0.02)),
            "gamma_opt": ((0.96, 0.04), (0.97, 0.03), (0.96, 0.02)),
        },
    },
}

# Table "Parameters of the RDP bound of Gaussian noise", m = 3: data -> (lambda, sigma).
RDP = {"mnist": (34.31, 21.46), "fashion-mnist": (35.74, 22.46)}

# Table "All parameter values", K = 35: M -> (m, tau, lambda, m epsilon, delta).
COMPOSITION = {
    10: (6.4521, 14.0328, 0.1003, 0.6452, 0.1001),
    13: (7.5742, 14.0328, 0.1003, 0.7574, 0.1001),
    15: (8.2708, 14.0328, 0.1003, 0.8271, 0.1001),
    20: (9.8823, 14.0328, 0.1003, 0.9882, 0.1002),
}
