"""A constrained answer always has the required form. The models here are small and untrained."""

import json
import math
import re
import sys

import numpy as np
import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.errors import BadGrammar, BadInput, BadNumbers, MissingExtra
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.sampling import allowed
from rwkv_gpu.text.grammar import Form, Grammars
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.golden_files import golden

# One tokenizer of each kind: rwkv, spm and bpe.
MODELS = ("tiny-rwkv7.gguf", "tiny-llama.gguf", "tiny-qwen3.gguf")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 6},
        "kind": {"enum": ["bird", "fish"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 9},
        "seen": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "kind", "legs", "seen"],
    "additionalProperties": False,
}


class Speaker:
    """A random model that generates what a form allows."""

    def __init__(self, name):
        with GGUFFile.open(golden(name)) as file:
            model = load_model(file)
            self.tokenizer = load_tokenizer(file.metadata)
            self.engine = Engine(HostRunner(file, model, chunk_size=16, context=512))
        self.grammars = Grammars(self.tokenizer, model.vocabulary)

    def say(self, form, seed=0, after="", max_tokens=250, **settings):
        """Returns the text of an answer, and its finish reason."""
        grammar = self.grammars.grammar(form, after=after)
        settings = {"temperature": 1.5, "seed": seed, "stop_ids": grammar.stop_ids, **settings}
        params = SamplingParams(max_tokens=max_tokens, **settings)
        self.engine.add(Request([5, 6, 7], params, grammar))
        said = []
        while self.engine.busy:
            for update in self.engine.step():
                assert update.error is None, update.error
                said += [token.token for token in update.sampled]
        return b"".join(self.tokenizer.piece(token) for token in said).decode(errors="replace"), update.finish_reason


@pytest.fixture(scope="module", params=MODELS)
def speaker(request):
    return Speaker(request.param)


def fits(value):
    """True if a value fits SCHEMA."""
    return (
        set(value) == set(SCHEMA["properties"])
        and isinstance(value["name"], str)
        and 1 <= len(value["name"]) <= 6
        and value["kind"] in ("bird", "fish")
        and type(value["legs"]) is int
        and 0 <= value["legs"] <= 9
        and 1 <= len(value["seen"]) <= 3
        and all(type(item) is bool for item in value["seen"])
    )


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_by_a_schema_parses_and_fits_it(speaker, seed):
    text, reason = speaker.say(Form.of(schema=SCHEMA), seed)
    assert fits(json.loads(text)), text
    assert reason == "stop"


def test_an_answer_by_a_regular_expression_matches_it(speaker):
    for seed in range(4):
        text, reason = speaker.say(Form.of(regex=r"[a-f]{2,5}-(19|20)\d\d"), seed)
        assert re.fullmatch(r"[a-f]{2,5}-(19|20)\d\d", text), text
        assert reason == "stop"


@pytest.mark.parametrize(
    "grammar",
    [
        'start: item ("," item){1,3} "."\nitem: /[a-c]/ | "(" item ")"',
        'root ::= item ("," item){1,3} "."\nitem ::= [a-c] | "(" item ")"',
    ],
    ids=["lark", "gbnf"],
)
def test_an_answer_by_a_grammar_is_a_sentence_of_its_language(speaker, grammar):
    for seed in range(3):
        text, _ = speaker.say(Form.of(grammar=grammar), seed, temperature=0.8)
        flat = text.replace("(", "").replace(")", "")
        assert re.fullmatch(r"[a-c](,[a-c]){1,3}\.", flat) and text.count("(") == text.count(")"), text


def test_gbnf_names_tokens_by_their_id_and_by_their_text_and_excludes_them(speaker):
    tokenizer, size = speaker.tokenizer, speaker.tokenizer.vocab_size
    [hello] = tokenizer.encode("hello")[-1:]

    def may(grammar):
        return np.flatnonzero(allowed(speaker.grammars.grammar(Form.of(grammar=grammar)).mask(), size)).tolist()

    assert may(f'root ::= part "b"\npart ::= <[{hello}]>+') == [hello]
    others = may(f'root ::= !<[{hello}]> "b"')
    assert hello not in others and len(others) > size // 2
    special = [token for token in range(size) if re.fullmatch("<[a-z|_/]+>", name(tokenizer, token))]
    special = [token for token in special if tokenizer.encode(name(tokenizer, token), parse=True) == [token]]
    for token in special[:3]:
        assert may(f"root ::= {name(tokenizer, token)} <[{hello}]>") == [token]
        assert token not in may(f"root ::= !{name(tokenizer, token)}")
    with pytest.raises(BadGrammar, match="<no token> is not one token"):
        may("root ::= <no token>")


def name(tokenizer, token):
    return tokenizer.piece(token, special=True).decode("utf-8", "replace")


def test_an_answer_may_end_where_its_form_is_complete_and_nowhere_else(speaker):
    grammar = speaker.grammars.grammar(Form.of(regex="ab?"))
    ends = sorted(grammar.stop_ids)
    assert ends
    size = speaker.tokenizer.vocab_size
    assert not allowed(grammar.mask(), size)[ends].any()
    grammar.accept(speaker.tokenizer.encode("xa")[-1])
    may = allowed(grammar.mask(), size)
    assert may[ends].all() and may[speaker.tokenizer.encode("xb")[-1]]
    assert not grammar.done
    grammar.accept(speaker.tokenizer.encode("xb")[-1])
    assert grammar.done


