"""Drafts in the library and the command line: the text is the same, and errors come before anything is loaded."""

import json
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.chat_stats import Totals
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.engine.speculation.speculator import Speculator
from rwkv_gpu.errors import BadInput, BadNumbers
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.llm import drafts
from rwkv_gpu.llm.drafts import DraftOptions, check_vocabulary, drafts_of
from rwkv_gpu.models.registry import load_model
from tests.gguf.parts import take_apart
from tests.gguf.writer import ARRAY
from tests.golden_files import OWN, golden

TEXT = "one two three one two three one two"


@pytest.fixture
def always(monkeypatch):
    """Makes drafts of the maximum length, regardless of time."""
    monkeypatch.setattr(drafts, "Speculator", partial(Speculator, always=True))


@pytest.mark.long
def test_lookup_gives_the_same_text_and_counts_accepted_drafts():
    settings = {"max_tokens": 60, "logit_bias": {}, "temperature": 0.0}
    with rwkv_gpu.load(device="cpu") as llm:
        plain = llm.generate(TEXT, **settings)
    with rwkv_gpu.load(device="cpu", lookup=True) as llm:
        drafted = llm.generate(TEXT, **settings)
        none = llm.generate(TEXT, **settings, draft_tokens=0)
    assert drafted.text == none.text == plain.text
    assert drafted.stats.drafted_tokens >= drafted.stats.accepted_tokens >= 0
    assert none.stats.drafted_tokens == plain.stats.drafted_tokens == 0


@pytest.mark.usefixtures("always")
def test_a_draft_model_gives_the_same_text():
    name = str(golden("tiny-llama.gguf"))
    with rwkv_gpu.load(name, device="cpu") as llm:
        plain = llm.generate([5, 6, 7], max_tokens=30, temperature=1.0, seed=3)
        counts = llm.activity
    assert (counts.verified, counts.chunks) == (0, counts.steps)
    with rwkv_gpu.load(name, device="cpu", draft=name, draft_tokens=4) as llm:
        drafted = llm.generate([5, 6, 7], max_tokens=30, temperature=1.0, seed=3)
        counts = llm.activity
    assert 0 < counts.verified < counts.chunks == counts.steps < 30
    assert drafted.tokens == plain.tokens
    assert drafted.stats.accepted_tokens == drafted.stats.drafted_tokens > 10


@pytest.mark.parametrize(("name", "most"), [("llama", 15), ("rwkv7", 7), ("falcon-h1", 7)])
def test_drafts_are_shorter_where_each_row_keeps_a_state(name, most):
    with GGUFFile.open(golden(f"tiny-{name}.gguf")) as file:
        with drafts_of(DraftOptions(lookup=True), file, load_model(file)) as drafts:
            assert drafts.most == most
        with drafts_of(DraftOptions(), file, load_model(file)) as drafts:
            assert drafts.most == 0


def test_a_draft_with_another_vocabulary_is_refused_in_one_line_with_exit_code_2():
    done = CliRunner().invoke(
        cli, ["generate", "--device", "cpu", "-p", "a", "--draft", str(golden("tiny-llama.gguf"))]
    )
    assert done.exit_code == 2
    assert "another vocabulary" in done.output or "a vocabulary of" in done.output
    assert len(done.output.splitlines()) == 1


def test_a_longer_vocabulary_with_the_same_tokens_is_accepted():
    check_vocabulary("a.gguf", ["a", "b"], ["a", "b", "[PAD]"])
    with pytest.raises(BadInput, match="token 1 differs"):
        check_vocabulary("a.gguf", ["a", "c"], ["a", "b"])
    with pytest.raises(BadInput, match="a vocabulary of 1 tokens"):
        check_vocabulary("a.gguf", ["a"], ["a", *map(str, range(1000))])


def test_impossible_options_are_refused():
    with pytest.raises(BadInput, match="at most 8"):
        rwkv_gpu.load(device="cpu", lookup=True, draft_tokens=9)
    with pytest.raises(BadInput, match="lookup is 1"):
        rwkv_gpu.load(device="cpu", lookup=1)


