"""Pictures as users send them: files that are small and take much to decode, and pixels of every kind."""

import hashlib
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from rwkv_gpu.errors import BadInput
from rwkv_gpu.vision import pixels as module
from rwkv_gpu.vision.pixels import picture_of


def encoded(image, form="PNG", **options):
    data = io.BytesIO()
    image.save(data, form, **options)
    return data.getvalue()


def tiled(side):
    """A TIFF file of 10 x 10 pixels in one tile of another size."""
    data = zlib.compress(bytes(side * side))
    tags = {256: 10, 257: 10, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side, 324: 0, 325: len(data)}
    tags[324] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + data


def with_scans(count):
    """A JPEG file with this many further scans."""
    data = encoded(Image.new("L", (16, 16)), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + count * last + data[-2:]


def closed():
    image = Image.new("RGB", (4, 4))
    image.close()
    return image


def truncated():
    return Image.open(io.BytesIO(encoded(Image.new("RGB", (64, 64)))[:-30]))


def bomb():
    """A small PNG file that says that it has 40,000 x 40,000 pixels."""
    data = encoded(Image.new("L", (4, 4)))
    head = b"IHDR" + struct.pack(">II", 40_000, 40_000) + data[24:29]
    return data[:12] + head + struct.pack(">I", zlib.crc32(head)) + data[33:]


BAD = {
    "far too many pixels": (bomb, "the image has far too many pixels; the limit is 16,384 on a side"),
    "a web address": (lambda: "https://example.com/a.png", "is not a file; download it first"),
    "a large tile": (lambda: tiled(17_000), "a tile of the file has 17,000 x 17,000 pixels"),
    "many scans": (lambda: with_scans(200), "more than 100 scans"),
    "a large text of pixels": (lambda: b"P3 900 900 255\n" + b"1 " * 2_430_000, "takes long to decode"),
    "a PIL image of half a file": (truncated, "truncated"),
    "a closed PIL image": (closed, "cannot|can not|closed"),
}


@pytest.mark.parametrize("what", BAD)
def test_pictures_that_take_much_to_decode_or_cannot_be_read_are_refused_in_one_line(what):
    make, reason = BAD[what]
    with pytest.raises(BadInput, match=reason) as refused:
        picture_of(make())
    assert "\n" not in str(refused.value)


def test_tiles_scans_and_texts_of_usual_size_are_read():
    for data in (tiled(16), with_scans(20), b"P3 2 1 255\n0 0 0 255 255 255\n"):
        assert picture_of(data).pixels.shape[2] == 3


@pytest.mark.parametrize("rows", [1, 5, 4096])
def test_pixels_of_16_bits_and_floats_are_converted_in_bands(rows, monkeypatch):
    monkeypatch.setattr(module, "BAND", rows)
    shades = np.arange(65536, dtype=np.uint16).reshape(32, 2048)
    expected = np.repeat((shades / 257).round().astype(np.uint8)[..., None], 3, axis=2)
    assert (picture_of(encoded(Image.fromarray(shades))).pixels == expected).all()
    assert (picture_of(Image.fromarray((shades / 65535).astype(np.float32))).pixels == expected).all()
    odd = np.array([[np.nan, np.inf, -np.inf, 300, 7]], np.float32)
    assert picture_of(Image.fromarray(odd)).pixels[0, :, 0].tolist() == [0, 255, 0, 255, 7]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_upright_in_all_orientations(orientation):
    upright = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10)
    turned = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }.get(orientation)  # fmt: skip
    stored, exif = upright if turned is None else upright.transpose(turned), Image.Exif()
    exif[0x112] = orientation
    found = picture_of(encoded(stored, exif=exif)).pixels
    assert (found == np.asarray(upright)).all()


def flat(mode, color):
    return Image.new(mode, (3, 2), color)


def palette(color, transparency=None):
    image = Image.new("P", (3, 2), 1)
    image.putpalette([0, 0, 0, *color])
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


COLORS = {  # each kind of pixels, the format of its file, and its color in RGB
    "opaque": (flat("RGBA", (10, 200, 30, 255)), "PNG", (10, 200, 30)),
    "transparent": (flat("RGBA", (10, 200, 30, 0)), "PNG", (255, 255, 255)),
    "half transparent": (flat("RGBA", (0, 100, 200, 51)), "PNG", (204, 224, 244)),
    "half transparent in WebP": (flat("RGBA", (0, 100, 200, 51)), "WEBP", (204, 224, 244)),
    "gray and transparent": (flat("LA", (100, 51)), "PNG", (224, 224, 224)),
    "a palette": (palette((9, 8, 7)), "PNG", (9, 8, 7)),
    "a palette with a transparent color": (palette((9, 8, 7), 1), "PNG", (255, 255, 255)),
    "black and white": (flat("1", 1), "PNG", (255, 255, 255)),
    "CMYK": (flat("CMYK", (0, 255, 255, 0)), "TIFF", (255, 0, 0)),
    "CMYK in JPEG": (flat("CMYK", (255, 0, 0, 0)), "JPEG", (0, 255, 255)),
    "YCbCr": (flat("YCbCr", (128, 128, 128)), "TIFF", (128, 128, 128)),
    "Lab": (flat("LAB", (255, 128, 128)), "TIFF", (255, 255, 255)),
}


@pytest.mark.parametrize("what", COLORS)
def test_pixels_of_every_kind_become_rgb_and_transparent_parts_white(what):
    stored, form, color = COLORS[what]
    options = {"lossless": True} if form == "WEBP" else {"quality": 100} if form == "JPEG" else {}
    for source in (encoded(stored, form, **options), stored):
        found = picture_of(source).pixels.astype(int)
        assert found.shape == (2, 3, 3) and np.abs(found - color).max() <= (4 if form == "JPEG" else 1), (what, found)


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_of_an_animation_is_read(form):
    frames = [Image.fromarray(np.full((4, 6, 3), shade, np.uint8)) for shade in (50, 100, 200)]
    data = encoded(frames[0], form, save_all=True, append_images=frames[1:])
    opened = Image.open(io.BytesIO(data))
    assert opened.n_frames == 3
    assert np.abs(picture_of(data).pixels.astype(int) - 50).max() <= 1
    opened.seek(2)  # of a PIL image, the frame that the caller chose
    assert np.abs(picture_of(opened).pixels.astype(int) - 200).max() <= 1


def test_a_picture_keeps_its_pixels_if_the_array_changes():
    shades = np.zeros((2, 4, 3), np.uint8)
    picture = picture_of(shades)
    shades[:] = 9
    assert not picture.pixels.any()


def test_the_digest_is_of_the_size_and_the_pixels():
    shades = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert picture_of(shades).digest == hashlib.sha256(b"4 x 2 " + shades.tobytes()).digest()
