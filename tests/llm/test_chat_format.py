"""The prompt of a chat's next turn continues with the generated ids, for each template."""

import pytest

from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.llm.chat_format import ChatFormat, Message
from rwkv_gpu.llm.completion import Completion, Stats
from rwkv_gpu.llm.reader import Ends, Reader
from rwkv_gpu.text.template import ChatTemplate
from rwkv_gpu.text.thinking import marks_of
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.golden_files import golden
from tests.text import template_matrix

Q = Message("user", "Hi")


def chat_format(name, template=None):
    with GGUFFile.open(golden(name)) as file:
        return ChatFormat(load_tokenizer(file.metadata), ChatTemplate.from_metadata(file.metadata, name=template), 4096)


def completion(mine, text):
    return Completion(text, tuple(mine.tokenizer.encode(text, parse=True)), "stop", Stats(0, 0, 0, 0, 0))


def talk(mine, said, stopped=None, think=None):
    """Returns the first prompt, its transcript with the answer, and the second prompt."""
    first = mine.prompt([Q.for_template()], (), think)
    message, transcript = first.answer(mine.tokenizer, completion(mine, said), stopped)
    second = mine.prompt([m.for_template() for m in (Q, message, Q)], [transcript], think)
    return first, transcript, second


@pytest.mark.parametrize(
    ("name", "said", "stopped"),
    [
        ("rwkv7-mini-F16.gguf", " Hello there.\n\n", "\n\n"),
        ("qwen3-small-Q8_0.gguf", "Hello there.", None),
        ("qwen3-small-Q8_0.gguf", "\n Hello there. ", None),
        ("llama-bpe-small-Q4_K_M.gguf", "Hello there.", None),
    ],
)
def test_a_second_question_reuses_the_whole_conversation(name, said, stopped):
    _, transcript, second = talk(chat_format(name), said, stopped)
    assert second.transcript.ids[: len(transcript.ids)] == transcript.ids
    assert len(second.transcript.ids) > len(transcript.ids)


def test_dropped_thoughts_are_not_tokenised_again_and_the_rest_is_reused():
    mine = chat_format("rwkv7-mini-F16.gguf")
    first, transcript, second = talk(mine, "a</think>\n\nHello\n\n", "\n\n", think=True)
    assert first.opened.text == "<think>"
    assert b"a</think>" not in second.transcript.text
    border = second.transcript.ids[: first.message_tokens]
    assert border == transcript.ids[: first.message_tokens]
    assert first.message_tokens < len(first.transcript.ids)


def test_message_tokens_end_where_prompts_with_and_without_thinking_differ():
    mine = chat_format("rwkv7-mini-F16.gguf")
    plain, thinking = (mine.prompt([Q.for_template()], (), given) for given in (None, True))
    assert plain.message_tokens == thinking.message_tokens
    assert plain.transcript.ids[: plain.message_tokens] == thinking.transcript.ids[: plain.message_tokens]


@pytest.mark.parametrize(
    ("name", "template", "ends"),
    [
        ("rwkv7-mini-F16.gguf", None, ("\n\n",)),
        ("qwen3-small-Q8_0.gguf", None, "<|im_end|>"),
        ("llama-bpe-small-Q4_K_M.gguf", None, "<|eot_id|>"),
        ("tiny-rwkv7.gguf", "chatml", ("<|im_end|>",)),
    ],
)
def test_an_answer_ends_at_the_token_that_ends_a_turn(name, template, ends):
    mine = chat_format(name, template)
    if isinstance(ends, str):
        [end] = mine.tokenizer.encode(ends, parse=True)
        assert mine.stop_ids == {end}
        assert mine.ends == ()
    else:
        assert mine.stop_ids == frozenset()
        assert mine.ends == ends
    request = mine.request(mine.prompt([Q.for_template()]), SamplingParams(stop_ids=frozenset({7})))
    assert request.params.stop_ids == mine.tokenizer.stop_ids | mine.stop_ids | {7}


GLM = ["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>"]


