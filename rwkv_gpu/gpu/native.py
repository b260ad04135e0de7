"""Direct wgpu-native calls, for functions that wgpu-py's public API lacks or that are too slow there.

Only this module uses wgpu-py's internals; wgpu is pinned to a minor version because of it.
"""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import wgpu
from wgpu.backends.wgpu_native import _api as api
from wgpu.backends.wgpu_native._ffi import ffi, lib, lib_path

from ..errors import DeviceLost
from .c_types import look_up_names
from .typed_errors import translated

# Without a handler, Python would print wgpu's log on stderr. The application's handlers still receive it.
logging.getLogger("wgpu").addHandler(logging.NullHandler())

look_up_names(ffi)

NULL = ffi.NULL
NO_MEMORY = np.zeros(0, np.uint8)
PATIENCE = 60.0  # seconds for a callback that another thread is about to call


def library_path() -> str:
    """The path of the loaded wgpu-native: wgpu-py's own, or the one in WGPU_LIB_PATH."""
    return str(lib_path)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Silences file descriptor 2: the Vulkan loader and EGL write there while they look for drivers."""
    try:
        saved = os.dup(2)
    except OSError:  # no stderr at all, as under pythonw
        yield
        return
    with contextlib.suppress(AttributeError, ValueError, OSError):
        sys.stderr.flush()
    try:
        with open(os.devnull, "wb") as sink:
            os.dup2(sink.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


class Captured:
    """A context that collects errors of raw `lib` calls and raises a typed exception at the end."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        api.error_handler.capture(self._doing)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        error = api.error_handler.release(self._doing)
        if error is not None and kind is None:
            raise translated(error[1], self._doing)


def create_module(device: Any, code: str, label: str, checked: bool) -> Any:
    """A shader module; unless `checked`, without naga's bounds checks and loop bounding."""
    if checked:
        return device.create_shader_module(code=code, label=label)
    source = api.new_struct_p("WGPUShaderSourceWGSL *", code=api.to_c_string_view(code))
    source[0].chain.next = NULL
    source[0].chain.sType = lib.WGPUSType_ShaderSourceWGSL
    chain = ffi.cast("WGPUChainedStruct *", source)
    descriptor = api.new_struct_p("WGPUShaderModuleDescriptor *", nextInChain=chain, label=api.to_c_string_view(label))
    # H: WGPUShaderModule f(WGPUDevice, WGPUShaderModuleDescriptor const *, WGPUShaderRuntimeChecks)
    handle = api.libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, 0)
    return api.GPUShaderModule(label, handle, device)


class Encoded:
    """A command buffer by its handle, released with this object if it was submitted.

    wgpu-native never frees one that was not submitted, nor its device and the device's memory: see
    `Device.unsubmitted`.
    """

    def __init__(self, handle: Any) -> None:
        self._internal = handle

    def __del__(self) -> None:
        # H: void f(WGPUCommandBuffer)
        lib.wgpuCommandBufferRelease(self._internal)


Copy = tuple[Any, int, Any, int, int]  # source buffer, offset, target buffer, offset, bytes
Command = tuple[Any, Any, int, int, int]  # pipeline, bind group, workgroups by x, y, z


def program(dispatches: Iterable[tuple[Any, Any, tuple[int, int, int]]]) -> list[Command]:
    """Dispatches as raw handles; the wrappers must be kept alive elsewhere."""
    return [(pipeline._internal, group._internal, *grid) for pipeline, group, grid in dispatches]


class Recording:
    """Recorded commands. wgpu validates and translates them in `finish`, which any thread may call."""

    def __init__(self, encoder: Any) -> None:
        self._internal = encoder

    def finish(self) -> Encoded:
        """Returns the command buffer; may be called once."""
        with Captured("encoding a step"):
            return Encoded(_finished(self._internal))


def record(
    device: Any,
    steps: Sequence[Iterable[Command]],
    copies: Sequence[Copy] = (),
    stamps: Mapping[str, Any] | None = None,
    before: Sequence[Copy] = (),
) -> Recording:
    """Records one pass over all steps, with copies before and after it."""
    with Captured("encoding a step"):
        return Recording(_recorded(device._internal, steps, copies, stamps, before))


def encode(
    device: Any,
    steps: Sequence[Iterable[Command]],
    copies: Sequence[Copy] = (),
    stamps: Mapping[str, Any] | None = None,
) -> Encoded:
    """A command buffer of one pass over all steps, with copies after it."""
    return record(device, steps, copies, stamps).finish()


