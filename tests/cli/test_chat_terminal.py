"""Tests of the chat in a real terminal: typing, interrupts, resizing and pasting. A fake model repeats its input."""

import json
import os
import re
import signal

import pytest

from tests.cli.tmux import PYTHON, Terminal
from tests.golden_files import OWN
from tests.process import until


@pytest.fixture
def chat(tmp_path, request):
    """Starts a chat and waits for its prompt; `request.param` gives more options."""
    (tmp_path / "code.md").write_text("Two:\n```python\nprint(1)\n```\n\n```python\nprint(2)\n```\n")
    terminal = open_chat(tmp_path, getattr(request, "param", ""))
    yield terminal
    terminal.close()


def open_chat(folder, options="", **how) -> Terminal:
    terminal = Terminal(f"{PYTHON} -m tests.cli.fake_chat {options}", folder, **how)
    terminal.wait(">")
    return terminal


def test_the_second_turn_continues_the_first(chat):
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
    chat.type("/save my.chat")
    chat.wait("saved to my.chat")
    chat.type("/fork")
    chat.wait("branch 2, a copy")
    chat.type("/reset")
    chat.wait("cleared; /fork 2 goes back to the chat as it was")
    chat.type("/fork 2")
    chat.wait("> one")
    chat.type("/fork 4")
    chat.wait("there is no branch 4; the branches are 1 to 3")
    chat.type("/load my.chat")
    chat.wait("loaded my.chat: 2 messages")
    chat.type("/load nowhere")
    chat.wait("rwkv-gpu: nowhere: No such file")
    chat.type("/nonsense")
    chat.wait("there is no command /nonsense; /help")
    chat.type("/histroy")
    chat.wait("there is no command /histroy; did you mean /history? /help")
    chat.type("//slash")
    chat.wait("you said /slash")
    chat.type("/exit")
    assert chat.left() == 0


def test_help_aligns_descriptions_that_break(chat):
    chat.type("/help")
    screen = chat.wait("a second Ctrl-C")
    [after] = re.findall(r"which reads this chat\n( *)again\.", screen)
    [before] = re.findall(r"^(  /model NAME +)Continue", screen, re.MULTILINE)
    assert len(after) == len(before)


def test_commands_of_other_chat_programs_work(chat):
    chat.type("/load qwen3.5:4b")
    chat.wait("No such file; /model qwen3.5:4b continues")
    chat.type("/show")
    chat.wait("system       none; /system TEXT sets one\n  temperature  0.8")
    chat.type('/set system "Be brief."')
    chat.wait("it applies from the next question on")
    chat.type("/set parameter temperature 0.25")
    chat.wait("temperature 0.25")
    chat.type("/set quiet")
    chat.wait("answers  0")
    chat.type("hello")
    chat.wait("1: you said hello")
    chat.type("/set temperature")
    assert "tok/s" not in chat.wait("temperature 0.8")
    chat.type("/h")
    chat.wait("/show")
    chat.type("quit")
    assert chat.left() == 0


def test_history_shows_the_chat_and_copy_takes_the_last_answer(chat):
    chat.type("/copy")
    chat.wait("there is no answer yet")
    chat.type("/history")
    chat.wait("the chat is empty")
    for word in ("one", "two"):
        chat.type(word)
        chat.wait(f"you said {word}")
    chat.key("C-l")
    chat.wait("you said two", gone=True)
    chat.type("/history")
    screen = chat.wait("2: you said two")
    assert "1: you said one" in screen
    chat.key("C-l")
    chat.wait("you said two", gone=True)
    chat.type("/history 1")
    assert "you said one" not in chat.wait("2: you said two")
    chat.type("/copy")
    chat.wait("copied 19 characters")
    assert chat.clipboard() == "**2:** you said two"
    chat.type("/copy code")
    chat.wait("no block of code")


@pytest.mark.parametrize("chat", ["--answer code.md"], indirect=True)
def test_copy_code_takes_the_last_block_of_code(chat):
    chat.type("show me")
    chat.wait("print(2)")
    chat.type("/copy code")
    chat.wait("copied 9 characters")
    assert chat.clipboard() == "print(2)\n"


