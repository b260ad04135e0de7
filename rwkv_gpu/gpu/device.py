"""An opened GPU: its capabilities, memory by purpose, uploads and readback, and compiled shaders."""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DeviceError, NoAdapter, NoMatrixUnits, OutOfMemory, UnsupportedDevice
from . import native, wgpu
from .adapters import Adapter, check_process, choose, list_adapters
from .experimental import NotLifted, lifted
from .matrix_units import fragment_of
from .shader import Linked, Pipeline, PipelineCache, link
from .typed_errors import TypedErrors

# Usages of buffers, by the numbers of the WebGPU standard
MAP_READ, COPY_SRC, COPY_DST, UNIFORM = 0x1, 0x4, 0x8, 0x40
STORAGE = 0x80 | COPY_SRC | COPY_DST
# Drivers place buffers that the CPU can read in main memory. Buffers that it can write may be in GPU memory.
IN_MAIN_MEMORY = MAP_READ

# Optional features by wgpu's names; each is enabled if available.
FEATURES = (
    "shader-f16",
    "subgroup",
    "subgroup-barrier",
    "timestamp-query",
    "timestamp-query-inside-passes",
    "memory-decoration-coherent",
    "mappable-primary-buffers",
)
MAX_STAGED = 16 << 20  # maximum bytes in flight of copies within buffers
MATRIX_UNITS = "cooperative-matrix"  # experimental in wgpu, so enabled only with the user's consent

MIN_SUBGROUP = 8  # minimum subgroup size of kernels with shuffles
# Smallest subgroup size by vendor, if the compiler chooses a size for each kernel: Intel 8 to 32, AMD 32 or 64.
VARIABLE_SUBGROUPS = {0x8086: 8, 0x1002: 32}
INTEGER_DOT = ("Vulkan", "D3D12")  # backends with a dot product instruction for bytes; Metal has none

