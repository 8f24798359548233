"""The paper's figures and tables again, each beside what the paper prints, and what lies beyond them.

``python -m recipes.reproduce [name ...]``: see :mod:`recipes.reproduce.__main__`.
"""
