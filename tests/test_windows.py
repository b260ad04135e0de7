"""The Python side where the system is Windows, as far as another system can tell."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LACKING = ["termios", "fcntl", "resource", "pwd", "grp", "tty", "pty"]  # modules that Python has only on POSIX

IMPORTS = """
import importlib, pkgutil, sys
lacking = set(sys.argv[1].split(","))

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in lacking:
            raise ModuleNotFoundError(name)

for name in lacking:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
import rwkv_gpu
for module in pkgutil.walk_packages(rwkv_gpu.__path__, "rwkv_gpu."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def test_every_module_imports_without_what_windows_lacks():
    command = [sys.executable, "-c", IMPORTS, ",".join(LACKING)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