@pytest.mark.parametrize("chat", ["--delay 0.05"], indirect=True)
def test_ctrl_c_stops_an_answer_and_a_second_leaves(chat):
    chat.type("x " * 150)
    chat.wait("you said")
    chat.key("C-c")
    assert "^C" not in chat.wait("stopped")
    chat.type("again")
    chat.wait("2: you said again")
    chat.wait("answer 6 tokens")
    chat.key("C-c")
    chat.wait("Ctrl-C again leaves")
    chat.key("C-c")
    assert chat.left() == 130


def test_ctrl_z_suspends_the_chat_and_restores_the_terminal(tmp_path):
    chat = f"{PYTHON} -m tests.cli.fake_chat --delay 0.05"
    stops = [f"stty -a > stopped{number}; echo stop {number}; read line; echo; fg" for number in (1, 2)]
    terminal = Terminal(f"set -m; {chat}; {'; '.join(stops)}", tmp_path)
    try:
        terminal.wait(">")
        terminal.type("draft", enter=False)
        terminal.key("C-z")
        terminal.wait("stop 1")
        terminal.key("Enter")
        terminal.wait("> draft")
        terminal.type(" x" * 100)
        terminal.wait("you said draft")
        terminal.key("C-z")
        terminal.wait("stop 2")
        terminal.key("Enter")
        terminal.wait("· answer ")
        terminal.key("C-d")
        assert terminal.left() == 0
        before, *stopped = ((tmp_path / name).read_text() for name in ("before", "stopped1", "stopped2"))
        assert stopped == [before, before]
    finally:
        terminal.close()


def test_input_that_ctrl_c_discards_is_not_sent(chat):
    chat.type("never sent", enter=False)
    chat.key("C-c")
    chat.wait("Ctrl-C again leaves")
    chat.type("sent")
    screen = chat.wait("you said sent")
    assert "you said never" not in screen


def test_ctrl_c_clears_typed_text_and_leaves_only_if_there_is_none(chat):
    for draft in ("first draft", "second draft"):
        chat.type(draft, enter=False)
        chat.wait(draft)
        chat.key("C-c")
    chat.type("still here")
    chat.wait("1: you said still here")
    chat.key("C-c")
    chat.wait("Ctrl-C again leaves")
    chat.key("C-c")
    assert chat.left() == 130


LINES = "".join(f"line {i:04} of what is pasted\n" for i in range(740))


@pytest.mark.parametrize("brackets", [True, False])
def test_a_paste_of_20_kb_at_the_prompt_is_one_message(chat, brackets):
    assert len(LINES) > 20_000
    chat.paste(LINES, brackets=brackets)
    if brackets:
        chat.wait("line 0739")
        chat.key("Enter")
    chat.wait("answer")
    assert "1: you said line 0000" in chat.screen(history=True)
    chat.type("/stats")
    chat.wait("answers  1")


@pytest.mark.parametrize("chat", ["--delay 0.02"], indirect=True)
@pytest.mark.parametrize("brackets", [True, False])
def test_a_paste_during_an_answer_is_one_message(chat, brackets):
    chat.type("/stats off")
    chat.type("x " * 60)
    chat.wait("1: you said")
    chat.paste(LINES, brackets=brackets)
    if brackets:
        chat.wait("line 0739")
        chat.key("Enter")
    chat.wait("2: you said line 0000", history=True)
    chat.key("C-c")
    chat.wait("stopped")
    chat.type("/stats")
    chat.wait("answers  2")


@pytest.mark.parametrize("brackets", [True, False])
def test_a_paste_while_the_model_loads_is_one_message(tmp_path, brackets):
    loading = tmp_path / "loading"
    chat = Terminal(f"{PYTHON} -m tests.cli.fake_chat --loading {loading}", tmp_path)
    try:
        until(loading.exists)
        chat.paste("first line\nsecond line\nthird line\n", brackets=brackets)
        loading.unlink()
        chat.wait("third line")
        if brackets:
            chat.key("Enter")
        chat.wait("1: you said first line\nsecond line\nthird line")
        chat.type("/stats")
        chat.wait("answers  1")
    finally:
        chat.close()


@pytest.mark.parametrize("chat", ["--delay 0.05"], indirect=True)
@pytest.mark.parametrize("brackets", [True, False])
def test_ctrl_c_after_a_paste_stops_the_answer_and_drops_the_paste(chat, brackets):
    chat.type("x " * 300)
    chat.wait("1: you said")
    chat.paste(LINES * 4, brackets=brackets)
    chat.key("C-c")
    chat.type("next")  # at once
    chat.wait("2: you said next")
    assert "line 0" not in chat.screen()


