"""Linking of shaders, and errors that name a source line."""

import os
import re
import threading

import pytest

from rwkv_gpu.errors import ShaderError
from rwkv_gpu.gpu import shader
from rwkv_gpu.gpu.device import STORAGE, Device
from rwkv_gpu.gpu.shader import Binding, Linked, Origin, Pipeline, PipelineCache, Struct, every_part, link, read


def linked(*texts: tuple[str, str]) -> Linked:
    origins = tuple(Origin.generated(file, text) for file, text in texts)
    return Linked("test", "".join(text for _, text in texts), origins)


def test_a_line_of_a_linked_shader_is_found_in_its_file():
    whole = linked(("prelude", "const A = 1u;\n"), ("kernel.wgsl", "a\nb\nc\n"), ("part.wgsl", "d\n"))
    assert [whole.locate(line) for line in (1, 2, 4, 5)] == [
        ("prelude", 1),
        ("kernel.wgsl", 1),
        ("kernel.wgsl", 3),
        ("part.wgsl", 1),
    ]


FILE = """// Parts of something.

//# first: it is the first
const A = 1u;

//# second/plain
// what it is
const B = 2u;
"""


def test_a_file_is_a_part_and_so_is_each_of_its_sections():
    first, second = shader._parts_of("some/file", FILE)
    assert (first.name, first.text) == ("some/file/first", "//# first: it is the first\nconst A = 1u;\n\n")
    assert (second.name, second.file, second.numbers) == ("some/file/second/plain", "some/file.wgsl", (6, 7, 8))
    head, section = shader._parts_of("some/file", "const A = 1u;\n//# b\nconst B = 2u;")
    assert (head.name, section.name, section.text) == ("some/file", "some/file/b", "//# b\nconst B = 2u;\n")
    assert [part.name for part in shader._parts_of("kernel", "fn run() {}\n")] == ["kernel"]


def test_a_line_of_a_section_is_found_in_its_file():
    parts = list(shader._parts_of("some/file", FILE))[::-1]
    whole = Linked("test", "".join(part.text for part in parts), tuple(part.origin for part in parts))
    for number, text in enumerate(whole.source.splitlines(), 1):
        file, line = whole.locate(number)
        assert file == "some/file.wgsl" and FILE.splitlines()[line - 1] == text


REPEATED = """fn f() {
    #for i in 0..2: let x{i} = {i}u;
    #for j in 1..3
    if FT > {j}u {
        #for i in 0..2: c{i}{j} = x{i};
    }
    #end
}
"""


def test_lines_that_differ_in_numbers_are_written_once():
    [part] = shader._parts_of("kernel", REPEATED)
    lines = [(number, line.strip()) for number, line in zip(part.numbers, part.text.splitlines(), strict=True)]
    assert lines[1:3] == [(2, "let x0 = 0u;"), (2, "let x1 = 1u;")]
    assert lines[3:7] == [(4, "if FT > 1u {"), (5, "c01 = x0;"), (5, "c11 = x1;"), (6, "}")]
    assert lines[7:] == [(4, "if FT > 2u {"), (5, "c02 = x0;"), (5, "c12 = x1;"), (6, "}"), (8, "}")]


def test_a_listing_is_the_linked_shader_with_the_source_before_each_part():
    shown = add(D=5, Z=5).listing()
    assert shown.startswith("// ---- prelude:1\nconst D = 5u;\n")
    assert re.search(r"^// ---- dense\.wgsl:\d+\n//# binary/add", shown, re.MULTILINE)
    assert re.sub(r"// ---- .*\n", "", shown) == add(D=5, Z=5).source


def test_every_part_is_found_by_its_name_and_has_a_name_of_its_own():
    files = list(shader._files(shader._shaders()))
    names = [part.name for file, text in files for part in shader._parts_of(file, text)]
    assert len(names) == len(set(names))
    assert all(read(name) == part for name, part in every_part().items())


def test_a_compile_error_names_its_source_file_and_line(device):
    entry = "@compute @workgroup_size(1)\nfn main() { f(); }\n"
    whole = linked(("kernel.wgsl", entry), ("format/odd.wgsl", "// a part\nfn f() {\n    let x = missing;\n}\n"))
    with pytest.raises(ShaderError) as error:
        device.pipeline(whole)
    assert "format/odd.wgsl:3:13" in str(error.value)
    assert "missing" in str(error.value)
    assert "wgsl:5" not in str(error.value)


def test_a_type_error_in_validation_is_located_too(device):
    whole = linked(
        ("prelude", "\n\n"), ("kernel.wgsl", "@compute @workgroup_size(1)\nfn main() { let x: u32 = 1.5; }\n")
    )
    with pytest.raises(ShaderError, match=r"kernel\.wgsl:2"):
        device.pipeline(whole)


def test_a_pipeline_that_the_device_cannot_create_is_a_shader_error(device):
    whole = linked(("kernel.wgsl", "@compute @workgroup_size(100000)\nfn main() {}\n"))
    with pytest.raises(ShaderError, match="[Ww]orkgroup size"):
        device.pipeline(whole)


