"""Commands that need no GPU open none: those that only read a file, and all with --device cpu."""

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from tests.golden_files import OWN

MODEL = str(OWN / "tiny-rwkv7.gguf")
CPU = ("--device", "cpu")


@pytest.fixture
def no_gpu(monkeypatch):
    """Makes every search for a GPU an error."""

    def refuse(*_, **__):
        raise AssertionError("a GPU was looked for")

    found_by = SimpleNamespace(gpu=SimpleNamespace(enumerate_adapters_sync=refuse))
    monkeypatch.setattr("rwkv_gpu.gpu.adapters.wgpu", found_by)
    monkeypatch.setattr("rwkv_gpu.gpu.device.Device.__init__", refuse)


@pytest.mark.parametrize(
    "arguments",
    [
        ("info", MODEL, "--tensors"),
        ("info", MODEL, *CPU),
        ("tokenize", MODEL, "the sea"),
        ("fit", MODEL, *CPU),
        ("generate", MODEL, "-p", "a", "-n", "2", *CPU),
        ("chat", MODEL, "hi", "-n", "2", "--template", "chatml", *CPU),
        ("embed", MODEL, "a", *CPU),
        ("perplexity", MODEL, __file__, *CPU),
        ("bench", MODEL, "-p", "4", "-n", "1", "-r", "1", *CPU),
        ("devices", "--help"),
        ("plan", MODEL, "--limits", "h200"),
        ("list",),
    ],
    ids=lambda arguments: " ".join(arguments[:1]),
)
@pytest.mark.usefixtures("no_gpu")
def test_no_gpu_is_opened(arguments, monkeypatch, tmp_path):
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path))
    done = CliRunner().invoke(cli, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == 0, done.output


@pytest.mark.usefixtures("no_gpu")
def test_the_guard_sees_a_command_that_looks_for_a_gpu():
    done = CliRunner().invoke(cli, ["devices"])
    assert isinstance(done.exception, AssertionError), done.output