@pytest.mark.parametrize("chat", ["--delay 0.05"], indirect=True)
def test_input_right_after_ctrl_c_is_the_next_message(chat):
    """The keys arrive in one write, so no program can separate them by time."""
    for number in (1, 2, 3):
        chat.type("x " * 100)
        chat.wait(f"{2 * number - 1}: you said")
        chat.type(f"dropped\x03kept {number}\r", enter=False)
        chat.wait(f"{2 * number}: you said kept {number}")
    assert "dropped" not in chat.screen(history=True)
    chat.type("x " * 100)
    chat.wait("7: you said")
    chat.type("\x03\x03", enter=False)
    assert chat.left() == 130


@pytest.mark.parametrize("delay", ["", "--delay 0.05"])
def test_a_paste_into_a_dumb_terminal_is_one_message(tmp_path, delay):
    chat = open_chat(tmp_path, delay, TERM="dumb")
    try:
        chat.type("hello " * (5 if delay else 1))
        chat.wait("you said hello")
        chat.paste("one\ntwo\nthree\n", brackets=False)
        chat.wait("you said one\ntwo\nthree")
        chat.type("/stats")
        chat.wait("answers  2")
        chat.key("C-d")
        assert chat.left() == 0
    finally:
        chat.close()


def test_emoji_and_cjk_are_typed_and_answered(chat):
    chat.type("こんにちは 👍🏽 世界")
    chat.wait("1: you said こんにちは 👍🏽 世界")
    chat.key("Up", "BSpace", "BSpace", "Enter")
    chat.wait("2: you said こんにちは 👍🏽")


def test_a_message_may_have_several_lines(chat):
    chat.type('"""first', enter=True)
    chat.type("second", enter=True)
    chat.type('third"""', enter=True)
    until(lambda: "third" in chat.screen().partition("you said first")[2])
    chat.type("a", enter=False)
    chat.key("C-j")
    chat.type("b", enter=True)
    chat.wait("2: you said a\nb")


@pytest.mark.parametrize("chat", ["--delay 0.01"], indirect=True)
def test_after_a_resize_in_mid_answer_new_text_wraps_at_the_new_width(chat):
    chat.type("/stats off")
    chat.type("word " * 150)
    chat.wait("1: you said")
    chat.resize(40, 24)
    lines = chat.wait("word\n\n>").splitlines()
    after = lines[next(at for at, line in enumerate(lines) if "you said" in line) + 3 :]
    assert len(after) > 6
    assert all(set(line.split()) <= {"word", ">"} for line in after)


@pytest.mark.parametrize("chat", ["--delay 0.03"], indirect=True)
def test_reading_a_long_prompt_shows_its_progress(chat):
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


def test_a_closed_terminal_leaves_the_shown_text_in_the_session(tmp_path):
    chat = open_chat(tmp_path, "--session talk.chat --delay 0.02")
    try:
        chat.type("a " * 200)
        chat.wait("you said a")
    finally:
        chat.close()
    saved = tmp_path / "talk.chat"
    until(lambda: saved.exists() and "you said a" in saved.read_text())


@pytest.mark.parametrize(("kind", "answering"), [("SIGTERM", False), ("SIGTERM", True), ("SIGHUP", False)])
def test_a_signal_saves_the_session_and_ends(tmp_path, kind, answering):
    chat = open_chat(tmp_path, "--session talk.chat --delay 0.02")
    try:
        chat.type("a " * (200 if answering else 20))
        chat.wait("you said a")
        if not answering:
            chat.wait("answer")
        number = getattr(signal, kind)
        os.kill(chat.pid(), number)
        assert chat.left() == 128 + number
        assert "you said a" in (tmp_path / "talk.chat").read_text()
    finally:
        chat.close()


def test_an_interrupt_ends_the_chat_without_a_keypress(tmp_path):
    """The signal comes from outside, at the prompt, where no key was pressed."""
    chat = open_chat(tmp_path, "--session talk.chat")
    try:
        chat.type("kept")
        chat.wait("answer")
        os.kill(chat.pid(), signal.SIGINT)
        assert chat.left() == 130
        assert "kept" in (tmp_path / "talk.chat").read_text()
    finally:
        chat.close()


@pytest.mark.parametrize("chat", ["--delay 0.05"], indirect=True)
def test_input_during_an_answer_is_the_next_message(chat):
    chat.type("first")
    chat.wait("1: you said")
    chat.type("typed ahead")
    chat.wait("2: you said typed ahead")


