"""The arguments of `rwkv_gpu.ray:app`: the options of `rwkv-gpu serve`, and the number of replicas."""

from collections.abc import Mapping
from typing import Any

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.ray.settings import Settings

from .answer_defaults import defaults_of
from .commands import in_one_line
from .model_name import FileName
from .options import loading_options, shared
from .serve import Setup
from .serve_options import by_parameter, keys_of, prompts_of, serving_options, store_of, tables_of

NAME = "rwkv_gpu.ray:app"
# Options of `rwkv-gpu serve` about listening, which Ray's proxies do instead.
LISTENING = frozenset({"host", "port", "tls_cert", "tls_key", "insecure", "root_path"})


@click.command(NAME)
@click.argument("models", nargs=-1, type=FileName())
@click.option("--min-replicas", type=click.IntRange(0), default=1)
@click.option("--max-replicas", type=click.IntRange(1), default=4)
@click.option("--fronts", type=click.IntRange(1), default=1)
@click.option("--resource", type=click.Choice(["auto", "GPU", "wgpu", "none"]), default="auto")
@click.option("--amount", type=click.FloatRange(0, 1, min_open=True), default=1.0)
@click.option("--cpus", type=click.FloatRange(0), default=1.0)
@serving_options
@shared("template")
@loading_options
def parsed(
    models: tuple[str, ...], loading: dict[str, Any], min_replicas: int, max_replicas: int, fronts: int,
    resource: str, amount: float, cpus: float, **options: Any,
) -> Settings:  # fmt: skip
    """Returns the settings. It is written as a command, so that the table of options checks the values."""
    if min_replicas > max_replicas:
        raise BadInput(f"{NAME}: min_replicas is {min_replicas}, which is more than max_replicas, {max_replicas}")
    device = loading.pop("device")
    stores = store_of(options["store"], options["store_key_file"])
    keys = keys_of(options["api_key"], options["api_key_file"])
    ctx = click.get_current_context()
    options |= {"shared_prompts": prompts_of(options["shared_prompts"])}
    options["defaults"] = defaults_of(ctx, options), tables_of(ctx)
    setup = Setup(models, keys, options, {**loading, "sequences": options["sequences"], **stores})
    has_several = len(models) > 1 or options["models_dir"] is not None
    return Settings(
        setup, device, min_replicas, max_replicas, fronts, resource, amount, cpus,
        log_format=options["log_format"], several_models=has_several, max_models=options["max_models"],
    )  # fmt: skip


def settings_of(args: Mapping[str, Any]) -> Settings:
    """Converts arguments from Ray, texts from its command line or values from its YAML, to settings."""
    named = {name.replace("-", "_"): value for name, value in args.items()}
    if "model" in named:
        named["models"] = named.pop("model")
    for name in sorted(LISTENING & named.keys()):
        raise BadInput(f"{NAME}: {name} has no effect here: Ray's proxies listen; see `serve start --help`")
    with in_one_line():
        given = by_parameter(parsed.params, named, NAME)
        found = parsed.main([], prog_name=NAME, standalone_mode=False, default_map=given)
    assert isinstance(found, Settings)
    return found
