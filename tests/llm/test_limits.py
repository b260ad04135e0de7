"""A limit allows exactly its number, and refuses one more."""

from types import SimpleNamespace

import pytest

from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.llm import (
    catalogue,
    chat_completion,
    drafts,
    hub,
    images,
    modelfile,
    openai_methods,
    preset,
    reasoning_options,
    saved_images,
    store,
    stored_states,
    tools,
)
from rwkv_gpu.llm.chat_completion import RequestFields
from rwkv_gpu.stores import MemoryStore

STARTS = SimpleNamespace(start=lambda: None)  # in place of a model's file


def picture(pixels: int) -> SimpleNamespace:
    return SimpleNamespace(size=SimpleNamespace(width=pixels, height=1))


def template_variables(characters: int) -> None:
    RequestFields.read({"chat_template_kwargs": {"a": "x" * (characters - len(repr({"a": ""})))}})


def request_tools(count: int) -> None:
    tools.Tools.read({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(count)]})


def other_vocabulary(count: int) -> None:
    drafts.check_vocabulary("a", range(count), range(8))  # type: ignore[arg-type]


def request_images(count: int) -> None:
    one = SimpleNamespace(tokens=1, identity=b"", picture=None)
    album = images.RequestImages(SimpleNamespace(image=lambda *_: one, context=None))  # type: ignore[arg-type]
    for _ in range(count):
        album.add(b"", "images[0]")


MOST = {
    "images": (images.MAX_IMAGES, request_images),
    "answers": (chat_completion.MOST, chat_completion.answers),
    "cache_salt": (chat_completion.LONGEST_SALT, lambda n: chat_completion.salt_field({"cache_salt": "x" * n})),
    "chat_template_kwargs": (chat_completion.MAX_VARIABLES, template_variables),
    "reasoning tokens": (reasoning_options.MOST - 1, lambda n: reasoning_options.ReasoningOptions(limit=n)),
    "reasoning_budget_message": (
        reasoning_options.LONGEST,
        lambda n: reasoning_options.ReasoningOptions(message="x" * n),
    ),
    "tools": (tools.MOST, request_tools),
    "texts": (openai_methods.MAX_TEXTS, lambda n: openai_methods._texts_of("input", ["x"] * n)),
    "Modelfile": (modelfile.MOST, lambda n: modelfile.parse("FROM a\n".ljust(n))),
    "name of a copy": (store.LONGEST, lambda n: store.own_name("a" * n)),
    "pixels of a request": (images.MAX_PIXELS, lambda n: images.RequestImages(None)._spend(picture(n))),
    "pixels of a saved chat": (images.MAX_PIXELS, lambda n: saved_images._check_pixels([picture(n - 1), picture(1)])),
    "connections": (hub.MAX_CONNECTIONS, lambda n: hub.Hub(connections=n)),
    "ids that only a draft model has": (8 + drafts.PADDING, other_vocabulary),
    "ids that only the model has": (8 + drafts.PADDING, lambda n: drafts.check_vocabulary("a", range(8), range(n))),
}
LEAST = {
    "answers": (1, chat_completion.answers),
    "reasoning tokens": (0, lambda n: reasoning_options.ReasoningOptions(limit=n)),
    "connections": (1, lambda n: hub.Hub(connections=n)),
    "context of a preset": (1, lambda n: preset.Preset("a", context=n)),
    "store_key": (16, lambda n: stored_states.stored_states(MemoryStore(), bytes(n), "", STARTS, "")),
}


@pytest.mark.parametrize("name", MOST)
def test_an_upper_limit_is_allowed_and_one_more_is_not(name):
    most, call = MOST[name]
    call(most)
    with pytest.raises(RwkvGpuError):
        call(most + 1)


@pytest.mark.parametrize("name", LEAST)
def test_a_lower_limit_is_allowed_and_one_less_is_not(name):
    least, call = LEAST[name]
    call(least)
    with pytest.raises(RwkvGpuError):
        call(least - 1)


def test_a_file_of_the_largest_size_is_read_and_one_byte_more_is_refused(tmp_path):
    path = tmp_path / "a"
    preset.write_preset(path, preset.Preset("builtin"))
    known = path.read_bytes()
    model = b'[[model]]\nname = "qwen3:4b"\nrepository = "A/B"\nfile = "a.gguf"\n'
    for most, text, read in (
        (preset.MAX_BYTES, known, preset.read_preset),
        (catalogue.MAX_BYTES, model, lambda path: catalogue._text(str(path))),
    ):
        path.write_bytes(text.ljust(most))
        assert read(path)
        path.write_bytes(text.ljust(most + 1))
        with pytest.raises(RwkvGpuError):
            read(path)
