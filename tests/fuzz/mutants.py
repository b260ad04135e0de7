"""Almost valid model files, with one to three changes to metadata or tensors, drawn from a seed."""

import math
import random
from collections.abc import Callable, Sequence
from functools import cache

from rwkv_gpu.gguf.formats import SIZES
from tests.gguf.parts import Parts, Row, Stored, take_apart
from tests.gguf.writer import ARRAY, BOOL, F32, F64, I32, LAYOUT, STRING, U32, U64
from tests.golden_files import OWN

MODELS = tuple(sorted(path.stem for path in OWN.glob("*.gguf")))  # one file of every family; new files are included
ODD_INTEGERS = (0, 1, 2, 3, 7, 63, 64, 65, 255, 1 << 15, 1 << 16, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, (1 << 64) - 1)
WHOLE = tuple(kind for kind, layout in LAYOUT.items() if kind not in (F32, F64, BOOL))
ODD_FLOATS = (0.0, -1.0, 5e-324, 1e-30, 1e-6, 0.5, 1.0, 1e9, 1e30, 1e308, math.inf, -math.inf, math.nan)
ODD_TEXTS = (b"", b"llama", b"rwkv7", b"qwen3moe", b"gpt2", b"rwkv", b"yarn", b"linear", b"none", b"\xff", b"a" * 5000)


@cache
def source(name: str) -> bytes:
    """Returns a valid file."""
    return (OWN / f"{name}.gguf").read_bytes()


