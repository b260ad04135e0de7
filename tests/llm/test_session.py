"""Saved chats: all branches are restored, damaged files and other models are refused, and states need their file."""

import json
import shutil
from dataclasses import astuple

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.engine import state_file
from rwkv_gpu.engine.state_file import ModelId
from rwkv_gpu.errors import BadFile
from rwkv_gpu.llm.chat import load_chats, save_chats
from rwkv_gpu.llm.model_file import ModelFile
from rwkv_gpu.llm.session import KIND, OLD_KIND, halved
from tests.engine.test_state_file import old_file
from tests.golden_files import OWN

MODEL = OWN / "tiny-rwkv7.gguf"
GREEDY = {"template": "chatml", "temperature": 0, "max_tokens": 4}


@pytest.fixture
def llm():
    with rwkv_gpu.load(MODEL, device="cpu", sequences=2) as llm:
        yield llm


def test_all_branches_and_the_current_one_are_restored(llm, tmp_path):
    first = llm.chat("Be brief.", **GREEDY)
    first.send("Hi")
    second = first.fork()
    second.settings["temperature"] = 0.5
    second.send("\u6f22\ud800 and?")
    second.think, second.truncate = False, "left"
    third = llm.chat(**GREEDY)
    save_chats(tmp_path / "s", [first, second, third], 1)
    chats, current = load_chats(tmp_path / "s", llm)
    assert current == 1
    for got, want in zip(chats, (first, second, third), strict=True):
        assert got.messages == want.messages
        assert got.settings == want.settings
        assert (got.think, got.truncate) == (want.think, want.truncate)
        assert got._transcript == want._transcript
    assert llm.load_chat(tmp_path / "s").messages == second.messages


def test_the_current_branch_continues_without_its_prompt_being_computed_again(llm, tmp_path):
    chat = llm.chat(**GREEDY)
    chat.send("Hello there, how are you?")
    save_chats(tmp_path / "s", [llm.chat(**GREEDY), chat], 1)
    with rwkv_gpu.load(MODEL, device="cpu") as other:
        assert other.load_chat(tmp_path / "s").send("And?").stats.reused_tokens > 20


def test_a_state_in_float16_is_half_as_large_and_serves_as_well(llm, tmp_path):
    chat = llm.chat(**GREEDY)
    chat.send("Hello there, how are you?")
    for half in (False, True):
        chat.save(tmp_path / f"{half}", half_state=half)
    sizes = [sum(a.nbytes for a in state_file.load(tmp_path / name).arrays.values()) for name in ("False", "True")]
    assert sizes[1] < 0.55 * sizes[0]
    with rwkv_gpu.load(MODEL, device="cpu") as other:
        answer = other.load_chat(tmp_path / "True").send("And?")
    assert answer.stats.reused_tokens > 20
    assert answer.tokens == chat.send("And?").tokens


def test_numbers_beyond_float16_stay_in_float32():
    state = {"a": np.array([1, 65520], np.float32), "b": np.array([1, 65519], np.float32), "c": np.zeros(2, np.uint32)}
    assert [array.dtype for array in halved(state).values()] == [np.float32, np.float16, np.uint32]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-lfm2"])
