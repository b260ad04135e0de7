"""The tables of fields in docs/server.md: `python -m tests.server.field_tables` prints them."""

from collections.abc import Iterable, Mapping

from rwkv_gpu.server.fields import (
    CHAT,
    COMMON_IGNORED,
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


HEAD = "| field | status | reason |", "|---|---|---|"


def row(names: Iterable[str], status: str, why: str = "") -> str:
    return f"| {', '.join(f'`{name}`' for name in sorted(names))} | {status} | {why} |"


def ignored(reasons: Mapping[str, str]) -> list[str]:
    """One row for each reason."""
    return [
        row([name for name in reasons if reasons[name] == why], "ignored", why)
        for why in sorted(set(reasons.values()), key=list(reasons.values()).index)
    ]


def table(path: str, fields: Fields) -> str:
    """The table of one route, without what all routes have in common."""
    assert fields.ignored.items() >= COMMON_IGNORED.items()
    shared = fields.honoured & SAMPLING if fields.honoured >= SAMPLING else frozenset()
    rows = [row(fields.honoured - shared, "honoured")]
    if shared:
        rows.append("| every [sampling setting](#sampling-settings) | honoured | |")
    rows += ignored({name: why for name, why in fields.ignored.items() if name not in COMMON_IGNORED})
    rows += [row([name], "refused", why) for name, why in sorted(fields.refused.items())]
    return "\n".join([f"**{path}**", "", *HEAD, *rows])


def tables() -> str:
    """All of them."""
    common = "\n".join(["**All of these routes**", "", *HEAD, row(SERVING, "honoured"), *ignored(COMMON_IGNORED)])
    settings = ", ".join(f"`{name}`" for name in sorted(SAMPLING))
    own = [table(path, fields) for path, fields in KINDS.items()]
    return "\n\n".join([common, *own, "### Sampling settings", f"{settings}."])


if __name__ == "__main__":
    print(tables())
