"""`rwkv-gpu serve`: serves models over HTTP."""

import ipaddress
import logging
import re
import secrets
import signal
import ssl
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import rwkv_gpu
from rwkv_gpu.errors import BadInput, MissingExtra
from rwkv_gpu.gpu.adapters import several
from rwkv_gpu.llm.folders import cache_folder, tuned_folder
from rwkv_gpu.llm.hub_names import BUILTIN, PART, parts

from .answer_defaults import defaults_of
from .folders import hub
from .load_model import notes
from .model_name import ModelName, naming_options
from .options import loading_options, shared
from .page import Page
from .printing import print_text
from .serve_options import checked_file, hosts_in, keys_of, prompts_of, serving_options, store_of, tables_of
from .servers import announced
from .texts import template_text

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from rwkv_gpu.mcp.client import ToolServers
    from rwkv_gpu.server.catalogue import Load, Progress, ServedModel
    from rwkv_gpu.server.config import ServerConfig
    from rwkv_gpu.server.service import Service

ORIGIN = re.compile(r"\*|null|localhost|[a-z][a-z0-9+.-]*://[^/\s]+")  # as sent by browsers; a local file sends null


@click.command("serve", cls=Page, epilog="Example: rwkv-gpu serve model.gguf --port 8080")
@click.argument("models", nargs=-1, metavar="[MODEL.gguf]...", envvar="RWKV_GPU_MODELS", type=ModelName())
@naming_options
@serving_options
@shared("template")
@loading_options
@click.pass_context
def command(ctx: click.Context, /, models: tuple[str, ...], loading: dict[str, Any], **options: Any) -> None:
    """Serve models to programs that speak OpenAI's API.

    Without a MODEL, serve the built-in one. The base URL for clients is http://localhost:8080/v1.
    The first MODEL is loaded at once, the others at their first use. With --device 0,1 or all, each GPU has a process
    of its own behind the one port, and a conversation stays with its GPU. With --split they share one model.
    """
    keys = keys_of(options["api_key"], options["api_key_file"])
    if not (keys or options["insecure"] or is_local(options["host"])):
        host = options["host"]
        raise BadInput(
            f"--host {host} lets other machines connect without a key; give --api-key, or --insecure to allow it"
        )
    admins = keys_of(options["admin_key"], options["admin_key_file"])
    certificate = tls(options["tls_cert"], options["tls_key"])
    check_extra()
    from rwkv_gpu.server.logs import start_logs
    from rwkv_gpu.server.replicas.run import ReplicaRunner
    from rwkv_gpu.server.run import Runner, listen_on

    models, options["alias"] = by_path(models, options["alias"])
    stores = store_of(options["store"], options["store_key_file"])
    devices = several(loading["device"]) if loading["split"] is None else [loading["device"]]
    if len(devices) > 1 and admins:
        raise BadInput("models on several devices cannot be managed over HTTP; give one --device, or no admin key")
    if len(devices) > 1 and options["slot_save_path"]:
        raise BadInput("--slot-save-path needs a single --device, which has the slots")
    if len(devices) > 1 and options["mcp"]:
        raise BadInput("--mcp needs a single --device, so that each MCP server runs once")
    if options["mcp"] and not (keys or is_local(options["host"])):
        raise BadInput("--mcp lets other machines call tools on this one; give --api-key")
    if len(devices) > 1:
        options["router_key"] = secrets.token_hex(32)
    options["defaults"] = defaults_of(ctx, options), tables_of(ctx)
    options |= {"admin_keys": admins, "shared_prompts": prompts_of(options["shared_prompts"])}
    setup = Setup(models, keys, options, {**loading, "sequences": options["sequences"], **stores})
    setup.check_tables()
    start_logs(options["log_format"], sys.stderr)
    runner: Runner | ReplicaRunner
    if len(devices) == 1:
        runner = Runner(setup.service(devices[0]), *certificate)
    else:
        setup.service(devices[0])  # refuses invalid settings before any process is started
        runner = ReplicaRunner(setup.config, devices, partial(serve_device, setup), *certificate)
    listener, *others = listen_on(setup.config.host, setup.config.port)
    ctx.obj.on_signal = runner.signal
    host, port = listener.getsockname()[:2]
    scheme, shown = "https" if certificate[0] else "http", f"[{host}]" if ":" in host else host
    url = f"{scheme}://{shown}:{port}"
    with announced(url, port, setup.names, ", ".join(devices)):
        started = f"rwkv-gpu: chat page on {url}/, serving on {url}/v1"
        runner.run(listener, lambda: print_text(started, err=True), others)


