"""Writes a winget manifest: `python packaging/winget.py ZIP URL FOLDER`, where URL is that of the published ZIP.

The ZIP holds rwkv-gpu.exe, such as one made by PyInstaller on Windows, and its name holds the version of this clone.
FOLDER gets the three files that the winget repository expects; `winget validate FOLDER` checks them.
"""

import hashlib
import re
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
IDENTIFIER = "rwkv-gpu.rwkv-gpu"
COMMAND = "rwkv-gpu"
SCHEMA = "1.10.0"
LOCALE = "en-US"
ARCHITECTURES = {"x64": "x64", "amd64": "x64", "arm64": "arm64"}


def version() -> str:
    """The version of this clone, as pyproject.toml defines it."""
    text = (ROOT / "rwkv_gpu" / "__init__.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "([^"]+)"', text, re.MULTILINE)[0]


def installer(archive: Path, url: str) -> dict[str, Any]:
    """What winget downloads, and the program in it."""
    with zipfile.ZipFile(archive) as files:
        programs = [name for name in files.namelist() if name.rpartition("/")[2] == f"{COMMAND}.exe"]
    named = [kind for name, kind in ARCHITECTURES.items() if name in re.split(r"[-_.]", archive.name.lower())]
    if len(programs) != 1 or len(named) != 1:
        raise SystemExit(f"{archive.name} must hold one {COMMAND}.exe, and its name must hold x64 or arm64")
    return {
        "Architecture": named[0],
        "InstallerType": "zip",
        "NestedInstallerType": "portable",
        "NestedInstallerFiles": [
            {"RelativeFilePath": programs[0].replace("/", "\\"), "PortableCommandAlias": COMMAND},
        ],
        "InstallerUrl": url,
        "InstallerSha256": hashlib.sha256(archive.read_bytes()).hexdigest().upper(),
    }


def manifests(archive: Path, url: str) -> dict[str, dict[str, Any]]:
    """The files of a manifest by name: version, installer and default locale."""
    if not re.fullmatch(r"https://[^\s\"#]+", url) or f"-{version()}-" not in archive.name:
        raise SystemExit(f"{archive.name} must be named {COMMAND}-{version()}-x64.zip, and {url} be an https address")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    kinds: dict[str, dict[str, Any]] = {
        "version": {"DefaultLocale": LOCALE},
        "installer": {"Installers": [installer(archive, url)]},
        "defaultLocale": {
            "PackageLocale": LOCALE,
            "Publisher": project["authors"][0]["name"],
            "PackageName": project["name"],
            "PackageUrl": url.rpartition("/")[0],
            "License": project["license"],
            "ShortDescription": project["description"],
            "Moniker": COMMAND,
            "Tags": project["keywords"][:16],
        },
    }
    suffix = {"version": "", "installer": ".installer", "defaultLocale": f".locale.{LOCALE}"}
    package = {"PackageIdentifier": IDENTIFIER, "PackageVersion": version()}
    return {
        f"{IDENTIFIER}{suffix[kind]}.yaml": {**package, **own, "ManifestType": kind, "ManifestVersion": SCHEMA}
        for kind, own in kinds.items()
    }


def written(manifest: dict[str, Any]) -> str:
    """A manifest as YAML, with the address of its schema."""
    schema = f"https://aka.ms/winget-manifest.{manifest['ManifestType']}.{SCHEMA}.schema.json"
    return f"# yaml-language-server: $schema={schema}\n\n{yaml.safe_dump(manifest, sort_keys=False)}"


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    folder = Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    for name, manifest in manifests(Path(sys.argv[1]), sys.argv[2]).items():
        (folder / name).write_text(written(manifest), encoding="utf-8", newline="\n")
