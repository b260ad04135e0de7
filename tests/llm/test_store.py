"""Pulled models are complete and verified, or absent under their names. A local server replaces the hub."""

import errno
import random
import shutil
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm import repository, transfer
from rwkv_gpu.llm.repository import Repository
from rwkv_gpu.llm.store import Store
from tests.llm.hub_server import serving

rng = random.Random(0)
WHOLE, FIRST, SECOND = (rng.randbytes(3 << 20), rng.randbytes(1 << 20), rng.randbytes(1 << 19))
FILES = {
    "model-Q4_K_M.gguf": WHOLE,
    "large-Q6_K-00001-of-00002.gguf": FIRST,
    "large-Q6_K-00002-of-00002.gguf": SECOND,
    "mtp-model-f16.gguf": b"drafts",
    "README.md": b"read me",
}
NAME = "hf.co/owner/name:Q4_K_M"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(repository.time, "sleep", lambda seconds: None)
    with serving(FILES) as hub:
        yield hub


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "models")


def pull(store, server, name=NAME, **options):
    seen = []

    def source(owned):
        return Repository(owned, endpoint=server.url, **options)

    path = store.pull(name, source, lambda file: lambda done, total: seen.append((done, total)))
    assert not seen or seen[-1][0] == seen[-1][1]
    return path


def files(store):
    return sorted(path.name for path in store.folder.rglob("*") if path.is_file())


def test_a_model_is_pulled_once_and_found_by_its_names(store, server):
    path = pull(store, server)
    assert path.read_bytes() == WHOLE
    assert pull(store, server) == path
    assert len(server.asked) == 1
    names = (NAME, "owner/name:q4_k_m", "name:Q4_K_M", "owner/name", "name", "model-Q4_K_M", "model-q4_k_m.gguf")
    for name in (*names, "owner/name/model-Q4_K_M"):
        assert store.find(name) == path, name
    assert store.find("name:Q8_0") is None
    assert store.find("other") is None


def test_a_model_in_parts_is_one_model(store, server):
    path = pull(store, server, "hf.co/owner/name:Q6_K")
    assert [one.read_bytes() for one in sorted(path.parent.glob("*.gguf"))] == [FIRST, SECOND]
    [model] = store.models()
    assert (model.name, model.nbytes, model.complete) == ("owner/name/large-Q6_K", len(FIRST) + len(SECOND), True)
    assert store.find("name:Q6_K") == path == model.paths[0]
    (path.parent / "large-Q6_K-00002-of-00002.gguf").unlink()
    assert store.find("name:Q6_K") is None


@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_that_is_cut_off_continues_where_it_stopped(store, server, ranges):
    server.cut_after, server.cuts, server.ranges = 1 << 20, 2, ranges
    assert pull(store, server).read_bytes() == WHOLE
    starts = [wanted for _, wanted in server.asked]
    assert starts == [None, f"bytes={1 << 20}-", f"bytes={(2 if ranges else 1) << 20}-"]


def test_a_later_run_continues_an_interrupted_one(store, server):
    server.cut_after, server.cuts = 1 << 20, 1
    server.cuts, calls = 1, []
    original = Repository._get

    def breaks(self, url, start=0, stop=None):
        calls.append(start)
        if start:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return original(self, url, start, stop)

    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(BadInput, match="reset by peer; what has arrived is kept"),
    ):
        patch.setattr(Repository, "_get", breaks)
        pull(store, server)
    assert files(store) == ["model-Q4_K_M.gguf.part"]
    [model] = store.models()
    assert (model.complete, store.find(NAME)) == (False, None)
    assert pull(store, server).read_bytes() == WHOLE
    assert server.asked[-1][1] == f"bytes={1 << 20}-"


@pytest.mark.parametrize("left", [b"x" * (1 << 20), b"x" * len(WHOLE)])
def test_bytes_of_another_file_never_get_the_name(store, server, left):
    part = store.folder / "owner" / "name" / "model-Q4_K_M.gguf.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(left)
    assert pull(store, server).read_bytes() == WHOLE
    assert files(store) == ["model-Q4_K_M.gguf"]


def test_a_partial_download_longer_than_the_file_is_restarted(store, server):
    part = store.folder / "owner" / "name" / "model-Q4_K_M.gguf.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(WHOLE + b"more")
    assert pull(store, server).read_bytes() == WHOLE
    assert server.asked == [("model-Q4_K_M.gguf", None)]