@dataclass(frozen=True)
class Setup:
    """The settings of the command line. Sent to the process of each replica."""

    models: tuple[str, ...]
    keys: tuple[str, ...]
    options: dict[str, Any]
    loading: dict[str, Any]

    @property
    def config(self) -> "ServerConfig":
        """The settings of the server."""
        return config_of(self.keys, self.options)

    @property
    def names(self) -> tuple[str, ...]:
        """The names and aliases of the models."""
        models = served(self.models, self.folder, self.options["alias"])
        files = [] if self.folder is None else [f"{self.folder}/"]
        return (*(name for model in models for name in (model.name, *model.aliases)), *files)

    def check_tables(self) -> None:
        """Refuses a table for a model that is not served.

        With a folder of models, any table is allowed, as models may be added.
        """
        for name in self.options["defaults"][1]:
            if not (self.folder or self.config.admin_keys or name in self.names):
                raise BadInput(f"the configuration has a table for the model {name}; models: {', '.join(self.names)}")

    @property
    def folder(self) -> Path | None:
        """The folder of further models."""
        return None if self.options["models_dir"] is None else Path(self.options["models_dir"])

    def service(self, device: str) -> "Service":
        """The models on a device, not loaded yet."""
        from rwkv_gpu.server.catalogue import Catalogue
        from rwkv_gpu.server.defaults import Defaults
        from rwkv_gpu.server.pulls import Pulls
        from rwkv_gpu.server.service import Service

        options = self.options
        pulls = Pulls(hub(), options["max_disk"]) if self.config.admin_keys else None
        catalogue = Catalogue(
            served(self.models, self.folder, options["alias"]),
            loader({**self.loading, "device": device}, options["template"], self.config.shared_prompts),
            folder=self.folder,
            store=None if pulls is None else pulls.hub.store,
            max_loaded=options["max_models"],
            keep_alive=options["keep_alive"],
            warmup=options["warmup"],
            own_process=True,
            any_name=not options["strict_model_names"],
            defaults=Defaults(*options["defaults"]),
        )
        return Service(self.config, catalogue, pulls, tool_servers(options["mcp"]))


def tool_servers(path: str | None) -> "ToolServers | None":
    """The MCP servers of a file, which start in the background."""
    if path is None:
        return None
    from rwkv_gpu.mcp.client import ToolServers
    from rwkv_gpu.mcp.config import read_config

    return ToolServers(read_config(path))


def serve_device(setup: Setup, pipe: "Connection[Any, Any]", device: str) -> None:
    """Runs the process of a replica: listens only locally, on a free port."""
    from rwkv_gpu.server.logs import start_logs
    from rwkv_gpu.server.replicas.supervisor import serve_replica
    from rwkv_gpu.server.run import Runner, listen

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all processes; the supervisor ends this one
    start_logs(setup.options["log_format"], sys.stderr)
    serve_replica(pipe, Runner(setup.service(device)), listen("127.0.0.1", 0))


def check_extra() -> None:
    """Raises with the install command if the server's packages are missing."""
    for name in ("starlette", "uvicorn", "httptools", "prometheus_client"):
        try:
            __import__(name)
        except ModuleNotFoundError:
            raise MissingExtra.of(f"the server needs {name}", "server") from None


def config_of(keys: tuple[str, ...], options: dict[str, Any]) -> "ServerConfig":
    """The settings of the server."""
    from rwkv_gpu.server.config import ServerConfig

    for origin in options["cors"]:
        if not ORIGIN.fullmatch(origin):
            raise BadInput(
                f"--cors {origin} is not an origin; give one such as https://example.com, without a path, or *"
            )
    names = ServerConfig.__dataclass_fields__.keys()
    given = {name: value for name, value in options.items() if name in names}
    return ServerConfig(**given, api_keys=keys, version=rwkv_gpu.__version__)


