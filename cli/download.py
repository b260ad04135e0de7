"""`rwkv-gpu download`: downloads a file from the Hugging Face hub to a given folder."""

from pathlib import Path, PurePosixPath

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.hub_names import REPOSITORY
from rwkv_gpu.llm.repository import RemoteFile

from .bars import download_bar
from .echo import echo_text
from .folders import hub
from .page import Page
from .screen import Screen


@click.command("download", cls=Page, epilog="Example: rwkv-gpu download some-author/a-model-GGUF a-model-Q4_K_M.gguf")
@click.argument("repo", metavar="OWNER/NAME")
@click.argument("file", metavar="[FILE]", required=False)
@click.option(
    "--to", type=click.Path(file_okay=False), default=".", show_default=True, metavar="FOLDER", help="Target folder."
)
@click.option("--revision", metavar="NAME", help="Branch, tag or commit.")
def command(repo: str, file: str | None, to: str, revision: str | None) -> None:
    """Download FILE of a repository, and print its path. Without FILE, list the GGUF files of the repository.

    An interrupted download continues where it stopped, and checksums are verified. Set HF_TOKEN for gated and private
    models, HF_ENDPOINT for another hub. `rwkv-gpu pull` downloads into the folder of models instead.
    """
    if not REPOSITORY.fullmatch(repo):
        raise BadInput(f"{repo!r} names no repository of the hub; give OWNER/NAME; `rwkv-gpu pull` takes short names")
    source = hub(revision=revision or "main").repository(repo)
    with download_bar(Screen()) as bar:
        files = source.files()
        models = [name for name in sorted(files) if name.endswith(".gguf")]
        if file is not None:
            if file not in files:
                raise BadInput(f"{repo} has no file {file}; it has {', '.join(models) or 'no GGUF files'}")
            target = place(to, files[file])
            if not target.exists() or target.stat().st_size != files[file].nbytes:
                source.download(files[file], target, lambda done, total: bar.update(done, total, file))
    for line in models if file is None else [target]:
        echo_text(str(line))


def place(folder: str, file: RemoteFile) -> Path:
    """Target path of a file. It is always inside the folder, whatever name the hub gives."""
    path = PurePosixPath(file.path)
    if path.is_absolute() or ".." in path.parts:
        raise BadInput(f"{file.path} lies outside of its repository; it is not downloaded")
    return Path(folder, *path.parts)