def test_a_missing_part_is_named():
    with pytest.raises(ShaderError, match="format/q99"):
        link("dense/embed", ["format/q99"])


def test_constants_become_typed_declarations():
    constants = {"D": 5, "EPS": 1e-5, "Act": "f32", "pair": Struct("Pair", (7, (Struct("vec2u", (1, 2)),)))}
    source = link("dense/map_binary", ["dense/binary/add"], constants).source
    assert source.startswith("alias Act = f32;\nconst D = 5u;\nconst EPS = f32(1e-05);\n")
    assert "const pair = Pair(7u, array(vec2u(1u, 2u)));\n" in source


def test_f16_is_enabled_only_where_it_is_used():
    assert "enable f16;" in link("dense/map_binary", ["dense/binary/add"], {"Act": "f16"}).source
    assert "enable f16;" not in link("dense/embed", ["formats/f16"]).source  # it unpacks halves by hand


def test_enables_of_a_part_come_first_and_lines_keep_their_numbers():
    whole = link("linear/gemm_matrix", ["lib/matrix_units/tile"])
    assert whole.source.startswith("enable f16;\nenable wgpu_cooperative_matrix;\n")
    assert whole.source.count("enable wgpu_cooperative_matrix;") == 1
    line = whole.source.split("\n").index("const C4 = COLUMNS / 4u;") + 1
    assert whole.locate(line)[0] == "lib/matrix_units/tile.wgsl"
    text = shader.resources.files("rwkv_gpu.shaders").joinpath("lib/matrix_units/tile.wgsl").read_text()
    assert text.split("\n")[whole.locate(line)[1] - 1] == "const C4 = COLUMNS / 4u;"


def add(**constants: int) -> Linked:
    parts = ["dense/binary/add", "lib/lanes/plain", "lib/step"]
    return link("dense/map_binary", parts, {"WG": 64, "FIRST": 0, "REPEATED": 5, **constants})


def test_pipelines_are_cached_by_content(device):
    first = device.pipeline(add(D=5, Z=5))
    assert device.pipeline(add(Z=5, D=5)) is first
    assert device.pipeline(add(D=6, Z=6)) is not first


def sums(*widths: int) -> list[Linked]:
    return [add(D=width, Z=width) for width in widths]


def test_shaders_of_a_plan_compile_in_parallel(fast_device, monkeypatch):
    """Each compilation waits until the other one has started."""
    both, compile_one = threading.Barrier(2), PipelineCache._compile

    def meet(self: PipelineCache, linked: Linked) -> Pipeline:
        both.wait(60)
        return compile_one(self, linked)

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(PipelineCache, "_compile", meet)
    every = sums(1001, 1002, 1001)
    fast_device.pipelines.compile(every)
    monkeypatch.setattr(PipelineCache, "_compile", None)  # compiling now fails
    assert [fast_device.pipeline(one).name for one in every] == [one.name for one in every]
    fast_device.pipelines.compile(every)
    assert not [thread.name for thread in threading.enumerate() if "compile" in thread.name]


def test_of_shaders_that_compile_in_parallel_the_invalid_one_is_named(device):
    wrong = [linked(("good.wgsl", OUT_OF_BOUNDS)), linked(("bad.wgsl", OUT_OF_BOUNDS.replace("7u", "nothing")))]
    with pytest.raises(ShaderError, match=r"bad\.wgsl:4"):
        device.pipelines.compile(wrong)


def test_bindings_are_read_from_the_text():
    assert link("dense/map_unary", ["lib/step"]).bindings() == {
        0: Binding("step", "uniform"),
        1: Binding("x", "read"),
        2: Binding("y", "read_write"),
    }


OUT_OF_BOUNDS = """@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) group: vec3u) {
    y[8u + group.x] = 7u;
}
"""


def write_past_the_end(device: Device) -> bytes:
    """Binds the first half of a buffer to a kernel that writes into the second."""
    pipeline = device.pipeline(linked(("bad.wgsl", OUT_OF_BOUNDS)))
    offset = device.capabilities.offset_alignment
    buffer = device.handle.create_buffer(size=offset + 256, usage=STORAGE)
    resource = {"buffer": buffer, "offset": 0, "size": 32}
    group = device.handle.create_bind_group(layout=pipeline.layout, entries=[{"binding": 0, "resource": resource}])
    encoder = device.handle.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline.handle)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(1)
    compute.end()
    device.submit([encoder.finish()])
    return bytes(device.queue.read_buffer(buffer))[32:36]


def test_checked_mode_keeps_a_write_inside_its_binding(adapter):
    with Device(adapter, checked=True) as device:
        assert write_past_the_end(device) == bytes(4)


def test_every_shader_opens_with_its_equation_or_purpose():
    for name in ("dense/embed", "dense/layer_norm", "linear/gemv", "dense/softmax"):
        assert read(name).text.startswith("//")
