"""The chat in a real terminal: typed, interrupted, resized, pasted into. A fake repeats what it hears."""

import os
import signal
import time

import pytest

from tests.cli.tmux import PYTHON, Terminal
from tests.golden_files import OWN


@pytest.fixture
def chat(tmp_path, request):
    """A chat on the prompt; `request.param` gives more options."""
    terminal = open_chat(tmp_path, getattr(request, "param", ""))
    yield terminal
    terminal.close()


def open_chat(folder, options="", **how) -> Terminal:
    terminal = Terminal(f"{PYTHON} -m tests.cli.fake_chat {options}", folder, **how)
    terminal.wait(">")
    return terminal


def test_two_turns_and_what_lies_between(chat):
    chat.type("hello")
    chat.wait("1: you said hello")
    chat.type("how are you")
    screen = chat.wait("2: you said how are you")
    assert "tok/s" in chat.wait("answer")
    assert "**" not in screen  # the mark of bold
    chat.type("/regen")
    chat.wait("3: you said how are you")
    chat.key("Up", "Up", "Enter")
    chat.wait("4: you said how are you")
    chat.type("/undo")
    chat.wait("the last question is now: how are you")
    chat.type("/stats")
    chat.wait("context")
    chat.key("C-d")
    assert chat.left() == 0


def test_the_last_question_can_be_edited(chat):
    chat.type("what is reb")
    chat.wait("you said what is reb")
    chat.type("/edit")
    chat.wait("edit> what is reb")
    chat.key("BSpace")
    chat.type("d")
    chat.wait("you said what is red")
    chat.type("/edit another")
    chat.wait("you said another")
    chat.type("/edit")
    chat.wait("edit> another")
    chat.key("C-c")
    chat.wait("left as it was")


def test_a_chat_is_saved_loaded_forked_and_reset(chat):
    chat.type("one")
    chat.wait("you said one")
    chat.type("/save talk.chat")
    chat.wait("saved to talk.chat")
    chat.type("/fork")
    chat.wait("branch 2 of 2")
    chat.type("/reset")
    chat.wait("forgotten")
    chat.type("/fork 1")
    chat.wait("> one")
    chat.type("/reset")
    chat.type("/load talk.chat")
    chat.wait("loaded talk.chat: 2 messages")
    chat.type("/load nowhere")
    chat.wait("rwkv-gpu: nowhere: No such file")
    chat.type("/nonsense")
    chat.wait("there is no command /nonsense; /help")
    chat.type("//slash")
    chat.wait("you said /slash")
    chat.type("/exit")
    assert chat.left() == 0


@pytest.mark.parametrize("chat", ["--delay 0.05"], indirect=True)
def test_ctrl_c_stops_an_answer_and_a_second_leaves(chat):
    chat.type("x " * 150)
    chat.wait("you said")
    chat.key("C-c")
    assert "^C" not in chat.wait("stopped")
    chat.type("again")
    chat.wait("2: you said again", seconds=10)
    chat.wait("answer 6 tokens")
    chat.key("C-c")
    chat.wait("Ctrl-C again leaves")
    chat.key("C-c")
    assert chat.left() == 130


def test_what_is_typed_and_thrown_away_by_ctrl_c_is_not_sent(chat):
    chat.type("never sent", enter=False)
    chat.key("C-c")
    chat.wait("Ctrl-C again leaves")
    chat.type("sent")
    screen = chat.wait("you said sent")
    assert "you said never" not in screen


def test_a_paste_of_20_kb_is_one_message(chat):
    text = "".join(f"line {i:04} of what is pasted\n" for i in range(740))
    assert len(text) > 20_000
    chat.paste(text)
    chat.wait("line 0739")
    chat.key("Enter")
    chat.wait("answer", seconds=30)
    assert "1: you said line 0000" in chat.screen(history=True)
    chat.type("/stats")
    chat.wait("answers  1")


def test_emoji_and_cjk_are_typed_and_answered(chat):
    chat.type("こんにちは 👍🏽 世界")
    chat.wait("1: you said こんにちは 👍🏽 世界")
    chat.key("Up", "BSpace", "BSpace", "Enter")
    chat.wait("2: you said こんにちは 👍🏽")


