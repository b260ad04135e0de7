"""Log-mel spectrograms of sounds, equal to those of llama.cpp."""

from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
RATE = 16000  # samples per second
WINDOW, HOP = 400, 160  # samples of a frame, and samples from one frame to the next
HALF = WINDOW // 2
FFT = 512  # samples that are transformed in a Conformer's spectrogram
CHUNK = 3000  # frames that a tower reads at once: 30 seconds
AT_ONCE = 1 << 12  # frames that are transformed at once
FLOOR = 2.0**-24  # minimum power
RANGE = 8.0  # powers of ten from the loudest to the quietest value


@cache
def filters(mels: int, size: int = WINDOW, *, htk: bool = False) -> Floats:
    """Mel filters: triangles with an area of 1 on Slaney's scale, or of height 1 on HTK's. [mels, size / 2 + 1]"""
    step = np.log(6.4) / 27
    if htk:
        hertz = 700 * (10 ** np.linspace(0, np.log10(1 + RATE / 2 / 700), mels + 2) - 1)
    else:
        linear = np.linspace(0, 15 + np.log(RATE / 2 / 1000) / step, mels + 2)
        hertz = np.where(linear < 15, linear * 200 / 3, 1000 * np.exp((linear - 15) * step))
    low, centre, high = hertz[:-2, None], hertz[1:-1, None], hertz[2:, None]
    at = np.arange(size // 2 + 1) * (RATE / size)
    rising, falling = (at - low) / (centre - low), (high - at) / (high - centre)
    heights = np.clip(np.minimum(rising, falling), 0, None)
    found: Floats = (heights if htk else heights * (2 / (high - low))).astype(np.float32)
    return found


def hann(size: int) -> Floats:
    """A periodic Hann window."""
    found: Floats = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)).astype(np.float32)
    return found


def log_mel(samples: Floats, mels: int) -> list[Floats]:
    """The spectrogram in chunks of 30 seconds, padded with silence. [mels, CHUNK] each"""
    samples = np.pad(samples, (0, max(0, HALF + 1 - len(samples))))
    chunks = len(samples) // HOP // CHUNK + 1  # 30 seconds of silence are added; an incomplete last chunk is dropped
    silence = np.zeros(max(0, chunks * CHUNK * HOP + HALF - len(samples)), np.float32)
    found = _log_mel(np.concatenate([samples[HALF:0:-1], samples, silence]), mels, chunks * CHUNK)
    return [found[:, first : first + CHUNK] for first in range(0, chunks * CHUNK, CHUNK)]


def whole_log_mel(samples: Floats, mels: int) -> Floats:
    """The spectrogram of a sound that is padded by reflection, without silence. [mels, frames]"""
    begun = np.pad(samples, (0, max(0, HALF + 1 - len(samples))))[HALF:0:-1]
    ended = np.pad(samples, (max(0, HALF + 1 - len(samples)), 0))[-2 : -HALF - 2 : -1]
    return _log_mel(np.concatenate([begun, samples, ended]), mels, len(samples) // HOP + 1)


def _log_mel(padded: Floats, mels: int, count: int) -> Floats:
    """The spectrogram of padded samples; no value is more than `RANGE` below the loudest. [mels, count]"""
    found = np.full((mels, count), FLOOR, np.float32)
    energies(padded, hann(WINDOW), filters(mels), found)
    np.log10(np.maximum(found, FLOOR), out=found)
    np.maximum(found, found.max() - np.float32(RANGE), out=found)
    found += 4
    found /= 4
    return found


def energies(padded: Floats, window: Floats, bank: Floats, into: Floats, *, magnitude: bool = False) -> None:
    """The power (or magnitude) of frames in each mel filter, written to [mels, count]"""
    frames = np.lib.stride_tricks.sliding_window_view(padded, len(window))[::HOP][: into.shape[1]]
    for first in range(0, len(frames), AT_ONCE):
        spectrum = np.fft.rfft(frames[first : first + AT_ONCE] * window)
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        into[:, first : first + AT_ONCE] = bank @ (np.sqrt(power) if magnitude else power).T


def loud_mel(samples: Floats, mels: int) -> Floats:
    """Gemma 4's spectrogram: logarithms of magnitudes, of frames of 20 ms. [mels, frames]"""
    window = np.pad(hann(2 * HOP), (0, FFT - 2 * HOP))
    found = np.empty((mels, 1 + max(0, len(samples) - HOP - 1) // HOP), np.float32)
    padded = np.pad(samples, (HOP, max(0, found.shape[1] * HOP + FFT - len(samples))))
    energies(padded, window, filters(mels, FFT, htk=True), found, magnitude=True)
    return np.log(np.maximum(found, np.float32(1e-3)))


def even_mel(samples: Floats, mels: int) -> Floats:
    """LFM2's spectrogram: logarithms of power. Each band has a mean of 0 and a deviation of 1. [mels, frames]"""
    found, count = _sharp_mel(samples, hann(WINDOW), filters(mels, FFT))
    np.log(np.maximum(found, FLOOR), out=found)
    whole = found[:, :count].astype(np.float64)
    deviations = np.sqrt(whole.var(axis=1, ddof=1, keepdims=True) + 1e-5)
    found[:, :count] = (whole - whole.mean(axis=1, keepdims=True)) / deviations
    found[:, count:] = 0
    return found


def scaled_mel(samples: Floats, mels: int, bank: Floats, window: Floats) -> Floats:  # noqa: ARG001 - the bank has them
    """Parakeet's spectrogram, with filters and window of its file. An incomplete last frame is kept. [mels, frames]"""
    found, count = _sharp_mel(samples, window, bank)
    logs = np.log(found.astype(np.float64) + FLOOR)
    whole = logs[:, :count]
    found[:] = (logs - whole.mean(axis=1, keepdims=True)) / (whole.std(axis=1, ddof=1, keepdims=True) + 1e-5)
    return found


def _sharp_mel(samples: Floats, window: Floats, bank: Floats) -> tuple[Floats, int]:
    """The power of frames after a filter that raises high frequencies, and the number of complete frames."""
    samples = np.pad(samples, (0, max(0, 2 * HOP - len(samples))))
    sharp = np.concatenate([samples[:1], samples[1:] - np.float32(0.97) * samples[:-1]])
    found = np.empty((len(bank), len(samples) // HOP + 1), np.float32)
    energies(np.pad(sharp, FFT // 2), np.pad(window, (FFT - WINDOW) // 2), bank, found)
    return found, len(samples) // HOP


def as_rows(mel: Floats) -> tuple[Floats, Floats]:
    """The even frames and the odd ones, each joined with both of its neighbours. [CHUNK / 2, mels · 3] each"""
    near = np.lib.stride_tricks.sliding_window_view(np.pad(mel, ((0, 0), (1, 1))), 3, axis=1)  # [mels, CHUNK, 3]
    rows = near.transpose(1, 0, 2).reshape(mel.shape[1], -1)
    return np.ascontiguousarray(rows[::2]), np.ascontiguousarray(rows[1::2])
