"""The import rules of the house (CONTRIBUTING.md), read from the sources and from a fresh interpreter."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HTTP = {"fastapi", "starlette", "uvicorn", "httpx", "requests", "aiohttp", "http", "urllib", "socket"}


def imports(file: Path) -> set[str]:
    """Every module that a file imports anywhere, also inside functions; each with its parents' names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            found |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.split(".")[0] for name in found} | found


def sources(package: str) -> list[Path]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"{package}/ holds no sources"
    return files


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", sources("model"), ids=name)
def test_model_knows_neither_app_nor_training_nor_http(file: Path) -> None:
    assert not imports(file) & ({"app", "training"} | HTTP)


def test_bert_service_loads_a_package_only_when_its_command_runs() -> None:
    found = {module.partition(".")[0] for module in imports(ROOT / "bert_service.py")}
    assert found <= sys.stdlib_module_names | {"app", "training"}
    assert not loaded_by("import bert_service") & {"app", "model", "training"}


@pytest.mark.parametrize("file", sources("client"), ids=name)
def test_client_needs_httpx_only(file: Path) -> None:
    found = {module.partition(".")[0] for module in imports(file)}
    assert found <= sys.stdlib_module_names | {"bert_client", "bert_tables", "httpx"}


@pytest.mark.parametrize("file", sources("client/bert_tables"), ids=name)
def test_tables_need_the_standard_library_only(file: Path) -> None:
    found = {module.partition(".")[0] for module in imports(file)}
    assert found <= sys.stdlib_module_names | {"bert_tables"}


@pytest.mark.parametrize("file", sources("app"), ids=name)
def test_app_imports_neither_training_nor_the_client(file: Path) -> None:
    assert not imports(file) & {"training", "bert_client", "bert_tables"}


@pytest.mark.parametrize("file", sources("training"), ids=name)
def test_training_never_imports_app_or_client(file: Path) -> None:
    assert not imports(file) & {"app", "bert_client"}


TRAINING_LAYERS = (
    *("errors", "recipe", "problems", "runtime", "sources", "corpus", "examples", "metrics", "loop"),
    *("pretrain", "finetune", "stage", "pipeline", "evaluate", "export", "classify", "cluster", "command", "__main__"),
)
"""From the bottom to the top: a package imports itself and those before it."""

APP_LAYERS = (
    *("errors", "settings", "observability", "inference", "batching", "tasks", "http", "server", "cluster", "__main__"),
)
CLIENT_LAYERS = ("wire", "errors", "results", "http", "command", "__init__")
TABLES_LAYERS = (
    "errors",
    "dialect",
    "missing",
    "cells",
    "delimited",
    "header",
    "files",
    "json_lines",
    "reader",
    "__init__",
)
MODEL_LAYERS = (
    *("errors", "timing", "config", "dropout", "packing", "attention", "bert", "heads", "files", "tokenizer_dir"),
    *("word_ids", "tokenizer", "checkpoint", "inference", "__init__"),
)

MAX_MODULES = 14
"""In a folder: with more, a reader does not find the module."""


def module_name(file: Path) -> str:
    """The name by which a file is imported."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "client" else parts)


def layer(module: str) -> str:
    """`training.corpus.reader` -> `corpus`."""
    return [*module.split("."), "__init__"][1]


LAYERS = {
    "app": APP_LAYERS,
    "client/bert_client": CLIENT_LAYERS,
    "client/bert_tables": TABLES_LAYERS,
    "training": TRAINING_LAYERS,
    "model": MODEL_LAYERS,
}


@pytest.mark.parametrize(("package", "layers"), LAYERS.items(), ids=LAYERS)
def test_layers_import_downwards(package: str, layers: tuple[str, ...]) -> None:
    upwards = []
    for file in sources(package):
        own = layer(module_name(file))
        if own == "__init__":  # the package's own names are loaded on demand
            continue
        ours = (module for module in imports(file) if module.startswith(f"{package.removeprefix('client/')}."))
        upwards += [f"{name(file)} imports {m}" for m in ours if layers.index(layer(m)) > layers.index(own)]
    assert not upwards


def test_protocols_are_adapters_that_only_the_application_knows() -> None:
    knowing = {name(file) for file in sources("app") if "app.http.protocols" in imports(file)}
    assert {file for file in knowing if not file.startswith("app/http/protocols/")} == {"app/http/application.py"}


@pytest.mark.parametrize("package", LAYERS)
def test_modules_have_no_import_circle(package: str) -> None:
    modules = {module_name(file): file for file in sources(package)}
    graph = {module: imports(file) & modules.keys() for module, file in modules.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("package", LAYERS)
def test_folders_are_small(package: str) -> None:
    counts = Counter(file.parent for file in sources(package) if file.name != "__init__.py")
    assert {str(folder): count for folder, count in counts.items() if count > MAX_MODULES} == {}


@pytest.mark.parametrize("file", sources("app"), ids=name)
def test_only_torch_backend_imports_torch(file: Path) -> None:
    assert file.name == "torch_backend.py" or "torch" not in imports(file)


@pytest.mark.parametrize("file", [*sources("app"), *sources("training")], ids=name)
def test_only_ray_serve_imports_ray(file: Path) -> None:
    assert file.name == "ray_serve.py" or "ray" not in imports(file)


def loaded_by(statement: str) -> set[str]:
    """Names of all modules in a fresh interpreter after a statement, warnings being errors."""
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module", ["app.batching.engine", "app.server.main", "bert_client.http.client", "bert_client.command.main"]
)
def test_what_needs_no_tensors_loads_no_torch(module: str) -> None:
    assert "torch" not in loaded_by(f"import {module}")


def test_training_imports_no_package_that_a_machine_with_a_gpu_may_lack() -> None:
    loaded = loaded_by("import training.command")
    assert not loaded & {"sklearn", "matplotlib", "datasets", "nltk", "pyarrow", "sentencex"}


# Opening a weights file, starting a thread or a process: what an import must not do.
WATCH = """
import threading
def watch(event, args):
    opened = event == 'open' and str(args[0]).endswith(('.safetensors', 'tokenizer.json', 'config.json'))
    assert not opened and event != 'subprocess.Popen', (event, args)
sys.addaudithook(watch)
"""


@pytest.mark.parametrize(
    ("before", "module"),
    # CUDA's torch starts ldconfig.
    [("", "model"), ("", "app.http.application"), ("import torch", "training.command")],
)
def test_importing_does_nothing_else(before: str, module: str) -> None:
    watched = f"{before}\n{WATCH}\nimport {module}"
    loaded = loaded_by(f"{watched}\nassert threading.active_count() == 1, threading.enumerate()")
    http = loaded & {"fastapi", "starlette", "uvicorn", "httpx"}
    assert module.startswith("app.") or not http
