"""Pages about all replicas: metrics, slots and health."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (.+)")


def merged_metrics(pages: Mapping[str, str]) -> str:
    """Merges Prometheus texts; each sample gets the label `replica`."""
    families: dict[str, list[str]] = {}
    heads: dict[str, list[str]] = {}
    for name, text in pages.items():
        family = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif found := SAMPLE.fullmatch(line):
                metric, labels, value = found.groups()
                all_labels = f'replica="{name}"' + (f",{labels}" if labels else "")
                families.setdefault(family, []).append(f"{metric}{{{all_labels}}} {value}")
    lines = [line for family, head in heads.items() for line in (*head, *families.get(family, ()))]
    return "".join(f"{line}\n" for line in lines)


def merged_slots(lists: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The requests of all replicas, renumbered."""
    slots = [{**slot, "replica": name} for name, found in lists.items() for slot in found]
    return [{**slot, "id": number} for number, slot in enumerate(slots)]


def merged_health(states: Sequence[Mapping[str, Any]]) -> tuple[int, dict[str, Any]]:
    """Status and body: 200 if at least one replica serves requests."""
    known = [state for state in states if "models" in state]
    best = next((state for state in known if state["status"] == "ok"), known[0] if known else None)
    status = "loading" if best is None else best["status"]
    replicas = [{"id": state["id"], "device": state["device"], "status": state["status"]} for state in states]
    body = {"status": status, "models": best["models"] if best else [], "replicas": replicas}
    return (200 if status == "ok" else 503), body
