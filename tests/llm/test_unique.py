"""Ids are unique in all threads and processes, even if a program sets the random seed."""

import os
import random
import subprocess
import sys

import pytest

from rwkv_gpu.llm.unique import unique


def test_ids_are_unique_where_a_program_seeds_its_random_numbers():
    found = set()
    for _ in range(1000):
        random.seed(0)
        found.add(unique())
    assert len(found) == 1000
    assert {len(one) for one in found} == {32}


FORKS = """
import os
from rwkv_gpu.llm.unique import unique
child = os.fork()
if child:
    os.waitpid(child, 0)  # otherwise both would write into each other's line
print(unique(), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork")
def test_a_forked_process_has_other_ids():
    done = subprocess.run([sys.executable, "-c", FORKS], check=True, capture_output=True, text=True)
    first, second = done.stdout.split()
    assert first != second
