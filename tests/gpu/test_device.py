"""An opened device: its memory, its errors, its simulated capabilities."""

import gc
import threading
import weakref

import numpy as np
import pytest

from rwkv_gpu.errors import DeviceLost, NoAdapter, OutOfMemory, UnsupportedDevice
from rwkv_gpu.gpu import native
from rwkv_gpu.gpu.device import PORTABLE_LIMITS, Device
from rwkv_gpu.gpu.shader import link
from rwkv_gpu.gpu.trace import Trace
from rwkv_gpu.gpu.typed_errors import translated


@pytest.mark.parametrize("nbytes", [1, 3, 4, 17, 1000, 65536, 1_000_003])
def test_uploaded_bytes_are_read_back(device, nbytes):
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    buffer = device.upload(data, "test")
    assert device.read(buffer, nbytes) == data.tobytes()
    buffer.free()


def test_fresh_memory_is_zero(device):
    buffer = device.buffer(4096, "test")
    assert device.read(buffer) == bytes(4096)
    buffer.free()


def test_memory_is_accounted_by_purpose(adapter):
    with Device(adapter) as device:
        assert device.memory() == {}
        weights = [device.buffer(1000, "weights") for _ in range(3)]
        scratch = device.buffer(5, "scratch")
        assert device.memory() == {"scratch": 16, "weights": 3 * 1008}
        weights[0].free()
        weights[0].free()
        assert device.memory()["weights"] == 2 * 1008
        del weights, scratch
        gc.collect()
        assert device.memory() == {}


def test_a_closed_device_holds_no_memory_whenever_its_buffers_are_freed(adapter):
    with Device(adapter) as device:
        freed, forgotten = device.buffer(1000, "weights"), device.buffer(1000, "scratch")
    freed.free()
    del forgotten
    gc.collect()
    assert device.memory() == {}


def test_a_buffer_over_the_limit_is_refused_with_both_numbers(device):
    limit = device.capabilities.max_buffer
    with pytest.raises(OutOfMemory, match=f"{limit:,}"):
        device.buffer(limit + 1, "weights")


def test_out_of_memory_raises_its_own_error_and_the_device_still_works(adapter):
    with Device(adapter) as device:
        size = device.capabilities.max_buffer // 16 * 16
        held = []
        with pytest.raises(OutOfMemory, match="for weights"):
            for _ in range(100_000):  # far over any memory
                held.append(device.buffer(size, "weights"))
        for buffer in held:
            buffer.free()
        assert device.memory() == {}
        assert device.read(device.upload(np.arange(4, dtype=np.uint32), "test"), 8) == bytes([0, 0, 0, 0, 1, 0, 0, 0])


def test_every_error_of_a_device_is_one_line_with_a_remedy(adapter):
    told = {
        "Parent device is lost": "start again",
        "Not enough memory left": "use a smaller model",
        "Validation Error\n\nCaused by:\n  Usage flags": "try another --device",
    }
    for message, remedy in told.items():
        said = str(translated(message, "uploading"))
        assert "while uploading" in said and remedy in said and "\n" not in said
    with Device(adapter, portable=True) as device:  # which has no timestamps
        with pytest.raises(OutOfMemory, match="use a smaller model"):
            device.buffer(device.capabilities.max_buffer + 1, "weights")
        with pytest.raises(UnsupportedDevice, match="try another --device"):
            Trace(device, 4)


@pytest.mark.loses_gpu
def test_a_lost_device_raises_device_lost(adapter):
    device = Device(adapter)
    buffer = device.buffer(64, "test")
    device.handle.destroy()
    with pytest.raises(DeviceLost):
        device.buffer(64, "test")
    with pytest.raises(DeviceLost):
        device.read(buffer)
    with pytest.raises(DeviceLost):
        device.write(buffer, np.zeros(4, np.uint32))
    with pytest.raises(DeviceLost):
        device.pipeline(
            link("dense/map_binary", ["dense/binary/add", "lib/lanes/plain", "lib/step"], {"D": 1, "WG": 64})
        )


