"""Nothing under `data/` brings in jax: its processes must not touch an accelerator."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import maskworld.data

FORBIDDEN = {"jax", "jaxlib", "flax", "optax", "orbax"}
FOLDER = Path(maskworld.data.__path__[0])
FILES = sorted(FOLDER.rglob("*.py"))


def test_importing_every_module_imports_no_jax():
    modules = [".".join(("maskworld", "data", *path.relative_to(FOLDER).with_suffix("").parts)) for path in FILES]
    modules = [name.removesuffix(".__init__") for name in modules]
    program = f"import sys\nfor name in {modules}: __import__(name)\n"
    program += f"print([name for name in sys.modules if name.split('.')[0] in {FORBIDDEN}])"
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert len(modules) > 60
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_no_function_imports_jax_later(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    assert not names & FORBIDDEN
