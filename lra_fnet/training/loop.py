"""The loop that trains any encoder on any task: dispatches, evaluations, saves and signals."""

import concurrent.futures
import dataclasses
import math
import time
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding

from lra_fnet.errors import Interrupted, RunFailed, UserError
from lra_fnet.experiment import Experiment
from lra_fnet.machine import progress, signals
from lra_fnet.machine.memory import peak_bytes
from lra_fnet.models.encoder import parameter_count
from lra_fnet.tasks import Arrays
from lra_fnet.training import hosts, logs, pipeline
from lra_fnet.training.checkpoint import AGAIN, Checkpoints, Saved
from lra_fnet.training.score import make_scorer
from lra_fnet.training.step import Program, StepLogs, initial_state, wait_for

COLLAPSED = 1e-4  # `score.variation` below which the answer does not depend on the input
DISPATCH_SECONDS = 0.5  # about how long a dispatch lasts at most: Ctrl-C waits for one


@dataclasses.dataclass
class History:
    """The facts of a run besides its state; they are saved as the checkpoint's JSON."""

    best: dict | None = None  # validation sums of the best step, and its "step"
    last: dict | None = None  # the same of the newest evaluation
    window: dict = dataclasses.field(default_factory=lambda: {"loss": 0.0, "correct": 0.0})
    flat: int = 0  # the newest evaluations in a row with a variation below COLLAPSED
    collapsed: int | None = None  # step of the third of them
    curve: str = ""  # hash of metrics.jsonl up to here
    # Evaluations and saves included; compilation and preparation of data are not.
    wall_seconds: float = 0.0
    timed_steps: int = 0  # steps after the first dispatch of each process
    timed_seconds: float = 0.0  # their time with saves, without evaluations
    peak_bytes: int = 0  # the most memory that a process held, see `memory.peak_bytes`

    @classmethod
    def of(cls, saved: Saved) -> "History":
        """Returns the history in a checkpoint.

        Raises:
          UserError: another version of the code wrote it, with other facts.
        """
        try:
            return cls(**saved.history)
        except TypeError as error:
            raise UserError(f"{saved.path} is of another version ({error}): {AGAIN}") from None

    @property
    def steps_per_second(self) -> float:
        """The rate of the timed steps; 0 before there are any."""
        return self.timed_steps / max(self.timed_seconds, 1e-9)


