"""The contents of a wheel, and an installed copy that works."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rwkv_gpu
from rwkv_gpu import errors

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


def test_a_wheel_holds_every_shader_and_no_cli_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    shaders = {str(path.relative_to(ROOT)) for path in (ROOT / "rwkv_gpu").rglob("*.wgsl")}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "rwkv_gpu").rglob("*.py")}
    modules |= {f"rwkv_gpu/cli/{path.name}" for path in (ROOT / "cli").glob("*.py")}
    assert len(shaders) > 10
    assert shaders <= names
    assert modules <= names
    assert {"rwkv_gpu/builtin/builtin.gguf", "rwkv_gpu/py.typed"} <= names
    [scripts] = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
    assert "rwkv-gpu = rwkv_gpu.cli.main:main" in zipfile.ZipFile(wheel).read(scripts).decode()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"rwkv_gpu"}


def test_an_installed_wheel_runs(wheel, tmp_path):
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path, wheel]
    subprocess.run(install, check=True, capture_output=True)
    code = (
        "import rwkv_gpu, rwkv_gpu.gpu.shader as s; from rwkv_gpu.cli.main import main\n"
        f"assert rwkv_gpu.__file__.startswith({str(tmp_path)!r}), rwkv_gpu.__file__\n"
        "print(len(s.link('dense/embed', ['formats/f16', 'lib/step']).source))\n"
        "import sys; sys.argv[1:] = ['devices']; main()"
    )
    env = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=env
    )
    assert done.returncode == 0, done.stderr
    assert "cpu" in done.stdout


def test_every_exception_is_exported():
    named = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert named <= set(rwkv_gpu.__all__)
    assert all(getattr(rwkv_gpu, name) is getattr(errors, name) for name in named)
