"""`/model` in the chat changes the model. If that fails, nothing is lost."""

import signal
from types import SimpleNamespace

import pytest

from rwkv_gpu.cli import chat_model
from rwkv_gpu.cli.chat_model import ChatModel
from rwkv_gpu.cli.conversation import Conversation
from rwkv_gpu.cli.screen import Screen
from rwkv_gpu.errors import BadFile, BadInput, OutOfMemory
from tests.cli.tmux import PYTHON, Terminal
from tests.golden_files import OWN

FIRST, SECOND = OWN / "tiny-rwkv7.gguf", OWN / "tiny-llama.gguf"


class Asks:
    """A simulated user who gives the same reply to every question."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def choose(self, question):
        self.asked.append(question)
        return self.answer


@pytest.fixture
def conversation():
    signals = SimpleNamespace(on_signal=None, leave=lambda number: None)
    loading = {"device": "cpu", "sequences": 2, "draft_tokens": 3, "lookup": True}
    model = ChatModel(str(FIRST), Screen(color=False), signals, loading, warm=False)
    chats = [model.llm.chat(template="chatml", **{**model.defaults, "max_tokens": 4, "seed": n}) for n in (1, 2)]
    conversation = Conversation(model.llm, Screen(color=False), Asks("n"), chats, defaults=model.defaults, model=model)
    for chat in chats:
        chat.send("hello")
    yield conversation
    model.close()


def texts(conversation):
    return [chat.messages for chat in conversation.branches]


def test_all_branches_continue_with_the_new_model(conversation, capsys):
    before = texts(conversation)
    assert conversation.change_model(str(SECOND))
    assert conversation.llm.info.architecture == "llama"
    assert texts(conversation) == before
    assert [chat.settings["seed"] for chat in conversation.branches] == [1, 2]
    assert conversation.chat.send("and?").tokens
    assert "without --draft-tokens, which belonged to the previous model" in capsys.readouterr().err
    assert not conversation.change_model(str(SECOND))


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nowhere", BadInput),
        ("./nowhere.gguf", BadInput),
        (str(OWN), BadInput),
        (__file__, BadFile),
        (str(OWN / "tiny-bert.gguf"), BadInput),
        ("qwen3.5:4b", BadInput),  # the user refuses the download
    ],
)
def test_a_model_that_cannot_chat_leaves_the_one_in_use_alone(conversation, name, error):
    llm, before = conversation.llm, texts(conversation)
    with pytest.raises(error):
        conversation.change_model(name)
    assert conversation.llm is llm
    assert texts(conversation) == before
    assert bool(conversation.source.asked) == (name == "qwen3.5:4b")
    assert conversation.chat.send("and?").tokens


def test_a_model_without_the_template_that_the_chat_needs_is_refused(conversation):
    own = SimpleNamespace(has_own_template=True)
    conversation.branches.append(own)
    with pytest.raises(Exception, match="no chat template"):
        conversation.change_model(str(SECOND))
    assert conversation.llm.generate("a").tokens  # it is open


@pytest.mark.parametrize("reason", ["memory", "Ctrl-C"])
def test_if_loading_fails_the_previous_model_continues_with_the_same_tokens(conversation, monkeypatch, reason):
    ids, loads = conversation.chat._transcript.ids, []
    real = chat_model.load_model

    def load(path, screen, on_progress=lambda: None, **loading):
        loads.append(path)
        if len(loads) == 1 and reason == "memory":
            raise OutOfMemory("too large")
        if len(loads) == 1:
            conversation.model._signals.on_signal(signal.SIGINT)
        return real(path, screen, on_progress=on_progress, **loading)

    monkeypatch.setattr(chat_model, "load_model", load)
    with pytest.raises(OutOfMemory if reason == "memory" else KeyboardInterrupt):
        conversation.change_model(str(SECOND))
    assert loads == [str(SECOND), str(FIRST)]
    assert conversation.llm.info.architecture == "rwkv7"
    assert conversation.chat._transcript.ids == ids
    assert conversation.chat.send("and?").tokens
    assert conversation.model._signals.on_signal is None


@pytest.mark.long
def test_a_session_continues_with_the_model_that_was_chosen_last(tmp_path):
    options = "--device cpu --temperature 0 --template chatml -n 8 --session my.chat"
    command = f"{PYTHON} -m rwkv_gpu.cli.main chat {{}} {options}"
    chat = Terminal(command.format(SECOND), tmp_path, height=50)
    try:
        chat.wait("/help lists")
        chat.type("hello")
        chat.wait("answer 8")
        chat.type("/model qwen3.5:4b")
        chat.wait("[Y/n]")
        chat.type("n")
        chat.wait("nothing was downloaded")
        chat.type(f"/model {FIRST}")
        chat.wait("it reads this chat with your next question")
        chat.type("/show")
        chat.wait("tiny-rwkv7: rwkv7")
        chat.key("C-d")
        assert chat.left() == 0
    finally:
        chat.close()
    chat = Terminal(command.format(FIRST), tmp_path)
    try:
        assert "> hello" in chat.wait("/help lists")
        chat.key("C-d")
        assert chat.left() == 0
    finally:
        chat.close()
