"""Chats: turns, undo and edits, and the number of tokens of a question."""

from types import SimpleNamespace

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadInput, BadTemplate, ContextFull
from rwkv_gpu.llm.chat_format import Message
from rwkv_gpu.llm.completion import sampling
from rwkv_gpu.text.thinking import Opened
from tests.golden_files import OWN, golden

TALKS = {
    "tiny-rwkv7.gguf": "chatml",
    "tiny-falcon-h1.gguf": "chatml",
    "tiny-qwen3.gguf": "chatml",
    "qwen3-small-Q8_0.gguf": None,
}


@pytest.fixture(params=TALKS)
def chat(request):
    """Returns a greedy chat with short answers, for each kind of model."""
    with rwkv_gpu.load(golden(request.param), device="cpu", context=None, sequences=3) as llm:
        yield llm.chat(system="Be brief.", template=TALKS[request.param], temperature=0, max_tokens=6)


@pytest.fixture
def rnn():
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu", sequences=2) as llm:
        yield llm


def test_a_turn_continues_with_the_very_ids_of_the_turns_before(chat):
    said = ()
    for question in ("Hi", "And you?", "日本語 🙂"):
        done = chat.send(question)
        ids = chat._transcript.ids
        assert ids[: len(said)] == said
        assert ids[-len(done.tokens) :] == done.tokens
        said = ids
    assert [message["role"] for message in chat.messages] == ["system", *["user", "assistant"] * 3]
    assert chat.tokens >= len(said)


def test_a_stream_gives_the_same_text_as_send(chat):
    done = chat.fork().send("Hi")
    answer = chat.stream("Hi")
    events = [*answer]
    assert "".join(event.text for event in events) == done.text
    assert answer.completion.tokens == done.tokens
    assert chat.messages[-1] == {"role": "assistant", "content": done.text.strip()}


def test_a_fork_does_not_change_the_original_chat(chat):
    chat.send("Hi")
    other = chat.fork()
    before = chat.messages
    assert other.messages == before
    other.send("And?")
    other.settings["max_tokens"] = 1
    assert chat.messages == before
    assert chat.settings["max_tokens"] == 6


def test_undo_edit_and_regenerate_give_the_same_answer_as_a_new_chat(chat):
    first = chat.send("Hi")
    once = chat.messages
    second = chat.send("And?")
    assert chat.regenerate().wait().tokens == second.tokens
    assert chat.edit("Or?").wait().tokens != () and chat.messages[3]["content"] == "Or?"
    assert chat.edit("And?").wait().tokens == second.tokens
    chat.undo()
    assert chat.messages == once
    chat.undo()
    assert chat.messages == once[:1]
    with pytest.raises(BadInput, match="no question yet"):
        chat.undo()
    assert chat.send("Hi").tokens == first.tokens
    chat.reset()
    assert chat.messages == [{"role": "system", "content": "Be brief."}]


def test_an_answer_that_is_closed_early_keeps_the_part_that_was_read(rnn):
    chat = rnn.chat(temperature=0, max_tokens=1000)
    answer = chat.stream("Hi")
    read = "".join(next(answer).text for _ in range(5))
    answer.close()
    assert chat.messages[-1] == {"role": "assistant", "content": read.strip()}
    assert len(answer.completion.tokens) == 5
    assert answer.completion.finish_reason == "abort"
    chat.send("More", max_tokens=3)
    assert len(chat.messages) == 4


def test_a_question_is_dropped_if_nothing_of_its_answer_was_read(rnn):
    chat = rnn.chat(temperature=0, max_tokens=1000)

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chat.stream("Hi", on_prompt=stop).wait()
    assert chat.messages == []
    chat.stream("Hi").close()
    assert chat.messages == []


def test_the_next_question_ends_an_answer_that_is_not_complete(rnn):
    chat = rnn.chat(temperature=0, max_tokens=10**6)
    running = chat.stream("Hi")
    next(running)
    chat.send("So?", max_tokens=2)
    assert running.completion.finish_reason == "abort"
    assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2


def test_a_dropped_answer_keeps_the_part_that_was_read(rnn):
    chat = rnn.chat(temperature=0, max_tokens=10**6)
    for _ in chat.stream("Hi"):
        break
    assert len(chat.messages) == 2


def test_a_chat_that_has_filled_the_context_names_a_remedy():
    with rwkv_gpu.load(OWN / "tiny-qwen3.gguf", device="cpu", context=192) as llm:
        chat = llm.chat(template="zephyr", temperature=0, max_tokens=2)
        with pytest.raises(ContextFull, match=r"comes to \d+ tokens .* context of 192; undo or reset it"):
            for _ in range(20):
                chat.send("Hello there")
        before = chat.messages
        assert before[-1]["role"] == "assistant"
        chat.undo()
        assert chat.send("Hi", max_tokens=2).tokens


