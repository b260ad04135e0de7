"""Presets: a Modelfile's settings apply wherever the model is used under that name."""

import json
import os
from dataclasses import replace

import pytest

import rwkv_gpu
from rwkv_gpu.errors import BadFile, BadInput, RwkvGpuError
from rwkv_gpu.llm.hub import Hub
from rwkv_gpu.llm.load_options import with_adapters
from rwkv_gpu.llm.modelfile import Modelfile, parameters, parse
from rwkv_gpu.llm.preset import Preset, read_preset, write_preset
from rwkv_gpu.llm.preset_check import check_preset
from rwkv_gpu.llm.store import Store
from tests.golden_files import OWN

MODEL, OTHER = OWN / "quiet-rwkv7.gguf", OWN / "tiny-llama.gguf"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
TEXT = '''# what it is
FROM ./model.gguf
parameter temperature 0.25
PARAMETER stop "<|end|>"
PARAMETER stop User:
PARAMETER num_ctx 4096
PARAMETER num_predict -1
PARAMETER num_thread 4
PARAMETER mirostat 2

SYSTEM """
Two "quoted"
lines. # no comment
"""
TEMPLATE "{{ .Prompt }}"
ADAPTER ./a.gguf
ADAPTER b
MESSAGE user "Is it wide?"
MESSAGE assistant """Yes,
it is."""
LICENSE MIT
REQUIRES 0.6.0
'''


def test_a_modelfile_is_read_instruction_by_instruction():
    file = parse(TEXT)
    assert file == Modelfile(
        "./model.gguf", '\nTwo "quoted"\nlines. # no comment\n', "{{ .Prompt }}",
        {"temperature": 0.25, "stop": ("<|end|>", "User:"), "max_tokens": 1 << 31, "mirostat_tau": 5.0},
        4096, ("./a.gguf", "b"), (("user", "Is it wide?"), ("assistant", "Yes,\nit is.")), "MIT",
        ("num_thread", "REQUIRES"),
    )  # fmt: skip
    assert parse(TEXT.replace("\n", "\r\n")) == file
    assert parse("from a b.gguf\nsystem hello there").base == "a b.gguf"
    quoted = {'"': '"', '""': "", '"a"': "a", '"a': '"a', '"""a"""': "a", '"""a\n"""': "a\n"}
    assert {text: parse(f"FROM a\nSYSTEM {text}").system for text in quoted} == quoted


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no FROM"),
        ("FROM a\nFROM b", "2 FROM"),
        ("FROM a\nNONSENSE b", "line 2: 'NONSENSE'"),
        ("FROM a\n?", "line 2"),
        ('FROM a\nSYSTEM """open', "line 2: a text in triple quotes"),
        ("FROM a\nPARAMETER temperature warm", "temperature is warm"),
        ("FROM a\nPARAMETER top_k 1.5", "top_k is 1.5"),
        ("FROM a\nPARAMETER top_k nan", "top_k is nan"),
        ("FROM a\nPARAMETER num_ctx inf", "num_ctx is inf"),
        ("FROM a\nPARAMETER temperature", "has no value"),
        ("FROM a\nPARAMETER nonsense 1", "'nonsense'"),
        ("FROM a\nMESSAGE robot hi", "'robot'"),
        ("FROM a\n" + "x" * (1 << 20), "characters"),
    ],
)
def test_the_error_of_a_modelfile_is_one_line_with_the_cause(text, named):
    with pytest.raises((BadFile, BadInput)) as refused:
        parse(text)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_parameters_of_a_request_have_types():
    settings, context, ignored = parameters({"stop": ["a", "b"], "seed": 3, "num_gpu": 1, "mirostat": 0}.items())
    assert (settings, context, ignored) == ({"stop": ("a", "b"), "seed": 3}, None, ["num_gpu"])
    assert parameters({"mirostat_tau": 3, "mirostat_eta": 0.2, "repeat_last_n": -1}.items())[0] == {
        "penalty_last_n": -1
    }
    for bad in ({"seed": True}, {"seed": "x"}, {"top_p": None}, {"top_p": [1]}, {"stop": 5}, {"mirostat": 3}):
        with pytest.raises(BadInput):
            parameters(bad.items())


