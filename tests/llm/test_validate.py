"""A wrong argument is refused by name before any work is done."""

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadInput
from tests.golden_files import OWN

PATH = OWN / "tiny-llama.gguf"
HI = [{"role": "user", "content": "hi"}]


def lost_settings(chat):
    chat.settings = None
    return chat


WRONG = {
    "prompt is None": lambda llm: llm.generate(None),
    "prompt is a bytes": lambda llm: llm.generate(b"abc"),
    "prompt holds 1.5": lambda llm: llm.generate([1, 1.5]),
    "prompt holds True": lambda llm: llm.stream([True]),
    "prompt holds 'a'": lambda llm: llm.stream(["a"]),
    "stop holds array": lambda llm: llm.generate("a", stop=np.array(0.5)),
    "stop_ids holds array": lambda llm: llm.generate("a", stop_ids=np.array(0.5)),
    "dry_breakers holds array": lambda llm: llm.generate("a", dry_breakers=np.array(0.5)),
    "truncate is array": lambda llm: llm.generate("a", truncate=np.array([1, 2])),
    "settings is a NoneType": lambda llm: lost_settings(llm.chat(template="chatml")).send("a"),
    "n is 0": lambda llm: llm.generate("a", n=0),
    "n is True": lambda llm: llm.generate(["a"], n=True),
    "conversations is a str": lambda llm: llm.chat_batch("hi"),
    "temperature is given twice, as temp and as temperature": lambda llm: llm.generate("a", temp=1, temperature=1),
    "nothing is not a setting": lambda llm: llm.generate("a", nothing=1),
    "logits_processors holds 3": lambda llm: llm.generate("a", logits_processors=3),
    "user is 3": lambda llm: llm.create_completion("a", user=3),
    "echo is 'yes'": lambda llm: llm.create_completion("a", echo="yes"),
    "best_of is 2": lambda llm: llm.create_completion("a", best_of=2),
    "this model has no tokens to fill in": lambda llm: llm.create_completion("a", suffix="b"),
    "stream is 1": lambda llm: llm.create_completion("a", stream=1),
    "encoding_format is 'int8'": lambda llm: llm.create_embedding("a", encoding_format="int8"),
    "tokenize is 1": lambda llm: llm.apply_chat_template(HI, tokenize=1),
    "prompt is 3": lambda llm: llm.generate_batch([3]),
    "prompts is None": lambda llm: llm.generate_batch(None),
    "progress is 3": lambda llm: llm.generate_batch(["a"], progress=3),
    "on_prompt is 3": lambda llm: llm.stream("a", on_prompt=3),
    "ids is a str": lambda llm: llm.logits("abc"),
    "ids holds 2.0": lambda llm: llm.detokenize([2.0]),
    "chunk_size is -1": lambda llm: llm.logits([1, 2], chunk_size=-1),
    "text is 3": lambda llm: llm.tokenize(3),
    "text is None": lambda llm: llm.logprobs(None),
    "token id 999999 at place 1": lambda llm: llm.perplexity([1, 999999]),
    "window is 2.5": lambda llm: llm.perplexity("hello world", window=2.5),
    "texts is None": lambda llm: llm.embed(None),
    "texts is empty": lambda llm: llm.embed([]),
    r"texts\[1\] is 3": lambda llm: llm.embed(["a", 3]),
    "template is 3": lambda llm: llm.chat(template=3),
    "think is 'yes'": lambda llm: llm.chat(template="chatml", think="yes"),
    "messages must be a list": lambda llm: llm.chat(template="chatml", messages="abc"),
    "path is None": lambda llm: llm.load_chat(None),
    "stream is 'yes'": lambda llm: llm.create_chat_completion(HI, stream="yes"),
    "stream_options is 'usage'": lambda llm: llm.create_chat_completion(HI, stream_options="usage"),
    "stream_options.include_usage is 'yes'": lambda llm: llm.create_chat_completion(
        HI, stream_options={"include_usage": "yes"}
    ),
    "logit_bias names 1.5": lambda llm: llm.create_chat_completion(HI, logit_bias={1.5: 1}),
    "device is None": lambda llm: rwkv_gpu.load(PATH, device=None),
    "device is ''": lambda llm: rwkv_gpu.load(PATH, device=""),
    "path is 3": lambda llm: rwkv_gpu.load(3),
    "tuned is 3": lambda llm: rwkv_gpu.load(PATH, tuned=3),
    r"kv is \['f16'\]": lambda llm: rwkv_gpu.load(PATH, device="cpu", kv=["f16"]),
}


@pytest.fixture(scope="module")
def llm():
    with rwkv_gpu.load(PATH, device="cpu", context=64) as llm:
        yield llm


@pytest.mark.parametrize("message", WRONG)
def test_the_error_names_the_wrong_argument(llm, message):
    with pytest.raises(BadInput, match=f"^{message}"):
        WRONG[message](llm)


def test_a_context_of_one_token_has_no_perplexity():
    with rwkv_gpu.load(PATH, device="cpu", context=1) as llm, pytest.raises(BadInput, match="context is 1"):
        llm.perplexity("hello world")


def test_a_device_may_be_given_by_its_number(adapter):
    with rwkv_gpu.load(PATH, device=adapter.index, context=64) as llm:
        assert llm.info.device == adapter.name
