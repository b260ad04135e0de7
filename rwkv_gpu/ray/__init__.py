"""Serving and batches on a Ray cluster: `serve run rwkv_gpu.ray:app model=model.gguf`, and `Answer` for Ray Data.

Requests are answered by the server of `rwkv-gpu serve`, one in each replica. Ray starts, counts and scales the
replicas, and transfers bytes. Needs the extra `ray`. Nothing else in the package imports this.
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
    """Raises MissingExtra with the install command if Ray is missing."""
    try:
        import_module(f"ray.{part}")
    except ModuleNotFoundError:
        raise MissingExtra.of("this needs Ray", "ray") from None


def __getattr__(name: str) -> Any:
    """Imports `Answer` at first use: a replica does not need Ray Data."""
    if name != "Answer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_extra("data")
    from .stage import Answer

    return Answer
