"""A valid file is read as by gguf's own reader, whole or in parts, by one thread or many."""

import array
import contextlib
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf as peer
import pytest

from rwkv_gpu.errors import BadFile, BadInput, UnsupportedModel
from rwkv_gpu.gguf import cursor
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.formats import FORMATS, SIZES
from tests.cases import each
from tests.gguf import writer
from tests.gguf.corpus import DATA, GOOD, KEYS, TENSORS, with_key
from tests.gguf.writer import array_key, gguf, number, number_key, plain, split, string, tensor, written
from tests.golden_files import NAMES, golden


@pytest.fixture(params=["preadv", "seek and read"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Selects one of two ways to read at an offset; Windows has only the second one."""
    if request.param == "seek and read":
        monkeypatch.delattr(os, "preadv", raising=False)
    elif not hasattr(os, "preadv"):
        pytest.skip("this system has no os.preadv")


@pytest.mark.long
@each("name", NAMES)
def test_a_golden_file_reads_as_its_peer_reads_it(name: str) -> None:
    known = set(map(int, peer.GGMLQuantizationType))
    with GGUFFile.open(golden(name)) as file:
        if news := {info.format.name for info in file.tensors.values() if info.type not in known}:
            pytest.skip(f"this version of gguf does not know {', '.join(news)}")
        reader = peer.GGUFReader(golden(name))
        fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert {key: plain(value) for key, value in file.metadata.items()} == {
            key: field.contents() for key, field in fields.items()
        }
        assert list(file.tensors) == [row.name for row in reader.tensors]
        for row, info in zip(reader.tensors, file.tensors.values(), strict=True):
            assert info.shape == tuple(reversed(row.shape.tolist()))
            assert (info.type, info.offset, info.nbytes) == (row.tensor_type, row.data_offset, row.n_bytes)
            if row.tensor_type != peer.GGMLQuantizationType.I32:  # a table of numbers has no format of weights
                assert info.format.name == row.tensor_type.name
            assert file.read(info) == row.data.tobytes()


@pytest.mark.parametrize("kind", peer.GGML_QUANT_SIZES, ids=lambda kind: kind.name)
def test_every_type_has_the_size_that_its_peer_gives_it(kind: peer.GGMLQuantizationType) -> None:
    row = SIZES[kind]
    assert (row.name, row.type, (row.block, row.nbytes)) == (kind.name, kind, peer.GGML_QUANT_SIZES[kind])


def test_formats_are_keyed_by_their_type_and_all_have_a_size() -> None:
    assert all(row.type == kind for kind, row in SIZES.items())
    assert FORMATS.items() <= SIZES.items()


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_read_alike(version: int, tmp_path: Path) -> None:
    with GGUFFile.open(written(tmp_path, gguf(KEYS, TENSORS, DATA, version=version))) as file:
        assert file.version == version
        assert list(file.metadata) == ["general.architecture", "rwkv7.block_count", "flag", "tokens", "scores"]
        assert file.metadata["tokens"] == ["<s>", "naïve", ""]
        assert file.metadata["flag"] is True
        assert plain(file.metadata["scores"]) == [0.5, -1.0, 3.25]
        assert {name: info.shape for name, info in file.tensors.items()} == {
            "norm.weight": (8,),
            "blk.0.key.weight": (2, 32),
            "mix": (1, 1, 3),
        }


@pytest.mark.parametrize("window", [1, 7, 8, 9, 16, 33, 64, 1000])
def test_the_size_of_the_read_window_does_not_change_the_result(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(window)
    texts = ["é" * rng.randrange(40) for _ in range(200)]
    path = written(tmp_path, with_key(array_key("texts", writer.STRING, [string(text) for text in texts])))
    with GGUFFile.open(path) as file:
        expected, tensors = dict(file.metadata), dict(file.tensors)
    assert expected["texts"] == texts
    monkeypatch.setattr(cursor, "WINDOW", window)
    with GGUFFile.open(path) as file:
        assert {k: plain(v) for k, v in file.metadata.items()} == {k: plain(v) for k, v in expected.items()}
        assert file.tensors == tensors


@pytest.mark.parametrize("padding", [0, 1, 26, 32])
def test_padding_after_the_data_is_accepted(padding: int, tmp_path: Path) -> None:
    path = written(tmp_path, GOOD + bytes(padding))
    with GGUFFile.open(path) as file:
        assert file.nbytes == len(GOOD) + padding == path.stat().st_size


@pytest.mark.parametrize("alignment", [8, 32, 64, 65536])
def test_data_begins_at_the_alignment_of_the_file(alignment: int, tmp_path: Path) -> None:
    rows = [number_key("general.alignment", writer.U32, alignment)]
    data = gguf(
        rows, [tensor("a", [2]), tensor("b", [2], alignment)], bytes(alignment) + b"12345678", alignment=alignment
    )
    with GGUFFile.open(written(tmp_path, data)) as file:
        assert file.tensors["a"].offset == alignment * -(-len(gguf(rows, []) + bytes(66)) // alignment)
        assert file.read(file.tensors["b"]) == b"12345678"


def test_a_file_without_tensors_or_metadata_is_accepted(tmp_path: Path) -> None:
    with GGUFFile.open(written(tmp_path, gguf())) as file:
        assert (dict(file.metadata), dict(file.tensors), file.nbytes) == ({}, {}, 24)


@pytest.mark.parametrize("kind", [kind for kind in SIZES if kind not in FORMATS], ids=lambda kind: SIZES[kind].name)
def test_an_unsupported_type_is_laid_out_but_not_used(kind: int, tmp_path: Path) -> None:
    row = SIZES[kind]
    data = gguf(KEYS, [tensor("blk.0.odd", [row.block * 2], kind=kind)], bytes(row.nbytes * 2))
    with GGUFFile.open(written(tmp_path, data)) as file:
        info = file.tensors["blk.0.odd"]
        assert len(file.read(info)) == info.nbytes == 2 * row.nbytes
        with pytest.raises(UnsupportedModel, match=rf"'blk.0.odd' .* {row.name}, .*Q4_K.*llama-quantize"):
            _ = info.format


@pytest.mark.usefixtures("way")
class TestReads:
    """Tests of reading the bytes of tensors."""

    @pytest.mark.parametrize(("start", "stop"), [(0, None), (0, 0), (1, 7), (34, 68), (67, 68), (68, 68)])
    def test_a_range_is_a_slice_of_the_whole(self, start: int, stop: int | None, tmp_path: Path) -> None:
        with GGUFFile.open(written(tmp_path, GOOD)) as file:
            info = file.tensors["blk.0.key.weight"]
            whole = DATA[32:100]
            assert file.read(info, start, stop) == whole[start:stop]
            words = array.array("H", bytes(len(whole[start:stop]) // 2 * 2))
            file.read_into(info, start, memoryview(words))
            assert words.tobytes() == whole[start:stop][: len(words) * 2]

    @pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 69), (69, 69), (69, None)])
    def test_a_range_outside_the_tensor_is_refused(self, start: int, stop: int | None, tmp_path: Path) -> None:
        with GGUFFile.open(written(tmp_path, GOOD)) as file:
            info = file.tensors["blk.0.key.weight"]
            with pytest.raises(BadInput, match=r"'blk\.0\.key\.weight' has 68 bytes"):
                file.read(info, start, stop)
            with pytest.raises(BadInput, match=r"'blk\.0\.key\.weight' has 68 bytes"):
                file.read_into(info, 60, memoryview(bytearray(9)))

    def test_several_threads_read_the_same_bytes_as_one(self, tmp_path: Path) -> None:
        data = random.Random(0).randbytes(1 << 16)
        path = written(tmp_path, gguf(KEYS, [tensor("t", [1 << 14])], data))
        with GGUFFile.open(path) as file, ThreadPoolExecutor(8) as pool:
            starts = range(0, 60_000, 61)
            reads = pool.map(lambda start: file.read(file.tensors["t"], start, start + 999), starts)
            assert list(reads) == [data[start : start + 999] for start in starts]

    def test_a_file_cut_while_open_is_refused(self, tmp_path: Path) -> None:
        path = written(tmp_path, GOOD)
        with GGUFFile.open(path) as file:
            os.truncate(path, len(GOOD) - 10)
            assert file.read(file.tensors["norm.weight"]) == DATA[:32]
            with pytest.raises(BadFile, match="truncated while open"):
                file.read(file.tensors["mix"])

    def test_a_long_read_is_done_in_steps(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rwkv_gpu.gguf.source.MAX_READ", 5)
        with GGUFFile.open(written(tmp_path, GOOD)) as file:
            assert file.read(file.tensors["norm.weight"]) == DATA[:32]


@pytest.mark.parametrize("given", [1, 2, 3])
def test_a_split_model_opens_by_any_of_its_parts(given: int, tmp_path: Path) -> None:
    split(tmp_path)
    with GGUFFile.open(tmp_path / f"model-{given:05d}-of-00003.gguf") as file:
        assert list(file.tensors) == ["a", "b", "c"]
        assert [file.read(info) for info in file.tensors.values()] == [bytes([i] * 32) for i in range(3)]
        assert file.path.name == "model-00001-of-00003.gguf"
        assert file.nbytes == sum(path.stat().st_size for path in tmp_path.iterdir())
        assert file.int("split.no") == 0


def test_the_first_part_may_hold_metadata_only(tmp_path: Path) -> None:
    def part(i: int, tensors: list[bytes], data: bytes) -> None:
        rows = [number_key("split.no", writer.U16, i), number_key("split.count", writer.U16, 2)]
        rows += [number_key("split.tensors.count", writer.I32, 1), *(KEYS if i == 0 else ())]
        (tmp_path / f"m-{i + 1:05d}-of-00002.gguf").write_bytes(gguf(rows, tensors, data))

    part(0, [], b"")
    part(1, [tensor("t", [2])], b"abcdefgh")
    with GGUFFile.open(tmp_path / "m-00001-of-00002.gguf") as file:
        assert file.str("general.architecture") == "rwkv7"
        assert file.read(file.tensors["t"]) == b"abcdefgh"


@pytest.mark.parametrize("count", [0, 1])
def test_a_merged_model_is_one_file_under_any_name(count: int, tmp_path: Path) -> None:
    with GGUFFile.open(written(tmp_path, with_key(number_key("split.count", writer.U16, count)))) as file:
        assert len(file.tensors) == len(TENSORS)


def test_a_refused_file_is_closed(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("open files are counted in /proc")
    path = written(tmp_path, GOOD[:-1])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with contextlib.suppress(BadFile):
            GGUFFile.open(path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.timeout(20)
def test_a_pipe_that_takes_the_place_of_a_file_is_refused_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regular = written(tmp_path, GOOD).stat()
    os.mkfifo(tmp_path / "pipe")
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda _: regular)
        with pytest.raises(BadFile, match="is a pipe"):
            GGUFFile.open(tmp_path / "pipe")


def test_opening_a_file_makes_one_object_for_each_text_and_hardly_any_other(tmp_path: Path) -> None:
    tokens = [string(f"Ġtoken{n}") for n in range(152_000)]
    rows = [
        array_key("tokenizer.ggml.tokens", writer.STRING, tokens),
        array_key("tokenizer.ggml.token_type", writer.I32, [number(writer.I32, 1)] * len(tokens)),
        array_key("tokenizer.ggml.merges", writer.STRING, [string(f"Ġ{n} {n}") for n in range(151_000)]),
    ]
    path = written(tmp_path, gguf(rows, TENSORS, DATA))
    del tokens, rows
    before = sys.getallocatedblocks()
    with GGUFFile.open(path) as file:
        assert sys.getallocatedblocks() - before < 310_000  # of 303,000 texts
        assert len(file.strings("tokenizer.ggml.tokens")) == 152_000
