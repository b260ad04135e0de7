"""Tests of `rwkv-gpu generate`."""

import json

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from tests.golden_files import OWN

MODEL = OWN / "tiny-rwkv7.gguf"


def run(*arguments: object, stdin: bytes | None = None):
    return CliRunner().invoke(cli, ["generate", *map(str, arguments), "--device", "cpu"], input=stdin)


def test_text_goes_to_stdout_and_rates_to_stderr():
    result = run(MODEL, "-p", "hello", "-n", 12)
    assert result.exit_code == 0
    with rwkv_gpu.load(MODEL, device="cpu") as llm:
        assert result.stdout == llm.generate("hello", max_tokens=12).text + "\n"
    assert "tok/s" in result.stderr
    assert "at 0" not in run(MODEL, "-p", "hello", "-n", 1).stderr  # a single token has no speed
    assert run(MODEL, "-p", "hello", "-n", 0).stderr.endswith("generated 0\n")


@pytest.mark.parametrize("arch", ["rwkv7", "llama", "qwen3", "qwen3moe"])
def test_json_has_all_facts(arch):
    data = json.loads(run(OWN / f"tiny-{arch}.gguf", "-p", "hello", "-n", 5, "--json").stdout)
    assert data["new_tokens"] == len(data["tokens"]) <= 5
    assert data["finish_reason"] in ("length", "stop")
    assert data["prompt_tokens"] > 0


def test_the_prompt_may_come_from_a_file_or_from_stdin(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("hello", encoding="utf-8")
    given = run(MODEL, "-p", "hello", "-n", 6).stdout
    assert run(MODEL, "-f", path, "-n", 6).stdout == given
    assert run(MODEL, "-n", 6, stdin=b"hello").stdout == given


def test_echo_prints_the_prompt_and_a_text_continues_in_its_line_but_an_answer_does_not():
    text, chat = (
        run(MODEL, "-p", "hello", "-n", 2, "--echo", *more).stdout for more in ((), ("--chat", "--template", "chatml"))
    )
    assert text.startswith("hello") and not text.startswith("hello\n")
    assert chat.startswith("hello\n")


def test_a_prompt_may_follow_the_model_or_stand_alone_as_a_question_of_a_chat_does():
    expected = run(MODEL, "-p", "The sea is", "-n", 5).stdout
    assert run(MODEL, "The sea is", "-n", 5).stdout == run("-m", MODEL, "The", "sea", "is", "-n", 5).stdout == expected
    assert run("The sea is", "-n", 5).stdout == run("builtin", "-p", "The sea is", "-n", 5).stdout
    for option in (["-p", "hello"], ["-f", __file__]):
        assert run("nosuch", *option).stderr.startswith("rwkv-gpu: no model 'nosuch'; ")


def test_the_chunk_size_does_not_change_the_answer():
    answers = {run(MODEL, "-p", "hello world " * 9, "-n", 9, "--chunk-size", size).stdout for size in (1, 5, 64)}
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-p", ""], "no tokens"),
        (["-p", "a", "-f", "b"], "not both"),
        (["-f", "nowhere.txt"], "nowhere.txt"),
        (["-p", "a", "--top-p", "2"], "top_p is 2.0; it must be a number above 0 and at most 1"),
        (["-p", "a", "--top-k", "-1"], "top_k is -1; it must be a whole number of at least 0"),
        (["-p", "a", "--repeat-penalty", "0"], "--repeat-penalty"),
        (["-p", "a", "--seed", "-3"], "seed is -3; it must be"),
    ],
)
def test_bad_input_is_refused_in_one_line_with_exit_code_2(arguments, says):
    result = run(MODEL, *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output


def test_a_prompt_that_is_not_text_is_refused_with_its_position(tmp_path):
    path = tmp_path / "prompt.bin"
    path.write_bytes(b"hello \xff world")
    result = run(MODEL, "-f", path)
    assert result.exit_code == 2
    assert "not UTF-8 at byte 6" in result.stderr


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers():
    result = run(OWN / "tiny-llama.gguf", "-p", "x" * 100, "--context", 64)
    assert result.exit_code == 2
    assert "64" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command", [("generate", "-p", "word " * 100), ("chat", "word " * 100, "--template", "chatml")], ids=lambda c: c[0]
)
def test_the_error_for_a_prompt_longer_than_the_context_names_the_option_that_helps(command):
    """The library's error suggests Python arguments, which the command line does not have."""
    model = str(OWN / "tiny-llama.gguf")
    done = CliRunner().invoke(cli, [command[0], model, "--device", "cpu", "-c", "64", *command[1:]])
    assert done.exit_code == 2
    assert done.stderr.endswith("; shorten the text, or give a larger --context\n")
    assert done.stderr.count("\n") == 1


