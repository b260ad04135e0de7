"""Comparisons with peers: the workloads, their order, and peers that fail."""

import sys

import click
import pytest
from click.testing import CliRunner

from benchmarks import sides
from benchmarks.peers import asked, main, measure, read_test
from benchmarks.sides import Ended, Spec, begun, variants
from rwkv_gpu.engine.adapters import adapters_of
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.measure.workload import Workload
from rwkv_gpu.models.registry import Model, load_model
from tests.golden_files import OWN

WORK = Workload("tg", 4, 0, 2, 2)

# Answers like peer_llama.py, except for batches over 2: then it ends or sleeps, as MANNER sets.
PEER = """
import json, sys, time
print(json.dumps({"devices": ["a GPU"]}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    work = asked["work"]
    if work["batch"] > 2:
        sys.exit(7) if "MANNER" == "end" else time.sleep(60)
    answer = {"seconds": 0.001 * work["tokens"] * work["batch"]}
    print(json.dumps(answer), flush=True)
"""


class Fake:
    """A fake side of a comparison that records its calls."""

    def __init__(self, name: str, calls: list[str], passes: int = 99) -> None:
        self.name, self._calls, self._passes = name, calls, passes

    def prepare(self, _work: Workload) -> None:
        self._calls.append(f"{self.name} prepares")

    def warm(self, _work: Workload) -> None:
        self._calls.append(f"{self.name} warms")

    def run(self, _work: Workload) -> float:
        self._calls.append(self.name)
        self._passes -= 1
        if self._passes < 0:
            raise Ended(f"{self.name} ended")
        return 0.5


def tiny(name: str) -> Model:
    with GGUFFile.open(OWN / f"tiny-{name}.gguf") as file:
        return load_model(file)


def test_tests_are_measured_in_the_requested_order():
    works = asked(tiny("llama"), [read_test(text) for text in ("tg32@512x1,16", "pp64,512", "tg8")], [128])
    assert [(work.name, work.batch) for work in works] == [
        ("tg32 @ d512", 1), ("tg32 @ d512", 16), ("pp64", 1), ("pp512", 1), ("tg8", 1),
    ]  # fmt: skip
    with pytest.raises(click.BadParameter, match="does not have a form like"):
        read_test("512")


def test_of_an_encoder_prompts_are_batches_of_texts():
    works = asked(tiny("bert"), [read_test(text) for text in ("pp60", "pp8,16x1,20")], None)
    shapes = [(work.kind, work.tokens, work.batch, work.together) for work in works]
    assert shapes[:3] == [("embed", 60, 1, 1), ("embed", 8, 1, 1), ("embed", 8, 20, 20)]
    with pytest.raises(BadInput, match="has no next tokens"):
        asked(tiny("bert"), [read_test("tg8")], None)


def test_an_encoder_embeds_texts_in_turns_with_a_peer(tmp_path, monkeypatch):
    script = tmp_path / "peer.py"
    script.write_text(PEER.replace("MANNER", "end"))
    monkeypatch.setattr(sides, "SCRIPT", script)
    given = [str(OWN / "tiny-bert.gguf"), "--peer", f"X={sys.executable}", "-r", "2", "--settle", "0"]
    result = CliRunner().invoke(main, [*given, "--device", "cpu", "-t", "pp8x2,3"])
    assert result.exit_code == 0, result.output
    _, _, two, three = [
        [cell.strip() for cell in line.split("|")] for line in result.stdout.splitlines() if line[:1] == "|"
    ]
    assert two[1:4] == ["pp8", "2048", "2"]
    assert two[5] == "1,000.0 ± 0.0"
    assert three[5] == "–"
    assert "ended with 7" in result.stderr


def test_peers_are_prepared_and_settle_then_are_timed_in_turns():
    calls: list[str] = []
    rates = measure([Fake("a", calls), Fake("b", calls)], WORK, repeats=2, settle=1.5)
    turn = ["a warms", "a", "b warms", "b"]
    ready, settled, timed = ["a prepares", "a", "b prepares", "b"], turn * 2, turn * 2
    assert calls == [*ready, *settled, *timed]
    assert rates == {"a": [16.0, 16.0], "b": [16.0, 16.0]}


def test_a_warm_up_reads_the_whole_prompt_or_generates_a_few_tokens():
    assert begun(Workload("tg", 128, 0, 2, 64)) == Workload("tg", 8, 0, 2, 64)
    assert begun(Workload("tg", 4, 512, 1, 64)) == Workload("tg", 4, 512, 1, 64)
    assert begun(Workload("pp", 512, 0, 1, 64)) == Workload("pp", 512, 0, 1, 64)


@pytest.mark.parametrize("passes", [0, 1, 3])
def test_a_program_that_has_ended_gets_no_more_work_and_has_no_rate(passes):
    calls: list[str] = []
    both = [Fake("a", calls), Fake("b", calls, passes)]
    assert measure(both, WORK, repeats=3, settle=0) == {"a": [16.0] * 3}
    assert [side.name for side in both] == ["a"]
    assert calls.count("b") == passes + 1


