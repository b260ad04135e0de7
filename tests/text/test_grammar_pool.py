"""A grammar that overloads its compiler fails only its own request; the program and other requests continue."""

import gc
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from rwkv_gpu.errors import BadGrammar
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.text.grammar import Form, Grammars, pool_of
from rwkv_gpu.text.grammar_pool import PROCESSES, Limits
from rwkv_gpu.text.grammar_worker import LARGE, NICE, read, write
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.golden_files import golden
from tests.process import PATIENCE, posix, resident, until

SMALL = Form.of(regex="[ab]{1,40}")
DEEP = 5000  # a chain of rules that refer to each other


def chain_of_rules(count):
    rules = "\n".join(f'r{n}: "a" r{n + 1}' for n in range(count))
    return Form.of(grammar=f'start: r0\n{rules}\nr{count}: "c"')


def chain_of_definitions(count):
    chained = {f"d{n}": {"type": "array", "items": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(count)}
    return Form.of(schema={"$ref": "#/$defs/d0", "$defs": chained | {f"d{count}": {"type": "null"}}})


TOO_MUCH = {
    "rules that name each other in Lark": chain_of_rules(DEEP),
    "rules that name each other in GBNF": Form.of(
        grammar="root ::= r0\n" + "\n".join(f'r{n} ::= "a" r{n + 1}' for n in range(DEEP)) + f'\nr{DEEP} ::= "c"'
    ),
    "definitions that name each other": chain_of_definitions(DEEP),
    "definitions inside each other": Form.of(schema='{"items":' * 20_000 + "{}" + "}" * 20_000),
    "parentheses inside each other": Form.of(grammar="start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "a text of 2 MB": Form.of(regex="a" * (2 << 20)),
    "groups inside each other": Form.of(regex="(" * 20_000 + "a" + ")" * 20_000),
}


@pytest.fixture(scope="module")
def tokenizer():
    with GGUFFile.open(golden("tiny-rwkv7.gguf")) as file:
        return load_tokenizer(file.metadata)


@pytest.fixture
def make(tokenizer):
    pools = []

    def make(**limits):
        pools.append(pool_of(tokenizer, tokenizer.vocab_size, Limits(**limits)))
        return Grammars(tokenizer, tokenizer.vocab_size, pool=pools[-1])

    yield make
    for pool in pools:
        pool.close()


def processes(grammars):
    return [helper._process for helper in grammars._pool._helpers if helper._process is not None]


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_grammar_too_large_for_the_compiler_is_refused_in_one_line(make, name):
    grammars = make()
    with pytest.raises(BadGrammar) as caught:
        grammars.grammar(TOO_MUCH[name]).mask()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert grammars.grammar(SMALL).mask().any()


def test_a_schema_deeper_than_python_can_write_is_refused():
    schema = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(BadGrammar, match="too deep"):
        Form.of(schema=schema)


def test_a_grammar_that_takes_too_long_is_refused_with_the_time(make):
    with pytest.raises(BadGrammar, match=r"regular expression is too large.*0\.05 seconds"):
        make(compiling=0.05).grammar(Form.of(regex="((((a{30}){30}){30}){30}){30}"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps to RLIMIT_AS")
def test_a_grammar_that_takes_too_much_memory_is_refused_with_the_limit(make):
    grammars = make(memory=200 << 20)
    with pytest.raises(BadGrammar, match="200 MiB"):
        grammars.grammar(Form.of(regex="((((a{30}){30}){30}){30}){30}"))


def test_other_answers_continue_after_a_crash_of_the_process(make, tokenizer):
    grammars = make()
    a, b = (tokenizer.encode("x" + letter)[-1] for letter in "ab")
    others = [grammars.grammar(SMALL) for _ in range(2 * PROCESSES)]
    for grammar in others:
        grammar.accept(a)
    for _ in range(3):
        with pytest.raises(BadGrammar, match="stack"):
            grammars.grammar(TOO_MUCH["rules that name each other in Lark"])
        for grammar in others:
            grammar.accept(b)
            assert (grammar.mask()[a // 32] >> (a % 32)) & 1 and not grammar.done
    for grammar in others:  # 36 more tokens complete it: all accepted tokens still count
        for _ in range(36):
            assert not grammar.done
            grammar.accept(a)
        assert grammar.done


@pytest.mark.long
def test_a_killed_process_fails_only_its_current_task(make, tokenizer):
    grammars = make()
    a = tokenizer.encode("xa")[-1]
    grammar = grammars.grammar(SMALL)
    for _ in range(39):
        grammar.accept(a)
        assert not grammar.done
        [process] = processes(grammars)
        process.kill()
        process.wait()
    grammar.accept(a)
    assert grammar.done


@posix
def test_accept_never_waits_and_calls_back_when_the_mask_is_there(make):
    grammars = make()
    started = [grammars.grammar(SMALL) for _ in range(PROCESSES)]
    for process in processes(grammars):
        process.send_signal(signal.SIGSTOP)
    grammar = grammars.grammar(Form.of(regex="a{30}"), wait=False)
    called = threading.Event()
    grammar.when_ready(called.set)
    assert not called.is_set() and not grammar.ready
    for process in processes(grammars):
        process.send_signal(signal.SIGCONT)
    assert called.wait(PATIENCE) and grammar.ready and started
    again = threading.Event()
    grammar.when_ready(again.set)
    assert again.is_set()


def test_a_reply_to_an_earlier_token_is_not_taken_for_the_last_ones(make, tokenizer, monkeypatch):
    grammars, [a, b] = make(), [tokenizer.encode(f"x{letter}")[-1] for letter in "ab"]
    grammar = grammars.grammar(Form.of(regex="ab"))
    [helper] = grammars._pool._helpers
    talk, begun, more = helper._talk, threading.Event(), threading.Event()

    def slow(*given):
        begun.set()
        assert more.wait(PATIENCE)
        return talk(*given)

    monkeypatch.setattr(helper, "_talk", slow)
    grammar.accept(a)
    assert begun.wait(PATIENCE)  # the question about the first token is on its way
    grammar.accept(b)
    more.set()
    assert grammar.done


def test_helper_processes_are_few_and_finished_answers_free_them(make):
    grammars = make()
    held = [grammars.grammar(SMALL) for _ in range(3 * PROCESSES)]
    assert len(processes(grammars)) == PROCESSES
    del held
    gc.collect()
    for _ in range(50):
        grammars.grammar(SMALL)
    assert len(processes(grammars)) == PROCESSES
    assert sum(len(helper.sessions) for helper in grammars._pool._helpers) == 0
    until(lambda: sum(len(helper._sent) for helper in grammars._pool._helpers) == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_program_does_not_make_its_helper_processes_large(make):
    # Linux counts our pages as a child's peak, until the child's own exceeds it.
    large = np.ones(max(1, 2 * LARGE - resident()), np.uint8)
    grammars = make()
    started = []
    for _ in range(3):
        grammars.grammar(SMALL)
        started += processes(grammars)
        until(lambda: sum(len(helper._sent) for helper in grammars._pool._helpers) == 0)
        time.sleep(0.1)  # for the answer to "close"
    assert len({*started}) == 1 and large[-1]


@posix
def test_helper_processes_take_no_time_from_the_event_loop(make):
    """Their session is not ours, since Linux divides CPU time among sessions, and their priority is lower."""
    grammars = make()
    grammars.grammar(SMALL)
    for process in processes(grammars):
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)


def test_what_a_library_prints_is_not_taken_for_a_reply():
    program = """if True:
        import os, sys, types
        from rwkv_gpu.text.grammar_worker import main
        library = types.SimpleNamespace(LLParserLimits=lambda **_: os.write(1, b"9" * 99))
        sys.modules["llguidance"] = library
        main(1 << 36)
    """
    message = io.BytesIO()
    write(message, (0.0, "vocabulary", [b"a"], 0, None))
    done = subprocess.run([sys.executable, "-c", program], input=message.getvalue(), capture_output=True, check=True)
    replies = io.BytesIO(done.stdout)
    assert read(replies) == (None, b"", False, False)
    assert not replies.read()


def test_a_closed_pool_has_no_processes_and_refuses_calls(make):
    grammars = make()
    grammar = grammars.grammar(SMALL)
    started = processes(grammars)
    grammars._pool.close()
    until(lambda: all(process.poll() is not None for process in started))
    grammar.accept(5)
    with pytest.raises(BadGrammar, match="closed"):
        grammar.mask()
    with pytest.raises(BadGrammar, match="closed"):
        grammars.grammar(SMALL)


def test_an_unreferenced_pool_ends_its_processes(tokenizer):
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    grammars.grammar(SMALL)
    started = processes(grammars)
    del grammars
    gc.collect()
    until(lambda: all(process.poll() is not None for process in started))


PROGRAM = """
import json, os, sys, time
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.text.grammar import Form, Grammars
from rwkv_gpu.text.tokenizer import load_tokenizer
with GGUFFile.open(sys.argv[1]) as file:
    tokenizer = load_tokenizer(file.metadata)
grammars = Grammars(tokenizer, tokenizer.vocab_size)
grammar = grammars.grammar(Form.of(regex="ab"))
print(json.dumps([helper._process.pid for helper in grammars._pool._helpers]), flush=True)
if sys.argv[2] == "fork":
    if os.fork() == 0:
        sys.exit()
    os.wait()
    assert grammars.grammar(Form.of(regex="ab")).mask().any()
elif sys.argv[2] == "sleep":
    time.sleep(60)
"""


@posix
@pytest.mark.parametrize("end", ["exit", "sleep", "fork"])
def test_no_process_outlives_the_program_that_started_it(end):
    program = [sys.executable, "-W", "error", "-c", PROGRAM, str(golden("tiny-rwkv7.gguf")), end]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pids = json.loads(run.stdout.readline())
        assert pids
        if end == "sleep":
            run.send_signal(signal.SIGKILL)
        _, errors = run.communicate(timeout=PATIENCE)
    assert end == "sleep" or (run.returncode == 0 and errors == "")

    def gone(pid):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        try:
            with open(f"/proc/{pid}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return False

    until(lambda: all(gone(pid) for pid in pids))


def test_schemas_and_grammars_are_read_in_the_helper(make, monkeypatch):
    """Parsing a large one takes seconds, and would block all other threads of the server."""
    for name in ("closed_schema.closed", "gbnf.to_lark", "grammar_worker.closed", "grammar_worker.to_lark"):
        monkeypatch.setattr(f"rwkv_gpu.text.{name}", None)
    for form in (Form.of(schema={"properties": {"a": {"type": "null"}}}), Form.of(grammar='root ::= "a"')):
        assert make().grammar(form).mask().any()
    with pytest.raises(BadGrammar, match="the grammar cannot be read: line 1"):
        make().grammar(Form.of(grammar="root ::= ]"))
