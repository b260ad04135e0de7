"""Installation: pages and messages agree, and the data for packagers is consistent."""

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import rwkv_gpu
from rwkv_gpu.errors import INSTALL, MissingExtra

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "cli" / "serve.py"]


def test_every_page_installs_extras_by_the_one_command():
    begin = INSTALL.partition("{")[0]
    found = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert "rwkv-gpu[" not in text, page
        for line in re.findall(r"pip install '[^'\n]*\[[^'\n]*'", text):
            assert line.startswith(begin), (page, line)
            extras = line.partition("[")[2].rstrip("]'").split(",")
            assert set(extras) <= PROJECT["optional-dependencies"].keys(), (page, line)
            found += 1
    assert found > 5


def test_a_missing_extra_is_installed_into_the_environment_that_runs(monkeypatch):
    for python, found, command in (
        ("/opt/tool/bin/python", True, "/opt/tool/bin/python -m pip install '.[server]'"),
        ("/my files/python", True, "\"/my files/python\" -m pip install '.[server]'"),
        ("/opt/tool/bin/python", None, "uv pip install '.[server]' --python /opt/tool/bin/python"),
    ):
        monkeypatch.setattr("sys.executable", python)
        monkeypatch.setattr("importlib.util.find_spec", lambda _name, found=found: found)
        assert str(MissingExtra.of("x needs y", "server")).endswith(f": {command}")


def test_structured_output_needs_no_extra():
    assert any(one.startswith("llguidance") for one in PROJECT["dependencies"])
    assert not any("llguidance" in one for extra in PROJECT["optional-dependencies"].values() for one in extra)


def test_the_workflow_tries_each_python_that_the_metadata_names():
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    workflow = (ROOT / ".github" / "workflows" / "systems.yml").read_text(encoding="utf-8")
    [tried] = re.findall(r"python: \[(.*)\]", workflow)
    assert re.findall(r"3\.\d+", tried) == named
    assert PROJECT["requires-python"] == f">={named[0]}"


@pytest.mark.long
def test_the_source_archive_has_the_version_and_makes_a_formula(tmp_path):
    pytest.importorskip("build")
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [archive] = tmp_path.glob("*.tar.gz")
    assert archive.name == f"rwkv_gpu-{rwkv_gpu.__version__}.tar.gz"
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"cli/main.py", "profiles/nvidia.toml", "rwkv_gpu/llm/catalogue.toml", "pyproject.toml"} <= names
    formula = [sys.executable, str(ROOT / "packaging" / "homebrew.py"), str(archive)]
    url = f"https://example.com/releases/{archive.name}"
    text = subprocess.run([*formula, url], capture_output=True, text=True, check=True).stdout
    assert f'url "{url}"' in text
    assert re.search(r'sha256 "[0-9a-f]{64}"', text)
    if ruby := shutil.which("ruby"):
        assert (
            "Syntax OK" in subprocess.run([ruby, "-c"], input=text, capture_output=True, text=True, check=True).stdout
        )
    refused = subprocess.run([*formula, 'https://a" b'], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "https address" in refused.stderr
    twine = [sys.executable, "-m", "twine", "check", "--strict", str(archive)]
    assert "PASSED" in subprocess.run(twine, capture_output=True, text=True, check=True).stdout


# What the published schemas 1.10.0 of winget require of each kind of file, and of an installer and a program in a ZIP
WINGET = {
    "version": {"DefaultLocale"},
    "installer": {"Installers"},
    "defaultLocale": {"PackageLocale", "Publisher", "PackageName", "License", "ShortDescription"},
}
EVERY = {"PackageIdentifier", "PackageVersion", "ManifestType", "ManifestVersion"}


def test_an_archive_for_windows_makes_a_manifest_that_winget_accepts(tmp_path):
    version = rwkv_gpu.__version__
    archive, folder = tmp_path / f"rwkv-gpu-{version}-x64.zip", tmp_path / "out"
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("rwkv-gpu/rwkv-gpu.exe", b"program")
    command = [sys.executable, str(ROOT / "packaging" / "winget.py"), str(archive)]
    url = f"https://example.com/releases/{archive.name}"
    subprocess.run([*command, url, folder], check=True)
    found = {one["ManifestType"]: one for one in map(yaml.safe_load, map(Path.read_text, folder.iterdir()))}
    assert found.keys() == WINGET.keys()
    for kind, required in WINGET.items():
        assert required | EVERY <= found[kind].keys()
        assert found[kind]["PackageVersion"] == version
        assert re.fullmatch(r"[^.\s]{1,32}\.[^.\s]{1,32}", found[kind]["PackageIdentifier"])
    [installer] = found["installer"]["Installers"]
    assert (installer["Architecture"], installer["InstallerType"], installer["InstallerUrl"]) == ("x64", "zip", url)
    assert installer["InstallerSha256"] == hashlib.sha256(archive.read_bytes()).hexdigest().upper()
    [program] = installer["NestedInstallerFiles"]
    assert program == {"RelativeFilePath": "rwkv-gpu\\rwkv-gpu.exe", "PortableCommandAlias": "rwkv-gpu"}
    locale = found["defaultLocale"]
    assert locale["ShortDescription"] == PROJECT["description"]
    assert len(locale["ShortDescription"]) <= 256
    assert len(locale["Tags"]) <= 16
    for name, address, wrong in (
        (archive.name, "http://a", "https address"),
        ("rwkv-gpu-9.9.9-x64.zip", url, f"must be named rwkv-gpu-{version}-x64.zip"),
        (f"rwkv-gpu-{version}-mips.zip", url, "x64 or arm64"),
    ):
        command[-1] = str(archive.rename(tmp_path / name))
        archive = tmp_path / name
        refused = subprocess.run([*command, address, folder], capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert wrong in refused.stderr
        assert "Traceback" not in refused.stderr


def test_the_unit_and_the_image_name_settings_that_the_server_has():
    help_text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").partition("rwkv-gpu serve")[2]
    for name in ("Dockerfile", "rwkv-gpu.service"):
        text = (ROOT / "packaging" / name).read_text(encoding="utf-8")
        options = set(re.findall(r"(?<= )--[a-z-]+", text)) if name.endswith("service") else set()
        options |= {f"--{one.lower().replace('_', '-')}" for one in re.findall(r"RWKV_GPU_(?!CACHE)(\w+)=", text)}
        assert options
        for option in options:
            assert f"`{option}" in help_text or f", {option}" in help_text, (name, option)
    assert "pip install --no-cache-dir '.[server]'" in (ROOT / "packaging" / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(tmp_path):
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT]
    subprocess.run(command, capture_output=True, check=True)
    [wheel] = tmp_path.glob("*.whl")
    done = subprocess.run(
        ["sh", ROOT / "packaging" / "smoke.sh", wheel, sys.executable], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "the wheel works" in done.stdout
