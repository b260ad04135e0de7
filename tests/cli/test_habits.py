"""Commands accept what users of llama.cpp, ollama, mlx-lm and OpenAI's API usually type."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.cli.commands import cli
from tests.golden_files import OWN
from tests.process import posix

MODEL = str(OWN / "tiny-rwkv7.gguf")
LLAMA = str(OWN / "tiny-llama.gguf")
LICENSE = str(OWN.parents[1] / "LICENSE")  # a short text
GREEDY = ["--temp", "0", "--device", "cpu"]


def run(*arguments: object, stdin: str | None = None):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin)


@pytest.fixture(scope="module")
def answer():
    with rwkv_gpu.load(device="cpu") as llm:
        return llm.chat().send("hello", temperature=0.0, top_p=0.9, max_tokens=20).text


@pytest.mark.parametrize(
    "arguments",
    [
        ["chat", "hello"],
        ["chat", "-p", "hello"],
        ["chat", "builtin", "hello"],
        ["run", "builtin", "hello"],
        ["run", str(builtin_model()), "hello"],
        ["chat", "-m", "builtin", "hello"],
        ["chat", "--model", str(builtin_model()), "-p", "hello"],
        ["generate", "--chat", "-p", "hello", "--top-p", "0.9"],
    ],
)
def test_one_question_has_one_answer(arguments, answer):
    result = run(*arguments, "-n", 20, *GREEDY)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == answer + "\n"


def test_one_answer_shows_its_speed_if_asked_to():
    for flag, shown in ((["--verbose"], True), ([], False)):
        result = run("run", MODEL, "the sea", "-n", 3, *flag, *GREEDY)
        assert ("answer 3 tokens at" in result.stderr) == shown
        assert "tok/s" not in result.stdout


def test_a_question_is_words_and_a_pipe_comes_before_it(answer):
    assert run("chat", "hello", "-n", 20, *GREEDY, stdin="").stdout == answer + "\n"
    with rwkv_gpu.load(device="cpu") as llm:
        both = llm.chat().send("The sea is wide.\n\nwhat is wide?", temperature=0.0, top_p=0.9, max_tokens=9).text
    result = run("chat", "what", "is", "wide?", "-n", 9, *GREEDY, stdin="The sea is wide.\n")
    assert result.stdout == both + "\n"


def test_a_first_argument_that_looks_like_a_model_is_one(tmp_path):
    missing = run("chat", "nowhere.gguf", "hello", *GREEDY)
    assert missing.exit_code == 2
    assert "nowhere.gguf" in missing.stderr
    for typo in ("model.ggu", "model.guf", "model.onnx"):
        assert run("chat", typo, "hello", *GREEDY).exit_code == 2
    note = tmp_path / "notes.txt"
    note.write_text("The sea", encoding="utf-8")
    assert run("chat", note, "hello", *GREEDY).exit_code == 2  # a path is a path if it exists
    assert run("tokenize", "builtin", "hello").stdout == run("tokenize", "hello").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "--device", "cpu", "--json"],
        ["fit", "--device", "cpu", "--json"],
        ["tokenize", "hello"],
        ["embed", "the sea", "--device", "cpu"],
        ["generate", "-p", "hello", "-n", 3, "--device", "cpu"],
        ["perplexity", LICENSE, "--device", "cpu"],
        ["bench", "-p", 4, "-n", 2, "-r", 1, "-o", "json", "--device", "cpu"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_without_a_file_every_command_takes_the_built_in_model(arguments):
    """The model is omitted, given as `builtin`, or given by its path, as an argument or with -m."""

    def steady(text: str) -> str:
        return "" if arguments[0] == "bench" or "available" in text or '"needs"' in text else text

    left_out = run(*arguments)
    assert left_out.exit_code == 0, left_out.stderr
    assert left_out.stdout
    name, *rest = arguments
    for model in ("builtin", builtin_model()):
        for given in ([name, model, *rest], [name, "-m", model, *rest]):
            result = run(*given)
            assert result.exit_code == 0, (given, result.stderr)
            assert steady(result.stdout) == steady(left_out.stdout)


def test_a_batch_needs_no_model(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "The sea"}\n', encoding="utf-8")
    assert run("batch", source, target, "--device", "cpu", "-n", 3).exit_code == 0
    assert json.loads(target.read_text())["new_tokens"] == 3


def test_the_model_can_come_from_the_environment_and_the_command_line_overrides_it(monkeypatch):
    monkeypatch.setenv("RWKV_GPU_MODEL", MODEL)
    assert json.loads(run("info", "--json", "--device", "cpu").stdout)["file"] == MODEL
    assert json.loads(run("info", LLAMA, "--json", "--device", "cpu").stdout)["file"] == LLAMA


def test_minus_one_means_no_token_limit_so_the_context_ends_the_answer():
    data = json.loads(run("generate", LLAMA, "-p", "hello", "-c", 40, "-n", -1, "--json", "--device", "cpu").stdout)
    assert data["prompt_tokens"] + data["new_tokens"] == 40
    assert data["finish_reason"] == "length"
    assert data["truncated"] is True


def test_a_seed_of_minus_one_is_random():
    texts = {
        run("generate", MODEL, "-p", "a", "-n", 12, "--temp", 5, "--seed", seed, "--device", "cpu").stdout
        for seed in (-1, -1, -1)
    }
    assert len(texts) > 1


def test_scripts_may_place_layers_if_all_memory_is_main_memory():
    plain = run("generate", MODEL, "-p", "hello", "-n", 4, "--device", "cpu")
    for flags in (["-ngl", 99], ["--n-gpu-layers", "all"], ["--gpu-layers", 0, "--gpu-memory", "8G"], ["-ngl", "auto"]):
        assert run("generate", MODEL, "-p", "hello", "-n", 4, "--device", "cpu", *flags).stdout == plain.stdout


@pytest.mark.parametrize(
    ("flag", "value"), [("-ngl", "half"), ("--gpu-memory", "8 apples"), ("--gpu-memory", "0"), ("--n-cpu-moe", "-1")]
)
def test_values_that_are_neither_a_layer_count_nor_a_size_are_refused_in_one_line(flag, value):
    result = run("generate", MODEL, "-p", "hello", "--device", "cpu", flag, value)
    assert result.exit_code == 2
    assert value in result.stderr
    assert result.stderr.strip().count("\n") <= 3


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (["--n-predict", 7, "--temp", 0.9, "-s", 3], ["--max-tokens", 7, "--temperature", 0.9, "--seed", 3]),
        (["--repeat-penalty", 1.4, "--repeat-last-n", 9], ["--repetition-penalty", 1.4, "--penalty-last-n", 9]),
        (["--typical", 0.4], ["--typical-p", 0.4]),
        (["--mirostat", 2, "-s", 1], ["--mirostat-tau", 5, "--seed", 1]),
        (["--mirostat", 2, "--mirostat-ent", 3, "-s", 1], ["--mirostat-tau", 3, "--seed", 1]),
        (["-r", "e"], ["--stop", "e"]),
        (["--json-schema", '{"type": "integer"}'], ["--schema", '{"type": "integer"}']),
        (["-c", 64], ["--context", 64]),
        (["--ctx-size", 64], ["--context", 64]),
    ],
)
def test_option_names_of_llama_cpp_are_accepted(theirs, ours):
    common = ["generate", LLAMA, "-p", "hello world", "--device", "cpu", "--json"]
    texts = [json.loads(run(*common, *names).stdout)["tokens"] for names in (theirs, ours)]
    assert texts[0] == texts[1]
    assert texts[0]


def test_echo_repeats_the_prompt():
    common = ["generate", MODEL, "-p", "hello", "-n", 5, "--device", "cpu"]
    assert run(*common, "--echo").stdout == "hello" + run(*common).stdout
    plain, echoed = (json.loads(run(*common, "--json", *more).stdout)["text"] for more in ([], ["--echo"]))
    assert echoed == "hello" + plain


def test_a_template_without_chat_is_refused_rather_than_ignored():
    result = run("generate", MODEL, "-p", "a", "--system", "be brief")
    assert result.exit_code == 2
    assert "--chat" in result.stderr


@pytest.mark.parametrize("command", ["chat", "run"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama9.2"], "no model 'llama9.2'; did you mean llama3.2"),
        (["qwen3:0.6b"], "`rwkv-gpu pull qwen3:0.6b` downloads it"),
        (["mistral-small3.2"], "`rwkv-gpu pull mistral-small3.2` downloads it"),
        (["Qwen/Qwen3-0.6B-GGUF", "hi"], "`rwkv-gpu pull Qwen/Qwen3-0.6B-GGUF` downloads it"),
        (["./models/none", "hi"], "none: cannot be opened"),
        (["mistrall", "hi"], "no model 'mistrall'; did you mean ministral3 or mistral-small3.2:24b"),
        (["phi"], "no model 'phi'; did you mean phi4 or phi4:14b"),
        (["buitlin", "hi"], "no model 'buitlin'; did you mean builtin? "),
        (["gemma", "2", "hi"], "no model 'gemma'; did you mean gemma4"),
        (["model.bin", "hi"], "no model 'model.bin'"),
        (["hf.co/a", "hi"], "'hf.co/a' names no model of the hub; give hf.co/OWNER/NAME"),
    ],
)
def test_an_unknown_model_is_an_error_and_is_not_read_as_a_question(command, words, message):
    result = run(command, *words, *GREEDY)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_name_near_that_of_a_pulled_model_is_suggested(tmp_path, monkeypatch):
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path))
    pulled = tmp_path / "models" / "Qwen" / "Qwen3-4B-GGUF" / "Qwen3-4B-Q4_K_M.gguf"
    pulled.parent.mkdir(parents=True)
    pulled.write_bytes(b"GGUF")
    assert "did you mean Qwen3-4B or" in run("chat", "qwen3-4", *GREEDY).stderr


@pytest.mark.parametrize("question", ["hello", "what/why?", "2+2=4", "the sea", "graph", "camera", "all", "gamma"])
def test_words_are_joined_to_a_question(question):
    assert run("chat", question, "-n", 1, *GREEDY).exit_code == 0


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--chat"]])
def test_an_answer_that_was_cut_off_is_reported_on_standard_error(arguments):
    result = run("generate", MODEL, "-p", "hello", "-n", 3, "--template" if "--chat" in arguments else "--device",
                 "chatml" if "--chat" in arguments else "cpu", *arguments, "--device", "cpu")  # fmt: skip
    assert "cut off at 3 tokens" in result.stderr
    whole = run("generate", MODEL, "-p", "hello", "--regex", "yes", "--device", "cpu")
    assert "cut off" not in whole.stderr


def test_an_answer_to_a_single_question_that_was_cut_off_is_reported():
    assert "cut off at 3 tokens" in run("chat", "hello", "-n", 3, *GREEDY).stderr
    assert "cut off at 3 tokens" in run("chat", "-n", 3, *GREEDY, stdin="hello").stderr
    assert "cut off" not in run("chat", "hello", *GREEDY).stderr


def test_an_answer_cut_off_by_the_context_is_reported():
    full = run("generate", LLAMA, "-p", "hello", "-c", 32, "-n", 99, "--device", "cpu")
    assert "the context is full" in full.stderr
    result = run("generate", MODEL, "-p", "hello", "--regex", "a{90}", "-n", 9, "--device", "cpu")
    assert "may not match its format" in result.stderr


def test_an_environment_variable_of_one_command_does_not_affect_others(monkeypatch):
    monkeypatch.setenv("RWKV_GPU_PROMPT", "The sea")
    assert run("bench", "-p", 4, "-n", 0, "-r", 1, "--device", "cpu").exit_code == 0
    monkeypatch.setenv("RWKV_GPU_BENCH_PROMPT", "x")
    failed = run("bench", "--device", "cpu")
    assert failed.exit_code == 2
    assert "RWKV_GPU_BENCH_PROMPT" in failed.stderr


COMMANDS = [
    ["--help"],
    ["info", "--tensors", "--device", "cpu"],
    ["generate", "-p", "hello", "-n", "40", "--device", "cpu"],
    ["chat", "hello", "--device", "cpu"],
    ["tokenize", "the sea and the land"],
    ["embed", "a", "b", "--device", "cpu"],
    ["perplexity", LICENSE, "--device", "cpu"],
    ["fit", "--device", "cpu"],
    ["completion", "bash"],
    ["devices"],
]


@posix
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_a_closed_pipe_ends_with_141_and_a_full_disk_with_2(arguments):
    process = [sys.executable, "-m", "rwkv_gpu.cli.main", *arguments]
    read, write = os.pipe()
    os.close(read)
    closed = subprocess.run(process, stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert closed.returncode == 141
    assert b"Traceback" not in closed.stderr
    assert b"Exception" not in closed.stderr
    if not os.path.exists("/dev/full"):
        return
    with open("/dev/full", "wb") as full:
        done = subprocess.run(process, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    *demo, error = done.stderr.splitlines()
    assert error.startswith(b"rwkv-gpu: cannot write the output")
    assert not demo or (len(demo) == 1 and b"built-in demo" in demo[0])


@posix
def test_a_closed_pipe_of_standard_error_ends_with_141_too():
    process = [sys.executable, "-m", "rwkv_gpu.cli.main", "chat", "hello", "-n", "3", "--device", "cpu"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(process, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=write, check=False)
    os.close(write)
    assert done.returncode == 141


@posix
@pytest.mark.parametrize(
    ("command", "closing"),
    [
        *(("generate -p hello -n 5 --device cpu", closing) for closing in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")),
        *((command, "<&- >&- 2>&-") for command in ("chat hello --device cpu", "embed a")),
    ],
)
def test_closed_standard_streams_are_treated_as_empty(command, closing):
    script = f"{sys.executable} -m rwkv_gpu.cli.main {command} {closing}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=False)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


@posix
def test_output_to_a_closed_standard_error_is_not_in_the_results(tmp_path):
    """The next opened file would get descriptor 2, and with it the output of native libraries."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "The sea"}\n', encoding="utf-8")
    code = (
        "import os, sys; from rwkv_gpu.cli import main\n"
        "main.open_standard_files()\n"
        f"file = open({str(target)!r}, 'w'); os.write(2, b'noise'); file.close()\n"
    )
    subprocess.run(["sh", "-c", f'exec {sys.executable} -c "$0" 2>&-', code], check=True)
    assert target.read_text() == ""


