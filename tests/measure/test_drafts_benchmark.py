"""Drafts by us and by llama.cpp: answers equal those without drafts, and a row shows the gain."""

import sys
import types
from importlib import import_module
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import drafts, head_drafts
from tests.golden.heads import write_headed
from tests.golden_files import OWN

PROMPT, COUNT, LENGTH = [3, 5, 3, 5], 40, 3


class FakePeer:
    """Decodes by a rule instead of weights: the last two tokens determine the next one. It is its own context."""

    def __init__(self, _path: str, _threads: int) -> None:
        self.context = self.model = self
        self.text: list[int] = []
        self.rows: list[int] = []
        self.steps = 0

    def open(self, _work: dict) -> None: ...

    def step(self, rows: list) -> None:
        self.steps += 1
        self.rows = []
        for id, position, _, wanted in rows:
            assert position == len(self.text), "a token must follow what the memory holds"
            self.text.append(id)
            self.rows.append(len(self.text) if wanted else 0)

    def sampled(self, row: int) -> int:
        end = self.rows[row]
        assert end, "logits of this row were not asked for"
        return (7 * self.text[end - 1] + self.text[end - 2] + 1) % 11


def fake_peer_llama(recurrent: bool) -> types.ModuleType:
    """Replaces the llama_cpp module. Its recurrent memory cannot be cut, but copied and restored."""
    module = types.ModuleType("peer_llama")

    def cut(context: FakePeer, _sequence: int, length: int, _end: int) -> bool:
        if recurrent and length < len(context.text):
            return False
        del context.text[length:]
        return True

    def copied(context: FakePeer, copy: Any, size: int, _sequence: int, _flags: int) -> None:
        copy[:size] = context.text

    def put_back(context: FakePeer, copy: Any, size: int, _sequence: int, _flags: int) -> None:
        context.text = list(copy[:size])

    module.lib = types.SimpleNamespace(  # type: ignore[attr-defined]
        llama_sampler_init_greedy=lambda: None,
        llama_get_memory=lambda context: context,
        llama_memory_clear=lambda context, _data: context.text.clear(),
        llama_memory_seq_rm=cut,
        llama_model_is_recurrent=lambda _model: recurrent,
        llama_model_is_hybrid=lambda _model: False,
        llama_n_rs_seq=lambda _context: 0,
        llama_state_seq_get_size_ext=lambda context, _sequence, _flags: len(context.text),
        llama_state_seq_get_data_ext=copied,
        llama_state_seq_set_data_ext=put_back,
        llama_sampler_sample=lambda _sampler, context, row: context.sampled(row),
    )
    module.__dict__.update(
        FILL=512, Peer=FakePeer, begin=None, say_loaded=None,
        prompt=lambda ids, sequence, start, _size, every: [
            [(id, start + i, sequence, every or i == len(ids) - 1) for i, id in enumerate(ids)]
        ],
    )  # fmt: skip
    return module


@pytest.fixture(params=[False, True], ids=["cut", "copied"])
def drafting(request, monkeypatch):
    monkeypatch.setitem(sys.modules, "peer_llama", fake_peer_llama(request.param))
    monkeypatch.delitem(sys.modules, "benchmarks.peer_drafts", raising=False)
    made = import_module("benchmarks.peer_drafts").Drafting("model", 0, "small", LENGTH)
    yield made
    sys.modules.pop("benchmarks.peer_drafts", None)


KINDS = [("lookup", None), ("known", 1.0), ("known", 0.5), ("model", None), ("model", 0.5)]


@pytest.mark.parametrize(("kind", "right"), KINDS)
def test_llama_cpp_answers_with_drafts_as_without_in_fewer_steps(drafting, kind, right):
    plain = drafting.answer(PROMPT, COUNT, "none", 0, None, [])
    steps = drafting.model.steps
    assert (len(plain["tokens"]), plain["drafted"], steps) == (COUNT, 0, COUNT)
    found = drafting.answer(PROMPT, COUNT, kind, LENGTH, right, plain["tokens"])
    assert found["tokens"] == plain["tokens"]
    assert drafting.model.steps - steps == COUNT - found["accepted"]
    assert found["accepted"] > 0
    wrong = found["drafted"] - found["accepted"]
    assert (wrong > 0) == (right == 0.5)


# Answers the same 8 tokens, in half the time with drafts of 2, and ends when it is asked for a lookup.
PEER = """
import json, sys
print(json.dumps({"devices": ["a GPU"]}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["kind"] == "lookup":
        sys.exit(7)
    drafted = {0: 0, 1: 3, 2: 4}[asked["length"]]
    seconds = {0: 1.0, 1: 0.8, 2: 0.5}[asked["length"]] * 0.007
    told = {"tokens": list(range(asked["count"])), "seconds": seconds, "drafted": drafted, "accepted": 2}
    print(json.dumps(told), flush=True)
"""


def test_a_head_takes_its_steps_and_known_tokens_stand_in_for_its_own(tmp_path, fast_device):
    model = write_headed(tmp_path / "model.gguf", "qwen35")
    options = ["--heads", "--right", "1", "--lengths", "2", "-n", "12", "-r", "1", "--prompt", "8"]
    result = CliRunner().invoke(drafts.main, [str(model), *options, "--device", fast_device.adapter.name])
    assert result.exit_code == 0, result.output
    assert "another answer" not in result.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines() if line[:1] == "|"]
    assert [row[0] for row in rows[2:]] == ["none", "free, 100% right", "head, 100% right"]
    assert all(float(row[2]) > 0 for row in rows[2:])


def test_the_table_of_heads_has_a_row_for_each_length_and_acceptance(tmp_path, fast_device):
    model = write_headed(tmp_path / "model.gguf", "mimo2")
    options = ["--drafts", "1,2", "--right", "1", "--sequences", "2", "-n", "8", "-r", "1", "--prompt", "4"]
    result = CliRunner().invoke(head_drafts.main, [str(model), *options, "--device", fast_device.adapter.name])
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines() if line[:1] == "|"]
    assert [row[1:4] for row in rows[2:]] == [["2", "0", ""], ["2", "1", "100%"], ["2", "2", "100%"]]
    assert all(float(row[5]) > 0 and int(row[7][:-1]) > 60 for row in rows[3:])


def test_the_row_of_a_method_has_its_best_length_and_gain(tmp_path, monkeypatch, fast_device):
    script = tmp_path / "peer.py"
    script.write_text(PEER)
    monkeypatch.setattr(drafts, "SCRIPT", script)
    model = str(OWN / "tiny-llama.gguf")
    options = ["--right", "1", "--draft", model, "--lengths", "1,2", "-n", "8", "-r", "1", "--prompt", "8", "--lookup"]
    peers = ["--peer", f"X={sys.executable}", "--device", fast_device.adapter.name]
    result = CliRunner().invoke(drafts.main, [model, *peers, *options])
    assert result.exit_code == 0, result.output
    assert "llama.cpp X ended with 7" in result.stderr
    assert "another answer" not in result.stderr
    heads, _, none, lookup, free, small = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines() if line[:1] == "|"
    ]
    assert heads[0] == "drafts"
    assert none[5:7] == ["1,000.0 ± 0.0", "1.00"]
    assert [row[0] for row in (lookup, free, small)] == ["lookup", "free, 100% right", "draft model, 100% right"]
    assert all(float(row[2]) > 0 for row in (lookup, free, small))
    assert len(lookup) == 5
