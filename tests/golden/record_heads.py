"""Records llama.cpp's results for the models of heads.py: logits of their heads, and drafted tokens.

    npm pack @node-llama-cpp/linux-x64@3.22.1        # unpack it; its library is of llama.cpp of September 2026
    LLAMA=package/bins/linux-x64 python -m tests.golden.record_heads [NAME ...]

A head reads each token with the model's row before it, and zeros before the first token. The library has no header for
its structures; these are in its order of September 2026. A twin in float32 is asked, as in record.py.
"""

import ctypes as c
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.heads import HEADED, HERE, write_headed

TOKENS, DRAFTED, WIDTH = 24, 3, 512
I32, U32, F32, FLAG, AT = c.c_int32, c.c_uint32, c.c_float, c.c_bool, c.c_void_p
MTP = 1  # kind of a context


class ModelParams(c.Structure):
    """The structure llama_model_params."""

    _fields_ = [
        *[("devices", AT), ("overrides", AT)],
        *[(name, I32) for name in ("gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")],
        *[(name, AT) for name in ("split", "progress", "data", "kv_overrides")],
        *[(name, FLAG) for name in ("vocab_only", "check", "extra_buffers", "no_host", "no_alloc", "load_mtp")],
    ]


class ContextParams(c.Structure):
    """The structure llama_context_params."""

    _fields_ = [
        *[(name, U32) for name in ("ctx", "batch", "ubatch", "seq_max", "rs_seq", "outputs", "outputs_per_seq")],
        *[(name, I32) for name in ("threads", "threads_batch")],
        *[(name, I32) for name in ("kind", "rope_scaling", "pooling", "attention", "flash")],
        *[(name, F32) for name in ("rope_base", "rope_scale", "yarn_ext", "yarn_attn", "yarn_fast", "yarn_slow")],
        *[("yarn_context", U32), ("defrag", F32), ("eval", AT), ("eval_data", AT)],
        *[("type_k", I32), ("type_v", I32), ("abort", AT), ("abort_data", AT)],
        *[(name, FLAG) for name in ("embeddings", "offload", "no_perf", "op_offload", "swa_full", "unified")],
        *[("samplers", AT), ("n_samplers", c.c_size_t), ("other", AT)],
    ]


class Rows(c.Structure):
    """The structure llama_batch."""

    _fields_ = [
        *[("count", I32), ("token", c.POINTER(I32)), ("embd", c.POINTER(F32)), ("pos", c.POINTER(I32))],
        *[("n_seq", c.POINTER(I32)), ("seq", c.POINTER(c.POINTER(I32))), ("logits", c.POINTER(c.c_int8))],
    ]