def test_a_bias_never_changes_a_text_that_the_form_fixes(speaker):
    """The form decides which tokens are possible, and a bias their order; a ban of the last one is an error."""
    text = "The sea is calm."
    form = Form("regex", re.escape(text))
    grammar = speaker.grammars.grammar(form)
    first = np.flatnonzero(allowed(grammar.mask(), speaker.engine._runner.vocabulary)).tolist()
    tokens = {*speaker.tokenizer.encode(text), *first}
    for bias in (-1000.0, 1000.0):
        for more in ({}, {"typical_p": 0.9}, {"temperature": 0.0}):
            settings = {"logit_bias": dict.fromkeys(tokens, bias), **more}
            assert speaker.say(form, **settings) == (text, "stop"), settings
    for more in ({}, {"typical_p": 0.9}):
        params = SamplingParams(max_tokens=9, logit_bias=dict.fromkeys(first, -math.inf), **more)
        speaker.engine.add(Request([5, 6, 7], params, speaker.grammars.grammar(form)))
        updates = []
        while speaker.engine.busy:
            updates += speaker.engine.step()
        assert isinstance(updates[-1].error, BadNumbers)
        assert "no token is possible" in str(updates[-1].error)


def test_thoughts_are_free_and_the_form_begins_after_them(speaker):
    grammar, size = speaker.grammars.grammar(Form.of(regex="[xyz]{3}"), after="</think>"), speaker.tokenizer.vocab_size
    for token in speaker.tokenizer.encode("So 7 < 8, then.</think>"):
        may = allowed(grammar.mask(), size)
        assert may.sum() == size - len(grammar.stop_ids) and not may[sorted(grammar.stop_ids)].any()
        grammar.accept(token)
    text = {speaker.tokenizer.piece(int(token)) for token in np.flatnonzero(allowed(grammar.mask(), size))}
    assert text == {b"x", b"y", b"z"}


def test_an_end_token_that_is_text_may_end_only_a_complete_answer():
    with GGUFFile.open(golden("tiny-rwkv7.gguf")) as file:
        tokenizer = load_tokenizer(file.metadata)
    [end] = tokenizer.encode("\n\n")
    grammar = Grammars(tokenizer, tokenizer.vocab_size, frozenset([end])).grammar(Form.of(regex=r"a[\n]*"), after="K")
    assert allowed(grammar.mask(), tokenizer.vocab_size)[end]  # it may occur in reasoning
    for text, may in (("K", False), ("a", True)):
        grammar.accept(tokenizer.encode(text)[0])
        assert allowed(grammar.mask(), tokenizer.vocab_size)[end] == may
    grammar.accept(end)
    assert grammar.done


def test_no_mask_allows_a_token_that_the_grammar_refuses(speaker):
    rng = np.random.default_rng(0)
    spaced = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    piece = speaker.tokenizer.piece
    for _ in range(20):
        grammar = speaker.grammars.grammar(Form.of(schema=spaced))
        for _ in range(60):
            may = np.flatnonzero(allowed(grammar.mask(), speaker.tokenizer.vocab_size)).tolist()
            spaces = [token for token in may if not piece(token).strip()]
            token = int(rng.choice(spaces if spaces and rng.random() < 0.7 else may))
            if token in grammar.stop_ids:
                break
            grammar.accept(token)  # raises where it refuses
            if grammar.done:
                break


def test_masks_have_a_bit_for_each_token_of_the_model(speaker):
    mask = Grammars(speaker.tokenizer, 1000).grammar(Form.of(regex="a")).mask()
    assert mask.dtype == np.uint32 and mask.shape == (32,)
    assert not allowed(mask, 1000)[speaker.tokenizer.vocab_size :].any()


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ({"regex": "[ab"}, "regular expression.*unclosed"),
        ({"grammar": "start: missing"}, "missing"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"schema": "{"}, "JSON schema"),
        ({"schema": {"type": "shoe"}}, "JSON schema.*shoe"),
    ],
    ids=str,
)
def test_a_form_that_cannot_be_used_is_refused_with_the_reason(speaker, form, names):
    with pytest.raises(BadGrammar, match=names) as caught:
        speaker.grammars.grammar(Form.of(**form))
    assert "\n" not in str(caught.value)


def test_an_answer_has_one_form():
    assert Form.of() is None
    assert Form.of(schema=True) == Form("schema", "{}")
    with pytest.raises(BadInput, match="schema and regex"):
        Form.of(schema={}, regex="a")
    with pytest.raises(BadInput, match="regex is 5"):
        Form.of(regex=5)
    with pytest.raises(BadInput, match="not JSON"):
        Form.of(schema={"const": {1, 2}})


def test_without_the_package_the_error_has_the_command(speaker, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtra, match="pip install llguidance"):
        Grammars(speaker.tokenizer, 300)
