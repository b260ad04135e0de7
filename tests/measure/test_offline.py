"""The proofs on GPUs that are not at hand: which shaders they take, and that a complaint is one."""

from benchmarks.offline.proof import covering, refused
from benchmarks.offline.variants import FAMILIES, ShaderCollector, record, texts
from rwkv_gpu.measure.cases import dense


def test_few_shaders_have_every_kernel_with_every_part():
    every = {"0 a.x.y": "0", "1 a.x": "1", "2 b.x": "2", "3 a.z.y": "3", "4 b": "4"}
    assert set(covering(every).values()) == {"0", "3", "2"}


def test_a_device_that_is_not_there_is_given_what_its_capabilities_ask_for(tmp_path):
    """The same trials, linked for subgroups and without."""
    sources = {}
    for family in ("webgpu", "apple"):
        device = ShaderCollector(FAMILIES[family])
        for trial in dense.cases(FAMILIES[family]):
            if trial.op == "rms_norm":
                record(device, trial)
        sources[family] = " ".join(device.linked)
        (tmp_path / family).mkdir()
        for number, linked in enumerate(device.linked.values()):
            (tmp_path / family / f"{number:04}.wgsl").write_text(f"// {linked.name}\n{linked.source}")
        assert [name.partition(" ")[2] for name in texts(tmp_path, family)] == [
            linked.name for linked in device.linked.values()
        ]
    assert "subgroupAdd" in sources["apple"]
    assert "subgroupAdd" not in sources["webgpu"]


def test_what_a_compiler_says_is_a_complaint_only_where_it_fails():
    assert refused(["sh", "-c", "echo fine >&2"]) == ""
    assert refused(["sh", "-c", "echo no >&2; exit 1"]) == "no"
    assert refused(["sh", "-c", "exit 3"]) == "ended with 3"