@pytest.mark.parametrize(("manner", "reason"), [("end", "ended with 7"), ("sleep", "took more than 2 s")])
def test_the_table_continues_without_a_peer_that_fails(tmp_path, monkeypatch, manner, reason):
    script = tmp_path / "peer.py"
    script.write_text(PEER.replace("MANNER", manner))
    monkeypatch.setattr(sides, "SCRIPT", script)
    model = str(OWN / "tiny-rwkv7.gguf")
    tests = ["-t", "tg4x1,3", "-t", "pp8", "-r", "2", "--settle", "0", "--patience", "2", "--device", "cpu"]
    result = CliRunner().invoke(main, [model, "--peer", f"X={sys.executable}", "--peer", "/bin/false", *tests])
    assert result.exit_code == 0, result.output
    assert reason in result.stderr
    assert "llama.cpp ended with 1" in result.stderr
    heads, _, first, second, third = [line.split("|") for line in result.stdout.splitlines() if line[:1] == "|"]
    assert [cell.strip() for cell in heads[4:7]] == ["rwkv-gpu, tok/s", "llama.cpp X, tok/s", "times"]
    assert first[5].strip() == "1,000.0 ± 0.0"
    ours = float(first[4].split("±")[0].replace(",", ""))
    assert float(first[6]) == pytest.approx(ours / 1000, abs=0.01)
    for line in second, third:
        assert float(line[4].split("±")[0].replace(",", "")) > 0
        assert line[5].strip() == "–"


def test_one_table_compares_a_model_with_and_without_matrix_units(tmp_path, monkeypatch):
    script = tmp_path / "peer.py"
    script.write_text(PEER)
    monkeypatch.setattr(sides, "SCRIPT", script)
    tests = [
        "-t",
        "pp8",
        "-r",
        "1",
        "--settle",
        "0",
        "--device",
        "cpu",
        "--matrix-units",
        "auto",
        "--matrix-units",
        "off",
    ]
    result = CliRunner().invoke(main, [str(OWN / "tiny-rwkv7.gguf"), "--peer", f"X={sys.executable}", *tests])
    assert result.exit_code == 0, result.output
    heads, _, row = [
        [cell.strip() for cell in line.split("|")] for line in result.stdout.splitlines() if line[:1] == "|"
    ]
    assert heads[4:6] == ["rwkv-gpu, matrix units auto, tok/s", "rwkv-gpu, matrix units off, tok/s"]
    on, off = (float(row[at].split("±")[0].replace(",", "")) for at in (4, 5))
    assert float(row[6]) == pytest.approx(on / off, abs=0.01)


def test_each_variant_has_a_row_with_how_much_it_differs_from_the_first(tmp_path, monkeypatch):
    script = tmp_path / "peer.py"
    # Takes twice as long with an adapter, which must be given as a file.
    slow = 'slow = 2 if "--lora" in sys.argv and open(sys.argv[-1], "rb") else 1'
    body = PEER.replace("import json, sys, time", f"import json, sys, time\n{slow}")
    script.write_text(body.replace("0.001 *", "0.001 * slow *"))
    monkeypatch.setattr(sides, "SCRIPT", script)
    tests = [
        "-t",
        "tg4x2",
        "-r",
        "2",
        "--settle",
        "0",
        "--device",
        "cpu",
        "--lora",
        "none",
        "--lora",
        "all",
        "--kv",
        "q8",
    ]
    result = CliRunner().invoke(main, [str(OWN / "tiny-llama.gguf"), "--peer", f"X={sys.executable}", *tests])
    assert result.exit_code == 0, result.output
    heads, _, without, adapted = [
        [cell.strip() for cell in line.split("|")] for line in result.stdout.splitlines() if line[:1] == "|"
    ]
    assert heads[4:8] == ["with", "rwkv-gpu, tok/s", "llama.cpp X, tok/s", "times"]
    assert (without[4], adapted[4]) == ("kv q8", "kv q8, lora all")
    assert (without[6], adapted[6]) == ("1,000.0 ± 0.0", "500.0 ± 0.0 (-50.0%)")
    ours = float(adapted[5].split("±")[0].replace(",", ""))
    assert float(adapted[7]) == pytest.approx(ours / 500, rel=0.01, abs=0.006)  # two digits on a slow machine


def test_random_factors_of_attention_adapt_no_other_matrix(tmp_path):
    model = str(OWN / "tiny-llama.gguf")
    adapted = {}
    with GGUFFile.open(model) as file:
        for variant in variants(["f16"], ["none", "attention", "all"]):
            path = variant.adapter(model, 8, tmp_path)
            adapted[variant.lora] = {name.split(".")[2] for name in adapters_of(path, file).names}
    assert adapted["none"] == set()
    assert adapted["attention"] == {"attn_q", "attn_k", "attn_v", "attn_output"}
    assert adapted["all"] == adapted["attention"] | {"ffn_gate", "ffn_up", "ffn_down"}


def test_a_peer_is_a_python_with_a_folder_and_a_name():
    assert Spec.read("CUDA=python3:/opt/cuda") == Spec("llama.cpp CUDA", "python3", "/opt/cuda")
    assert Spec.read("python3") == Spec("llama.cpp", "python3", "")
