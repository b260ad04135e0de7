"""Proofs for absent GPUs: the shaders that they check, and how errors are reported."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from benchmarks.offline import directx, everything, proof, strix_halo, validate, variants
from benchmarks.offline.everything import ON_MATRIX_UNITS
from benchmarks.offline.mesa import Driver, compile_all
from benchmarks.offline.metal_run import covering
from benchmarks.offline.proof import prove, refused
from benchmarks.offline.prove import main as prove_main
from benchmarks.offline.variants import FAMILIES, ShaderCollector, record, texts
from benchmarks.offline.vendors import VENDORS, files_of
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.gemm_config import F16
from rwkv_gpu.measure.cases import cases, dense, quick
from tests.process import posix

UNITS = FAMILIES["nvidia-matrix-units"]
ROOT = Path(__file__).resolve().parents[2]


def test_a_covering_set_has_every_kernel_with_every_part():
    every = {"0 a.x.y": "0", "1 a.x": "1", "2 b.x": "2", "3 a.z.y": "3", "4 b": "4"}
    assert set(proof.covering(every).values()) == {"0", "3", "2"}
    sizes = {"0 a.x": "long", "1 a.y & b.x": "one", "2 b.x": "of b", "3 c": "c"}
    assert list(proof.smallest(sizes)) == ["3 c", "1 a.y & b.x", "2 b.x"]


def test_each_device_gets_the_shaders_that_its_capabilities_allow(tmp_path):
    """The same trials are linked for subgroups and without them."""
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


def test_an_interrupted_proof_continues_and_restarts_with_another_compiler(tmp_path):
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
    kept.write_text(kept.read_text()[:-3])  # as if the machine had been switched off
    with pytest.raises(SystemExit, match="1"):
        prove(tmp_path / "shaders", ["webgpu"], check, [compiler])
    assert len(asked) == 1


def test_for_another_commit_only_changed_shaders_are_compiled(tmp_path):
    """A changed line in one kernel renumbers all later shaders, but an unchanged text keeps its verdict."""
    then, now = {"a.x": "same", "b.x": "old"}, {"c": "new", "b.x": "mended", "a.x": "same"}
    for commit, shaders in {"then": then, "now": now}.items():
        (tmp_path / commit / "amd").mkdir(parents=True)
        for number, (name, text) in enumerate(shaders.items()):
            (tmp_path / commit / "amd" / f"{number:04}.wgsl").write_text(f"// {name}\n{text}\n")
    selection = proof.Selection(since=tmp_path / "then")
    assert list(selection.of(tmp_path / "now", "amd")) == ["0000 c", "0001 b.x"]
    assert [file.name for file in files_of(tmp_path / "now", "amd", selection)] == ["0000.wgsl", "0001.wgsl"]


@posix
def test_the_output_of_a_compiler_is_reported_only_if_it_fails():
    assert refused(["sh", "-c", "echo fine >&2"]) == ""
    assert refused(["sh", "-c", "echo no >&2; exit 1"]) == "no"
    assert refused(["sh", "-c", "exit 3"]) == "ended with 3"


FXC = """#!/bin/sh
echo started >>$RUNS
while read name; do
 case $(cat "${name#Z:}") in
  *wrong*) echo REFUSED 0; echo 'shader(1,2): warning X1: odd'; echo 'shader(1,2): error X2: no';;
  *ends*) exit 3;;
  *lasts*) exec sleep 60;;
  *) echo OK 12; echo 'shader(1,2): warning X1: odd';; esac
 echo '== end'
