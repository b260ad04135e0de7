"""Decodes audio files within limits, by soundfile, and resamples them as llama.cpp does.

Both are slow, so they run on the caller's thread, never on an engine's.
"""

import hashlib
import io
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput, MissingExtra
from .mel import RATE
from .pixels import HELP as PICTURES
from .pixels import MAX_BYTES, Picture, picture_of, read_file
from .pixels import encoded as encoded_picture
from .sizes import Size

Floats = npt.NDArray[np.float32]
Source = str | os.PathLike[str] | bytes | Any  # a path, the bytes of a file, or mono samples at 16 kHz
MAX_SECONDS = 2400
MAX_CHANNELS = 32
MAX_NUMBERS = MAX_SECONDS * 96_000  # of all channels
RATES = 4000, 384_000
LOUDEST = 1000.0  # magnitude of a sample; full scale is 1
FORMATS = "WAV", "WAVEX", "RF64", "W64", "FLAC", "MP3", "OGG", "AIFF", "AU"
HELP = "take a WAV, FLAC, MP3 or OGG file"
# The first bytes of audio files.
SOUND = re.compile(rb"(?:RIFF|RF64)....WAVE|riff|fLaC|OggS|ID3|\xff[\xe2-\xff]|FORM....AIF|\.snd", re.DOTALL)
BLOCK = 1 << 17  # frames that are decoded at once
TAPS = 1024  # length of the filter
ORDER = 4


@dataclass(frozen=True, eq=False)
class Recording:
    """A decoded sound: mono samples at 16 kHz, and their digest."""

    samples: Floats
    digest: bytes
    file: bytes | None = None  # the encoded file, if there was one

    @property
    def size(self) -> Size:
        """The number of samples as the size of an image of one row, because saved chats count pixels."""
        return Size(len(self.samples), 1)

    @property
    def seconds(self) -> float:
        """The length of the sound in seconds."""
        return len(self.samples) / RATE


def recording_of(source: Source, where: str = "the audio") -> Recording:
    """Decodes a sound. Raises BadInput with one sentence."""
    if isinstance(source, Recording):
        return source
    if isinstance(source, str | os.PathLike):
        source, where = read_file(source, HELP), str(source)
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
        return _recording(_decoded(data, where), where, data)
    if not isinstance(source, np.ndarray):
        raise BadInput(f"{where} is of type {type(source).__name__}; give a path, bytes or an array")
    if source.ndim != 1 or source.dtype not in (np.float32, np.float64, np.int16):
        shape = f"{list(source.shape)} of {source.dtype}"
        raise BadInput(f"{where} is an array {shape}; it must be [samples] of float32 or int16, mono at {RATE:,} Hz")
    _check_length(len(source) / RATE, where)
    full = np.float32(32768 if source.dtype == np.int16 else 1)
    return _recording(source.astype(np.float32) / full, where)


def medium_of(source: Any, where: str = "the file") -> Picture | Recording:
    """Decodes an image or a sound. Bytes and files are a sound if they begin as audio files do."""
    if isinstance(source, str | os.PathLike):
        source, where = read_file(source, f"{PICTURES}, or {HELP}"), str(source)
    is_sound = isinstance(source, bytes | bytearray | memoryview) and SOUND.match(source)
    return recording_of(source, where) if is_sound or isinstance(source, Recording) else picture_of(source, where)


def encoded(medium: Picture | Recording) -> bytes:
    """The bytes of a file for an image or a sound: its original file, or else a PNG or a WAV file of floats."""
    if isinstance(medium, Picture):
        return encoded_picture(medium)
    if medium.file is not None:
        return medium.file
    data = io.BytesIO()
    _soundfile().write(data, medium.samples, RATE, "FLOAT", format="WAV")
    return data.getvalue()


def _recording(samples: Floats, where: str, file: bytes | None = None) -> Recording:
    _check_length(len(samples) / RATE, where)
    if not np.isfinite(samples).all():
        raise BadInput(f"{where} has samples that are not finite numbers; record or convert it again")
    loudest = float(np.abs(samples).max(initial=0))
    if not loudest:
        raise BadInput(f"{where} is silent: all of its samples are 0; check the recording")
    if loudest > LOUDEST:
        raise BadInput(f"{where} has samples of up to {loudest:,.0f}; scale them to -1 .. 1")
    samples = np.ascontiguousarray(samples)
    return Recording(samples, hashlib.sha256(samples.data).digest(), file)


def _check_length(seconds: float, where: str) -> None:
    if seconds > MAX_SECONDS:
        raise BadInput(f"{where} is longer than {MAX_SECONDS // 60} minutes, the limit; cut it into parts")
    if seconds <= 0:
        raise BadInput(f"{where} has no samples; {HELP}")


