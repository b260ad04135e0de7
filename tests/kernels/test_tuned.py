"""Files of tuning results are read completely, or ignored."""

import json
from dataclasses import replace
from importlib import resources

import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.kernels import tuned as module
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.expert_config import expert_gemm_lane
from rwkv_gpu.kernels.gemm_config import TILE_F16, GemmConfig, gemm_lane, gemm_matrix, gemv, gemv_int
from rwkv_gpu.kernels.tuned import Choice, Tuned, checksum, file_name, find, own_tuning, parse, runs, save, slug
from rwkv_gpu.kernels.tuning import GROUPS


@pytest.fixture
def tuned(fast_device: Device) -> Tuned:
    adapter, tuning = fast_device.adapter, default_tuning(fast_device.capabilities)
    choice = Choice("matrices, 1 row", "a", "b", 0.25, 0.01, 7, ("c",))
    return Tuned(adapter.name, adapter.backend, adapter.driver, "0", ("m",), tuning, 256, 2, 1, (choice,))


@pytest.fixture
def nothing_shipped(tmp_path, monkeypatch) -> None:
    module.fingerprint()  # reads the shaders once, which are resources as well
    monkeypatch.setattr(resources, "files", lambda name: tmp_path / "nothing")


def test_saved_tunings_are_found_again(fast_device, tuned, tmp_path):
    path = save(tuned, fast_device.adapter, tmp_path / "new")
    assert [path] == list((tmp_path / "new").iterdir())  # no unfinished file is left
    assert find(fast_device.adapter, fast_device.capabilities, tmp_path / "new") == tuned
    assert parse(tuned.text()) == tuned


EARLIER = {"adapter": "a", "backend": "b", "driver": "c", "kernels": "0", "models": [], "choices": []}
DAMAGED = [
    "", "{}", "[]", "null", "3", '{"tuning": {"linear": 3}}', '{"tuning": {}, "choices": []}', "[" * 100_000,
    '{"tuning": ' * 50_000, json.dumps({**EARLIER, "tuning": None}), json.dumps({**EARLIER, "tuning": []}),
    json.dumps({**EARLIER, "tuning": {"row_lanes": 64, "map_lanes": 64, "reduce": "workgroup", "linear": []}}),
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
@pytest.mark.usefixtures("nothing_shipped")
def test_a_damaged_file_is_ignored(fast_device, tmp_path, text):
    (tmp_path / file_name(fast_device.adapter)).write_text(text)
    assert find(fast_device.adapter, fast_device.capabilities, tmp_path) is None


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("lanes", "row_lanes", None), ("lanes", "row_lanes", [64]), ("lanes", "reduce", 3), ("lanes", "unknown", 1),
        ("attention", "rolls_loops", 1), ("attention", "run_length", 1.5), ("attention", "run_length", True),
    ],
)  # fmt: skip
def test_values_of_other_types_are_refused(tuned, group, name, value):
    data = json.loads(tuned.text())
    data["tuning"][group][name] = value
    with pytest.raises(ValueError, match=name):
        parse(checked(data))


@pytest.mark.parametrize("value", [-1, 1 << 17, 1 << 70, float("nan"), 1.5, "8", [8]])
@pytest.mark.parametrize("name", ["chunk_size", "layers_per_submit", "look_ahead"])
def test_a_file_with_an_absurd_number_is_refused(tuned, name, value):
    data = json.loads(tuned.text())
    data[name] = value
    with pytest.raises(ValueError):
        parse(checked(data))


@pytest.mark.parametrize("value", [-1, 1 << 70])
def test_no_constant_of_a_file_is_negative_or_huge(tuned, value):
    data = json.loads(tuned.text())
    for group in GROUPS:
        for name in [name for name, was in data["tuning"][group].items() if type(was) is int]:
            changed = json.loads(tuned.text())
            changed["tuning"][group][name] = value
            with pytest.raises(ValueError, match=name):
                parse(checked(changed))


@pytest.mark.parametrize("table", ["gemm_table", "expert_table"])
@pytest.mark.parametrize("rows", [None, [], [{"rows": []}], [{"rows": [{"kernel": None}]}], [[[]]], [{"rows": [{}]}]])
def test_tables_of_another_form_are_refused(tuned, table, rows):
    data = json.loads(tuned.text())
    data["tuning"][table] = rows
    with pytest.raises(ValueError):
        parse(checked(data))


