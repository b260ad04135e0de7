"""Every command in README and user pages is understood. Commands that need no GPU run as written.

A local server replaces the hub, and short names stand for its model.
"""

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from PIL import Image

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from tests.convert.checkpoints import rwkv7
from tests.convert.hub_adapters import Adapter, of_layers, write_adapter
from tests.convert.hub_folders import INNER, WIDTH
from tests.gguf.torch_files import save, torch_names
from tests.golden_files import OWN
from tests.llm.hub_server import serving
from tests.llm.test_catalogue import ONE

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "models").glob("*.md"))]
LINE = re.compile(r"^ *(?:echo (?P<piped>\"[^\"]*\") \| )?(?:\.venv/bin/)?rwkv-gpu (?P<arguments>[^|\n]*)$")
INLINE = re.compile(r"`rwkv-gpu (?!COMMAND)([a-z]+(?: [^`]*)?)`")
RUN = {"models", "create", "run", "chat", "info", "fit", "pull", "quantize", "batch", "convert"}  # without --device
ALSO = (
    "devices", "export web builtin site/",
    *(f"plan --synthetic rwkv7-2.9b-q4_k_m --rows 1 --limits h200{more}" for more in ("", " --shader 12")),
)  # fmt: skip


def commands() -> list[tuple[str, list[str], str]]:
    """Returns the page, arguments and standard input of each command in a block of code."""
    found = []
    for page in (page for page in PAGES if page.name != "cli.md"):
        fenced = False
        for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            fenced ^= line.startswith("```")
            match = LINE.match(line) if fenced or line.startswith("    ") else None
            if match is not None:
                arguments = shlex.split(match["arguments"], comments=True)
                found.append((page.name, arguments, shlex.split(match["piped"] or "")[0] if match["piped"] else ""))
    return found


ALL = commands()
RUNNABLE = [
    one for one in ALL if " ".join(one[1]) in ALSO or (one[1][0] in RUN and not {"--device", "--split"} & {*one[1]})
]


def test_pages_have_commands():
    assert len(ALL) > 40
    assert len(RUNNABLE) > 20
    assert {"README.md", "which-model.md", "models.md", "chat.md"} <= {page for page, _, _ in RUNNABLE}


def test_every_command_and_option_exists(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for page, (name, *arguments), _ in ALL:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, (page, name)
        with command.make_context(name, [one.replace("~/models", ".") for one in arguments]):
            pass  # raises UsageError for an unknown option or argument


def test_every_command_and_option_in_a_sentence_exists():
    found = [one for page in PAGES for one in INLINE.findall(page.read_text(encoding="utf-8")) if page.name != "cli.md"]
    assert len(found) > 80
    for name, *arguments in map(shlex.split, found):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, name
        within = command.commands[arguments[0]] if isinstance(command, click.Group) and arguments else command
        options = {option for one in within.params for option in (*one.opts, *one.secondary_opts)}
        assert {one for one in arguments if one.startswith("-")} - {"--help"} <= options, (name, arguments)


@pytest.fixture(scope="module")
def hub():
    with serving({"model-Q4_K_M.gguf": rwkv_gpu.builtin_model().read_bytes()}) as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with the files that pages name."""
    folder = tmp_path_factory.mktemp("user")
    for name in ("model.gguf", "model-f16.gguf"):
        shutil.copyfile(rwkv_gpu.builtin_model(), folder / name)
    shutil.copyfile(OWN / "tiny-gemma3.gguf", folder / "gemma-3-4b-it-Q4_K_M.gguf")
    shutil.copyfile(OWN / "vision" / "gemma3.gguf", folder / "mmproj-gemma-3.gguf")
    Image.new("RGB", (40, 30), "blue").save(folder / "photo.jpg")
    (folder / "Modelfile").write_text("FROM qwen3.5:4b\nSYSTEM You are Mario.\nPARAMETER temperature 0.5\n")
    (folder / "mcp.json").write_text('{"mcpServers": {"files": {"command": "no-command"}}}')  # one line says so
    _, base = write_adapter(folder, Adapter("my-adapter", "qwen3", of_layers({"mlp.gate_proj": (INNER, WIDTH)})))
    base.rename(folder / "Qwen3-0.6B")
    with pytest.MonkeyPatch.context() as patch:
        save(folder / "rwkv7-g1.pth", torch_names(patch), rwkv7())
    (folder / "in.jsonl").write_text('{"prompt": "The sea"}\n')
    entry = ONE.format(bytes=rwkv_gpu.builtin_model().stat().st_size)
    entry = entry.replace("tiny:1m", "qwen3.5:4b").replace("tiny-Q4", "model-Q4")
    (folder / "catalogue.toml").write_text(entry)
    return folder


@pytest.mark.parametrize(
    ("page", "arguments", "piped"), RUNNABLE, ids=lambda one: " ".join(one) if isinstance(one, list) else one
)
def test_commands_run_as_they_are_written(page, arguments, piped, hub, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("RWKV_GPU_CACHE", str(folder / "cache"))
    monkeypatch.setenv("RWKV_GPU_CATALOGUE", str(folder / "catalogue.toml"))
    monkeypatch.setenv("RWKV_GPU_DEVICE", "cpu")
    monkeypatch.setenv("RWKV_GPU_YES", "1")
    monkeypatch.setenv("RWKV_GPU_MAX_TOKENS", "8")
    if page == "models.md":  # comes after the `pull` of the page
        CliRunner().invoke(cli, ["pull", "owner/name"])
    written = [one.replace("OWNER/NAME", "owner/name").replace("NAME", "name") for one in arguments]
    result = CliRunner().invoke(cli, written, input=f"{piped or 'hello'}\n")  # a chat requests a question
    assert result.exit_code == 0, (page, result.stderr)
    assert "Traceback" not in result.stderr