def test_a_message_of_several_lines(chat):
    chat.type('"""first', enter=True)
    chat.type("second", enter=True)
    chat.type('third"""', enter=True)
    screen = chat.wait("you said first")
    assert "third" in screen.partition("you said first")[2]
    chat.type("a", enter=False)
    chat.key("C-j")
    chat.type("b", enter=True)
    chat.wait("2: you said a\nb")


@pytest.mark.parametrize("chat", ["--delay 0.01"], indirect=True)
def test_a_resize_in_mid_answer_wraps_what_comes_at_the_new_width(chat):
    chat.type("/stats off")
    chat.type("word " * 150)
    chat.wait("1: you said")
    chat.resize(40, 24)
    lines = chat.wait("word\n\n>").splitlines()
    after = lines[next(at for at, line in enumerate(lines) if "you said" in line) + 3 :]
    assert len(after) > 6
    assert all(set(line.split()) <= {"word", ">"} for line in after)


@pytest.mark.parametrize("chat", ["--delay 0.03"], indirect=True)
def test_a_long_prompt_shows_how_far_it_is(chat):
    chat.type("/stats off")
    chat.paste("long " * 3000)
    chat.key("Enter")
    bar = chat.wait("tok/s")
    assert "of 14,999 tokens" in bar
    chat.wait("1: you said")
    chat.key("C-c")
    assert "of 14,999 tokens" not in chat.wait("stopped")


def test_a_dumb_terminal_gets_plain_text(tmp_path):
    chat = open_chat(tmp_path, TERM="dumb")
    try:
        chat.type("hello")
        chat.wait("**1:** you said hello")
        chat.type("/exit")
        assert chat.left() == 0
    finally:
        chat.close()


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("answering", [False, True])
def test_a_signal_saves_the_session_and_ends(tmp_path, kind, answering):
    chat = open_chat(tmp_path, "--session talk.chat --delay 0.02")
    try:
        chat.type("a " * (200 if answering else 20))
        chat.wait("you said a")
        if not answering:
            chat.wait("answer")
        os.kill(chat.pid(), kind)
        assert chat.left(seconds=5) == 128 + kind
        assert "you said a" in (tmp_path / "talk.chat").read_text()
    finally:
        chat.close()


def test_an_interrupt_at_any_moment_ends_within_a_second(tmp_path):
    """From outside and at the prompt, where no key was pressed."""
    chat = open_chat(tmp_path, "--session talk.chat")
    try:
        chat.type("kept")
        chat.wait("answer")
        began = time.monotonic()
        os.kill(chat.pid(), signal.SIGINT)
        assert chat.left() == 130
        assert time.monotonic() - began < 1.5  # with what it takes to look
        assert "kept" in (tmp_path / "talk.chat").read_text()
    finally:
        chat.close()


@pytest.mark.parametrize("chat", ["--delay 0.05"], indirect=True)
def test_what_is_typed_while_an_answer_comes_is_the_next_message(chat):
    chat.type("first")
    chat.wait("1: you said")
    chat.type("typed ahead")
    chat.wait("2: you said typed ahead")


def test_a_talk_with_a_real_model(tmp_path):
    model = OWN / "tiny-rwkv7.gguf"
    command = f"{PYTHON} -m rwkv_gpu.cli.main chat {model} --device cpu -n 12 --temperature 0 --template chatml"
    chat = Terminal(command, tmp_path, width=100, height=50)
    try:
        chat.wait("/help lists commands")
        chat.type("hello")
        chat.wait("answer")
        chat.type("once more")
        chat.wait("reused")
        chat.type("/save talk.chat")
        chat.wait("saved to talk.chat")
        chat.type("/reset")
        chat.wait("forgotten")
        chat.type("/load talk.chat")
        chat.wait("4 messages")
        chat.type("/set max_tokens 100000")
        chat.wait("max_tokens 100000")
        chat.type("/set stop")
        chat.type("/regen")
        time.sleep(0.5)
        chat.key("C-c")
        chat.wait("\n>")
        chat.type("/set heat 3")
        chat.wait("there is no setting 'heat'")
        chat.key("C-d")
        assert chat.left() == 0
    finally:
        chat.close()
