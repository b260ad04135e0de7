"""Exceptions that a user can act on: one class per cause. Each message names the cause and the remedy.

`RwkvGpuError.exit_code` is the exit status of the command line: 2 for bad input, 3 for the device.
"""

import importlib.util
import sys

LONGEST = 4096  # characters


NAME = 120  # characters shown of a name that a file gives


def printable(text: str, limit: int = LONGEST, *, keep: str = "") -> str:
    """External text as it may be shown: on one line, unprintable characters escaped, and truncated if it is long.

    The characters in `keep` are not escaped.
    """
    cut = text if len(text) <= limit else text[:limit] + "..."
    if cut.isprintable():
        return cut
    escaped = (c if c.isprintable() or c in keep else c.encode("unicode_escape", "surrogatepass").decode() for c in cut)
    return "".join(escaped)


def is_count(text: str) -> bool:
    """True for a whole number of at most nine digits; `int` refuses thousands of digits with an error of its own."""
    return text.isascii() and text.isdigit() and len(text) < 10


class RwkvGpuError(Exception):
    """Any error of this package: one line, with the reason and what to do.

    A message may quote a file, a server or a user. It is always a single printable line.
    """

    exit_code = 2
    """Exit status of the command line for this error."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*(printable(one) if isinstance(one, str) else one for one in parts))


class BadFile(RwkvGpuError):
    """A file that cannot be read or is not what it claims to be."""


class UnsupportedModel(RwkvGpuError):
    """A well-formed file whose architecture, tensor type or tokenizer is not supported."""


class BadInput(RwkvGpuError):
    """An argument that is out of range or of the wrong type."""


class FileInUse(BadInput):
    """An output file that another process is writing; the message names the process."""


class ContextFull(RwkvGpuError):
    """A sequence longer than the context that the model was loaded with."""

    def __init__(self, message: str, tokens: int | None = None, context: int | None = None) -> None:
        super().__init__(message)
        self.tokens = tokens  # minimum tokens of the prompt; None if it was not counted
        self.context = context


class CacheFull(RwkvGpuError):
    """The running sequences have more keys and values than the model has room for."""


class QueueFull(RwkvGpuError):
    """More requests than may wait for the model."""


class Closed(RwkvGpuError):
    """The model was closed before a call, or while the call waited."""


class Forked(RwkvGpuError):
    """A model or GPU used in a process that was forked from the one that opened it."""

    def __init__(self, what: str = "the model was loaded") -> None:
        super().__init__(
            f"{what} before this process was forked, and a fork does not have its threads; start processes by 'spawn' "
            "(multiprocessing.get_context('spawn'), gunicorn without --preload), or fork before loading a model"
        )


class BadGrammar(RwkvGpuError):
    """A JSON schema, regular expression or grammar that is wrong, too large or too deep."""


# The command that installs an extra in a clone, as in docs/install.md. Once published: pip install 'rwkv-gpu[{}]'.
INSTALL = "pip install '.[{}]'"


class MissingExtra(RwkvGpuError):
    """A feature whose package is not installed; the message has the command to install it."""

    @classmethod
    def of(cls, needs: str, extra: str) -> "MissingExtra":
        """The error about a missing package of an extra. It names the Python that runs; the shell may find another."""
        python = f'"{sys.executable}"' if " " in sys.executable else sys.executable or "python"
        install = f"{python} -m {INSTALL.format(extra)}"
        if importlib.util.find_spec("pip") is None:  # an environment by uv
            install = f"uv {INSTALL.format(extra)} --python {python}"
        return cls(f"{needs}; in a clone of rwkv-gpu, install it by: {install}")


class BadTemplate(RwkvGpuError):
    """A chat template that is wrong, or takes too much time or memory."""


class BadNumbers(RwkvGpuError):
    """Results that are NaN or infinite: the model file may be damaged, or the device at fault."""

    exit_code = 3
    """As in `RwkvGpuError`."""

    @classmethod
    def of(cls, what: str) -> "BadNumbers":
        """The error for results, named in the plural, that are NaN or infinite."""
        return cls(
            f"{what} are NaN or infinite; the model file may be damaged or the device at fault: try --device cpu, "
            "or rwkv-gpu doctor"
        )


class DeviceError(RwkvGpuError):
    """An error of the GPU or its driver."""

    exit_code = 3
    """As in `RwkvGpuError`."""


class NoAdapter(DeviceError):
    """The requested device does not exist."""


class UnsupportedDevice(DeviceError):
    """The device lacks a required feature or limit."""


class NoMatrixUnits(DeviceError):
    """Matrix units were required but are not available; the message has the reason."""


class OutOfMemory(DeviceError):
    """The device has too little memory."""


class DeviceLost(DeviceError):
    """The device was lost (driver reset, sleep, unplugged); everything on it is gone."""


class ShaderError(DeviceError):
    """A shader did not compile on this device; the message gives the shader file and line."""

    def __init__(self, *parts: object) -> None:
        Exception.__init__(self, *parts)