def test_of_two_programs_one_downloads_and_the_other_waits(store, server, monkeypatch):
    monkeypatch.setattr(repository, "WAIT", 0.001)
    begun, go_on = threading.Event(), threading.Event()

    def slowly(*_):
        begun.set()
        assert go_on.wait(20)

    def source(owned):
        return Repository(owned, endpoint=server.url)

    def waiting(*_):
        go_on.set()

    with ThreadPoolExecutor() as pool:
        first = pool.submit(store.pull, NAME, source, lambda file: slowly)
        assert begun.wait(20)
        second = pool.submit(store.pull, NAME, source, lambda file: waiting)
        assert first.result(20).read_bytes() == second.result(20).read_bytes() == WHOLE
    assert len(server.asked) == 1
    assert files(store) == ["model-Q4_K_M.gguf"]


def test_the_error_of_an_impossible_folder_is_one_line(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot be written: Not a directory"):
        pull(Store(tmp_path / "file" / "models"), server)


def test_a_download_with_a_wrong_checksum_is_deleted(store, server):
    server.sums["model-Q4_K_M.gguf"] = "0" * 64
    with pytest.raises(BadInput, match="expected 0000"):
        pull(store, server)
    assert files(store) == []


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "access is denied .*HF_TOKEN"), (403, "access is denied"), (404, "not found"), (500, "answered 500")],
)
def test_refusals_are_one_line_with_a_remedy(store, server, status, message):
    server.status = status
    with pytest.raises(BadInput, match=f"cannot download owner/name: .*{message}") as failure:
        pull(store, server)
    assert "\n" not in str(failure.value)
    assert not store.folder.exists()


def test_a_token_goes_to_the_hub_and_to_no_other_host(store, server):
    server.token = "secret"
    with serving(FILES) as content:
        server.content = content.url.replace("127.0.0.1", "localhost")
        assert pull(store, server, token="secret").read_bytes() == WHOLE
        assert content.tokens == [None]


def test_an_unreachable_server_is_reported_in_one_line(store):
    with serving(FILES) as hub:
        gone = hub
    with pytest.raises(BadInput, match="owner/name: Connection refused; check the network connection"):
        pull(store, gone)


def test_a_full_disk_is_reported_before_anything_is_written(store, server, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(BadInput, match="0.0 GB free, and model-Q4_K_M.gguf needs 0.0; make room"):
        pull(store, server)
    assert files(store) == []
    part = store.folder / "owner" / "name" / "model-Q4_K_M.gguf.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(WHOLE[: 1 << 20])
    for free in (len(WHOLE) - (1 << 20) - 1, len(WHOLE) - (1 << 20)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage(free, 0, free))
        if free + (1 << 20) < len(WHOLE):
            with pytest.raises(BadInput, match="make room"):
                pull(store, server)
        else:
            assert pull(store, server).read_bytes() == WHOLE


def test_a_full_disk_keeps_the_downloaded_part(store, server):
    add = transfer.Part.add

    def full(part, block):
        if part.done >= 1 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(part, block)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer.Part, "add", full)
        with pytest.raises(BadInput, match="No space left on device; what has arrived is kept"):
            pull(store, server)
    assert files(store) == ["model-Q4_K_M.gguf.part"]
    assert pull(store, server).read_bytes() == WHOLE


def test_a_name_that_fits_nothing_or_several_is_refused(store, server):
    with pytest.raises(BadInput, match="has no file of Q2_K; it has large-Q6_K-00001"):
        pull(store, server, "hf.co/owner/name:Q2_K")
    pull(store, server)
    pull(store, server, "hf.co/owner/name:Q6_K")
    other = store.folder / "other" / "name" / "model-Q4_K_M.gguf"
    other.parent.mkdir(parents=True)
    other.touch()
    with pytest.raises(BadInput, match="name may be other/name/model-Q4_K_M, owner/name/large-Q6_K, owner/name/model-"):
        store.find("name")
    for wrong in ("nothing", "name:Q2_K", "", "."):
        with pytest.raises(BadInput, match="is not a model of `rwkv-gpu list`"):
            store.remove(wrong)
    with pytest.raises(BadInput, match="may be"):
        store.remove("name")


def test_removing_deletes_all_parts_and_empty_folders_and_no_more(store, server):
    pull(store, server)
    pull(store, server, "hf.co/owner/name:Q6_K")
    store.remove("name:Q6_K")
    assert files(store) == ["model-Q4_K_M.gguf"]
    store.remove("owner/name/model-Q4_K_M")
    assert list(store.folder.iterdir()) == []


