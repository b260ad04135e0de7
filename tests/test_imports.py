"""Imports follow the layers: a module may import lower layers, never higher ones."""

import ast
import functools
import tomllib
from collections.abc import Set
from pathlib import Path

from tests.cases import each

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "rwkv_gpu"

# The allowed imports of each part of the package; every part may import `errors`, `replace_file` and `writer_lock`.
MAY_IMPORT = {
    "gguf": {"gguf"},
    "gpu": {"gpu", "gguf"},
    "kernels": {"kernels", "gpu", "gguf"},
    "ops": {"ops", "kernels", "gpu", "gguf"},
    "models": {"models", "ops.vocabulary", "gguf"},
    "text": {"text", "gguf"},
    "engine": {"engine", "models", "ops", "kernels", "gpu", "gguf"},
    "builtin": {"builtin"},
    "convert": {"convert", "models", "gguf"},
    "stores": {"stores"},
    "mcp": {"mcp"},
    "llm": {"llm", "stores", "builtin", "text", "vision", "engine", "models", "ops", "kernels", "gpu", "gguf"},
    "page": {"page"},
    "export": {"export", "page", "llm", "text", "engine", "models", "ops", "kernels", "gpu", "gguf"},
    "vision": {"vision", "engine", "models", "ops", "gpu", "gguf"},
    "measure": {"measure", "engine", "models", "ops", "kernels", "gpu", "gguf"},
    "ray": {
        "ray",
        "server",
        "llm",
        "gpu.adapters",
        "cli.ray_settings",
        "cli.batch_answer",
        "cli.load_model",
        "cli.model_name",
    },
    "server": {"server", "page", "llm", "mcp", "text", "engine"},
    "__init__": {"builtin", "llm", "engine.sampling_params"},
    "errors": set(),
    "replace_file": set(),
    "writer_lock": set(),
    "shaders": set(),
}
MODULES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def import_nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Returns the import statements of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


@functools.cache
def imported(path: Path) -> set[str]:
    """Returns every module that a file imports, absolute and dotted, including imports inside functions."""
    package = [*path.relative_to(ROOT).parent.parts]
    found = set()
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        else:
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return found


def part_of(path: Path) -> str:
    inside = path.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


@each("path", MODULES)
def test_imports_go_one_way(path):
    allowed = MAY_IMPORT[part_of(path)]
    for name in imported(path):
        if not name.startswith("rwkv_gpu."):
            continue
        inside = name.removeprefix("rwkv_gpu.")
        open_to_all = {"errors", "replace_file", "writer_lock"}
        fine = any(inside == part or inside.startswith(part + ".") for part in {*allowed, *open_to_all})
        assert fine, f"{path.relative_to(ROOT)} may not import {name}"


@each("path", MODULES)
def test_only_gpu_imports_wgpu(path):
    uses = any(name.split(".")[0] == "wgpu" for name in imported(path))
    assert not uses or part_of(path) == "gpu"


@each("path", MODULES)
def test_the_environment_is_read_only_by_the_command_line_and_to_find_folders_and_the_hub(path):
    if path.name == "folders.py":
        return
    text = path.read_text(encoding="utf-8")
    assert "os.environ" not in text
    assert "getenv" not in text


def test_every_folder_has_a_rule():
    assert {part_of(path) for path in MODULES} <= MAY_IMPORT.keys()


def modules() -> dict[str, Path]:
    """Returns every module of the package and of the command line by its name."""
    places = {path: path.relative_to(ROOT) for path in MODULES}
    places |= {path: "rwkv_gpu" / path.relative_to(ROOT) for path in (ROOT / "cli").rglob("*.py")}
    return {".".join(place.with_suffix("").parts): path for path, place in places.items()}


LONGEST = 60  # lines of a function
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


@each("path", sorted(modules().values()))
def test_no_function_is_long(path):
    functions = (one for one in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(one, FUNCTIONS))
    long = {one.name for one in functions if one.end_lineno - one.lineno >= LONGEST}
    assert not long, f"more than {LONGEST} lines: {', '.join(sorted(long))}"


def neighbours(name: str, path: Path, every: Set[str]) -> set[str]:
    """Returns the modules that a module imports, including imports for types and inside functions."""
    package, found = name.split(".")[:-1], set()
    for node in import_nodes(path):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found |= {inner, f"{inner}.__init__"} & every or {base, f"{base}.__init__"} & every
    return found - {name}


def test_no_modules_import_each_other():
    every = {name: path for name, path in modules().items() if name != "rwkv_gpu.__init__"}
    graph = {name: neighbours(name, path, every.keys()) for name, path in every.items()}
    assert sum(map(len, graph.values())) > 3 * len(graph) / 2
    while leaves := {name for name, found in graph.items() if not found}:
        graph = {name: found - leaves for name, found in graph.items() if name not in leaves}
    assert not graph, f"these import each other: {', '.join(sorted(graph))}"


def test_every_folder_of_modules_is_in_the_wheel():
    root = Path(__file__).resolve().parent.parent
    listed = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(root) for path in (root / "rwkv_gpu").rglob("*.py")}
    assert {".".join(folder.parts) for folder in folders} <= {*listed}
