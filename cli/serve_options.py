"""The options of `rwkv-gpu serve`, and its configuration file."""

import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.preset import Preset

from .answer_defaults import NAMES, answer_options, table_of
from .model_name import FileName
from .options import size
from .page import Grouped
from .texts import MAX_SETTING, read_text

Command = Callable[..., Any]
HOST = re.compile(r"(?=.{1,253}$)[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]*:[0-9a-f:.]*")
TABLES = "rwkv_gpu.tables"  # options of single models in the configuration file


class Seconds(click.FloatRange):
    """A finite duration. A range check alone would accept NaN, with which a server would wait forever."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Converts and checks the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a duration; give a number of seconds", param, ctx)
        return number


_network, _requests, _models = (
    partial(click.option, cls=Grouped, group=title) for title in ("Network", "Requests", "Models")
)
_seconds = partial(_requests, type=Seconds(0), show_default=True, metavar="SECONDS")
OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option(
        "--config", type=click.Path(dir_okay=False), metavar="FILE", is_eager=True, expose_value=False,
        envvar=["RWKV_GPU_CONFIG"], callback=lambda ctx, _, path: _read_config(ctx, path),
        help="TOML file of options by name, and `models`. The environment and the command line override it.",
    ),
    _models(
        "--models-dir", type=click.Path(exists=True, file_okay=False), metavar="DIR",
        help="Also serve all GGUF files in this folder. Each is loaded at its first use.",
    ),
    _models(
        "-a", "--alias", multiple=True, metavar="NAME[=MODEL]",
        help="Another name for a model, such as gpt-4o=qwen3; with a single model, NAME renames it. Can be repeated.",
    ),
    _models(
        "--max-models", type=click.IntRange(1), metavar="N",
        help="Maximum number of loaded models. Default: as many as fit in memory.",
    ),
    _models(
        "--strict-model-names", is_flag=True,
        help="Answer an unknown model name with 404. By default, a server of one model accepts any name.",
    ),
    _models(
        "--keep-alive", type=Seconds(0), metavar="SECONDS",
        help="Unload a model after this time without requests. Default: only when memory is short.",
    ),
    _models(
        "--warmup/--no-warmup", default=True, show_default=True,
        help="Prepare a loaded model for batches of all sizes while it is idle. Otherwise "
        "the first batch of each size takes longer.",
    ),
    _models(
        "--store", metavar="DIR|URL",
        help="Store for the states of conversations, so that other servers, and this one after a restart, can continue "
        "them: a directory, valkey://HOST:PORT, or a URL of fsspec, such as s3://BUCKET/STATES.",
    ),
    _models(
        "--store-key-file", metavar="FILE",
        help="Secret of the store, the same for all its servers. Default: a file in the directory.",
    ),
    _network(
        "--host", default="127.0.0.1", show_default=True,
        help="Address to listen on, or several separated by commas; 0.0.0.0 is all addresses.",
    ),
    _network(
        "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, metavar="N",
        help="Port; 0 chooses a free port.",
    ),
    _network(
        "--api-key", multiple=True, metavar="KEY", help="API key that clients must send. Can be repeated."
    ),
    _network(
        "--api-key-file", metavar="FILE",
        help="File of API keys, one on each line. Unlike --api-key, it is hidden from other users.",
    ),
    _network(
        "--share-prefixes", is_flag=True,
        help="Let clients with different keys share computed prefixes. They can then learn from times and token counts "
        "whether another one has sent a text.",
    ),
    _network(
        "--shared-prompt", "shared_prompts", multiple=True, metavar="FILE",
        help="Text file with a system prompt whose computed prefix all keys share. Can be repeated.",
    ),
    _network(
        "--admin-key", multiple=True, metavar="KEY",
        help="Key of clients that may load, unload, download and delete models. Can be repeated.",
    ),
    _network("--admin-key-file", metavar="FILE", help="File of admin keys, one on each line."),
    _models(
        "--max-disk", type=size, default="100G", show_default=True, metavar="SIZE",
        help="Size limit of the folder of `rwkv-gpu pull` for downloads by clients with an admin key, and of "
        "saved slots.",
    ),
    _models(
        "--slot-save-path", type=click.Path(file_okay=False), metavar="DIR",
        help="Let clients save and restore the states of slots in this directory. --max-disk limits its size.",
    ),
    _models(
        "--mcp", type=FileName(), metavar="CONFIG",
        help="Offer the tools of the MCP servers in this `mcpServers` file in the chat page, where the user confirms "
        "each call. Everyone with an API key can call them.",
    ),
    _network("--insecure", is_flag=True, help="Allow other machines to use the server without a key."),
    _network("--tls-cert", metavar="FILE", help="Certificate chain (PEM): serve HTTPS."),
    _network("--tls-key", metavar="FILE", help="Private key of the certificate (PEM)."),
    _network(
        "--allowed-hosts", multiple=True, metavar="NAME",
        help="Accepted host name of the server, in addition to localhost and IP addresses; *.example.com, or * for "
        "any. Can be repeated.",
    ),
    _network(
        "--cors", multiple=True, metavar="ORIGIN",
        help="Origin whose web pages may call the server, such as https://example.com; localhost is any port of this "
        "machine, * any origin. Can be repeated.",
    ),
    _network(
        "--allow-media-urls", multiple=True, metavar="HOST[,HOST]", callback=lambda _, __, lists: hosts_of(lists),
        help="Fetch images that requests name by URL from these hosts. Private addresses are refused. Can be repeated.",
    ),
    _network("--root-path", default="", metavar="PATH", help="Path under which a proxy serves this server."),
    _requests(
        "-np", "--sequences", "--parallel", type=click.IntRange(1, 256), default=8, show_default=True, metavar="N",
        help="Requests that a model runs at the same time; others wait.",
    ),
    _requests(
        "--max-queue", type=click.IntRange(0), default=256, show_default=True, metavar="N",
        help="Maximum number of requests that wait for a model; further ones get 429.",
    ),
    _requests(
        "--max-queue-tokens", type=click.IntRange(1), default=1 << 20, show_default=True, metavar="N",
        help="Maximum number of prompt tokens of the requests that wait for a model.",
    ),
    _requests(
        "--max-body", type=click.IntRange(1), default=10 << 20, show_default=True, metavar="BYTES",
        help="Maximum size of a request body.",
    ),
    _seconds("--timeout", default=600.0, help="Time limit of a request, including waiting."),
    _seconds("--drain", default=30.0, help="Time for running requests to finish after SIGTERM or Ctrl-C."),
    click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
                 help="Format of log lines, on standard error."),
    click.option("--log-prompts", is_flag=True, help="Also log the text of prompts."),
)  # fmt: skip


def serving_options(command: Command) -> Command:
    """Adds all options of the server."""
    command = answer_options(command)
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def _read_config(ctx: click.Context, path: str | None) -> None:
    """Uses the options of a file as defaults of the command."""
    if path is None:
        return
    try:
        given = tomllib.loads(read_text(path, MAX_SETTING))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{path} is not valid TOML: {error}") from None
    tables = given.pop("model", {})
    if not (isinstance(tables, dict) and all(isinstance(table, dict) for table in tables.values())):
        raise BadInput(f"{path}: model must hold a table for each model, such as [model.qwen3]")
    ctx.default_map = {**(ctx.default_map or {}), **by_parameter(ctx.command.params, given, path)}
    params = [param for param in ctx.command.params if param.name in NAMES]
    ctx.meta[TABLES] = {name: by_parameter(params, table, path, f"model.{name}: ") for name, table in tables.items()}


def tables_of(ctx: click.Context) -> dict[str, Preset]:
    """The defaults of single models in the configuration file."""
    return {name: table_of(ctx, texts) for name, texts in ctx.meta.get(TABLES, {}).items()}


def by_parameter(
    params: Sequence[click.Parameter], given: Mapping[str, Any], path: str, at: str = ""
) -> dict[str, Any]:
    """The values of a file by parameter name; keys may be any option name, with - or _."""
    known: dict[str, click.Parameter] = {}
    for param in params:
        names = param.opts if isinstance(param, click.Option) else [param.name or ""]
        known |= {name.lstrip("-").replace("-", "_"): param for name in names}
    found: dict[str, Any] = {}
    for name, value in given.items():
        key = name.replace("-", "_")
        if key not in known or key == "config":
            options = sorted(one.replace("_", "-") for one in known if len(one) > 3 and one != "config")
            raise BadInput(f"{path}: {at}{name} is not an option; known: {', '.join(options)}")
        param = known[key]
        several = param.multiple if isinstance(param, click.Option) else True
        if isinstance(value, dict) or (isinstance(value, list) and not several):
            raise BadInput(f"{path}: {at}{name} is {value!r}; it must be one value")
        values = value if isinstance(value, list) else [value]
        texts = [one if isinstance(one, bool) else str(one) for one in values]
        found[param.name or ""] = texts if several else texts[0]
    return found


def keys_of(keys: tuple[str, ...], file: str | None) -> tuple[str, ...]:
    """The API keys from options and from a file."""
    lines = [] if file is None else [line.strip() for line in read_text(file, MAX_SETTING).splitlines()]
    found = (*keys, *(line for line in lines if line and not line.startswith("#")))
    if file is not None and len(found) == len(keys):
        raise BadInput(f"{file} has no key; write one on each line")
    if not all(key.strip() for key in found):
        raise BadInput("an API key is empty; leave it out to ask for none")
    return found


def hosts_in(text: str) -> list[str]:
    """The addresses of a comma-separated list."""
    return [host.strip() for host in text.split(",")]


def hosts_of(lists: tuple[str, ...]) -> tuple[str, ...]:
    """The hosts of comma-separated lists."""
    hosts = [host.strip().lower().rstrip(".") for text in lists for host in text.split(",")]
    for host in hosts:
        if not HOST.fullmatch(host):
            raise BadInput(f"--allow-media-urls {host} is not a host; give a name such as images.example.com")
    return tuple(hosts)


def prompts_of(files: tuple[str, ...]) -> tuple[str, ...]:
    """The texts of shared system prompts."""
    texts = tuple(read_text(file, MAX_SETTING).strip() for file in files)
    for file, text in zip(files, texts, strict=True):
        if not text:
            raise BadInput(f"--shared-prompt {file} has no text")
    return texts


def store_of(name: str | None, key_file: str | None) -> dict[str, Any]:
    """Store options in the form for `load`."""
    if name is None:
        if key_file is not None:
            raise BadInput("--store-key-file is given without --store")
        return {}
    if key_file is not None:
        return {"store": name, "store_key": read_text(key_file, MAX_SETTING).strip().encode()}
    if "://" in name:
        raise BadInput(f"--store {name} needs --store-key-file: a file with a secret of at least 16 characters")
    return {"store": name}


def checked_file(name: str, path: str | None) -> str | None:
    """Checks that a file can be read."""
    if path is not None:
        with Path(path).open("rb"):
            pass
    elif name:
        raise BadInput(f"{name} is missing; HTTPS needs both a certificate and its key")
    return path
