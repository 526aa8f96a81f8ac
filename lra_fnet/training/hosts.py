"""Runs several processes as one, on one machine or on many: they join, agree and end together.

JAX's coordination service joins them, and its heartbeats end the others if one dies or hangs.
Values are agreed on by collectives, which every process must call in the same order, so only the
main thread calls these functions. In a run of one process they do nothing.
"""

import contextlib
import json
import os
import time
import traceback
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from lra_fnet.errors import Interrupted, RunFailed, UserError, one_line
from lra_fnet.machine import progress, signals

SILENT_SECONDS = 30  # without a heartbeat, a process counts as lost
JOIN_SECONDS = 60  # for all processes to join, unless --join-seconds says otherwise


@contextlib.contextmanager
def join(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    *,
    detect: bool = False,
    join_seconds: int | None = None,
) -> Iterator[None]:
    """Joins the other processes for the block and leaves together with them; call it before jax.

    An error of one process ends it at once, and the others once its heartbeats are missing. A
    signal, divergence and a full device reach all alike and pass through.

    Args:
      coordinator: HOST:PORT of process 0; PORT is any free one. None for a run of one process.
      processes: number of processes.
      process: index of this process, from 0.
      detect: takes what is None from the cluster (SLURM, Open MPI, Cloud TPU, Kubernetes).
      join_seconds: for all processes to join; None: JOIN_SECONDS.

    Raises:
      UserError: JAX cannot use the arguments.
    """
    if not detect and coordinator is processes is process is None:
        yield
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            cluster_detection_method=None if detect else "deactivate",
            initialization_timeout=join_seconds or JOIN_SECONDS,
            heartbeat_timeout_seconds=SILENT_SECONDS,
            shutdown_timeout_seconds=2 * SILENT_SECONDS,
        )
    except (ValueError, LookupError, RuntimeError, OSError) as error:
        raise UserError(
            "several hosts need --coordinator HOST:PORT, --processes N and --process I, or --hosts "
            f"auto on a cluster: {one_line(error)}"
        ) from None
    try:
        progress.console.quiet = not first()
        agree(None)  # a first collective waits half a minute for the others, later ones longer
        yield
    except (Interrupted, RunFailed):
        jax.distributed.shutdown()
        raise
    except UserError as error:
        signals.end(error.code, one_line(error))
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # of a collective without its peer
        signals.end(os.EX_TEMPFAIL, f"{one_line(error, 200)}; the same command resumes")
    except Exception:
        traceback.print_exc()
        signals.end(1, "this process ends, and the others with it")
    jax.distributed.shutdown()


def first() -> bool:
    """Returns whether this process writes and prints: process 0, or the only one."""
    return jax.process_index() == 0


def agree(value: Any) -> Any:
    """Returns process 0's JSON value in every process, once all have called it."""
    if jax.process_count() == 1:
        return value
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(data.size)))
    sent = multihost_utils.broadcast_one_to_all(np.resize(data, size))
    return json.loads(sent.tobytes())


def gather(values: Sequence[int]) -> np.ndarray:
    """Returns the values of every process, int32 [processes, len(values)]."""
    mine = np.asarray(values, np.int32)
    return mine[None] if jax.process_count() == 1 else multihost_utils.process_allgather(mine)


def same(what: str, value: Any) -> None:
    """Raises a UserError in every process unless all have the same JSON value."""
    digests = gather([zlib.crc32(json.dumps(value, sort_keys=True).encode()) >> 1])
    if (digests != digests[0]).any():
        raise UserError(f"expected one {what} in all processes, got several: make them equal")


def check_shared(file: Path) -> None:
    """Waits until this process sees a file of process 0; NFS shows a new one with a delay.

    Raises:
      UserError: it does not appear.
    """
    deadline = time.monotonic() + SILENT_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            folder = file.parent.resolve()
            raise UserError(f"--runs expects a folder that all hosts share, got {folder}")
        time.sleep(0.1)
