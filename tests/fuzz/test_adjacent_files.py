"""Almost valid files used with a model, such as adapters and drafts: each is used or refused in one line."""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.imatrix import read_imatrix
from rwkv_gpu.gguf.mixes import mix_of
from rwkv_gpu.gguf.requantise import requantise
from rwkv_gpu.models.registry import load_model
from tests.engine.test_adapters import write as write_adapter
from tests.engine.test_initial_state import write as write_state
from tests.fuzz.mutants import CHANGES
from tests.fuzz.run_mutants import LONGEST
from tests.gguf.parts import take_apart
from tests.gguf.test_quantise import as_gguf
from tests.gguf.writer import ARRAY, BOOL, F64, I32, STRING, U64
from tests.golden_files import golden

LLAMA, RWKV, QUIET = (golden(f"{name}.gguf") for name in ("tiny-llama", "tiny-rwkv7", "quiet-llama"))
COUNT = 60  # mutants of each
ODD = (
    (F64, 1e308), (F64, float("nan")), (U64, (1 << 64) - 1), (BOOL, True), (STRING, b""), (STRING, b"abc"),
    (STRING, b"llama\n\x1b[2J"), (STRING, b"a" * 5000), (ARRAY, [1, 2]),
)  # fmt: skip
KEYS = "adapter.lora.alpha", "adapter.type", "general.type", "general.architecture"


def adapter(folder: Path) -> bytes:
    return write_adapter(folder, "llama", "sound").read_bytes()


def state(folder: Path) -> bytes:
    with GGUFFile.open(RWKV) as file:
        states = load_model(file).states
    return write_state(
        folder / "sound.gguf", {one.name: np.zeros(one.shape, np.float32) for one in states}
    ).read_bytes()


def importance(_: Path) -> bytes:
    names = [f"blk.{layer}.{name}.weight" for layer in range(2) for name in ("attn_q", "ffn_up")]
    return as_gguf({name: ([2.0], [[1.0] * 64]) for name in names})


def model(_: Path) -> bytes:
    return QUIET.read_bytes()


def generate(path: Path, **options: object) -> None:
    with rwkv_gpu.load(path, device="cpu", **options) as llm:
        llm.generate([5, 6, 7], max_tokens=2)


def quantise(path: Path, target: Path, importance: Mapping[str, Any] | None = None) -> None:
    requantise(path, target, mix_of("Q4_K_M"), importance)


USES: dict[str, tuple[Callable[[Path], bytes], Callable[[Path], object]]] = {
    "adapter": (adapter, lambda path: generate(LLAMA, lora=path, context=128)),
    "state": (state, lambda path: generate(RWKV, initial_state=path)),
    "importance": (
        importance,
        lambda path: requantise(QUIET, path.with_name("out"), mix_of("Q4_0"), read_imatrix(path)),
    ),
    "draft": (model, lambda path: generate(QUIET, draft=path, draft_tokens=3, context=128)),
    "quantised": (model, lambda path: quantise(path, path.with_name("out"))),
}


def outcome(use: Callable[[Path], object], path: Path) -> str:
    """Returns the refusal, or nothing if the file was used."""
    try:
        use(path)
    except RwkvGpuError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", USES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_file_next_to_a_model_is_used_or_refused_in_one_line(tmp_path, kind):
    make, use = USES[kind]
    sound, path = make(tmp_path), tmp_path / "mutant.gguf"
    refusals = []
    for seed in range(COUNT):
        rng = random.Random(seed)
        parts = take_apart(sound)
        if rng.random() < 0.5:
            parts.set(rng.choice(KEYS), *rng.choice(ODD))
            parts.rows[-1].element = I32
        else:
            with suppress(IndexError):  # no file of that kind exists
                rng.choice(CHANGES)(rng, parts)
        path.write_bytes(parts.built())
        refusals.append(outcome(use, path))
    assert all(not text or text.isprintable() for text in refusals)
    assert max(map(len, refusals)) < LONGEST + len(str(path))
    assert 0 < refusals.count("") < COUNT