@pytest.mark.usefixtures("always")
def test_ids_that_a_draft_model_does_not_have_are_never_read_by_it(tmp_path):
    """A draft model with the same tokens may have fewer rows, because large vocabularies are padded."""
    name = golden("tiny-llama.gguf")
    parts = take_apart(name.read_bytes())
    tokens = parts.row("tokenizer.ggml.tokens").value
    for one in parts.tensors:
        if len(tokens) in one.dims:
            one.dims = [len(tokens) - 20 if dim == len(tokens) else dim for dim in one.dims]
    for row in parts.rows:
        if row.kind == ARRAY and len(row.value) == len(tokens):
            row.value = row.value[:-20]
    draft = tmp_path / "draft.gguf"
    draft.write_bytes(parts.built())
    unread = [len(tokens) - 1, 5, 6]
    settings = {"max_tokens": 24, "temperature": 1.0, "seed": 3, "top_p": 1.0}
    with rwkv_gpu.load(name, device="cpu") as llm:
        plain = [llm.generate(ids, **settings).tokens for ids in (unread, [5, 6, 7])]
    with rwkv_gpu.load(name, device="cpu", draft=draft, draft_tokens=4) as llm:
        drafted = [llm.generate(ids, **settings) for ids in (unread, [5, 6, 7])]
    assert [one.tokens for one in drafted] == plain
    assert not drafted[0].stats.drafted_tokens
    assert drafted[1].stats.drafted_tokens


@pytest.mark.parametrize("what", ["damaged", "cut", "text", "unknown"])
def test_a_damaged_draft_model_is_reported_in_one_line_and_the_model_answers_without_it(tmp_path, what):
    path, model = tmp_path / "draft.gguf", OWN / "quiet-rwkv7.gguf"
    data = model.read_bytes()
    made = {
        "damaged": data[:200] + b"\xff" * 64 + data[264:],
        "cut": data[: len(data) // 2],
        "text": b"no model",
        "unknown": data.replace(b"rwkv7", b"rwkv9"),
    }
    path.write_bytes(made[what])
    with rwkv_gpu.load(model, device="cpu") as plain:
        expected = plain.generate("The sea", max_tokens=6).tokens
    with rwkv_gpu.load(model, device="cpu", draft=path) as llm:
        assert llm.generate("The sea", max_tokens=6).tokens == expected
        assert llm.info.draft_fault and "\n" not in llm.info.draft_fault
    result = CliRunner().invoke(
        cli, ["generate", str(model), "--draft", str(path), "-p", "a", "-n", "2", "--device", "cpu"]
    )
    assert result.exit_code == 0
    [line] = [line for line in result.stderr.splitlines() if "draft" in line]
    assert line.startswith("rwkv-gpu: the draft model is not used: ")


def test_a_missing_draft_model_is_an_error(tmp_path):
    with pytest.raises(BadInput, match="No such file"):
        rwkv_gpu.load(OWN / "quiet-rwkv7.gguf", device="cpu", draft=tmp_path / "none.gguf")


class Measured(Speculator):
    """A speculator whose gain is known."""

    def __init__(self, *how):
        super().__init__(*how, always=True)
        self.gain.add(2.0, 3.0)


def test_the_gain_is_in_every_report(monkeypatch):
    monkeypatch.setattr(drafts, "Speculator", Measured)
    name = str(golden("tiny-llama.gguf"))
    asked = ["generate", name, "--draft", name, "-p", "a", "-n", "12", "--device", "cpu", "--temp", "0"]
    plain, as_json = (CliRunner().invoke(cli, [*asked, *more]) for more in ((), ("--json",)))
    assert "drafted tokens right, 1.50 times as fast as without" in plain.stderr
    assert json.loads(as_json.stdout)["draft_gain"] == 1.5
    with rwkv_gpu.load(name, device="cpu", draft=name) as llm:
        totals = Totals()
        totals.add(llm.generate("a", max_tokens=12, temperature=0.0))
        assert llm.activity.gain == 1.5
    assert totals.lines()[-1].endswith("of them accepted, 1.50 times as fast as without")
    with rwkv_gpu.load(name, device="cpu") as llm:
        assert llm.generate("a", max_tokens=3).stats.draft_gain is None
        assert llm.activity.gain is None


@pytest.mark.usefixtures("always")
def test_a_draft_model_whose_numbers_are_nan_changes_no_answer(tmp_path):
    name, draft = golden("tiny-llama.gguf"), tmp_path / "draft.gguf"
    parts = take_apart(name.read_bytes())
    [norm] = [one for one in parts.tensors if one.name == b"output_norm.weight"]
    norm.data = np.full(len(norm.data) // 4, 3e38, np.float32).tobytes()
    draft.write_bytes(parts.built())
    settings = {"max_tokens": 12, "temperature": 1.0, "seed": 3}
    with rwkv_gpu.load(name, device="cpu") as llm:
        plain = llm.generate([5, 6, 7], **settings).tokens
    with rwkv_gpu.load(draft, device="cpu") as llm, pytest.raises(BadNumbers):
        llm.generate([5, 6, 7], **settings)
    with rwkv_gpu.load(name, device="cpu", draft=draft, draft_tokens=4, sequences=2) as llm:
        assert [one.tokens for one in llm.generate([[5, 6, 7]] * 3, **settings)] == [plain] * 3
