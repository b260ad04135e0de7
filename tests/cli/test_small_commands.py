"""Tests of `tokenize`, `perplexity`, `embed`, `download` and `completion`."""

import hashlib
import json
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import COMMANDS, cli
from rwkv_gpu.cli.keyboard import history_file
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.text.vocabulary import PREFIX
from tests.gguf.writer import STRING, array_key, gguf, string, text_key, written
from tests.golden_files import OWN
from tests.llm.hub_server import serving
from tests.process import posix
from tests.text.vocabularies import bpe

MODEL = OWN / "tiny-rwkv7.gguf"
TEXT = "The sea, 海 and 👍."


def run(*arguments: object, stdin: str | None = None):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin)


@pytest.fixture(scope="module")
def llm():
    with rwkv_gpu.load(MODEL, device="cpu") as llm:
        yield llm


def test_tokens_are_shown_as_ids_and_text_and_decode_to_it(llm):
    ids = llm.tokenize(TEXT)
    shown = run("tokenize", MODEL, TEXT).stdout.splitlines()
    assert [int(line.split()[0]) for line in shown] == ids
    assert json.loads(run("tokenize", MODEL, TEXT, "--json").stdout) == {"ids": ids, "count": len(ids)}
    only = run("tokenize", MODEL, "--ids", stdin=TEXT).stdout
    assert only.split() == [str(token) for token in ids]
    assert run("tokenize", MODEL, "--decode", stdin=only).stdout == TEXT + "\n"


def test_a_text_is_also_an_option_as_in_llama_tokenize_and_llama_embedding():
    for command, *more in (("tokenize",), ("embed", "--device", "cpu")):
        expected = run(command, MODEL, "The sea", *more)
        assert run(command, "-m", MODEL, "-p", "The sea", *more).stdout == expected.stdout != ""
        assert run(command, MODEL, "The sea", "-p", "x").exit_code == 2