# The limits of every WebGPU device, which `portable` mode imposes.
PORTABLE_LIMITS = {
    "max-bind-groups": 4,
    "max-buffer-size": 256 << 20,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
    "max-compute-workgroup-storage-size": 16 << 10,
    "max-compute-workgroups-per-dimension": 65535,
    "max-immediate-size": 0,
    "max-storage-buffer-binding-size": 128 << 20,
    "max-storage-buffers-per-shader-stage": 8,
    "max-uniform-buffer-binding-size": 64 << 10,
    "min-storage-buffer-offset-alignment": 256,
    "min-uniform-buffer-offset-alignment": 256,
}


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of an opened device that kernels rely on."""

    f16: bool
    subgroup: bool
    subgroup_size: int  # 0 without subgroups, or if the compiler chooses a size for each kernel
    subgroup_width: int  # number of neighbouring lanes that share a subgroup in every kernel; 1 without subgroups
    integer_dot: bool  # whether a dot product of four bytes is one instruction
    fragment: int  # side of a fragment of matrix units; 0 if they are not used
    timestamps: bool
    timestamps_in_pass: bool
    coherent: bool  # whether workgroups can see writes of other workgroups of their dispatch
    main_memory: bool  # whether shaders can read buffers in main memory
    software: bool
    max_buffer: int
    max_binding: int
    max_storage_buffers: int
    max_workgroup_memory: int
    max_invocations: int
    max_workgroups: int
    offset_alignment: int
    latents_on_matrix_units: bool = True  # False if the driver computes latent attention wrongly on them
    state_space_on_matrix_units: bool = True  # the same for prompts of Mamba-2


class Buffer:
    """GPU memory with a purpose. Freed by `free`, or with the last reference."""

    def __init__(self, handle: Any, nbytes: int, purpose: str, usage: "Counter[str]") -> None:
        self.handle = handle
        self.nbytes = nbytes
        self.purpose = purpose
        usage[purpose] += nbytes
        self._accounted = weakref.finalize(self, usage.subtract, {purpose: nbytes})

    def free(self) -> None:
        """Frees the memory now; can be called again."""
        if self._accounted.alive:
            self._accounted()
            self.handle.destroy()

    def __repr__(self) -> str:
        return f"Buffer({self.nbytes} bytes of {self.purpose})"


class Device:
    """An opened adapter.

    `portable` restricts it to the default WebGPU limits and no features; `checked` keeps naga's bounds checks.
    `matrix_units` enables matrix units, or raises `NoMatrixUnits` with the reason.
    """

    # While a trial of the driver runs: returns the capabilities to use once it has ended, else None
    pending: Callable[[], Capabilities | None] | None = None

    def __init__(
        self, adapter: Adapter, *, portable: bool = False, checked: bool = False, matrix_units: bool = False
    ) -> None:
        self.adapter = adapter
        self.portable = portable
        self.checked = checked
        self.closed = False
        self._fragment = fragment_of(adapter) if matrix_units else 0
        check_process(opens=True)
        self.handle = _request(adapter, portable, matrix_units)
        self.queue = self.handle.queue
        self._usage: Counter[str] = Counter()
        self._mapper = native.Mapper(self.handle)
        self._staging: Any = None
        self._reading = threading.Lock()
        self._deferred: Callable[[], None] | None = None
        # A thread that encodes commands ahead; it starts on first use.
        self.encoding = ThreadPoolExecutor(1, "encode-ahead")
        self.unsubmitted: set[Any] = set()  # `close` submits them, because wgpu never frees unsubmitted ones
        self.uploads: list[native.Upload] = []  # buffers that the commands in `unsubmitted` may read
        self.pipelines = PipelineCache(self.handle, checked)
        self.capabilities = self._capabilities()
        if self.capabilities.subgroup:
            size = self._measure_subgroup()
            least = VARIABLE_SUBGROUPS.get(self.adapter.handle.info["vendor_id"])
            self.capabilities = with_subgroups(self.capabilities, size, least)

    def without_matrix_units(self) -> Capabilities:
        """The capabilities that a device opened with matrix units has without them."""
        can = replace(self.capabilities, fragment=0)
        if not can.subgroup:
            return can
        return with_subgroups(can, can.subgroup_size, VARIABLE_SUBGROUPS.get(self.adapter.handle.info["vendor_id"]))

    def apply_trial_result(self) -> None:
        """Applies the result of the driver trial if it has ended since the last call."""
        if self.pending is not None and (found := self.pending()) is not None:
            self.pending, self.capabilities = None, found

    @classmethod
    def open(
        cls, wanted: str = "auto", *, portable: bool = False, checked: bool = False, matrix_units: bool = False
    ) -> "Device":
        """Opens the device named by `wanted`; `cpu` is refused, as it is not a GPU."""
        choice = choose(list_adapters(), wanted)
        if choice.adapter is None:
            raise NoAdapter(f"no GPU to open: {choice.reason}")
        return cls(choice.adapter, portable=portable, checked=checked, matrix_units=matrix_units)

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees everything on the device; later uses raise `DeviceLost`."""
        if self.closed:
            return
        self.closed = True
        self._deferred = None
        self.encoding.shutdown()
        native.destroy(self.handle, list(self.unsubmitted), self.uploads)
        self.unsubmitted.clear()
        self.uploads.clear()
        self._usage = Counter()  # buffers freed later no longer count

    def buffer(self, nbytes: int, purpose: str, *, uniform: bool = False, host: bool = False) -> Buffer:
        """Allocates zeroed memory for shaders, rounded up to 16 bytes so that vec4 loads stay inside.

        With `host` it is in main memory, which a discrete GPU reads over its bus.
        """
        nbytes = max(16, -(-nbytes // 16) * 16)
        limit = self.capabilities.max_buffer
        if nbytes > limit:
            raise OutOfMemory(
                f"one buffer of {nbytes:,} bytes for {purpose} is over this device's limit of {limit:,}; "
                "load with fewer sequences or a smaller context, or use a smaller model"
            )
        doing = f"allocating {nbytes:,} bytes for {purpose} ({sum(self._usage.values()):,} in use)"
        with TypedErrors(doing):
            usage = STORAGE | (UNIFORM if uniform else 0) | (IN_MAIN_MEMORY if host else 0)
            handle = self.handle.create_buffer(size=nbytes, usage=usage, label=purpose)
        return Buffer(handle, nbytes, purpose, self._usage)

    def upload(self, data: npt.NDArray[Any], purpose: str) -> Buffer:
        """Allocates a buffer with the contents `data`."""
        buffer = self.buffer(data.nbytes, purpose)
        self.write(buffer, data)
        return buffer

    def write(self, buffer: Buffer, data: npt.NDArray[Any], offset: int = 0) -> None:
        """Queues a copy into the buffer, before later submits."""
        if data.nbytes == 0:
            return
        self.flush()
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if flat.nbytes % 4:  # wgpu copies whole words; buffers are padded
            flat = np.concatenate([flat, np.zeros(-flat.nbytes % 4, np.uint8)])
        native.write(self.queue, buffer.handle, offset, flat)

    def copy(self, source: Buffer, source_at: int, target: Buffer, target_at: int, nbytes: int) -> None:
        """Queues a copy between two buffers of the device."""
        self.flush()
        with TypedErrors("copying"):
            encoder = self.handle.create_command_encoder()
            encoder.copy_buffer_to_buffer(source.handle, source_at, target.handle, target_at, nbytes)
            self.queue.submit([encoder.finish()])

    def copy_within(self, buffers: Sequence[Buffer], source: int, target: int, nbytes: int) -> None:
        """Queues a copy from one offset to another within each of the buffers, several buffers per submit."""
        at_once = max(1, min(MAX_STAGED // nbytes, len(buffers)))
        between = self.buffer(nbytes * at_once, "staging").handle  # WebGPU has no copies within a buffer
        for first in range(0, len(buffers), at_once):
            places = [(one.handle, n * nbytes) for n, one in enumerate(buffers[first : first + at_once])]
            there = [(handle, source, between, at, nbytes) for handle, at in places]
            back = [(between, at, handle, target, nbytes) for handle, at in places]
            self.submit([native.encode(self.handle, (), [*there, *back])])

    def submit(self, commands: Sequence[Any]) -> int:
        """Submits command buffers and returns at once. Returns an index to wait for these and all earlier ones."""
        self.flush()
        return native.submit(self.queue, commands)

    def defer(self, submit: Callable[[], None]) -> None:
        """Defers a submit until `flush`, or until something else is queued or read."""
        self.flush()
        self._deferred = submit

    def flush(self) -> None:
        """Runs the deferred submit, if any."""
        deferred = self._deferred
        if deferred is not None:
            self._deferred = None
            deferred()

    def read(self, buffer: Buffer, nbytes: int | None = None, offset: int = 0) -> bytes:
        """Waits for all submitted work and returns the buffer's bytes."""
        nbytes = buffer.nbytes - offset if nbytes is None else nbytes
        whole = -(-nbytes // 4) * 4
        self.flush()
        with self._reading, TypedErrors("reading results back"):
            # After an error, the buffer may still be mapped. wgpu ends the process if a mapped buffer is written.
            staging, self._staging = self._staging, None
            if staging is None or staging.size < whole:
                size = max(64 << 10, 1 << (whole - 1).bit_length())
                staging = self.handle.create_buffer(size=size, usage=MAP_READ | COPY_DST)
            encoder = self.handle.create_command_encoder()
            encoder.copy_buffer_to_buffer(buffer.handle, offset, staging, 0, whole)
            self.queue.submit([encoder.finish()])
            data = self._mapper.read(staging, whole)[:nbytes]
            self._staging = staging
            return data

    def pipeline(self, linked: Linked) -> Pipeline:
        """The compiled shader, from the cache if possible."""
        return self.pipelines.get(linked)

    def compile(self, every: Iterable[Linked]) -> None:
        """Compiles shaders in parallel, for later calls of `pipeline`."""
        self.pipelines.compile(every)

    def memory(self) -> Mapping[str, int]:
        """Allocated bytes by purpose."""
        return {purpose: nbytes for purpose, nbytes in sorted(self._usage.items()) if nbytes}

    def _capabilities(self) -> Capabilities:
        features, limits = self.handle.features, self.handle.limits
        return Capabilities(
            f16="shader-f16" in features,
            subgroup="subgroup" in features,
            subgroup_size=0,
            subgroup_width=1,
            integer_dot=self.adapter.backend in INTEGER_DOT,
            fragment=self._fragment if MATRIX_UNITS in features else 0,
            timestamps="timestamp-query" in features,
            timestamps_in_pass="timestamp-query-inside-passes" in features,
            coherent="memory-decoration-coherent" in features,
            main_memory="mappable-primary-buffers" in features,
            software=self.adapter.kind == "CPU",
            max_buffer=limits["max-buffer-size"],
            max_binding=limits["max-storage-buffer-binding-size"],
            max_storage_buffers=limits["max-storage-buffers-per-shader-stage"],
            max_workgroup_memory=limits["max-compute-workgroup-storage-size"],
            max_invocations=limits["max-compute-invocations-per-workgroup"],
            max_workgroups=limits["max-compute-workgroups-per-dimension"],
            offset_alignment=max(
                limits["min-storage-buffer-offset-alignment"], limits["min-uniform-buffer-offset-alignment"]
            ),
        )

    def _measure_subgroup(self) -> int:
        """Measures the subgroup size of a plain kernel, as wgpu-native does not report it."""
        return int(np.frombuffer(self.probe(link("probes/subgroup"), 16), np.uint32)[0])

    def probe(self, linked: Linked, nbytes: int) -> bytes:
        """Runs one workgroup of a kernel and returns what it writes to its only binding."""
        result = self.buffer(nbytes, "probe")
        self.dispatch(linked, [(result, 0, result.nbytes)], (1, 1, 1))
        written = self.read(result, nbytes)
        result.free()
        return written

    def bind_group(self, pipeline: Pipeline, bound: Mapping[int, tuple[Buffer, int, int]]) -> Any:
        """Binds buffers to the bindings of a shader. `bound` are the buffer, offset and bytes of each binding."""
        entries = [
            {"binding": n, "resource": {"buffer": buffer.handle, "offset": offset, "size": nbytes}}
            for n, (buffer, offset, nbytes) in sorted(bound.items())
        ]
        return self.handle.create_bind_group(layout=pipeline.layout, entries=entries)

    def dispatch(self, linked: Linked, bound: Sequence[tuple[Buffer, int, int]], grid: tuple[int, int, int]) -> None:
        """Queues a single dispatch. `bound` are the buffer, offset and bytes of each binding, from 0 on."""
        pipeline = self.pipeline(linked)
        self.flush()
        with TypedErrors(f"running {linked.name}"):
            encoder = self.handle.create_command_encoder()
            compute = encoder.begin_compute_pass()
            compute.set_pipeline(pipeline.handle)
            compute.set_bind_group(0, self.bind_group(pipeline, dict(enumerate(bound))))
            compute.dispatch_workgroups(*grid)
            compute.end()
            self.queue.submit([encoder.finish()])


def with_subgroups(can: Capabilities, measured: int, least: int | None) -> Capabilities:
    """The capabilities with subgroup sizes: the measured one, and the smallest that any kernel may get."""
    # With matrix units, compilers use a single size.
    steady = least is None or can.fragment > 0
    return replace(can, subgroup_size=measured if steady else 0, subgroup_width=min(measured, least or 32))


def _request(adapter: Adapter, portable: bool, matrix_units: bool) -> Any:
    """Opens the device with all usable features and limits."""
    if portable:
        lacking = [
            f"{name} {adapter.handle.limits[name]:,} (needed: {limit:,})"
            for name, limit in PORTABLE_LIMITS.items()
            if name.startswith("max") and adapter.handle.limits[name] < limit
        ]
        if lacking:
            raise UnsupportedDevice(f"{adapter} is below the WebGPU defaults: {', '.join(lacking)}; choose another")
        return _open(adapter, [], PORTABLE_LIMITS)
    wanted = [name for name in FEATURES if name in adapter.handle.features]
    if not matrix_units:
        return _open(adapter, wanted, {})
    wanted.append(MATRIX_UNITS)
    try:
        return _open(adapter, wanted, {})  # succeeds if this wgpu-native allows experimental features
    except DeviceError:
        pass
    try:
        with lifted(native.library_path()):
            return _open(adapter, wanted, {})
    except NotLifted as error:
        raise NoMatrixUnits(f"wgpu-native refuses matrix units, and {error}; see docs/matrix-units.md") from None


def _open(adapter: Adapter, features: list[str], limits: Mapping[str, int]) -> Any:
    try:
        with native.quiet_stderr():
            # Limits that are not set here default to the adapter's maximum.
            return adapter.handle.request_device_sync(required_features=features, required_limits=dict(limits))
    except (RuntimeError, wgpu.GPUError) as error:
        raise DeviceError(f"cannot open {adapter}: {' '.join(str(error).split())}; try another --device") from None