def test_an_answer_follows_its_form(tmp_path):
    number = {"type": "integer", "minimum": 0, "maximum": 99}
    whole = {"type": "object", "properties": {"n": number}, "required": ["n"], "additionalProperties": False}
    schema = json.dumps(whole)
    path = tmp_path / "schema.json"
    path.write_text(schema, encoding="utf-8")
    texts = {run(MODEL, "-p", "hello", "-n", 400, "--schema", given).stdout for given in (schema, path)}
    assert len(texts) == 1
    assert 0 <= json.loads(texts.pop())["n"] <= 99
    assert run(MODEL, "-p", "hello", "--regex", "(yes|no)").stdout in ("yes\n", "no\n")
    grammar = tmp_path / "grammar.gbnf"
    grammar.write_text('root ::= "a" "b"', encoding="utf-8")
    for given in ('start: "a" "b"', 'root ::= "a" "b"', grammar):
        assert run(MODEL, "-p", "hello", "--grammar", given).stdout == "ab\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--schema", "{"],
        ["--schema", "nowhere.json"],
        ["--regex", "("],
        ["--regex", "a", "--schema", "json"],
        ["--grammar", "nowhere.gbnf"],
        ["--grammar-file", "folder/nowhere.lark"],
    ],
)
def test_an_invalid_form_is_refused(arguments):
    result = run(MODEL, "-p", "hello", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1


def test_a_suffix_requests_the_text_between(monkeypatch):
    """No tiny model has infill tokens, so other tokens are used for them."""
    from rwkv_gpu.text import vocabulary

    monkeypatch.setattr(vocabulary, "_read_infill", lambda *_: (11, 12, 13))
    options = ("--device", "cpu", "--temperature", "0", "-n", "4", "--json")
    result = CliRunner().invoke(cli, ["generate", str(MODEL), "-p", "if a", "--suffix", "return", *options])
    with rwkv_gpu.load(MODEL, device="cpu") as llm:
        ids = [11, *llm.tokenize("if a"), 12, *llm.tokenize("return"), 13]
        bos = [llm.tokenizer.bos] if llm.tokenizer.add_bos else []
        assert llm.infill_prompt("if a", "return") == [*bos, *ids]
        done = llm.generate([*bos, *ids], max_tokens=4)
    assert json.loads(result.stdout)["tokens"] == [*done.tokens]
    echoed = CliRunner().invoke(cli, ["generate", str(MODEL), "-p", "if a", "--suffix", "return", "--echo", *options])
    assert json.loads(echoed.stdout)["text"] == f"if a{done.text}return"
    refused = CliRunner().invoke(cli, ["generate", str(MODEL), "-p", "a", "--suffix", "b", "--chat", *options])
    assert refused.exit_code == 2 and "leave out --chat" in refused.stderr


def test_a_model_without_tokens_for_the_middle_is_refused():
    result = CliRunner().invoke(cli, ["generate", str(MODEL), "-p", "a", "--suffix", "b", "--device", "cpu"])
    assert result.exit_code == 2
    assert "no tokens to fill in the middle" in result.stderr and len(result.stderr.splitlines()) == 1
