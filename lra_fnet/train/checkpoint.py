"""Orbax checkpoints of a run: the newest state and the best on validation, async and atomic.

A half-written checkpoint is ignored at restore and cleared at the next start. A due save of the
newest state is skipped, not waited for, while one is in flight or soon after the one before; a best
one is never dropped. Of several processes all call, the first writes, and all wait for it.
"""

import contextlib
import hashlib
import json
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
    """`last` and `best` below a run folder."""

    def __init__(self, folder: Path, seconds_between: float = 0.0):
        self.folder = folder
        self._seconds_between = seconds_between  # of saves of the newest state
        self._saved = -float("inf")
        self.blocked_seconds = 0.0  # time that saves kept the loop waiting
        with writable(folder):
            self._managers = {
                kind: ocp.CheckpointManager(
                    (folder / "checkpoints" / kind).absolute(),
                    options=ocp.CheckpointManagerOptions(
                        max_to_keep=1,
                        create=True,
                        cleanup_tmp_directories=True,
                        # Both may save the same step at once, and a barrier's name has the step.
                        multiprocessing_options=ocp.options.MultiprocessingOptions(
                            barrier_sync_key_prefix=kind
                        ),
                    ),
                )
                for kind in ("last", "best")
            }

    def save(self, kind: str, step: int, state, meta: dict, *, wait: bool = False) -> bool:
        """Starts a save; False if it was skipped: one of the newest state is in flight or recent.

        Args:
          kind: "last" or "best".
          step: the number of updates that the state has seen.
          state: a pytree of arrays; copied, so that the caller may donate its own.
          meta: a JSON object stored with it.
          wait: for the end of the run and for signals: finish before returning.

        Raises:
          UserError: the disk is full or read-only.
        """
        begun = time.perf_counter()
        manager = self._managers[kind]
        if kind == "last" and not wait:
            if not self.would_save():
                return False
            self._saved = begun
        if step == manager.latest_step():  # after a resume: the same state, bit for bit
            if wait:
                self.wait()
            return True
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
            if wait:
                self.wait()
        self.blocked_seconds += time.perf_counter() - begun
        return True

    def would_save(self) -> bool:
        """Whether a due save of the newest state would start now: none in flight or recent.

        Of several processes the first decides.
        """
        recent = time.perf_counter() - self._saved < self._seconds_between
        return hosts.agree(not recent and not self._managers["last"].is_saving_in_progress())

    def wait(self) -> None:
        """Returns when no save is in flight."""
        with writable(self.folder):
            for manager in self._managers.values():
                manager.wait_until_finished()

    def step(self, kind: str) -> int | None:
        """Step of the newest complete checkpoint of that kind."""
        return self._managers[kind].latest_step()

    def meta(self, kind: str) -> dict:
        """The JSON object stored with the newest complete checkpoint of that kind."""
        manager = self._managers[kind]
        restored = manager.restore(
            manager.latest_step(), args=ocp.args.Composite(meta=ocp.args.JsonRestore())
        )
        return json.loads(json.dumps(restored["meta"]))

    def restore(self, kind: str, like):
        """The newest complete state of that kind, shaped, typed and placed as `like`.

        Raises:
          UserError: it does not fit: the run folder is of another model.
        """
        manager = self._managers[kind]
        step = manager.latest_step()
        what = f"{self.folder}/checkpoints/{kind}/{step}"
        with _reading(what, "FORCE=1 moves the run aside and starts anew"):
            restored = manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(like))
            )
        # A fresh copy: the restored buffers may be shared with the reader, ours will be donated.
        return jax.tree.map(jnp.copy, restored["state"])

    def close(self) -> None:
        """Waits for what is in flight and frees the threads."""
        for manager in self._managers.values():
            manager.close()


def read(folder: Path, kind: str, like) -> tuple[int, Any]:
    """Step and state of the newest complete checkpoint of that kind; the folder stays as it is.

    Args:
      folder: a run folder.
      kind: "last" or "best".
      like: shapes of the part of the state that is wanted, a dict by its fields' names.

    Returns:
      the number of updates, and arrays as in `like` on the first device.

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
            item=jax.tree.map(lambda _: 0, like),  # with shapes it would not say which are others
            restore_args=jax.tree.map(lambda _: ocp.ArrayRestoreArgs(sharding=place), like),
            partial_restore=True,
        )
        with _reading(f"{root}/{step}", "copy it again"):
            state = manager.restore(step, args=ocp.args.Composite(state=wanted))["state"]
    held, expected = (jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (state, like))
    if held != expected:
        raise UserError(f"{root}/{step} holds arrays of other shapes than the run's model")
    return step, state


@contextlib.contextmanager
def _reading(what: str, otherwise: str) -> Iterator[None]:
    """Makes one line of what Orbax says when it cannot read.

    Its other reads go on after that, and report to an event loop that it has closed: this is not
    shown.
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
        raise UserError(f"{what} cannot be read ({reason}): {otherwise}") from None
    sys.unraisablehook = before


def sha256(tree) -> str:
    """Hash of every array's bytes in the tree's order: equal only for bitwise equal states."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.ascontiguousarray(jax.device_get(leaf)).tobytes())
    return digest.hexdigest()
