"""A long conversation that goes on: what each way shares with what was there, and what a peer is asked."""

import sys

from benchmarks import sides
from benchmarks.sides import Spec
from benchmarks.talk import Talk

TALK = Talk(tokens=1000, turns=10, question=30)

# Answers how many tokens both begin with, as seconds.
PEER = """
import json, sys
print(json.dumps({"devices": ["a GPU"]}), flush=True)
for line in sys.stdin:
    turn = json.loads(line)["turn"]
    print(json.dumps({"seconds": shared(turn["kept"], turn["asked"])}), flush=True)
"""
SHARED = """
def shared(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
"""


def test_each_way_to_go_on_shares_what_its_name_says():
    found = dict(TALK.prompts(seed=5))
    before = TALK.before
    assert len(before) == 900
    expected = {"goes on": 900, "the last answer is another": 830, "a question half way is edited": 500}
    assert found.keys() == expected.keys()
    for name, shared in expected.items():
        assert found[name][:shared] == before[:shared]
        assert found[name] != before[: len(found[name])]
        assert len(found[name]) == (530 if shared == 500 else 930)


def test_a_peer_is_asked_with_what_it_holds(tmp_path, monkeypatch):
    script = tmp_path / "peer.py"
    script.write_text(SHARED + PEER)
    monkeypatch.setattr(sides, "SCRIPT", script)
    peer = sides.Peer(Spec("peer", sys.executable, ""), "model", 1, patience=20)
    try:
        assert peer.loaded() == "a GPU"
        assert peer.turn(TALK.before, dict(TALK.prompts(seed=5))["goes on"]) == 900
    finally:
        peer.close()
