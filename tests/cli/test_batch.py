"""`rwkv-gpu batch` writes exactly one answer for each line, in spite of interruptions."""

import json

import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.batch import Tally
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.cli.texts import lines_of
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


def test_a_run_that_was_cut_off_continues_where_it_was(files):
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
def test_a_file_with_other_content_is_not_changed(files, content):
    source, target = files
    target.write_bytes(content)
    result = run(source, target)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert target.read_bytes() == content


def test_two_lines_with_one_id_are_refused_and_so_is_one_file_for_input_and_output(files):
    source, target = files
    assert "two files" in run(source, source).stderr
    source.write_text(lines({"id": 1, "prompt": "a"}, {"id": 1, "prompt": "b"}))
    result = run(source, target)
    assert result.exit_code == 2
    assert "line 2 has the id 1" in result.stderr
    assert not target.exists()


SEPARATORS = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei"


def test_only_a_newline_ends_a_line(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    inside = SEPARATORS.translate(dict.fromkeys(range(32)))  # JSON escapes control characters
    rows = [json.dumps({"id": inside + str(n), "prompt": inside}, ensure_ascii=False) for n in range(2)]
    source.write_bytes(("\ufeff" + "\r\n".join(rows) + "\r\n").encode())
    result = run(source, target)
    assert result.exit_code == 0, result.stderr
    read = [json.loads(line) for line in target.read_text(encoding="utf-8").split("\n")[:-1]]
    assert {row["id"] for row in read} == {inside + "0", inside + "1"}
    assert "0 of 2 lines answered, 2 answered before" in run(source, target).stderr


def test_other_commands_also_end_lines_only_at_newlines():
    assert lines_of(f"{SEPARATORS}\r\nsecond\n") == [SEPARATORS, "second"]
    assert lines_of("") == []
    assert lines_of("a\n\nb") == ["a", "", "b"]
    text = SEPARATORS.encode()
    result = CliRunner().invoke(cli, ["embed", str(MODEL), "--device", "cpu"], input=text + b"\nsecond\n")
    assert len(result.stdout.splitlines()) == 2


def test_a_second_run_tries_errors_again_and_its_exit_code_reports_the_rest(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(lines({"id": "good", "prompt": "a"}, {"id": "bad", "prompt": 5}), encoding="utf-8")
    assert run(source, target).exit_code == 1
    again = run(source, target)
    assert again.exit_code == 1
    assert "0 of 2 lines answered, 1 answered before, 1 with an error" in again.stderr
    assert "error" in results(target)["bad"]
    source.write_text(lines({"id": "good", "prompt": "a"}, {"id": "bad", "prompt": "b"}), encoding="utf-8")
    mended = run(source, target)
    assert mended.exit_code == 0
    assert "1 of 2 lines answered, 1 answered before" in mended.stderr
    assert results(target).keys() == {"good", "bad"}
    assert all("text" in row for row in results(target).values())
    before = target.read_bytes()
    assert run(source, target).exit_code == 0
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path not in (source, target)] == []


def test_results_can_go_to_standard_output_and_lines_come_from_standard_input(files):
    source, target = files
    run(source, target)
    shown = run(source, "-")
    assert shown.exit_code == 0
    assert {row["id"]: row for row in map(json.loads, shown.stdout.splitlines())} == results(target)
    given = ["batch", str(MODEL), "-", "-", "--device", "cpu", "-n", "6", "--template", "chatml"]
    piped = CliRunner().invoke(cli, given, input=source.read_text())
    assert {row["id"]: row for row in map(json.loads, piped.stdout.splitlines())} == results(target)
    assert not list(source.parent.glob("-"))


@pytest.mark.parametrize("where", ["missing/out.jsonl", "."])
def test_an_unreadable_file_is_reported_in_one_line_before_the_model_is_loaded(files, tmp_path, where, monkeypatch):
    monkeypatch.setattr("rwkv_gpu.cli.batch.load_model", None)
    result = run(files[0], tmp_path / where)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"rwkv-gpu: {tmp_path}")
    assert result.stderr.count("\n") == 1