def _recorded(
    device: Any,
    steps: Sequence[Iterable[Command]],
    copies: Sequence[Copy],
    stamps: Mapping[str, Any] | None,
    before: Sequence[Copy] = (),
) -> Any:
    """The handle of an encoder with the recorded commands, in as few calls as possible; no pass without steps."""
    # H: WGPUCommandEncoder f(WGPUDevice, WGPUCommandEncoderDescriptor const *)
    encoder = lib.wgpuDeviceCreateCommandEncoder(device, NULL)
    _copy(encoder, before)
    if steps:
        # H: WGPUComputePassEncoder f(WGPUCommandEncoder, WGPUComputePassDescriptor const *)
        compute = lib.wgpuCommandEncoderBeginComputePass(encoder, _stamped(stamps) if stamps else NULL)
        for commands in steps:
            _dispatch(compute, commands)
        # H: void f(WGPUComputePassEncoder)
        lib.wgpuComputePassEncoderEnd(compute)
        lib.wgpuComputePassEncoderRelease(compute)
    _copy(encoder, copies)
    return encoder


def _copy(encoder: Any, copies: Sequence[Copy]) -> None:
    for source, source_at, target, target_at, nbytes in copies:
        # H: void f(WGPUCommandEncoder, WGPUBuffer, uint64_t, WGPUBuffer, uint64_t, uint64_t size)
        lib.wgpuCommandEncoderCopyBufferToBuffer(
            encoder, source._internal, source_at, target._internal, target_at, nbytes
        )


def _finished(encoder: Any) -> Any:
    """Finishes an encoder. Returns the handle of its command buffer."""
    # H: WGPUCommandBuffer f(WGPUCommandEncoder, WGPUCommandBufferDescriptor const *)
    encoded = lib.wgpuCommandEncoderFinish(encoder, NULL)
    # H: void f(WGPUCommandEncoder)
    lib.wgpuCommandEncoderRelease(encoder)
    return encoded


def run(
    device: Any,
    buffer: Any,
    data: Any,
    steps: Sequence[Iterable[Command]],
    copies: Sequence[Copy] = (),
    stamps: Mapping[str, Any] | None = None,
    result_buffer: "ResultBuffer | None" = None,
    encoded: Encoded | None = None,
) -> int:
    """Uploads the inputs of steps, submits them as one pass, and starts mapping the results.

    The steps may be `encoded` already. Errors are checked once, at the end. Returns the index of the submit.
    """
    queue = device.queue._internal
    with Captured("running a step"):
        source = ffi.from_buffer(data)
        # H: void f(WGPUQueue, WGPUBuffer, uint64_t bufferOffset, void const * data, size_t)
        lib.wgpuQueueWriteBuffer(queue, buffer._internal, 0, source, len(source))
        rest = _finished(_recorded(device._internal, steps if encoded is None else (), copies, stamps))
        handles = [rest] if encoded is None else [encoded._internal, rest]
        # H: WGPUSubmissionIndex f(WGPUQueue, size_t count, WGPUCommandBuffer const *)
        index = int(lib.wgpuQueueSubmitForIndex(queue, len(handles), ffi.new("WGPUCommandBuffer[]", handles)))
        # H: void f(WGPUCommandBuffer)
        lib.wgpuCommandBufferRelease(rest)
        if result_buffer is not None:
            result_buffer.map_unchecked()
    return index


def _stamped(stamps: Mapping[str, Any]) -> Any:
    """The descriptor of a pass that writes timestamps at its begin and end."""
    writes = api.new_struct_p(
        "WGPUPassTimestampWrites *",
        querySet=stamps["query_set"]._internal,
        beginningOfPassWriteIndex=stamps["beginning_of_pass_write_index"],
        endOfPassWriteIndex=stamps["end_of_pass_write_index"],
    )
    return api.new_struct_p("WGPUComputePassDescriptor *", timestampWrites=writes)


def replay(compute_pass: Any, commands: Sequence[Command]) -> None:
    """Encodes commands into a pass of wgpu-py, in a third of the time of its own calls."""
    with Captured("encoding a step"):
        _dispatch(compute_pass._internal, commands)


def _dispatch(compute: Any, commands: Iterable[Command]) -> None:
    # H: void f(WGPUComputePassEncoder, WGPUComputePipeline)
    set_pipeline = lib.wgpuComputePassEncoderSetPipeline
    # H: void f(WGPUComputePassEncoder, uint32_t index, WGPUBindGroup, size_t offsets, uint32_t const *)
    set_group = lib.wgpuComputePassEncoderSetBindGroup
    # H: void f(WGPUComputePassEncoder, uint32_t x, uint32_t y, uint32_t z)
    dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
    bound = None
    for pipeline, group, x, y, z in commands:
        if pipeline is not bound:
            set_pipeline(compute, pipeline)
            bound = pipeline
        set_group(compute, 0, group, 0, NULL)
        dispatch(compute, x, y, z)


