"""Runs a JavaScript module in Debian's Chromium with software WebGPU, or in Node without a GPU; returns its result."""

import functools
import http.server
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
# Its software WebGPU compiles for minutes, so only `make test-page` runs these tests.
ASKED = PROGRAM is not None and "TEST_PAGE" in os.environ
needs_chromium = pytest.mark.skipif(not ASKED, reason="needs Chromium: run by make test-page")
NODE = shutil.which("node")
needs_javascript = pytest.mark.skipif(NODE is None and not ASKED, reason="needs Node, or Chromium in make test-page")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu-sandbox", "--no-first-run", "--disable-extensions",
    "--disable-dev-shm-usage", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
)  # fmt: skip
PAGE = """<!doctype html><meta charset="utf-8"><script type="module">
const report = (value) => fetch("/report", { method: "POST", body: JSON.stringify(value) });
try {
  const { default: run } = await import("./test.js");
  await report({ value: await run() });
} catch (error) {
  await report({ error: `${error.name}: ${error.message} ${error.stack ?? ""}` });
}
</script>"""
PATIENCE = 1500  # seconds, for a machine that other programs use as well


def decode_only(manifest: dict[str, Any]) -> dict[str, Any]:
    """Returns a manifest whose prompts take steps of one token: the other plans take most of the compile time."""
    return {**manifest, "variants": [{**one, "plans": one["plans"][:1]} for one in manifest["variants"]]}


class _Handler(http.server.SimpleHTTPRequestHandler):
    reports: "queue.Queue[dict[str, Any]]"

    def do_POST(self) -> None:
        self.reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Writes no log."""


def run_in_browser(folder: Path, script: str) -> Any:
    """Serves a folder, imports `script` there as a module, and returns what its default export returns."""
    (folder / "test.js").write_text(script)
    (folder / "test.html").write_text(PAGE)
    reports: queue.Queue[dict[str, Any]] = queue.Queue()
    handler = type("Handler", (_Handler,), {"reports": reports})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            url = f"http://127.0.0.1:{server.server_address[1]}/test.html"
            command = [str(PROGRAM), *FLAGS, f"--user-data-dir={profile}", url]
            browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                report = reports.get(timeout=PATIENCE)
            finally:
                browser.kill()
                browser.wait()
        server.shutdown()
    assert "error" not in report, report["error"]
    return report["value"]


NODE_MAIN = """
import fs from "node:fs";
globalThis.fetch = async (name) => new Response(fs.readFileSync(new URL(name, import.meta.url)));
const { default: run } = await import("./test.js");
console.log(JSON.stringify(await run()));
"""


def run_without_gpu(folder: Path, script: str) -> Any:
    """Does what `run_in_browser` does with a script that needs no GPU: in Chromium if asked, else in Node."""
    if ASKED or NODE is None:
        return run_in_browser(folder, script)
    return run_in_node(folder, script)


def run_in_node(folder: Path, script: str) -> Any:
    """Does the same in Node, where `fetch` reads files of the folder."""
    for name, text in {"test.js": script, "main.js": NODE_MAIN, "package.json": '{"type": "module"}'}.items():
        (folder / name).write_text(text)
    done = subprocess.run([str(NODE), str(folder / "main.js")], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
