"""llama.cpp at the same work: reads workloads as JSON lines, answers each with its seconds.

Run by `benchmarks.peers` in any Python that has llama_cpp; imports nothing of ours. Steps are those of llama-bench: a
prompt in pieces of `chunk` tokens with the logits of the last one, or a token at a time for each sequence, waiting for
each step.
"""

import ctypes
import importlib
import importlib.util
import json
import sys
import time
import types


def low_level():
    """The bindings alone: what stands around them in the package needs more than a build folder has."""
    spec = importlib.util.find_spec("llama_cpp")
    package = types.ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["llama_cpp"] = package
    return importlib.import_module("llama_cpp.llama_cpp")


lib = low_level()


class Peer:
    """A model that llama.cpp has loaded, and a context that is made anew where a workload needs another."""

    def __init__(self, path: str, threads: int) -> None:
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 999
        self.model = lib.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.threads = threads
        self.shape = None
        self.context = None

    def open(self, work: dict) -> None:
        """A context with room for the workload."""
        shape = work["batch"], work["chunk"], work["depth"] + work["tokens"]
        if shape == self.shape:
            return
        if self.context:
            lib.llama_free(self.context)
        batch, chunk, length = shape
        params = lib.llama_context_default_params()
        params.n_seq_max = batch
        params.n_ctx = batch * (-(-(length + 1) // 256) * 256)
        params.n_batch = params.n_ubatch = max(chunk, batch)
        if self.threads:
            params.n_threads = params.n_threads_batch = self.threads
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")
        self.batch = lib.llama_batch_init(max(chunk, batch), 0, batch)
        self.shape = shape

    def run(self, work: dict, ids: list) -> float:
        """Seconds of one pass, from the depth on."""
        self.open(work)
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        for sequence in range(work["batch"]):
            self.prompt([3] * work["depth"], sequence, 0)
        lib.llama_synchronize(self.context)
        start = time.perf_counter()
        if work["kind"] == "pp":
            self.prompt(ids[0], 0, work["depth"])
        else:
            for at in range(work["tokens"]):
                self.step([(ids[s][at], work["depth"] + at, s, True) for s in range(work["batch"])])
                lib.llama_synchronize(self.context)
        lib.llama_synchronize(self.context)
        return time.perf_counter() - start

    def prompt(self, ids: list, sequence: int, start: int) -> None:
        """Tokens of one sequence in pieces; the logits of the last."""
        size = self.shape[1]
        for at in range(0, len(ids), size):
            piece = ids[at : at + size]
            last = at + len(piece) == len(ids)
            rows = enumerate(piece)
            self.step([(id, start + at + i, sequence, last and i == len(piece) - 1) for i, id in rows])

    def step(self, rows: list) -> None:
        """One decode of (id, position, sequence, whether logits are asked for)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, logits
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        status = lib.llama_decode(self.context, batch)
        if status:
            raise SystemExit(f"llama_decode: {status}")


def main() -> None:
    path, threads = sys.argv[1], int(sys.argv[2])
    quiet = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    peer = Peer(path, threads)
    print(json.dumps({"system": lib.llama_print_system_info().decode()}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps({"seconds": peer.run(asked["work"], asked["ids"])}), flush=True)


if __name__ == "__main__":
    main()
