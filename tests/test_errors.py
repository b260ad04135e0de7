"""Errors of the package."""

import pickle

import pytest

from rwkv_gpu import errors
from rwkv_gpu.errors import LONGEST, BadFile, Forked, RwkvGpuError, ShaderError

KINDS = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, RwkvGpuError)]


@pytest.mark.parametrize("kind", [one for one in KINDS if one not in (Forked, ShaderError)])
def test_a_message_is_one_printable_line_with_any_quoted_text(kind):
    error = kind("m.gguf: 'a\nb\x1b[2J\u202e\udcff' is é")
    assert str(error) == "m.gguf: 'a\\nb\\x1b[2J\\u202e\\udcff' is é"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert len(str(kind("a" * 10**6))) == LONGEST + 3


def test_lines_of_a_shader_error_are_kept():
    assert str(ShaderError("a.wgsl:1\n  | x")) == "a.wgsl:1\n  | x"


def test_arguments_that_are_not_text_are_not_changed():
    assert BadFile("a", 5).args == ("a", 5)
