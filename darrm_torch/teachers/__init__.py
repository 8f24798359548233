"""Teachers: training them, reading their privacy, checking that they are independent. The only Opacus imports.

This is the first wing that loads Torch, except for `workers` and `findings`.
"""
