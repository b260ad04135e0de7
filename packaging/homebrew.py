"""Prints a Homebrew formula: `python packaging/homebrew.py SDIST URL`, where URL is that of the published archive.

The formula makes an environment of its own and installs the archive there with the server, as wheels, by pip.
"""

import hashlib
import re
import sys
from pathlib import Path

FORMULA = """class RwkvGpu < Formula
  include Language::Python::Virtualenv

  desc "Run GGUF language models on your GPU, without CUDA or a compiler"
  homepage "{home}"
  url "{url}"
  sha256 "{sha256}"
  license "MIT"

  depends_on "python@3.13"

  def install
    python = Formula["python@3.13"].opt_bin/"python3.13"
    system python, "-m", "venv", libexec
    system libexec/"bin/pip", "install", "--disable-pip-version-check", "#{{buildpath}}[server]"
    bin.install_symlink libexec/"bin/rwkv-gpu"
    generate_completions_from_executable(bin/"rwkv-gpu", "completion")
  end

  service do
    run [opt_bin/"rwkv-gpu", "serve"]
    keep_alive true
    log_path var/"log/rwkv-gpu.log"
    error_log_path var/"log/rwkv-gpu.log"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/rwkv-gpu --version")
    assert_match(/yes|no/, shell_output("#{{bin}}/rwkv-gpu generate --device cpu -p x --regex 'yes|no'"))
  end
end
"""


def formula(archive: Path, url: str) -> str:
    """The formula of a source archive that is published at a URL."""
    if not re.fullmatch(r"https://[^\s\"#]+", url) or not re.fullmatch(r"rwkv_gpu-[\w.]+\.tar\.gz", archive.name):
        raise SystemExit(f"{archive.name} must be a source archive of rwkv-gpu, and {url} an https address")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    return FORMULA.format(url=url, sha256=digest, home=url.rpartition("/")[0])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    print(formula(Path(sys.argv[1]), sys.argv[2]), end="")