def checked(data):
    """Returns the file of changed data, with a correct checksum."""
    data = {name: value for name, value in data.items() if name != "checksum"}
    return json.dumps({"checksum": checksum(data), **data})


ODD = (None, [], [[]], {}, {"a": 1}, "x", "", -1, 0, 1e308, float("nan"), 10**30, True, False, [None], "[" * 5000)


def paths(value, path=()):
    """Returns the path of each value in nested data; of lists, only the first few."""
    yield path
    if isinstance(value, dict | list):
        names = value if isinstance(value, dict) else range(min(len(value), 2))
        for name in names:
            yield from paths(value[name], (*path, name))


@pytest.mark.usefixtures("nothing_shipped")
def test_a_file_with_any_other_value_is_ignored(fast_device, tuned, tmp_path):
    own = tmp_path / file_name(fast_device.adapter)
    for path in paths(json.loads(tuned.text())):
        for value in ODD:
            data = json.loads(tuned.text())
            inner = data
            for name in path[:-1]:
                inner = inner[name]
            if path:
                if inner[path[-1]] == value and type(inner[path[-1]]) is type(value):
                    continue
                inner[path[-1]] = value
            own.write_text(json.dumps(data if path else value))
            assert find(fast_device.adapter, fast_device.capabilities, tmp_path) is None, (path, value)
            assert own_tuning(fast_device.adapter, tmp_path) is None


@pytest.mark.usefixtures("nothing_shipped")
def test_constants_of_other_kernels_or_another_driver_are_not_found(fast_device, tuned, tmp_path, monkeypatch):
    adapter, can = fast_device.adapter, fast_device.capabilities
    save(tuned, adapter, tmp_path)
    assert find(adapter, can, tmp_path) == tuned
    assert find(replace(adapter, driver="newer"), can, tmp_path) is None
    monkeypatch.setattr(module, "fingerprint", lambda: "changed")
    assert find(adapter, can, tmp_path) is None


def test_own_results_take_precedence_over_those_of_the_package(fast_device, tuned, tmp_path, monkeypatch):
    adapter, can = fast_device.adapter, fast_device.capabilities
    (tmp_path / "shipped").mkdir()
    monkeypatch.setattr(module.resources, "files", lambda name: tmp_path / "shipped")
    shipped = replace(tuned, chunk_size=1024)
    (tmp_path / "shipped" / f"{slug(adapter.name)}.json").write_text(shipped.text())
    assert find(adapter, can, None) == find(adapter, can, tmp_path) == shipped


def test_a_file_that_cannot_be_written_is_reported_in_one_line(fast_device, tuned, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        save(tuned, fast_device.adapter, tmp_path / "file")


def test_configurations_run_only_on_devices_with_the_features_they_need(fast_device):
    can = replace(
        fast_device.capabilities,
        subgroup=True,
        subgroup_size=32,
        subgroup_width=32,
        f16=False,
        fragment=0,
    )
    plain = default_tuning(can)
    assert runs(plain, can)

    def runs_with(shape: GemmConfig) -> bool:
        return runs(plain.only(shape), can)

    assert runs_with(gemv(128, 32, 4, 1, subgroup_width=32)) and runs_with(
        gemv_int(128, 16, 4, subgroup_width=32, max_workgroups=9)
    )
    too_large = gemv(1 << 20, 16, 4, 1), gemv(128, 128, 4, 8)
    too_far = gemv(128, 32, 4, 1, subgroup_width=64), gemv_int(128, 16, 4, subgroup_width=64, max_workgroups=9)
    for shape in (*too_far, gemm_lane(4, 1), TILE_F16, gemm_matrix(16, 32), *too_large):
        assert not runs_with(shape), shape
    assert not runs(plain.only_experts(expert_gemm_lane(4, 1)), can)
    assert not runs(plain.changed(row_lanes=0), can)
    assert not runs(plain, replace(can, subgroup=False, subgroup_width=1))
    assert not runs(plain, replace(can, subgroup_size=4, subgroup_width=4))


def test_every_tuning_file_of_the_package_is_complete():
    files = [path for path in resources.files("rwkv_gpu.profiles").iterdir() if path.name.endswith(".json")]
    for path in files:
        tuned = parse(path.read_text(encoding="utf-8"))
        assert json.loads(tuned.text()) == json.loads(path.read_text(encoding="utf-8"))
        assert tuned.choices
