"""Tests of `rwkv-gpu chat` with a model: through a pipe, with a session, and its refusals."""

import hashlib
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu import Completion, Stats
from rwkv_gpu.cli.chat_stats import Totals
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.cli.conversation import Conversation
from rwkv_gpu.cli.repl import Repl
from rwkv_gpu.cli.slash import history
from rwkv_gpu.cli.terminal import Bursts
from rwkv_gpu.errors import BadInput
from tests.golden_files import OWN
from tests.process import posix

MODEL = OWN / "tiny-rwkv7.gguf"


def run(*arguments: object, stdin: bytes | str = "hello"):
    given = ["chat", *map(str, arguments), "--device", "cpu", "-n", "12", "--temperature", "0"]
    return CliRunner().invoke(cli, given, input=stdin)


@pytest.mark.parametrize("arch", ["rwkv7", "llama", "qwen3"])
def test_piped_input_is_answered_and_nothing_else_is_printed(arch):
    path = OWN / f"tiny-{arch}.gguf"
    result = run(path, "--template", "chatml", "--system", "Be brief.")
    with rwkv_gpu.load(path, device="cpu") as llm:
        chat = llm.chat("Be brief.", template="chatml", temperature=0.0, max_tokens=12)
        assert result.stdout.strip() == chat.send("hello").text.strip()
    assert result.exit_code == 0
    assert all("was cut off at 12 tokens" in line for line in result.stderr.splitlines())


def test_a_template_may_come_from_a_file(tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text("{% for m in messages %}{{ m.content }}{% endfor %}", encoding="utf-8")
    result = run(MODEL, "--template", path)
    assert result.exit_code == 0
    with rwkv_gpu.load(MODEL, device="cpu") as llm:
        assert (
            result.stdout.strip()
            == llm.chat(template=path.read_text()).send("hello", temperature=0.0, max_tokens=12).text.strip()
        )


def test_a_session_continues_from_one_run_to_the_next(tmp_path):
    path = tmp_path / "talk.chat"
    first, second = (run(MODEL, "--session", path, stdin=text).stdout for text in ("one", "two"))
    with rwkv_gpu.load(MODEL, device="cpu") as llm:
        chat = llm.load_chat(path)
        assert [m["role"] for m in chat.messages] == ["user", "assistant"] * 2
        assert [m["content"] for m in chat.messages[::2]] == ["one", "two"]
        assert [m["content"].strip() for m in chat.messages[1::2]] == [first.strip(), second.strip()]
        assert chat.settings["max_tokens"] == 12


def test_a_chat_that_cannot_begin_leaves_no_lock(tmp_path):
    path = tmp_path / "talk"
    path.write_text("no chat")
    for model in (MODEL, "nowhere.gguf"):
        assert run(model, "--session", path, stdin="a").exit_code == 2
        assert [one.name for one in tmp_path.iterdir()] == ["talk"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (["nowhere.gguf"], "a", "nowhere.gguf"),
        (["."], "a", "directory"),
        ([__file__], "a", "GGUF"),
        ([MODEL, "--template", "nope"], "a", "nope is not a file or a built-in chat template; known: rwkv-world"),
        ([MODEL, "--session", MODEL], "a", str(MODEL)),
        ([MODEL, "--session", "."], "a", "directory"),
        ([MODEL, "--chunk-size", "0"], "a", "--chunk-size"),
        ([MODEL, "--min-p", "1.5"], "a", "--min-p"),
        ([MODEL], "", "standard input is empty"),
        ([MODEL], b"\xff", "not UTF-8 at byte 0"),
    ],
)
def test_bad_input_is_refused_in_one_line_with_exit_code_2(arguments, stdin, says):
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("number", ["0", "x", "-1", "²", "9" * 5000])
def test_numbers_of_slash_commands_may_be_any_text(number):
    with pytest.raises(BadInput, match="there is no branch"):
        Conversation.switch(SimpleNamespace(branches=[None]), number)
    with pytest.raises(BadInput, match="number of messages"):
        history(SimpleNamespace(), "x" + number)
    if len(number) > 10:
        with pytest.raises(BadInput, match="number of messages"):
            history(SimpleNamespace(), number)


def test_a_session_of_another_model_is_refused_and_not_changed(tmp_path):
    path = tmp_path / "talk.chat"
    run(MODEL, "--session", path)
    before = path.read_bytes()
    result = run(OWN / "tiny-llama.gguf", "--template", "chatml", "--session", path)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["nodir/a.chat", ".", "/proc/a.chat", "a" * 300, "pipe"])
