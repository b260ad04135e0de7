"""Transcription by a chat model: the message that asks for the text of a sound."""

from typing import Any

QUESTION = "Transcribe audio to text"  # the question that llama-server asks


def transcription_message(audio: Any, prompt: str = "", language: str = "") -> dict[str, Any]:
    """A user's message that asks for the text of a sound: a path, bytes, samples or a recording."""
    text = (prompt or QUESTION) + (f" (language: {language})" if language else "")
    return {"role": "user", "content": [{"type": "text", "text": text}, {"type": "audio", "audio": audio}]}