@pytest.fixture
def hub(tmp_path):
    """Returns a folder with the preset `sea`, and `deep`, which is based on it."""
    hub = Hub(folder=tmp_path)
    sea = Preset(
        str(MODEL), "Be brief.", TEMPLATE, {"temperature": 0.0, "max_tokens": 3, "stop": ("zzz",)},
        messages=[("user", "Hi"), ("assistant", "Ahoy")],
    )  # fmt: skip
    write_preset(hub.store.preset_path("sea"), sea)
    deep = Preset.of(parse("FROM sea\nSYSTEM Be deep.\nPARAMETER num_predict 4"), sea)
    write_preset(hub.store.preset_path("team/deep"), deep)
    return hub


def test_a_chat_has_the_settings_of_its_preset_and_arguments_override_them(hub):
    with rwkv_gpu.load("sea", hub=hub, device="cpu") as llm, rwkv_gpu.load(MODEL, device="cpu") as plain:
        chat = llm.chat()
        assert [m["content"] for m in chat.messages] == ["Be brief.", "Hi", "Ahoy"]
        same = plain.chat(
            "Be brief.", template=TEMPLATE, messages=chat.messages[1:], temperature=0, max_tokens=3, stop="zzz"
        )
        done = chat.send("What is wide?")
        assert done.tokens == same.send("What is wide?").tokens
        assert len(llm.chat(max_tokens=2).send("What?").tokens) <= 2
        assert llm.chat("Another.").messages == [{"role": "system", "content": "Another."}]
        assert [m["content"] for m in llm.chat(messages=[{"role": "user", "content": "A"}]).messages][-2:] == [
            "Ahoy",
            "A",
        ]
        assert len(llm.generate("The sea").tokens) <= 3
        asked = [{"role": "user", "content": "What is wide?"}]
        answer = llm.create_chat_completion(asked)
        assert answer["choices"][0]["message"]["content"].strip() == done.text.strip()
        [batch] = llm.chat_batch([asked])
        assert batch.tokens == done.tokens
        own = [{"role": "system", "content": "Be long."}, *asked]
        longer = llm.create_chat_completion(own)["usage"]["prompt_tokens"]
        assert longer != answer["usage"]["prompt_tokens"]


def test_a_preset_of_a_preset_changes_only_its_own_settings(hub):
    with rwkv_gpu.load("deep", hub=hub, device="cpu") as llm:
        assert llm.preset.system == "Be deep."
        assert llm.preset.messages == [("user", "Hi"), ("assistant", "Ahoy")]
        assert llm.default_settings({}) == {"temperature": 0.0, "max_tokens": 4, "stop": ("zzz",)}
    assert {model.name for model in hub.store.models()} == {"sea", "team/deep"}
    assert hub.store.find("team/deep:latest") == hub.store.find("deep")
    hub.store.remove("sea")
    assert hub.store.find("sea") is None and MODEL.exists()


def test_a_preset_has_the_context_and_template_of_its_model(tmp_path):
    path = tmp_path / "p.preset.json"
    write_preset(path, Preset(str(OTHER), template="zephyr", context=256))
    with rwkv_gpu.load(path, device="cpu") as llm:
        assert llm.context == 256
        assert llm.chat().has_own_template
        assert "<|assistant|>" in llm.chat().template.source
    with rwkv_gpu.load(path, device="cpu", context=128) as llm:
        assert llm.context == 128