def test_a_session_that_cannot_be_saved_is_an_error_before_the_model_is_loaded(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo("pipe")
    result = run("no-such-model.gguf", "--session", name)
    assert result.exit_code == 2
    assert "give another file" in result.stderr or "cannot be read" in result.stderr or "no-such" in result.stderr
    assert ("no-such-model" in result.stderr) == (name == "pipe")
    assert result.stderr.count("\n") == 1


def test_options_apply_to_a_session_that_exists(tmp_path):
    path = tmp_path / "my.chat"
    run(MODEL, "--session", path, "--template", "chatml", stdin="one")
    run(MODEL, "--session", path, "--template", "zephyr", "--system", "Be brief.", "--top-k", "7", stdin="two")
    with rwkv_gpu.load(MODEL, device="cpu") as llm:
        chat = llm.load_chat(path)
        assert chat.template.source == llm.chat(template="zephyr").template.source
        assert chat.system == "Be brief."
        assert chat.settings["top_k"] == 7
        assert [m["content"] for m in chat.messages if m["role"] == "user"] == ["one", "two"]


@pytest.mark.parametrize("option", ["--think", "--no-think"])
def test_a_model_without_a_thinking_mode_prints_a_note_and_answers_as_usual(option):
    plain, asked = run(MODEL), run(MODEL, option)
    assert asked.stdout == plain.stdout
    assert "this model has no thinking mode" in asked.stderr
    assert asked.exit_code == 0
    thinking = run(MODEL, option, "--template", "rwkv-g1")
    assert "no thinking mode" not in thinking.stderr


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    for name in ("HOME", "USERPROFILE"):  # of POSIX, and of Windows
        monkeypatch.setenv(name, str(tmp_path))
    assert run(MODEL, "--session=~/my.chat").exit_code == 0
    assert (tmp_path / "my.chat").exists()


def test_the_digest_of_the_model_is_stored_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path / "cache"))
    run(MODEL, "--session", tmp_path / "my.chat")
    [entry] = (tmp_path / "cache" / "digests").iterdir()
    assert hashlib.sha256(MODEL.read_bytes()).hexdigest() in entry.read_text()


@posix
def test_a_closed_pipe_is_not_reported():
    command = f"echo hello | {sys.executable} -m rwkv_gpu.cli.main chat {MODEL} --device cpu -n 400 | head -c 5"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert done.stderr == b""
    assert len(done.stdout) <= 5


def test_without_a_model_the_built_in_one_answers_within_seconds():
    """The time is CPU time, so other load on the machine does not change it."""
    command = [sys.executable, "-m", "rwkv_gpu.cli.main", "chat", "--device", "cpu"]
    before = os.times()
    done = subprocess.run(command, input=b"Hello! Who are you?", capture_output=True, check=True)
    after = os.times()
    assert b"rwkv-gpu" in done.stdout
    assert after.children_user + after.children_system - before.children_user - before.children_system < 4


def test_a_full_chat_continues_without_its_oldest_turns_if_asked_to(tmp_path):
    model = OWN / "tiny-llama.gguf"
    options = ["--context", "128", "--template", "chatml", "--session", tmp_path / "s"]
    for turn in range(4):
        done = run(model, *options, "--context-shift", stdin=f"Say {turn}.")
        assert done.exit_code == 0, done.stderr
    assert run(model, *options, stdin="And now?").exit_code == 0  # the session has stored it


def test_totals_count_computed_tokens_and_no_prompt_that_was_stopped():
    totals = Totals()
    totals.add(Completion("", (), "abort", Stats(8000, 0, 0, 0.01, 0.0)))  # Ctrl-C while the prompt was read
    totals.add(Completion("ab", (1, 2), "stop", Stats(50, 10, 2, 0.5, 0.1)))
    assert totals.lines() == ["answers  1, 2 tokens, 10.0 tok/s", "prompts  50 tokens, 10 of them reused, 80.0 tok/s"]


def test_input_before_ctrl_c_is_dropped_before_the_answer_stops():
    order = []
    source = SimpleNamespace(discard=lambda: order.append(("discard", repl._stopping)))
    conversation = SimpleNamespace(screen=None, source=source, session=None)
    repl = Repl(conversation, SimpleNamespace(), interactive=True)
    repl._answer = SimpleNamespace(close=lambda: order.append(("close", repl._stopping)))
    repl._stop(signal.SIGINT)
    assert order == [("discard", False), ("close", True)]


def test_input_that_arrives_together_with_dropped_input_is_read(monkeypatch):
    typed = iter(["old line\r", "new"])
    bursts = Bursts(0, lambda: next(typed))

    def ready(_seconds):
        bursts.drop()
        return True

    monkeypatch.setattr(bursts, "_ready", ready)
    assert bursts.next() == "new"


@pytest.mark.parametrize(
    ("typed", "key", "interrupts", "rest"),
    [
        ("y\r\x03", "\x03", 1, ""),  # was a paste of two lines
        ("one\rtwo\x03three\r", "\x03three\r", 1, "three\r"),
        ("\x03\x03", "\x03\x03", 2, ""),
        ("one\r", "one\r", 0, "one\r"),
    ],
)
def test_ctrl_c_drops_what_was_typed_before_it_and_is_never_part_of_a_paste(monkeypatch, typed, key, interrupts, rest):
    monkeypatch.setattr(Bursts, "_ready", lambda *_: False)
    assert Bursts(0, lambda: typed).next() == key
    called = []
    assert Bursts(0, lambda: typed).next(lambda: called.append(1)) == rest
    assert len(called) == interrupts
