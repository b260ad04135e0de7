"""The measurements of `rwkv-gpu bench`, and its output."""

import csv
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import Adapter
from rwkv_gpu.gpu.cost import ContextCost
from rwkv_gpu.measure.bench import bench, needed, timed
from rwkv_gpu.measure.roofline import measure_roofline
from rwkv_gpu.measure.workload import Workload, embeddings, workloads
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.vocabulary import PAGE
from tests.golden_files import OWN
from tests.measure.test_synthetic import TINY_MIXTURE
from tests.measure.tiny import opened_tiny

MODEL = str(OWN / "tiny-rwkv7.gguf")
ENCODER = str(OWN / "tiny-bert.gguf")  # trained on 64 positions


@pytest.mark.parametrize("window", [0, 5])
def test_the_cost_of_attention_equals_a_count(window):
    context_cost = ContextCost(sequence_bytes=7, position_bytes=3, pair_flops=2, window=window)
    for start, count in ((0, 1), (9, 1), (0, 8), (4, 9)):
        rows = [range(max(0, p - window + 1) if window else 0, p + 1) for p in range(start, start + count)]
        seen = {position for row in rows for position in row}
        assert context_cost.cost([(start, count)]) == (7 + 3 * len(seen), 2 * sum(map(len, rows)))
        both = ContextCost(sequence_bytes=5) + context_cost  # of a merged dispatch
        assert both.cost([(start, count)]) == (12 + 3 * len(seen), 2 * sum(map(len, rows)))


def test_workloads_are_all_combinations_except_empty_ones():
    works = workloads([0, 8], [4], [0, 16], [1, 2], [4, 8])
    assert [work.name for work in works] == ["pp8", "pp8", "pp8 @ d16", "pp8 @ d16", *["tg4"] * 2, *["tg4 @ d16"] * 2]
    assert [step.rows for step in works[0].steps()] == [4, 4]
    assert [step.rows for step in works[-1].steps()] == [2] * 4
    with pytest.raises(BadInput, match="nothing to measure"):
        workloads([0], [0], [0], [1], [1])


def test_deeper_and_wider_costs_more_and_a_batch_shares_the_weights(fast_device):
    """On a GPU, the traffic of a mixture of experts depends on its rows, its depth and the chosen experts."""
    file = opened_tiny(TINY_MIXTURE)
    runner = GpuRunner(fast_device, file, load_model(file), slots=2, context=700)
    works = [Workload("tg", 2, 0, 1, 1), Workload("tg", 2, 600, 1, 1), Workload("tg", 2, 0, 2, 2)]
    near, far, both = (result.cost for result in bench(runner, works, 1))
    position = 2 * 2 * 2 * 64 * 2  # layers, K and V, KV heads, head size, bytes of a float16
    assert far.nbytes - near.nbytes >= 2 * 600 * position
    assert far.flops - near.flops == 2 * 600 * 2 * 4 * 4 * 64  # steps, positions, layers, 4 · H · N
    assert near.nbytes < both.nbytes < 2 * near.nbytes
    assert both.flops == 2 * near.flops


def test_the_roofline_is_within_reason(fast_device):
    roofline = measure_roofline(fast_device)
    assert 0 < roofline.bytes_per_second < 1e14
    assert 0 < roofline.flops_per_second < 1e16
    assert roofline.seconds(roofline.bytes_per_second, 1) == 1