def test_default_restores_the_setting_of_the_chat(chat):
    chat.type("/set temperature 0.1")
    chat.wait("temperature 0.1")
    chat.type("/set temperature default")
    chat.wait("temperature 0.8")
    chat.type("/set seed 7")
    chat.wait("seed 7")
    chat.type("/set seed none")
    chat.wait("seed random")


def test_a_full_context_is_reported_with_remedies(tmp_path):
    model = OWN / "tiny-llama.gguf"
    options = "--device cpu --temperature 0 --template chatml --context 128"
    chat = Terminal(f"{PYTHON} -m rwkv_gpu.cli.main chat {model} {options}", tmp_path, width=100, height=50)
    try:
        chat.wait("/help lists commands")
        chat.type("hello")
        assert "/undo removes the last question" in chat.wait("the context of 128 tokens is full")
        chat.type("/stats")
        chat.wait("context  128 of 128 tokens, full")
        chat.type("again")
        assert "set truncate" not in chat.wait("and --context-shift leaves")
        chat.type("/undo")
        chat.wait("the chat is empty")
        chat.key("C-d")
        assert chat.left() == 0
    finally:
        chat.close()


# ---------------------------------------------------------------- sessions


def session(folder, name="my.chat", options="", before=""):
    command = f"{before}{PYTHON} -m tests.cli.fake_chat --session {name} {options}"
    terminal = Terminal(command, folder, width=100, HOME=str(folder))
    terminal.wait(">")
    return terminal


def kept(folder, name="my.chat"):
    """Returns the questions in each branch of a file, and the current branch."""
    current, chats = json.loads((folder / name).read_text())
    return [[m["content"] for m in chat if m["role"] == "user"] for chat in chats], current


def say(chat, text):
    chat.type(text)
    chat.wait(f"you said {text}")
    chat.wait("answer")


def leave(chat, code=0):
    chat.type("/exit")
    assert chat.left() == code
    chat.close()


def test_a_session_keeps_all_branches_and_the_current_one(tmp_path):
    chat = session(tmp_path)
    say(chat, "one")
    chat.type("/fork")
    say(chat, "two")
    chat.type("/fork 1")
    chat.wait("branch 1 of 2")
    leave(chat)
    assert kept(tmp_path) == ([["one"], ["one", "two"]], 0)
    chat = session(tmp_path)
    chat.type("/fork 2")
    chat.wait("> two")
    leave(chat)
    assert kept(tmp_path) == ([["one"], ["one", "two"]], 1)


def test_messages_before_a_reset_stay_in_the_file(tmp_path):
    chat = session(tmp_path)
    say(chat, "one")
    chat.type("/reset")
    chat.wait("cleared; /fork 1 goes back")
    chat.type("/reset")
    say(chat, "two")
    leave(chat)
    assert kept(tmp_path) == ([["one"], ["two"]], 1)


def test_load_continues_in_the_other_file_and_does_not_change_the_first(tmp_path):
    for name in ("a", "b"):
        chat = session(tmp_path, name)
        say(chat, f"in {name}")
        leave(chat)
    chat = session(tmp_path, "a")
    chat.type("/load b")
    chat.wait("loaded b")
    say(chat, "more")
    leave(chat)
    assert kept(tmp_path, "a") == ([["in a"]], 0)
    assert kept(tmp_path, "b") == ([["in b", "more"]], 0)


def test_save_never_overwrites_a_file_that_the_chat_has_not_opened(tmp_path):
    (tmp_path / "other").write_text("mine")
    chat = session(tmp_path)
    say(chat, "one")
    chat.type("/save other")
    chat.wait("other exists, and this chat has not opened it; /save! other")
    assert (tmp_path / "other").read_text() == "mine"
    chat.type("/save! other")
    chat.wait("copied to other; this chat is still saved to my.chat")
    say(chat, "two")
    assert kept(tmp_path, "other") == ([["one"]], 0)
    chat.type("/save other")
    chat.wait("copied to other", history=True)
    chat.type("/save ~/home.chat")
    chat.wait("copied to ~/home.chat")
    leave(chat)
    assert kept(tmp_path) == kept(tmp_path, "other") == kept(tmp_path, "home.chat") == ([["one", "two"]], 0)