def timestamp_period(device: Any) -> float:
    """Nanoseconds per tick of the device's timestamps."""
    # H: float wgpuQueueGetTimestampPeriod(WGPUQueue queue)
    return float(lib.wgpuQueueGetTimestampPeriod(device.queue._internal))


def write_timestamp(compute_pass: Any, queries: Any, index: int) -> None:
    """Writes a timestamp between two dispatches of one pass."""
    # H: void f(WGPUComputePassEncoder, WGPUQuerySet, uint32_t queryIndex)
    lib.wgpuComputePassEncoderWriteTimestamp(compute_pass._internal, queries._internal, index)


def destroy(device: Any, unsubmitted: Sequence[Encoded] = (), uploads: "Sequence[Upload]" = ()) -> None:
    """Destroys a device. Its driver memory is freed with the last reference, without the garbage collector.

    Command buffers would keep all of it alive, so they are submitted first; buffers that they read must be unmapped.
    """
    if unsubmitted and not _is_lost(device):  # wgpu-native aborts the process on a submit to a lost device
        for upload in uploads:
            upload.unmap()
        submit(device.queue, unsubmitted)
    device.destroy()
    device._queue = device._device = None  # the queue refers to the device, and the device to itself


def _is_lost(device: Any) -> bool:
    try:
        device.create_buffer(size=16, usage=wgpu.BufferUsage.COPY_DST)
    except wgpu.GPUError:
        return True
    return False


def wait(device: Any) -> None:
    """Blocks until all submitted work is done."""
    # H: WGPUBool f(WGPUDevice, WGPUBool wait, WGPUSubmissionIndex const *)
    lib.wgpuDevicePoll(device._internal, True, NULL)


class Arrival:
    """Receives the result of mapping a buffer. It stays alive until C has called it, even without other references.

    It must not refer to a buffer or device: wgpu-py keeps the callback as long as the struct exists, so a callback that
    refers to the owner of its struct would keep that owner alive for ever.
    """

    _awaited: ClassVar[set["Arrival"]] = set()

    def __init__(self) -> None:
        self.status = 0
        # H: void f(WGPUMapAsyncStatus status, WGPUStringView message, void *, void *)
        self._callback = ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", self._on_mapped)

    def info(self) -> Any:
        """The callback struct for the map call."""
        mode = lib.WGPUCallbackMode_AllowSpontaneous
        return api.new_struct("WGPUBufferMapCallbackInfo", mode=mode, callback=self._callback)

    def expect(self) -> None:
        """Prepares for the next map call."""
        self.status = 0
        self._awaited.add(self)

    def take(self, handle: Any, nbytes: int) -> bytes:
        """The first bytes of the mapped buffer, which is then unmapped."""
        if self.status != lib.WGPUMapAsyncStatus_Success:
            self.wait("reading results back")
        try:
            # H: void const * f(WGPUBuffer, size_t offset, size_t size)
            return bytes(ffi.buffer(lib.wgpuBufferGetConstMappedRange(handle, 0, nbytes), nbytes))
        finally:
            lib.wgpuBufferUnmap(handle)

    def wait(self, doing: str) -> None:
        """Waits for the callback, which another thread's poll may be about to call."""
        end = time.monotonic() + PATIENCE
        while not self.status and time.monotonic() < end:
            time.sleep(0.0005)  # lets the polling thread run
        if self.status != lib.WGPUMapAsyncStatus_Success:
            raise DeviceLost(f"the GPU was lost while {doing}; start again")

    def _on_mapped(self, status: int, _message: Any, _user1: Any, _user2: Any) -> None:
        self.status = status
        self._awaited.discard(self)


class Mapper:
    """Maps a readable buffer by callback and one blocking poll, at a quarter of the public API's latency."""

    def __init__(self, device: Any) -> None:
        self._device = device._internal
        self._arrival = Arrival()
        self._info = self._arrival.info()

    def read(self, buffer: Any, nbytes: int) -> bytes:
        """Waits for all submitted work and returns the first bytes of a mappable buffer."""
        handle = buffer._internal
        with Captured("reading results back"):
            self._arrival.expect()
            # H: WGPUFuture f(WGPUBuffer, WGPUMapMode, size_t offset, size_t size, WGPUBufferMapCallbackInfo)
            lib.wgpuBufferMapAsync(handle, lib.WGPUMapMode_Read, 0, nbytes, self._info)
            # H: WGPUBool f(WGPUDevice, WGPUBool wait, WGPUSubmissionIndex const *)
            lib.wgpuDevicePoll(self._device, True, NULL)
        return self._arrival.take(handle, nbytes)