def test_a_chat_without_its_oldest_turns_continues_where_its_prompts_began(tmp_path, name):
    how = {"device": "cpu", "kv": "f32", "context": 256}
    with rwkv_gpu.load(OWN / f"{name}.gguf", **how) as llm, rwkv_gpu.load(OWN / f"{name}.gguf", **how) as other:
        chat = llm.chat("Be brief.", truncate="left", **GREEDY)
        while not chat._first:
            chat.send("Hello?")
        chat.save(tmp_path / "s")
        loaded, went_on = other.load_chat(tmp_path / "s").send("And?"), chat.send("And?")
        assert loaded.tokens == went_on.tokens
        assert loaded.stats.prompt_tokens == went_on.stats.prompt_tokens
        assert loaded.stats.reused_tokens == went_on.stats.reused_tokens > 60


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("tiny-gpt-oss", "harmony"),  # without reasoning
        ("tiny-rwkv7", "{% for m in messages %}{{ m.role }}: {{ m.content | upper }}\n{% endfor %}assistant: "),
    ],
)
def test_a_chat_continues_from_the_prefix_that_its_next_prompt_repeats(tmp_path, name, template):
    """The state is of an earlier position if the template omits or changes generated text."""
    how, path = {"template": template, "temperature": 0, "max_tokens": 12}, OWN / f"{name}.gguf"
    with rwkv_gpu.load(path, device="cpu", kv="f32", context=1024) as llm:
        chat = llm.chat(**how)
        chat.send("hello world, the user " * 12)
        chat.save(tmp_path / "s")
        went_on = chat.send("And?")
    with rwkv_gpu.load(path, device="cpu", kv="f32", context=1024) as other:
        again = other.load_chat(tmp_path / "s").send("And?")
    assert again.stats.reused_tokens >= went_on.stats.reused_tokens > 60
    assert again.tokens == went_on.tokens


def test_any_flipped_byte_and_any_cut_is_refused(llm, tmp_path):
    chat = llm.chat(**GREEDY)
    chat.send("Hi")
    path = tmp_path / "s"
    chat.save(path)
    whole = path.read_bytes()
    for at in np.random.default_rng(0).integers(0, len(whole), 60).tolist():
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        with pytest.raises(BadFile):
            llm.load_chat(path)
        path.write_bytes(whole[:at])
        with pytest.raises(BadFile):
            llm.load_chat(path)


@pytest.mark.long
def test_a_chat_of_any_length_that_is_saved_can_be_loaded(llm, tmp_path):
    """The messages alone have more bytes than an older file header allowed."""
    messages = [
        {"role": "user", "content": "\u6f22" * 3_000_000},
        {"role": "assistant", "content": "\u5b57" * 3_000_000},
    ]
    chat = llm.chat(messages=messages, template="chatml")
    chat.save(tmp_path / "s")
    assert (tmp_path / "s").stat().st_size > 16 << 20
    assert llm.load_chat(tmp_path / "s").messages == messages


def test_a_session_of_the_older_form_is_loaded_however_long(llm, tmp_path):
    """The state is computed again, because such a session does not identify the copy of the model."""
    chat = llm.chat(**GREEDY)
    chat.send("Hi")
    chat.save(tmp_path / "new")
    saved = state_file.load(tmp_path / "new")
    notes = {**saved.notes["chats"][0], "kind": OLD_KIND, "length": saved.notes["length"]}
    notes["messages"] = [*notes["messages"], ["user", "x" * (17 << 20), "", None]]
    arrays = {name.removeprefix("0/"): array for name, array in saved.arrays.items()}
    rows = [{"name": name, "dtype": str(a.dtype), "shape": list(a.shape)} for name, a in arrays.items()]
    header = {"model": llm.info.fingerprint, "notes": notes, "arrays": rows}
    (tmp_path / "old").write_bytes(old_file(header, b"".join(array.tobytes() for array in arrays.values())))
    loaded = llm.load_chat(tmp_path / "old")
    assert loaded.messages[:-1] == chat.messages
    loaded.undo()
    assert loaded.send("And?").tokens == chat.send("And?").tokens


def test_another_model_continues_a_chat_from_its_messages(llm, tmp_path):
    """The other model cannot use its tokens and state, and uses its own template."""
    chat = llm.chat("Be brief.", **GREEDY)
    chat.send("Hi")
    chat.save(tmp_path / "s")
    with rwkv_gpu.load(OWN / "tiny-lfm2.gguf", device="cpu") as other:
        loaded, fresh = other.load_chat(tmp_path / "s"), other.chat(messages=chat.messages, **GREEDY)
        assert loaded.messages == chat.messages
        assert loaded.template.source == other.chat().template.source
        first, second = loaded.send("And?"), fresh.send("And?")
        assert first.tokens == second.tokens
        assert first.stats.reused_tokens == 0


