"""Models in the form of published files load, tokenise as llama.cpp does, embed or chat, and stop."""

import functools
import json
from functools import partial

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadTemplate
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import MODELS
from rwkv_gpu.text.template import ChatTemplate
from tests.gguf.parts import take_apart
from tests.gguf.writer import written
from tests.golden.record_published import FILE, TEXTS
from tests.golden_files import OWN
from tests.models.headers import header_of, headers, with_keys, with_tensors
from tests.models.published import TEMPLATES, Published, file_of, published
from tests.models.turns import TURNS
from tests.test_docs import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::rwkv_gpu.models.differences.AnswersDiffer")

RECORD = json.loads(FILE.read_text())
MESSAGES = [{"role": "user", "content": "hello world"}]
FORMS = {form.model: form for form in published()}
LLAMA_VOCABULARY = ("llama", None)  # golden models whose vocabulary is not a published one


@functools.cache
def golden_forms() -> dict[str, str]:
    """Returns the golden models that already have the tokenizer of a published file, by architecture."""
    found = {}
    for path in sorted(OWN.glob("tiny-*.gguf")):
        with GGUFFile.open(path) as file:
            arch, meta = file.str("general.architecture"), file.metadata
            if (meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")) != LLAMA_VOCABULARY:
                found[arch] = path.name
    return found


def check_answers(llm: rwkv_gpu.LLM, ends: int) -> None:
    """Checks that an answer runs to its limit, and stops at its end token. A chat also stops at its end of turn."""
    fields = {"max_tokens": 3, "temperature": 0}
    ids = {ends}
    try:
        ids |= llm.chat_format.stop_ids
    except BadTemplate:  # a base model
        answer = partial(llm.create_completion, TEXTS[0], **fields)
    else:
        answer = partial(llm.create_chat_completion, MESSAGES, **fields)
    never = {str(one): -100.0 for one in ids | llm.tokenizer.stop_ids}
    assert answer(logit_bias=never)["usage"]["completion_tokens"] == 3
    for one in ids:
        stopped = answer(logit_bias={str(one): 100.0})
        assert stopped["choices"][0]["finish_reason"] == "stop" and stopped["usage"]["completion_tokens"] <= 1


@pytest.mark.parametrize("model", FORMS)
def test_a_published_form_loads_reads_texts_as_llama_cpp_does_and_answers(model, tmp_path):
    form: Published = FORMS[model]
    with rwkv_gpu.load(written(tmp_path, file_of(form).built()), device="cpu") as llm:
        for text, ids in zip(TEXTS, RECORD[model], strict=True):
            assert llm.tokenize(text, special=True, parse=True) == ids
        if llm.info.encoder:
            [vector] = llm.embed([TEXTS[0]])
            assert np.isfinite(vector).all() and abs(np.linalg.norm(vector) - 1) < 1e-5
            return
        end = form.role("eos")
        assert end is not None
        [ends] = llm.tokenize(end, parse=True)
        check_answers(llm, ends)
        turns = TURNS.get(TEMPLATES.get(model, ""))
        if turns:
            assert llm.chat_format.stop_ids == frozenset(llm.tokenize(turns.end, parse=True, special=False))


@pytest.mark.parametrize("name", TURNS)
def test_a_template_of_our_own_writes_the_turns_of_its_table(name):
    turns, chat = TURNS[name], ChatTemplate(TURNS[name].template())
    said = [{"role": role, "content": text} for role, text in (("system", "A"), ("user", "B"), ("assistant", "C"))]
    asked = (turns.system or "{}\n\n").replace("{}", "A")
    asked = asked + turns.question.replace("{}", "B") if turns.system else turns.question.replace("{}", f"{asked}B")
    expected = turns.begin + asked + turns.answer.replace("{}", "C")
    assert chat.render(said, add_generation_prompt=False) == expected
    again = turns.question.replace("{}", "D") + turns.opening
    assert chat.render([*said, {"role": "user", "content": "D"}], add_generation_prompt=True) == expected + again


def test_golden_models_with_a_published_tokenizer_answer_and_stop(tmp_path):
    for arch in sorted(golden_forms().keys() - {form.arch for form in FORMS.values()}):
        whole = take_apart((OWN / golden_forms()[arch]).read_bytes())
        with_keys(whole, header_of(whole, arch))
        with_tensors(whole, header_of(whole, arch))
        with rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu") as llm:
            ends = next((row.value for row in whole.rows if row.name == b"tokenizer.ggml.eos_token_id"), 0)
            check_answers(llm, ends)


def test_every_reference_model_has_a_record():
    assert set(RECORD) == set(FORMS)
    assert {form.arch for form in FORMS.values()} <= set(MODELS)


def test_the_guide_says_what_is_known_of_the_published_files_of_each_family():
    """Each family has the tokenizer of a published file, and a recorded header at full size."""
    text = (ROOT / "docs/models.md").read_text()
    forms = {form.arch for form in FORMS.values()} | golden_forms().keys()
    full = {header.arch for header in headers().values()}
    assert set(MODELS) == forms == full
    assert "the header of a published model of every family" in text


def test_tokens_of_images_are_never_sampled(tmp_path):
    form = FORMS["facebook/chameleon-7b"]
    images = [text for _, text in form.special if text.startswith("IMGIMG")]
    with rwkv_gpu.load(written(tmp_path, file_of(form).built()), device="cpu") as llm:
        ids = [llm.tokenize(text, parse=True)[-1] for text in images]
        wanted = {str(one): 1000.0 for one in (*ids, 5)}
        answer = llm.create_completion("hello", max_tokens=3, temperature=0, logit_bias=wanted)
        assert len(ids) == 2 and answer["choices"][0]["text"] == 3 * llm.detokenize([5])
