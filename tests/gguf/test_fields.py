"""Metadata is read by type and range; an error names the key and the expected value."""

from pathlib import Path
from typing import Any

import pytest

from rwkv_gpu.errors import BadFile
from rwkv_gpu.gguf.file import GGUFFile
from tests.gguf import writer
from tests.gguf.writer import array_key, gguf, number, number_key, plain, string, text_key, written

VALUES: dict[str, Any] = {
    "int": 7,
    "negative": -7,
    "huge": 1 << 63,  # a float holds it exactly
    "float": 1.5,
    "nan": float("nan"),
    "bool": True,
    "text": "RWKV",
    "ints": [1, 2, 3],
    "floats": [0.5, 1.5],
    "nan among floats": [0.5, float("nan")],
    "infinity among floats": [float("-inf"), 0.5],
    "texts": ["a", ""],
    "none": [],
}
ROWS = (
    number_key("int", writer.U32, 7),
    number_key("negative", writer.I8, -7),
    number_key("huge", writer.U64, 1 << 63),
    number_key("float", writer.F32, 1.5),
    number_key("nan", writer.F64, float("nan")),
    number_key("bool", writer.BOOL, True),
    text_key("text", "RWKV"),
    array_key("ints", writer.U16, [number(writer.U16, n) for n in VALUES["ints"]]),
    *(
        array_key(name, writer.F64, [number(writer.F64, n) for n in VALUES[name]])
        for name in ("floats", "nan among floats", "infinity among floats")
    ),
    array_key("texts", writer.STRING, [string(text) for text in VALUES["texts"]]),
    array_key("none", writer.STRING, []),
)


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    """Returns a closed file, whose metadata remains readable."""
    with GGUFFile.open(written(tmp_path_factory.mktemp("values"), gguf(ROWS))) as file:
        return file


GETTERS = {  # getter: the keys it accepts
    "int": ("int", "negative", "huge"),
    "float": ("int", "negative", "huge", "float"),
    "str": ("text",),
    "bool": ("bool",),
    "strings": ("texts", "none"),
    "ints": ("ints",),
    "floats": ("floats",),
}


@pytest.mark.parametrize("key", VALUES)
@pytest.mark.parametrize("getter", GETTERS)
def test_a_getter_gives_its_own_type_and_refuses_others_by_name(getter: str, key: str, values: GGUFFile) -> None:
    get = getattr(values, getter)
    if key in GETTERS[getter]:
        assert plain(get(key)) == VALUES[key]
    else:
        with pytest.raises(BadFile, match=rf"model\.gguf: metadata key '{key}': found .*, expected an? "):
            get(key)


@pytest.mark.parametrize("getter", GETTERS)
def test_a_missing_key_gives_the_default_or_is_named(getter: str, values: GGUFFile) -> None:
    get = getattr(values, getter)
    assert get("no.such", default=None) is None
    with pytest.raises(BadFile, match=r"model\.gguf: metadata key 'no\.such': is missing, expected an? "):
        get("no.such")


@pytest.mark.parametrize("key", ["int", "negative", "float"])
def test_a_range_holds_its_ends_and_nothing_more(key: str, values: GGUFFile) -> None:
    get = values.float if key == "float" else values.int
    value = VALUES[key]
    assert get(key, low=value, high=value) == value
    with pytest.raises(BadFile, match=rf"found {value}, expected a.* of at least {value + 1}"):
        get(key, low=value + 1)
    with pytest.raises(BadFile, match=rf"found {value}, expected a.* of at most {value - 1}"):
        get(key, high=value - 1)
    with pytest.raises(BadFile, match=rf"found {value}, expected a.* from {value + 1} to {value + 2}"):
        get(key, low=value + 1, high=value + 2)


def test_integers_outside_int64_are_refused(tmp_path: Path) -> None:
    rows = [array_key("k", writer.U64, [number(writer.U64, n) for n in (1, 1 << 63)])]
    with GGUFFile.open(written(tmp_path, gguf(rows))) as file, pytest.raises(BadFile, match=r"below 2\^63"):
        file.ints("k")
