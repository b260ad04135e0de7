"""Damaged and foreign values in a store are ignored and computed again: no error, and no other text."""

from random import Random

import pytest

from tests.stores.run_mutants import MODELS, run


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_no_mutant_of_a_stored_value_is_used(path):
    """`make store-mutants` tries a hundred thousand."""
    assert 0 < run(path, 300, Random(5)) < 300
