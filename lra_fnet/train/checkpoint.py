"""Orbax checkpoints of a run: the newest state and the best on validation, async and atomic.

A half-written checkpoint is ignored at restore and cleared at the next start. A due save of the
newest state waits while another is in flight or recent (`Checkpoints.may_save`); a save of the best
state does not. All processes call these functions; the first one writes and the others wait for it.
"""

import contextlib
import hashlib
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from lra_fnet.errors import UserError
from lra_fnet.machine.disk import writable
from lra_fnet.train import hosts

# Orbax logs every save in several lines, and a traceback of each error that it also raises.
logging.getLogger("absl").setLevel(logging.CRITICAL)


class Checkpoints:
    """The checkpoints "last" and "best" of a run folder."""

    def __init__(self, folder: Path, seconds_between: float = 0.0):
        self.folder = folder
        self._seconds_between = seconds_between  # of saves of the newest state
        self._saved = -float("inf")
        self.blocked_seconds = 0.0  # how long saves kept the loop waiting
        with writable(folder):
            self._managers = {
                kind: ocp.CheckpointManager(
                    (folder / "checkpoints" / kind).absolute(),
                    options=ocp.CheckpointManagerOptions(
                        max_to_keep=1,
                        create=True,
                        cleanup_tmp_directories=True,
                        # Both may save a step at once, and Orbax names its barriers by the step.
                        multiprocessing_options=ocp.options.MultiprocessingOptions(
                            barrier_sync_key_prefix=kind
                        ),
                    ),
                )
                for kind in ("last", "best")
            }

    def save(self, kind: str, step: int, state, meta: dict, *, wait: bool = False) -> None:
        """Starts a save, after waiting for an earlier one of the same kind.

        Args:
          kind: "last" or "best".
          step: the number of updates behind the state.
          state: a pytree of arrays; copied, so the caller may donate it.
          meta: a JSON object to store with it.
          wait: whether to finish before returning, as at the end of a run and after a signal.

        Raises:
          UserError: the disk is full or read-only.
        """
        begun = time.perf_counter()
        manager = self._managers[kind]
        if step != manager.latest_step():  # after a resume: the same state, bit for bit
            if kind == "last":  # it names the best step, which must be on disk before it
                with writable(self.folder):
                    self._managers["best"].wait_until_finished()
            self._start(manager, step, state, meta)
        if wait:
            self.wait()
        if kind == "last":
            self._saved = begun
        self.blocked_seconds += time.perf_counter() - begun

    def _start(self, manager: ocp.CheckpointManager, step: int, state, meta: dict) -> None:
        needed = 1.1 * sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + 1e6
        with writable(self.folder):
            free = shutil.disk_usage(self.folder).free
            if free < needed:
                raise UserError(
                    f"no space left for {self.folder}: a checkpoint needs {needed / 1e6:.0f} MB, "
                    f"{free / 1e6:.0f} MB are free; free some, then run the same command to resume"
                )
            manager.wait_until_finished()
            copy = jax.tree.map(jnp.copy, state)
            manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(copy), meta=ocp.args.JsonSave(meta)
                ),
            )

    def may_save(self) -> bool:
        """Returns whether a due save of the newest state may start: none is in flight or recent.

        The first process decides for all.
        """
        recent = time.perf_counter() - self._saved < self._seconds_between
        return hosts.agree(not recent and not self._managers["last"].is_saving_in_progress())

    def wait(self) -> None:
        """Blocks until no save is in flight."""
        with writable(self.folder):
            for manager in self._managers.values():
                manager.wait_until_finished()

    def step(self, kind: str) -> int | None:
        """Returns the step of the newest complete checkpoint of that kind; None without one."""
        return self._managers[kind].latest_step()

    def meta(self, kind: str) -> dict:
        """Returns the JSON object stored with the newest complete checkpoint of that kind."""
        wanted = ocp.args.Composite(meta=ocp.args.JsonRestore())
        return self._managers[kind].restore(self.step(kind), args=wanted)["meta"]

    def restore(self, kind: str, like):
        """Returns the newest complete state of that kind, shaped, typed and placed like `like`.

        Raises:
          UserError: it does not fit, because the run folder belongs to another model.
        """
        step = self.step(kind)
        wanted = ocp.args.Composite(state=ocp.args.StandardRestore(like))
        remedy = "--force moves the run aside and starts again"
        with _reading(f"{self.folder}/checkpoints/{kind}/{step}", remedy):
            restored = self._managers[kind].restore(step, args=wanted)
        # A copy, because it will be donated and the reader may share the restored buffers.
        return jax.tree.map(jnp.copy, restored["state"])

    def close(self) -> None:
        """Waits for saves in flight and frees the threads."""
        for manager in self._managers.values():
            manager.close()


def read(folder: Path, kind: str, like) -> tuple[int, Any]:
    """Reads the newest complete checkpoint of that kind without changing the folder.

    Args:
      folder: a run folder.
      kind: "last" or "best".
      like: shapes of the wanted part of the state, a dict by the names of its fields.

    Returns:
      The number of updates, and arrays as in `like` on the first device.

    Raises:
      UserError: there is none, or it does not fit.
    """
    root = (folder / "checkpoints" / kind).absolute()
    if not root.is_dir():
        raise UserError(f"{folder} has no checkpoint {kind!r}: copy the whole run folder")
    options = ocp.CheckpointManagerOptions(read_only=True, create=False)
    place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    with ocp.CheckpointManager(root, options=options) as manager:
        step = manager.latest_step()
        if step is None:
            raise UserError(f"{root} has no complete checkpoint: copy the whole run folder")
        wanted = ocp.args.PyTreeRestore(
            item=jax.tree.map(lambda _: 0, like),  # with shapes, Orbax would not say which differ
            restore_args=jax.tree.map(lambda _: ocp.ArrayRestoreArgs(sharding=place), like),
            partial_restore=True,
        )
        with _reading(f"{root}/{step}", "copy it again"):
            state = manager.restore(step, args=ocp.args.Composite(state=wanted))["state"]
    shapes, expected = (jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (state, like))
    if shapes != expected:
        raise UserError(
            f"{root}/{step} holds arrays of other shapes than the run's model: copy it again"
        )
    return step, state


@contextlib.contextmanager
def _reading(path: str, remedy: str) -> Iterator[None]:
    """Turns Orbax's errors of reading into a one-line UserError.

    After an error, Orbax's other reads go on and report to an event loop that it has closed; these
    reports are not shown.
    """
    before = sys.unraisablehook

    def hook(unraisable, /):
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    except (ValueError, KeyError, TypeError, OSError) as error:
        reason = str(error).splitlines()[0].partition(" [tensorstore_spec")[0]
        raise UserError(f"{path} cannot be read ({reason}): {remedy}") from None
    sys.unraisablehook = before


def sha256(tree) -> str:
    """Returns a hash of all arrays and their paths, equal only for bitwise equal trees."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.ascontiguousarray(jax.device_get(leaf)).tobytes())
    return digest.hexdigest()
