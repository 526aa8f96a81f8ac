"""One trainer for every task and encoder: the loop that drives the jitted programs of `step`."""

import concurrent.futures
import dataclasses
import math
import os
import signal
import time
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lra_fnet.errors import Interrupted, RunFailed
from lra_fnet.experiment import Experiment
from lra_fnet.machine import compile_cache, progress
from lra_fnet.machine.memory import device_bytes
from lra_fnet.models.encoder import parameter_count
from lra_fnet.tasks import Arrays
from lra_fnet.train import hosts, logs, pipeline
from lra_fnet.train.checkpoint import Checkpoints
from lra_fnet.train.step import (
    Program,
    StepLogs,
    initial_state,
    make_gradient,
    make_mesh,
    make_scorer,
    share_of,
    wait_for,
)

DISPATCH_SECONDS = 0.5  # a dispatch is cut so that it lasts about so long: Ctrl-C waits for one
SLOW_SECONDS = 1800.0  # a run on CPU that would take longer is announced


class Stop:
    """Notes SIGINT and SIGTERM for the loop to act on; a second SIGINT ends the process at once.

    A second SIGTERM does nothing: schedulers send it several times, and SIGKILL in the end.
    """

    def __init__(self):
        self.signal: int | None = None
        self._before: dict = {}

    def __enter__(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises KeyboardInterrupt where a signal was noted."""
        if self.signal is not None:
            raise KeyboardInterrupt(self.signal)

    def _note(self, number, frame):
        if self.signal is not None:
            if number == signal.SIGINT:
                os._exit(128 + number)
            return
        self.signal = number
        os.write(2, b"\nstopping: saving after the step in progress (Ctrl-C again: stop now)\n")


@dataclasses.dataclass
class History:
    """What a run remembers beside its state; it travels in the checkpoint's JSON."""

    best: dict | None = None  # validation sums of the best step, and its "step"
    last: dict | None = None  # of the newest evaluation
    window: dict = dataclasses.field(default_factory=lambda: {"loss": 0.0, "correct": 0.0})
    wall_seconds: float = 0.0  # compilation, evaluation and saves included
    timed_steps: int = 0  # steps after the first dispatch of a process
    timed_seconds: float = 0.0  # their time, evaluation taken out, saves left in


class Loop:
    """Trains one experiment in its run folder, from its newest checkpoint if there is one.

    With `fits` the microbatch is the largest at which a step fits the device (`step.fit`).
    """

    def __init__(
        self,
        experiment: Experiment,
        train: Arrays,
        validation: Arrays,
        folder: Path,
        seed: int,
        *,
        fits: bool = False,
    ):
        self.experiment = experiment
        self.run = experiment.run
        self.arrays, self.validation = train, validation
        self.folder, self.seed = folder, seed
        mesh = make_mesh(self.run.batch_size)
        self.share = share_of(mesh, self.run.batch_size)
        self.compiled = "nothing to compile"  # how long the update took
        self.score = make_scorer(experiment.model, self.run.eval_batch_size, mesh)
        self.checkpoints = Checkpoints(folder, self.run.save_seconds)
        if (self.checkpoints.step("last") or 0) < self.run.num_steps:
            self._compile(mesh, fits)
        state = initial_state(experiment, seed)
        hosts.same("state", {})  # Gloo's first collective waits half a minute at most
        self.state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
        self.parameters = parameter_count({"params": self.state.params})
        self.history = History()
        self.step = 0
        if self.checkpoints.step("last") is not None:
            self.state = self.checkpoints.restore("last", self.state)
            self.history = History(**self.checkpoints.meta("last"))
            self.step = int(self.state.step)
        self._saved_at = self.step
        self._begun = time.monotonic() - self.history.wall_seconds
        self._tick: float | None = None  # when the newest dispatch was known to be done
        self._seconds_a_step: float | None = None
        self._told_blocked = 0.0
        self._newest: dict = {}  # line of metrics.jsonl

    def __call__(self) -> None:
        """Runs to Run.num_steps.

        Raises:
          Interrupted: a signal came; the state is saved.
          RunFailed: the loss or the gradient is not finite; the last good checkpoint stays.
          UserError: the disk is full.
        """
        self.metrics = logs.Metrics(self.folder, self.step)
        hosts.same("begin", {})
        self.bar = progress.Bar("training", self.run.num_steps, self.step, "steps")
        feeder = concurrent.futures.ThreadPoolExecutor(1)
        try:
            with Stop() as stop, feeder, self.bar:
                self._run(stop, feeder)
            self.checkpoints.wait()
        finally:
            self.metrics.close()

    def _compile(self, mesh: Mesh, fits: bool) -> None:
        batches = jax.eval_shape(lambda: self._make_batches(0, 1, pipeline.WHOLE))
        with compile_cache.Timer() as timer:
            self.program = Program.compile(self.experiment, mesh, batches, self.seed, fits=fits)
        self.experiment = self.program.experiment
        self.run = self.experiment.run
        self.compiled = str(timer)

    def close(self) -> None:
        """Waits for saves in flight."""
        self.checkpoints.close()

    def _run(self, stop: Stop, feeder: concurrent.futures.Executor) -> None:
        end = self.run.num_steps
        queued = self.step  # steps dispatched so far; at most one dispatch ahead of self.step
        flying: list[tuple[int, StepLogs]] = []
        ahead = feeder.submit(self._batches, queued) if queued < end else None
        save_due, stopping = False, None
        if self._unevaluated():  # a signal came in that evaluation
            self._evaluate(stop)
        while self.step < end:
            boundary = self._boundary(self.step)
            while queued < boundary and len(flying) < 2 and not stopping:
                stopping = hosts.agree_on_signal(stop.signal)
                save_due = not stopping and self._save_due(queued)
                if stopping or save_due:
                    break
                assert ahead is not None
                count, batches = ahead.result()
                self.state, table = self.program.steps(self.state, batches, count)
                flying.append((count, table))
                queued += count
                ahead = feeder.submit(self._batches, queued) if queued < end else None
            if flying:
                self._finish(*flying.pop(0))
            if self.step == boundary and not flying:
                self._evaluate(stop)  # before a save, so that what resumes here has it behind it
            if save_due and not flying:
                self._save("last")
                self._saved_at = self.step
                save_due = False
            if stopping and not flying:
                break
        self._save("last", wait=True)
        if stopping := stopping or hosts.agree_on_signal(stop.signal):
            raise Interrupted(stopping, self.step)

    def _boundary(self, step: int) -> int:
        """The next step after which the loop evaluates."""
        every = self.run.eval_every
        return min(self.run.num_steps, every * (step // every + 1))

    def _unevaluated(self) -> bool:
        """Whether the loop stands at a step after which it evaluates, and has not."""
        evaluated = self.history.last["step"] if self.history.last else 0
        return evaluated < self.step == self._boundary(self.step - 1)

    def _save_due(self, queued: int) -> bool:
        """Whether to let what flies land, and save; every step is as good, all resume exactly."""
        enough = queued - self._saved_at >= self.run.save_every
        return enough and self.checkpoints.would_save()

    def _batches(self, step: int):
        """In the feeder's thread: the batches of the next dispatch, on the devices."""
        limit = 1
        if self._seconds_a_step:
            limit = max(1, int(DISPATCH_SECONDS / self._seconds_a_step))
        count = min(self.run.steps_per_dispatch, limit, self._boundary(step) - step)
        count = hosts.agree(count, "feeder")
        return count, self.program.place(self._make_batches(step, count, self.share))

    def _make_batches(self, step: int, count: int, share: slice) -> pipeline.Batch:
        # Room for two at least: XLA drops the indexing of a single batch and then fuses the step
        # in another way, which changes the last bits.
        capacity = max(2, self.run.steps_per_dispatch)
        return pipeline.train_batches(
            self.arrays, self.seed, step, count, self.run.batch_size, capacity, share
        )

    def _finish(self, count: int, table: StepLogs) -> None:
        """Waits for a dispatch, checks its numbers and logs the windows that it completes."""
        wait_for(table)
        now = time.monotonic()
        if self._tick is not None:
            seconds = now - self._tick
            self.history.timed_seconds += seconds
            self.history.timed_steps += count
            self._seconds_a_step = seconds / count
        self._tick = now
        loss, correct, grad_norm, rate = (np.asarray(column)[:count] for column in table)
        bad = np.flatnonzero(~(np.isfinite(loss) & np.isfinite(grad_norm)))
        if len(bad):
            first = int(bad[0])
            self._diverged(self.step + first, float(loss[first]), float(grad_norm[first]))
        for index in range(count):
            self.step += 1
            window = self.history.window  # _log begins a new one
            window["loss"] += float(loss[index])
            window["correct"] += float(correct[index])
            if self.step % self.run.log_every == 0:
                self._log(float(grad_norm[index]), float(rate[index]))
        self.bar.update(self.step, self._note())

    def _log(self, grad_norm: float, learning_rate: float) -> None:
        window, every, run = self.history.window, self.run.log_every, self.run
        rate = self.history.timed_steps / max(self.history.timed_seconds, 1e-9)
        blocked = self.checkpoints.blocked_seconds
        tokens_a_step = run.batch_size * self.arrays.values[0].size
        self._newest = {
            "loss": window["loss"] / every,
            "accuracy": window["correct"] / (every * run.batch_size),
            "learning_rate": learning_rate,
            "grad_norm": grad_norm,
            "steps_per_second": rate,
            "tokens_per_second": rate * tokens_a_step,
            "device_bytes": device_bytes()[0],
            "save_blocked_seconds": blocked - self._told_blocked,
        }
        self._told_blocked = blocked
        self.history.window = {"loss": 0.0, "correct": 0.0}
        self.metrics.write("train", self.step, self._newest)

    def _note(self) -> str:
        words = []
        if newest := self._newest:
            words.append(f"loss {newest['loss']:.3f} accuracy {newest['accuracy']:.3f}")
        if last := self.history.last:
            words.append(f"validation {last['correct'] / last['count']:.3f}")
        if self.history.timed_steps:
            rate = self.history.timed_steps / max(self.history.timed_seconds, 1e-9)
            words.append(f"{rate:.3g} steps/s")
        return ", ".join(words)

    def _evaluate(self, stop: Stop) -> None:
        """Scores validation; a signal ends that without a score, and the resumed run begins so.

        With several processes they score to the end, together, and then agree on the signal.
        """
        before = time.monotonic()
        check = stop.check if jax.process_count() == 1 else lambda: None
        try:
            sums = self.score(self.variables(), self.validation, check)
        except KeyboardInterrupt:
            return
        if self._tick is not None:
            self._tick += time.monotonic() - before  # steps/s leaves evaluations out
        self._judge({"step": self.step, **sums})

    def _judge(self, sums: dict) -> None:
        """Logs an evaluation; saves the state if it is the best: accuracy, then loss."""
        self.history.last = sums
        numbers = {
            "loss": sums["loss"] / sums["count"],
            "accuracy": sums["correct"] / sums["count"],
        }
        self.metrics.write("validation", self.step, numbers)
        if not math.isfinite(sums["loss"]):
            self._diverged(self.step, sums["loss"], float("nan"))
        best = self.history.best
        if best is None or (-sums["correct"], sums["loss"]) < (-best["correct"], best["loss"]):
            self.history.best = sums
            self._save("best")

    def _save(self, kind: str, *, wait: bool = False) -> None:
        self.history.wall_seconds = time.monotonic() - self._begun
        meta = dataclasses.asdict(self.history)
        self.checkpoints.save(kind, self.step, self.state, meta, wait=wait)

    def _diverged(self, step: int, loss: float, grad_norm: float) -> None:
        self.checkpoints.wait()
        kept = self.checkpoints.step("last")
        kept_text = (
            "no checkpoint yet" if kept is None else f"the checkpoint of step {kept} is kept"
        )
        raise RunFailed(
            f"step {step}: loss {loss}, gradient norm {grad_norm}: not finite; {kept_text}; lower "
            "Optimizer.learning_rate or set Optimizer.clip_norm (GIN=...)",
            "diverged",
            step,
        )

    def variables(self) -> dict:
        """Parameters and constants of the newest state, as model.apply takes them."""
        return {"params": self.state.params, **self.state.constants}


def warn_if_slow(experiment: Experiment, train: Arrays, steps_left: int) -> None:
    """On CPU, says how long a long run will take, measured on a step with one example.

    Taking examples one by one wastes little on a CPU, so a step costs about batch_size of them.
    Nothing is measured when arithmetic alone already says that the run is short.
    """
    if jax.default_backend() != "cpu" or not steps_left:
        return
    variables = jax.eval_shape(lambda: experiment.init(0))
    tokens_a_step = experiment.run.batch_size * train.values[0].size
    operations = 6 * parameter_count(variables) * tokens_a_step * steps_left
    if operations < SLOW_SECONDS * 1e10:  # 10 GFLOP/s: slower than any CPU of this decade
        return
    state = initial_state(experiment, 0)
    batch = jax.tree.map(lambda x: x[0], pipeline.train_batches(train, 0, 0, 1, 1, 1))
    gradient = jax.jit(make_gradient(experiment.model))
    times = []
    for _ in range(2):  # the first one compiles
        begun = time.perf_counter()
        wait_for(gradient(state.params, state.constants, batch, jax.random.key(0)))
        times.append(time.perf_counter() - begun)
    seconds = times[-1] * experiment.run.batch_size
    total = seconds * steps_left
    if total > SLOW_SECONDS:
        a_step, whole = progress.duration(seconds), progress.duration(total)
        progress.say(
            f"no accelerator: a step takes about {a_step}, the {steps_left} steps about {whole}. "
            "PRESET=cpu takes minutes. Going on (Ctrl-C stops)."
        )
