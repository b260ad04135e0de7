"""Decoding of sounds: formats, resampling, limits, and bad files."""

import io
import struct

import numpy as np
import pytest
import soundfile

from rwkv_gpu.errors import BadInput
from rwkv_gpu.vision import samples as module
from rwkv_gpu.vision.samples import encoded, medium_of, recording_of
from tests.golden.record_sounds import at_rates, sound, wav
from tests.golden_files import OWN


def test_resampled_sounds_equal_those_of_llama_cpp(monkeypatch):
    record = np.load(OWN / "sound" / "resampled.npz")
    for block in (module.BLOCK, 1000):  # results do not depend on where blocks end
        monkeypatch.setattr(module, "BLOCK", block)
        for name, data in at_rates():
            assert np.abs(recording_of(data).samples[::64] - record[name]).max() < 1e-6, (name, block)


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
def test_every_format_is_recognised_and_decoded(form, tmp_path):
    data, wave = io.BytesIO(), sound(16000)
    soundfile.write(data, wave, 16000, format=form)
    (tmp_path / "a").write_bytes(data.getvalue())
    for source in (data.getvalue(), tmp_path / "a"):
        found = medium_of(source).samples
        assert abs(len(found) - len(wave)) < 2000
        assert np.corrcoef(found[: len(wave)], wave[: len(found)])[0, 1] > 0.9
    kept = recording_of(wave)
    assert recording_of(encoded(kept)).digest == kept.digest


def floats(values):
    data = io.BytesIO()
    soundfile.write(data, np.asarray(values, np.float32), 16000, "FLOAT", format="WAV")
    return data.getvalue()


def many_seconds():
    """A WAV file whose header gives more samples than the file has."""
    data = bytearray(wav(sound(1000)))
    data[40:44] = struct.pack("<I", 0xFFFFFFF0)
    return bytes(data)


BAD = {
    "NaN samples": (lambda: floats([0.1, np.nan] * 500), "not finite numbers"),
    "infinite samples": (lambda: floats([0.1, np.inf] * 500), "not finite numbers"),
    "loud samples": (lambda: floats([1e30] * 500), "scale them"),
    "silence": (lambda: wav(np.zeros(16000)), "silent"),
    "no samples": (lambda: wav(np.zeros(0)), "no samples"),
    "no sound": (lambda: b"RIFF....WAVE" + b"x" * 100, "cannot be read as audio"),
    "half a file": (lambda: floats(sound(1000))[:30], "cannot be read as audio"),
    "an array of another form": (lambda: np.zeros((4, 2), np.float32), "mono at 16,000 Hz"),
    "another type": (lambda: 7, "type int"),
}


def test_bad_sounds_are_refused_in_one_sentence():
    for name, (make, reason) in BAD.items():
        with pytest.raises(BadInput, match=reason) as caught:
            recording_of(make())
        assert "\n" not in str(caught.value), name


def test_a_file_with_fewer_samples_than_its_header_gives_is_decoded_to_its_end():
    assert len(recording_of(many_seconds()).samples) == 1000


def test_hours_of_audio_are_refused_before_all_of_it_is_decoded(monkeypatch):
    monkeypatch.setattr(module, "MAX_SECONDS", 120)
    monkeypatch.setattr(module, "BLOCK", 16000)
    reads, read = [], soundfile.SoundFile.read
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda file, *a, **k: reads.append(1) or read(file, *a, **k))
    data = io.BytesIO()
    soundfile.write(data, np.tile(sound(16000), 600), 16000, format="FLAC")
    with pytest.raises(BadInput, match="longer than 2 minutes"):
        recording_of(data.getvalue(), "the audio")
    assert len(reads) == 121


def test_all_channels_count_and_filters_of_many_rates_are_not_kept(monkeypatch):
    monkeypatch.setattr(module, "MAX_NUMBERS", 8000)
    data = io.BytesIO()
    soundfile.write(data, np.full((1001, 8), 0.5), 16000, format="WAV")
    with pytest.raises(BadInput, match="more than 8,000 samples"):
        recording_of(data.getvalue())
    for rate in range(20_000, 20_100):
        module._response(16000, rate)
    assert module._response.cache_info().currsize <= 64


def test_the_error_names_soundfile_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    with pytest.raises(module.MissingExtra, match="media"):
        recording_of(wav(sound(1000)))