def write(queue: Any, buffer: Any, offset: int, data: Any) -> None:
    """Queues a copy of the bytes, which may change afterwards. wgpu copies whole words only."""
    with Captured("uploading"):
        source = ffi.from_buffer(data)
        # H: void f(WGPUQueue, WGPUBuffer, uint64_t bufferOffset, void const * data, size_t)
        lib.wgpuQueueWriteBuffer(queue._internal, buffer._internal, offset, source, len(source))


def submit(queue: Any, commands: Sequence[Any]) -> int:
    """Submits command buffers. Returns an index for waiting until these and earlier ones are done."""
    handles = ffi.new("WGPUCommandBuffer[]", [one._internal for one in commands])
    with Captured("submitting work"):
        # H: WGPUSubmissionIndex f(WGPUQueue, size_t count, WGPUCommandBuffer const *)
        return int(lib.wgpuQueueSubmitForIndex(queue._internal, len(commands), handles))


class ResultBuffer:
    """A mappable buffer for results, with a callback when they have arrived."""

    def __init__(self, device: Any, buffer: Any, nbytes: int) -> None:
        self.buffer = buffer
        self.nbytes = nbytes
        self.expected = nbytes  # bytes of the next results
        self._device = device._internal
        self._arrival = Arrival()
        self._info = self._arrival.info()

    def map(self) -> None:
        """Starts mapping it, which completes when all work submitted so far is done."""
        with Captured("reading results back"):
            self.map_unchecked()

    def map_unchecked(self) -> None:
        """Starts mapping it, like `map`, but leaves errors to the caller."""
        self._arrival.expect()
        # H: WGPUFuture f(WGPUBuffer, WGPUMapMode, size_t offset, size_t size, WGPUBufferMapCallbackInfo)
        lib.wgpuBufferMapAsync(self.buffer._internal, lib.WGPUMapMode_Read, 0, self.expected, self._info)

    def wait(self, index: int, spin: float = 0.0) -> None:
        """Waits for the submit of an index: polls for `spin` seconds, then blocks."""
        with Captured("reading results back"):
            end = time.perf_counter() + spin if spin else 0.0
            while spin and not self._arrival.status and time.perf_counter() < end:
                lib.wgpuDevicePoll(self._device, False, NULL)
            if not self._arrival.status:
                # H: WGPUBool f(WGPUDevice, WGPUBool wait, WGPUSubmissionIndex const *)
                lib.wgpuDevicePoll(self._device, True, ffi.new("WGPUSubmissionIndex *", index))

    def take(self) -> bytes:
        """Returns the bytes; call `wait` before."""
        return self._arrival.take(self.buffer._internal, self.expected)


class Upload:
    """A mappable buffer for inputs: the host writes them, and commands copy them from it. It is created mapped.

    A write is a memory copy, while wgpu's own write creates a buffer and a command buffer each time.
    """

    def __init__(self, device: Any, buffer: Any, nbytes: int) -> None:
        self.buffer = buffer
        self.nbytes = nbytes
        self._device = device._internal
        self._memory = NO_MEMORY
        self._arrival = Arrival()
        self._arrival.status = lib.WGPUMapAsyncStatus_Success
        self._info = self._arrival.info()

    @property
    def is_mapped(self) -> bool:
        """True if the buffer is mapped, so that the host may write into it."""
        return bool(self._arrival.status == lib.WGPUMapAsyncStatus_Success)

    def open(self) -> None:
        """Gets the address of its memory; it must be mapped."""
        # H: void * f(WGPUBuffer, size_t offset, size_t size)
        pointer = lib.wgpuBufferGetMappedRange(self.buffer._internal, 0, self.nbytes)
        self._memory = np.frombuffer(ffi.buffer(pointer, self.nbytes), np.uint8)

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """The bytes to write, while it is open."""
        return self._memory

    def write(self, at: int, data: npt.NDArray[np.uint8]) -> None:
        """Writes bytes while it is open, without releasing the GIL."""
        self._memory[at : at + len(data)] = data

    def wait(self, index: int) -> None:
        """Waits until it is mapped again after `map`; `index` is the submit that reads it."""
        with Captured("uploading"):
            # H: WGPUBool f(WGPUDevice, WGPUBool wait, WGPUSubmissionIndex const *)
            lib.wgpuDevicePoll(self._device, True, ffi.new("WGPUSubmissionIndex *", index))
        self._arrival.wait("uploading")

    def unmap(self) -> None:
        """Unmaps it, so that commands that read it may be submitted."""
        if self.is_mapped:
            self._memory, self._arrival.status = NO_MEMORY, 0
            lib.wgpuBufferUnmap(self.buffer._internal)

    def map(self) -> None:
        """Starts mapping it again, which completes when all work submitted so far is done."""
        with Captured("making room to upload"):
            self._arrival.expect()
            lib.wgpuBufferMapAsync(self.buffer._internal, lib.WGPUMapMode_Write, 0, self.nbytes, self._info)
