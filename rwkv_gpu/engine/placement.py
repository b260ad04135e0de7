"""Chooses the parameters that stay in main memory: layers that do not fit on the GPU, and experts of mixtures."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import BadInput, UnsupportedDevice
from ..gpu.device import Device
from ..gpu.loader import ROW_TABLE, Parameter, device_bytes
from ..gpu.weight_slots import slot_sizes
from ..gpu.weights import align, layout
from .offload import Offload

EMBEDDINGS = "token_embd.weight", ROW_TABLE  # a step reads rows of these
WITH_EXPERTS = "_exps.bias", "gate_exps.scale", "up_exps.scale"  # read by expert index in products
# When layers with experts in main memory are chosen, one in this many experts gets a cache slot
CACHED = 4


@dataclass(frozen=True)
class Placement:
    """The parameters with their locations, and the number of experts per layer cached on the GPU."""

    parameters: Sequence[Parameter]
    slots: int = 0
    used: int = 0  # experts used per token

    @property
    def experts(self) -> int:
        """Experts of a layer, if some are in main memory."""
        return max((p.shape[0] for p in self.host if p.is_experts), default=0)

    @property
    def host(self) -> list[Parameter]:
        """Parameters in main memory."""
        return [p for p in self.parameters if p.host]

    @property
    def host_layers(self) -> int:
        """Layers with matrices in main memory, not counting experts."""
        return len({p.block for p in self.host if not p.is_experts and p.block != p.name})

    @property
    def expert_layers(self) -> int:
        """Layers with experts in main memory."""
        return len({p.block for p in self.host if p.is_experts})

    @property
    def cache_bytes(self) -> int:
        """Size of the expert cache on the GPU."""
        return self.slots * slot_bytes(self.parameters)

    @property
    def step_bytes(self) -> int:
        """Maximum bytes that a step of one token reads from main memory.

        These are matrices, and the experts used in each mixture.
        """
        whole = sum(_nbytes(p) for p in self.host if not p.is_experts and p.name not in EMBEDDINGS)
        chosen = sum(self.used * _nbytes(p) // p.shape[0] for p in self.host if p.is_experts)
        return whole + chosen


def place(device: Device, parameters: Sequence[Parameter], offload: Offload, used: int, room: int | None) -> Placement:
    """Places parameters: as requested, else as many on the GPU as fit in `room` bytes. None means unlimited room.

    `used` is the number of experts per token in each layer.
    """
    chosen = place_as_asked(parameters, offload)
    if not offload.chosen and room is not None and device_bytes(device, parameters) > room:
        choices = _less_and_less(parameters)
        least = bisect_left(choices, True, hi=len(choices) - 1, key=lambda one: _fits(device, parameters, one, room))
        chosen = place_as_asked(parameters, choices[least])
    if any(p.host for p in chosen) and not device.capabilities.main_memory:
        raise UnsupportedDevice(
            f"{device.adapter} cannot read main memory from shaders; use a smaller model or --device cpu"
        )
    each, experts = slot_bytes(chosen), max((p.shape[0] for p in chosen if p.host and p.is_experts), default=0)
    slots = 0 if room is None or not each else min(experts, (room - _device_bytes(device, chosen)) // each)
    return Placement(chosen, slots if slots >= used > 0 else 0, used)


def place_as_asked(parameters: Sequence[Parameter], offload: Offload) -> list[Parameter]:
    """Applies the explicitly requested placement, independent of available memory."""
    if not offload.chosen:
        return list(parameters)
    if offload.cpu_moe and not any(p.is_experts for p in parameters):
        raise BadInput("this model has no experts that could stay in main memory; leave out cpu_moe")
    layers = _layers(parameters)
    gpu_layers = layers + 1 if offload.gpu_layers is None or offload.gpu_layers < 0 else offload.gpu_layers
    first = max(0, layers + 1 - gpu_layers)  # first layer on the GPU
    return [replace(p, host=_stays(p, first, offload, parameters, gpu_layers)) for p in parameters]


def _device_bytes(device: Device, parameters: Sequence[Parameter]) -> int:
    """Size of weights on the GPU, including the slots to which those in main memory are copied."""
    return device_bytes(device, parameters) + sum(slot_sizes(device, parameters))


def slot_bytes(parameters: Sequence[Parameter]) -> int:
    """Size of a copy of one expert of each layer in main memory."""
    return sum(align(layout(p.format, p.rows // p.shape[0], p.width).nbytes) for p in cached_experts(parameters))


def cached_experts(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Expert matrices that the GPU can cache: in main memory, without biases and scales."""
    others = {p.block for p in parameters if p.name.endswith(WITH_EXPERTS)}
    return [p for p in parameters if p.host and p.is_experts and p.block not in others]


def _less_and_less(parameters: Sequence[Parameter]) -> list[Offload]:
    """Placements with ever less on the GPU: first without tables, then experts layer by layer, then whole layers."""
    layers, mixture = _layers(parameters), any(p.is_experts for p in parameters)
    experts = [Offload(cpu_moe=count) for count in range(1, layers + 1)] if mixture else []
    tables = Offload(tables=True)
    return [tables, *experts] + [Offload(gpu_layers=count, cpu_moe=layers * mixture) for count in range(layers, -1, -1)]


def _fits(device: Device, parameters: Sequence[Parameter], offload: Offload, room: int) -> bool:
    """True if the remaining weights fit on the GPU with cached copies of a quarter of the offloaded experts."""
    chosen = place_as_asked(parameters, offload)
    copies = max((p.shape[0] for p in cached_experts(chosen)), default=0) // CACHED
    return _device_bytes(device, chosen) + slot_bytes(chosen) * copies <= room


def _stays(p: Parameter, first: int, offload: Offload, parameters: Sequence[Parameter], gpu_layers: int) -> bool:
    """True if a parameter stays in main memory. Vectors never do, as they are small."""
    if len(p.tensors[0].shape) < 2:
        return False
    if p.block != p.name:
        layer = _layer(p)
        return layer < first or (p.is_experts and layer < offload.cpu_moe)
    if p.is_row_table or (p.name in EMBEDDINGS and any(other.name == "output.weight" for other in parameters)):
        return offload.tables or first > 0 or offload.cpu_moe > 0
    return gpu_layers == 0


def _layer(p: Parameter) -> int:
    return int(p.block.partition(".")[2])


def _layers(parameters: Sequence[Parameter]) -> int:
    return 1 + max((_layer(p) for p in parameters if p.block != p.name), default=-1)


def _nbytes(p: Parameter) -> int:
    return layout(p.format, p.rows, p.width).nbytes
