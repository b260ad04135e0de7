"""Runs the same workloads in llama.cpp: reads them as JSON lines, answers each with its seconds.

`benchmarks.peers` runs this in any Python that has llama_cpp, so it imports nothing from this project. Steps are those
of llama-bench: a prompt in pieces of `chunk` tokens with the logits of the last one, or one token at a time for each
sequence, waiting for each step. An encoder embeds `together` texts per step; llama.cpp pools them. Batches are prepared
before the clock starts, so only llama.cpp is timed.
"""

import argparse
import ctypes
import importlib
import importlib.util
import json
import sys
import time
import types

FILL = 512  # tokens per step while the context is filled
FILLER = 3  # the token that fills the context
CPU = 0  # the number of the CPU in ggml's kinds of devices
KV_TYPES = {"f16": 1, "q8": 8, "q4": 2}  # ggml's types f16, q8_0 and q4_0
FLASH = 1  # LLAMA_FLASH_ATTN_TYPE_ENABLED


def low_level():
    """Imports only the bindings, because the rest of the package needs files that a build folder lacks."""
    spec = importlib.util.find_spec("llama_cpp")
    package = types.ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["llama_cpp"] = package
    return importlib.import_module("llama_cpp.llama_cpp")


lib = low_level()
QUIET = lib.llama_log_callback(lambda *_: None)


def devices() -> list[str]:
    """The GPUs that this build of llama.cpp has found."""
    ggml = importlib.import_module("llama_cpp._ggml").libggml
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_dev_description.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_dev_description.restype = ctypes.c_char_p
    found = [ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count())]
    return [ggml.ggml_backend_dev_description(one).decode() for one in found if ggml.ggml_backend_dev_type(one) != CPU]


class Step:
    """A llama_batch of (id, position, sequence, needs logits) in its own memory."""

    def __init__(self, rows: list) -> None:
        n, ids = len(rows), ctypes.POINTER(lib.llama_seq_id)
        tokens, positions, sequences, logits = zip(*rows, strict=True)
        self.sequences = max(sequences) + 1
        self._sequences = (lib.llama_seq_id * n)(*sequences)
        size = ctypes.sizeof(lib.llama_seq_id)
        start = ctypes.addressof(self._sequences)
        self.batch = lib.llama_batch(
            n_tokens=n,
            token=(lib.llama_token * n)(*tokens),
            pos=(lib.llama_pos * n)(*positions),
            n_seq_id=(ctypes.c_int32 * n)(*[1] * n),
            seq_id=(ids * n)(*(ctypes.cast(start + i * size, ids) for i in range(n))),
            logits=(ctypes.c_int8 * n)(*logits),
        )


def prompt(ids: list, sequence: int, start: int, size: int) -> list:
    """Adds tokens of one sequence in steps of `size`, with the logits of the last token."""
    rows = [(id, start + i, sequence, i == len(ids) - 1) for i, id in enumerate(ids)]
    return [Step(rows[at : at + size]) for at in range(0, len(rows), size)]


def decode(ids: list, start: int) -> list:
    """Adds one token of each sequence in a step, with the logits of all."""
    return [Step([(id, start + at, s, True) for s, id in enumerate(each)]) for at, each in enumerate(zip(*ids))]  # noqa: B905


def texts(ids: list, together: int) -> list:
    """Adds whole texts in steps of `together`, each as a sequence. Every token has an embedding, for pooling."""
    some = [ids[at : at + together] for at in range(0, len(ids), together)]
    return [Step([(id, i, s, True) for s, text in enumerate(each) for i, id in enumerate(text)]) for each in some]