def test_a_file_is_completed_piece_by_piece_over_a_poor_connection(store, server, monkeypatch):
    """Each connection is reset in the middle of a block. Bytes that arrived are not requested again."""
    monkeypatch.setattr(repository.time, "sleep", lambda _: None)
    server.cut_after, server.cuts, server.resets = 600_000, len(WHOLE) // 600_000, True
    assert pull(store, server).read_bytes() == WHOLE
    starts = [int((wanted or "bytes=0-").removeprefix("bytes=").rstrip("-")) for _, wanted in server.asked]
    assert starts == sorted(set(starts))
    assert len(starts) > 1


def test_a_server_that_is_busy_for_a_moment_is_asked_again(store, server, monkeypatch):
    monkeypatch.setattr(repository.time, "sleep", lambda _: None)
    server.refusals = [503, 429, 500]
    assert pull(store, server).read_bytes() == WHOLE
    assert len(server.asked) == 4


def test_a_server_that_stays_busy_is_reported_in_one_line(store, server, monkeypatch):
    monkeypatch.setattr(repository.time, "sleep", lambda _: None)
    server.refusals = [503] * 50
    with pytest.raises(BadInput, match="the server answered 503"):
        pull(store, server)
    assert len(server.asked) == transfer.TRIES


def test_several_connections_fetch_pieces_in_any_order(store, server, monkeypatch):
    monkeypatch.setattr(repository, "PIECE", 200_000)
    monkeypatch.setattr(transfer, "PIECE", 200_000)
    server.cut_after, server.cuts, server.resets = 60_000, 9, True
    assert pull(store, server, connections=4).read_bytes() == WHOLE
    ranges = [tuple(map(int, wanted.removeprefix("bytes=").split("-"))) for _, wanted in server.asked]
    assert server.cuts == 0
    assert all(start // 200_000 == stop // 200_000 for start, stop in ranges)
    assert {start // 200_000 for start, _ in ranges} == {*range(-(-len(WHOLE) // 200_000))}


def test_an_interrupted_download_by_several_connections_is_continued(store, server, monkeypatch):
    monkeypatch.setattr(repository, "PIECE", 200_000)
    monkeypatch.setattr(transfer, "PIECE", 200_000)
    server.broken_from = 1_000_000
    with pytest.raises(BadInput, match="the server answered 503"):
        pull(store, server, connections=3)
    [part] = store.folder.rglob("*.part")
    assert part.read_bytes() == WHOLE[:1_000_000]
    server.broken_from = None
    assert pull(store, server, connections=3).read_bytes() == WHOLE


def test_a_server_without_ranges_gets_one_connection(store, server, monkeypatch):
    monkeypatch.setattr(repository, "PIECE", 200_000)
    monkeypatch.setattr(transfer, "PIECE", 200_000)
    server.ranges = False
    assert pull(store, server, connections=3).read_bytes() == WHOLE


def test_a_rate_is_kept_over_all_connections(monkeypatch):
    now, waited = [100.0], []
    monkeypatch.setattr(transfer.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(transfer.time, "sleep", waited.append)
    pace = transfer.RateLimit(1000)
    for nbytes in (250, 250, 500):
        pace.spend(nbytes)
    assert waited == [0.25, 0.5, 1.0]
    now[0] = 110.0
    pace.spend(100)
    assert waited[-1] == pytest.approx(0.1)
    assert pace.block == 250
    blocks = [transfer.RateLimit(rate).block for rate in (1, 4, 8, 4 * transfer.CHUNK, 4 * transfer.CHUNK + 4, None)]
    assert blocks == [1, 1, 2, *[transfer.CHUNK] * 3]


def test_a_limited_download_waits_for_each_block(store, server, monkeypatch):
    spent = []
    monkeypatch.setattr(transfer.RateLimit, "spend", lambda pace, nbytes: spent.append(nbytes))
    assert pull(store, server, rate=400_000).read_bytes() == WHOLE
    assert sum(spent) == len(WHOLE)
    assert max(spent) <= 100_000


def test_a_copy_that_cannot_be_completed_leaves_no_file_and_its_name_has_at_most_200_characters(store, tmp_path):
    parts = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    parts[0].write_bytes(b"a")
    with pytest.raises(BadInput, match="team/mine cannot be created in .*No such file"):
        store.copy(parts, "team/mine")
    assert not files(store)
    parts[1].write_bytes(b"b")
    store.copy(parts, "n" * 200)
    assert files(store) == [f"{'n' * 200}-0000{number}-of-00002.gguf" for number in (1, 2)]
    with pytest.raises(BadInput, match="is not a name for a model"):
        store.copy(parts, "m" * 201)
