import subprocess
import sys
from pathlib import Path

import maskworld.data

FORBIDDEN = ("jax", "jaxlib", "flax", "optax", "orbax")


def test_no_module_of_the_data_room_imports_jax():
    names = sorted(path.stem for path in Path(maskworld.data.__path__[0]).glob("*.py") if path.stem != "__init__")
    program = "\n".join(
        [f"import sys, maskworld.data.{', maskworld.data.'.join(names)}"]
        + [f"print([name for name in sys.modules if name.split('.')[0] in {FORBIDDEN}])"]
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert len(names) > 8
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
