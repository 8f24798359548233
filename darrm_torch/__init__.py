"""Private labels from ensembles of differentially private teachers.

The public names stand in `__init__.pyi`, with the modules that they come from. Each is loaded when it is first used, so
``import darrm_torch`` is quick and the solver never imports Torch.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, _lazy_names, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
