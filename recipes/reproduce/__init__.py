"""The paper's figures and tables, reproduced beside the printed numbers, and further experiments.

``python -m recipes.reproduce [name ...]``: see :mod:`recipes.reproduce.__main__`.
"""
