"""NVIDIA's load tool aiperf with 1, 16 and 64 streams: every request is answered and every token counted."""

import json
import subprocess
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.server.serving import serving

AIPERF = Path(__file__).resolve().parents[2] / "build" / "aiperf" / "bin" / "aiperf"
TOKENS = 16


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Writes the tokenizer with which the tool counts prompt tokens. Without it, the tool would download one."""
    folder = tmp_path_factory.mktemp("tokenizer")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel()
    letters.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not AIPERF.exists(), reason="make test-clients installs it")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("streams", [1, 16, 64])
def test_a_load_tool_gets_every_token(tokenizer, tmp_path, streams):
    requests = 2 * streams + 4
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"text": f"The sea, number {n}"}) + "\n" for n in range(requests)))
    with serving(sequences=64) as server:
        options = {
            "model-names": "quiet", "tokenizer": tokenizer, "endpoint-type": "chat", "concurrency": streams,
            "url": f"http://localhost:{server.port}", "input-file": prompts, "custom-dataset-type": "single_turn",
            "request-count": requests, "ui": "none", "output-artifact-dir": tmp_path / "found",
        }  # fmt: skip
        command = [str(AIPERF), "profile", "--streaming", "--use-server-token-count"]
        command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
        for field in (f"max_tokens:{TOKENS}", "temperature:0"):
            command += ["--extra-inputs", field]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
    found = json.loads((tmp_path / "found" / "profile_export_aiperf.json").read_text())
    assert found["completed_request_count"]["avg"] == found["request_count"]["avg"] == requests
    lengths = found["output_sequence_length"]
    assert (lengths["min"], lengths["max"]) == (TOKENS, TOKENS)
    times = {name: found[name] for name in ("time_to_first_token", "inter_token_latency")}
    median = ", ".join(f"{name} {one['p50']:.1f} {one['unit']}" for name, one in times.items())
    print(f"{streams} streams: {found['request_throughput']['avg']:.1f} requests/s, {median}")
