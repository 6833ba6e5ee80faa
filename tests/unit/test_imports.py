"""Dependencies point one way, and what a driver imports stays light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = (
    {"errors", "home", "parent_death", "process_log"},
    {"config"},
    {"store"},
    {"algorithms", "rewards", "data", "models"},
    {"engine", "trainer", "rollout", "tracking"},
    {"cluster", "preflight"},
    {"tasks"},
    {"flows"},
    {"cli"},
)
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
HEAVY = ("torch", "ray", "vllm", "prefect", "megatron", "transformers", "s3fs")
LIGHT_MODULES = (
    "lora_rl.config",
    "lora_rl.store",
    "lora_rl.data.types",
    "lora_rl.engine",
    "lora_rl.engine.types",
    "lora_rl.trainer",
    "lora_rl.trainer.types",
    "lora_rl.trainer.init_adapter",
    "lora_rl.trainer.model_rules",
    "lora_rl.rollout",
    "lora_rl.cluster",
    "lora_rl.cluster.workstation",
    "lora_rl.cli",
)


def sources() -> list[Path]:
    return sorted(path for folder in ("lora_rl", "tasks", "flows") for path in (ROOT / folder).rglob("*.py"))


def package_of(module: str) -> str:
    """The layer's name of a dotted module: `lora_rl.store.refs` is of `store`, `tasks.step` of `tasks`."""
    first, *rest = module.split(".")
    return rest[0] if first == "lora_rl" and rest else first


def imports(path: Path) -> Iterator[str]:
    """Every module that the file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "lora_rl":
                yield from (f"lora_rl.{alias.name}" for alias in node.names)
            else:
                yield node.module


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_every_package_has_a_layer() -> None:
    assert {package_of(name_of(path)) for path in sources()} - {"__init__"} == LEVEL.keys()


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_module_imports_from_its_own_layer_or_below(path: Path) -> None:
    ours = LEVEL.get(package_of(name_of(path)), 0)
    above = [module for module in imports(path) if LEVEL.get(package_of(module), 0) > ours]
    assert not above


def test_the_library_imports_no_prefect_and_no_flow_but_for_the_command_that_runs_one() -> None:
    found = {
        (name_of(path), module)
        for path in sources()
        for module in imports(path)
        if path.is_relative_to(ROOT / "lora_rl") and module.split(".")[0] in ("prefect", "flows", "tasks")
    }
    assert found == {("lora_rl.cli.run", "flows.train")}


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_light_module_brings_in_no_heavy_one(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set({HEAVY!r}) & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.split() == []
