"""Saved chats with images: they open and continue as before, whether or not the model supports images."""

import shutil

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.engine import state_file
from rwkv_gpu.errors import BadFile
from rwkv_gpu.llm.chat import load_chats, save_chats
from rwkv_gpu.llm.saved_images import PREFIX
from tests.golden.record_images import MODELS, image
from tests.golden_files import OWN
from tests.vision.test_chat import TEMPLATE, png

SIZE = 40, 24


def opened(folder, name, *, sees=True):
    """A model with its projector in a folder of its own."""
    path = folder / name
    if not path.exists():
        path.mkdir()
        shutil.copy(OWN / f"{MODELS[name][0]}.gguf", path / "model.gguf")
        shutil.copy(OWN / "vision" / f"{name}.gguf", path / "mmproj-model.gguf")
    return rwkv_gpu.load(path / "model.gguf", device="cpu", context=512, mmproj=None if sees else False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module", params=["qwen2vl", "gemma3", "idefics3"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def llm(folder, name):
    with opened(folder, name) as llm:
        yield llm


def begun(llm, source=None):
    chat = llm.chat(template=TEMPLATE, temperature=0, max_tokens=6)
    chat.send("hello", images=[image(*SIZE) if source is None else source])
    return chat


def test_a_saved_chat_opens_and_continues(llm, name, folder, tmp_path):
    (tmp_path / "a.png").write_bytes(png(image(*SIZE)))
    chat = begun(llm, tmp_path / "a.png")
    chat.save(tmp_path / "chat")
    (tmp_path / "a.png").unlink()
    expected = chat.send("and?")
    with opened(folder, name) as fresh:
        again = fresh.load_chat(tmp_path / "chat")
        assert again.messages == chat.messages[:2] and again.images == 1
        found = again.send("and?")
        assert found.tokens == expected.tokens
        assert found.stats.reused_tokens == expected.stats.reused_tokens > 0  # the state is used
        again.undo()
        assert again.regenerate().wait().tokens == begun(llm).regenerate().wait().tokens
        again.save(tmp_path / "chat")
        assert fresh.load_chat(tmp_path / "chat").send("and?").tokens == expected.tokens
        again.undo()
        assert again.images == 0


def test_branches_share_an_image_of_the_file(llm, tmp_path):
    data = png(image(*SIZE))
    chat = begun(llm, data)
    other = chat.fork()
    other.send("one", images=[image(*SIZE, 1)])
    save_chats(tmp_path / "chat", [chat, other], 1)
    arrays = state_file.load(tmp_path / "chat").arrays
    images = [array.tobytes() for name, array in arrays.items() if name.startswith(PREFIX)]
    assert len(images) == 2 and data in images
    chats, current = load_chats(tmp_path / "chat", llm)
    assert current == 1 and [one.images for one in chats] == [1, 2]
    for old, new in zip((chat, other), chats, strict=True):
        assert new.send("and?").tokens == old.send("and?").tokens


def test_a_saved_chat_opens_in_another_model_and_in_one_without_vision(folder, tmp_path):
    with opened(folder, "qwen2vl") as llm:
        chat = begun(llm)
        chat.save(tmp_path / "chat")
        with opened(folder, "gemma3") as other:
            expected = chat.with_model(other)
            again = other.load_chat(tmp_path / "chat")
            again.use_template(TEMPLATE)
            assert again.send("and?").tokens == expected.send("and?").tokens
    with opened(folder, "qwen2vl", sees=False) as blind:
        again = blind.load_chat(tmp_path / "chat")
        question = [{"role": "user", "content": again.messages[0]["content"]}]
        alone = blind.chat(template=TEMPLATE, messages=question, temperature=0, max_tokens=6).regenerate().wait()
        again.save(tmp_path / "chat")  # the image is not lost
        assert again.images == 1 and again.regenerate().wait().tokens == alone.tokens
    with opened(folder, "qwen2vl") as llm:
        assert llm.load_chat(tmp_path / "chat").send("and?").tokens == begun(llm).send("and?").tokens


def changed(saved, path, name, array, rows=None):
    """Writes the contents of a file with another array."""
    notes = saved.notes
    if rows is not None:
        notes["chats"][0]["messages"][0][6] = rows
    state_file.save(path, saved.model, {**saved.arrays, **({name: array} if name else {})}, notes)


def test_files_with_wrong_images_are_refused_in_one_line(folder, tmp_path):
    with opened(folder, "qwen2vl") as llm:
        begun(llm).save(tmp_path / "chat")
        load = lambda: state_file.load(tmp_path / "chat")  # noqa: E731
        name = next(name for name in load().arrays if name.startswith(PREFIX))
        digest, ids = name.removeprefix(PREFIX), load().arrays["0/ids"]
        at = int(np.flatnonzero(ids >= 1 << 62)[1])
        broken = ids.copy()
        broken[at] += 1
        wrong = [
            (name, np.zeros(9, np.uint8), None), (name, np.zeros(9, np.float32), None), ("0/ids", broken, None),
            ("0/ids", ids[: at + 1], None), (None, None, 7), (None, None, [["00" * 32]]),
            (None, None, [["zz", digest]]), (None, None, [["00" * 32, "11"]]), (None, None, [[5, digest]]),
            (None, None, {"a": 1}),
        ]  # fmt: skip
        for one in wrong:
            changed(load(), tmp_path / "bad", *one)
            with pytest.raises(BadFile) as refused:
                llm.load_chat(tmp_path / "bad")
            assert "\n" not in str(refused.value)