def test_reasoning_is_separated_and_can_be_switched(rnn):
    chat = rnn.chat(template="rwkv-g1", think=True)
    assert chat.can_think
    assert not rnn.chat(template="rwkv-world").can_think
    assert chat._asked(rwkv_gpu.llm.chat.messages_of([{"role": "user", "content": "Hi"}])).opened == Opened(
        "<think", ">"
    )
    chat.think = False
    assert chat._asked(rwkv_gpu.llm.chat.messages_of([{"role": "user", "content": "Hi"}])).opened.closed
    begun = rnn.chat(messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}])
    assert begun.messages[-1]["content"] == "Yo"


def test_settings_are_checked_by_name(rnn):
    with pytest.raises(BadInput, match="top_p is 2"):
        rnn.chat(top_p=2)
    with pytest.raises(BadInput, match="heat is not a setting"):
        rnn.chat(heat=1)
    chat = rnn.chat()
    for name, value in {"temperature": -1, "warmth": 1}.items():
        chat.settings[name] = value
        with pytest.raises(BadInput, match=name):
            chat.send("Hi")
        del chat.settings[name]
    assert chat.messages == []
    with pytest.raises(BadTemplate, match="no built-in chat template 'nonesuch'"):
        rnn.chat(template="nonesuch")
    with pytest.raises(BadInput, match="system is of type int"):
        rnn.chat(system=7)


def test_a_new_system_message_holds_from_the_next_question(rnn):
    chat = rnn.chat(temperature=0, max_tokens=2)
    assert chat.system is None
    chat.send("Hi")
    chat.system = "Be kind."
    assert chat.messages[0] == {"role": "system", "content": "Be kind."}
    assert len(chat.messages) == 3
    chat.system = None
    assert chat.messages[0]["role"] == "user"


# ---------------------------------------------------------------- files


def test_a_saved_chat_continues_as_if_it_had_never_been_closed(chat, tmp_path):
    chat.send("Hi", stop_ids=[3], logit_bias={5: -1.5}, stop=("x", "y"))
    chat.settings["logit_bias"] = {7: -2.0}
    chat.settings["stop_ids"] = frozenset({9})
    chat.settings |= {"top_p": np.float32(0.5), "seed": np.int64(3)}
    chat.save(tmp_path / "talk")
    other = chat._llm.load_chat(tmp_path / "talk")
    assert other.messages == chat.messages
    assert sampling(None, {}, other.settings) == sampling(None, {}, chat.settings)
    assert other.template.source == chat.template.source
    assert other.send("And?").tokens == chat.send("And?").tokens


def test_a_full_disk_leaves_the_old_file_and_the_chat_continues(rnn, tmp_path, monkeypatch):
    chat = rnn.chat(temperature=0, max_tokens=2)
    chat.send("Hi")
    chat.save(tmp_path / "talk")
    old = (tmp_path / "talk").read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        chat.send("And?")
        with pytest.raises(BadInput, match="No space left on device; the old file is as it was"):
            chat.save(tmp_path / "talk")
    assert (tmp_path / "talk").read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["talk"]
    chat.send("So?")
    chat.save(tmp_path / "talk")
    assert rnn.load_chat(tmp_path / "talk").messages == chat.messages


def test_another_template_applies_from_the_next_question_on(rnn):
    chat = rnn.chat(template="chatml", temperature=0, max_tokens=3)
    chat.send("Hi")
    chat.use_template("rwkv-world")
    fresh = rnn.chat(template="rwkv-world", messages=chat.messages, temperature=0, max_tokens=3)
    assert chat.send("And?").text == fresh.send("And?").text
    with pytest.raises(BadTemplate, match="no built-in chat template 'nonesuch'"):
        chat.use_template("nonesuch")


