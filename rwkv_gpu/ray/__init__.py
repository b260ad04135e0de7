"""Serving and batches on a Ray cluster: `serve run rwkv_gpu.ray:app model=model.gguf`, and `Answer` for Ray Data.

What answers requests is the server of `rwkv-gpu serve`, one in each replica. Ray starts the replicas, counts and scales
them, and moves bytes. Needs the extra `ray`. Nothing else in the package imports this.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtra

if TYPE_CHECKING:
    from .stage import Answer as Answer


def app(args: dict[str, Any]) -> Any:
    """The application that Ray Serve runs. The arguments are options of `rwkv-gpu serve`, and those of `Settings`."""
    check_extra()
    from rwkv_gpu.cli.ray_settings import settings_of

    from .application import application

    return application(settings_of(args))


def check_extra(part: str = "serve") -> None:
    """Says what to install where Ray is missing."""
    try:
        import_module(f"ray.{part}")
    except ModuleNotFoundError:
        raise MissingExtra("this needs Ray; install it by: pip install 'rwkv-gpu[ray]'") from None


def __getattr__(name: str) -> Any:
    """`Answer`, loaded when it is used: a replica needs no Ray Data."""
    if name != "Answer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_extra("data")
    from .stage import Answer

    return Answer
