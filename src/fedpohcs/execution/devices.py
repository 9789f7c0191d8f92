"""Configures the host devices and the persistent compilation cache of JAX."""

import os
from pathlib import Path

import jax


def configure_jax(num_devices: int) -> None:
    """Give JAX so many single-threaded host devices and a persistent compilation cache.

    The number does not follow the cores, because XLA cuts its loops by it and the last digits of a result with them.
    Must run before JAX is first used to have its full effect; later calls change nothing. What the user has set in
    the environment stays.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        # The devices fill the cores already; threads of XLA's own pool would compete with them.
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    os.environ.setdefault("PJRT_NPROC", str(num_devices))
    if "JAX_NUM_CPU_DEVICES" not in os.environ and "xla_force_host_platform_device_count" not in flags:
        try:
            jax.config.update("jax_num_cpu_devices", num_devices)
        except RuntimeError:  # JAX is in use already: run on the devices it has
            return
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def describe_devices() -> str:
    """The devices that JAX runs on, such as `2 x cpu` or `1 x gpu (NVIDIA L4)`. Starts JAX if it has not started."""
    devices = jax.local_devices()
    platform, kind = devices[0].platform, devices[0].device_kind
    return f"{len(devices)} x {platform}" + ("" if kind == platform else f" ({kind})")


def cache_folder() -> Path:
    """Where compiled programs are kept: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fedpohcs"
