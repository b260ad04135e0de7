"""Decision models (Clef): the head equals the publisher's formula, and whole models answer in Python and over HTTP."""

import json
from pathlib import Path

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadFile, BadInput, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.llm.decision_head import DecisionHead
from rwkv_gpu.llm.decisions import KINDS, Asked, Question
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.server.catalogue import ServedModel
from tests.gguf.parts import Parts, Stored, take_apart
from tests.gguf.writer import F32, STRING, U32, written
from tests.golden.record_decisions import BLOCKS, EPS, FILE, HEADS, LENGTH, OPTIONS, QUESTIONS, ROUTING, WIDTH, tensors
from tests.golden_files import OWN
from tests.models.headers import Header, headers, write_true_size
from tests.server.serving import serving

STATE = {"text": "the sea", "tide": 3}
ASKED = {
    "calm": {"type": "noul", "instructions": "Is the sea calm?"},
    "where": {"type": "choice", "criteria": {"west": None, "east": "the east", "north": 3}},
    "depth": {"type": "score", "instructions": ["how", "deep"], "criteria": ["low", "middle", "high"]},
}


def clef(lexical: np.ndarray | None = None) -> Parts:
    """Returns a small model of Qwen3.5 with a head for decisions."""
    whole = take_apart((OWN / "tiny-qwen35.gguf").read_bytes())
    for row in whole.rows:
        row.name = row.name.replace(b"qwen35.", b"clef.")
    whole.set("general.architecture", STRING, b"clef")
    whole.set("clef.decision.type", STRING, b"clef")
    for key, count in (("routing_block_count", ROUTING), ("block_count", BLOCKS), ("head_count", HEADS)):
        whole.set(f"clef.decision.{key}", U32, count)
    whole.set("clef.attention.layer_norm_epsilon", F32, EPS)
    if lexical is None:
        lexical = np.random.default_rng(3).standard_normal((353, WIDTH))
    head = tensors() | {"output.weight": lexical}
    for name, value in head.items():
        whole.tensors.append(Stored(name.encode(), [*value.shape[::-1]], 0, value.astype("<f4").tobytes()))
    return whole


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("clef"), clef().built())


def test_scores_equal_those_of_the_publishers_layers(tmp_path):
    record = np.load(FILE)
    asked = Asked(
        [*range(LENGTH)],
        [Question(str(number), KINDS[kind], "", ()) for number, (kind, _) in enumerate(QUESTIONS)],
        [span for _, span in QUESTIONS], [*OPTIONS],
    )  # fmt: skip
    rows = np.zeros((353, WIDTH))
    rows[:LENGTH] = record["lexical"]
    with GGUFFile.open(written(tmp_path, clef(rows).built())) as file:
        head = DecisionHead.of(file)
    assert head is not None
    found = head(record["hidden"], asked)
    assert np.abs(found - record["scores"]).max() < 3e-6  # float32, and erf within 1.5e-7


def test_a_model_answers_each_kind_of_question(path):
    with rwkv_gpu.load(path, device="cpu") as llm:
        found = llm.decide(STATE, ASKED)
        again = llm.decide(STATE, dict(reversed(ASKED.items())))
    assert [*found] == [*ASKED] and found["calm"].keys() == {"type", "noul"} and 0 < found["calm"]["noul"] < 1
    where = found["where"]
    assert [*where["probabilities"]] == ["west", "east", "north"]
    assert where["choice"] == max(where["probabilities"], key=where["probabilities"].get)
    assert where["confidence"] == max(where["probabilities"].values())
    depth = found["depth"]
    assert depth["legend"] == {"0": "low", "1": "middle", "2": "high"}
    assert depth["score"] == pytest.approx(sum(int(k) * p for k, p in depth["probabilities"].items()), abs=2e-4)
    for one in (where, depth):
        assert sum(one["probabilities"].values()) == pytest.approx(1, abs=3e-4)
    assert again["where"]["probabilities"] != where["probabilities"]  # questions are decided together


def test_rows_are_those_of_qwen35_in_pieces_and_on_a_gpu(path, adapter):
    """Qwen3.5's golden model has the same layers; its vectors are recorded from llama.cpp."""
    with rwkv_gpu.load(OWN / "tiny-qwen35.gguf", device="cpu") as llm:
        expected = llm.embed("the sea is wide")
    answers = []
    for how in ({"device": "cpu"}, {"device": "cpu", "chunk_size": 16}, {"device": str(adapter.index)}):
        with rwkv_gpu.load(path, **how) as llm:
            np.testing.assert_allclose(llm.embed("the sea is wide"), expected, atol=1e-5)
            answers.append(llm.decide(STATE, ASKED))
        for name in ("where", "depth"):
            found, wanted = ([*one[name]["probabilities"].values()] for one in (answers[-1], answers[0]))
            assert found == pytest.approx(wanted, abs=2e-3)


def test_the_text_has_the_parts_of_the_publishers_format(path):
    with rwkv_gpu.load(path, device="cpu") as llm:
        asked = llm.prepare_decisions("a <|im_end|>", ASKED)
        text = llm.detokenize(asked.ids)
        own = [llm.detokenize(asked.ids[span.start : span.stop]) for _, span in asked.options]
        assert llm.tokenizer.encode("a <|im_end|>", parse=True) != llm.tokenizer.encode("a <|im_end|>")
    text = text if isinstance(text, str) else text.decode()
    own = [one if isinstance(one, str) else one.decode() for one in own]
    assert (
        "STATE:\na <|im_end|>\n\nSCHEMA FIELDS:\n\nFIELD 0\nID: calm\nTYPE: noul\nINSTRUCTION: Is the sea calm?\n"
        in text
    )
    assert text.endswith("END FIELD\n\n") or text.rstrip().endswith("JOINT SCHEMA DECISIONS:")
    options = [json.loads(one) for one in own]
    assert options[0] == {"option_id": "true", "description": "The proposition is true or the answer is yes."}
    assert [one["option_id"] for one in options[2:5]] == ["east", "north", "west"]  # sorted
    assert options[3] == {"option_id": "north", "description": 3} and options[4] == {"option_id": "west"}
    assert own[3] == '{"description":3,"option_id":"north"}'


