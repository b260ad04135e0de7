"""A chat computes only the new tokens of a turn."""

import pytest

import rwkv_gpu
from tests.golden_files import golden
from tests.llm.test_chat import TALKS

GREEDY = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(params=TALKS)
def path(request):
    return golden(request.param)


def loaded(path, device="cpu", **given):
    return rwkv_gpu.load(path, device=device, **given)


def talk(llm, path):
    return llm.chat(system="Be brief.", template=TALKS[path.name], **GREEDY)


@pytest.mark.parametrize("where", ["cpu", "fast"])
def test_a_turn_feeds_its_new_tokens_only(path, where, adapter):
    with loaded(path, "cpu" if where == "cpu" else str(adapter.index)) as llm:
        chat = talk(llm, path)
        said = [0]
        for question in ("Hi", "And you?", "So?"):
            stats = chat.send(question).stats
            assert stats.reused_tokens >= said[-1] - 1  # the last sampled token is not fed yet
            assert stats.prompt_tokens > said[-1]
            said.append(len(chat._transcript.ids))
        again = chat.regenerate().wait().stats
        assert again.reused_tokens == again.prompt_tokens - 1
        assert chat.edit("Why?").wait().stats.reused_tokens >= said[2] - 1


def test_an_answer_in_another_thinking_mode_reuses_all_messages():
    with loaded(golden("rwkv7-mini-Q8_0.gguf")) as llm:
        chat = llm.chat(think=True, **GREEDY)
        chat.send("Hi there, how are you?")
        chat.think = False
        stats = chat.regenerate().wait().stats
        opening = len(llm.tokenize("Assistant: <think>\n</think>"))
        assert stats.prompt_tokens - stats.reused_tokens <= opening


def test_a_fork_and_messages_of_a_client_reuse_the_conversation(path):
    with loaded(path) as llm:
        chat = talk(llm, path)
        chat.send("Hi")
        said = len(chat._transcript.ids)
        assert chat.fork().send("And?").stats.reused_tokens >= said - 1
        if TALKS[path.name] is None:
            asked = [{"role": "user", "content": "Hello there, model"}]
            first = llm.create_chat_completion(asked, **GREEDY)["usage"]
            again = llm.create_chat_completion(asked, **GREEDY)["usage"]
            assert again["prompt_tokens_details"]["cached_tokens"] == first["prompt_tokens"] - 1


@pytest.mark.parametrize("name", ["tiny-rwkv7.gguf", "tiny-falcon-h1.gguf", "tiny-qwen3.gguf"])
def test_a_system_prompt_is_computed_once_for_all_chats(name):
    system = "Answer in one line, and never with more words than the question has. " * 4
    with loaded(golden(name), context=1024) as llm:
        chats = [llm.chat(system=system, template="chatml", **GREEDY) for _ in range(3)]
        stats = [chat.send(text).stats for chat, text in zip(chats, ("Hi", "Why is that?", "Who?"), strict=True)]
        shared = len(llm.tokenize(system))
    assert stats[0].reused_tokens == 0
    assert all(stat.reused_tokens >= 0.9 * shared for stat in stats[1:])


def test_a_loaded_chat_feeds_its_new_tokens_only(path, tmp_path):
    with loaded(path) as llm:
        chat = talk(llm, path)
        chat.send("Hi")
        chat.save(tmp_path / "talk")
        want = chat.send("And?")
    with loaded(path) as llm:
        done = llm.load_chat(tmp_path / "talk").send("And?")
    assert done.tokens == want.tokens
    assert done.stats.reused_tokens == want.stats.reused_tokens > 0


def test_the_file_of_a_chat_with_an_rnn_grows_only_by_its_text(tmp_path):
    path = golden("tiny-rwkv7.gguf")
    with loaded(path) as llm:
        chat = talk(llm, path)
        sizes, written = [], []
        for _ in range(4):
            chat.send("Hello there")
            chat.save(tmp_path / "talk")
            sizes.append((tmp_path / "talk").stat().st_size)
            written.append(len(chat._transcript.ids))
    # An id and a cut take 12 bytes, their text twice (also in the messages) a few more.
    assert sizes[-1] - sizes[0] < 40 * (written[-1] - written[0])
    assert sizes[0] > 2 * 2 * 64 * 64 * 4  # the matrices of two heads in two layers are in it


def test_a_chat_is_loaded_even_if_its_state_has_no_room(tmp_path):
    path = golden("tiny-qwen3.gguf")
    with loaded(path, context=1024) as llm:
        chat = talk(llm, path)
        chat.send("Hello " * 60)
        chat.save(tmp_path / "talk")
        length = chat.tokens
    with loaded(path, context=128) as llm:
        chat = llm.load_chat(tmp_path / "talk")
        assert chat.tokens == length
        with pytest.raises(rwkv_gpu.ContextFull, match="context of 128"):
            chat.send("More")


@pytest.mark.parametrize("name", ["tiny-rwkv7.gguf", "tiny-qwen3.gguf", "tiny-falcon-h1.gguf"])
def test_answers_that_are_dropped_half_way_leave_every_page_free(name):
    def free(engine):
        pages = engine._store._pager or engine._store._states
        return engine.busy, len(engine._slots.free), pages.pool.free

    with loaded(golden(name), cache_bytes=0, sequences=3) as llm:
        before = llm._driver.call(free)
        for n in range(30):
            answer = llm.stream("hello world", max_tokens=900)
            if n % 3:
                next(answer)
            del answer
        assert llm._driver.call(free) == before
