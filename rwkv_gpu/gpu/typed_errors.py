"""Translates wgpu's errors to ours; the only place that depends on their messages."""

from contextlib import ContextDecorator
from types import TracebackType

from ..errors import DeviceError, DeviceLost, OutOfMemory
from . import wgpu


class TypedErrors(ContextDecorator):
    """A context, or a decorator, that raises our exception for one of wgpu's. `doing` says what failed."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, wgpu.GPUError | wgpu.GPUPipelineError) or (
            type(error) is RuntimeError and _of_wgpu(trace)
        ):
            raise translated(str(error), self._doing) from None


def _of_wgpu(trace: TracebackType | None) -> bool:
    """True if wgpu's own code raised the error."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "wgpu"


def translated(message: str, doing: str) -> DeviceError:
    """Our exception for a message from wgpu."""
    if "device is lost" in message or "Could not map buffer" in message:
        return DeviceLost(
            f"the GPU was lost while {doing}; start again (driver reset, sleep, or memory overcommitted?)"
        )
    if "Not enough memory" in message or "out of memory" in message.lower():
        return OutOfMemory(f"out of GPU memory while {doing}; close other programs or use a smaller model or context")
    text = " ".join(message.split())
    return DeviceError(f"the GPU driver refused while {doing}: {text}; update the driver or try another --device")
