"""`rwkv-gpu download`: a model file from the Hugging Face hub."""

import logging
from pathlib import Path

import click

from rwkv_gpu.errors import BadInput


@click.command("download", epilog="Example: rwkv-gpu download some-author/a-model-GGUF a-model-Q4_K_M.gguf")
@click.argument("repo", metavar="OWNER/NAME")
@click.argument("file", metavar="FILE", required=False)
@click.option("--to", type=click.Path(file_okay=False), default=".", show_default=True, help="The folder to put it in.")
@click.option("--revision", help="A branch, a tag or a commit.")
def command(repo: str, file: str | None, to: str, revision: str | None) -> None:
    """Download FILE of a repository, and print its path; without FILE, list the GGUF files that there are."""
    try:
        import huggingface_hub as hub
    except ImportError:
        raise BadInput("download needs huggingface_hub: pip install 'rwkv-gpu[hub]'") from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        if file is None:
            for name in hub.list_repo_files(repo, revision=revision):
                if name.endswith(".gguf"):
                    click.echo(name)
        else:
            click.echo(Path(hub.hf_hub_download(repo, file, revision=revision, local_dir=to)))
    except Exception as error:  # noqa: BLE001 - the hub raises what its HTTP library and the disk do, too
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadInput(f"cannot download {repo}{f'/{file}' if file else ''}: {reason[:300]}") from None
