"""`rwkv-gpu serve`: serves models over HTTP."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import rwkv_gpu
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.errors import BadInput, MissingExtra

from .folders import cache_folder, tuned_folder
from .model_name import BUILTIN, FileName
from .options import loading_options
from .page import Page

if TYPE_CHECKING:
    from rwkv_gpu.server.catalogue import Progress, ServedModel

LOCAL = ("localhost", "127.0.0.1", "::1")


@click.command("serve", cls=Page, epilog="Example: rwkv-gpu serve model.gguf --port 8080")
@click.argument("models", nargs=-1, metavar="[MODEL.gguf]...", type=FileName())
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is all of them.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 takes a free one."
)
@click.option("--api-key", multiple=True, metavar="KEY", help="Key that clients must send. Can be repeated.")
@click.option("--insecure", is_flag=True, help="Listen on an address that others can reach, without a key.")
@click.option(
    "-np", "--sequences", "--parallel", type=click.IntRange(1, 256), default=8, show_default=True,
    help="Requests that are answered at the same time; the others wait.",
)  # fmt: skip
@click.option("--drain", type=click.FloatRange(0), default=30.0, show_default=True, metavar="SECONDS",
    help="Time that running requests have to end after SIGTERM or Ctrl-C.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of log lines."
)
@loading_options
@click.pass_context
def command(ctx: click.Context, /, models: tuple[str, ...], loading: dict[str, Any], **options: Any) -> None:
    """Serve models to programs that speak OpenAI's API.

    Without a MODEL, the built-in one. The base URL for clients is http://localhost:8080/v1.
    """
    if options["host"] not in LOCAL and not options["api_key"] and not options["insecure"]:
        raise BadInput(
            f"--host {options['host']} lets others in, and there is no key; give --api-key, or --insecure to allow it"
        )
    try:
        from rwkv_gpu.server.catalogue import Catalogue
        from rwkv_gpu.server.config import ServerConfig
        from rwkv_gpu.server.logs import start_logs
        from rwkv_gpu.server.run import Runner, listen
        from rwkv_gpu.server.service import Service
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rwkv_gpu"):
            raise
        raise MissingExtra(f"the server needs {error.name}; install it by: pip install 'rwkv-gpu[server]'") from None
    config = ServerConfig(
        host=options["host"],
        port=options["port"],
        api_keys=options["api_key"],
        drain=options["drain"],
        sequences=options["sequences"],
        version=rwkv_gpu.__version__,
    )
    start_logs(options["log_format"], sys.stderr)
    loading["sequences"] = options["sequences"]

    def load(path: str, progress: "Progress") -> rwkv_gpu.LLM:
        digests = cache_folder() / "digests"
        return rwkv_gpu.load(path, progress=progress, tuned=tuned_folder(), digests=digests, **loading)

    service = Service(config, Catalogue(served(models), load))
    listener = listen(config.host, config.port)
    runner = Runner(service)
    ctx.obj.on_signal = runner.signal
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    runner.run(listener, lambda: click.echo(f"rwkv-gpu: serving on http://{shown}:{port}/v1", err=True))


def served(paths: tuple[str, ...]) -> "list[ServedModel]":
    """The models of the command line, each under a name of its own."""
    from rwkv_gpu.server.catalogue import ServedModel

    models: dict[str, ServedModel] = {}
    for path in paths or (BUILTIN,):
        name, file = (BUILTIN, str(builtin_model())) if path == BUILTIN else (Path(path).stem, path)
        if name in models:
            raise BadInput(f"two models have the name {name}; rename one of the files")
        models[name] = ServedModel(name, file)
    return [*models.values()]
