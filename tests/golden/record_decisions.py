"""Records the scores of Clef's head by the publisher's formula in float64, from torch's own layers.

pip install torch; python -m tests.golden.record_decisions
"""

from pathlib import Path
from typing import Any

import numpy as np

WIDTH, INNER, HEADS, ROUTING, BLOCKS, FEED, SCORED = 72, 32, 4, 2, 3, 48, 40
FILE = Path(__file__).parent / "decisions.npz"
MAPS = "memory", "question", "option_question", "global", "option_context", "option_lexical"
EPS = 1e-5
LENGTH = 60
QUESTIONS = ((0, range(20, 26)), (1, range(34, 37)), (2, range(48, 49)))  # kind, and tokens of the instructions
OPTIONS = (  # number of the question, and tokens
    (0, range(27, 29)), (0, range(30, 33)), (1, range(38, 40)), (1, range(41, 42)), (1, range(43, 47)),
    (2, range(50, 52)), (2, range(53, 55)),
)  # fmt: skip


def tensors() -> dict[str, np.ndarray]:
    """Returns a random head, by the names of a GGUF file."""
    rng = np.random.default_rng(55)
    shapes: dict[str, tuple[int, ...]] = {f"decision.proj_{name}.weight": (INNER, WIDTH) for name in MAPS}
    shapes |= {"decision.scorer.weight": (SCORED, 4 * INNER), "decision.scorer.bias": (SCORED,)}
    shapes |= {"decision.scorer_out.weight": (1, SCORED), "decision.scorer_out.bias": (1,)}
    shapes |= {"decision.scales": (3,), "token_types.weight": (3, INNER)}
    norms = {"decision.hidden_norm": WIDTH} | {
        f"decision.{name}_norm": INNER for name in ("option", "option_summary", "field")
    }
    for i in range(ROUTING + BLOCKS):
        own = i >= ROUTING
        at = f"dec.blk.{i}"
        for name in ("attn", "cross_attn") if own else ("cross_attn",):
            for letter in "qkvo":
                shapes |= {f"{at}.{name}_{letter}.weight": (INNER, INNER), f"{at}.{name}_{letter}.bias": (INNER,)}
        shapes |= {f"{at}.ffn_up.weight": (FEED, INNER), f"{at}.ffn_up.bias": (FEED,)}
        shapes |= {f"{at}.ffn_down.weight": (INNER, FEED), f"{at}.ffn_down.bias": (INNER,)}
        names = (
            ("attn_norm", "cross_attn_norm", "ffn_norm")
            if own
            else ("cross_attn_norm", "cross_attn_norm_kv", "ffn_norm")
        )
        norms |= {f"{at}.{name}": INNER for name in names}
    found = {
        name: rng.standard_normal(shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.1)
        for name, shape in shapes.items()
    }
    for name, size in norms.items():
        found |= {
            f"{name}.weight": 1 + 0.1 * rng.standard_normal(size),
            f"{name}.bias": 0.1 * rng.standard_normal(size),
        }
    found["decision.scales"] = np.array([3.0, 2.0, 0.7])
    return {name: value.astype(np.float32) for name, value in found.items()}


