"""The choice of a replica for a request: by session, by stored prefix, and by load and speed."""

from collections import Counter
from random import Random

from rwkv_gpu.server.replicas.policy import SLACK, Load, home_of_session, ranked


def test_a_conversation_stays_with_its_replica_unless_that_has_much_more_load():
    for running in range(3 * SLACK):
        first = ranked([Load("home", running), Load("idle", 0)], "home")[0]
        assert first == ("home" if running <= SLACK else "idle")


def test_a_removed_replica_is_not_chosen():
    assert ranked([Load("a", 3), Load("b", 1)], "gone") == ["b", "a"]
    assert ranked([], "gone") == []


def test_all_replicas_are_ranked_so_that_another_can_replace_a_full_one():
    loads = [Load(n, n % 3) for n in range(9)]
    for draw in (None, Random(1)):
        assert sorted(ranked(loads, 4, draw)) == [*range(9)]


def test_of_two_drawn_replicas_the_one_with_the_shorter_wait_is_chosen():
    draw, firsts = Random(7), Counter()
    for _ in range(2000):
        firsts[ranked([Load("busy", 9), Load("half", 4), Load("idle", 0)], draw=draw)[0]] += 1
    assert firsts["busy"] == 0
    assert 0.6 < firsts["idle"] / 2000 < 0.73  # two of three draws contain it


def test_idle_replicas_take_turns():
    draw = Random(5)
    firsts = Counter(ranked([Load(name, 0) for name in "abc"], draw=draw)[0] for _ in range(3000))
    assert all(0.28 < count / 3000 < 0.39 for count in firsts.values()) and len(firsts) == 3


def test_replicas_of_different_speed_share_work_by_their_speed():
    """All requests are long, so each replica ends up with its share of them."""
    speeds = {"server": 8.0, "laptop": 1.0, "desktop": 3.0}
    for draw in (None, Random(3)):
        running: Counter[str] = Counter()
        for _ in range(1200):
            loads = [Load(name, running[name], speed) for name, speed in speeds.items()]
            running[ranked(loads, draw=draw)[0]] += 1
        for name, speed in speeds.items():
            share = running[name] / 1200 / (speed / sum(speeds.values()))
            assert 0.6 < share < 1.4, (draw, running)


def test_a_session_leaves_its_slow_replica_only_if_the_load_exceeds_the_slack():
    assert ranked([Load("slow", 0, 0.1), Load("fast", 0, 10.0)], "slow")[0] == "slow"
    assert ranked([Load("slow", SLACK + 1, 0.1), Load("fast", 0, 10.0)], "slow")[0] == "fast"


def test_independent_routers_send_a_session_to_the_same_replica():
    loads = [Load(name, 0) for name in "abcd"]
    for n in range(50):
        session = str(n).encode()
        assert home_of_session(session, loads) == home_of_session(session, [*reversed(loads)])
    assert home_of_session(b"x", []) is None


def test_a_replica_that_comes_takes_only_its_own_share_of_the_sessions():
    before, after = [Load(name, 0) for name in "abc"], [Load(name, 0) for name in "abcd"]
    sessions = [str(n).encode() for n in range(2000)]
    moved = [(home_of_session(one, before), home_of_session(one, after)) for one in sessions]
    assert {new for old, new in moved if old != new} == {"d"}
    assert 0.2 < sum(old != new for old, new in moved) / 2000 < 0.3


def test_sessions_are_shared_by_speed():
    loads = [Load("fast", 0, 3.0), Load("slow", 0, 1.0)]
    homes = Counter(home_of_session(str(n).encode(), loads) for n in range(4000))
    assert 0.70 < homes["fast"] / 4000 < 0.80
