"""Checkpoints of a run: the newest state and the best on validation, written in the background.

A checkpoint is one safetensors file: the arrays of the state, and in its header the history of the
run and a SHA-256 of all, which every reader compares. It is replaced in one step, and one save ends
before the next begins: no "last" is on disk before the "best" that it names. If several processes
train a run, the first one writes.
"""

import concurrent.futures
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from lra_fnet.errors import UserError
from lra_fnet.machine import disk, progress
from lra_fnet.machine.disk import writable
from lra_fnet.training import hosts

FILE = "state.safetensors"
METRICS = "metrics.jsonl"  # next to the folder of the checkpoints
AGAIN = "restore it from a copy, or train again with --force"


class Saved(NamedTuple):
    """A checkpoint that was read; its SHA-256 is right."""

    path: Path
    step: int  # updates behind the state
    history: dict  # a JSON object
    arrays: dict[str, np.ndarray]  # by the path in the state, as in "params/encoder/embedding"

    @property
    def best_step(self) -> int | None:
        """The step of the checkpoint "best" that the history names."""
        return (self.history.get("best") or {}).get("step")

    def fill(self, like):
        """Returns the arrays structured and placed like `like`, which is the state or a part of it.

        Raises:
          UserError: it lacks an array of `like` or has it in another shape or type, because it
            belongs to another model.
        """
        placed = []
        for path, leaf in _by_path(like).items():
            array = self.arrays.get(path)
            if array is None or (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
                raise UserError(f"{self.path} does not fit the run's model at {path}: {AGAIN}")
            # A copy: it may be donated, and device_put shares the memory of a NumPy array.
            placed.append(jnp.copy(jax.device_put(array, leaf.sharding)))
        return jax.tree.unflatten(jax.tree.structure(like), placed)


class Checkpoints:
    """The checkpoints "last" and "best" of a run folder, for the process that trains."""

    def __init__(self, folder: Path, seconds_between: float = 0.0):
        self.folder = folder
        self._seconds_between = seconds_between  # of saves of the newest state
        self._last_begun = -float("inf")  # when the newest of these began
        self.writer = concurrent.futures.ThreadPoolExecutor(1)
        self._pending: concurrent.futures.Future | None = None

    def save(self, kind: str, step: int, state, history: dict, *, wait: bool = False) -> None:
        """Starts a save, after waiting for the one before.

        Args:
          kind: "last" or "best".
          step: the number of updates behind the state.
          state: a pytree of arrays; copied, so the caller may donate it.
          history: a JSON object to store with it.
          wait: whether to finish before returning, as at the end of a run and after a signal.

        Raises:
          UserError: the disk is full or read-only, now or in the save before.
        """
        if kind == "last":
            self._last_begun = time.perf_counter()
        self.wait()
        path, copy = _path(self.folder, kind), jax.tree.map(jnp.copy, state)
        if hosts.first():
            self._pending = self.writer.submit(_write, path, step, copy, json.dumps(history))
        if wait:
            self.wait()

    def may_save(self) -> bool:
        """Returns whether a due save of the newest state may start: none is in flight or recent."""
        recent = time.perf_counter() - self._last_begun < self._seconds_between
        idle = self._pending is None or self._pending.done()
        return idle and not recent

    def wait(self) -> None:
        """Blocks until no save is in flight.

        Raises:
          UserError: the disk refused it.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            with writable(self.folder):
                pending.result()

    def newest(self) -> Saved | None:
        """Returns the checkpoint from which a run goes on exactly; None if there is none yet.

        That is "last" if "best" is at the step that it names. Otherwise it is "best", which may be
        newer, or older: training depends on the seed and the step only, so it gives the same again.

        Raises:
          UserError: a checkpoint is damaged or lost, and the run can only start from step 0 again.
        """
        found, problems = {}, []
        for kind in ("last", "best"):
            try:
                found[kind] = load(self.folder, kind)
            except UserError as error:
                problems.append(str(error).removesuffix(f": {AGAIN}"))
        last, best = found.get("last"), found.get("best")
        chosen = last if last and last.best_step == (best and best.step) else best
        if last and chosen is best and (best is None or best.step < last.step):
            problems.append(f"{last.path} names another step as the best, {last.best_step}")
        if problems and chosen is None:
            raise UserError(f"{problems[0]}: {AGAIN}")
        if problems and chosen:
            progress.say(f"{problems[0]}; going on from step {chosen.step}, with the same result")
        return chosen


def exists(folder: Path) -> bool:
    """Returns whether a run folder has a checkpoint, readable or not."""
    return any(_path(folder, kind).exists() for kind in ("last", "best"))


def load(folder: Path, kind: str) -> Saved | None:
    """Returns the checkpoint of that kind of a run folder, or None if there is none.

    Raises:
      UserError: it is damaged.
    """
    path = _path(folder, kind)
    try:
        data = path.read_bytes()
        arrays = safetensors.numpy.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        if _digest(header["meta"], arrays) != header["sha256"]:
            raise ValueError("its content does not have its SHA-256")
        return Saved(path=path, arrays=arrays, **json.loads(header["meta"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({error}): {AGAIN}") from None


def read(folder: Path, kind: str, like: Mapping[str, Any], *, step: int) -> dict[str, Any]:
    """Reads the variables of the checkpoint of that kind.

    Args:
      folder: a run folder; it is not changed.
      kind: "last" or "best".
      like: their shapes, by collection.
      step: at which the run's record says that the checkpoint is.

    Returns:
      Arrays as in `like`, on the first device unless `like` has others.

    Raises:
      UserError: there is none, it is damaged, of another step, or does not fit.
    """
    saved = load(folder, kind)
    if saved is None:
        raise UserError(
            f"{folder} has no checkpoint {kind!r}: put its folder checkpoints back, or train again "
            "with --force"
        )
    if saved.step != step:
        raise UserError(f"{saved.path} is of step {saved.step}, expected step {step}: {AGAIN}")
    constants = {name: tree for name, tree in like.items() if name != "params"}
    state = saved.fill({"params": like["params"], "constants": constants})
    return {"params": state["params"], **state["constants"]}


def _path(folder: Path, kind: str) -> Path:
    return folder / "checkpoints" / kind / FILE


def _write(path: Path, step: int, state, history: str) -> None:
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in _by_path(state).items()}
    meta = f'{{"step": {step}, "history": {history}}}'
    header = {"meta": meta, "sha256": _digest(meta, arrays)}
    path.parent.mkdir(parents=True, exist_ok=True)
    metrics = path.parents[2] / METRICS
    if metrics.exists():  # the history has the hash of its lines
        with open(metrics, "rb") as file:
            os.fsync(file.fileno())
    disk.replace(path, safetensors.numpy.save(arrays, header))


def _by_path(tree) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _digest(meta: str, arrays: dict[str, np.ndarray]) -> str:
    return sha256({**arrays, "meta": np.frombuffer(meta.encode(), np.uint8)})


def sha256(tree) -> str:
    """Returns a hash of the paths and bytes of all arrays; their shapes and dtypes do not count."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.ascontiguousarray(jax.device_get(leaf)).tobytes())
    return digest.hexdigest()
