"""Parameters are the same on the device as in numpy, wherever they are placed."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rwkv_gpu.errors import DeviceLost, OutOfMemory
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.gguf.planes import PLANES, pack_rows
from rwkv_gpu.gpu import loader
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.loader import Parameter, common_float_format, device_bytes, host_weights, load_weights
from rwkv_gpu.gpu.staging import Staging
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.ops.memory import Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import Weight
from tests.gguf.blocks import mild_rows
from tests.gguf.writer import gguf, tensor
from tests.recording import run_plan

BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
TOLERANCE = 1e-4  # sums of a few hundred products in another order


def model_file(folder: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> Path:
    """Writes a GGUF of random tensors: name to (format, shape)."""
    rows, data = [], b""
    for seed, (name, (fmt, shape)) in enumerate(tensors.items()):
        rows.append(tensor(name, shape[::-1], len(data), BY_NAME[fmt].type))
        data += mild_rows(BY_NAME[fmt], int(np.prod(shape[:-1])), shape[-1], seed).tobytes()
        data += bytes(-len(data) % 32)
    path = folder / "model.gguf"
    path.write_bytes(gguf((), rows, data))
    return path


def parameters(file: GGUFFile, **changed) -> list[Parameter]:
    return [Parameter(t.name, t.shape, (t,), changed.get(t.name, t.format)) for t in file.tensors.values()]


def check(device, weights, host, says, rows, **inputs):
    scratch = Scratch(device)
    recorder = Recorder(device, weights, rows, scratch, default_tuning(device.capabilities))
    values = {name: recorder.input(name, a.dtype, (rows, *a.shape[1:])) for name, a in inputs.items()}
    plan = recorder.finish(says(recorder, **values))
    got, want = run_plan(plan, scratch, inputs, rows), says(Reference(host), **inputs)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], TOLERANCE, TOLERANCE, err_msg=name)
    return plan


@pytest.fixture
def small_limits(fast_device, monkeypatch):
    """Returns the device with a simulated limit of 20,000 bytes per binding."""
    monkeypatch.setattr(fast_device, "capabilities", replace(fast_device.capabilities, max_binding=20_000))
    return fast_device


def test_matrices_above_the_binding_limit_are_cut_by_rows(small_limits, tmp_path):
    path = model_file(tmp_path, {"head": ("Q8_0", (300, 160)), "embed": ("Q4_0", (300, 256))})
    head, embed = Weight("head", (300, 160)), Weight("embed", (300, 256))
    with GGUFFile.open(path) as file:
        weights = load_weights(small_limits, file, parameters(file))
        host = host_weights(file, parameters(file))
    assert len(weights["head"].shards) > 2
    assert all(shard.slice.nbytes <= 20_000 for shard in weights["head"].shards)
    x = np.random.default_rng(0).standard_normal((3, 160), dtype=np.float32)
    ids = np.array([0, 299, 150], np.uint32)
    says = lambda g, x, ids: {"y": g.linear(x, head), "e": g.embed(embed, ids)}  # noqa: E731
    check(small_limits, weights, host, says, 3, x=x, ids=ids)


def test_experts_above_the_binding_limit_are_cut_between_experts(small_limits, tmp_path):
    path = model_file(tmp_path, {"experts": ("Q6_K", (5, 37, 256)), "one": ("F32", (1, 10, 501))})
    with GGUFFile.open(path) as file:
        assert device_bytes(small_limits, parameters(file)[:1]) > 20_000
        weights = load_weights(small_limits, file, parameters(file)[:1])
        with pytest.raises(OutOfMemory, match=r"10 rows of 'one' take 20,480 bytes but the device binds 20,000"):
            load_weights(small_limits, file, parameters(file)[1:])
    assert [(shard.first, shard.rows) for shard in weights["experts"].shards] == [(0, 74), (74, 74), (148, 37)]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_rows_of_every_format_are_looked_up(device, tmp_path, fmt):
    path = model_file(tmp_path, {"embed": (fmt.name, (11, 768))})
    with GGUFFile.open(path) as file:
        weights, host = load_weights(device, file, parameters(file)), host_weights(file, parameters(file))
    ids = np.array([10, 0, 7, 7, 1], np.uint32)
    check(device, weights, host, lambda g, ids: {"y": g.embed(Weight("embed", (11, 768)), ids)}, 5, ids=ids)


def test_the_device_exchanges_the_same_bits_as_numpy(fast_device, tmp_path):
    formats = [fmt for fmt in FORMATS.values() if any(plane.exchanges for plane in PLANES[fmt.name])]
    tensors = {fmt.name: (fmt.name, (37, 768)) for fmt in formats}
    with GGUFFile.open(model_file(tmp_path, tensors)) as file:
        weights = load_weights(fast_device, file, parameters(file))
        for fmt in formats:
            [shard] = weights[fmt.name].shards
            raw = np.frombuffer(file.read(file.tensors[fmt.name]), np.uint8).reshape(37, -1)
            for start, plane in zip(shard.planes, pack_rows(fmt, raw), strict=False):
                stored = fast_device.read(shard.slice.buffer, plane.nbytes, shard.slice.offset + 16 * start)
                assert stored == plane.tobytes(), fmt.name
    assert len(formats) > 5


@pytest.mark.loses_gpu
def test_a_gpu_lost_during_an_upload_is_reported(adapter):
    with Device(adapter) as device:
        staging = Staging(device, 4096, 2)
        buffer, upload = device.buffer(4096, "weights"), staging.take()
        staging.copy(upload, [(buffer, 0, 4096)])
        device.handle.destroy()
        with pytest.raises(DeviceLost, match="the GPU was lost while"):
            for _ in range(3):
                staging.copy(staging.take(), [(buffer, 0, 4096)])


LAYER = {
    "blk.0.r": ("Q4_K", (64, 256)),
    "blk.0.k": ("Q4_K", (40, 256)),
    "blk.0.v": ("Q6_K", (64, 256)),
    "blk.0.w1": ("F16", (16, 256)),
    "blk.0.g1": ("F16", (24, 256)),
    "blk.0.w0": ("F32", (16,)),
}


def test_products_of_one_format_run_in_one_dispatch(device, tmp_path):
    with GGUFFile.open(model_file(tmp_path, LAYER)) as file:
        weights, host = load_weights(device, file, parameters(file)), host_weights(file, parameters(file))
    w = {name: Weight(name, shape) for name, (_, shape) in LAYER.items()}
    names = ["blk.0.r", "blk.0.k", "blk.0.v", "blk.0.w1", "blk.0.g1"]

    def says(g, x):
        ys = g.linears(
            [x] * 5,
            [w[name] for name in names],
            then=["none", "relu2", "none", "tanh", "sigmoid"],
            bias=[None, None, None, w["blk.0.w0"], None],
        )
        return dict(zip(names, ys, strict=True))

    x = np.random.default_rng(0).standard_normal((3, 256), dtype=np.float32)
    plan = check(device, weights, host, says, 3, x=x)
    assert len(plan.dispatches) == 3  # Q4_K: r and k; Q6_K: v; F16: w1 and g1


@pytest.mark.parametrize("ranks", [(32, 48), (5, 8), (1, 7)])
@pytest.mark.parametrize("second", ["F32", "F16"])
def test_inputs_and_outputs_may_be_parts_of_stacks(device, tmp_path, ranks, second):
    one, other = ranks
    tensors = {
        "blk.0.a": ("F32", (one, 64)),
        "blk.0.b": (second, (other, 64)),
        "blk.0.c": ("F32", (20, one)),
        "blk.0.d": (second, (20, other)),
    }
    with GGUFFile.open(model_file(tmp_path, tensors)) as file:
        weights, host = load_weights(device, file, parameters(file)), host_weights(file, parameters(file))
    a, b, c, d = (Weight(name, shape) for name, (_, shape) in tensors.items())

    def says(g, x):
        lows = g.linears([x, x], [a, b])
        ups = g.linears(lows, [c, d], then=["sigmoid", "none"])
        return {"c": ups[0], "d": ups[1], "sum": g.add(ups[0], ups[1]), "alone": g.linear(lows[1], d)}

    x = np.random.default_rng(0).standard_normal((5, 64), dtype=np.float32)
    plan = check(device, weights, host, says, 5, x=x)
    assert len(plan.dispatches) == (4 if second == "F32" else 6)


def test_rows_of_matrices_can_be_interleaved_or_joined(device, tmp_path):
    tensors = {"gate": ("Q5_K", (70, 256)), "up": ("Q5_K", (70, 256)), "m1": ("F16", (272,)), "m2": ("F32", (272,))}
    with GGUFFile.open(model_file(tmp_path, tensors)) as file:
        t = file.tensors
        wanted = [
            Parameter("both", (140, 256), (t["gate"], t["up"]), BY_NAME["Q5_K"], alternate=True),
            Parameter("mixes", (2, 272), (t["m1"], t["m2"]), BY_NAME["F32"], whole=True),
        ]
        weights, host = load_weights(device, file, wanted), host_weights(file, wanted)
        plain = host_weights(file, parameters(file))
    assert np.array_equal(host["both"][0::2], plain["gate"])
    assert np.array_equal(host["both"][1::2], plain["up"])
    assert np.array_equal(host["mixes"], np.stack([plain["m1"], plain["m2"]]))
    mixes = weights["mixes"].shards[0].slice
    assert device.read(mixes.buffer, 2176, mixes.offset) == host["mixes"].tobytes()
    x = np.random.default_rng(0).standard_normal((2, 256), dtype=np.float32) / 20
    check(device, weights, host, lambda g, x: {"y": g.glu(x, Weight("both", (140, 256)), "silu")}, 2, x=x)


def test_allocations_equal_the_computed_memory(adapter, tmp_path):
    with Device(adapter) as device, GGUFFile.open(model_file(tmp_path, LAYER)) as file:
        promised = device_bytes(device, parameters(file))
        weights = load_weights(device, file, parameters(file))
        assert device.memory()["weights"] == promised
        assert len(weights) == len(LAYER)


def test_loading_in_small_pieces_gives_the_same_bytes(fast_device, tmp_path, monkeypatch):
    reports = []
    with GGUFFile.open(model_file(tmp_path, LAYER)) as file:
        whole = load_weights(fast_device, file, parameters(file))
        monkeypatch.setattr(loader, "PIECE", 1000)
        monkeypatch.setattr(loader, "STAGING", 4096)
        pieces = load_weights(fast_device, file, parameters(file), lambda *report: reports.append(report))
        total = sum(t.nbytes for t in file.tensors.values())
    for name in LAYER:
        a, b = whole[name].shards[0].slice, pieces[name].shards[0].slice
        assert fast_device.read(a.buffer, a.nbytes, a.offset) == fast_device.read(b.buffer, b.nbytes, b.offset)
    assert len(reports) > 30
    assert reports[-1] == (total, total)
    assert sorted(reports) == reports


def test_host_memory_does_not_grow_with_the_file(fast_device, tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "PIECE", 1 << 16)
    monkeypatch.setattr(loader, "STAGING", 1 << 18)
    with GGUFFile.open(model_file(tmp_path, {"w": ("Q4_K", (16_000, 1024))})) as file:
        tracemalloc.start()
        load_weights(fast_device, file, parameters(file))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # The memory of pieces depends on how threads take turns: up to 0.7 MB were seen. The file has 9 MB.
        assert most < file.nbytes / 4


def test_further_pieces_are_read_while_one_is_uploaded():
    taken = []
    jobs = ((lambda n=n: n) for n in range(9) if not taken.append(n))
    with ThreadPoolExecutor(2) as pool:
        for n, piece in enumerate(loader._ahead(pool, jobs)):
            assert piece == n
            assert len(taken) == min(n + loader.IN_FLIGHT, 9)


def test_floats_are_brought_to_one_format_without_loss(tmp_path):
    path = model_file(
        tmp_path, {"a": ("F16", (4, 32)), "b": ("BF16", (4, 32)), "c": ("F32", (4, 32)), "d": ("F32", (4, 32))}
    )
    data = bytearray(path.read_bytes())
    with GGUFFile.open(path) as file:
        t = file.tensors
        at = t["d"].offset
    data[at : at + 512] = np.arange(128, dtype=np.float32).tobytes()  # whole numbers fit every format
    path.write_bytes(data)
    with GGUFFile.open(path) as file:
        t = file.tensors
        assert common_float_format(file, [t["a"], t["d"]]).name == "F16"
        assert common_float_format(file, [t["b"], t["d"]]).name == "BF16"
        assert common_float_format(file, [t["a"], t["c"]]).name == "F32"
        assert common_float_format(file, [t["a"], t["b"]]).name == "F16"  # float32 holds a bfloat16 of that size
        assert common_float_format(file, [t["b"], t["c"]]).name == "F32"
        assert common_float_format(file, [t["c"], t["d"]]).name == "F32"
        assert common_float_format(file, [t["a"]]).name == "F16"
        for name in ("F16", "F32"):
            changed = host_weights(file, parameters(file, d=BY_NAME[name]))
            assert np.array_equal(changed["d"], host_weights(file, parameters(file))["d"])
