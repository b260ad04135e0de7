"""Commands that print results while they work, in a real terminal: the printed text stays complete."""

import json
import os

import pytest

import rwkv_gpu
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.llm.completion import CHAT_DEFAULTS
from tests.cli.tmux import PYTHON, Terminal
from tests.golden_files import OWN
from tests.process import posix

EAGER = f"{PYTHON} -m tests.cli.eager_bars"
MODEL = OWN / "tiny-rwkv7.gguf"
GREEDY = "--device cpu --temperature 0 --seed 1"

pytestmark = posix


def shown_by(command: str, folder) -> str:
    """Returns all text that an 80-column terminal shows of a command. Wrapped lines are joined."""
    terminal = Terminal(f"{EAGER} {command}", folder, height=50)
    try:
        assert terminal.left() == 0
        return terminal.screen(history=True, joined=True)
    finally:
        terminal.close()


@pytest.fixture(scope="module")
def sea():
    """Returns the built-in model's continuation of "The sea", which has several lines."""
    with rwkv_gpu.load(builtin_model(), device="cpu") as llm:
        return llm.generate("The sea", temperature=0, max_tokens=120, seed=1).text


def test_generated_text_stays_on_the_screen(sea, tmp_path):
    screen = shown_by(f'generate {GREEDY} -p "The sea" -n 120', tmp_path)
    assert squeezed(sea) in squeezed(screen)
    assert "generating" not in screen


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no disk that is always full")
def test_a_full_disk_is_reported_once(tmp_path):
    terminal = Terminal(f"{EAGER} generate {GREEDY} {MODEL} -p hello -n 5 > /dev/full", tmp_path)
    try:
        assert terminal.left() == 2
        assert terminal.screen().count("No space left on device") == 1
    finally:
        terminal.close()


def test_an_echoed_prompt_stays_in_front_of_its_text(sea, tmp_path):
    screen = shown_by(f'generate {GREEDY} -p "The sea" -n 120 --echo', tmp_path)
    assert squeezed("The sea" + sea) in squeezed(screen)


@pytest.mark.parametrize("command", ["chat", "run builtin", "generate --chat -p"])
def test_an_answer_stays_on_the_screen(command, tmp_path):
    with rwkv_gpu.load(builtin_model(), device="cpu") as llm:
        answer = llm.chat(**CHAT_DEFAULTS).send("What is the sea?", temperature=0, seed=1, max_tokens=60).text
    screen = shown_by(f'{command} "What is the sea?" {GREEDY} -n 60', tmp_path)
    assert squeezed(answer) in squeezed(screen)


def test_each_embedding_stays_a_line_of_json(tmp_path):
    screen = shown_by(f"embed {MODEL} --device cpu " + " ".join(f"text{i}" for i in range(70)), tmp_path)
    rows = [json.loads(line) for line in screen.split("\n") if line.startswith("[")]
    assert len(rows) == 70


def test_each_result_of_a_batch_stays_a_line_of_json(tmp_path):
    lines = "".join(json.dumps({"id": i, "prompt": "hello"}) + "\n" for i in range(30))
    (tmp_path / "in.jsonl").write_text(lines, encoding="utf-8")
    screen = shown_by(f"batch {MODEL} in.jsonl - --device cpu -n 9 --sequences 2", tmp_path)
    rows = [json.loads(line) for line in screen.split("\n") if line.startswith('{"id"')]
    assert sorted(row["id"] for row in rows) == [*range(30)]


def squeezed(text: str) -> str:
    """Removes the blanks and line ends that a terminal adds or drops."""
    return "".join(text.split())
