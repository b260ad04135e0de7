"""Tests of the page's speed: its first paint, long conversations, and fast streams."""

import os
from statistics import median
from typing import Any

import pytest
from playwright.sync_api import CDPSession, Page, expect

FRAME = 1000 / 60  # milliseconds

LONG_TALK = """async () => {
    const conversation = newConversation();
    let parent = null;
    for (let n = 0; n < 1000; n++) parent = addNode(conversation, parent, n % 2 ? "assistant" : "user", `Message **${n}** with \\`code\\` and some words.\n\n- a list\n- of two`).id;
    await store.put(conversation);
    await openConversation(conversation.id);
}"""

SCROLL = """() => new Promise((resolve) => {
    const box = document.getElementById("scroll");
    const times = [];
    const step = (now) => {
        times.push(now);
        box.scrollTop -= 300;
        if (times.length < 120) requestAnimationFrame(step);
        else resolve(times.slice(1).map((time, n) => time - times[n]));
    };
    requestAnimationFrame(step);
})"""

STREAM = """async () => {
    const conversation = newConversation();
    const parent = addNode(conversation, null, "user", "go");
    const node = addNode(conversation, parent.id, "assistant", "", { thinking: "" });
    state.current = conversation;
    drawConversation();
    const view = views.get(node.id);
    let worst = 0, last = performance.now();
    for (let n = 0; n < 3000; n++) {  // three seconds at 1,000 a second
        node.content += n % 40 ? "word " : "\\n\\n";
        view.stream(node);
        if (n % 16 === 0) {
            await new Promise((resolve) => setTimeout(resolve, 16));
            const now = performance.now();
            worst = Math.max(worst, now - last);
            last = now;
        }
    }
    return worst;
}"""


def paint(page: Page) -> float:
    """Returns the milliseconds from the navigation to the first paint with content."""
    page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
    return float(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))


def busy_seconds(session: CDPSession) -> float:
    """Returns the CPU seconds that the page's thread has used so far."""
    metrics: list[dict[str, Any]] = session.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


def is_quiet() -> bool:
    """True if this machine has little other work, so that the times measure the page."""
    return os.getloadavg()[0] < (os.cpu_count() or 1) / 2


def test_the_first_paint_comes_within_300_ms(make_page):
    times = [paint(make_page()) for _ in range(5)]
    print(f"first paint: {', '.join(f'{time:.0f}' for time in times)} ms")
    if is_quiet():
        assert min(times) < 300  # slower runs show the load of the machine


@pytest.fixture
def long_talk(page: Page) -> Page:
    page.evaluate(LONG_TALK)
    expect(page.locator("article")).to_have_count(1000)
    return page


def test_a_long_chat_scrolls_at_60_frames_a_second(context, long_talk):
    session = context.new_cdp_session(long_talk)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = busy_seconds(session)
    frames = long_talk.evaluate(SCROLL)
    work = 1000 * (busy_seconds(session) - before) / len(frames)
    print(f"scrolling: median frame {median(frames):.1f} ms, worst {max(frames):.1f} ms, work {work:.1f} ms a frame")
    assert work < 0.75 * FRAME  # leaves room for what the browser itself does
    if is_quiet():
        assert median(frames) < 1.2 * FRAME


def test_fast_streams_do_not_freeze_the_page(context, page):
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = busy_seconds(session)
    worst = page.evaluate(STREAM)
    work = busy_seconds(session) - before
    print(f"1,000 tokens a second: longest pause {worst:.0f} ms, work {work:.2f} s in 3 s")
    assert work < 0.8  # drawing after each token takes 1 s
    if is_quiet():
        assert worst < 250
