"""Writes the golden projectors in `sound`, and records once how llama.cpp's libmtmd encodes sounds with them.

    MTMD=oracle.py python -m tests.golden.record_sounds [FAMILY ...]

`oracle.py` is the module of `record_images`, with a class `Ears` that encodes sounds, and a function `decoded` that
decodes a file with llama.cpp's decoder.
"""

import io
import os
import sys
import tempfile
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.vision.mel import filters, hann
from tests.golden.record_images import HERE, TEXT, Keys, Source, Tensors, kept, loaded, twin, write

LENGTHS = 5000, 100, 500_000  # lengths of the recorded sounds, in samples
FRAMES = [0, 1, 5, 30, 2999]  # recorded frames of each spectrogram
ROWS = 1500
ROWS_ONLY = "qwen3a", "gemma4a", "lfm2a", "parakeet"  # towers whose spectrograms are not recorded
SPEECH = "a.position_embd.weight"  # of LFM2's own speech; libmtmd reads its sizes, and the golden file has none
WIDTH = 20  # with this width, libmtmd makes as many rows as with real ones


def lengths(kind: str) -> tuple[int, ...]:
    """Returns the lengths of the recorded sounds; some spectrograms of libmtmd need 320 samples."""
    return tuple(max(700 if kind in ("lfm2a", "parakeet") else 0, length) for length in LENGTHS)


def sound(length: int) -> np.ndarray:
    """Returns a sound of gliding tones and some noise."""
    rng = np.random.default_rng(length)
    seconds = np.arange(length) / 16000
    tones = [np.sin(2 * np.pi * (a * seconds + b * seconds**2)) for a, b in rng.uniform(100, 1500, (3, 2))]
    return (0.2 * np.sum(tones, axis=0) + rng.normal(0, 0.02, length)).astype(np.float32)


def tower(g: Source, mels: int, width: int = WIDTH, inner: int = 24, count: int = 2) -> Tensors:
    """Returns the tensors of a tower as in Whisper."""
    t: Tensors = {
        "a.conv1d.1.weight": g.matrix(width, mels, 3), "a.conv1d.1.bias": g.matrix(width, 1, gain=0.1),
        "a.conv1d.2.weight": g.matrix(width, width, 3, gain=2), "a.conv1d.2.bias": g.matrix(width, 1, gain=0.1),
        "a.position_embd.weight": 0.25 * g.matrix(ROWS, width, gain=4),
        "a.post_ln.weight": g.vector(width, 1), "a.post_ln.bias": g.vector(width),
    }  # fmt: skip
    for i in range(count):
        at = f"a.blk.{i}"
        shapes = {f"attn_{name}": (width, width) for name in ("q", "k", "v", "out")}
        shapes |= {"ffn_up": (inner, width), "ffn_down": (width, inner)}
        for name, shape in shapes.items():
            t[f"{at}.{name}.weight"] = g.matrix(*shape, gain=2)
            if name != "attn_k":
                t[f"{at}.{name}.bias"] = g.vector(shape[0])
        for name in ("ln1", "ln2"):
            t |= {f"{at}.{name}.weight": g.vector(width, 1), f"{at}.{name}.bias": g.vector(width)}
    return t


def keys(kind: str, mels: int, out: int, width: int = WIDTH, inner: int = 24, count: int = 2, heads: int = 2) -> Keys:
    """Returns the metadata of a projector for sounds."""
    return {
        "clip.has_audio_encoder": True, "clip.projector_type": kind, "clip.audio.embedding_length": width,
        "clip.audio.feed_forward_length": inner, "clip.audio.block_count": count,
        "clip.audio.attention.head_count": heads, "clip.audio.attention.layer_norm_epsilon": 1e-5,
        "clip.audio.num_mel_bins": mels, "clip.audio.projection_dim": out,
    }  # fmt: skip


def qwen2a(out: int) -> tuple[Tensors, Keys]:
    g, mels = Source(20), 128
    t = tower(g, mels) | {"mm.a.fc.weight": g.matrix(out, WIDTH, gain=3), "mm.a.fc.bias": g.vector(out)}
    return t, keys("qwen2a", mels, out)


def ultravox(out: int) -> tuple[Tensors, Keys]:
    g, mels, stack, inner = Source(21), 80, 8, 20
    t = tower(g, mels) | {
        "mm.a.norm_pre.weight": g.vector(WIDTH * stack, 1), "mm.a.norm_mid.weight": g.vector(inner, 1),
        "mm.a.mlp.1.weight": g.matrix(2 * inner, WIDTH * stack), "mm.a.mlp.2.weight": g.matrix(out, inner, gain=3),
    }  # fmt: skip
    return t, keys("ultravox", mels, out) | {"clip.audio.projector.stack_factor": stack}


