"""Where a result comes from: the commit, the versions and the device of this process."""

import contextlib
import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

import jax

from lra_fnet import __version__
from lra_fnet.run.result import Device, Process


def of_process() -> Process:
    """Returns the code and the machine of this process."""
    packages = ("jax", "jaxlib", "flax", "optax", "safetensors", "numpy", "gin-config")
    versions = {"python": platform.python_version(), "lra_fnet": __version__}
    versions |= {name: importlib.metadata.version(name) for name in packages}
    device = Device(
        name=_device_name(),
        platform=jax.default_backend(),
        count=jax.device_count(),
        cores=len(os.sched_getaffinity(0)),
    )
    settings = {  # which change the last bits of a result
        "XLA_FLAGS": os.environ.get("XLA_FLAGS"),
        "JAX_DEFAULT_MATMUL_PRECISION": jax.config.values["jax_default_matmul_precision"],
    }
    versions |= {name: str(value) for name, value in settings.items() if value}
    return Process(device, versions, *commit())


@functools.cache
def commit() -> tuple[str | None, bool | None]:
    """Returns the commit of this code and whether tracked files differ; None if neither is known.

    That is as it was at the first call, since the code of a process stays what it imported. An
    installed wheel has a file that hatch_build.py wrote; a checkout has git.
    """
    package = Path(__file__).parents[1]
    # Without optional locks, a kill leaves no .git/index.lock behind.
    git = ["git", "--no-optional-locks", "-C", str(package.parent)]

    def answer(*words):
        return subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout

    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        if (package / "commit").is_file():
            described = (package / "commit").read_text()
        elif Path(answer("rev-parse", "--show-toplevel").rstrip("\n")) != package.parent.resolve():
            return None, None  # it was copied into another project
        else:
            described = answer("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
        described = described.strip()
        return described.removesuffix("-dirty"), described.endswith("-dirty")
    return None, None


def _device_name() -> str:
    device = jax.devices()[0]
    if device.platform != "cpu":
        return device.device_kind
    with contextlib.suppress(OSError):
        match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        if match:
            return match[1]
    return platform.processor() or platform.machine()
