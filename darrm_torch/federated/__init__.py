"""Sites that keep their teachers and answer votes, and the server that turns the votes into labels; over Flower.

Each name is loaded when it is first used: a site whose teacher is not a network never imports Torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
