"""Tool calls in the chat are shown, confirmed once or always, refused, stopped, and bounded on the screen."""

import contextlib
import json
import os
import signal
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.chat_tools import ChatTools
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.cli.screen import Screen
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.chat import NOT_CALLED
from rwkv_gpu.mcp.client import RemoteTool
from rwkv_gpu.mcp.result import Result
from tests.cli.tmux import PYTHON, ROOT, Terminal
from tests.golden_files import OWN
from tests.process import SIGNALS, until

MODEL = OWN / "tiny-rwkv7.gguf"
CALL = r'Sure\.<tool_call>\n\{"name": "add", "arguments": \{"a": 1, "b": 2\}\}\n</tool_call>'


class Servers:
    """A tool server with one tool, which repeats its arguments."""

    def __init__(self, answers=True):
        self.tools, self.faults, self.called = [RemoteTool("add", "tiny", "add", "Adds.\nMore.", {})], [], []
        self._answers = answers

    def tool(self, name):
        return self.tools[0] if name == "add" else None

    def begin(self, name, arguments):
        self.called.append(arguments)
        future = Future()
        if self._answers:
            future.set_result(Result(arguments if name == "add" else "error: no tool", name != "add"))
        return future


def tools(*answers, servers=None):
    left = iter(answers)
    source = SimpleNamespace(choose=lambda *_: next(left))
    return ChatTools(servers or Servers(), Screen(color=False), source)


def results(chat_tools, *arguments, name="add", stopped=lambda: False):
    return chat_tools.results([{"name": name, "arguments": one} for one in arguments], stopped)


def test_a_call_is_shown_and_runs_if_the_user_agrees(capsys):
    servers = Servers()
    assert results(tools("y", "", "no", "ok?", servers=servers), "1", "2", "3", "4") == ["1", *[NOT_CALLED] * 3]
    assert servers.called == ["1"]
    assert "tiny: add(1)" in capsys.readouterr().err


def test_a_tool_can_be_allowed_for_the_whole_chat():
    allowing = tools("a")
    assert results(allowing, "1", "2", "3") == ["1", "2", "3"]
    assert allowing.lines() == ["add, of tiny (always allowed): Adds."]


def test_the_user_is_not_asked_about_an_unknown_tool(capsys):
    assert results(tools(), "1", name="nonsense") == ["error: no tool"]
    assert "error: no tool" in capsys.readouterr().err


def test_no_tool_runs_without_a_terminal_to_ask_on():
    def no_answer(*_):
        raise EOFError

    chat_tools = ChatTools(Servers(), Screen(color=False), SimpleNamespace(choose=no_answer))
    with pytest.raises(BadInput, match="-y allows all calls"):
        results(chat_tools, "1")


def test_ctrl_c_ends_a_call_that_takes_long():
    with pytest.raises(KeyboardInterrupt):
        results(tools("y", servers=Servers(answers=False)), "1", stopped=lambda: True)


def test_shown_results_have_no_control_characters_and_are_cut(capsys):
    text = "\x1b[2J" + "x" * 10_000
    assert results(tools("y"), text) == [text]
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and len(shown) < 6000


def test_a_server_that_ends_is_reported_once(capsys):
    servers = Servers()
    told = tools("a", servers=servers)
    servers.faults = ["MCP server tiny has ended"]
    results(told, "1", "2")
    assert capsys.readouterr().err.count("has ended") == 1


def config(folder, **servers):
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


TINY = {"command": sys.executable, "args": ["-m", "tests.mcp.tiny_server"], "cwd": str(ROOT)}


@pytest.mark.long
def test_a_question_on_the_command_line_needs_yes_for_calls(tmp_path):
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    options = ["--device", "cpu", "--temperature", "0", "--template", "chatml", "-n", "90"]
    path = str(config(tmp_path, tiny=TINY, gone={"command": "nonsense-command"}))
    refused = CliRunner().invoke(cli, ["chat", str(MODEL), "-p", "1 + 2?", "--mcp", path, "--regex", CALL, *options])
    assert "tools of MCP servers: tiny (5)" in refused.stderr
    assert "MCP server gone cannot be started" in refused.stderr
    assert "the model calls add, and there is no terminal to ask on; -y allows all calls" in refused.stderr
    assert refused.exit_code == 2
    assert refused.stdout.strip() == "Sure."
    for wrong in (str(tmp_path / "none"), str(MODEL)):
        result = CliRunner().invoke(cli, ["chat", str(MODEL), "hi there", "--mcp", wrong, *options])
        assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1


