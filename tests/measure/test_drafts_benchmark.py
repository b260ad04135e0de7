"""The table of drafts has a row for each length and acceptance."""

import pytest
from click.testing import CliRunner

from benchmarks import head_drafts
from tests.golden.heads import write_headed
from tests.golden_files import OWN


@pytest.mark.parametrize("headed", [True, False])
def test_the_table_of_drafts_has_a_row_for_each_length_and_acceptance(tmp_path, fast_device, headed):
    model = write_headed(tmp_path / "model.gguf", "mimo2") if headed else OWN / "tiny-llama.gguf"
    options = ["--drafts", "1,2", "--right", "1", "--sequences", "2", "-n", "24", "-r", "1", "--prompt", "4"]
    result = CliRunner().invoke(head_drafts.main, [str(model), *options, "--device", fast_device.adapter.name])
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines() if line[:1] == "|"]
    assert [row[1:4] for row in rows[2:]] == [["2", "0", ""], ["2", "1", "100%"], ["2", "2", "100%"]]
    assert all(float(row[5]) > 0 and int(row[7][:-1]) > 60 for row in rows[3:])
