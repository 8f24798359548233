"""What the wing exports, and where each name lives."""

from .flower import FlowerExchange as FlowerExchange, client_app as client_app
from .messages import (
    Answer as Answer,
    MessageRefused as MessageRefused,
    Request as Request,
    public_key as public_key,
    site_key as site_key,
)
from .server import RegisteredSite as RegisteredSite, RemoteLabeler as RemoteLabeler
from .site import Site as Site
from .teacher import LocalTeacher as LocalTeacher