def every_output(given: list[str], adapter: Adapter, device: str) -> dict[str, str]:
    """Returns the output of bench in each format; on a GPU in two formats."""
    given = [*given, "--device", "cpu" if device == "cpu" else str(adapter.index)]
    outputs = {}
    for output in ("json", "csv", "jsonl", "md") if device == "cpu" else ("json", "md"):
        result = CliRunner().invoke(cli, [*given, "-o", output])
        assert result.exit_code == 0, result.output
        outputs[output] = result.stdout
    return outputs


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_every_output_format_has_the_same_numbers(adapter, device):
    given = ["bench", MODEL, "-p", "8", "-n", "2", "-r", "2", "--chunk-size", "4,8"]
    outputs = every_output(given, adapter, device)
    rows = json.loads(outputs["json"])
    assert [(row["test"], row["chunk_size"]) for row in rows] == [("pp8", 4), ("pp8", 8), ("tg2", None)]
    assert all(len(row["samples"]) == 2 and row["tokens_per_second"] > 0 for row in rows)
    assert ("dispatches" in rows[0]) == (device == "gpu")
    assert [line.split("|")[1].strip() for line in outputs["md"].splitlines()[-3:]] == ["pp8", "pp8", "tg2"]
    if device == "cpu":
        assert [row["test"] for row in csv.DictReader(io.StringIO(outputs["csv"]))] == ["pp8", "pp8", "tg2"]
        assert [json.loads(line)["test"] for line in outputs["jsonl"].splitlines()] == ["pp8", "pp8", "tg2"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([MODEL, "--synthetic", "rwkv7-0.1b"], "a model file or --synthetic NAME, not both"),
        (["--synthetic", "gpt-5"], "known: rwkv7-0.1b"),
        ([MODEL, "-b", "1,x"], "not a list of whole numbers"),
        ([MODEL, "-p", "0", "-n", "0"], "nothing to measure"),
        ([MODEL, "-b", "257"], "over the 256 sequences"),
        ([MODEL, "--chunk-size", "0"], "must be at least 1"),
        ([ENCODER, "-n", "4"], "is an encoder: it makes embeddings of texts, and has no next tokens; leave out -n"),
        ([ENCODER, "-p", "8", "-d", "0,8"], "leave out --depth"),
        ([ENCODER, "-p", "0"], "nothing to measure"),
        ([ENCODER, "-p", "65"], "texts of 65 tokens are longer than the 64"),
    ],
)
def test_a_case_that_cannot_be_measured_is_an_error_in_one_line(given, told):
    result = CliRunner().invoke(cli, ["bench", *given, "--device", "cpu"])
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_as_many_whole_texts_as_fit_share_a_step():
    works = embeddings([8, 0, 40], [1, 5], [16, 24])
    assert [(work.name, work.batch, work.chunk) for work in works] == [
        ("pp8", 1, 16), ("pp8", 1, 24), ("pp8", 5, 16), ("pp8", 5, 24),
        ("pp40", 1, 40), ("pp40", 1, 40), ("pp40", 5, 40), ("pp40", 5, 40),
    ]  # fmt: skip
    assert [step.rows for step in works[2].steps()] == [16, 16, 8]
    assert [step.rows for step in works[3].steps()] == [24, 16]
    assert [step.rows for step in works[-1].steps()] == [40] * 5
    assert needed(works[2:4]) == (3, 8, 3 * PAGE, 24)
    assert [len(step.segments) for step in embeddings([1], [300], [512])[0].steps()] == [256, 44]


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_pass_over_texts_takes_the_steps_of_an_engine_and_pools_the_same_rows(fast_device, device):
    """The measurement covers the work of `LLM.embed` without the tokenizer."""
    [work] = embeddings([12], [5], [30])
    with GGUFFile.open(ENCODER) as file:
        options = {"slots": 5, "context": 64, "chunk_size": work.chunk}
        model = load_model(file)
        runner = (
            GpuRunner(fast_device, file, model, **options) if device == "gpu" else HostRunner(file, model, **options)
        )
    steps, pooled = [], []
    run = runner.run
    runner.run = lambda batch, what: (steps.append((batch.ids.tolist(), batch.outputs, what)), run(batch, what))[1]
    timed(runner, work, work.steps(), pooled.append)
    ours, steps[:] = steps[:], []
    expected = [rows for _, rows in Engine(runner).hidden(work.ids())]
    # A text that is left over takes its own step in both.
    assert ours == steps
    assert [len(ids) for ids, _, _ in steps] == [24, 24, 12]
    assert len(pooled) == len(expected) == 5
    for rows, same in zip(pooled, expected, strict=True):
        np.testing.assert_array_equal(rows, same)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_every_output_for_an_encoder_has_tokens_and_texts_per_second(adapter, device):
    given = ["bench", ENCODER, "-p", "8,60", "-b", "1,10", "-r", "2"]
    outputs = every_output(given, adapter, device)
    rows = json.loads(outputs["json"])
    assert [(row["test"], row["batch"]) for row in rows] == [("pp8", 1), ("pp8", 10), ("pp60", 1), ("pp60", 10)]
    for row in rows:
        assert (row["n_gen"], row["chunk_size"]) == (0, 2048)  # the rows of a step that an `LLM` of it has
        assert row["texts_per_second"] == pytest.approx(row["tokens_per_second"] / row["n_prompt"], rel=1e-3)
        assert ("dispatches" in row) == (device == "gpu")
    heads, _, *lines = [[cell.strip() for cell in line.split("|")] for line in outputs["md"].splitlines()[-6:]]
    texts = [line[heads.index("texts/s")] for line in lines]
    assert all(float(text.replace(",", "")) > 0 for text in texts)
    if device == "cpu":
        told = list(csv.DictReader(io.StringIO(outputs["csv"])))
        told += [json.loads(line) for line in outputs["jsonl"].splitlines()]
        assert [row["test"] for row in told] == [row["test"] for row in rows] * 2
        assert all(float(row["texts_per_second"]) > 0 for row in told)
    else:
        assert rows[0]["bytes_per_token"] > rows[1]["bytes_per_token"]  # ten texts share the weights of a step


def test_a_runner_has_room_for_the_largest_workload_not_for_all_sequences_at_the_deepest():
    works = workloads([0], [16], [0], [16], [1]) + workloads([0], [16], [32_768], [1], [1])
    assert needed(works) == (16, 32_784, 513 * PAGE, 16)