def test_a_preset_that_its_model_cannot_have_is_refused_before_it_is_written():
    for preset, base in (
        (Preset(str(MODEL), template="{{ nonsense("), MODEL),
        (Preset(str(MODEL), template="{% if 1 %}nothing{% endif %}"), MODEL),
        (Preset(str(MODEL), adapters=[(str(OTHER), 1.0)]), MODEL),
        (Preset("a"), OWN / "tiny-bert.gguf"),
    ):
        with pytest.raises(RwkvGpuError):
            check_preset(preset, base)
    for wrong in ({"settings": {"temperature": -1}}, {"settings": {"warmth": 1}}, {"context": 0}):
        with pytest.raises(BadInput):
            Preset(str(MODEL), **wrong)


@pytest.mark.parametrize("name", ["", "../out", "a:4b", "/a", ".hidden", "n" * 300])
def test_invalid_names_are_refused(tmp_path, name):
    with pytest.raises(BadInput):
        Store(tmp_path).preset_path(name)


def test_damaged_files_are_refused_in_one_line(tmp_path):
    path = tmp_path / "p.preset.json"
    write_preset(path, Preset(str(MODEL)))
    good = json.loads(path.read_text())
    bad = [good | {"base": 3}, good | {"more": 1}, good | {"settings": {"top_k": "x"}}, good | {"messages": [["a"]]}]
    bad += [
        good | {"adapters": [1]},
        good | {"adapters": [[1, 1]]},
        good | {"adapters": [["a", "b"]]},
        good | {"adapters": [["a", 10**400]]},
        good | {"context": -1},
        [],
        {},
        None,
    ]
    for text in (*map(json.dumps, bad), "{", "[" * 100_000, "\xff"):
        path.write_text(text)
        with pytest.raises(BadFile) as refused:
            read_preset(path)
        assert "\n" not in str(refused.value) and "create it again" in str(refused.value)
    with pytest.raises(BadFile):
        read_preset(tmp_path / "nothing.preset.json")
    write_preset(path, Preset(str(path)))
    with pytest.raises(BadFile, match="is a preset"):
        rwkv_gpu.load(path, device="cpu")


@pytest.mark.parametrize("text", ['a "b"', "a\n b", "\ud800", os.fsdecode(b"\xff"), '"a\nb', "#", "é"])
def test_any_text_is_written_as_a_preset_and_as_a_modelfile(tmp_path, text):
    preset = Preset(text, text, messages=[("user", text)], settings={"stop": (text,)})
    write_preset(tmp_path / "a", preset)
    assert read_preset(tmp_path / "a") == preset
    again = Preset.of(parse(replace(preset, base="b").as_modelfile()), Preset(""))
    assert (again.system, [*again.messages], again.settings) == (preset.system, preset.messages, preset.settings)


def test_quotes_in_a_text_add_no_instruction_to_a_modelfile():
    text = 'a"""\nPARAMETER temperature 2\nSYSTEM """"'
    preset = Preset("b", text, messages=[("user", text)], settings={"stop": (text,)})
    again = Preset.of(parse(preset.as_modelfile()), Preset(""))
    assert again.settings.keys() == {"stop"}
    assert all(one.replace("'", '"') == text for one in (again.system, again.messages[0][1], *again.settings["stop"]))


def test_a_preset_written_as_a_modelfile_is_the_same_again(hub):
    preset = read_preset(hub.store.find("sea"))
    again = Preset.of(parse(preset.as_modelfile()), Preset(preset.base))
    assert again.settings.keys() == preset.settings.keys()
    assert (again.system, again.template, list(again.messages)) == (preset.system, preset.template, preset.messages)


def test_adapters_that_are_given_follow_those_of_a_preset():
    preset = Preset(str(MODEL), adapters=[("a", 0.5)])
    assert with_adapters(preset, None) == [("a", 0.5)]
    assert with_adapters(preset, "b") == [("a", 0.5), "b"]
    assert with_adapters(preset, ["b", ("c", 2.0)]) == [("a", 0.5), "b", ("c", 2.0)]
    assert with_adapters(Preset(str(MODEL)), ["b"]) == ["b"]