def test_an_unknown_pre_tokenizer_is_reported_in_one_line_on_stderr(tmp_path):
    fields = bpe("martian")
    tokens, merges = (
        array_key(PREFIX + name, STRING, [*map(string, fields[PREFIX + name])]) for name in ("tokens", "merges")
    )
    named = [text_key(PREFIX + name, fields[PREFIX + name]) for name in ("model", "pre")]
    command = [
        sys.executable,
        "-m",
        "rwkv_gpu.cli.main",
        "tokenize",
        written(tmp_path, gguf([*named, tokens, merges])),
        "the",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("rwkv-gpu: ")
    assert "'martian'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["a b", "999999999", "-1"])
def test_invalid_ids_are_refused(text):
    result = run("tokenize", MODEL, "--decode", stdin=text)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_perplexity_of_a_file_equals_that_of_the_library(llm, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the sea and the land " * 9, encoding="utf-8")
    expected = llm.perplexity(path.read_text())
    data = json.loads(run("perplexity", MODEL, path, "--device", "cpu", "--json").stdout)
    assert data["perplexity"] == pytest.approx(expected)
    assert run("perplexity", MODEL, path, "--device", "cpu").stdout == f"{expected:.4f}\n"
    short = run("perplexity", MODEL, "-", "--device", "cpu", stdin="")
    assert short.exit_code == 2
    assert "at least 2" in short.stderr


def test_perplexity_of_the_first_tokens_reads_no_more_of_a_long_text(llm, tmp_path, monkeypatch):
    path, long = tmp_path / "text.txt", "the sea and the land " * 400_000
    path.write_text(long, encoding="utf-8")
    ids = llm.tokenize(long[:2000], special=True)[:30]
    lengths, encode = [], type(llm.tokenizer).encode
    monkeypatch.setattr(
        type(llm.tokenizer), "encode", lambda *given, **how: lengths.append(len(given[1])) or encode(*given, **how)
    )
    data = json.loads(run("perplexity", MODEL, path, "--device", "cpu", "--tokens", 30, "--json").stdout)
    assert data == {"perplexity": pytest.approx(llm.perplexity(ids)), "tokens": 30}
    assert sum(lengths) < 10_000
    whole = run("perplexity", MODEL, "-", "--device", "cpu", "--tokens", 30, "--json", stdin="the sea")
    assert json.loads(whole.stdout)["tokens"] == len(llm.tokenize("the sea", special=True))


@pytest.mark.parametrize("window", [None, 20])
def test_perplexity_reports_its_progress_up_to_the_last_token(llm, window):
    text = "the sea and the land " * 20
    seen = []
    value = llm.perplexity(text, window=window, progress=lambda done, total: seen.append((done, total)))
    assert value == llm.perplexity(text, window=window)
    tokens = len(llm.tokenize(text, special=True))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) > 1
    assert seen[-1] == (tokens, tokens)


def test_embeddings_are_a_line_each(llm):
    rows = [json.loads(line) for line in run("embed", MODEL, "one", "two", "--device", "cpu").stdout.splitlines()]
    np.testing.assert_allclose(rows, llm.embed(["one", "two"]), atol=1e-6)
    assert run("embed", MODEL, "--device", "cpu", stdin="one\ntwo\n").stdout.splitlines() == [
        json.dumps(row) for row in rows
    ]
    short = [json.loads(line) for line in run("embed", MODEL, "one", "--dimensions", "3").stdout.splitlines()]
    np.testing.assert_allclose(short, [llm.embed("one", dimensions=3)], atol=1e-6)
    assert "dimensions is 999; embeddings of this model have" in run("embed", MODEL, "a", "--dimensions", "999").stderr
    assert "text 2 is empty" in run("embed", MODEL, "a", "", "--device", "cpu").stderr


def test_embeddings_as_json_are_as_openais_api_returns_them(llm):
    data = json.loads(run("embed", MODEL, "one", "two words", "--device", "cpu", "--json").stdout)
    expected = llm.create_embedding(["one", "two words"])
    assert {**data, "data": None} == {**expected, "data": None}
    assert [row["index"] for row in data["data"]] == [0, 1]
    vectors = [row["embedding"] for row in data["data"]]
    np.testing.assert_allclose(vectors, [row["embedding"] for row in expected["data"]], atol=1e-6)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_no_text_to_embed_is_an_error(more, tmp_path):
    result = run("embed", MODEL, "--device", "cpu", *more, stdin="")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "rwkv-gpu: standard input is empty; give a text on each line\n"
    path = tmp_path / "empty.txt"
    path.touch()
    assert f"{path} is empty" in run("embed", MODEL, "-f", path, *more).stderr


@pytest.mark.parametrize("command", [("chat", "hello"), ("generate", "-p", "hello"), ("run", "hello")])
def test_generating_with_an_encoder_points_to_embed(command):
    name, *arguments = command
    result = run(name, OWN / "tiny-bert.gguf", *arguments, "--device", "cpu")
    assert result.exit_code == 2
    assert "rwkv-gpu embed" in result.stderr
    assert result.stderr.count("\n") == 1


def test_quantize_reports_sizes_bits_and_why_tensors_keep_their_type(tmp_path):
    out = tmp_path / "out.gguf"
    report = run("quantize", MODEL, out, "Q4_K_M").stderr
    sizes = [float(bits) for bits in re.findall(r"\(([0-9.]+) bits per weight\)", report)]
    for path, shown in zip((MODEL, out), sizes, strict=True):
        with GGUFFile.open(path) as file:
            weights = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
            assert shown == pytest.approx(8 * sum(t.nbytes for t in file.tensors.values()) / weights, abs=0.006)
    assert "kept 28 F32: vectors\n" in report
    assert "kept 16 F16: small matrices whose errors cost most\n" in report
    assert "11 Q5_0: rows of 128 are not whole blocks of Q4_K\n" in report
    again = run("quantize", out, tmp_path / "again.gguf", "Q5_0", "--pure", "--leave-output-tensor").stderr
    assert "kept 13 Q5_0: already of this type\n" in again
    assert "kept 1 Q8_0: left as they are by an option\n" in again


def test_quantize_replaces_a_file_only_with_a_yes(tmp_path):
    out = tmp_path / "out.gguf"
    out.write_bytes(b"precious")
    refused = run("quantize", MODEL, out, "Q8_0")
    assert (refused.exit_code, out.read_bytes()) == (2, b"precious")
    assert refused.stderr == f"rwkv-gpu: {out} exists; -y replaces it, or give another name\n"
    assert run("quantize", MODEL, out, "Q8_0", "-y").exit_code == 0
    assert out.read_bytes().startswith(b"GGUF")
    assert "the model itself" in run("quantize", out, out, "Q8_0").stderr


def test_a_download_prints_the_path_and_reports_a_failure_in_one_line(monkeypatch, tmp_path):
    files = {"a.gguf": b"model", "README.md": b"read me", "b/c.gguf": b"other"}
    with serving(files) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for name, data in files.items():
            path = tmp_path / name
            assert run("download", "owner/name", name, "--to", tmp_path).stdout == f"{path}\n"
            assert path.read_bytes() == data
        assert len(hub.asked) == 3
        assert run("download", "owner/name", "a.gguf", "--to", tmp_path).exit_code == 0
        assert len(hub.asked) == 3, "it is here already"
        hub.files["a.gguf"], hub.sums["a.gguf"] = b"a newer model", hashlib.sha256(b"a newer model").hexdigest()
        run("download", "owner/name", "a.gguf", "--to", tmp_path)
        assert (tmp_path / "a.gguf").read_bytes() == b"a newer model"
        assert run("download", "owner/name").stdout == "a.gguf\nb/c.gguf\n"
        for arguments, message in (
            (["owner/none", "a.gguf"], "cannot download owner/none: not found (404): check the name and the revision"),
            (["owner/name", "d.gguf"], "owner/name has no file d.gguf; it has a.gguf, b/c.gguf"),
            (["a:1b"], "'a:1b' names no repository of the hub; give OWNER/NAME; `rwkv-gpu pull` takes short names"),
        ):
            failed = run("download", *arguments)
            assert (failed.exit_code, failed.stderr) == (2, f"rwkv-gpu: {message}\n")


def test_a_download_stays_in_its_folder(monkeypatch, tmp_path):
    with serving({"../a.gguf": b"model", "/b.gguf": b"model"}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for name in hub.files:
            failed = run("download", "owner/name", name, "--to", tmp_path / "to")
            assert (failed.exit_code, hub.asked) == (2, [])
            assert "lies outside of its repository" in failed.stderr


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://hub.invalid"])
def test_a_download_without_a_network_fails_in_one_line(monkeypatch, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    for arguments in ([], ["a.gguf"]):
        failed = run("download", "owner/name", *arguments)
        assert failed.exit_code == 2
        assert failed.stderr.startswith("rwkv-gpu: cannot download owner/name: ")
        assert failed.stderr.endswith("; check the network connection\n")
        assert "Errno" not in failed.stderr
        assert failed.stderr.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_their_script(shell):
    script = run("completion", shell).stdout
    assert "_RWKV_GPU_COMPLETE" in script
    assert "rwkv-gpu" in script


def test_commands_are_completed():
    code = "from rwkv_gpu.cli.main import main; main()"
    env = {"_RWKV_GPU_COMPLETE": "bash_complete", "COMP_WORDS": "rwkv-gpu ", "COMP_CWORD": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert {line.split(",")[1] for line in done.stdout.splitlines()} == COMMANDS.keys()


@posix
def test_a_huge_file_in_the_place_of_a_text_is_refused_without_reading_it(tmp_path):
    """A sparse file of a terabyte takes no room; reading it would end the process."""
    huge, lines = tmp_path / "huge", tmp_path / "lines"
    huge.touch()
    os.truncate(huge, 1 << 40)
    lines.write_text('{"prompt": "a"}\n')
    result, results = tmp_path / "huge-result", tmp_path / "huge-results"
    for path, start in ((result, '{"id": "1"'), (results, '{"id": "1", "text": ""}\n')):
        path.write_text(start)
        os.truncate(path, 1 << 40)
    endless = tmp_path / "huge-device"
    endless.symlink_to("/dev/zero")
    for arguments in (
        ["generate", MODEL, "-p", "a", "--json-schema", endless],
        ["create", "pet", "-f", endless],
        ["tokenize", "-m", MODEL, "--file", huge],
        ["generate", MODEL, "--chat", "-p", "a", "--template", huge],
        ["generate", MODEL, "-p", "a", "--json-schema", huge],
        ["create", "pet", "-f", huge],
        ["perplexity", MODEL, "--file", huge],
        ["batch", MODEL, huge, tmp_path / "out"],
        ["batch", MODEL, lines, huge],
        ["batch", MODEL, lines, result],
        ["batch", MODEL, lines, results],
        ["serve", MODEL, "--api-key-file", huge],
    ):
        refused = run(*arguments)
        assert refused.exit_code == 2, (arguments, refused.output)
        assert len(refused.stderr.splitlines()) == 1, refused.stderr
        assert "huge" in refused.stderr


@posix
def test_a_history_of_messages_that_is_huge_is_put_aside(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = history_file()
    path.write_text("+hello\n")
    assert history_file() == path and path.read_text() == "+hello\n"
    os.truncate(path, 1 << 40)
    assert history_file() == path and path.stat().st_size == 0
    assert path.with_name("history.old").stat().st_size == 1 << 40
