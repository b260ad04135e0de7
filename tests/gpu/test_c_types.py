"""Types that `look_up_names` finds are those that cffi parses."""

import cffi
import pytest

from rwkv_gpu.gpu.c_types import look_up_names

HEADER = """
typedef uint32_t Flags;
typedef struct Limits { Flags flags; uint64_t sizes[4]; } Limits;
typedef struct AdapterImpl *Adapter;
typedef void (*Callback)(Adapter adapter, void *user);
"""
TYPES = (
    "Limits *",
    "Limits*",
    "Limits * ",
    "Limits[]",
    "Limits",
    "Adapter[]",
    "Adapter *",
    "Flags",
    "Callback",
    "Callback *",
)
OTHERS = "char []", "uint32_t[3]", "void(*)(Adapter, void *)", "struct Limits *", "Limits **", "Limits const *"


@pytest.mark.parametrize("text", [*TYPES, *OTHERS])
def test_a_type_is_the_one_that_cffi_parses(text):
    ours, plain = cffi.FFI(), cffi.FFI()
    for one in (ours, plain):
        one.cdef(HEADER)
    look_up_names(ours)
    assert ours.getctype(text) == plain.getctype(text)
    assert ours.typeof(text).kind == plain.typeof(text).kind
    assert ours.typeof(text) is ours.typeof(text)


def test_named_types_are_not_parsed(monkeypatch):
    ffi = cffi.FFI()
    ffi.cdef(HEADER)
    look_up_names(ffi)

    def refuse(_source: str) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(ffi._parser, "_parse", refuse)
    assert ffi.new("Limits *").sizes[3] == 0
    for text in TYPES:
        ffi.typeof(text)
    with pytest.raises(AssertionError, match="parsed"):
        ffi.typeof("char []")


def test_an_unknown_name_is_refused_as_before():
    ffi = cffi.FFI()
    ffi.cdef(HEADER)
    look_up_names(ffi)
    with pytest.raises(cffi.CDefError, match="None"):
        ffi.typeof("None *")
