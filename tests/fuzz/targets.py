"""The fuzz targets: for each kind of input, a generator and a check that must hold for every input.

A check passes if the package refuses the input with one of its own errors, in one line, or if its result is correct.
Each takes a few milliseconds, so that many run in a second.
"""

import contextlib
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from hypothesis import strategies as st

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.text.builtin_templates import BUILT_IN
from rwkv_gpu.text.pretokenizers import PRE
from rwkv_gpu.text.template import ChatTemplate
from rwkv_gpu.text.tokenizer import load_tokenizer
from rwkv_gpu.text.vocabulary import PREFIX
from tests.fuzz.hubs import HUBS, check_hub
from tests.fuzz.wires import (
    FOLDERS,
    RESPONSES,
    STREAMS,
    check_multipart,
    check_response,
    check_store,
    check_stream,
)
from tests.fuzz.wires import FORMS as MULTIPART
from tests.fuzz.writers import ACCESSES, COMMANDS, check_writers
from tests.gguf.corpus import GOOD
from tests.gguf.test_bad_files import EVERY_TYPE, must_be_consistent
from tests.golden_files import OWN
from tests.text.vocabularies import TINY

SECONDS = 10.0  # CPU seconds that one check may take

Strategy = st.SearchStrategy[Any]


@dataclass(frozen=True)
class Target:
    """A kind of input to fuzz."""

    inputs: Strategy
    check: Callable[[Any], None]
    is_quick: bool = True  # True if a check takes milliseconds; slower ones run in `make fuzz` only


@contextlib.contextmanager
def refused_in_one_line() -> Iterator[None]:
    """Accepts a refusal that a user can read. Any other error fails, and so does a slow check."""
    started = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    except RwkvGpuError as error:
        message = str(error)
        assert message.isprintable() and 0 < len(message) < 2000, message
    assert time.process_time() - started < SECONDS


# ---------------------------------------------------------------- bytes, changed

EDIT = st.tuples(
    st.sampled_from(["set", "flip", "cut", "double", "insert", "number"]),
    st.floats(0, 1),  # a position, as a share of the whole
    st.integers(1, 64),  # how much
    st.binary(min_size=1, max_size=16),
)
EDITS = st.lists(EDIT, min_size=1, max_size=4)
NUMBERS = (0, 1, 255, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1)


def edited(data: bytes, edits: list[tuple[str, float, int, bytes]], limit: int | None = None) -> bytes:
    """Returns the data with these changes, all before `limit`."""
    out = bytearray(data)
    for how, where, size, more in edits:
        at = int(where * min(len(out), limit or len(out)))
        if how == "set":
            out[at : at + len(more)] = more
        elif how == "flip":
            out[at : at + 1] = bytes(byte ^ 1 << size % 8 for byte in out[at : at + 1])
        elif how == "cut":
            del out[at : at + size]
        elif how == "double":
            out[at:at] = out[at : at + size]
        elif how == "insert":
            out[at:at] = more
        else:
            width = (1, 2, 4, 8)[size % 4]
            number = NUMBERS[size % len(NUMBERS)] % (1 << 8 * width)
            out[at : at + width] = number.to_bytes(width, "little")
    return bytes(out)


# ---------------------------------------------------------------- header

HEADERS = {
    "good": GOOD,
    "every type": EVERY_TYPE,
    **{name: (OWN / f"quiet-{name}.gguf").read_bytes() for name in ("rwkv7", "llama")},
}


def check_header(given: tuple[str, Any]) -> None:
    name, edits = given
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        path.write_bytes(edited(HEADERS[name], edits, limit=12_000))
        with refused_in_one_line(), GGUFFile.open(path) as file:
            must_be_consistent(file)


# ---------------------------------------------------------------- tokenizer

LETTERS = st.text("ab▁Ġ <|>\\x0é你\n", min_size=1, max_size=6)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "tokens": st.lists(LETTERS, min_size=1, max_size=8),
        "merges": st.lists(st.text("ab Ġt", max_size=5), max_size=4),
        "pre": st.sampled_from([*PRE, "", "unheard of"]),
        "bos_token_id": st.integers(-1, 300),
        "eos_token_id": st.integers(-1, 300),
        "unknown_token_id": st.integers(-1, 300),
        "add_bos_token": st.booleans() | st.none(),
        "add_eos_token": st.booleans(),
        "add_space_prefix": st.booleans(),
        "remove_extra_whitespaces": st.booleans(),
        "precompiled_charsmap": st.binary(max_size=60).map(
            lambda data: np.frombuffer(b"\x08\0\0\0" + data + b"\0", "u1")
        ),
        "token_type": st.integers(-1, 8) | st.text(max_size=2),
        "scores": st.floats(width=32) | st.none(),
    },
)
TEXTS = st.text(max_size=60) | st.binary(max_size=60) | st.lists(LETTERS, max_size=20).map("".join)


