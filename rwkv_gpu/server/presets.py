"""Creates presets by Ollama's API: models with a system prompt, settings, a template and first messages."""

from pathlib import Path
from typing import Any

from rwkv_gpu.errors import BadFile
from rwkv_gpu.llm.hub_names import BUILTIN
from rwkv_gpu.llm.modelfile import Modelfile, parameters, parse
from rwkv_gpu.llm.preset import Preset, write_preset
from rwkv_gpu.llm.preset_check import base_path, check_preset, preset_of
from rwkv_gpu.llm.store import Store

from .call import Call
from .catalogue import ServedModel
from .errors import ApiError, shown, typed
from .service import Service


async def create_preset(service: Service, call: Call, name: str, store: Store) -> None:
    """Writes the preset of a request; replaces an earlier one with this name."""
    catalogue = service.catalogue
    file = modelfile_of(call.body)
    target = store.preset_path(name)
    base = base_of(catalogue.find(file.base, strict=True))
    preset = Preset.of(file, base)
    await service.work(lambda: check_preset(preset, base_path(preset)))
    before = next((model for model in catalogue.models if Path(model.path) == target), None)
    if before is None and catalogue.has(name):
        raise ApiError(400, f"there is a model {name[:100]} already; delete it, or give another name", param="model")
    if before is not None and (before.leases or before.state == "loading"):
        raise ApiError(409, f"the model {name[:100]} is in use; unload it first", param="model")
    if before is not None:
        await catalogue.unload(before)
    await service.work(lambda: write_preset(target, preset))
    catalogue.refresh()


def base_of(model: ServedModel) -> Preset:
    """The preset of a served model; for a plain model, a preset with the model only."""
    if model.path != BUILTIN and not Path(model.path).is_file():
        raise ApiError(400, f"{model.name} is in no file; name another model by `from`", param="from")
    return preset_of(model.path)


def modelfile_of(body: dict[str, Any]) -> Modelfile:
    """The fields of a request as a Modelfile; they override the text of its `modelfile` field."""
    text = _text(body, "modelfile")
    try:
        file = Modelfile("") if text is None else parse(text, "modelfile")
    except BadFile as error:
        raise ApiError(400, str(error), param="modelfile") from None
    if file.adapters:
        raise ApiError(400, "ADAPTER is not supported here; `rwkv-gpu create` takes it", param="modelfile")
    given = typed(dict, body.get("parameters") or {}, "parameters")
    settings, context, _ = parameters((name, value) for name, value in given.items() if value is not None)
    messages = tuple(_message(one) for one in typed(list, body.get("messages") or [], "messages"))
    licences = body.get("license") or []
    if not isinstance(licences, list):
        licences = [typed(str, licences, "license")]
    base = _text(body, "from") or file.base
    if not base:
        raise ApiError(400, "from is missing; it must be the name of a model", param="from")
    return Modelfile(
        base,
        _text(body, "system") or file.system,
        _text(body, "template") or file.template,
        {**file.settings, **settings},
        context or file.context,
        messages=messages or file.messages,
        license="\n\n".join(map(str, licences)) or file.license,
    )


def _text(body: dict[str, Any], field: str) -> str | None:
    found = body.get(field)
    return None if found is None else typed(str, found, field) or None


def _message(message: Any) -> tuple[str, str]:
    role, content = (message.get(name) for name in ("role", "content")) if isinstance(message, dict) else (None, None)
    if role not in ("system", "user", "assistant") or not isinstance(content, str):
        why = f"messages has {shown(message)}; it must have the role system, user or assistant, and content"
        raise ApiError(400, why, param="messages")
    return role, content