done
"""


@posix
def test_one_process_of_fxc_takes_many_shaders_and_warnings_are_no_complaints(tmp_path, monkeypatch):
    """A process that ends is reported as an error, and the next shader gets a new process."""
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    (tmp_path / "fxc").write_text(FXC)
    (tmp_path / "fxc").chmod(0o755)
    compiler = directx.Fxc(tmp_path / "fxc")
    assert compiler.compile("fine") == ""
    assert compiler.compile("wrong") == "shader(1,2): error X2: no"
    assert compiler.compile("ends").startswith("FXC ended")
    assert compiler.compile("fine") == ""
    compiler.close()
    assert (tmp_path / "runs").read_text().count("started") == 2


@posix
def test_a_shader_that_took_too_long_has_no_verdict_and_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    (tmp_path / "fxc").write_text(FXC)
    (tmp_path / "fxc").chmod(0o755)
    kept = proof.Kept(tmp_path / "kept", [])
    hurried, patient = directx.Fxc(tmp_path / "fxc", limit=0.2), directx.Fxc(tmp_path / "fxc")
    assert kept.checked(lambda *_: hurried.compile("lasts"), "name\ntext", "dx12-fxc") == "FXC took more than 0 s"
    assert kept.checked(lambda *_: patient.compile("fine"), "name\ntext", "dx12-fxc") == ""
    assert kept.checked(lambda *_: "no", "name\ntext", "dx12-fxc") == ""
    patient.close()


def test_fxc_gets_a_trusted_shader_as_wgpu_writes_it():
    checked = """    uint2 loop_bound_5 = uint2(4294967295u, 4294967295u);
    while(true) {
        if (all(loop_bound_5 == uint2(0u, 0u))) { break; }
        loop_bound_5 -= uint2(loop_bound_5.y == 0u, 1u);
        sums[min(uint(of[min(uint((2u * i)), 7u)]), 63u)] = min(uint(x), 7u);
"""
    assert directx.trusted(checked) == "    while(true) {\n        sums[of[(2u * i)]] = min(uint(x), 7u);\n"


@posix
def test_mesas_output_for_a_shader_is_stored_and_a_process_that_ends_is_a_refusal(tmp_path):
    """The second of three shaders ends the process. Another process compiles the third; no shader is compiled twice."""
    files = []
    for number in range(3):
        files.append(tmp_path / f"{number:04}.wgsl")
        files[-1].write_text(f"// a.x & b.y\ntext {number}\n")
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
        assert {one.kernel for one in compiled} == {"a"}
    assert runs.read_text().count("run") == 2


def test_the_stand_in_for_strix_halo_differs_from_that_of_strix_point_only_in_its_device(tmp_path):
    (tmp_path / "libamdgpu_noop_drm_shim.so").write_bytes(b"before" + strix_halo.STRIX1 + b"after")
    strix_halo.main(tmp_path)
    made = (tmp_path / "libgfx1151_noop_drm_shim.so").read_bytes()
    assert made == b"before" + strix_halo.STRIX_HALO + b"after"
    [(gpu, driver)] = VENDORS["amd"].drivers("amd", ["gfx1151"], matrix_units=True).values()
    assert (gpu, driver.name, driver.environment["SHIM"]) == ("gfx1151", "amd-gfx1151-64", "gfx1151")
    (tmp_path / "libamdgpu_noop_drm_shim.so").write_bytes(b"another Mesa")
    with pytest.raises(SystemExit, match="strix1"):
        strix_halo.main(tmp_path)


def test_statistics_of_drivers_are_read():
    radv = "VGPRs: 96\nSpilled VGPRs: 0\nScratch size: 2048\nLDS size: 512\nSubgroups per SIMD: 16\nBranches: 3\n"
    assert VENDORS["amd"].statistics_of(radv)["Scratch size"] == 2048
    assert VENDORS["amd"].statistics_of("Branches: 3\n") == {}
    anv = "SIMD8 shader: 9661 instructions. 1 loops. 817572 cycles. 566:595 spills:fills, 549 sends\n"
    assert VENDORS["intel"].statistics_of(anv) == {"lanes": 8, "instructions": 9661, "spills": 566, "fills": 595}
    assert VENDORS["intel"].statistics_of("SIMD16 CS compile failed: Failure to register allocate.") == {}


RADV = "VGPRs: 96\nSpilled VGPRs: 0\nScratch size: 0\nLDS size: 0\nSubgroups per SIMD: 16\n"


@posix
def test_matrix_units_are_compiled_for_gpus_that_have_them_with_their_wave_sizes(tmp_path):
    (tmp_path / "shaders" / "amd-matrix-units").mkdir(parents=True)
    (tmp_path / "shaders" / "amd-matrix-units" / "0000.wgsl").write_text("// a.x\ntext\n")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nread file\nprintf '== shader 0000\\n{RADV}== end\\n'\n")
    python.chmod(0o755)
    options = ["amd", str(tmp_path / "shaders"), "--python", str(python), "--matrix-units", "--gpus", "navi21,navi31"]
    found = CliRunner().invoke(prove_main, options)
    assert found.exit_code == 0, found.output
    assert "| kernel | shaders | navi31, 64 |\n" in found.output
    assert "| `a` | 1 | 96 / 16 |" in found.output


@posix
def test_the_output_of_several_processes_into_a_pipe_is_complete(tmp_path):
    pipe, log = tmp_path / "pipe", tmp_path / "log"
    with validate.collected(pipe, log):
        for number in range(3):
            subprocess.run(["sh", "-c", f"echo said {number} >{pipe}"], check=True)
    assert log.read_text() == "said 0\nsaid 1\nsaid 2\n"
    assert not pipe.exists()


LAYERS = """#!/bin/sh
pipe=$(sed -n 's/.*log_filename = //p' $VK_LAYER_SETTINGS_PATH/vk_layer_settings.txt)
say() { echo "Validation $1: [ $2 ] | MessageID = 0x1" >$pipe; }
say Information CURRENT-VALIDATION-ENABLED
case "$*" in *control*) say Error SYNC-HAZARD-WRITE-AFTER-WRITE;; *test_wrong*) say Error SYNC-HAZARD;;
    *models*) say Error VUID-StandaloneSpirv-None-10684;; *test_failing*) exit 1;; esac