def test_the_text_of_a_perplexity_can_come_by_option(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The sea was calm.")
    known = run("perplexity", MODEL, text, "--device", "cpu")
    assert known.exit_code == 0
    for arguments in ([MODEL, "-f", text], ["-m", MODEL, "--file", text]):
        assert run("perplexity", *arguments, "--device", "cpu").stdout == known.stdout
    by_pipe = run("perplexity", "-f", "-", "-m", MODEL, "--device", "cpu", stdin="The sea was calm.")
    assert by_pipe.stdout == known.stdout
    assert run("perplexity", MODEL, text, "-f", text, "--device", "cpu").exit_code == 2
    assert run("perplexity", MODEL, "--device", "cpu").exit_code == 2


def test_a_bias_of_a_token_can_be_typed_as_in_llama_cpp():
    def said(*biases: str) -> list[int]:
        options = [word for bias in biases for word in ("--logit-bias", bias)]
        return json.loads(run("generate", MODEL, "-p", "The sea", "-n", 3, "--json", *options, *GREEDY).stdout)[
            "tokens"
        ]

    plain = said()
    assert plain[0] not in said(f"{plain[0]}=-inf")
    assert said("7+100") == said("7=100") == [7, 7, 7]
    assert said("7=100", "9=100.5", "9-200") == [7, 7, 7]
    for wrong in ("seven=1", "7", "7=much"):
        assert run("generate", MODEL, "-p", "x", "--logit-bias", wrong, *GREEDY).exit_code == 2
