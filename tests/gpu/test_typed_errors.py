"""Any error in any call of wgpu becomes one of our errors in one line, and the model remains usable."""

import pytest
import wgpu
from wgpu.backends.wgpu_native import _api as api

import rwkv_gpu
from rwkv_gpu.errors import DeviceError, DeviceLost, OutOfMemory, RwkvGpuError
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.shader import link
from rwkv_gpu.gpu.typed_errors import TypedErrors, translated
from tests.golden_files import golden

RAISED = "Validation Error\n\nCaused by:\n  In a call\n    it is refused\n"
# Methods of wgpu-py through which a model runs.
METHODS = [
    (api.GPUDevice, "create_buffer"), (api.GPUDevice, "create_command_encoder"), (api.GPUDevice, "create_bind_group"),
    (api.GPUDevice, "create_shader_module"), (api.GPUDevice, "create_compute_pipeline"),
    (api.GPUDevice, "create_bind_group_layout"), (api.GPUDevice, "create_pipeline_layout"),
    (api.GPUCommandEncoder, "begin_compute_pass"), (api.GPUCommandEncoder, "copy_buffer_to_buffer"),
    (api.GPUCommandEncoder, "finish"), (api.GPUComputePassEncoder, "dispatch_workgroups"),
]  # fmt: skip
LOADING = [*METHODS, (api.GPUQueue, "submit"), (api.GPUAdapter, "request_device_sync")]
CALLS = {
    "logits": lambda llm: llm.logits([1, 2, 3]),
    "perplexity": lambda llm: llm.perplexity("the sea is"),
    "embed": lambda llm: llm.embed(["the sea", "a"]),
    "generate": lambda llm: llm.generate("the sea", max_tokens=2),
    "host": lambda llm: llm.generate("the sea", max_tokens=2, logits_processor=lambda _, scores: scores),
}


@pytest.fixture
def llm(adapter):
    with rwkv_gpu.load(golden("tiny-rwkv7.gguf"), device=str(adapter.index), sequences=2) as found:
        yield found


@pytest.mark.loses_gpu
def test_a_wgpu_error_in_any_call_becomes_a_one_line_error_of_ours(llm, monkeypatch):
    """Plans are recorded again after each error."""
    raised, said = set(), []
    for kind, method in METHODS:
        if method == "create_compute_pipeline":
            llm._driver.call(lambda engine: engine._runner.device.pipelines.clear())
        for call in CALLS.values():
            llm._driver.call(lambda engine: engine._runner.retune(engine._runner.tuning))
            with monkeypatch.context() as patch:
                patch.setattr(kind, method, refuse)
                try:
                    call(llm)
                except RwkvGpuError as error:
                    raised.add(method)
                    said.append(str(error))
    assert not [one for one in said if "\n" in one and not one.startswith("shader")]
    assert len(raised) >= 4, raised
    assert llm.generate("the sea", max_tokens=2).tokens


def refuse(*_, **__):
    raise wgpu.GPUValidationError(RAISED)


@pytest.mark.loses_gpu
def test_a_wgpu_error_during_load_becomes_a_one_line_error_of_ours(adapter, monkeypatch):
    said = {}
    for kind, method in LOADING:
        with monkeypatch.context() as patch:
            patch.setattr(kind, method, refuse)
            try:
                rwkv_gpu.load(golden("tiny-rwkv7.gguf"), device=str(adapter.index), sequences=2).close()
            except RwkvGpuError as error:
                said[method] = str(error)
    assert not [one for one in said.values() if "\n" in one and not one.startswith("shader")]
    assert said.keys() >= {"create_buffer", "submit", "finish", "request_device_sync"}


def test_other_errors_of_wgpu_are_ours_and_errors_of_python_are_not(adapter):
    """wgpu-py reports failed maps as RuntimeError."""
    with Device(adapter) as device:
        usage = wgpu.BufferUsage.MAP_WRITE | wgpu.BufferUsage.COPY_SRC
        mapped = device.handle.create_buffer(size=16, usage=usage, mapped_at_creation=True)
        with pytest.raises(DeviceError, match="refused while uploading: Can only map"), TypedErrors("uploading"):
            mapped.map_async("WRITE").sync_wait()
    with pytest.raises(RuntimeError, match="a bug"), TypedErrors("uploading"):
        raise RuntimeError("a bug")
    assert isinstance(translated("Could not map buffer (2 : gone).", "uploading"), DeviceLost)


@pytest.mark.loses_gpu
def test_a_probe_of_a_lost_device_reports_it(adapter, monkeypatch):
    with Device(adapter) as device:
        monkeypatch.setattr(api.GPUCommandEncoder, "finish", refuse)
        with pytest.raises(DeviceError, match="refused while running probes/subgroup: Validation Error Caused by"):
            device.probe(link("probes/subgroup"), 16)


@pytest.mark.parametrize(
    ("said", "kind"), [("Parent device is lost", DeviceLost), ("Not enough memory left", OutOfMemory)]
)
def test_a_lost_or_full_device_is_not_reported_as_a_shader_error(adapter, monkeypatch, said, kind):
    def lost(*_, **__):
        raise wgpu.GPUValidationError(f"Validation Error\n{said}")

    with Device(adapter) as device:
        monkeypatch.setattr(api.GPUDevice, "create_compute_pipeline", lost)
        device.pipelines.clear()
        with pytest.raises(kind, match="while compiling"):
            device.pipeline(link("probes/subgroup"))