def voxtral(out: int) -> tuple[Tensors, Keys]:
    g, mels, stack = Source(22), 128, 4
    t = tower(g, mels) | {
        "mm.a.mlp.1.weight": g.matrix(32, WIDTH * stack), "mm.a.mlp.2.weight": g.matrix(out, 32, gain=3),
    }  # fmt: skip
    return t, keys("voxtral", mels, out) | {"clip.audio.projector.stack_factor": stack}


def musicflamingo(out: int) -> tuple[Tensors, Keys]:
    g, mels = Source(23), 24
    t = tower(g, mels) | {
        "mm.a.mlp.1.weight": g.matrix(32, WIDTH), "mm.a.mlp.2.weight": g.matrix(out, 32, gain=3),
        "mm.a.mlp.1.bias": g.vector(32), "mm.a.mlp.2.bias": g.vector(out),
    }  # fmt: skip
    return t, keys("musicflamingo", mels, out)


def qwen3a(out: int) -> tuple[Tensors, Keys]:
    g, mels, channels = Source(24), 40, 6
    t = {name: array for name, array in tower(g, mels).items() if "conv1d" not in name}
    t |= {
        "a.position_embd.weight": 0.25 * g.matrix(13, WIDTH, gain=4),
        "a.conv_out.weight": g.matrix(WIDTH, channels * 5, gain=3),
        "mm.a.mlp.1.weight": g.matrix(32, WIDTH), "mm.a.mlp.2.weight": g.matrix(out, 32, gain=3),
        "mm.a.mlp.1.bias": g.vector(32), "mm.a.mlp.2.bias": g.vector(out),
    }  # fmt: skip
    for number, made, read in ((1, channels, 1), (2, channels, channels), (3, channels, channels)):
        t[f"a.conv2d.{number}.weight"] = g.matrix(made, read, 3, 3, gain=2)
        t[f"a.conv2d.{number}.bias"] = g.matrix(made, 1, 1, gain=0.1)
    return t, keys("qwen3a", mels, out)


