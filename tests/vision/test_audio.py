"""Sounds in chats and over HTTP: through the template to the answer, with a tiny model and its projector."""

import base64
import json
import shutil
from functools import partial

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra `server` is not installed")

from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.transcription import transcription_message
from rwkv_gpu.server.catalogue import ServedModel
from tests.golden.record_images import image
from tests.golden.record_sounds import sound, wav
from tests.golden_files import OWN
from tests.server.serving import serving
from tests.server.test_conversation_files import TYPE
from tests.server.test_conversation_files import form as file_form
from tests.vision.test_chat import TEMPLATE, chat_of, png
from tests.vision.test_server import load

SOUND = wav(sound(5000))
DATA = base64.b64encode(SOUND).decode()
PART = {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}
TEXT = {"type": "text", "text": "hello"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model next to a projector for sounds, and one next to a projector for images."""
    folder = tmp_path_factory.mktemp("audio")
    for name, projector in {"ears": "sound/voxtral", "eyes": "vision/llava"}.items():
        (folder / name).mkdir()
        shutil.copy(OWN / "quiet-llama.gguf", folder / name / "model.gguf")
        shutil.copy(OWN / f"{projector}.gguf", folder / name / "mmproj-model.gguf")
    return folder


@pytest.fixture(scope="module")
def llm(folder):
    with rwkv_gpu.load(folder / "ears" / "model.gguf", device="cpu", context=512) as llm:
        yield llm


def test_forms_of_one_sound_give_one_answer(llm, tmp_path):
    (tmp_path / "a.wav").write_bytes(SOUND)
    samples = np.frombuffer(SOUND[44:], np.int16)
    sources = SOUND, tmp_path / "a.wav", str(tmp_path / "a.wav"), samples, (samples / 32768).astype(np.float32)
    found = {chat_of(llm).send("hello", audio=[source]).tokens for source in sources}
    found.add(chat_of(llm).send("hello", images=[SOUND]).tokens)  # the first bytes of a file tell that it is audio
    url = f"data:audio/wav;base64,{DATA}"
    for part in (PART, {"type": "audio_url", "audio_url": {"url": url}}, {"type": "audio", "audio": SOUND}):
        messages = [{"role": "user", "content": [part, TEXT]}]
        begun = llm.chat(template=TEMPLATE, messages=messages, temperature=0, max_tokens=6)
        found.add(begun.regenerate().wait().tokens)
    assert len(found) == 1


def test_another_sound_gives_other_probabilities(llm):
    def scores(length):
        return [event.logprob for event in chat_of(llm).stream("hello", audio=[sound(length)], logprobs=1)]

    assert scores(5000) == pytest.approx(scores(5000), abs=1e-4)
    assert scores(5000) != pytest.approx(scores(9000), abs=1e-4)


def test_a_later_turn_reuses_the_rows_of_a_sound(llm):
    chat = chat_of(llm)
    first = chat.send("hello", audio=[SOUND])
    assert first.stats.prompt_tokens > 187
    assert chat.send("again").stats.reused_tokens >= first.stats.prompt_tokens - 1


def test_a_saved_chat_continues_even_with_a_model_without_audio(llm, folder, tmp_path):
    chat = chat_of(llm)
    chat.send("hello", audio=[sound(5000)])
    chat.save(tmp_path / "chat")
    expected = chat.send("and?")
    again = llm.load_chat(tmp_path / "chat")
    assert again.messages == chat.messages[:2] and again.media(0) == ["audio"]
    assert again.send("and?").tokens == expected.tokens
    for options in ({}, {"mmproj": False}):
        with rwkv_gpu.load(folder / "eyes" / "model.gguf", device="cpu", context=512, **options) as deaf:
            other = deaf.load_chat(tmp_path / "chat")
            assert other.images == 1 and other.send("and?").text
            other.save(tmp_path / "other")
        assert llm.load_chat(tmp_path / "other").messages[:2] == chat.messages[:2]


def test_sounds_need_a_model_with_audio_and_images_one_with_vision(llm, folder):
    with pytest.raises(BadInput, match="takes no images"):
        chat_of(llm).send("hello", images=[image(40, 24)])
    eyes = rwkv_gpu.load(folder / "eyes" / "model.gguf", device="cpu", context=512)
    with eyes, pytest.raises(BadInput, match="takes no audio"):
        chat_of(eyes).send("hello", audio=[SOUND])
    with pytest.raises(BadInput, match="makes rows of"):
        rwkv_gpu.load(OWN / "tiny-gemma3.gguf", device="cpu", mmproj=OWN / "sound" / "voxtral.gguf")


@pytest.fixture(scope="module")
def server(folder):
    model = ServedModel("ears", str(folder / "ears" / "model.gguf"))
    with serving(model, load=partial(load, context=512), log_prompts=True) as served:
        yield served


def asked(part):
    return {"messages": [{"role": "user", "content": [part, TEXT]}], "temperature": 0, "max_tokens": 6}


def test_the_forms_of_all_apis_give_one_answer(server):
    answer = server.post("/v1/chat/completions", asked(PART))["choices"][0]["message"]["content"]
    assert answer
    marker = server.get("/props")["media_marker"]
    text = f"user: {marker}hello\nassistant:"
    prompt = {"prompt_string": text, "multimodal_data": [DATA]}
    found = server.post("/completion", {"prompt": prompt, "temperature": 0, "n_predict": 6})["content"]
    assert found.strip() == answer.strip()


def test_models_and_props_list_audio(server):
    assert server.get("/props")["modalities"] == {"vision": False, "audio": True}
    assert server.get("/v1/models")["data"][0]["architecture"]["input_modalities"] == ["text", "audio"]
    assert "audio" in server.post("/api/show", {"model": "ears"})["capabilities"]


def test_each_bad_sound_gets_a_400(server):
    silent = base64.b64encode(wav(np.zeros(16000))).decode()
    for data, reason in (
        (silent, "silent"),
        ("UklGRg==", "cannot be read"),
        ("?", "base64"),
        (None, "no image or audio"),
    ):
        part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        status, _, reply = server.request("POST", "/v1/chat/completions", asked(part))
        assert status == 400 and reason in reply["error"]["message"], reply
    url = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(png(image(9, 9))).decode()},
    }
    status, _, reply = server.request("POST", "/v1/chat/completions", asked(url))
    assert status == 400 and "takes no images" in reply["error"]["message"]


def test_a_conversation_file_of_the_page_has_the_sound_as_it_was_sent(server):
    part = {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{DATA}"}}
    messages = [{"role": "user", "content": [part, TEXT]}, {"role": "assistant", "content": "b"}]
    data = server.post("/v1/conversation-files/write", {"branches": [{"messages": messages}], "current": 0})
    status, _, found = server.request("POST", "/v1/conversation-files/read", file_form(file=data), content_type=TYPE)
    assert status == 200 and found["branches"][0]["messages"] == messages


def form(file=SOUND, **fields):
    """The body of a form, and its content type."""
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{text}'.encode() for name, text in fields.items()]
    if file is not None:
        parts.append(b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + file)
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + b"--b--\r\n"


def posted(server, file=SOUND, path="/v1/audio/transcriptions", **fields):
    headers = {"content-type": "multipart/form-data; boundary=b"}
    return server.request("POST", path, form(file, max_tokens="6", **fields), **headers)


def test_a_transcription_is_the_answer_to_a_question_about_the_sound(server, llm):
    text = {"type": "text", "text": "Transcribe audio to text (language: en)"}
    asked = {"messages": [{"role": "user", "content": [text, PART]}], "temperature": 0, "max_tokens": 6}
    answer = server.post("/v1/chat/completions", asked)["choices"][0]["message"]["content"].strip()
    for path in ("/v1/audio/transcriptions", "/audio/transcriptions"):
        status, _, reply = posted(server, path=path, language="en", model="ears")
        assert (status, reply["text"]) == (200, answer)
    assert reply["usage"]["output_tokens"] == 6 and reply["usage"]["input_tokens"] > 187
    _, _, reply = posted(server, language="en", response_format="verbose_json")
    assert (reply["text"], reply["duration"], reply["language"]) == (answer, 0.312, "en")
    _, headers, raw = posted(server, language="en", response_format="text")
    assert raw.decode() == answer + "\n" and headers["content-type"].startswith("text/plain")
    _, _, raw = posted(server, language="en", stream="true", temperature="0")
    events = [json.loads(line[6:]) for line in raw.decode().split("\n") if line.startswith("data: {")]
    assert "".join(one.get("delta", "") for one in events).strip() == events[-1]["text"] == answer
    settings = {"language": "en", "max_tokens": 6}
    llm.__dict__["chat_format"] = llm.chat_format_of(TEMPLATE)
    assert llm.transcribe(SOUND, **settings).text.strip() == answer
    assert posted(server, language="en", prompt="hello")[2]["text"] != answer


def test_each_bad_transcription_request_gets_a_400(server):
    bad = [
        ({"file": None}, "file is missing"), ({"file": wav(np.zeros(16000))}, "silent"), ({"file": b"a"}, "as audio"),
        ({"response_format": "srt"}, "response_format"), ({"temperature": "warm"}, "temperature"),
        ({"stream": "1"}, "stream"), ({"timestamp_granularities[]": "word"}, "no times"),
        ({"seed": "[" * 4000}, "seed"),
    ]  # fmt: skip
    for fields, reason in bad:
        status, _, reply = posted(server, **fields)
        assert status == 400 and reason in reply["error"]["message"], (fields, reply)
    assert posted(server, model="other")[0] == 404


def test_the_command_prints_the_transcription(folder, tmp_path, llm):
    (tmp_path / "a.wav").write_bytes(SOUND)
    options = ["--device", "cpu", "--context", "512", "-n", "6", "--template", "chatml"]
    ended = CliRunner().invoke(
        cli, ["transcribe", str(folder / "ears" / "model.gguf"), str(tmp_path / "a.wav"), *options]
    )
    message = transcription_message(SOUND)
    expected = llm.chat(template="chatml", messages=[message]).regenerate(temperature=0, max_tokens=6).wait().text
    assert ended.exit_code == 0 and ended.stdout.strip() == expected.strip(), ended.output
    assert "0.3 s of audio" in ended.stderr
    (tmp_path / "a.wav").write_bytes(SOUND[:20])
    ended = CliRunner().invoke(
        cli, ["transcribe", str(folder / "ears" / "model.gguf"), str(tmp_path / "a.wav"), *options]
    )
    assert ended.exit_code == 2 and ended.stderr.count("\n") == 1 and "cannot be read" in ended.stderr


def test_generate_takes_audio(folder, tmp_path):
    (tmp_path / "a.wav").write_bytes(SOUND)
    options = ["--device", "cpu", "--context", "512", "-n", "6", "--template", "chatml", "--json"]
    given = [
        "generate",
        str(folder / "ears" / "model.gguf"),
        "--chat",
        "-p",
        "hello",
        "--audio",
        str(tmp_path / "a.wav"),
    ]
    ended = CliRunner().invoke(cli, [*given, *options])
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["prompt_tokens"] > 187