def test_load_does_not_drop_an_unsaved_chat(tmp_path):
    other = session(tmp_path, "b")
    say(other, "in b")
    leave(other)
    chat = open_chat(tmp_path)
    say(chat, "unsaved")
    chat.type("/load b")
    chat.wait("this chat is not saved; /save FILE saves it, /load! b")
    say(chat, "still here")
    chat.type("/load! b")
    chat.wait("loaded b")
    leave(chat)


def test_a_second_chat_on_the_same_file_is_warned_and_nothing_is_lost(tmp_path):
    first = session(tmp_path)
    say(first, "one")
    (tmp_path / "second").mkdir()
    command = f"{PYTHON} -m tests.cli.fake_chat --session ../my.chat"
    second = Terminal(command, tmp_path / "second", width=100)
    second.wait("is writing it")
    assert second.left() != 0
    second.close()
    third = open_chat(tmp_path / "second")
    third.type("/load ../my.chat")
    third.wait("is writing it")
    third.type("/save! ../my.chat")
    third.wait("is writing it")
    third.close()
    say(first, "two")
    leave(first)
    assert kept(tmp_path) == ([["one", "two"]], 0)


def test_a_file_that_another_program_has_changed_is_not_overwritten(tmp_path):
    chat = session(tmp_path)
    say(chat, "one")
    (tmp_path / "my.chat").unlink()
    (tmp_path / "my.chat").write_text("mine")
    say(chat, "two")
    chat.wait("another program has changed it")
    chat.key("C-d")
    chat.wait("Ctrl-D again leaves")
    chat.type("/save new.chat")
    chat.wait("copied to new.chat")
    chat.key("C-d")
    chat.wait("Ctrl-D again leaves")
    chat.key("C-d")
    assert chat.left() != 0
    chat.close()
    assert (tmp_path / "my.chat").read_text() == "mine"
    assert kept(tmp_path, "new.chat") == ([["one", "two"]], 0)


def test_a_full_disk_leaves_the_old_file_and_the_chat_continues(tmp_path):
    chat = session(tmp_path, before="ulimit -f 16; ")
    say(chat, "one")
    chat.paste("long " * 4000)
    chat.key("Enter")
    chat.wait("File too large; the old file is as it was")
    assert kept(tmp_path) == ([["one"]], 0)
    chat.type("/undo")
    chat.wait("the last question is now: one")
    say(chat, "two")
    leave(chat)
    assert kept(tmp_path) == ([["one", "two"]], 0)


def test_a_kill_leaves_the_last_save_and_frees_the_file(tmp_path):
    chat = session(tmp_path)
    say(chat, "one")
    os.kill(chat.pid(), signal.SIGKILL)
    chat.wait("left 137")
    chat.close()
    chat = session(tmp_path)
    say(chat, "two")
    leave(chat)
    assert kept(tmp_path) == ([["one", "two"]], 0)


def test_a_session_without_messages_leaves_no_file(tmp_path):
    chat = session(tmp_path)
    assert (tmp_path / "my.chat").exists()
    chat.key("C-d")
    assert chat.left() == 0
    chat.close()
    assert not (tmp_path / "my.chat").exists()


def test_a_chat_works_with_a_real_model(tmp_path):
    model = OWN / "tiny-rwkv7.gguf"
    command = f"{PYTHON} -m rwkv_gpu.cli.main chat {model} --device cpu -n 12 --temperature 0 --template chatml"
    chat = Terminal(command, tmp_path, width=100, height=50)
    try:
        chat.wait("/help lists commands")
        chat.type("hello")
        chat.wait("answer 12 tokens")
        chat.type("once more")
        chat.wait("reused")
        chat.type("/save talk.chat")
        chat.wait("saved to talk.chat")
        chat.type("/fork")
        chat.wait("branch 2")
        chat.type("/reset")
        chat.wait("cleared")
        chat.type("/fork 1")
        chat.wait("branch 1 of 3")
        chat.type("/load talk.chat")
        chat.wait("4 messages")
        chat.type("/set max_tokens 100000")
        chat.wait("max_tokens 100000")
        chat.type("/set stop")
        chat.resize(100, 12)
        chat.type("/regen")
        chat.wait("/regen")
        chat.wait("/regen", gone=True)  # its answer is so long that the screen scrolls
        chat.key("C-c")
        chat.wait("stopped")
        chat.resize(100, 50)
        chat.type("/set heat 3")
        chat.wait("unknown setting 'heat'")
        chat.key("C-d")
        assert chat.left() == 0
    finally:
        chat.close()