def altered(tmp_path):
    """Changes one byte of the model that the fingerprint does not cover: in the middle of its largest tensor."""
    path = tmp_path / "altered.gguf"
    shutil.copy(MODEL, path)
    with rwkv_gpu.gguf.file.GGUFFile.open(path) as file:
        tensor = max(file.tensors.values(), key=lambda tensor: tensor.nbytes)
        at = tensor.offset + tensor.nbytes // 2
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    return path


def test_a_state_is_used_with_the_same_file_under_another_name_and_with_no_other(llm, tmp_path):
    chat = llm.chat(**GREEDY)
    chat.send("Hello there")
    chat.save(tmp_path / "s")
    shutil.copy(MODEL, tmp_path / "copy.gguf")
    with rwkv_gpu.load(tmp_path / "copy.gguf", device="cpu") as same:
        assert same.load_chat(tmp_path / "s").send("And?").stats.reused_tokens > 0
    with rwkv_gpu.load(altered(tmp_path), device="cpu") as other:
        assert other.info.fingerprint == llm.info.fingerprint
        loaded = other.load_chat(tmp_path / "s")
        assert loaded.messages == chat.messages
        assert loaded.send("And?").stats.reused_tokens == 0


def test_the_digest_equals_that_of_the_whole_file_and_is_computed_once(tmp_path, monkeypatch):
    import hashlib

    path = tmp_path / "m"
    path.write_bytes(b"weights" * 1000)
    first = ModelFile([path], "quick", tmp_path / "kept")
    assert first.digest() == hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr("rwkv_gpu.llm.model_file._sha256", lambda _: pytest.fail("it is read again"))
    assert ModelFile([path], "quick", tmp_path / "kept").digest() == first.digest()
    monkeypatch.undo()
    path.write_bytes(b"Weights" * 1000)
    assert ModelFile([path], "quick", tmp_path / "kept").digest() == hashlib.sha256(path.read_bytes()).hexdigest()
    [entry] = (tmp_path / "kept").iterdir()
    for junk in (b"{", b"[]", b'{"stamp": 7, "sha256": 7}', b"\xff"):
        entry.write_bytes(junk)
        assert ModelFile([path], "quick", tmp_path / "kept").digest() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_digest_of_a_split_model_is_of_all_its_parts(tmp_path):
    import hashlib

    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for path in paths:
        path.write_bytes(path.name.encode() * 1000)
    whole = b"".join(path.read_bytes() for path in paths)
    assert ModelFile(paths, "quick").digest() == hashlib.sha256(whole).hexdigest()
    loaded = ModelFile(paths, "quick")
    paths[-1].write_bytes(b"d")
    assert loaded.digest() is None, "a part has changed since"


def test_a_file_that_changed_after_the_model_was_loaded_has_no_digest(tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"a")
    model = ModelFile([path], "quick")
    path.write_bytes(b"bb")
    assert model.digest() is None
    gone = ModelFile([path], "quick")
    path.unlink()
    assert gone.digest() is None