class Loop:
    """Trains one experiment in its run folder, from the newest checkpoint if there is one.

    `start` is that of `step.initial_state`. With `afresh`, it reads no checkpoint.
    """

    program: Program  # absent if no step is left

    def __init__(
        self,
        experiment: Experiment,
        train: Arrays,
        validation: Arrays,
        folder: Path,
        seed: int,
        *,
        start: dict | None = None,
        afresh: bool = False,
    ):
        self.experiment, self.run = experiment, experiment.run
        self.arrays, self.validation = train, validation
        self.folder, self.seed = folder, seed
        mesh = pipeline.make_mesh(self.run.batch_size)
        self.score = make_scorer(experiment.objective, self.run.eval_batch_size, mesh)
        self.checkpoints = Checkpoints(folder, self.run.save_seconds)
        saved = None if afresh else self.checkpoints.newest()
        self.step = saved.step if saved else 0
        if self.step < self.run.num_steps:
            batches = jax.eval_shape(lambda: self.batches(0, 1))
            self.program = Program.compile(experiment, mesh, batches, seed)
        state = initial_state(experiment, seed, None if saved else start)
        hosts.same("step of the checkpoint", self.step)
        self.state = jax.device_put(state, NamedSharding(mesh, pipeline.WHOLE))
        self.parameters = parameter_count({"params": self.state.params})
        self.history = History()
        if saved is not None:
            self.state, self.history = saved.fill(self.state), History.of(saved)
        # Compiled and run once now, so that all decisions are made before the first step.
        self.score(self.state.variables, self.validation.take(slice(1)))
        self._saved_at = self.step
        self._begun = time.monotonic() - self.history.wall_seconds
        self._tick: float | None = None  # when the newest dispatch was known to be done
        self._seconds_per_step: float | None = None
        self._newest: dict = {}  # line of metrics.jsonl

    def __call__(self) -> None:
        """Trains up to Run.num_steps.

        Raises:
          Interrupted: a signal came; the state is saved.
          RunFailed: the loss or the gradient is not finite; the last good checkpoint stays.
          UserError: the disk is full.
        """
        self.bar = progress.Bar("training", self.run.num_steps, self.step, "steps")
        feeder = concurrent.futures.ThreadPoolExecutor(1)
        with logs.metrics(self.folder, self.step, self.history.curve) as self._write:
            with signals.Stop() as stop, feeder, self.checkpoints.writer, self.bar:
                self._run(stop, feeder)
            self.checkpoints.wait()
        hosts.agree(None)  # the others may read the checkpoints now

    def _run(self, stop: signals.Stop, feeder: concurrent.futures.Executor) -> None:
        queued = self.step  # steps dispatched so far; at most one dispatch ahead of self.step
        in_flight: list[tuple[int, StepLogs]] = []
        ahead = feeder.submit(self._feed, queued, 1) if queued < self.end else None
        save_due, stopping = False, 0
        finished = self.step == self.end and not self._unevaluated()  # by an earlier process
        if self._unevaluated():  # a signal ended that evaluation
            self._evaluate(stop)
        while self.step < self.end:
            boundary = self._boundary(self.step)
            while queued < boundary and len(in_flight) < 2 and not stopping:
                stopping, save_due, steps = self._agreed(stop, queued)
                if stopping or save_due:
                    break
                assert ahead is not None
                count, batches = ahead.result()
                self.state, table = self.program.steps(self.state, batches, count)
                in_flight.append((count, table))
                queued += count
                ahead = feeder.submit(self._feed, queued, steps) if queued < self.end else None
            if in_flight:
                self._finish(*in_flight.pop(0))
            if in_flight:
                continue
            if self.step == boundary:
                self._evaluate(stop)  # before a save, so that the saved history has it
            if save_due:
                self._save("last")
                self._saved_at = self.step
                save_due = False
            if stopping:
                break
        if not finished:
            self._save("last", wait=True)
        if stopping := stopping or self._agreed(stop, queued)[0]:
            raise Interrupted(stopping, self.step)

    @property
    def end(self) -> int:
        """Returns the last step."""
        return (self.run.stop_on_collapse and self.history.collapsed) or self.run.num_steps

    def _boundary(self, step: int) -> int:
        """Returns the next step after which the loop evaluates."""
        every = self.run.eval_every
        return min(self.run.num_steps, every * (step // every + 1))

    def _unevaluated(self) -> bool:
        """Returns whether the evaluation that follows the current step is missing."""
        evaluated = self.history.last["step"] if self.history.last else 0
        return evaluated < self.step == self._boundary(self.step - 1)

    def _agreed(self, stop: signals.Stop, queued: int) -> tuple[int, bool, int]:
        """Returns what all processes do next.

        Returns:
          The signal that one of them has received, or 0; whether to drain the dispatches in flight
          and save (any step will do: every one resumes exactly); and the most steps of a dispatch.
        """
        enough = queued - self._saved_at >= self.run.save_every
        save_due = enough and self.checkpoints.may_save()
        seconds, most = self._seconds_per_step, self.run.steps_per_dispatch
        steps = max(1, int(min(most, DISPATCH_SECONDS / seconds))) if seconds else 1
        asked = hosts.gather([stop.signal or 0, save_due, steps])
        signal = int(asked[:, 0].max())
        return signal, bool(asked[0, 1]) and not signal, int(asked[0, 2])

    def _feed(self, step: int, most: int):
        """Puts the batches of the next dispatch on the devices, in the feeder's thread."""
        count = min(most, self._boundary(step) - step)
        return count, self.program.place(self.batches(step, count))

    def batches(self, step: int, count: int) -> pipeline.Batch:
        """Returns the training batches of `count` steps, in the room of one dispatch."""
        sizes = self.run.batch_size, self.run.steps_per_dispatch
        return pipeline.train_batches(self.arrays, self.seed, step, count, *sizes)

    def _finish(self, count: int, table: StepLogs) -> None:
        """Waits for a dispatch, checks its numbers and logs the windows that it completes."""
        wait_for(table)
        now = time.monotonic()
        if self._tick is not None:
            seconds = now - self._tick
            self.history.timed_seconds += seconds
            self.history.timed_steps += count
            self._seconds_per_step = seconds / count
        self._tick = now
        loss, correct, grad_norm, rate = (np.asarray(column)[:count] for column in table)
        bad = np.flatnonzero(~(np.isfinite(loss) & np.isfinite(grad_norm)))
        if len(bad):
            first = int(bad[0])
            numbers = f"loss {loss[first]}, gradient norm {grad_norm[first]}"
            self._diverged(self.step + first, numbers)
        for index in range(count):
            self.step += 1
            window = self.history.window  # _log starts a new one
            window["loss"] += float(loss[index])
            window["correct"] += float(correct[index])
            if self.step % self.run.log_every == 0:
                self._log(float(grad_norm[index]), float(rate[index]))
        self.bar.update(self.step, self._note())

    def _log(self, grad_norm: float, learning_rate: float) -> None:
        window, every, run = self.history.window, self.run.log_every, self.run
        self._newest = {
            "loss": window["loss"] / every,
            "accuracy": window["correct"] / (every * run.batch_size),
            "learning_rate": learning_rate,
            "grad_norm": grad_norm,
            "steps_per_second": self.history.steps_per_second,
        }
        self.history.window = {"loss": 0.0, "correct": 0.0}
        self.history.curve = self._write("train", self.step, self._newest)

    def _note(self) -> str:
        words = []
        if newest := self._newest:
            words += [f"loss {newest['loss']:.3f}", f"accuracy {newest['accuracy']:.3f}"]
        if last := self.history.last:
            words.append(f"validation {last['correct'] / max(last['count'], 1):.3f}")
        # Not in the last line, whose steps and time have evaluation and compilation in them.
        if self.history.timed_steps and self.step < self.run.num_steps:
            words.append(f"{self.history.steps_per_second:.3g} steps/s")
        return ", ".join(words)

    def _evaluate(self, stop: signals.Stop) -> None:
        """Scores validation and saves the state if it is the best, by the objective's `rank`.

        A signal ends it without a score, and the resumed run scores first. Several processes score
        to the end together and then agree on the signal.
        """
        before = time.monotonic()
        count = len(self.validation.labels)

        def between(rows: int) -> None:
            self.bar.update(self.step, f"scoring validation, {rows:,} of {count:,} rows")
            if jax.process_count() == 1:
                stop.check()

        try:
            sums = self.score(self.state.variables, self.validation, between)
        except KeyboardInterrupt:
            return
        if self._tick is not None:
            self._tick += time.monotonic() - before  # steps/s leaves evaluations out
        losses = [sums[name] for name in ("loss", "order_loss") if sums.get(name) is not None]
        if not math.isfinite(sum(losses)):
            self._diverged(self.step, f"validation loss {sum(losses)}")
        self.history.last = sums = {"step": self.step, **sums}
        numbers = self.experiment.objective.metrics(sums)
        self.history.curve = self._write("validation", self.step, numbers)
        self.history.flat = self.history.flat + 1 if sums.get("variation", 1.0) < COLLAPSED else 0
        if self.history.flat == 3 and self.history.collapsed is None:
            self.history.collapsed = self.step
            progress.say(
                f"collapsed at step {self.step}: the answer no longer depends on the input; lower "
                "the rate, lengthen the warm-up, or set Encoder.batch_norm"
            )
        best = self.history.best
        rank = self.experiment.objective.rank
        if best is None or rank(sums) < rank(best):
            self.history.best = sums
            self._save("best")
        self.bar.update(self.step, self._note())

    def _save(self, kind: str, *, wait: bool = False) -> None:
        self.history.wall_seconds = time.monotonic() - self._begun
        self.history.peak_bytes = max(self.history.peak_bytes, peak_bytes())
        meta = dataclasses.asdict(self.history)
        self.checkpoints.save(kind, self.step, self.state, meta, wait=wait)

    def _diverged(self, step: int, numbers: str) -> None:
        remedy = "lower Optimizer.learning_rate or set Optimizer.clip_norm (--set NAME=VALUE)"
        if step == 0:
            remedy = "before any update: lra_fnet.testing.check_mixer tests a mixer alone"
        raise RunFailed(f"step {step}: {numbers}: not finite; {remedy}", "diverged", step)
