"""Eight virtual devices for every test, and a compiler that spends its time on being quick rather than clever."""

import os

_FLAGS = {
    "xla_force_host_platform_device_count": "8",
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "true",
}
_given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join(
    [_given, *(f"--{name}={value}" for name, value in _FLAGS.items() if name not in _given)]
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