def scores(head: dict[str, np.ndarray], hidden: np.ndarray, lexical: np.ndarray) -> np.ndarray:
    """Returns the score of each option. `lexical` has the output embedding of each token."""
    import torch
    from torch import nn
    from torch.nn.functional import cosine_similarity, gelu, normalize

    def take(name: str) -> Any:
        return torch.from_numpy(head[name].astype(np.float64))

    def norm(name: str, size: int) -> Any:
        made = nn.LayerNorm(size, eps=EPS, dtype=torch.float64)
        made.load_state_dict({"weight": take(f"{name}.weight"), "bias": take(f"{name}.bias")})
        return made

    def packed(at: str) -> dict[str, Any]:
        return {
            "in_proj_weight": torch.cat([take(f"{at}_{letter}.weight") for letter in "qkv"]),
            "in_proj_bias": torch.cat([take(f"{at}_{letter}.bias") for letter in "qkv"]),
            "out_proj.weight": take(f"{at}_o.weight"), "out_proj.bias": take(f"{at}_o.bias"),
        }  # fmt: skip

    rows = norm("decision.hidden_norm", WIDTH)(torch.from_numpy(hidden.astype(np.float64)))
    maps = {name: take(f"decision.proj_{name}.weight").T for name in MAPS}
    text, end, words = rows @ maps["memory"], rows[-1:], torch.from_numpy(lexical.astype(np.float64))
    owners = torch.tensor([number for number, _ in OPTIONS])
    question = torch.stack([rows[list(span)].mean(0) for _, span in QUESTIONS])
    context = torch.stack([rows[list(span)].mean(0) for _, span in OPTIONS])
    words = torch.stack([words[list(span)].mean(0) for _, span in OPTIONS])
    options = (
        context @ maps["option_context"] + words @ maps["option_lexical"] + (question @ maps["option_question"])[owners]
    )
    for i in range(ROUTING):
        at = f"dec.blk.{i}"
        look = nn.MultiheadAttention(INNER, HEADS, batch_first=True, dtype=torch.float64)
        look.load_state_dict(packed(f"{at}.cross_attn"))
        seen = norm(f"{at}.cross_attn_norm_kv", INNER)(text)[None]
        options = options + look(norm(f"{at}.cross_attn_norm", INNER)(options)[None], seen, seen)[0][0]
        inner = gelu(norm(f"{at}.ffn_norm", INNER)(options) @ take(f"{at}.ffn_up.weight").T + take(f"{at}.ffn_up.bias"))
        options = options + inner @ take(f"{at}.ffn_down.weight").T + take(f"{at}.ffn_down.bias")
    fields = question @ maps["question"]
    summary = []
    for number in range(len(QUESTIONS)):
        own = options[owners == number]
        summary.append(torch.softmax(own @ fields[number] / INNER**0.5, 0) @ own)
    types = take("token_types.weight")[[kind for kind, _ in QUESTIONS]]
    fields = fields + norm("decision.option_summary_norm", INNER)(torch.stack(summary)) + end @ maps["global"] + types
    for i in range(ROUTING, ROUTING + BLOCKS):
        at = f"dec.blk.{i}"
        layer = nn.TransformerDecoderLayer(
            INNER, HEADS, FEED, dropout=0.0, activation="gelu", batch_first=True, norm_first=True,
            layer_norm_eps=EPS, dtype=torch.float64,
        )  # fmt: skip
        state = {f"self_attn.{key}": value for key, value in packed(f"{at}.attn").items()}
        state |= {f"multihead_attn.{key}": value for key, value in packed(f"{at}.cross_attn").items()}
        for theirs, ours in (("linear1", "ffn_up"), ("linear2", "ffn_down"), ("norm1", "attn_norm"),
                             ("norm2", "cross_attn_norm"), ("norm3", "ffn_norm")):  # fmt: skip
            state |= {f"{theirs}.weight": take(f"{at}.{ours}.weight"), f"{theirs}.bias": take(f"{at}.{ours}.bias")}
        layer.load_state_dict(state)
        fields = layer.eval()(fields[None], text[None])[0]
    each = norm("decision.field_norm", INNER)(fields)[owners]
    options = norm("decision.option_norm", INNER)(options)
    prior = (normalize(words, dim=-1) * normalize(question + end, dim=-1)[owners]).sum(-1)
    features = torch.cat([each, options, each * options, (each - options).abs()], -1)
    inner = gelu(features @ take("decision.scorer.weight").T + take("decision.scorer.bias"))
    residual = (inner @ take("decision.scorer_out.weight").T + take("decision.scorer_out.bias"))[:, 0]
    scales = take("decision.scales")
    joint = cosine_similarity(each, options, dim=-1) * scales[1] + residual
    return (prior * scales[0] + joint * scales[2]).detach().numpy()


def main() -> None:
    rng = np.random.default_rng(7)
    hidden, lexical = (rng.standard_normal((LENGTH, WIDTH)).astype(np.float32) for _ in range(2))
    np.savez_compressed(FILE, hidden=hidden, lexical=lexical, scores=scores(tensors(), hidden, lexical))


if __name__ == "__main__":
    main()