def gemma4a(out: int, heads: int = 2) -> tuple[Tensors, Keys]:
    g, mels, channels, inner, count = Source(25), 24, (6, 5), 24, 2
    t: Tensors = {
        "a.conv1d.0.weight": g.matrix(channels[0], 1, 3, 3, gain=2),
        "a.conv1d.0.norm.weight": g.vector(channels[0], 1),
        "a.conv1d.1.weight": g.matrix(channels[1], channels[0], 3, 3, gain=2),
        "a.conv1d.1.norm.weight": g.vector(channels[1], 1),
        "a.input_projection.weight": g.matrix(WIDTH, mels // 4 * channels[1], gain=2),
        "a.pre_encode.out.weight": g.matrix(28, WIDTH, gain=2), "a.pre_encode.out.bias": g.vector(28),
        "mm.a.soft_emb_norm.weight": g.vector(28, 1), "mm.a.input_projection.weight": g.matrix(out, 28, gain=3),
    }  # fmt: skip
    for i in range(count):
        at = f"a.blk.{i}"
        shapes = {f"attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "out", "k_rel")}
        shapes |= {f"ffn_up{which}": (inner, WIDTH) for which in ("", "_1")}
        shapes |= {f"ffn_down{which}": (WIDTH, inner) for which in ("", "_1")}
        shapes |= {"conv_pw1": (2 * WIDTH, WIDTH), "conv_pw2": (WIDTH, WIDTH), "conv_dw": (WIDTH, 5)}
        t |= {f"{at}.{name}.weight": g.matrix(*shape, gain=2) for name, shape in shapes.items()}
        norms = "attn_pre_norm", "attn_post_norm", "conv_norm", "norm_conv", "ln2", "ffn_norm", "ffn_norm_1"
        t |= {f"{at}.{name}.weight": g.vector(WIDTH, 1) for name in (*norms, "ffn_post_norm", "ffn_post_norm_1")}
        t |= {f"{at}.{name}.weight": g.vector(WIDTH // heads, 0.8) for name in ("per_dim_scale", "per_dim_k_scale")}
        for name in ("attn_q", "conv_pw1", "ffn_down_1"):
            bounds = {"input_min": -1.0, "input_max": 1.25, "output_min": -1.5, "output_max": 1.75}
            t |= {f"{at}.{name}.{which}": np.array([bound], np.float32) for which, bound in bounds.items()}
    return t, keys("gemma4a", mels, out)


def lfm2a(out: int, heads: int = 2) -> tuple[Tensors, Keys]:
    g, mels, channels, inner, count = Source(26), 24, 4, 24, 2
    t: Tensors = {
        "a.pre_encode.out.weight": g.matrix(WIDTH, mels // 8 * channels, gain=2),
        "a.pre_encode.out.bias": g.vector(WIDTH),
        SPEECH: np.zeros((2000, out), np.float32),
        "mm.a.mlp.0.weight": g.vector(WIDTH, 1), "mm.a.mlp.0.bias": g.vector(WIDTH),
        "mm.a.mlp.1.weight": g.matrix(28, WIDTH, gain=2), "mm.a.mlp.1.bias": g.vector(28),
        "mm.a.mlp.3.weight": g.matrix(out, 28, gain=3), "mm.a.mlp.3.bias": g.vector(out),
    }  # fmt: skip
    for number, (made, read, side) in {0: (4, 1, 3), 2: (4, 1, 3), 3: (4, 4, 1), 5: (4, 1, 3), 6: (4, 4, 1)}.items():
        t[f"a.conv1d.{number}.weight"] = g.matrix(made, read, side, side, gain=2)
        t[f"a.conv1d.{number}.bias"] = g.matrix(made, 1, 1, gain=0.3)
    for i in range(count):
        at = f"a.blk.{i}"
        shapes = {f"attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
        shapes |= {f"ffn_up{which}": (inner, WIDTH) for which in ("", "_1")}
        shapes |= {f"ffn_down{which}": (WIDTH, inner) for which in ("", "_1")}
        shapes |= {"conv_pw1": (2 * WIDTH, WIDTH), "conv_pw2": (WIDTH, WIDTH), "conv_dw": (WIDTH, 9)}
        for name, shape in shapes.items():
            t |= {f"{at}.{name}.weight": g.matrix(*shape, gain=2), f"{at}.{name}.bias": g.vector(shape[0])}
        for name in ("ln1", "ln2", "norm_conv", "conv_norm", "ffn_norm", "ffn_norm_1"):
            t |= {f"{at}.{name}.weight": g.vector(WIDTH, 1), f"{at}.{name}.bias": g.vector(WIDTH)}
        t[f"{at}.linear_pos.weight"] = g.matrix(WIDTH, 512, gain=2)
        t |= {f"{at}.pos_bias_{name}": 2 * g.matrix(heads, WIDTH // heads) for name in "uv"}
    return t, keys("lfm2a", mels, out)


def parakeet(out: int, heads: int = 2) -> tuple[Tensors, Keys]:
    g, mels, channels, inner, count, width = Source(27), 24, 4, 24, 2, 32
    t: Tensors = {
        "a.mel_filters": filters(mels, 512), "a.window": hann(400),
        "a.pre_encode.out.weight": g.matrix(width, mels // 8 * channels, gain=2),
        "a.pre_encode.out.bias": g.vector(width), "mm.a.norm_pre.weight": g.vector(width, 1),
        "mm.a.mlp.1.weight": g.matrix(28, width, gain=2), "mm.a.mlp.2.weight": g.matrix(out, 28, gain=3),
        # libmtmd wants those for images, too:
        **{f"mm.model.mlp.{number}.weight": g.matrix(4, 4) for number in (0, 1, 3)},
    }  # fmt: skip
    for number, (made, read, side) in {0: (4, 1, 3), 2: (4, 1, 3), 3: (4, 4, 1), 5: (4, 1, 3), 6: (4, 4, 1)}.items():
        t[f"a.conv1d.{number}.weight"] = g.matrix(made, read, side, side, gain=2)
        t[f"a.conv1d.{number}.bias"] = g.matrix(1, made, 1, 1, gain=0.3)
    for i in range(count):
        at = f"a.blk.{i}"
        shapes = {f"attn_{name}": (width, width) for name in ("q", "k", "v", "out")} | {"linear_pos": (width, width)}
        shapes |= {f"ffn_up{which}": (inner, width) for which in ("", "_1")}
        shapes |= {f"ffn_down{which}": (width, inner) for which in ("", "_1")}
        shapes |= {"conv_pw1": (2 * width, width), "conv_pw2": (width, width), "conv_dw": (1, 1, width, 9)}
        t |= {f"{at}.{name}.weight": g.matrix(*shape, gain=2) for name, shape in shapes.items()}
        for name in ("ln1", "ln2", "norm_conv", "conv_norm", "ffn_norm", "ffn_norm_1"):
            t |= {f"{at}.{name}.weight": g.vector(width, 1), f"{at}.{name}.bias": g.vector(width)}
        t |= {f"{at}.conv_norm_mean": g.vector(width), f"{at}.conv_norm_var": g.vector(width, 0.6)}
        t |= {f"{at}.pos_bias_{name}": 2 * g.matrix(heads, width // heads) for name in "uv"}
    more: Keys = {"clip.audio.subsampling_factor": 8, "clip.audio.conv_kernel_size": 9}
    return t, keys("parakeet", mels, out, width) | more


# Each golden projector, the language model it is for, and the sounds of a prompt that fit into its context.
MODELS: dict[str, tuple[str, Callable[[int], tuple[Tensors, Keys]], int]] = {
    "qwen2a": ("tiny-qwen2", qwen2a, 1),
    "ultravox": ("quiet-llama", ultravox, 2),
    "voxtral": ("quiet-llama", voxtral, 2),
    "qwen3a": ("tiny-qwen3", qwen3a, 2),
    "musicflamingo": ("tiny-qwen2", musicflamingo, 1),
    "gemma4a": ("tiny-gemma4", gemma4a, 2),
    "lfm2a": ("tiny-lfm2", lfm2a, 2),
    "parakeet": ("tiny-nemotron_h_moe", parakeet, 2),
}


def wav(samples: np.ndarray, rate: int = 16000) -> bytes:
    """Returns a WAV file of 16 bit; samples are [n] or [n, channels]."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return data.getvalue()


def at_rates() -> Iterator[tuple[str, bytes]]:
    """Returns files at several rates by name."""
    for rate in (8000, 22050, 44100, 48000):
        yield str(rate), wav(np.stack([sound(rate // 2), 0.5 * sound(rate // 2)], axis=1), rate)


def record(name: str) -> None:
    """Writes the projector, and records libmtmd's embeddings of sounds."""
    oracle = loaded(os.environ["MTMD"])
    model, make, count = MODELS[name]
    with GGUFFile.open(HERE / f"{model}.gguf") as file:
        width = file.int(f"{file.str('general.architecture')}.embedding_length")
    tensors, metadata = make(width)
    (HERE / "sound").mkdir(exist_ok=True)
    heard = {each: array for each, array in tensors.items() if name != "lfm2a" or each != SPEECH}
    write(HERE / "sound" / f"{name}.gguf", "clip", metadata, heard, half=True)
    with tempfile.TemporaryDirectory() as folder:
        text, projector = Path(folder) / "text.gguf", Path(folder) / "mmproj.gguf"
        twin(HERE / f"{model}.gguf", text, {}, ())
        write(projector, "clip", metadata, tensors)
        ears = oracle.Ears(text, projector, n_ctx=1024)
        found: dict[str, np.ndarray] = {}
        for number, length in enumerate(lengths(name)):
            parts = [part for kind, part in ears.parts(ears.chunks("<__media__>", [sound(length)])) if kind == "image"]
            if name not in ROWS_ONLY:
                found[f"mel{number}"] = np.stack([ears.mel(part)[:, FRAMES] for part in parts])
            rows = np.concatenate([ears.embed(part) for part in parts])
            found[f"count{number}"], found[f"rows{number}"] = np.array(len(rows)), rows[kept(len(rows))[::2]]
        two = ears.chunks(
            TEXT.replace(" <__media__>", "", 2 - count), [sound(length) for length in lengths(name)[:count]]
        )
        ids = [
            part if kind == "text" else [-1] * oracle.m.mtmd_input_chunk_get_n_tokens(part)
            for kind, part in ears.parts(two)
        ]
        found["tokens"] = np.concatenate([np.array(part, np.int64) for part in ids])
        found["logits"], past = ears.logits(two)
    np.savez_compressed(HERE / "sound" / f"{name}.npz", **found)
    print(f"{name}: {len(found['tokens'])} tokens, {past} positions, logits of deviation {found['logits'].std():.2f}")


def record_resampling() -> None:
    """Records every 64th sample of files at other rates."""
    oracle = loaded(os.environ["MTMD"])
    np.savez_compressed(HERE / "sound" / "resampled.npz", **{n: oracle.decoded(data)[::64] for n, data in at_rates()})


if __name__ == "__main__":
    record_resampling()
    for which in sys.argv[1:] or MODELS:
        record(which)
