"""One model over several devices, in the library and the command line."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.engine.cache.config import DEFAULT_CONTEXT
from rwkv_gpu.engine.fit import SHARE, STEP
from rwkv_gpu.engine.split_layout import Layout, PartTuning, choices_of, device_names, first_layers, lay_out, shares_of
from rwkv_gpu.errors import BadInput, NoAdapter, OutOfMemory
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import Adapter, Choice
from rwkv_gpu.gpu.virtual import LIMITS, VirtualDevice
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.vocabulary import PAGE
from tests.engine.test_adapters import write
from tests.gguf.parts import take_apart
from tests.gguf.writer import U32
from tests.golden_files import OWN

PROMPT = list(range(5, 25))


def opened(name: str, **options):
    return rwkv_gpu.load(OWN / f"{name}.gguf", context=128, kv="f32", **options)


def run(*arguments: object):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-rwkv7", "tiny-granitehybrid", "tiny-gemma4"])
def test_answers_over_several_devices_equal_those_of_one(name):
    settings = {"max_tokens": 12, "temperature": 0.9, "seed": 3, "repeat_penalty": 1.3}
    with opened(name, device="cpu") as one, opened(name, device="cpu,cpu", split="1,1") as two:
        assert two.info.device.count("cpu (layer") == 2
        for prompt in (PROMPT, PROMPT[:7], [*PROMPT, 30, 31]):  # the last continues from a stored prefix
            assert one.generate(prompt, **settings).tokens == two.generate(prompt, **settings).tokens


@pytest.mark.parametrize("name", ["llama", "rwkv7"])
def test_adapters_and_drafts_work_over_several_devices(name, tmp_path):
    options = {"lora": write(tmp_path, name, "style"), "draft": OWN / f"tiny-{name}.gguf"}
    settings = {"max_tokens": 12, "temperature": 0}
    over_two = opened(f"tiny-{name}", device="cpu,cpu", split="1,1", **options)
    with over_two as two, opened(f"tiny-{name}", device="cpu", **options) as one:
        for scales in (None, {"style": 0.0}):
            expected = one.generate(PROMPT, lora=scales, **settings)
            assert two.generate(PROMPT, lora=scales, **settings).tokens == expected.tokens
    with opened(f"tiny-{name}", device="cpu") as plain:
        assert plain.generate(PROMPT, **settings).tokens == expected.tokens


def test_adapters_work_where_a_part_is_on_a_gpu(adapter, tmp_path):
    options = {"lora": write(tmp_path, "llama", "style")}
    with opened("tiny-llama", device="cpu", **options) as one:
        expected = one.generate(PROMPT, max_tokens=6, temperature=0).tokens
    for devices in (["cpu", adapter.index], [adapter.index, "cpu"]):
        with opened("tiny-llama", device=devices, split="1,1", **options) as two:
            assert two.generate(PROMPT, max_tokens=6, temperature=0).tokens == expected


def test_a_gpu_and_numpy_answer_together(adapter):
    settings = {"max_tokens": 6, "temperature": 0}
    with opened("tiny-rwkv7", device=["cpu", adapter.index]) as one:
        assert one.info.device == "cpu", "all of it fits on the first device"
        alone = one.generate(PROMPT, **settings)
    with opened("tiny-rwkv7", device=["cpu", adapter.index], split=(1, 1)) as two:
        assert two.info.device == f"cpu (layer 0) + {adapter.name} (layer 1)"
        assert two.generate(PROMPT, **settings).tokens == alone.tokens


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-rwkv7", "tiny-granitehybrid"])
def test_a_state_moves_from_several_devices_to_one_and_back(name, tmp_path):
    text = "one two three four five six seven eight nine ten"
    for source, target in (("cpu,cpu", "cpu"), ("cpu", "cpu,cpu")):
        devices = {"cpu": {"device": "cpu"}, "cpu,cpu": {"device": "cpu,cpu", "split": "1,1"}}
        with opened(name, **devices[source]) as llm:
            chat = llm.chat(template="{% for m in messages %}{{ m.content }}{% endfor %}")
            chat.send(text, max_tokens=5, temperature=0)
            chat.save(tmp_path / "chat")
            expected = chat.send(" more", max_tokens=5, temperature=0)
        with opened(name, **devices[target]) as llm:
            loaded = llm.load_chat(tmp_path / "chat")
            answer = loaded.send(" more", max_tokens=5, temperature=0)
            assert answer.tokens == expected.tokens
            assert answer.stats.reused_tokens == expected.stats.reused_tokens > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "cpu,cpu", "split": "1"}, "give one number for each device"),
        ({"device": "cpu", "split": "1,1"}, "but one device is named"),
        ({"device": "cpu,cpu", "split": "0,1"}, "a number above 0"),
        ({"device": "cpu,cpu", "split": "a,b"}, "a number above 0"),
        ({"device": "cpu,cpu", "split": (1, float("nan"))}, "a number above 0"),
        ({"device": ["cpu"] * 3, "split": "1,1,1"}, "too few for 3 devices"),
        ({"device": "cpu,"}, "a device without a name"),
        ({"device": []}, "device is []"),
    ],
)
def test_an_impossible_split_is_refused_before_anything_is_loaded(options, said, monkeypatch):
    monkeypatch.setattr("rwkv_gpu.engine.split.SplitRunner.__init__", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(BadInput, match="[^.]") as error:
        opened("tiny-rwkv7", **options)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_line_refuses_a_split_in_one_line_with_exit_code_2():
    result = run("generate", OWN / "tiny-rwkv7.gguf", "x", "--device", "cpu,cpu", "--split", "1,2,3")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_a_hardware_gpu_is_named_once(monkeypatch):

    from rwkv_gpu.engine.split_layout import choices_of
    from rwkv_gpu.gpu import adapters

    [first, *_] = adapters.list_adapters()
    monkeypatch.setattr(adapters, "list_adapters", lambda: [replace(first, index=0, kind="DiscreteGPU")])
    assert len(choices_of(["0", "cpu"])) == 2
    with pytest.raises(BadInput, match="name each GPU once"):
        choices_of(["0", "0"])


def test_names_with_commas_are_one_device_and_lists_are_several(adapter):
    assert device_names(adapter.name) == [adapter.name]
    assert device_names(f"{adapter.index},cpu") == [str(adapter.index), "cpu"]
    assert device_names([0, "cpu"]) == ["0", "cpu"]
    with pytest.raises(NoAdapter):
        device_names("0,no such device")


def test_one_name_and_names_of_a_list_are_taken_as_they_are():
    for names in (["a, b", "cpu"], ["GeForce"], ["cpu", "cpu"]):
        assert device_names(names) == names
    assert device_names("GeForce") == ["GeForce"]


@pytest.mark.parametrize("layers", [2, 3, 7, 80])
def test_every_part_has_a_layer_and_shares_are_kept_to_half_a_layer(layers):
    for shares in ([1, 1], [3, 1], [1, 100], [100, 1]):
        starts = first_layers(shares, layers)
        sizes = [end - start for start, end in zip(starts, [*starts[1:], layers], strict=True)]
        assert min(sizes) >= 1
        exact = layers * shares[0] / sum(shares)
        assert abs(sizes[0] - min(max(exact, 1), layers - 1)) <= 0.5


@pytest.mark.parametrize("split", ["1e308,1e308", "5e-324,1e308", "5e-324,5e-324"])
def test_any_shares_that_are_numbers_are_shares(split):
    assert first_layers(shares_of(split, 2), 4) in ([0, 1], [0, 2])


def long_context(folder: Path) -> Path:
    """Writes a model with a long context."""
    parts = take_apart((OWN / "tiny-llama.gguf").read_bytes())
    parts.set("llama.context_length", U32, 1 << 20)
    path = folder / "long.gguf"
    path.write_bytes(parts.built())
    return path


@pytest.fixture
def laid_out(monkeypatch, tmp_path):
    """Returns a layout with two parts in main memory, of which a given amount is free, for a long-context model."""
    path = long_context(tmp_path)

    def make(available: int, **options) -> Layout:
        monkeypatch.setattr("rwkv_gpu.engine.split_layout.host_available", lambda: available)
        with GGUFFile.open(path) as file:
            return lay_out(file, load_model(file), choices_of(["cpu", "cpu"]), [1, 1], lambda _: None, **options)

    return make


def test_parts_in_one_memory_share_it(laid_out):
    first, second = laid_out(10**9, context=4096).fits
    assert second.available == first.available - first.needed
    enough = first.needed + second.needed
    assert laid_out(enough, context=4096).fitting
    assert not laid_out(enough - 1, context=4096).fitting


def test_the_default_context_uses_the_memory_that_all_parts_leave(laid_out):
    least = laid_out(1 << 40, context=DEFAULT_CONTEXT)
    weights, before = sum(one.weights for one in least.fits), 0
    for times in (2, 4, 8):
        available = times * least.needed + 4 * weights
        layout = laid_out(available)
        pages = sum(one.needed for one in layout.fits) - weights
        assert pages <= SHARE * available - weights
        assert layout.options["context"] > before
        before = layout.options["context"]
    assert before > DEFAULT_CONTEXT


def test_the_default_context_grows_with_each_byte_that_its_pages_need(laid_out):
    [first, second] = laid_out(1 << 40, context=STEP).fits
    pages, tokens = (first.state + second.state) // (STEP // PAGE), 6 * STEP
    nbytes = math.ceil((first.weights + second.weights + tokens // PAGE * pages) / SHARE)
    assert laid_out(nbytes).options["context"] == tokens
    assert laid_out(nbytes - 2).options["context"] == tokens - STEP


@pytest.fixture
def on_gpus(monkeypatch, tmp_path):
    """Lays a model out on virtual GPUs with memories of these sizes."""
    path = long_context(tmp_path)

    def make(*memories: int, kind: str = "DiscreteGPU", **options) -> Layout:
        choices, free = [], {}
        for index, memory in enumerate(memories):
            choices.append(Choice(Adapter(index, f"gpu {index}", "Vulkan", kind, ""), ""))
            free[index] = memory

        def opened_gpu(adapter: Adapter) -> VirtualDevice:
            device = VirtualDevice(replace(LIMITS["h200"], max_binding=options.get("binding", (2 << 30) - 4)))
            device.adapter = adapter
            return device

        monkeypatch.setattr("rwkv_gpu.engine.split_layout.device_available", lambda gpu: free[gpu.adapter.index])
        more = {name: value for name, value in options.items() if name != "binding"}
        with GGUFFile.open(path) as file:
            return lay_out(file, load_model(file), choices, [1] * len(memories), opened_gpu, **more)

    return make


def test_the_part_with_the_least_memory_bounds_the_context_unless_parts_share_one_memory(on_gpus):
    [first, second] = on_gpus(1 << 40, 1 << 40, context=STEP).fits
    tokens, needed = 6 * STEP, []
    for one in (first, second):
        needed.append(math.ceil((one.weights + tokens // PAGE * (one.state // (STEP // PAGE))) / SHARE))
    for less, context in (((0, 0), tokens), ((2, 0), tokens - STEP), ((0, 2), tokens - STEP)):
        layout = on_gpus(needed[0] - less[0], needed[1] - less[1])
        assert layout.options["context"] == context
        assert [one.available for one in layout.fits] == [needed[0] - less[0], needed[1] - less[1]]
    shared = on_gpus(sum(needed), sum(needed), kind="IntegratedGPU")
    assert shared.options["context"] == tokens
    shared = on_gpus(1 << 40, 1 << 40, kind="IntegratedGPU", context=STEP)
    assert shared.fits[1].available == (1 << 40) - shared.fits[0].needed


def test_the_bytes_of_all_parts_are_counted_while_they_are_loaded(on_gpus, monkeypatch, tmp_path):
    layout, seen = on_gpus(1 << 40, 1 << 40, context=STEP), []
    parts = iter([(30, 100), (50, 150)])

    def load(*_given, progress, **_more):
        for done in (parts_of := next(parts)):
            progress(done, parts_of[-1])

    monkeypatch.setattr("rwkv_gpu.engine.split_layout.GpuRunner", load)
    made = lambda _model, _parts, makers, **_: [make(None) for make in makers]  # noqa: E731
    monkeypatch.setattr("rwkv_gpu.engine.split_layout.SplitRunner", made)
    with GGUFFile.open(long_context(tmp_path)) as file:
        layout.runner(file, [PartTuning()] * 2, 64, lambda *counts: seen.append(counts))
        assert seen == [(done, file.nbytes) for done in (30, 100, 150, 250, file.nbytes)]


def test_the_keys_of_each_layer_are_in_one_binding(on_gpus):
    layout = on_gpus(1 << 40, 1 << 40, context=6 * STEP)
    keys = layout.fits[0].state // 2 // len(layout.parts[0].caches)
    assert on_gpus(1 << 40, 1 << 40, binding=keys).options["context"] == 6 * STEP
    assert on_gpus(1 << 40, 1 << 40, binding=keys - 1).options["context"] == 5 * STEP


def test_a_model_is_split_only_where_one_device_is_too_small_and_then_in_balance(monkeypatch):
    path = OWN / "tiny-deepseek2-lite.gguf"
    roomy = json.loads(run("fit", path, "--device", "cpu,cpu", "--context", 64, "--json").stdout)
    assert [part["layers"] for part in roomy["parts"]] == [[0, 26]]
    monkeypatch.setattr("rwkv_gpu.engine.split_layout.host_available", lambda: int(1.5 * roomy["needed"]))
    result = run("fit", path, "--device", "cpu,cpu", "--context", 64)
    assert result.exit_code == 0
    tight = json.loads(run("fit", path, "--device", "cpu,cpu", "--context", 64, "--json").stdout)
    first, second = (part["layers"] for part in tight["parts"])
    assert (first[0], second[1]) == (0, 26)
    assert first[1] + 1 == second[0]
    assert abs((first[1] - first[0]) - (second[1] - second[0])) <= 4, "they are as fast, but one has the output"
    assert tight["fits"]
    assert f"layers 0-{first[1]}" in result.stdout
    rates = iter([300.0, 100.0])
    monkeypatch.setattr("rwkv_gpu.engine.split_layout.memory_rate", lambda _: next(rates))
    monkeypatch.setattr("rwkv_gpu.engine.split_layout.OpenDevice.name", property(lambda one: str(id(one))))
    monkeypatch.setattr("rwkv_gpu.engine.split_layout.host_available", lambda: int(1.9 * roomy["needed"]))
    unlike = json.loads(run("fit", path, "--device", "cpu,cpu", "--context", 64, "--json").stdout)
    assert len(unlike["parts"]) == 2
    assert unlike["parts"][0]["layers"][1] > first[1], "the faster one has more"
    monkeypatch.undo()
    monkeypatch.setattr("rwkv_gpu.engine.split_layout.host_available", lambda: roomy["needed"] // 2)
    with pytest.raises(OutOfMemory, match=r"of the 27 layers fit"):
        rwkv_gpu.load(path, device="cpu,cpu", context=64)
