"""`rwkv-gpu batch`: every line has its answer, once, whatever happens in between."""

import json

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from tests.golden_files import OWN

MODEL = OWN / "tiny-rwkv7.gguf"


def run(*arguments: object):
    given = ["batch", *map(str, arguments), "--device", "cpu", "-n", "6", "--sequences", "4", "--template", "chatml"]
    return CliRunner().invoke(cli, [str(given[0]), str(MODEL), *map(str, given[1:])])


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def results(path) -> dict[object, dict]:
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({json.dumps(row["id"]) for row in read}) == len(read)
    return {row["id"]: row for row in read}


@pytest.fixture
def files(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"prompt": f"number {i}"} for i in range(9)]
    rows.append({"id": "form", "prompt": "a", "regex": "(yes|no)"})
    rows.append({"id": "talk", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3})
    source.write_text(lines(*rows) + "\n")
    return source, target


def test_every_line_is_answered_as_if_it_were_alone(files):
    source, target = files
    result = run(source, target)
    assert result.exit_code == 0, result.stderr
    assert "11 of 11 lines answered" in result.stderr
    got = results(target)
    with rwkv_gpu.load(MODEL, device="cpu") as llm:
        for i in range(9):
            assert got[i + 1]["text"] == llm.generate(f"number {i}", max_tokens=6).text
        talk = llm.chat(template="chatml").send("hello", max_tokens=3, temperature=0.0, top_p=1.0)
    assert got["talk"]["text"] == talk.text
    assert got["form"]["text"] in ("yes", "no")
    assert got["talk"]["new_tokens"] <= 3


def test_a_run_that_was_cut_off_goes_on_where_it_was(files):
    source, target = files
    run(source, target)
    whole = results(target)
    data = target.read_bytes()
    for cut in (0, 1, 30, len(data) // 2, len(data) - 1):
        target.write_bytes(data[:cut])
        assert run(source, target).exit_code == 0
        assert results(target) == whole
    before = target.read_bytes()
    assert "0 of 11 lines answered" in run(source, target).stderr
    assert target.read_bytes() == before


def test_a_line_that_is_wrong_has_an_error_and_the_others_their_answers(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    wrong = [
        "no json",
        '"text"',
        "{}",
        '{"prompt": "a", "messages": []}',
        '{"prompt": 5}',
        '{"prompt": ""}',
        '{"prompt": "a", "temperature": -1}',
        '{"prompt": "a", "heat": 1}',
        '{"messages": [{"role": "assistant", "content": "a"}]}',
        '{"messages": 7}',
        '{"prompt": "a", "stop_ids": [99999999]}',
    ]
    source.write_text("\n".join([*wrong, '{"prompt": "fine"}']))
    result = run(source, target)
    assert result.exit_code == 1
    got = results(target)
    assert all("error" in got[number] and "\n" not in got[number]["error"] for number in range(1, len(wrong) + 1))
    assert "text" in got[len(wrong) + 1]
    assert f"{len(wrong)} with an error" in result.stderr


@pytest.mark.parametrize("content", [b"something else\n", b"something else", lines({"prompt": "a"}).encode()])
def test_a_file_that_holds_something_else_is_left_alone(files, content):
    source, target = files
    target.write_bytes(content)
    result = run(source, target)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert target.read_bytes() == content


def test_two_lines_of_one_id_and_one_file_for_both_are_refused(files):
    source, target = files
    assert "two files" in run(source, source).stderr
    source.write_text(lines({"id": 1, "prompt": "a"}, {"id": 1, "prompt": "b"}))
    result = run(source, target)
    assert result.exit_code == 2
    assert "line 2 has the id 1" in result.stderr
    assert not target.exists()


def test_a_missing_file_is_named(tmp_path):
    result = run(tmp_path / "nowhere.jsonl", tmp_path / "out.jsonl")
    assert result.exit_code == 2
    assert "nowhere.jsonl" in result.stderr
    assert not (tmp_path / "out.jsonl").exists()