class Llama:
    """The library of llama.cpp with one model."""

    def __init__(self, folder: Path, path: Path) -> None:
        loaded = [c.CDLL(str(folder / f"lib{name}.so"), mode=c.RTLD_GLOBAL) for name in ("ggml-base", "ggml.v0.5.0")]
        self.lib = lib = c.CDLL(str(folder / "libllama.v0.5.0.so"))
        loaded[1].ggml_backend_load.argtypes = [c.c_char_p]
        loaded[1].ggml_backend_load(str(folder / "libggml-cpu-haswell.so").encode())
        lib.llama_backend_init()
        lib.llama_model_default_params.restype = ModelParams
        lib.llama_context_default_params.restype = ContextParams
        lib.llama_model_load_from_file.restype, lib.llama_model_load_from_file.argtypes = AT, [c.c_char_p, ModelParams]
        lib.llama_init_from_model.restype, lib.llama_init_from_model.argtypes = AT, [AT, ContextParams]
        lib.llama_decode.argtypes = [AT, Rows]
        lib.llama_get_logits_ith.restype, lib.llama_get_logits_ith.argtypes = c.POINTER(F32), [AT, I32]
        lib.llama_model_get_vocab.restype, lib.llama_model_get_vocab.argtypes = AT, [AT]
        lib.llama_vocab_n_tokens.argtypes = [AT]
        self.rows_of = lib["_Z30llama_get_embeddings_nextn_ithP13llama_contexti"]
        self.rows_of.restype, self.rows_of.argtypes = c.POINTER(F32), [AT, I32]
        self.set_rows = lib["_Z26llama_set_embeddings_nextnP13llama_contextbb"]
        self.set_rows.argtypes = [AT, FLAG, FLAG]
        self.set_head = lib["_Z28llama_set_nextn_layer_offsetP13llama_contexti"]
        self.set_head.argtypes = [AT, I32]
        params = lib.llama_model_default_params()
        params.gpu_layers, params.extra_buffers, params.load_mtp = 0, False, True
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, path
        self.vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))

    def context(self, kind: int = 0, other: Any = None) -> Any:
        """Opens a context of the model or of its heads. The rows before the output matrix can be read."""
        params = self.lib.llama_context_default_params()
        params.ctx, params.batch, params.ubatch, params.kind, params.other = 256, 512, 512, kind, other
        params.threads = params.threads_batch = 1
        params.type_k = params.type_v = params.flash = 0
        params.no_perf, params.offload, params.op_offload = True, False, False
        context = self.lib.llama_init_from_model(self.model, params)
        assert context
        self.set_rows(context, True, False)
        return context

    def forget(self, context: Any, first: int) -> None:
        """Removes the positions from `first` on."""
        self.lib.llama_get_memory.restype, self.lib.llama_get_memory.argtypes = AT, [AT]
        self.lib.llama_memory_seq_rm.argtypes = [AT, I32, I32, I32]
        assert self.lib.llama_memory_seq_rm(self.lib.llama_get_memory(context), 0, first, -1)

    def decode(self, context: Any, tokens: Any, width: int, rows: Any = None, first: int = 0) -> tuple[Any, Any]:
        """Computes tokens at positions from `first`: logits, and rows of the width. Heads also get the rows before."""
        count, batch = len(tokens), Rows()
        batch.count, batch.token = count, (I32 * count)(*map(int, tokens))
        batch.pos, batch.n_seq = (I32 * count)(*range(first, first + count)), (I32 * count)(*[1] * count)
        zero = (I32 * 1)(0)
        batch.seq = (c.POINTER(I32) * count)(*[c.cast(zero, c.POINTER(I32))] * count)
        batch.logits = (c.c_int8 * count)(*[1] * count)
        if rows is not None:
            given = np.ascontiguousarray(rows, np.float32)
            batch.embd = given.ctypes.data_as(c.POINTER(F32))
        assert self.lib.llama_decode(context, batch) == 0
        logits = [np.ctypeslib.as_array(self.lib.llama_get_logits_ith(context, i), (self.vocabulary,)).copy()
                  for i in range(count)]  # fmt: skip
        found = [np.ctypeslib.as_array(self.rows_of(context, i), (width,)).copy() for i in range(count if width else 0)]
        return np.array(logits), np.array(found)


def record(name: str, folder: Path) -> None:
    """Records the first head's logits at every position, and the tokens that the heads draft after the last."""
    with tempfile.TemporaryDirectory() as place:
        path = write_headed(Path(place) / "twin.gguf", name, plain=True)
        llama = Llama(folder, path)
    import rwkv_gpu.gguf.file as files

    with files.GGUFFile.open(HERE / f"{HEADED[name].base}.gguf") as file:
        width = file.tensors["output_norm.weight"].shape[0]
    tokens = np.random.default_rng(9).integers(3, 260, TOKENS)
    target = llama.context()
    logits, rows = llama.decode(target, tokens, width)
    head = llama.context(MTP, target)
    before = np.concatenate([np.zeros((1, width)), rows[:-1]])
    heads = HEADED[name].heads
    for link in reversed(range(heads)):  # each stores its own keys and values
        llama.forget(head, 0)
        llama.set_head(head, link)
        said, _ = llama.decode(head, tokens, width, before)
    feed, given, drafted, drafts = [int(logits[-1].argmax())], rows[-1:], [], []
    for step in range(DRAFTED):
        if heads > 1:  # the next head reads all tokens of the draft
            llama.forget(head, TOKENS)
            llama.set_head(head, step)
        found, row = llama.decode(head, feed, width, given, TOKENS + step + 1 - len(feed))
        drafted.append(int(found[-1].argmax()))
        drafts.append(found[-1])
        feed, given = ([*feed, drafted[-1]], np.concatenate([given, row[-1:]])) if heads > 1 else (drafted[-1:], row)
    np.savez_compressed(
        HERE / f"head-{name}.npz", tokens=tokens, exact_logits=logits[-1:], exact_head=said.astype(np.float32),
        drafted=np.array(drafted), exact_drafts=np.array(drafts, np.float32),
    )  # fmt: skip
    print(f"head-{name}.npz: head's logits of deviation {said.std():.2f}, drafts {drafted}")


if __name__ == "__main__":
    for each in sys.argv[1:] or HEADED.keys() - {"bailingmoe2"}:  # see ling2.py
        record(each, Path(os.environ["LLAMA"]))
