"""Generates the tables of fields in docs/server.md: `python -m tests.server.field_tables` prints them."""

from collections.abc import Iterable, Mapping

from rwkv_gpu.server.fields import (
    CHAT,
    COMMON_IGNORED,
    COMPLETION,
    DECISIONS,
    EMBEDDING,
    LLAMA_COMPLETION,
    LLAMA_INFILL,
    MESSAGES,
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_GENERATE,
    RERANK,
    RESPONSES,
    SAMPLING,
    SERVING,
    TRANSCRIPTION,
)

KINDS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/responses": RESPONSES,
    "/v1/embeddings": EMBEDDING,
    "/v1/rerank": RERANK,
    "/v1/systemone": DECISIONS,
    "/v1/audio/transcriptions": TRANSCRIPTION,
    "/v1/messages": MESSAGES,
    "/api/chat": OLLAMA_CHAT,
    "/api/generate": OLLAMA_GENERATE,
    "/api/embed": OLLAMA_EMBED,
    "/completion": LLAMA_COMPLETION,
    "/infill": LLAMA_INFILL,
}


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def honoured() -> list[str]:
    """Returns one row for each route, without the fields that all routes share."""
    rows = []
    for path, fields in KINDS.items():
        assert fields.ignored.items() >= COMMON_IGNORED.items()
        settings = fields.honoured >= SAMPLING
        names = code(fields.honoured - SAMPLING if settings else fields.honoured)
        rows.append(f"| {path} | {names}{', and every [sampling setting](#sampling-settings)' if settings else ''} |")
    return rows


def others() -> list[str]:
    """Returns the fields that are ignored or refused. Fields with the same reason and routes share a row."""
    kinds: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {"all of these routes": (COMMON_IGNORED, {})}
    kinds |= {path: (fields.ignored, fields.refused) for path, fields in KINDS.items()}
    paths: dict[tuple[str, str], list[str]] = {}
    for path, (ignored, refused) in kinds.items():
        for what, reasons in ("ignored", ignored), ("refused", refused):
            for name, why in reasons.items():
                if path not in KINDS or name not in COMMON_IGNORED:
                    paths.setdefault((f"{what}: {why.removesuffix('; leave it out')}", name), []).append(path)
    rows: dict[tuple[str, str], list[str]] = {}
    for (what, name), where in paths.items():
        rows.setdefault((what, ", ".join(where)), []).append(name)
    return [f"| {code(names)} | {where} | {what} |" for (what, where), names in rows.items()]


def tables() -> str:
    """Returns all tables."""
    return "\n".join(
        [
            "| route | honoured fields |",
            "|---|---|",
            f"| all of these routes | {code(SERVING)} |",
            *honoured(),
            "",
            "| field | routes | what happens |",
            "|---|---|---|",
            *others(),
            "",
            "### Sampling settings",
            "",
            f"{code(SAMPLING)}.",
        ]
    )


if __name__ == "__main__":
    print(tables())