def structural(seed: int, models: Sequence[str] = MODELS) -> tuple[str, bytes]:
    """Returns the model, its mutation, and the file."""
    rng = random.Random(seed)
    name = rng.choice(models)
    parts = take_apart(source(name))
    changes = [rng.choice(CHANGES) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    for change in changes:
        change(rng, parts)
    return f"{name}: {', '.join(change.__name__ for change in changes)}", parts.built()


def change_a_number(rng: random.Random, parts: Parts) -> None:
    row = rng.choice([row for row in parts.rows if row.kind in LAYOUT])
    whole = int(row.value) if math.isfinite(row.value) else 0
    around = (whole + rng.choice((-1, 1, 2, -2)), whole * 2, whole // 2)
    if rng.random() < 0.3:
        row.kind, row.value = rng.choice(((F64, rng.choice(ODD_FLOATS)), (U64, rng.choice(ODD_INTEGERS))))
    elif row.kind in (F32, F64):
        row.kind, row.value = F64, rng.choice(ODD_FLOATS)
    else:
        row.kind, row.value = U64, rng.choice((*around, *ODD_INTEGERS)) % (1 << 64)


def change_a_size(rng: random.Random, parts: Parts) -> None:
    """Changes a number of the architecture: a width, a count, a rank, a group, a window, or one of each layer."""
    arch = parts.row("general.architecture").value if _has_architecture(parts) else b"llama"
    kinds = (*WHOLE, ARRAY)
    sizes = [r for r in parts.rows if r.name.startswith(arch + b".") and r.kind in kinds and r.element != STRING]
    if not sizes:
        return
    row = rng.choice(sizes)
    if row.kind == ARRAY:
        at = rng.randrange(len(row.value) or 1)
        row.value = [*row.value[:at], rng.choice((0, 1, 2, 3, 5, 7, 8, 64, 1000)), *row.value[at + 1 :]]
    else:
        near = (row.value - 1, row.value + 1, row.value // 2, row.value * 2, row.value * 3)
        row.kind, row.value = U64, rng.choice((*near, *ODD_INTEGERS)) % (1 << 64)


def _has_architecture(parts: Parts) -> bool:
    return any(row.name == b"general.architecture" and row.kind == STRING for row in parts.rows)


def change_a_text(rng: random.Random, parts: Parts) -> None:
    row = rng.choice([row for row in parts.rows if row.kind == STRING])
    row.value = rng.choice(ODD_TEXTS)


def change_a_type(rng: random.Random, parts: Parts) -> None:
    row = rng.choice(parts.rows)
    row.kind, row.value, row.element = rng.choice(
        ((STRING, b"7", 0), (U32, 7, 0), (F32, 0.5, 0), (7, True, 0), (ARRAY, [1, 2, 3], U32), (ARRAY, [b"a"], STRING))
    )


def drop_a_row(rng: random.Random, parts: Parts) -> None:
    parts.rows.remove(rng.choice(parts.rows))


def add_a_row(rng: random.Random, parts: Parts) -> None:
    arch = next((row.value for row in parts.rows if row.name == b"general.architecture"), b"llama")
    arch = arch if isinstance(arch, bytes) else b"llama"
    names = (
        b"rope.scaling.type", b"rope.scaling.factor", b"rope.scaling.attn_factor", b"rope.scaling.yarn_beta_fast",
        b"rope.scaling.original_context_length", b"attention.sliding_window", b"attention.key_length",
        b"attention.value_length", b"expert_count", b"expert_used_count", b"rope.scale_linear", b"context_length",
    )  # fmt: skip
    name = rng.choice((*(arch + b"." + one for one in names), *EXTRA_ROWS))
    kind = rng.choice((U64, F64, STRING))
    value = rng.choice({U64: ODD_INTEGERS, F64: ODD_FLOATS, STRING: ODD_TEXTS}[kind])
    parts.rows = [row for row in parts.rows if row.name != name] + [Row(name, kind, value)]


EXTRA_ROWS = (
    b"tokenizer.chat_template", b"tokenizer.ggml.pre", b"tokenizer.ggml.add_bos_token", b"tokenizer.ggml.eot_token_id",
    b"tokenizer.ggml.unknown_token_id", b"tokenizer.ggml.add_space_prefix", b"general.alignment", b"split.count",
    b"general.name", b"tokenizer.ggml.eos_token_id",
)  # fmt: skip


def swap_two_rows(rng: random.Random, parts: Parts) -> None:
    one, other = rng.sample(parts.rows, 2)
    one.name, other.name = other.name, one.name


def change_an_array(rng: random.Random, parts: Parts) -> None:
    row = rng.choice([row for row in parts.rows if row.kind == ARRAY and row.value] or [Row(b"", ARRAY, [0], I32)])
    at = rng.randrange(len(row.value))
    match rng.randrange(6):
        case 0:
            row.value = row.value[:at]
        case 1:
            row.value = row.value + row.value[at:]
        case 2 if row.element == STRING:
            row.value[at] = rng.choice((*ODD_TEXTS, b"\\x", b"\\x41", "é▁".encode(), row.value[at - 1]))
        case 3 if row.element == F32:
            row.value[at] = rng.choice((0.0, math.inf, -math.inf, math.nan, 1e30))
        case 4:
            row.value[at], row.value[at - 1] = row.value[at - 1], row.value[at]
        case _:
            row.value = row.value[::-1] if row.element == STRING else [rng.choice((0, 1, 3, 4, 6))] * len(row.value)


def drop_a_tensor(rng: random.Random, parts: Parts) -> None:
    parts.tensors.remove(rng.choice(parts.tensors))


def add_a_tensor(rng: random.Random, parts: Parts) -> None:
    like = rng.choice(parts.tensors)
    name = rng.choice((b"rope_freqs.weight", b"output.bias", b"blk.0.attn_q.bias", b"blk.9.attn_q.weight", b"x" * 63))
    parts.tensors.append(Stored(name, list(like.dims), like.kind, like.data))


def swap_two_tensors(rng: random.Random, parts: Parts) -> None:
    one, other = rng.sample(parts.tensors, 2)
    one.name, other.name = other.name, one.name


def change_a_shape(rng: random.Random, parts: Parts) -> None:
    one = rng.choice(parts.tensors)
    at = rng.randrange(len(one.dims))
    match rng.randrange(6):
        case 0:
            one.dims = one.dims[::-1]
        case 1:
            one.dims[at] += rng.choice((-1, 1, 32, -32)) if one.dims[at] > 32 else 1
        case 2:
            one.dims[at] *= 2
        case 3:
            one.dims.insert(at, 1)
        case 4:
            one.dims = [math.prod(one.dims)]
        case _:
            one.dims[at] = rng.choice((1, 32, 64, 256, 1 << 20, 1 << 40))


def change_a_format(rng: random.Random, parts: Parts) -> None:
    rng.choice(parts.tensors).kind = rng.choice([*SIZES])


def change_data(rng: random.Random, parts: Parts) -> None:
    one = rng.choice(parts.tensors)
    size = len(one.data)
    one.data = rng.choice((bytes(size), b"\xff" * size, b"\0\0\x80\x7f" * (size // 4), rng.randbytes(size)))


def change_a_role(rng: random.Random, parts: Parts) -> None:
    """Changes one size of the model everywhere in the file."""
    old = rng.choice((64, 96, 32, 16, 288))
    new = rng.choice((1, 2, 8, 24, 48, 63, 128, 256))
    for row in parts.rows:
        if row.kind in LAYOUT and row.value == old:
            row.value = new
    for one in parts.tensors:
        one.dims = [new if dim == old else dim for dim in one.dims]


CHANGES: tuple[Callable[[random.Random, Parts], None], ...] = (
    change_a_number, change_a_number, change_a_size, change_a_size, change_a_size, change_a_text, change_a_type,
    drop_a_row, add_a_row, add_a_row, swap_two_rows, change_an_array, change_an_array, drop_a_tensor, add_a_tensor,
    swap_two_tensors, change_a_shape, change_a_format, change_data, change_data, change_a_role,
)  # fmt: skip