def check_tokenizer(given: tuple[str, dict[str, Any], str | bytes, bool]) -> None:
    name, fields, text, parse = given
    with refused_in_one_line():
        tokenizer = load_tokenizer(with_fields(TINY[name], fields))
        ids = tokenizer.encode(text, parse=parse)
        assert all(0 <= token < tokenizer.vocab_size for token in ids)
        assert tokenizer.encode(text, parse=parse) == ids
        data = tokenizer.decode_bytes(ids, special=True)
        stream = tokenizer.stream(special=True)
        streamed = "".join([*(stream.feed(token) for token in ids), stream.flush()])
        assert streamed == data.decode("utf-8", "replace")
        if name == "rwkv":
            assert data == (text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))


def with_fields(metadata: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the metadata with more tokens and replaced keys; None removes a key."""
    changed = dict(metadata)
    tokens = [*changed[PREFIX + "tokens"], *fields.get("tokens", ())]
    count = len(tokens)
    kinds = np.asarray(changed[PREFIX + "token_type"])
    changed[PREFIX + "tokens"] = tokens
    changed[PREFIX + "token_type"] = np.concatenate([kinds, np.full(count - len(kinds), fields.get("token_type", 1))])
    if PREFIX + "scores" in changed:
        scores = np.asarray(changed[PREFIX + "scores"])
        changed[PREFIX + "scores"] = np.concatenate([scores, np.full(count - len(scores), fields.get("scores") or 0)])
    for key, value in fields.items():
        if key not in ("tokens", "token_type", "scores"):
            changed[PREFIX + key] = value
    return {key: value for key, value in changed.items() if value is not None}


# ---------------------------------------------------------------- template

PIECES = st.sampled_from(
    [
        "{{ ", " }}", "{% ", " %}", "{%- ", " -%}", "{# ", " #}", "messages", "message", "m.content", "m['role']",
        "for m in messages", "endfor", "if ", "else", "elif ", "endif", "set x = ", "set ns = namespace(a=1)",
        "ns.a", "macro f(x)", "endmacro", "f(f)", "loop.index", "loop.last", "x", "1", "0", "10**9", "'a'", "'%s'",
        " * ", " + ", " ~ ", " % ", " // ", "**", "[", "]", "[::-1]", "(", ")", "{", "}", "|trim", "|length",
        "|tojson", "|join(',')", "|replace('a', 'b')", "|selectattr('role')", "|list", "|first", "|last", "|upper",
        "|safe", "|map(attribute='content')", ".split('a')", ".strip()", ".format(1)", "range(9)", "range(10**9)",
        "range(99999)", "raise_exception('no')", "strftime_now('%Y')", " is defined", " is string", " in ", " not ",
        " and ", "bos_token", "eos_token", "tools", "add_generation_prompt", "enable_thinking", "\n", " ", "é",
        "__class__", "._x", "|attr('__class__')", "self", "caller()", "call f()", "endcall", "generation",
        "endgeneration", "break", "continue", "do x", "include 'x'", "import 'x' as y", "extends 'x'", "block a",
        "endblock", "raw", "endraw", "filter upper", "endfilter", "with y = 1", "endwith", "<|im_start|>",
    ]
)  # fmt: skip
CHAT = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello {{ 1 }}"}]
CONTENTS = st.text(max_size=20)


def check_template(given: tuple[str, list[str], Any, str]) -> None:
    name, pieces, edits, content = given
    source = "".join(pieces)
    if name:
        source = edited(BUILT_IN[name].source.encode(), edits).decode("utf-8", "replace")
    chat = [*CHAT, {"role": "assistant", "content": content}, {"role": "user", "content": content}]
    with refused_in_one_line():
        template = ChatTemplate("{{ '' }}" + source, bos="<s>", eos="</s>")
        assert isinstance(template.render(chat), str)
        assert isinstance(template.end_of_turn(), str)


# ---------------------------------------------------------------- forms of answers

SCHEMAS = st.recursive(
    st.sampled_from(
        [{}, True, False, {"type": "string"}, {"type": "integer"}, {"type": "null"}, {"enum": ["a", 1]}, {"const": "x"}]
    )
    | st.fixed_dictionaries({"type": st.just("string"), "pattern": st.text("a[]()*+?.|^$\\{}1,", max_size=8)})
    | st.fixed_dictionaries({"type": st.just("number"), "minimum": st.integers(-99, 99) | st.floats()})
    | st.fixed_dictionaries({"type": st.just("string"), "minLength": st.integers(-1, 1 << 33)})
    | st.fixed_dictionaries({"$ref": st.sampled_from(["#", "#/$defs/a", "#/nothing", "http://x", "", "#/$defs"])}),
    lambda inner: st.fixed_dictionaries({"type": st.just("array"), "items": inner})
    | st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(st.text(max_size=3), inner)})
    | st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)})
    | st.fixed_dictionaries({"$defs": st.fixed_dictionaries({"a": inner}), "allOf": st.lists(inner, max_size=2)}),
    max_leaves=8,
)  # fmt: skip
REGEXES = st.lists(
    st.sampled_from(
        [
        "a", "b", ".", "[a-z]", "[^", "]", "(", ")", "|", "*", "+", "?", "{2}", "{1,}", "{99999}", "{0,9999}", "\\d",
        "\\", "^", "$", "(?i)", "(?:", "(?=", "\\p{L}", "[[:alpha:]]", "é", "\n", "(?P<x>", "\\1", "\\x41",
        "\\u{1F600}",
    ]
    ),
    max_size=12,
).map("".join)  # fmt: skip
GBNF = st.lists(
    st.sampled_from(
        [
        "root ::= ", "a ::= ", "b ::= ", "root", "a", "b", '"x"', "'y'", "[a-z]", "[^\\n]", "(", ")", "|", "*", "+",
        "?", "{3}", "{,9}", "{1,99999}", "\n", " ", "# note\n", "\\", '"', "::=", ".", "\\u0041", "[", "]",
    ]
    ),
    max_size=24,
).map(lambda pieces: "root ::= " + "".join(pieces))  # fmt: skip
LARK = st.lists(
    st.sampled_from(
        [
        "start: ", "a: ", "b: ", "A: ", "start", "a", "A", '"x"', "/[a-z]+/", "/(/", "(", ")", "|", "*", "+", "?",
        "~2", "~1..99999", "\n", " ", "%ignore ", "%import common.INT\n", "%json {", "}", "[", "]", '"i', "..",
        "<s>", "<[1]>", "// note\n", "-> x",
    ]
    ),
    max_size=24,
).map(lambda pieces: "start: " + "".join(pieces))  # fmt: skip
FORMS = (
    st.tuples(st.just("schema"), SCHEMAS)
    | st.tuples(st.just("regex"), REGEXES)
    | st.tuples(st.just("grammar"), GBNF | LARK)
)


@cache
def model() -> rwkv_gpu.LLM:
    """Returns a model of 110 KB on the CPU, loaded once."""
    return rwkv_gpu.load(OWN / "quiet-llama.gguf", device="cpu", context=128)


def check_form(given: tuple[str, Any]) -> None:
    kind, form = given
    with refused_in_one_line():
        answer = model().generate([5, 6, 7], max_tokens=6, **{kind: form})
        assert len(answer.tokens) <= 6
        if kind == "schema" and answer.finish_reason == "stop":
            json.loads(answer.text)
    with contextlib.suppress(rwkv_gpu.BadInput):
        assert model().generate([5], max_tokens=1).tokens, "the next request is answered all the same"


# ---------------------------------------------------------------- session


@cache
def session() -> bytes:
    """Returns a saved chat of one turn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chat"
        chat = model().chat(template="chatml")
        chat.send("hello", max_tokens=3)
        chat.save(path)
        return path.read_bytes()


def check_session(edits: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chat"
        path.write_bytes(edited(session(), edits, limit=4096))
        with refused_in_one_line():
            chat = model().load_chat(path)
            chat.send("more", max_tokens=2)


# ---------------------------------------------------------------- lines of a batch

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "tool", "x"]),
            "content": st.text(max_size=9) | JSON,
        }
    ),
    max_size=3,
)  # fmt: skip
LINE = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON, "custom_id": JSON, "body": JSON, "prompt": st.text(max_size=9) | JSON, "messages": MESSAGES | JSON,
        "max_tokens": st.integers(-1, 4) | JSON, "temperature": st.floats() | JSON, "stop": st.text(max_size=3) | JSON,
        "seed": st.integers() | JSON, "logit_bias": JSON, "regex": REGEXES | JSON, "top_k": JSON, "unheard_of": JSON,
    },
)  # fmt: skip
LINES = st.lists(LINE.map(json.dumps) | st.text(max_size=20) | JSON.map(json.dumps), max_size=6)