def test_a_call_is_confirmed_in_a_terminal_and_the_chat_continues(tmp_path):
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    config(tmp_path, tiny=TINY)
    script = tmp_path / "chat.sh"
    options = "--device cpu --temperature 0 --template chatml --mcp mcp.json --session s.chat"
    script.write_text(f"exec {PYTHON} -m rwkv_gpu.cli.main chat {MODEL} {options} --regex '{CALL}'")
    chat = Terminal("sh chat.sh", tmp_path, height=60)
    try:
        chat.wait("/help lists")
        chat.type("/tools")
        chat.wait("add, of tiny: Adds two numbers.")
        chat.type("what is 1 + 2")
        chat.wait("run it? y: once, a: always, N: no")
        chat.type("y")
        screen = chat.wait('tiny: add({"a": 1, "b": 2})\nrun it? y: once, a: always, N: no y\n3')
        assert "<tool_call>" not in screen
        chat.key("C-c")
        chat.type("/history")
        chat.wait("> what is 1 + 2\nSure.")
        chat.key("C-d")
        assert chat.left() == 0
    finally:
        chat.close()


@contextlib.contextmanager
def asked_about_a_call_that_hangs(folder, **environment):
    """A chat in a terminal that asks whether a tool may run which never answers, and the process of the tool."""
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    config(folder, tiny=TINY)
    hang = CALL.replace("add", "hang").replace(r'"a": 1, "b": 2', "")
    script = folder / "chat.sh"
    options = "--device cpu --temperature 0 --template chatml --mcp mcp.json --session s.chat"
    script.write_text(f"exec {PYTHON} -m tests.cli.unhurried chat {MODEL} {options} --regex '{hang}'")
    chat = Terminal("sh chat.sh", folder, height=60, **environment)
    try:
        chat.wait("/help lists")
        [server] = children(chat.pid())
        assert "SigBlk:\t0000000000000000" in Path(f"/proc/{server}/status").read_text(), "signals do not end the tool"
        chat.type("what is 1 + 2")
        chat.wait("run it? y: once, a: always, N: no")
        yield chat, server
    finally:
        chat.close()


def leaves(chat, number, server):
    """Checks that a signal ends a chat and its tool."""
    if number == signal.SIGINT:
        chat.key("C-c")
        chat.wait("stopped; Ctrl-C again leaves")
        chat.key("C-c")
    else:
        os.kill(chat.pid(), number)
    assert chat.left() == (130 if number == signal.SIGINT else 128 + number)
    until(lambda: not Path(f"/proc/{server}").exists())


@pytest.mark.long
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_during_a_call_that_hangs_ends_the_chat_and_the_server(tmp_path, number):
    with asked_about_a_call_that_hangs(tmp_path) as (chat, server):
        chat.type("y")
        chat.wait("N: no y")
        leaves(chat, number, server)


@pytest.mark.long
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_a_signal_while_the_chat_asks_whether_to_run_a_tool_ends_it(tmp_path, number, kind):
    """The chat dropped what was typed, went on asking, and ended after 30 seconds without saving."""
    with asked_about_a_call_that_hangs(tmp_path, TERM=kind) as (chat, server):
        leaves(chat, number, server)
        assert (tmp_path / "s.chat").exists()


@pytest.mark.long
def test_ctrl_c_at_once_after_the_answer_stops_the_call(tmp_path):
    """The prompt read both keys, and kept the second for the next prompt."""
    with asked_about_a_call_that_hangs(tmp_path) as (chat, _):
        chat.key("y", "Enter", "C-c")
        chat.wait("stopped; Ctrl-C again leaves")
        chat.key("C-d")
        assert chat.left() == 0


def children(pid):
    """Returns the processes that a process has started."""
    return [int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]
