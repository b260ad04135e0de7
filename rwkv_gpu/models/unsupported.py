"""Architectures of llama.cpp or Ollama that this package does not support, with what each would need."""

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.cursor import shown
from ..gguf.file import GGUFFile

SOUND = "a decoder of sound, and this program generates text"
OF_OLLAMA = "gptoss", "qwen25vl", "mllama", "deepseekocr", "glmocr", "glm4moelite", "olmo3", "nemotron_h_omni"
OTHER_FILE = "a file by llama.cpp's converter, and Ollama's wrote this one; pull the model from the Hugging Face hub"

MISSING: dict[str, tuple[str, ...]] = {
    "gptj": ("names of its tensors, which no converter defines",),
    **dict.fromkeys(OF_OLLAMA, (OTHER_FILE,)),
    **dict.fromkeys(("pockettts", "qwen3tts", "wavtokenizer-dec"), (SOUND,)),
}


def refusal(file: GGUFFile, name: str, known: list[str]) -> UnsupportedModel:
    """The error for a file of an unsupported architecture."""
    parts = MISSING.get(name)
    why = f"it needs {', '.join(parts)}" if parts else "it is not known here"
    return UnsupportedModel(
        f"{file.path}: architecture {shown(name)} is not supported: {why}; supported are {', '.join(known)}"
    )
