"""The library accepts what users of vLLM, llama-cpp-python and other libraries usually type."""

import asyncio
import json
import subprocess
import sys

import pydantic
import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadInput
from tests.golden_files import OWN

TINY = str(OWN / "tiny-rwkv7.gguf")
MESSAGES = [{"role": "user", "content": "hello"}]


class Place(pydantic.BaseModel):
    """A schema, given as a class."""

    name: str = pydantic.Field(max_length=5)
    deep: bool


@pytest.fixture(scope="module")
def llm():
    with rwkv_gpu.load(device="cpu") as llm:
        yield llm


def test_the_package_lists_its_public_names_and_no_others():
    code = "import rwkv_gpu; print(sorted(dir(rwkv_gpu)) == sorted(rwkv_gpu.__all__)); import rwkv_gpu.llm.hub; "
    code += "print(set(dir(rwkv_gpu)) == set(rwkv_gpu.__all__))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_the_class_opens_a_model_as_in_vllm():
    with rwkv_gpu.LLM(TINY, device="cpu") as one, rwkv_gpu.LLM(model="builtin", max_num_seqs=2, device="cpu") as two:
        assert isinstance(one, rwkv_gpu.LLM)
        assert one.info.fingerprint != two.info.fingerprint
        assert two.info.sequences == 2
        (answer,) = one.generate(["a"], rwkv_gpu.SamplingParams(max_tokens=2))
        assert answer.prompt == "a"
        assert (answer.outputs[0].text, answer.outputs[0].finish_reason) == (answer.text, "length")
    with rwkv_gpu.load(TINY, device="cpu") as three:
        assert type(three) is rwkv_gpu.LLM


def test_options_of_llama_cpp_python_are_accepted():
    options = {"n_ctx": 0, "n_threads": 4, "n_gpu_layers": -1, "verbose": False, "n_batch": 64}
    options |= {"use_mmap": True, "flash_attn": True, "n_ubatch": 512, "trust_remote_code": False}
    with rwkv_gpu.LLM(model_path=TINY, device="cpu", **options) as llm:
        assert llm.generate("a", max_tokens=1).tokens
    for name in ("verbose", "n_threads"):
        with pytest.raises(BadInput, match=f"{name} is"):
            rwkv_gpu.load(TINY, device="cpu", **{name: "loud"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contxt": 5}, "contxt is not an option of load; did you mean context?"),
        ({"n_gpu_layer": 5}, "did you mean n_gpu_layers?"),
        ({"xyzzy": 5}, "xyzzy is not an option of load; help(rwkv_gpu.load) lists the names"),
        ({"Device": "cpu"}, "Device is not an option of load; did you mean device?"),
        ({"context": 64, "n_ctx": 32}, "context is given twice, also as n_ctx"),
        ({"seed": 1}, "seed is not an option of load; generate and chat take it"),
        ({"max_new_tokens": 1}, "max_new_tokens is not an option of load; generate and chat take it"),
        ({"gpu_memory_utilization": 0.9}, 'give gpu_memory, a size such as "8G"'),
    ],
)
def test_a_misspelt_option_names_the_nearest(options, message):
    for function in (rwkv_gpu.load, rwkv_gpu.LLM):
        with pytest.raises(BadInput) as error:
            function(TINY, **options)
        assert message in str(error.value)


def test_a_misspelt_setting_names_the_nearest(llm):
    with pytest.raises(BadInput, match="temprature is not a setting; did you mean temperature"):
        llm.generate("a", temprature=1.0)


def test_an_argument_of_another_method_or_library_names_its_place(llm):
    for call, message in (
        (lambda: llm.chat(sytem="Be brief."), "sytem is not a setting; did you mean system?"),
        (lambda: llm.generate("a", system="Be brief."), "system is not a setting; llm.chat takes it"),
        (lambda: llm.generate(["a"], sampling_params=rwkv_gpu.SamplingParams()), "give it as params"),
        (lambda: llm.generate("a", images=["a.png"]), "images is not a setting; the send of a chat takes it"),
        (lambda: llm.chat().send("a", image="a.png"), "give images, a list, to the send of a chat"),
    ):
        with pytest.raises(BadInput) as error:
            call()
        assert message in str(error.value)