def lost(*_: object) -> bytes:
    raise DeviceLost("the GPU was lost")


def test_results_are_read_again_after_an_error_that_left_a_buffer_mapped(adapter, monkeypatch):
    """wgpu-native ends the process when a copy into a mapped buffer is submitted."""
    with Device(adapter) as device:
        buffer = device.upload(np.arange(4, dtype=np.uint32), "test")
        with monkeypatch.context() as patch, pytest.raises(DeviceLost):
            patch.setattr(native.Arrival, "take", lost)
            device.read(buffer)
        assert np.frombuffer(device.read(buffer), np.uint32).tolist() == [0, 1, 2, 3]


@pytest.mark.loses_gpu
def test_a_lost_device_closes_though_commands_were_encoded_ahead(adapter):
    """After such an error, wgpu-native ends the process when they are submitted."""
    device = Device(adapter)
    source, target = device.buffer(64, "test"), device.buffer(64, "test")
    device.unsubmitted.add(native.encode(device.handle, (), [(source.handle, 0, target.handle, 0, 64)]))
    device.handle.destroy()
    device.close()
    assert device.closed


def test_portable_mode_pretends_to_the_webgpu_defaults(adapter):
    with Device(adapter, portable=True) as device:
        can = device.capabilities
        assert not (can.f16 or can.subgroup or can.timestamps or can.fragment)
        assert can.max_storage_buffers == PORTABLE_LIMITS["max-storage-buffers-per-shader-stage"] == 8
        assert can.max_workgroup_memory == 16 << 10
        assert can.max_invocations == 256


def test_cpu_cannot_be_opened_as_a_gpu():
    with pytest.raises(NoAdapter, match="numpy"):
        Device.open("cpu")


def test_opening_and_losing_a_device_print_nothing(adapter, capfd):
    capfd.readouterr()
    device = Device(adapter)
    device.close()
    with pytest.raises(DeviceLost):
        device.buffer(16, "test")
    assert capfd.readouterr() == ("", "")


def test_copies_within_buffers_are_one_submit_where_there_is_room(device, monkeypatch):
    buffers = [device.upload(np.arange(64, dtype=np.uint32) + start, "test") for start in (0, 100, 200)]
    submits = []
    submit = device.submit
    monkeypatch.setattr(device, "submit", lambda commands: (submits.append(len(commands)), submit(commands))[1])
    for most in (64, 1 << 20):
        monkeypatch.setattr("rwkv_gpu.gpu.device.MAX_STAGED", most)
        device.copy_within(buffers, 0, 128, 64)
    expected = np.concatenate([np.arange(32), np.arange(16), np.arange(48, 64)])
    for start, buffer in zip((0, 100, 200), buffers, strict=True):
        assert np.array_equal(np.frombuffer(device.read(buffer), np.uint32), expected + start)
    assert submits == [1] * (len(buffers) + 1)


def test_results_are_read_while_another_thread_polls_the_device(adapter):
    """The thread that polls first runs all callbacks. The other waits for its own and must not report a lost GPU."""
    expected = np.arange(16, dtype=np.uint32)
    over = threading.Event()
    with Device(adapter) as device:
        buffer = device.buffer(64, "test")
        device.write(buffer, expected)

        def poll() -> None:
            while not over.is_set():
                native.wait(device.handle)

        pollers = [threading.Thread(target=poll) for _ in range(2)]
        for poller in pollers:
            poller.start()
        try:
            for _ in range(300):
                assert device.read(buffer, 64) == expected.tobytes()
        finally:
            over.set()
            for poller in pollers:
                poller.join()


def test_a_closed_device_is_gone_with_its_last_reference(adapter):
    """A software GPU uses 100 MB for a device with a model's plans, which must be freed without garbage collection."""
    gc.collect()
    gc.disable()
    try:
        device = Device(adapter)
        device.read(device.upload(np.arange(4), "test"))
        handle = weakref.ref(device.handle)
        device.close()
        del device
        assert handle() is None
    finally:
        gc.enable()