def test_a_chat_that_may_be_truncated_continues_past_the_context():
    with rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu", context=128, chunk_size=32) as llm:
        chat = llm.chat("Be brief.", template="chatml", truncate="left", max_tokens=6, seed=1)
        sizes, reused = [], []
        for turn in range(20):
            done = chat.send(f"Say {turn}.")
            sizes.append(done.stats.prompt_tokens)
            reused.append(done.stats.reused_tokens)
            assert 0 < len(done.tokens) <= 6
        assert max(sizes) <= 122 and chat.tokens <= 128
        assert sum(sizes[at] < sizes[at - 1] for at in range(1, 20)) <= 10  # turns are dropped rarely, but many at once
        grown = [at for at in range(1, 20) if sizes[at] > sizes[at - 1]]
        assert all(reused[at] > sizes[at] // 2 for at in grown[3:])
        assert len(chat.messages) == 41 and chat.messages[1]["content"] == "Say 0."
        prompt = chat._prompt(chat._messages, 6)
        text = prompt.transcript.text.decode(errors="replace")
        assert text.startswith("<|im_start|>system\nBe brief.") and "Say 19." in text and "Say 0." not in text
        other = chat.fork()
        greedy = {"temperature": 0.0}
        assert other.send("And now?", **greedy).tokens == chat.send("And now?", **greedy).tokens
        chat.reset()
        assert chat.send("Say 0.").stats.prompt_tokens == sizes[0]
        with pytest.raises(ContextFull):
            chat.send("x" * 300)
        plain = llm.chat(template="chatml", max_tokens=6)
        with pytest.raises(ContextFull, match="truncate"):
            for turn in range(20):
                plain.send(f"Say {turn}.")


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_truncated_prompt_keeps_all_that_fits_and_is_else_cut_to_half_of_the_context(rnn, system):
    chat = rnn.chat(system, template="chatml", truncate="left")
    turns = [Message(role, "word " * (turn + 1)) for turn in range(4) for role in ("user", "assistant")][:-1]
    first, answer = len(chat.messages), 3
    messages = (*chat._messages, *turns)
    starts = range(first, len(messages), 2)
    sizes = [len(chat._asked(messages[:first] + messages[start:]).transcript.ids) for start in starts]
    for context in range(sizes[-1], sizes[0] + 6):
        chat._llm, chat._first = SimpleNamespace(context=context), len(messages)  # of a longer chat before
        found = len(chat._prompt(messages, answer).transcript.ids)
        halves = [size for size in sizes if size <= context // 2]
        assert found == (sizes[0] if sizes[0] + answer <= context else (halves or sizes)[0 if halves else -1]), context
        assert len(chat._prompt(messages, answer).transcript.ids) == found, "the next prompt begins at the same turn"


def test_an_invalid_truncate_names_the_valid_values():
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu") as llm:
        with pytest.raises(BadInput, match="truncate is 'right'; it must be 'left' or None"):
            llm.chat(truncate="right")
        chat = llm.chat(truncate="left", max_tokens=4)  # without a limit nothing is left out
        assert chat.send("Hi").tokens


def test_a_chat_with_a_logits_processor_is_saved_without_it(tmp_path):
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu") as llm:
        chat = llm.chat(max_tokens=3, logits_processors=lambda ids, scores: scores)
        chat.send("Hi")
        chat.save(tmp_path / "a.chat")
        again = llm.load_chat(tmp_path / "a.chat")
        assert again.messages == chat.messages and "logits_processors" not in again.settings


def test_messages_in_place_of_the_system_prompt_are_refused_with_a_hint(rnn):
    with pytest.raises(BadInput, match=r"system is of type list.*chat\(messages=...\).*chat_batch"):
        rnn.chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("chat", [name for name, template in TALKS.items() if template], indirect=True)
def test_another_model_continues_as_with_a_chat_of_these_messages(chat):
    chat.send("Hi", stop=["nothing"])
    chat.settings = {**chat.settings, "logit_bias": {1: 2.0}}
    with rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu") as other:
        moved = chat.with_model(other)
        assert moved.messages == chat.messages
        assert "logit_bias" not in moved.settings
        fresh = other.chat(template=chat.template.source, messages=chat.messages, temperature=0, max_tokens=6)
        assert moved.send("And?").tokens == fresh.send("And?").tokens
    assert len(chat.messages) == 3  # the chat itself stays


def test_the_same_model_loaded_again_keeps_the_ids(rnn):
    chat = rnn.chat(template="chatml", temperature=0, max_tokens=6)
    chat.send("Hi")
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu") as again:
        assert chat.with_model(again)._transcript == chat._transcript


def test_a_chat_takes_the_template_of_a_new_model_unless_one_was_chosen():
    with (
        rwkv_gpu.load(golden("qwen3-small-Q8_0.gguf"), device="cpu") as first,
        rwkv_gpu.load(golden("qwen3-small-Q8_0.gguf"), device="cpu") as other,
        rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu") as without,
    ):
        assert first.chat().has_own_template
        assert first.chat().with_model(other).template is other.chat_format.template
        assert first.chat(template="zephyr").with_model(other).template.source != other.chat_format.template.source
        with pytest.raises(BadTemplate):
            first.chat().with_model(without)