def glm_format(template="glm"):
    """Returns a vocabulary of letters and GLM's marks, whose file marks none of them as end tokens."""
    letters = [chr(code) for code in range(33, 127)]
    metadata = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "glm4", "tokenizer.ggml.merges": [],
        "tokenizer.ggml.tokens": [*letters, *GLM], "tokenizer.ggml.token_type": [1] * len(letters) + [3] * len(GLM),
        "tokenizer.ggml.eos_token_id": len(letters),
    }  # fmt: skip
    return ChatFormat(load_tokenizer(metadata), ChatTemplate.from_metadata(metadata, name=template), 200)


def test_if_turns_have_no_end_token_the_mark_of_the_next_turn_ends_an_answer():
    mine = glm_format()
    [user] = mine.tokenizer.encode("<|user|>", parse=True)
    assert mine.stop_ids == {user}
    unmarked = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
    assert glm_format(unmarked).stop_ids == frozenset()


def test_glm_thinks_unless_it_is_asked_not_to():
    mine = glm_format(None)  # its vocabulary shows the template
    assert mine.can_think
    ends = {think: mine.prompt([Q.for_template()], (), think).transcript.text for think in (None, True, False)}
    assert ends[None] == ends[True] == b"[gMASK]<sop><|user|>Hi<|assistant|><think>"
    assert ends[False].endswith(b"<|assistant|></think>")


def read(mine, prompt, text):
    """Returns the reasoning and the answer that the reader finds."""
    reader, shown = mine.reader(prompt, SamplingParams()), {True: "", False: ""}
    ids = mine.tokenizer.encode(text, parse=True)
    for n, token in enumerate(ids):
        for part in reader.feed(token, last=n == len(ids) - 1):
            shown[part.thinking] += part.text
    for part in reader.flush():
        shown[part.thinking] += part.text
    return shown[True], shown[False]


HARMONY = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"


@pytest.mark.parametrize("template", [None, "harmony"])
def test_harmonys_analysis_is_reasoning_and_no_later_prompt_has_it(template):
    """Tested with the file's own template, which does not mention channels, and with the built-in one."""
    mine = chat_format("tiny-gpt-oss.gguf", template)
    ends = mine.stop_ids | mine.tokenizer.stop_ids
    assert {mine.tokenizer.piece(token, special=True) for token in ends} >= {b"<|return|>", b"<|call|>"}
    assert mine.tokenizer.encode("<|end|>", parse=True)[0] not in ends
    first = mine.prompt([Q.for_template()])
    assert first.transcript.text.endswith(b"<|start|>assistant")
    assert read(mine, first, HARMONY) == ("Hm.", "Yes.")
    said = Completion("Yes.", tuple(mine.tokenizer.encode(HARMONY, parse=True)), "stop", Stats(0, 0, 0, 0, 0), "Hm.")
    message, _ = first.answer(mine.tokenizer, said, None)
    assert (message.content, message.reasoning, message.raw) == ("Yes.", "Hm.", None)
    second = mine.prompt([m.for_template() for m in (Q, message, Q)])
    assert b"Yes." in second.transcript.text
    assert b"analysis<|message|>Hm." not in second.transcript.text


def test_models_that_always_reason_get_the_lowest_effort():
    mine = chat_format("tiny-gpt-oss.gguf", "harmony")
    texts = {think: mine.prompt([Q.for_template()], think=think).transcript.text for think in (None, True, False)}
    assert b"Reasoning: medium" in texts[None] and texts[True] == texts[None]
    assert b"Reasoning: low" in texts[False]
    given = mine.prompt([Q.for_template()], think=False, variables={"reasoning_effort": "high"})
    assert b"Reasoning: high" in given.transcript.text
    assert mine.can_think


@pytest.mark.parametrize(
    ("name", "on", "off"),
    [
        ("enable_thinking", "True", "False"),
        ("thinking", "True", "False"),
        ("thinking_budget", "-1", "0"),
        ("reasoning_effort", "unsaid", "low"),
        ("reasoning_strength", "unsaid", "low"),
    ],
)
def test_reasoning_is_set_by_the_variable_of_the_template(name, on, off):
    source = "{% for m in messages %}{{ m.content }}{% endfor %}[{{ NAME | default('unsaid') }}]"
    mine = chat_format("tiny-llama.gguf", source.replace("NAME", name))
    texts = {
        think: mine.prompt([Q.for_template()], think=think).transcript.text.decode() for think in (None, True, False)
    }
    assert texts[None].endswith("[True]" if name == "enable_thinking" else "[unsaid]")
    assert texts[True].endswith(f"[{on}]")
    assert texts[False].endswith(f"[{off}]")
    assert mine.can_think


