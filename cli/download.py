"""`rwkv-gpu download`: downloads a model from the Hugging Face hub."""

import importlib
import sys
import threading
from pathlib import Path
from typing import Any

import click

from rwkv_gpu.errors import BadInput

from .page import Page

PATIENCE = 5.0  # seconds that the hub has to answer at all; the hub's library would try for 24


@click.command("download", cls=Page, epilog="Example: rwkv-gpu download some-author/a-model-GGUF a-model-Q4_K_M.gguf")
@click.argument("repo", metavar="OWNER/NAME")
@click.argument("file", metavar="[FILE]", required=False)
@click.option(
    "--to", type=click.Path(file_okay=False), default=".", show_default=True, metavar="FOLDER", help="Target folder."
)
@click.option("--revision", metavar="NAME", help="Branch, tag or commit.")
def command(repo: str, file: str | None, to: str, revision: str | None) -> None:
    """Download FILE of a repository, and print its path. Without FILE, list the GGUF files of the repository."""
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants
    except ImportError:
        raise BadInput("download needs huggingface_hub: pip install 'rwkv-gpu[hub]'") from None
    utils: Any = importlib.import_module("huggingface_hub.utils")
    utils.logging.set_verbosity_error()
    if sys.stderr is None or not sys.stderr.isatty():
        utils.disable_progress_bars()
    try:
        check_reachable(constants.ENDPOINT, utils.get_session())
        if file is None:
            for name in hub.list_repo_files(repo, revision=revision):
                if name.endswith(".gguf"):
                    click.echo(name)
        else:
            click.echo(Path(hub.hf_hub_download(repo, file, revision=revision, local_dir=to)))
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the hub raises what its HTTP library and the disk do, too
        raise BadInput(f"cannot download {repo}{f'/{file}' if file else ''}: {reason(error)}") from None


def check_reachable(url: str, session: Any) -> None:
    """Asks the hub once, for anything: without a network this fails within seconds, even where a name server hangs."""
    failed: list[str] = []

    def ask() -> None:
        try:
            session.head(url, timeout=PATIENCE)
        except Exception as error:  # noqa: BLE001 - whatever its HTTP library raises
            failed.append(reason(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        failed.append(f"no answer within {PATIENCE:g} s")
    if failed:
        raise ConnectionError(f"{url} cannot be reached ({failed[0]}); check the network connection")


def reason(error: Exception) -> str:
    """What an error says, in one line that is not too long."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
