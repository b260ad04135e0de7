"""Reads a hundred thousand damaged values of a store: each is computed again, or was not changed by the damage.

make store-mutants

Values of a state and of a list of lengths are flipped, cut, extended, shuffled, moved to other keys, and replaced by
valid ones of another tenant, secret or layout. `find` must return nothing, or exactly the stored state. From time to
time, a chat continues with a damaged store: its answers must equal those without a store.
"""

import sys
import time
from pathlib import Path
from random import Random

import numpy as np

import rwkv_gpu
from rwkv_gpu.engine.cache.prefix_index import TOKEN, key_of
from rwkv_gpu.llm.stored_states import StoredStates
from rwkv_gpu.stores import MemoryStore
from rwkv_gpu.stores.sealed import SealedStore
from tests.golden_files import OWN

KEY = b"a key that nobody guesses"
MODELS = [OWN / f"{name}.gguf" for name in ("quiet-rwkv7", "tiny-llama")]
QUESTION = "Here is a question that is long enough to be stored, and asked of a model that knows nothing. " * 3
SETTINGS = {"max_tokens": 6, "temperature": 0}
TURN = 500  # mutants between two turns of a chat


def mutant(value: bytes, others: list[bytes], random: Random) -> bytes:
    """Returns a damaged value, or one that belongs elsewhere."""
    made = bytearray(value)
    match random.randrange(8):
        case 0:
            for _ in range(random.choice((1, 1, 2, 50))):
                made[random.randrange(len(made))] ^= 1 << random.randrange(8)
        case 1:
            del made[random.randrange(len(made)) :]
        case 2:
            at = random.randrange(len(made))
            made[at:at] = random.randbytes(random.choice((1, 4, 1000)))
        case 3:
            at, to = sorted(random.sample(range(len(made)), 2))
            made[at:to] = made[at:to][::-1]
        case 4:
            at, to = sorted(random.sample(range(len(made)), 2))
            del made[at:to]
        case 5:
            made[: len(made) // 2] = made[len(made) // 2 :]
        case 6:
            made = bytearray(random.randbytes(random.randrange(200)))
        case _:
            return random.choice(others)
    return bytes(made)


def foreign_values(states: StoredStates, llm: rwkv_gpu.LLM, ids: list[int]) -> list[bytes]:
    """Returns genuine values for the same ids, of another tenant, another secret and another layout."""
    store = MemoryStore()
    array = {"x": np.ones(8, np.float32)}
    for secret, tenant, layout in ((KEY, "b", states._layout), (KEY + b"!", "", states._layout), (KEY, "", "another")):
        other = StoredStates(SealedStore(store, secret), llm.model_file, layout, tenant)
        other.write(key_of(ids), array)
        other.close()
    return values_of(store)


def values_of(store: MemoryStore) -> list[bytes]:
    return [value for _, _, value in store._values._values.values()]


def run(path: Path, count: int, random: Random) -> int:
    """Tries mutants with a model. Returns the number of states found in undamaged values."""
    plain = MemoryStore()
    with rwkv_gpu.load(path, device="cpu", sequences=1, store=plain, store_key=KEY) as llm:
        llm.chat_format = llm.chat_format_of("chatml")
        states, exchange = llm.states, llm._driver._exchange
        assert states is not None and exchange is not None
        states.rule.pays = lambda *_: True  # type: ignore[method-assign]
        states.rule.least = 30.0
        messages = [{"role": "user", "content": QUESTION}]
        answer = llm.create_chat_completion(messages, **SETTINGS)["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
        llm._driver.call(lambda _: None)  # there, the turn has ended, too
        states.flush(time.monotonic() + 60)
        key, lengths = exchange._ended[-1]
        ids = np.frombuffer(key, ">u8").tolist()
        genuine = {key: value for key, (_, _, value) in plain._values._values.items()}
        whole = [states.find([*ids[:length], 0]) for length in lengths]
        true = {len(one[0]) // TOKEN: one[1] for one in whole if one is not None}
        assert len(true) == 2
        others = [*genuine.values(), *foreign_values(states, llm, ids)]
        states.keep = lambda *_: None  # type: ignore[method-assign]
        expected = llm.create_chat_completion(messages, **SETTINGS)["choices"]
        found = 0
        for number in range(count):
            key = random.choice([*genuine])
            plain.put(key, mutant(genuine[key], others, random))
            got = states.find([*ids, 0])
            if got is not None:
                length = len(got[0]) // TOKEN
                assert got[0] == key_of(ids[:length]), f"another text by mutant {number}"
                assert got[1].keys() == true[length].keys(), f"another state by mutant {number}"
                assert all(np.array_equal(got[1][name], true[length][name]) for name in got[1])
                found += 1
            if number % TURN == 0:
                llm._driver.call(lambda engine: engine.prefixes.clear())
                assert llm.create_chat_completion(messages, **SETTINGS)["choices"] == expected
            plain.put(key, genuine[key])
        assert states.counts.failures == 0
        return found


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    for path in MODELS:
        found = run(path, count // len(MODELS), Random(11))
        print(
            f"{path.stem}: {count // len(MODELS):,} mutants, no error, no other text; {found:,} times a state was left"
        )


if __name__ == "__main__":
    main()