def test_models_that_reason_are_not_given_an_empty_thought():
    templates, _ = template_matrix.load()
    for name, opening in {
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "<｜Assistant｜><think>\n",
        "Qwen-QwQ-32B": "assistant\n<think>\n",
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "<|CHATBOT_TOKEN|>",
    }.items():
        mine = chat_format("tiny-llama.gguf", templates[name])
        assert mine.prompt([Q.for_template()]).transcript.text.decode().endswith(opening), name
        assert not mine.prompt([Q.for_template()], think=False).transcript.text.decode().endswith(opening), name


def test_an_answer_that_continues_is_in_the_channel_of_answers():
    mine = chat_format("tiny-gpt-oss.gguf", "harmony")
    begun = {"role": "assistant", "content": "word " * 40}
    prompt = mine.prompt([Q.for_template(), begun], continues=True)
    assert prompt.transcript.text.decode().endswith("<|channel|>final<|message|>" + begun["content"])
    assert not mine.reader(prompt, SamplingParams())._thinking.inside


def test_reasoning_without_an_answer_continues_as_reasoning():
    templates, _ = template_matrix.load()
    mine = chat_format("tiny-llama.gguf", templates["Qwen-Qwen3-0.6B"])
    begun = {"role": "assistant", "content": "", "reasoning_content": "Let me"}
    prompt = mine.prompt([Q.for_template(), begun], continues=True)
    assert prompt.transcript.text.decode().endswith("<think>\nLet me")
    assert mine.reader(prompt, SamplingParams())._thinking.inside


def test_marks_that_are_control_tokens_are_seen_and_the_end_of_the_answer_is_not_shown():
    with GGUFFile.open(golden("tiny-llama4.gguf")) as file:
        tokenizer = load_tokenizer(file.metadata)
    template = ChatTemplate("{% for m in messages %}{{ m.content.split('<channel|>')[-1] }}<|eot|>{% endfor %}")
    mine = ChatFormat(tokenizer, template, 4096)
    text = "<|channel>thought\nHm<channel|>Yes<|eot|>"
    assert read(mine, mine.prompt([Q.for_template()]), text) == ("Hm", "Yes")


def test_control_tokens_around_an_answer_are_not_part_of_it():
    """Command R7B's marks are tested with a vocabulary that has other names for such tokens."""
    with GGUFFile.open(golden("tiny-llama4.gguf")) as file:
        tokenizer = load_tokenizer(file.metadata)
    [mark] = tokenizer.encode("<|eot|>", parse=True)
    ids = tokenizer.encode("<|eot|>Yes<|eot|>", parse=True)
    for hidden, wanted in ((frozenset({mark}), "Yes"), (frozenset(), "<|eot|>Yes<|eot|>")):
        reader = Reader(tokenizer, Ends(()), marks_of("<|START_THINKING|>").splitter(""), control=True, hidden=hidden)
        assert (
            "".join(part.text for token in ids for part in reader.feed(token))
            + "".join(part.text for part in reader.flush())
            == wanted
        )


@pytest.mark.parametrize(("name", "opening"), [("gemma4", "<|turn>model\n"), ("llama4", "assistant<|header_end|>\n\n")])
def test_templates_for_files_without_one_render_turns_and_their_ends(name, opening):
    template = ChatTemplate(name)
    chat = [{"role": "system", "content": "S"}, Q.for_template()]
    text = template.render(chat, add_generation_prompt=True)
    assert text.endswith(opening) and "S" in text
    assert template.end_of_turn().strip() == {"gemma4": "<turn|>", "llama4": "<|eot|>"}[name]
    if name == "gemma4":
        assert "<|turn>system\n<|think|>\nS<turn|>" in template.render(chat, enable_thinking=True)
        assert "<|turn>system\n<|think|><turn|>" in template.render(chat[1:], enable_thinking=True)
        assert "Hm" not in template.render(
            [*chat, {"role": "assistant", "content": "<|channel>thought\nHm<channel|>Yes"}]
        )
