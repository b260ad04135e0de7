"""The tables of fields in docs/server.md: `python -m tests.server.field_tables` prints them."""

from rwkv_gpu.server.fields import (
    CHAT,
    COMPLETION,
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
    Fields,
)

KINDS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/responses": RESPONSES,
    "/v1/embeddings": EMBEDDING,
    "/v1/rerank": RERANK,
    "/v1/messages": MESSAGES,
    "/api/chat": OLLAMA_CHAT,
    "/api/generate": OLLAMA_GENERATE,
    "/api/embed": OLLAMA_EMBED,
    "/completion": LLAMA_COMPLETION,
    "/infill": LLAMA_INFILL,
}


def table(path: str, fields: Fields) -> str:
    """The table of one route. The settings of sampling, which several routes share, are one row."""
    shared = fields.honoured & SAMPLING if fields.honoured >= SAMPLING else frozenset()
    named = sorted(fields.honoured - shared) + sorted(SERVING)
    rows = [f"| {', '.join(f'`{name}`' for name in named)} | honoured | |"]
    if shared:
        rows.append("| every [sampling setting](#sampling-settings) | honoured | |")
    rows += [f"| `{name}` | ignored | {why} |" for name, why in sorted(fields.ignored.items())]
    rows += [f"| `{name}` | refused | {why} |" for name, why in sorted(fields.refused.items())]
    return "\n".join([f"**{path}**", "", "| field | | |", "|---|---|---|", *rows])


def tables() -> str:
    """All of them."""
    names = ", ".join(f"`{name}`" for name in sorted(SAMPLING))
    settings = f"These are sampling settings: {names}."
    return "\n\n".join([*(table(path, fields) for path, fields in KINDS.items()), "### Sampling settings", settings])


if __name__ == "__main__":
    print(tables())