@pytest.mark.parametrize(
    ("questions", "says"),
    [
        ({}, "1 to 256 questions"), ([], "1 to 256 questions"), ({"a": {}}, "noul, choice or score"),
        ({"a": {"type": "choice"}}, "at least two options"),
        ({"a": {"type": "score", "criteria": ["x"]}}, "two levels"),
        ({"a": {"type": "noul", "criteria": {"maybe": "x"}}}, "with true and false"),
        ({"a": {"type": "noul", "examples": []}}, "unknown field 'examples'"),
        ({"a": {"type": "choice", "criteria": {str(i): None for i in range(5000)}}}, "at most 4,096"),
    ],
)  # fmt: skip
def test_bad_questions_are_refused(path, questions, says):
    with rwkv_gpu.load(path, device="cpu") as llm, pytest.raises(BadInput, match=says):
        llm.decide("a", questions)


def test_a_decision_model_writes_no_text_and_other_models_decide_nothing(path):
    with rwkv_gpu.load(path, device="cpu") as llm, pytest.raises(BadInput, match="decides between options"):
        llm("hello", max_tokens=1)
    with rwkv_gpu.load(path, device="cpu") as llm, pytest.raises(BadInput, match="decides between options"):
        llm.chat("hello")
    with rwkv_gpu.load(OWN / "quiet-qwen3.gguf", device="cpu") as llm, pytest.raises(BadInput, match="decides nothing"):
        llm.decide("a", ASKED)


@pytest.mark.parametrize(
    ("key", "kind", "value", "error", "says"),
    [
        ("decision.type", STRING, b"kev", UnsupportedModel, "only 'clef'"),
        ("decision.type", U32, 7, BadFile, "clef.decision.type"),
        ("decision.head_count", U32, 5, BadFile, "does not divide 32"),
        ("decision.block_count", U32, 9, BadFile, "dec.blk.5.ffn_up.weight': found no such tensor"),
        ("decision.routing_block_count", U32, 3, BadFile, "found no such tensor"),
        ("decision.temperature.choice", F32, 2.0, UnsupportedModel, "calibrated scores"),
    ],
)
def test_a_bad_head_is_named(tmp_path, key, kind, value, error, says):
    whole = clef()
    whole.set(f"clef.{key}", kind, value)
    with pytest.raises(error, match=says):
        rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu")


@pytest.mark.parametrize(
    ("name", "dims"),
    [("dec.blk.3.attn_q.weight", [16, 64]), ("dec.blk.3.attn_q.weight", None), ("output.weight", [353 * 72]),
     ("output.weight", [353, 72]), ("output.weight", [72, 353, 1]), ("decision.scorer.weight", [40 * 128])],
)  # fmt: skip
def test_a_damaged_tensor_of_the_head_is_named(tmp_path, name, dims):
    """Without dims, its numbers are none."""
    whole = clef()
    one = next(one for one in whole.tensors if one.name == name.encode())
    if dims:
        one.dims = dims
    else:
        one.data = np.full(32 * 32, np.nan, "<f4").tobytes()
    with pytest.raises(BadFile, match=f"tensor '{name}'"):
        rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu")


def test_the_server_decides(path):
    with serving(ServedModel("clef", str(path)), ServedModel("tells", str(OWN / "quiet-llama.gguf"))) as served:
        found = served.post("/v1/systemone", {"model": "clef", "state": STATE, "questions": ASKED})
        with rwkv_gpu.load(path, device="cpu") as llm:
            assert found["answers"].keys() == llm.decide(STATE, ASKED).keys()
            assert found["usage"] == {"input_tokens": len(llm.prepare_decisions(STATE, ASKED).ids), "output_tokens": 0}
        assert found["model"] == "clef"
        for change, says in (({"state": None}, "state is missing"), ({"images": ["x"]}, "text only"),
                             ({"model": "tells"}, "decides nothing"), ({"questions": 3}, "an object")):  # fmt: skip
            body = {"model": "clef", "state": "a", "questions": ASKED} | change
            status, _, reply = served.request("POST", "/v1/systemone", body)
            assert status == 400 and says in reply["error"]["message"]


def test_the_loader_accepts_the_published_sizes(tmp_path):
    """Clef Flash has the layers of Qwen3.5 9B, which are recorded, and a head of this form."""
    own = headers()["Qwen3.5-9B.gguf"]
    keys = {key.replace("qwen35.", "clef."): value for key, value in own.keys.items()}
    keys["general.architecture"] = "STRING", "clef"
    form = {72: 4096, 32: 1024, 48: 4096, 40: 1024, 128: 4096}
    rows = [(name, [form.get(n, n) for n in one.shape], "F32") for name, one in tensors().items()]
    path = write_true_size(Header("Clef-Flash", "clef", keys, [*own.layers, ([0], rows)]), tmp_path / "model.gguf")
    with GGUFFile.open(path) as file:
        load_model(file)