def check_jsonl(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        source.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
        arguments = [str(OWN / "quiet-llama.gguf"), str(source), str(target), "--device", "cpu", "-n", "2"]
        done = CliRunner().invoke(cli, ["batch", *arguments, "--context", "128", "--template", "chatml"])
        assert done.exit_code in (0, 1, 2), done.output
        assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
        if done.exit_code == 2:
            return
        results = [json.loads(line) for line in target.read_text("utf-8").split("\n") if line]
        assert all("error" in result or "text" in result for result in results)
        assert (done.exit_code == 1) == any("error" in result for result in results)


TARGETS = {
    "header": Target(st.tuples(st.sampled_from(sorted(HEADERS)), EDITS), check_header),
    "tokenizer": Target(st.tuples(st.sampled_from(sorted(TINY)), FIELDS, TEXTS, st.booleans()), check_tokenizer),
    "template": Target(
        st.tuples(st.sampled_from(["", *BUILT_IN]), st.lists(PIECES, max_size=24), EDITS, CONTENTS), check_template
    ),
    "form": Target(FORMS, check_form),
    "session": Target(EDITS, check_session),
    "jsonl": Target(LINES, check_jsonl),
    "hub": Target(HUBS, check_hub),
    "writers": Target(
        st.tuples(st.sampled_from(sorted(COMMANDS)), ACCESSES, ACCESSES, st.sampled_from(["", "first", "second"])),
        check_writers,
        is_quick=False,
    ),
    "multipart": Target(MULTIPART, check_multipart),
    "stream": Target(STREAMS, check_stream),
    "response": Target(RESPONSES, check_response),
    "store": Target(FOLDERS, check_store),
}
