"""Only the process that loaded a model can use it. In a forked process, every call raises an error at once."""

import os
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import pytest

import rwkv_gpu
from tests.golden_files import OWN
from tests.process import PATIENCE

PROGRAM = """
import asyncio, os, signal, sys
import rwkv_gpu

llm = rwkv_gpu.load(sys.argv[1], device=sys.argv[2])
llm.generate("hello", max_tokens=2, regex="a+")  # starts a helper process, too
begun = llm.stream("hello", max_tokens=3)
next(begun)
saved = llm.chat()
saved.send("hello", max_tokens=2)
chat, HI = llm.chat(), [{"role": "user", "content": "hello"}]
turn = chat.stream("hello", max_tokens=3)

async def read():
    return await llm.agenerate("hello")

async def begin():
    return llm.astream("hello", max_tokens=3)

awaited = asyncio.run(begin())

calls = {
    "generate": lambda: llm.generate("hello"),
    "batch": lambda: llm.generate(["hello", "you"]),
    "regex": lambda: llm.generate("hello", regex="a+"),
    "stream": lambda: [*llm.stream("hello")],
    "chat": lambda: llm.chat().send("hello"),
    "save": lambda: saved.save(sys.argv[3]),
    "turn": lambda: turn.wait(),
    "chats": lambda: llm.chat_batch([HI]),
    "openai": lambda: llm.create_chat_completion(HI),
    "completion": lambda: llm.create_completion("hello"),
    "embedding": lambda: llm.create_embedding("hello"),
    "logprobs": lambda: llm.logprobs([1, 2]),
    "perplexity": lambda: llm.perplexity([1, 2]),
    "logits": lambda: llm.logits([1, 2]),
    "embed": lambda: llm.embed("hello"),
    "asyncio": lambda: asyncio.run(read()),
    "begun": begun.wait,
    "awaited": lambda: asyncio.run(awaited.wait()),
    **({} if sys.argv[2] == "cpu" else {"load": lambda: rwkv_gpu.load(sys.argv[1], device=sys.argv[2])}),
}
if os.fork() == 0:
    signal.alarm(30)  # one that hangs ends
    for name, call in calls.items():
        try:
            call()
        except rwkv_gpu.Forked as error:
            print(name, error, flush=True)
    assert llm.tokenize("hello")
    llm.close()
    if sys.argv[2] == "cpu" or sys.platform == "linux":
        sys.exit(7)
    os._exit(7)  # as multiprocessing does: elsewhere, exit handlers of drivers wait for threads of the parent
_, status = os.wait()
assert os.waitstatus_to_exitcode(status) == 7, status
assert len(begun.wait().tokens) == 3
assert llm.generate("hello", max_tokens=2, regex="a+").text == "aa"
llm.close()
print("parent", *calls)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("device", ["cpu", pytest.param("0", marks=pytest.mark.gpu)])
def test_a_forked_process_is_refused_at_once_and_its_parent_continues(tmp_path, device):
    program = [sys.executable, "-c", PROGRAM, str(OWN / "tiny-rwkv7.gguf"), device, str(tmp_path / "chat.rwkvchat")]
    run = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 0, run.stderr
    *refused, parent = run.stdout.splitlines()
    assert [line.split()[0] for line in refused] == parent.split()[1:]
    assert all("get_context('spawn')" in line for line in refused)


def test_a_model_that_is_sent_to_another_process_says_to_load_it_there():
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu") as llm:
        for value in (llm, llm.generate, llm.chat()):
            with pytest.raises(rwkv_gpu.BadInput, match="load it in each process"):
                ForkingPickler.dumps(value)


FORKS = """
import faulthandler, os, sys, threading
import rwkv_gpu

models = [rwkv_gpu.load(sys.argv[1], device="cpu", sequences=1) for _ in range(3)]
over = threading.Event()
steps = [0] * len(models)

def ask(number):
    while not over.is_set():
        models[number].generate("The sea " * 20, max_tokens=1)
        steps[number] += 1

threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(models))]
for thread in threads:
    thread.start()
faulthandler.dump_traceback_later(float(sys.argv[2]), exit=True)
for _ in range(20):
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)
over.set()
for thread in threads:
    thread.join()
assert all(steps), steps
os._exit(0)
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_forks_while_several_models_compute_in_numpy():
    """OpenBLAS hangs in a fork while threads multiply, so the fork waits for their steps."""
    program = [sys.executable, "-c", FORKS, str(OWN / "tiny-rwkv7.gguf"), str(PATIENCE)]
    run = subprocess.run(program, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert run.returncode == 0, run.stderr
