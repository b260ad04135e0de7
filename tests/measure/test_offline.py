"""The proofs on GPUs that are not at hand: which shaders they take, and that a complaint is one."""

import pytest

from benchmarks.offline import amd, intel, strix_halo, variants
from benchmarks.offline.mesa import Driver, compile_all
from benchmarks.offline.proof import covering, prove, refused
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


def test_models_give_the_shaders_of_their_steps_in_true_sizes_and_in_those_of_the_tests(monkeypatch, tmp_path):
    (tmp_path / "model.gguf").symlink_to(variants.MODELS / "tiny-rwkv7.gguf")
    monkeypatch.setattr(variants, "MODELS", tmp_path)
    monkeypatch.setattr(variants, "SHAPES", ["rwkv7-0.1b"])
    monkeypatch.setattr(variants, "STEPS", variants.STEPS[:1])
    monkeypatch.setattr(variants, "cases", lambda *_: ())
    for shaders in (variants.shaders_of, variants.shaders_of_sizes):
        names = {linked.name.partition(".")[0] for linked in shaders(FAMILIES["amd"])}
        assert {"rwkv/time_mix_decode", "linear/gemv", "dense/embed_norm"} <= names


def test_a_proof_that_was_interrupted_goes_on_and_starts_anew_with_another_compiler(tmp_path):
    (tmp_path / "shaders" / "webgpu").mkdir(parents=True)
    for number, text in enumerate(("one", "two")):
        (tmp_path / "shaders" / "webgpu" / f"{number:04}.wgsl").write_text(f"// kernel.{number}\n{text}\n")
    compiler, asked = tmp_path / "compiler", []

    def check(text: str, family: str) -> str:  # noqa: ARG001
        asked.append(text.splitlines()[1])
        return "no" if asked[-1] == "two" else ""

    for version, expected in (("1", ["one", "two"]), ("1", []), ("2", ["one", "two"])):
        compiler.write_text(version)
        with pytest.raises(SystemExit, match="1"):
            prove(tmp_path / "shaders", ["webgpu"], check, [compiler])
        assert sorted(asked) == expected
        asked.clear()
    [kept] = (tmp_path / "verdicts").glob("*")
    kept.write_text(kept.read_text()[:-3])  # as if the machine had gone off
    with pytest.raises(SystemExit, match="1"):
        prove(tmp_path / "shaders", ["webgpu"], check, [compiler])
    assert len(asked) == 1


def test_what_a_compiler_says_is_a_complaint_only_where_it_fails():
    assert refused(["sh", "-c", "echo fine >&2"]) == ""
    assert refused(["sh", "-c", "echo no >&2; exit 1"]) == "no"
    assert refused(["sh", "-c", "exit 3"]) == "ended with 3"


def test_what_mesa_says_of_a_shader_is_kept_and_a_process_that_ends_is_a_refusal(tmp_path):
    """The second of three shaders ends the process; another goes on with the third, and nothing is compiled twice."""
    files = []
    for number in range(3):
        files.append(tmp_path / f"{number:04}.wgsl")
        files[-1].write_text(f"// a.x + b.y\ntext {number}\n")
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho run >>$RUNS\nwhile read file; do\n echo '== shader' $file\n"
        " case $file in *0001*) exit 3;; esac\n echo 'VGPRs: 7'\ndone\necho '== end'\n"
    )
    python.chmod(0o755)
    runs = tmp_path / "runs"
    driver = Driver("some", {"RUNS": str(runs)}, lambda output: {"VGPRs": 7} if "VGPRs: 7" in output else {})
    for _ in range(2):
        compiled = compile_all(python, files, driver, tmp_path / "kept")
        assert [one.refusal for one in compiled] == ["", "the process ended with 3", ""]
        assert [one.statistics for one in compiled] == [{"VGPRs": 7}, {}, {"VGPRs": 7}]
        assert {one.kernel for one in compiled} == {"a + b"}
    assert runs.read_text().count("run") == 2


def test_the_stand_in_for_strix_halo_differs_from_that_of_strix_point_in_its_device_alone(tmp_path):
    (tmp_path / "libamdgpu_noop_drm_shim.so").write_bytes(b"before" + strix_halo.STRIX1 + b"after")
    strix_halo.main(tmp_path)
    made = (tmp_path / "libgfx1151_noop_drm_shim.so").read_bytes()
    assert made == b"before" + strix_halo.STRIX_HALO + b"after"
    assert amd.driver("gfx1151", 64).environment["SHIM"] == "gfx1151"
    (tmp_path / "libamdgpu_noop_drm_shim.so").write_bytes(b"another Mesa")
    with pytest.raises(SystemExit, match="strix1"):
        strix_halo.main(tmp_path)


def test_statistics_of_drivers_are_read():
    radv = "VGPRs: 96\nSpilled VGPRs: 0\nScratch size: 2048\nLDS size: 512\nSubgroups per SIMD: 16\nBranches: 3\n"
    assert amd.statistics_of(radv)["Scratch size"] == 2048
    assert amd.statistics_of("Branches: 3\n") == {}
    anv = "SIMD8 shader: 9661 instructions. 1 loops. 817572 cycles. 566:595 spills:fills, 549 sends\n"
    assert intel.statistics_of(anv) == {"lanes": 8, "instructions": 9661, "spills": 566, "fills": 595}
    assert intel.statistics_of("SIMD16 CS compile failed: Failure to register allocate.") == {}