def test_an_empty_text_among_others_is_named(llm):
    with pytest.raises(BadInput, match=r"texts\[1\] is empty; give a text"):
        llm.embed(["a", ""])


def test_a_pydantic_class_is_the_schema_and_the_type_of_the_result(llm, tmp_path):
    chat = llm.chat()
    for done in (
        llm.generate("A place: ", schema=Place, max_tokens=40),
        llm.generate(["A place: ", "Two"], schema=Place, max_tokens=40)[1],
        chat.send("Name a place", schema=Place, max_tokens=40, temperature=0.0),
        llm.chat_batch([MESSAGES], schema=Place, max_tokens=40)[0],
        asyncio.run(llm.agenerate("A place: ", schema=Place, max_tokens=40)),
    ):
        assert isinstance(done.parsed, Place)
        assert json.loads(done.text) == done.parsed.model_dump()
    plain = llm.generate("A place: ", schema={"type": "integer"}, max_tokens=4)
    assert isinstance(plain.parsed, int)
    with pytest.raises(BadInput, match="cannot be parsed"):
        _ = llm.generate("The sea", max_tokens=3).parsed
    chat.settings = {**chat.settings, "schema": Place}
    chat.save(tmp_path / "chat")
    saved = llm.load_chat(tmp_path / "chat")
    assert saved.settings["schema"] == Place.model_json_schema()


def test_a_model_works_in_async_with_and_answers_in_async_for():
    async def answers() -> list[str]:
        async with rwkv_gpu.LLM(device="cpu") as llm:
            streams = llm.astream("The sea", max_tokens=5), llm.stream("The sea", max_tokens=5)
            found = ["".join([event.text async for event in stream]) for stream in streams]
            async for _ in (long := llm.stream("The sea", max_tokens=1000, ignore_eos=True)):
                break
            await asyncio.sleep(0)  # the loop closes the abandoned stream
            long.close()
            assert long.completion.finish_reason == "abort"
            return found

    with rwkv_gpu.load(device="cpu") as llm:
        assert asyncio.run(answers()) == [llm.generate("The sea", max_tokens=5).text] * 2


def test_the_answer_to_a_prompt_of_the_chat_template_ends_with_the_turn(llm):
    told = llm.chat_batch([MESSAGES], temperature=0.0, max_tokens=60)[0]
    assert told.finish_reason == "stop"
    for tokenize in (True, False):
        prompt = llm.apply_chat_template(MESSAGES, tokenize=tokenize)
        for done in (
            llm.generate(prompt, max_tokens=60),
            llm.generate([prompt, "other"], max_tokens=60)[0],
            llm.generate_batch([prompt], max_tokens=60)[0],
            llm.stream(prompt, max_tokens=60).wait(),
        ):
            assert done.finish_reason == "stop"
            assert done.text.strip() == told.text.strip()
    assert isinstance(llm.apply_chat_template(MESSAGES, tokenize=False), str)
    assert isinstance(llm.apply_chat_template(MESSAGES), list)


def test_no_new_tokens_are_an_empty_answer_and_the_prompt_is_computed(llm):
    text = "The sea is wide and deep, and the ships are far away from here." * 3
    done = llm.generate(text, max_tokens=0)
    assert (done.text, done.tokens, done.finish_reason) == ("", (), "length")
    assert done.stats.prompt_tokens == len(llm.tokenize(text, special=True))
    assert llm.generate(text, schema=Place, max_tokens=0).text == ""
    assert [one.text for one in llm.generate(["a", "b"], max_tokens=0)] == ["", ""]
    assert asyncio.run(llm.agenerate(text, max_tokens=0)).text == ""
    with pytest.raises(BadInput, match="max_tokens is -2"):
        llm.generate(text, max_tokens=-2)
