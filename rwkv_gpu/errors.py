"""The exceptions that a user can act on: one class per cause. Each message names the cause and the remedy.

`RwkvGpuError.exit_code` is what the command line ends with: 2 for bad input, 3 for the device.
"""

LONGEST = 4096  # characters


def printable(text: str, limit: int = LONGEST) -> str:
    """The text on one line: what does not print is escaped, what is too long is cut."""
    cut = text if len(text) <= limit else text[:limit] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


class RwkvGpuError(Exception):
    """Any error of this package: one line, with the reason and what to do.

    A message may quote a file, a server or a user: whatever these say, it is one line that prints.
    """

    exit_code = 2

    def __init__(self, *said: object) -> None:
        super().__init__(*(printable(one) if isinstance(one, str) else one for one in said))


class BadFile(RwkvGpuError):
    """A file that cannot be read or is not what it claims to be."""


class UnsupportedModel(RwkvGpuError):
    """A well-formed file whose architecture, tensor type or tokenizer is not supported."""


class BadInput(RwkvGpuError):
    """An argument that is out of range or of the wrong type."""


class ContextFull(RwkvGpuError):
    """A sequence longer than the context that the model was loaded with."""


class CacheFull(RwkvGpuError):
    """More keys and values at a time than the model was loaded with room for."""


class QueueFull(RwkvGpuError):
    """More requests at a time than may wait for the model."""


class Closed(RwkvGpuError):
    """A model that is used after it was closed, or was closed while somebody waited for it."""


class Forked(RwkvGpuError):
    """A model that is used in a process that was forked from the one that loaded it."""

    def __init__(self) -> None:
        super().__init__(
            "the model was loaded before this process was forked, and its threads are not here; "
            "load it in this process, or start processes by 'spawn'"
        )


class BadGrammar(RwkvGpuError):
    """A JSON schema, a regular expression or a grammar that is wrong, too large or too deep."""


class MissingExtra(RwkvGpuError):
    """Something that needs a package which is not installed; the message has the command."""


class BadTemplate(RwkvGpuError):
    """A chat template that is wrong, or that takes too much time or memory."""


class BadNumbers(RwkvGpuError):
    """Logits that are NaN or infinite: the model file may be damaged, or the device at fault."""

    exit_code = 3


class DeviceError(RwkvGpuError):
    """An error of the GPU or its driver."""

    exit_code = 3


class NoAdapter(DeviceError):
    """There is no such device."""


class UnsupportedDevice(DeviceError):
    """The device lacks a feature or a limit that is needed."""


class NoMatrixUnits(DeviceError):
    """Matrix units were asked for and cannot be had; the message says why."""


class OutOfMemory(DeviceError):
    """The device has too little memory."""


class DeviceLost(DeviceError):
    """The device went away (driver reset, sleep, unplugged); everything on it is gone."""


class ShaderError(DeviceError):
    """A shader did not compile on this device; the message points into its own file, by its lines."""

    def __init__(self, *said: object) -> None:
        Exception.__init__(self, *said)