CHAT = {"messages": [["user", "Hi", "", None]], "template": "chatml", "think": None, "settings": {}}
NOTES = {"kind": KIND, "current": 0, "length": 0, "chats": [CHAT]}
TEXT = {"0/text": np.zeros(2, np.uint8), "0/ids": np.array([1, 2], np.uint32), "0/cuts": np.array([(0, 0), (2, 2)])}
ODD = {
    "no kind": {},
    "another kind": {**NOTES, "kind": "rwkv-gpu chat 9"},
    **{f"{name} {value!r}": {**NOTES, name: value}
       for name, values in {
           "current": [1, -1, "0", None, 0.0], "length": ["x", None, float("nan"), float("inf"), []],
           "chats": [None, [], [7], {}, [CHAT, CHAT]],
       }.items() for value in values},
    **{f"chat {name} {value!r}": {**NOTES, "chats": [{**CHAT, name: value}]}
       for name, values in {
           "messages": [None, [["user", "x"]], [[1, 2, 3, 4]], [["user", {}, "", None]],
                        [["user", "x", "", 5]], {"a": 1}],
           "template": [5, "{{", "{{ 'a' * 10**9 }}", "{{ 'abcdef'|truncate(1) }}", {}],
           "think": ["yes", 0],
           "truncate": ["right", 1],
           "first": [-1, 2, 0.0, True],
           "settings": [None, {"nope": 1}, {"temperature": -1}, {"stop": 5},
                        {"logit_bias": {"x": 1}}, {"logit_bias": [1]}],
       }.items() for value in values},
}  # fmt: skip
WRONG = {
    "ids": [np.array([1, 1 << 20], np.uint32), np.array([1.5, 2.0]), np.zeros((2, 2), np.uint32)],
    "cuts": [np.array([(0, 0), (9, 2)]), np.array([(0, 0), (2, 9)]), np.array([(0, 0), (2, 2), (1, 1)]), np.zeros(3),
             np.array([(1, 1)]), np.empty((0, 2)), np.array([(0, 0), (-1, 1)])],
}  # fmt: skip


@pytest.mark.parametrize("notes", ODD.values(), ids=ODD)
def test_contradictory_notes_are_refused(llm, tmp_path, notes):
    state_file.save(tmp_path / "s", ModelId(llm.info.fingerprint), TEXT, notes)
    with pytest.raises(BadFile):
        llm.load_chat(tmp_path / "s")


@pytest.mark.parametrize(("name", "array"), [(name, array) for name, arrays in WRONG.items() for array in arrays])
def test_ids_that_make_no_sense_are_refused(llm, tmp_path, name, array):
    state_file.save(tmp_path / "s", ModelId(llm.info.fingerprint), {**TEXT, f"0/{name}": array}, NOTES)
    with pytest.raises(BadFile):
        llm.load_chat(tmp_path / "s")


def test_notes_that_make_sense_are_read(llm, tmp_path):
    """Without their error, files like those above are accepted. A message with calls has two more fields."""
    for calls in ([], [[], None]):
        notes = {**NOTES, "chats": [{**CHAT, "messages": [["user", "Hi", "", None, *calls]]}]}
        state_file.save(tmp_path / "s", ModelId(llm.info.fingerprint), TEXT, json.loads(json.dumps(notes)))
        assert llm.load_chat(tmp_path / "s").messages == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("cuts", [[(0, 0)], [(0, 0), (0, 1), (2, 2)], [(0, 0), (1, 1), (2, 1), (2, 2)]])
def test_tokens_without_text_and_any_first_message_are_read(llm, tmp_path, first, cuts):
    notes = {**NOTES, "chats": [{**CHAT, "first": first}]}
    state_file.save(tmp_path / "s", ModelId(llm.info.fingerprint), {**TEXT, "0/cuts": np.array(cuts)}, notes)
    chat = llm.load_chat(tmp_path / "s")
    assert chat._first == first and [tuple(cut) for cut in map(astuple, chat._transcript.cuts)] == cuts


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b"3", b'{"stamp": 1}', b"[" * 100_000, b"\xff\xfe", b'{"stamp": null, "sha256": 3}'],
)
def test_a_stored_digest_that_cannot_be_read_is_computed_again(tmp_path, content):
    folder = tmp_path / "digests"
    first = ModelFile([OWN / "tiny-rwkv7.gguf"], "f", folder)
    digest = first.digest()
    [entry] = folder.iterdir()
    entry.write_bytes(content)
    assert ModelFile([OWN / "tiny-rwkv7.gguf"], "f", folder).digest() == digest
    assert entry.read_bytes() != content
