"""Eight virtual devices for every test, and a compiler that spends its time on being quick rather than clever."""

import os
from importlib.metadata import version

_FLAGS = {
    "xla_force_host_platform_device_count": "8",
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "true",
}
if version("jaxlib").startswith("0.10."):  # an unknown flag is fatal, and this one need not last
    _FLAGS["xla_cpu_use_fusion_emitters"] = "false"  # halves the time to compile a train step
_given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join(
    [_given, *(f"--{name}={value}" for name, value in _FLAGS.items() if name not in _given)]
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