"""


@posix
@pytest.mark.parametrize(
    ("part", "status", "words"),
    [
        ("models", 0, "models: ended with 0; 1 instances of Vulkan; 1 × VUID-StandaloneSpirv-None-10684"),
        ("tests/test_wrong.py", 1, "1 × SYNC-HAZARD\n  SYNC-HAZARD: not known"),
        ("tests/test_failing.py", 1, "tests/test_failing.py: ended with 1; 1 instances of Vulkan; no message"),
    ],
)
def test_a_run_under_validation_layers_passes_if_it_succeeds_and_all_messages_are_known(tmp_path, part, status, words):
    python = tmp_path / "python"
    python.write_text(LAYERS)
    python.chmod(0o755)
    found = CliRunner().invoke(validate.main, [str(tmp_path / "found"), part, "--python", str(python)])
    assert found.exit_code == status, found.output
    assert words in found.output


@posix
def test_validation_layers_that_miss_the_planted_race_prove_nothing(tmp_path):
    found = CliRunner().invoke(validate.main, [str(tmp_path / "found"), "models", "--python", "/bin/true"])
    assert found.exit_code == 1
    assert "missed the deliberate race" in found.output


def test_the_kernels_on_matrix_units_are_run_on_a_device_that_has_them_in_use(monkeypatch):
    opened: list[bool] = []

    @contextmanager
    def device(_: object, matrix_units: bool) -> Iterator[SimpleNamespace]:
        opened.append(matrix_units)
        yield SimpleNamespace(capabilities=UNITS, pipelines=[])

    monkeypatch.setattr(everything, "Device", device)
    monkeypatch.setattr(everything, "find", lambda _: SimpleNamespace(adapter=None))
    monkeypatch.setattr(everything, "trials_of", lambda can: quick(cases(can, default_tuning(can))))
    monkeypatch.setattr(everything.trials, "run", lambda *_: SimpleNamespace(right=True))
    found = CliRunner().invoke(everything.main, ["kernels", "some", "--matrix-units", "--few"])
    assert found.exit_code == 0, found.output
    assert opened == [True]
    assert found.output.endswith("0 wrong; not run: none\n")


def test_a_trial_that_rounding_to_float16_would_fail_is_given_no_matrix_units():
    """Otherwise, the doctor would report an error on a correct device."""
    trials = quick(cases(UNITS, default_tuning(UNITS)))
    assert covering(UNITS, (trial for trial in trials if trial.allowed < F16.result), kernels=ON_MATRIX_UNITS) == []


def rows_of_devices() -> list[list[str]]:
    """Returns the cells of the table of tests by device."""
    text = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8").partition("## What was tested")[2]
    text = text.partition("\n### ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_each_verified_device_has_a_date_and_an_existing_command():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    rows = rows_of_devices()
    assert len(rows) > 10
    for family, compiled_by, run_by, compared_with, date, command in rows:
        assert all((family, compiled_by, run_by, compared_with)), family
        assert re.fullmatch(r"20\d\d-\d\d-\d\d|every change", date), family
        commands = re.findall(r"`(\w[\w-]*) ([\w-]+)", command)
        assert commands, family
        assert {name for program, name in commands if program == "make"} <= targets, family
