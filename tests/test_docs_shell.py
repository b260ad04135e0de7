"""Every line of shell in README and user pages that is not a `rwkv-gpu` command is run, or its names are checked."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.cli.ray_settings import settings_of
from rwkv_gpu.llm.hub import Hub
from tests.gguf.writer import written
from tests.llm.hub_server import serving as serving_hub
from tests.llm.test_catalogue import ONE
from tests.process import PATIENCE, posix
from tests.test_docs_commands import LINE, PAGES, ROOT
from tests.test_install import PROJECT

SHELL = re.compile(r"curl|docker|git|head|make|pip|python|ray|serve|sudo|valkey-server")
CATALOGUE = ONE.replace("tiny:1m", "qwen3.5:4b")


def shell_lines() -> list[tuple[str, str]]:
    """Returns the page and text of each line that a user types into a shell, `rwkv-gpu` commands excepted."""
    found = []
    for page in (page for page in PAGES if page.name != "cli.md"):
        fence = None
        for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            if line.startswith("```"):
                fence = line[3:] if fence is None else None
            elif fence == "sh" or (fence is None and re.match(rf"    (?:{SHELL.pattern}) ", line)):
                found += [] if LINE.match(line) else [(page.name, line.strip())]
    return found


LINES = shell_lines()


def commands(program: str) -> list[tuple[str, list[str]]]:
    """Returns the page and the words of each command of a program, also of those after `&&` and `|`."""
    parts = [(page, shlex.split(one, comments=True)) for page, line in LINES for one in re.split(r"&&|(?<= )\|", line)]
    return [(page, words) for page, words in parts if words[:1] == [program]]


def options_of(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}


def test_each_line_begins_with_a_program_that_is_checked_below():
    assert len(LINES) > 25
    for page, line in LINES:
        assert SHELL.fullmatch(line.split()[0]), (page, line)


def test_the_targets_and_variables_of_make_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page, (_, *words) in commands("make"):
        for word in words:
            name, equals, _ = word.partition("=")
            assert f"$({name})" in makefile if equals else re.search(rf"^{name}:", makefile, re.MULTILINE), (page, word)


def test_the_extras_of_pip_exist():
    found = [word for _, words in commands("pip") for word in words[2:]]
    assert found
    for extras in (one.partition("[")[2].rstrip("]").split(",") for one in found if one.startswith(".[")):
        assert set(extras) <= PROJECT["optional-dependencies"].keys()


def test_the_modules_of_python_exist_and_have_the_options():
    for page, (_, flag, module, *words) in commands("python"):
        found = importlib.util.find_spec(module)
        assert flag == "-m", page
        assert found is not None, (page, module)
        assert found.origin is not None
        source = Path(found.origin).read_text(encoding="utf-8")
        for option in options_of(words):  # options of training are made of names in a table
            assert option in source or f'"{option[2:]}"' in source or f"{option[2:]}=" in source, (page, module, option)


def test_files_ports_and_settings_of_docker_and_systemd_exist():
    [(_, build), (_, run)] = commands("docker")
    assert (ROOT / build[build.index("-f") + 1]).exists()
    image = (ROOT / "packaging" / "Dockerfile").read_text(encoding="utf-8")
    served = cli.get_command(click.Context(cli), "serve")
    assert served is not None
    inside = run[run.index("-p") + 1].partition(":")[2]
    assert f"EXPOSE {inside}" in image
    assert run[run.index("-v") + 1].partition(":")[2] in image
    names = {f"RWKV_GPU_{(one.name or '').upper()}" for one in served.params}
    assert run[run.index("-e") + 1].partition("=")[0] in names
    assert run[-1] == build[build.index("-t") + 1]
    for _, words in commands("sudo"):
        assert words[1] == "systemctl" or (ROOT / words[2]).exists()


@posix
def test_the_application_of_ray_takes_the_settings(tmp_path, monkeypatch):
    [key] = [line for page, line in LINES if line.startswith("head ")]
    monkeypatch.chdir(tmp_path)
    subprocess.run(key, shell=True, check=True)
    assert len(Path("store.key").read_bytes()) == 45
    [(_, [_, run, application, *words])] = commands("serve")
    assert (run, application) == ("run", "rwkv_gpu.ray:app")
    assert settings_of(dict(word.split("=", 1) for word in words)).max_replicas == 4
    for _, words in commands("ray"):
        resources = words[words.index("--resources") + 1] if "--resources" in words else "{}"
        assert json.loads(resources).keys() <= {"wgpu"}


@pytest.fixture(scope="module", params=["chats", "ranks", "decides"])
def server(request, tmp_path_factory):
    """Returns a server of a model for chats, ranking or decisions, which pulls models from a hub on this machine."""
    pytest.importorskip("starlette", reason="the extra `server` is not installed")
    from rwkv_gpu.server.catalogue import ServedModel
    from rwkv_gpu.server.pulls import Pulls
    from tests.llm.test_decisions import clef
    from tests.server.serving import MODEL, serving
    from tests.server.test_rerank import MODEL as RANKS

    folder, built_in = tmp_path_factory.mktemp("models"), rwkv_gpu.builtin_model().read_bytes()
    (folder / "own.toml").write_text(CATALOGUE.format(bytes=len(built_in)))
    paths = {"chats": MODEL, "ranks": RANKS, "decides": written(folder, clef().built())}
    model = ServedModel(request.param, str(paths[request.param]))
    with serving_hub({"tiny-Q4_K_M.gguf": built_in}) as hub, serving(model, admin_keys=("admin",)) as served:
        served.service.pulls = Pulls(Hub(folder, hub.url, catalogue=folder / "own.toml"), 1 << 30)
        yield served


MODELS = {"rerank": "ranks", "systemone": "decides"}  # of routes that need a model of their own
CURL = [(MODELS.get(words[1].rpartition("/")[2], "chats"), words) for _, words in commands("curl")]


@pytest.mark.parametrize(("server", "words"), CURL, ids=lambda one: one[1][:40], indirect=["server"])
def test_a_command_of_curl_succeeds(server, words):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    asked = {"prompt": "a", "stream": True, "resumable": True, "max_tokens": 20}
    stream = server.request("POST", "/v1/completions", asked)[1]["x-stream-id"] or ""
    written = [re.sub(r"localhost:80[08]0", f"localhost:{server.port}", word) for word in words]
    written = [one.replace("strm_...", stream).replace("$KEY", "admin") for one in written]
    done = subprocess.run([*written, "-fsS"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stdout
