"""Opens every bad file in a folder, and prints the CPU time and memory of each refusal as JSON.

test_bad_files.py runs it as a process.
"""

import json
import resource
import sys
import time
from pathlib import Path

from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.gguf.file import GGUFFile
from tests.gguf.corpus import BAD, GOOD

UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes


def megabytes() -> float:
    """Returns the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT / 2**20


def main(folder: Path) -> None:
    good = folder / "good.gguf"
    good.write_bytes(GOOD)
    GGUFFile.open(good).close()
    measured = []
    for i, bad in enumerate(BAD):
        place = folder / str(i)
        place.mkdir()
        path = bad.put(place)
        before, start = megabytes(), time.process_time()
        try:
            GGUFFile.open(path).close()
        except RwkvGpuError:
            measured.append((bad.name, time.process_time() - start, megabytes() - before))
    print(json.dumps(measured))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