def loader(loading: dict[str, Any], template: str | None, shared_prompts: tuple[str, ...] = ()) -> "Load":
    """Returns a loader that uses the options of the command line."""
    from rwkv_gpu.server.logs import SERVER

    source, log = None if template is None else template_text(template), logging.getLogger(SERVER)

    def load(path: str, progress: "Progress") -> rwkv_gpu.LLM:
        digests = cache_folder() / "digests"
        llm = rwkv_gpu.load(path, progress=progress, tuned=tuned_folder(), digests=digests, **loading)
        if source is not None:
            llm.chat_format = llm.chat_format_of(source)
        llm.share_prompts(shared_prompts)
        for note in notes(path, llm.info, loading.get("kv", "f16")):
            log.warning(note, extra={"fields": {"path": path}})
        return llm

    return load


def is_local(hosts: str) -> bool:
    """True if all addresses, separated by commas, are reachable from this machine only."""
    host = ""
    try:
        local = []
        for host in hosts_in(hosts):
            local.append(host == "localhost" or ipaddress.ip_address(host).is_loopback)
        return all(local)
    except ValueError:
        raise BadInput(f"--host {host!r} is not an address; give one such as 127.0.0.1 or 0.0.0.0") from None


def tls(certificate: str | None, key: str | None) -> tuple[str | None, str | None]:
    """Checks that the certificate and key files can be read and belong together."""
    if certificate is None and key is None:
        return None, None
    files = checked_file("--tls-cert", certificate), checked_file("--tls-key", key)
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*files)  # type: ignore[arg-type]
    except ssl.SSLError as error:
        raise BadInput(f"{certificate} and {key} cannot be used: {error.reason or error}") from None
    return files


def by_path(models: tuple[str, ...], aliases: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Replaces the names of models by their files. Returns the files, and the short names as aliases."""
    paths, more = [], list(aliases)
    for name in models:
        paths.append(name if name == BUILTIN else ModelName.path(name) or name)
        entry = None if paths[-1] == name else hub().names.entry(name)
        alias = (
            None if entry is None else f"{entry.name}={PART.sub('.gguf', Path(paths[-1]).name).removesuffix('.gguf')}"
        )
        more += [alias] if alias is not None and alias not in more else []
    return tuple(paths), tuple(more)


def served(paths: tuple[str, ...], folder: Path | None, aliases: tuple[str, ...]) -> "list[ServedModel]":
    """The models of the command line, with unique names."""
    from rwkv_gpu.server.catalogue import ServedModel
    from rwkv_gpu.server.folder import models_of

    models: dict[str, ServedModel] = {}
    for path in paths or (() if folder is not None else (BUILTIN,)):
        file = ModelName.path(path) or path
        if not Path(file).exists():  # otherwise the error would appear only at the first request
            raise BadInput(f"{path}: cannot be opened: No such file or directory")
        first = str(Path(file).with_name(parts(Path(file).name)[0]))
        name = BUILTIN if path == BUILTIN else PART.sub(".gguf", Path(file).name).removesuffix(".gguf")
        if name in models and models[name].path == first and PART.search(file):  # another part of that model
            continue
        if name in models:
            raise BadInput(f"two models have the name {name}; rename one of the files")
        models[name] = ServedModel(name, first)
    only = f"={next(iter(models), '')}" if len(models) == 1 else ""
    for text in (one if "=" in one else one + only for names in aliases for one in names.split(",")):
        alias, equals, name = text.partition("=")
        if folder is not None and name not in models and name in (files := models_of(folder)):
            models[name] = ServedModel(name, files[name])
        if not (alias and equals and name in models):
            raise BadInput(f"--alias {text} is not NAME=MODEL with one of the models {', '.join(models)}")
        if any(alias in (other.name, *other.aliases) for other in models.values()):
            raise BadInput(f"--alias {text}: {alias} is the name of a model already")
        models[name].aliases = (*models[name].aliases, alias)
    bare = [name for names in aliases for name in names.split(",") if "=" not in name]
    for model in models.values() if bare else ():  # a single one, listed by that name, as in llama-server and vLLM
        model.name, model.aliases = bare[0], (model.name, *(name for name in model.aliases if name != bare[0]))
    return [*models.values()]
