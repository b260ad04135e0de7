"""Every model family once on one device: a prompt, then a few tokens.

    python -m benchmarks.offline.every_model DEVICE

The models are those of the tests, with random weights. Nothing is compared: `validate` watches what the GPU is given.
"""

import sys

import rwkv_gpu

from .variants import MODELS


def main(device: str) -> None:
    files = sorted(MODELS.glob("tiny-*.gguf"))
    for number, path in enumerate(files, 1):
        with rwkv_gpu.load(path, device=device, context=64) as llm:
            llm.generate(list(range(3, 23)), max_tokens=3)
        print(f"{number} of {len(files)}: {path.stem}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