class Override(ctypes.Structure):
    """The structure llama_model_tensor_buft_override: a memory type for tensors whose name matches."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


EXPERTS = rb"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # of llama.cpp's --cpu-moe


def on_the_host(pattern: bytes) -> ctypes.Array:
    """Places tensors of that name in main memory, for the CPU to compute. The list ends with zeros."""
    ggml = importlib.import_module("llama_cpp._ggml").libggml
    ggml.ggml_backend_cpu_buffer_type.restype = ctypes.c_void_p
    return (Override * 2)(Override(pattern, ggml.ggml_backend_cpu_buffer_type()), Override(None, None))


class Peer:
    """A model loaded by llama.cpp, and a context. A workload that needs another context gets a new one."""

    def __init__(self, path: str, threads: int, cpu_moe: bool = False, kv: str = "f16", lora: str = "") -> None:
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 999
        self.kv = KV_TYPES[kv]
        if cpu_moe:
            self.overrides = on_the_host(EXPERTS)
            params.tensor_buft_overrides = ctypes.cast(self.overrides, ctypes.c_void_p)
        self.model = lib.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.adapter = lib.llama_adapter_lora_init(self.model, lora.encode()) if lora else None
        if lora and not self.adapter:
            raise SystemExit(f"llama.cpp cannot load {lora}")
        self.threads = threads
        self.shape = None  # sequences, tokens of a step, positions of a sequence, True for embeddings
        self.context = None
        self.depth = None  # the number of tokens that all sequences contain

    def open(self, work: dict) -> None:
        """Opens a context with room for the workload."""
        length = -(-(work["depth"] + work["tokens"] + 1) // 256) * 256
        together = work.get("together", work["batch"])
        shape = together, max(FILL, work["chunk"], together), length, work.get("kind") == "embed"
        if shape == self.shape:
            return
        if self.context:
            lib.llama_free(self.context)
        params = lib.llama_context_default_params()
        params.n_seq_max = together
        params.n_ctx = together * length
        params.embeddings = shape[3]
        params.n_batch = params.n_ubatch = shape[1]
        params.type_k = params.type_v = self.kv
        if self.kv != KV_TYPES["f16"]:
            params.flash_attn_type = FLASH  # without it, values cannot be quantised
        if self.threads:
            params.n_threads = params.n_threads_batch = self.threads
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")
        if self.adapter:
            adapters = (lib.llama_adapter_lora_p_ctypes * 1)(ctypes.cast(self.adapter, lib.llama_adapter_lora_p_ctypes))
            lora = adapters, 1, (ctypes.c_float * 1)(1.0)
            if lib.llama_set_adapters_lora(self.context, *lora):
                raise SystemExit("llama.cpp cannot add the adapter")
        self.shape, self.depth = shape, None

    def run(self, work: dict, ids: list) -> float:
        """Returns the seconds of one pass, starting at the depth of the workload."""
        self.open(work)
        if work["kind"] == "embed":
            return self.embed(work, ids)
        self.rewind(work["batch"], work["depth"])
        reading = work["kind"] == "pp"
        steps = prompt(ids[0], 0, work["depth"], work["chunk"]) if reading else decode(ids, work["depth"])
        start = time.perf_counter()
        for step in steps:
            self.step(step)
            if not reading:
                lib.llama_synchronize(self.context)
        lib.llama_synchronize(self.context)
        return time.perf_counter() - start

    def embed(self, work: dict, ids: list) -> float:
        """Returns the seconds of one pass over texts, whose vectors llama.cpp pools."""
        memory = lib.llama_get_memory(self.context)  # encoders with decoder-like layers have one
        steps = texts(ids, work["together"])
        start = time.perf_counter()
        for step in steps:
            if memory:
                lib.llama_memory_clear(memory, False)
            self.step(step)
            for sequence in range(step.sequences):
                lib.llama_get_embeddings_seq(self.context, sequence)
        return time.perf_counter() - start

    def rewind(self, batch: int, depth: int) -> None:
        """Resets every sequence to the depth: cuts it there, or fills it again if its state cannot be cut."""
        memory = lib.llama_get_memory(self.context)
        if self.depth == depth and all(lib.llama_memory_seq_rm(memory, s, depth, -1) for s in range(batch)):
            return
        lib.llama_memory_clear(memory, False)
        for step in prompt([FILLER] * depth, 0, 0, FILL):
            self.step(step)
        for sequence in range(1, batch if depth else 1):
            lib.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        if depth and not lib.llama_model_is_recurrent(self.model):  # keys and values are copied at their next use
            self.step(Step([(FILLER, depth, s, True) for s in range(batch)]))
            for sequence in range(batch):
                lib.llama_memory_seq_rm(memory, sequence, depth, -1)
        lib.llama_synchronize(self.context)
        self.depth = depth

    def step(self, step: Step) -> None:
        status = lib.llama_decode(self.context, step.batch)
        if status:
            raise SystemExit(f"llama_decode: {status}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("threads", type=int)
    parser.add_argument("--cpu-moe", action="store_true")
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--lora", default="")
    asked_for = parser.parse_args()
    lib.llama_log_set(QUIET, ctypes.c_void_p(0))
    lib.llama_backend_init()
    peer = Peer(**vars(asked_for))
    print(json.dumps({"devices": devices()}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps({"seconds": peer.run(**asked)}), flush=True)


if __name__ == "__main__":
    main()
