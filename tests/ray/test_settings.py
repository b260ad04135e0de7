"""The arguments of the application, and the choice of a process's adapter. Ray is not needed."""

import json
import subprocess
import sys
from functools import partial

import pytest

from rwkv_gpu.cli.ray_settings import settings_of
from rwkv_gpu.errors import BadInput, NoAdapter
from rwkv_gpu.ray.adapters import claim, locked
from rwkv_gpu.ray.ask import plain_scope, stream_beginning


def test_arguments_are_options_of_the_server_as_texts_and_as_values():
    texts = settings_of({"model": "a.gguf", "max-queue": "3", "sequences": "2", "device": "cpu", "max_replicas": "5"})
    values = settings_of({"models": ["a.gguf"], "max_queue": 3, "sequences": 2, "device": "cpu", "max_replicas": 5})
    assert texts == values
    assert texts.setup.config.max_queue == 3 and texts.setup.config.sequences == 2
    assert (texts.device, texts.min_replicas, texts.max_replicas, texts.several_models) == ("cpu", 1, 5, False)
    assert settings_of({"models": ["a.gguf", "b.gguf"]}).several_models


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"colour": "red"}, "colour is not an option"),
        ({"port": "80"}, "port has no effect here"),
        ({"max_replicas": "many"}, "many"),
        ({"min_replicas": 5}, "min_replicas is 5"),
        ({"resource": "TPU"}, "TPU"),
        ({"store": "valkey://db"}, "--store-key-file"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(args, said):
    with pytest.raises(Exception, match=said) as raised:
        settings_of(args)
    text = getattr(raised.value, "message", str(raised.value))
    assert "\n" not in text


def test_each_process_takes_a_device_of_its_own_until_it_ends(tmp_path):
    first, second = locked(["0", "1"], 1, tmp_path), locked(["0", "1"], 1, tmp_path)
    assert (first.device, second.device) == ("0", "1")
    with pytest.raises(NoAdapter, match="all adapters of this machine have replicas"):
        locked(["0", "1"], 1, tmp_path)
    first.close()
    assert locked(["0", "1"], 1, tmp_path).device == "0"


def test_a_killed_process_gives_its_device_back(tmp_path):
    code = "import sys; from pathlib import Path; from rwkv_gpu.ray.adapters import locked\n"
    code += "held = locked(['0'], 1, Path(sys.argv[1])); print('taken', flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None and other.stdout.readline() == "taken\n"
        with pytest.raises(NoAdapter):
            locked(["0"], 1, tmp_path)
        other.kill()
    assert locked(["0"], 1, tmp_path).device == "0"


def test_devices_are_shared_only_when_all_are_taken(tmp_path):
    taken = [locked(["0", "1"], 2, tmp_path) for _ in range(4)]
    assert [one.device for one in taken] == ["0", "1", "0", "1"]


def test_gpus_that_ray_assigns_take_precedence():
    listed = {"all": ["3", "5"], "llvm": ["7"]}.get
    take = partial(claim, list_devices=lambda wanted: listed(wanted) or [])
    assert take("auto", ["1"], 0.0).device == "5"
    assert take("cpu", ["1"], 0.0).device == "cpu"
    assert take("llvm", [], 0.0).device == "llvm"  # Ray assigned no GPU, so the named one is shared
    with pytest.raises(NoAdapter, match="GPU 2, and wgpu sees 2"):
        take("auto", ["2"], 0.0)


def test_a_replica_gets_only_plain_data_of_a_request():
    scope = {"type": "http", "path": "/v1/models", "root_path": "", "app": object(), "state": {}}
    assert plain_scope(scope) == {"type": "http", "path": "/v1/models", "root_path": ""}
    assert stream_beginning("a") != stream_beginning("b")


def test_neither_the_server_nor_a_batch_imports_ray():
    code = """
import pkgutil, sys, rwkv_gpu.server
for one in pkgutil.walk_packages(rwkv_gpu.server.__path__, "rwkv_gpu.server."):
    __import__(one.name)
import rwkv_gpu.cli.serve, rwkv_gpu.cli.batch, rwkv_gpu.cli.ray_settings
print(*[name for name in sys.modules if name.split(".")[0] in ("ray", "pyarrow", "pandas")])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_without_ray_a_line_names_the_package(tmp_path):
    lines = tmp_path / "in.jsonl"
    lines.write_text(json.dumps({"prompt": "a"}) + "\n")
    code = "import sys; sys.modules['ray'] = None; from rwkv_gpu.cli.main import main; main()"
    command = [sys.executable, "-c", code, "batch", str(lines), "-", "--ray", "auto"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 2
    remedy = f"in a clone of rwkv-gpu, install it by: {sys.executable} -m pip install '.[ray]'"
    assert found.stderr == f"rwkv-gpu: this needs Ray; {remedy}\n"
    with pytest.raises(BadInput, match="not an option"):
        settings_of({"ray": "auto"})