def test_settings_of_a_line_have_the_names_of_the_command_line_and_of_openai(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    ours = {"prompt": "hello", "max_tokens": 4, "temperature": 2.0, "seed": 7, "repetition_penalty": 1.5}
    theirs = [
        {"prompt": "hello", "n_predict": 4, "temp": 2.0, "seed": 7, "repeat-penalty": 1.5},
        {"prompt": "hello", "max_completion_tokens": 4, "temperature": 2.0, "seed": 7, "repeat_penalty": 1.5},
        {"prompt": "hello", "-n": 4, "--temp": 2.0, "-s": 7, "--repeat-penalty": 1.5},
        {"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": {**ours, "model": "some", "user": "me"}},
    ]
    source.write_text(lines(ours, *theirs), encoding="utf-8")
    assert run(source, target).exit_code == 0
    got = results(target)
    assert {got[name]["text"] for name in (1, 2, 3, 4, "x")} == {got[1]["text"]}
    message = [{"role": "user", "content": "hello"}]
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "boolean"}}}
    twice = {"prompt": "a", "max_tokens": 3, "n_predict": 4}
    several = [{"prompt": "a", "n": 2}, {"prompt": "a", "n": 1, "stream": True}]
    source.write_text(
        lines({"messages": message, "response_format": form}, twice, {"prompt": "a", "seed": -1}, *several)
    )
    target.unlink()
    run(source, target)
    got = results(target)
    assert json.loads(got[1]["text"]) in (True, False)
    assert "given twice" in got[2]["error"]
    assert "one answer" in got[4]["error"]
    assert "text" in got[5]
    assert got[3]["new_tokens"] == 6


def test_answers_that_were_cut_off_are_counted(files):
    source, target = files
    result = run(source, target)
    cut = sum(row["finish_reason"] == "length" for row in results(target).values())
    assert cut
    assert f"{cut} cut off by max_tokens" in result.stderr


def test_a_missing_file_is_named(tmp_path):
    result = run(tmp_path / "nowhere.jsonl", tmp_path / "out.jsonl")
    assert result.exit_code == 2
    assert "nowhere.jsonl" in result.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_default_ids_do_not_collide_with_given_ones(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"id": 2, "prompt": "a"}, {"prompt": "b"}, {"id": "line 2", "prompt": "c"}, {"id": None, "prompt": "d"}]
    source.write_text(lines(*rows, {"id": 4, "prompt": 5}), encoding="utf-8")
    assert run(source, target).exit_code == 1
    assert results(target).keys() == {2, "line 2'", "line 2", "line 4", 4}
    again = run(source, target)
    assert "0 of 5 lines answered, 4 answered before, 1 with an error" in again.stderr
    assert results(target).keys() == {2, "line 2'", "line 2", "line 4", 4}


def test_three_different_errors_are_shown_at_the_end(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    wrong = ["no json", '{"prompt": 5}', '{"id": "x", "prompt": 5}', '{"prompt": "a", "heat": 1}', '{"messages": 7}']
    source.write_text("\n".join([*wrong, '{"prompt": "fine"}']), encoding="utf-8")
    shown = run(source, target).stderr
    errors = {row["error"] for row in results(target).values() if "error" in row}
    assert len(errors) == 4
    assert sum(f": {error}" in shown for error in errors) == 3
    assert shown.count("\n  id ") == 3
    assert shown.endswith("\n  1 other error is in the results\n")
    tally = Tally()
    for name in ("2", '"x"', "7"):
        tally.add(name, {"error": "prompt is 5"})
    assert list(tally.reasons()) == ["  id 2: prompt is 5 (and 2 more)"]


@pytest.mark.parametrize("text", ["", "\n \n", "\ufeff"])
def test_an_input_without_lines_is_refused(tmp_path, text, monkeypatch):
    monkeypatch.setattr("rwkv_gpu.cli.batch.load_model", None)
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(text, encoding="utf-8")
    result = run(source, target)
    assert (result.exit_code, result.stderr) == (2, f"rwkv-gpu: {source} has no lines to answer\n")
    assert not target.exists()