def _soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: the C library is missing
        raise MissingExtra.of("audio needs soundfile", "media") from None
    return soundfile


def _decoded(data: bytes, where: str) -> Floats:
    """The samples of an encoded sound. Its length is checked before and during decoding."""
    soundfile = _soundfile()
    if len(data) > MAX_BYTES:
        raise BadInput(f"{where} has more than {MAX_BYTES >> 20} MiB; make it smaller")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format not in FORMATS:
                raise BadInput(f"{where} has the format {file.format}; {HELP}")
            rate, channels = file.samplerate, file.channels
            if not RATES[0] <= rate <= RATES[1] or not 1 <= channels <= MAX_CHANNELS:
                raise BadInput(f"{where} has {channels} channels at {rate:,} Hz; convert it to mono at {RATE:,} Hz")
            return resampled(_blocks(file, where), rate)
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001  decoders of broken files raise anything; the reason is in the sentence
        reason = str(getattr(error, "error_string", error)).rstrip(". ") or type(error).__name__
        raise BadInput(f"{where} cannot be read as audio ({reason}); {HELP}") from None


def _blocks(file: Any, where: str) -> Iterator[Floats]:
    """The samples of a file as mono, in blocks."""
    frames = 0
    while True:
        block = file.read(BLOCK, dtype="float32", always_2d=True)
        frames += len(block)
        _check_length(frames / file.samplerate, where)
        if frames * file.channels > MAX_NUMBERS:
            raise BadInput(f"{where} has more than {MAX_NUMBERS:,} samples; convert it to mono at {RATE:,} Hz")
        if not len(block):
            return
        yield block.mean(axis=1, dtype=np.float32)


def resampled(blocks: Iterator[Floats], rate: int) -> Floats:
    """Samples at 16 kHz. A filter removes frequencies above half of the lower rate; interpolation is linear."""
    if rate == RATE:
        return np.concatenate([np.zeros(0, np.float32), *blocks])
    if rate > RATE:
        return np.concatenate([np.zeros(0, np.float32), *_interpolated(_filtered(blocks, RATE, rate), rate)])
    return np.concatenate([np.zeros(0, np.float32), *_filtered(_interpolated(blocks, rate), rate, RATE)])


def _interpolated(blocks: Iterator[Floats], rate: int) -> Iterator[Floats]:
    """Sample n of the result is at n · rate / RATE of the input, which begins with one sample of silence."""
    last, first, number = np.zeros(1, np.float32), 0, 0
    for block in blocks:
        padded = np.concatenate([last, block])  # begins with sample `first`
        end = -(-(first + len(block)) * RATE // rate)
        at, part = np.divmod(np.arange(number, end, dtype=np.int64) * rate, RATE)
        at -= first
        yield padded[at] + (padded[at + 1] - padded[at]) * (part / RATE).astype(np.float32)
        last, first, number = padded[-1:], first + len(block), end


def _filtered(blocks: Iterator[Floats], low: int, rate: int) -> Iterator[Floats]:
    """The blocks without frequencies above half of the rate `low`."""
    response = _response(low, rate)
    before = np.zeros(TAPS - 1, np.float32)
    for block in blocks:
        padded = np.concatenate([before, block])
        size = 1 << (len(padded) + TAPS).bit_length()
        product = np.fft.irfft(np.fft.rfft(padded, size) * np.fft.rfft(response, size), size)
        yield product[TAPS - 1 : len(padded)].astype(np.float32)
        before = padded[len(padded) - TAPS + 1 :]


@lru_cache(64)  # files may have any rate
def _response(low: int, rate: int) -> npt.NDArray[np.float64]:
    """The impulse response of a Butterworth low-pass filter, computed in sections of two poles."""
    values = [1.0] + [0.0] * (TAPS - 1)
    turn = math.pi * low / rate
    for section in range(ORDER // 2):
        alpha = math.sin(turn) * math.cos((1 + 2 * section) * math.pi / (2 * ORDER))
        gain, back = (1 - math.cos(turn)) / 2, (2 * math.cos(turn) / (1 + alpha), (alpha - 1) / (1 + alpha))
        made: list[float] = []
        for n, x in enumerate(values):
            ahead = gain * (x + 2 * (values[n - 1] if n else 0.0) + (values[n - 2] if n > 1 else 0.0)) / (1 + alpha)
            made.append(ahead + sum(b * made[n - i] for i, b in enumerate(back, 1) if n >= i))
        values = made
    return np.array(values)
