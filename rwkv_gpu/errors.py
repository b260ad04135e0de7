"""The exceptions a user can mend: one class per cause, each message names the cause and the remedy.

`RwkvGpuError.exit_code` is what the command line ends with: 2 for bad input, 3 for the device.
"""


class RwkvGpuError(Exception):
    """Anything this package refuses, in one line that says why and what to do."""

    exit_code = 2


class BadFile(RwkvGpuError):
    """A file that cannot be read or is not what it claims to be."""


class UnsupportedModel(RwkvGpuError):
    """A well-formed file whose architecture, tensor type or tokenizer is not known here."""


class BadInput(RwkvGpuError):
    """A value given by the caller that is out of range or of the wrong form."""


class ContextFull(RwkvGpuError):
    """A sequence longer than the context that the model was loaded with."""


class CacheFull(RwkvGpuError):
    """More keys and values at a time than the model was loaded with room for."""


class QueueFull(RwkvGpuError):
    """More requests at a time than may wait for the model."""


class Closed(RwkvGpuError):
    """A model that is used after it was closed, or was closed while somebody waited for it."""


class BadGrammar(RwkvGpuError):
    """A JSON schema, a regular expression or a grammar that no answer can be held to."""


class MissingExtra(RwkvGpuError):
    """Something that needs a package which is not installed; the message has the command."""


class BadTemplate(RwkvGpuError):
    """A chat template that is wrong, or that asks for more time or memory than a prompt can need."""


class BadNumbers(RwkvGpuError):
    """Logits that are no numbers: the model, its file or the device computed nonsense."""

    exit_code = 3


class DeviceError(RwkvGpuError):
    """Something about the GPU, its driver or what was asked of it."""

    exit_code = 3


class NoAdapter(DeviceError):
    """No device answers to what was asked for."""


class UnsupportedDevice(DeviceError):
    """The device lacks a feature or a limit that is needed."""


class OutOfMemory(DeviceError):
    """The device could not give the memory that was asked for."""


class DeviceLost(DeviceError):
    """The device went away (driver reset, sleep, unplugged); everything on it is gone."""


class ShaderError(DeviceError):
    """A shader did not compile on this device; the message points into its own file."""
