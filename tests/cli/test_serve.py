"""`rwkv-gpu serve` listens, answers, and ends on a signal as other servers do."""

import io
import json
import logging
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from rwkv_gpu.cli.serve import loader, served
from rwkv_gpu.cli.serve_options import hosts_of, store_of
from rwkv_gpu.errors import BadInput
from rwkv_gpu.server.logs import start_logs
from tests.golden_files import OWN
from tests.process import PATIENCE, posix

pytest.importorskip("starlette", reason="the extra `server` is not installed")

MODEL = str(OWN / "quiet-rwkv7.gguf")


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Starts the command as a process. Returns it and its base URL."""
    command = [sys.executable, "-m", "rwkv_gpu.cli.main", "serve", "--device", "cpu", "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"serving on (https?://\S+)/v1", line):
                yield process, found[1]
                return
        raise AssertionError("it did not start")
    finally:
        process.kill()
        process.communicate()


def asked(url: str, body: object = None) -> dict[str, object]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=PATIENCE) as response:
        return json.load(response)


@pytest.mark.parametrize(("kv", "said"), [("f16", []), ("q8", ["--kv q8: all layers stay f16"])])
def test_the_log_names_a_type_of_the_kv_cache_that_is_not_supported(kv, said):
    lines = io.StringIO()
    start_logs("text", lines)
    loader({"device": "cpu", "kv": kv}, None)(str(OWN / "tiny-deepseek2.gguf"), lambda *_: None).close()
    assert [line.partition("WARNING ")[2][: len(said[0])] for line in lines.getvalue().splitlines()] == said


class TerminalText(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [40, 80])
def test_log_lines_break_between_words_on_a_terminal_and_stay_whole_elsewhere(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    file, terminal, path = io.StringIO(), TerminalText(), "/models/" + "long-" * 20 + "name.gguf"
    for stream in (file, terminal):
        start_logs("text", stream)
        logging.getLogger("rwkv_gpu.server").info(
            "model loading and more words", extra={"fields": {"path": path, "a": 1}}
        )
    [plain], parts = file.getvalue().splitlines(), terminal.getvalue().splitlines()
    assert path in plain
    assert " ".join(part.strip() for part in parts) == plain
    assert all(len(part) <= columns or part.strip() == f"path={path}" for part in parts)
    assert all(part.startswith("  ") for part in parts[1:])


@posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_and_exits_with_0(number):
    with serving(MODEL) as (process, url):
        assert asked(f"{url}/health")["status"] == "ok"
        assert asked(f"{url}/v1/completions", {"prompt": "a", "max_tokens": 1})["model"] == "quiet-rwkv7"
        process.send_signal(number)
        assert process.wait(10) == 0


@pytest.mark.long
def test_a_configuration_file_sets_options_by_name_and_the_command_line_overrides_it(tmp_path):
    config, keys = tmp_path / "serve.toml", tmp_path / "keys"
    keys.write_text("# ours\nfrom-file\n\n")
    config.write_text(f"""
        models = ["{MODEL}"]
        parallel = 3
        api-key = ["a", "b"]
        api_key_file = "{keys}"
        log-format = "text"
    """)
    with serving("--config", str(config), "--log-format", "json") as (_, url):
        request = urllib.request.Request(f"{url}/props", headers={"x-api-key": "from-file"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            assert json.load(response)["total_slots"] == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "prot"),
        ("port = [1]", "port"),
        ("[server]\nport = 1", "server"),
        ("port = ", "TOML"),
        ("port = 'x'", "port"),
        ("timeout = nan", "not a duration"),
        ("keep-alive = inf", "not a duration"),
        ("a = " + "[" * 3000 + "]" * 3000, "TOML"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, text, said):
    config = tmp_path / "serve.toml"
    config.write_text(text)
    result = CliRunner().invoke(cli, ["serve", "--config", str(config)])
    assert result.exit_code == 2
    assert said in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.long
def test_options_can_be_set_in_the_environment(monkeypatch):
    monkeypatch.setenv("RWKV_GPU_API_KEY", "one two")
    monkeypatch.setenv("RWKV_GPU_MODELS", MODEL)
    with serving() as (_, url):
        assert asked(f"{url}/health")["models"] == [{"id": "quiet-rwkv7", "state": "ready"}]
        for key, status in [("two", 200), ("one two", 401)]:
            request = urllib.request.Request(f"{url}/v1/models", headers={"x-api-key": key})
            try:
                found = urllib.request.urlopen(request, timeout=PATIENCE).status
            except urllib.error.HTTPError as error:
                found = error.code
                error.close()
            assert found == status


@pytest.mark.long
def test_it_serves_https(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"]
    subprocess.run([*make, "-out", str(cert), "-keyout", str(key)], check=True, capture_output=True)
    with serving(MODEL, "--tls-cert", str(cert), "--tls-key", str(key)) as (_, url):
        assert url.startswith("https://")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with urllib.request.urlopen(f"{url}/health", timeout=PATIENCE, context=context) as response:
            assert json.load(response)["status"] == "ok"
    result = CliRunner().invoke(cli, ["serve", MODEL, "--tls-cert", str(cert)])
    assert result.exit_code == 2
    assert "--tls-key" in result.output


@pytest.mark.long
def test_after_kill_9_it_starts_again_on_the_same_port():
    with serving(MODEL) as (process, url):
        process.kill()
        process.wait(10)
    with serving(MODEL, "--port", url.rpartition(":")[2]) as (_, again):
        assert again == url


@pytest.mark.parametrize("origin", ["example.com", "https://example.com/", "https://a.b/c"])
def test_an_origin_that_no_browser_sends_is_refused(origin):
    result = CliRunner().invoke(cli, ["serve", MODEL, "--cors", origin])
    assert result.exit_code == 2
    assert "https://example.com, without a path" in result.output


@pytest.mark.parametrize("hosts", ["http://a.example/", "a.example,,b", "*", "a b", "a:80:x/"])
def test_allowed_media_hosts_must_be_host_names(hosts):
    result = CliRunner().invoke(cli, ["serve", MODEL, "--allow-media-urls", hosts])
    assert result.exit_code == 2 and "is not a host" in result.output
    assert hosts_of(("A.example., b", "::1")) == ("a.example", "b", "::1")


def test_an_address_that_others_reach_needs_a_key():
    result = CliRunner().invoke(cli, ["serve", MODEL, "--host", "0.0.0.0"])
    assert result.exit_code == 2
    assert "--api-key" in result.output


def test_models_of_several_devices_are_not_managed_over_http():
    result = CliRunner().invoke(cli, ["serve", MODEL, "--device", "0,1", "--admin-key", "key"])
    assert result.exit_code == 2
    assert "give one --device" in result.output


@pytest.mark.long
def test_the_admin_key_comes_from_the_environment_or_a_file(tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("filed\n")
    monkeypatch.setenv("RWKV_GPU_ADMIN_KEY", "named")
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path / "cache"))
    with serving(MODEL, "--admin-key-file", str(tmp_path / "keys")) as (_, url):
        root = url.removesuffix("/v1")
        for key, status in (("named", 400), ("filed", 400), ("other", 401)):
            headers = {"Authorization": f"Bearer {key}"}
            request = urllib.request.Request(f"{root}/models/load", b"{}", headers, method="POST")
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            with refused.value as answer:
                assert answer.code == status


@pytest.mark.parametrize("before", [[], [MODEL]])  # a model loaded at once, and one loaded at its first use
def test_a_missing_model_is_an_error_in_one_line_and_starts_no_server(tmp_path, before):
    missing = str(tmp_path / "missing.gguf")
    result = CliRunner().invoke(cli, ["serve", *before, missing, "--device", "cpu", "--port", "0"])
    assert result.exit_code == 2
    assert result.output == f"rwkv-gpu: {missing}: cannot be opened: No such file or directory\n"


@pytest.mark.long
def test_a_port_that_is_taken_is_named():
    with serving(MODEL) as (_, url):
        port = url.rpartition(":")[2]
        result = CliRunner().invoke(cli, ["serve", MODEL, "--port", port])
        assert result.exit_code == 2
        assert f"port {port}" in result.output


def test_the_parts_of_a_model_are_one_model_under_its_name(tmp_path):
    paths = [tmp_path / f"large-0000{n}-of-00002.gguf" for n in (2, 1)]
    for path in paths:
        path.touch()
    [model] = served(tuple(map(str, paths)), None, ())
    assert (model.name, model.path) == ("large", str(paths[1]))


def test_aliases_of_a_single_model_need_not_name_it_and_the_first_is_its_name(tmp_path):
    paths = tuple(str(tmp_path / f"{name}.gguf") for name in "ab")
    for path in paths:
        Path(path).touch()
    [model] = served(paths[:1], None, ("gpt-4o,mine", "other=a"))
    assert (model.name, model.aliases) == ("gpt-4o", ("a", "mine", "other"))
    with pytest.raises(BadInput, match="--alias mine is not NAME=MODEL with one of the models a, b"):
        served(paths, None, ("mine",))


def test_a_template_that_is_neither_a_file_nor_built_in_is_refused_at_the_start():
    for command in ("serve", "chat", "batch"):
        files = ["in.jsonl", "out.jsonl"] if command == "batch" else []
        result = CliRunner().invoke(cli, [command, MODEL, *files, "--chat-template", "./none.jinja"])
        assert result.exit_code == 2
        assert "./none.jinja is not a file or a built-in chat template; known: rwkv-world" in result.stderr


def test_two_models_of_one_name_are_refused():
    result = CliRunner().invoke(cli, ["serve", MODEL, MODEL])
    assert result.exit_code == 2
    assert "two models" in result.output


def test_a_store_that_is_not_a_folder_needs_a_key(tmp_path):
    key = tmp_path / "store.key"
    key.write_text("a secret of sixteen characters\n")
    url = "valkey://localhost:6379"
    assert store_of(None, None) == {}
    assert store_of("states", None) == {"store": "states"}
    assert store_of(url, str(key)) == {"store": url, "store_key": b"a secret of sixteen characters"}
    for name, file, message in ((url, None, "needs --store-key-file"), (None, str(key), "without --store")):
        with pytest.raises(BadInput, match=message):
            store_of(name, file)
