"""What was tuned, as a file: it comes back whole, or not at all."""

import json
from dataclasses import replace
from importlib import resources

import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.gpu import tuned as module
from rwkv_gpu.gpu.defaults import default_tuning
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.expert_shape import expert_lane
from rwkv_gpu.gpu.tuned import Choice, Tuned, file_name, find, parse, runs, save, slug
from rwkv_gpu.gpu.tuning import COOP, MANY, TILE_F16, LinearShape, lane, row, vec


@pytest.fixture
def tuned(fast_device: Device) -> Tuned:
    adapter, tuning = fast_device.adapter, default_tuning(fast_device.capabilities)
    choice = Choice("matrices, 1 row", "a", "b", 0.25, 0.01, 7, ("c",))
    return Tuned(adapter.name, adapter.backend, adapter.driver, "0", ("m",), tuning, 256, 2, 1, (choice,))


@pytest.fixture
def nothing_shipped(tmp_path, monkeypatch) -> None:
    module.fingerprint()  # reads the shaders, which are resources as well, once
    monkeypatch.setattr(resources, "files", lambda name: tmp_path / "nothing")


def test_what_is_saved_comes_back(fast_device, tuned, tmp_path):
    path = save(tuned, fast_device.adapter, tmp_path / "new")
    assert [path] == list((tmp_path / "new").iterdir())  # and nothing half-written beside it
    assert find(fast_device.adapter, fast_device.capabilities, tmp_path / "new") == tuned
    assert parse(tuned.text()) == tuned


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"tuning": {"linear": 3}}', '{"tuning": {}, "choices": []}'])
@pytest.mark.usefixtures("nothing_shipped")
def test_a_damaged_file_is_as_good_as_none(fast_device, tmp_path, text):
    (tmp_path / file_name(fast_device.adapter)).write_text(text)
    assert find(fast_device.adapter, fast_device.capabilities, tmp_path) is None


@pytest.mark.usefixtures("nothing_shipped")
def test_constants_of_other_kernels_or_another_driver_are_not_found(fast_device, tuned, tmp_path, monkeypatch):
    adapter, can = fast_device.adapter, fast_device.capabilities
    save(tuned, adapter, tmp_path)
    assert find(adapter, can, tmp_path) == tuned
    assert find(replace(adapter, driver="newer"), can, tmp_path) is None
    monkeypatch.setattr(module, "fingerprint", lambda: "changed")
    assert find(adapter, can, tmp_path) is None


def test_what_comes_with_the_package_is_second_to_ones_own(fast_device, tuned, tmp_path, monkeypatch):
    adapter, can = fast_device.adapter, fast_device.capabilities
    (tmp_path / "shipped").mkdir()
    monkeypatch.setattr(module.resources, "files", lambda name: tmp_path / "shipped")
    shipped = replace(tuned, chunk_size=1024)
    (tmp_path / "shipped" / f"{slug(adapter.name)}.json").write_text(shipped.text())
    assert find(adapter, can, None) == find(adapter, can, tmp_path) == shipped


def test_a_file_that_cannot_be_written_is_a_line(fast_device, tuned, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write"):
        save(tuned, fast_device.adapter, tmp_path / "file")


def test_constants_run_only_where_the_device_has_what_they_ask_for(fast_device):
    can = replace(
        fast_device.capabilities, subgroup=True, subgroup_size=32, reach=32, f16=False, cooperative_matrix=False
    )
    plain = replace(default_tuning(can), experts_short=())
    assert runs(plain, can)

    def runs_with(shape: LinearShape) -> bool:
        return runs(replace(plain, linear=((MANY, shape),)), can)

    assert runs_with(vec(128, 32, 4, 1, reach=32)) and runs_with(row(128, 16, 4, reach=32, most=9))
    too_large = vec(1 << 20, 16, 4, 1), vec(128, 128, 4, 8)
    too_far = vec(128, 32, 4, 1, reach=64), row(128, 16, 4, reach=64, most=9)
    for shape in (*too_far, lane(4, 1), TILE_F16, COOP, *too_large):
        assert not runs_with(shape), shape
    assert not runs(replace(plain, experts=((MANY, expert_lane(4, 1)),)), can)
    assert not runs(replace(plain, row_lanes=0), can)
    assert not runs(plain, replace(can, subgroup=False, reach=1))
    assert not runs(plain, replace(can, subgroup_size=4, reach=4))


def test_every_file_that_comes_with_the_package_is_whole():
    files = [path for path in resources.files("rwkv_gpu.profiles").iterdir() if path.name.endswith(".json")]
    for path in files:
        tuned = parse(path.read_text(encoding="utf-8"))
        assert json.loads(tuned.text()) == json.loads(path.read_text(encoding="utf-8"))
        assert tuned.choices
