"""The trainer: exact resume, signals, divergence, microbatches, and that it learns."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from made_runs import flip_bit
from programs import call_at, run, start, value_of
from tiny import rows, tiny

from lra_fnet import experiment
from lra_fnet.errors import Interrupted, RunFailed, UserError
from lra_fnet.machine import disk
from lra_fnet.models.kernels import fastest
from lra_fnet.training import checkpoint, pipeline, score, slices, step
from lra_fnet.training import loop as train
from lra_fnet.training.checkpoint import Checkpoints, sha256


def timeless(folder):
    """Returns the lines of metrics.jsonl without the number that depends on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "steps_per_second"} for line in lines]


pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def straight(tmp_path_factory, compiled_once):
    """State, history and metrics of the uninterrupted run, which others must equal bit for bit."""
    folder = tmp_path_factory.mktemp("straight")
    loop = run(tiny(), folder)
    return sha256(loop.state), loop.history, timeless(folder)


def equals(straight, loop, folder):
    """Whether a run has ended as the uninterrupted one did."""
    history = straight[1]
    assert sha256(loop.state) == straight[0]
    assert (loop.history.best, loop.history.last) == (history.best, history.last)
    assert timeless(folder) == straight[2]


def test_steps_per_dispatch_do_not_change_a_bit(straight, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "DISPATCH_SECONDS", 1e9)  # never cut a dispatch short
    equals(straight, run(tiny(steps_per_dispatch=3), tmp_path), tmp_path)


@pytest.mark.slow
def test_nor_do_they_where_xla_optimises(tmp_path, monkeypatch):
    """The other tests turn that off, and then a single batch in a dispatch shows no difference."""
    monkeypatch.setenv("XLA_FLAGS", "")
    one, three = value_of("states", str(tmp_path), [1, 3])
    assert one == three


def interrupted(folder, at, number=signal.SIGTERM):
    """Runs with one step per dispatch until a signal comes after that step."""
    with call_at(at, lambda: os.kill(os.getpid(), number)), pytest.raises(Interrupted) as caught:
        run(tiny(steps_per_dispatch=1), folder)
    assert caught.value.signal == number
    assert at <= caught.value.step <= at + 1  # one dispatch may be in flight


@pytest.mark.parametrize(("at", "number"), [(1, signal.SIGTERM), (11, signal.SIGINT)])
def test_run_stopped_by_a_signal_resumes_to_the_same_bits(straight, tmp_path, at, number):
    interrupted(tmp_path, at, number)
    equals(straight, run(tiny(steps_per_dispatch=1), tmp_path), tmp_path)


@pytest.mark.parametrize("evaluation", [1, 3])  # at step 5; at the end, 12
def test_evaluation_that_a_signal_ends_is_made_by_the_resumed_run(
    straight, tmp_path, evaluation, monkeypatch
):
    begun, batches = [], pipeline.eval_batches

    def interrupt(*given):
        if len(given[0].labels) > 1:  # not the first call, which compiles the program
            begun.append(given)
        for number, batch in enumerate(batches(*given)):  # three batches
            if (len(begun), number) == (evaluation, 1):
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)  # a scheduler sends several
            assert (len(begun), number) < (evaluation, 2)
            yield batch

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "eval_batches", interrupt)
        with pytest.raises(Interrupted) as caught:
            run(tiny(), tmp_path)
    assert caught.value.step == (5 if evaluation == 1 else 12)
    equals(straight, run(tiny(), tmp_path), tmp_path)


@pytest.mark.parametrize("first", [True, False])  # or the last, after the last step
def test_signal_during_a_save_ends_the_run_once_it_is_saved(straight, tmp_path, first, monkeypatch):
    save = Checkpoints.save

    def interrupt(self, kind, step, *given, **more):
        if first or (kind, step) == ("last", 12):
            os.kill(os.getpid(), signal.SIGTERM)
        return save(self, kind, step, *given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", interrupt)
        with pytest.raises(Interrupted):
            run(tiny(), tmp_path)
    equals(straight, run(tiny(), tmp_path), tmp_path)


def test_killed_run_resumes_to_the_same_bits(straight, tmp_path):
    """It is killed after step 9; steps and lines after the checkpoint are made again."""
    ended = start("killed", str(tmp_path), 4)
    assert ended.returncode == -9, ended.stderr
    # A save of the newest state that is due while the best one is being written may come too late.
    last = checkpoint.load(tmp_path, "last") or checkpoint.load(tmp_path, "best")
    assert (last.history["last"] or {"step": 0})["step"] == 5 * (last.step // 5)
    equals(straight, run(tiny(), tmp_path), tmp_path)


def test_checkpoint_of_another_step_is_not_read(tmp_path):
    state = step.initial_state(tiny(), 0)
    Checkpoints(tmp_path).save("last", 3, state, {}, wait=True)
    with pytest.raises(UserError, match="is of step 3, expected step 7"):
        checkpoint.read(tmp_path, "last", state.variables, step=7)
    assert sha256(checkpoint.read(tmp_path, "last", state.variables, step=3)) == sha256(
        state.variables
    )


def test_loss_that_is_not_finite_names_its_step_and_keeps_the_checkpoint(tmp_path):
    built = tiny(num_steps=20, save_every=1, eval_every=20)
    rate = dataclasses.replace(built.optimizer, learning_rate=1e30, clip_norm=None, warmup=9)
    built = dataclasses.replace(built, optimizer=rate)
    with jax.debug_nans(False), pytest.raises(RunFailed, match="not finite") as caught:
        run(built, tmp_path)
    assert caught.value.state == "diverged"
    assert 1 <= caught.value.step <= 3  # by its own numbers, long before an evaluation
    assert "Optimizer.clip_norm" in str(caught.value)
    kept = checkpoint.load(tmp_path, "last")
    assert kept.step <= caught.value.step
    assert all(np.isfinite(array).all() for array in kept.arrays.values())


@pytest.mark.parametrize("losses", [{"loss": np.nan}, {"loss": 1.0, "order_loss": np.nan}])
def test_validation_loss_that_is_not_finite_ends_the_run(tmp_path, losses):
    loop = train.Loop(tiny(), rows(30), rows(10, 1), tmp_path, 0)
    loop.score = lambda *_: {"correct": 0, "count": 10, **losses}
    with pytest.raises(RunFailed, match=r"^step 5: validation loss nan"):
        loop()
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()  # it would be no JSON


def test_all_decisions_are_made_before_the_first_step(tmp_path):
    built = tiny("fnet", "Fourier.method=auto", num_steps=1)
    with fastest.decisions({}) as made:
        loop = train.Loop(built, rows(30), rows(10, 1), tmp_path, 0)
        before = dict(made)
        loop()
    assert made == before
    assert any(what.startswith("fourier ") for what in made)


def test_training_learns_four_rows_by_heart(tmp_path):
    built = tiny(num_steps=150, eval_every=150, save_every=150)
    encoder = built.model.encoder.clone(dropout=0.0, attention_dropout=0.0, parent=None)
    model = built.model.clone(encoder=encoder, parent=None)
    rate = dataclasses.replace(
        built.optimizer, learning_rate=1e-2, factors="constant", weight_decay=0.0
    )
    built = dataclasses.replace(built, model=model, optimizer=rate)
    four = rows(4)
    loop = train.Loop(built, four, four, tmp_path, 0)
    loop()
    assert loop.history.last["correct"] == 4
    assert loop.history.last["loss"] / 4 < 0.05


def test_experiment_init_is_the_first_state_of_the_trainer():
    built = tiny("random")  # which has constants
    state = step.initial_state(built, 3)
    variables = built.init(3)
    assert variables.keys() == {"params", "constants"}
    assert sha256(variables) == sha256(state.variables)


def test_one_step_is_one_optax_update_of_the_mean_loss():
    built = tiny()
    state = step.initial_state(built, 0)
    batches = pipeline.train_batches(rows(30), 0, 0, 1, 4, 3)
    key = step.keys(0)[1]

    def mean_loss(params):
        ids, mask = built.task.tokens(batches.values[0], batches.lengths[0])
        logits = built.model.apply(
            {"params": params, **state.constants},
            ids,
            mask,
            train=True,
            rngs={"dropout": jax.random.fold_in(key, 0)},
        )
        labels = batches.labels[0]
        return -jax.nn.log_softmax(logits)[jnp.arange(4), labels].mean()

    loss, grads = jax.jit(jax.value_and_grad(mean_loss))(state.params)
    transform = built.optimizer.transform()

    @jax.jit
    def updated(params, grads):
        updates, _ = transform.update(grads, transform.init(params), params)
        return optax.apply_updates(params, updates)

    want = updated(state.params, grads)
    got, table = step.make_update(built, pipeline.make_mesh(4))(state, batches, np.int32(1), key)
    assert int(got.step) == 1
    assert float(table.loss[0]) == pytest.approx(float(loss), rel=1e-5)
    assert float(table.grad_norm[0]) == pytest.approx(float(optax.tree.norm(grads)), rel=1e-4)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got.params, want
    )


@pytest.fixture
def on_cores(monkeypatch):
    """Gives this process a number of cores."""
    return lambda n: monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n)))


@pytest.mark.parametrize(
    ("cores", "dim", "rows_", "row", "train", "want"),
    [
        (1, 256, 8, (256,), True, 2),  # 2 * 256 * 256 = 2^17 numbers
        (1, 256, 8, (175,), True, 4),  # 3 would do, but 4 divides
        (1, 256, 32, (128,), False, 4),
        (1, 256, 8, (2, 64), True, 4),  # two texts
        (1, 256, 8, (4096,), True, 2),  # two at least
        (1, 256, 7, (256,), True, 7),  # no other divisor is enough
        (4, 64, 32, (1024,), True, 8),
    ],
)
def test_cpu_takes_the_fewest_rows_that_fill_a_slice(cores, dim, rows_, row, train, want, on_cores):
    built = experiment.load("text", "fnet", "tuned", (f"Encoder.dim={dim}", "Encoder.qkv_dim=256"))
    on_cores(cores)
    assert slices.rows_at_once(built.model, rows_, row, train=train) == want
    with fastest.decisions({f"rows of gradient slices of {rows_} on cpu": rows_}):  # of a run
        assert slices.rows_at_once(built.model, rows_, row, train=True) == rows_


def test_accelerator_takes_the_whole_batch(monkeypatch):
    built = experiment.load("text", "fnet", "tuned")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert slices.rows_at_once(built.model, 8, (2048,), train=True) == 8


def test_scores_in_slices_are_those_of_the_whole_batch(monkeypatch, on_cores):
    built = tiny(batch_size=6)

    def counts():
        return score.make_scorer(built.objective, 6)(built.init(0), rows(30))

    assert slices.microbatch_of(built, 1) == 6
    want = counts()
    on_cores(1)
    monkeypatch.setattr(slices, "SLICE_SIZE", 2 * built.task.max_len * built.model.encoder.dim)
    assert slices.microbatch_of(built, 1) == 2
    assert counts() == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize(("kind", "number"), [("last", 1), ("best", 2)])
def test_full_disk_fails_with_one_line_and_keeps_what_resumes(
    straight, tmp_path, kind, number, monkeypatch, capfd
):
    replace, written = disk.replace, []

    def full(path, content):
        written.append(path.parent.name)
        if written.count(kind) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "replace", full)
        with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
            run(tiny(), tmp_path)
    assert "Traceback" not in capfd.readouterr().err
    kept = checkpoint.load(tmp_path, kind)
    assert (kept is None) if number == 1 else (kept.step < 12)
    equals(straight, run(tiny(), tmp_path), tmp_path)


@pytest.fixture(scope="module")
def half(tmp_path_factory, compiled_once):
    """The folder of a run that was interrupted after step 8 of 12; its best step is 5."""
    folder = tmp_path_factory.mktemp("half")
    interrupted(folder, 8)
    return folder


KINDS = ("last", "best")


def states(folder):
    return {kind: folder / f"checkpoints/{kind}/state.safetensors" for kind in KINDS}


@pytest.mark.parametrize("damage", ["cut", "of another best"])
def test_damaged_last_resumes_from_best_to_the_same_bits(straight, half, tmp_path, damage, capfd):
    """A `last` that names a best step that is not there: as if `best` were written late."""
    folder = shutil.copytree(half, tmp_path / "run")
    if damage == "cut":
        os.truncate(states(folder)["last"], 3000)
    else:
        run(tiny(), tmp_path / "whole")  # its `last` names step 12 as the best
        states(folder)["last"].write_bytes(states(tmp_path / "whole")["last"].read_bytes())
    equals(straight, run(tiny(), folder), folder)
    assert "; going on from step 5, with the same result" in capfd.readouterr().err


@pytest.mark.parametrize("damage", ["removed", "flipped"])
def test_best_that_is_lost_fails_with_one_line(half, tmp_path, damage):
    """Only a training from the start would give it again."""
    folder = shutil.copytree(half, tmp_path / "run")
    last, best = states(folder).values()
    if damage == "removed":
        best.unlink()
    else:
        flip_bit(best)
    with pytest.raises(UserError, match=r"^[^\n]*--force$"):
        run(tiny(), folder)
    assert last.exists()


def test_flipped_bits_of_checkpoints_are_never_read_as_other_numbers(half, tmp_path):
    """One in every 11th byte of the header, and in every 997th of the arrays."""
    folder = shutil.copytree(half, tmp_path / "run")
    wanted, refused = jax.eval_shape(lambda: step.initial_state(tiny(), 0)), 0
    for kind, file in states(folder).items():
        right, data = checkpoint.load(folder, kind), file.read_bytes()
        header = 8 + int.from_bytes(data[:8], "little")
        places = [*range(0, header, 11), *range(header, len(data), 997), len(data) - 1]
        for place in places:
            file.write_bytes(
                data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
            )
            try:
                read = checkpoint.load(folder, kind)
                read.fill(wanted)
            except UserError:
                refused += 1
                continue
            assert (read.step, read.history) == (right.step, right.history)
            assert sha256(read.arrays) == sha256(right.arrays)
        assert refused > 0.95 * len(places)
        file.write_bytes(data)
        for size in (0, 7, 8, header - 1, header, len(data) - 1):
            os.truncate(file, size)
            with pytest.raises(UserError):
                checkpoint.load(folder, kind)
        file.write_bytes(data)


@pytest.mark.parametrize("damage", ["deleted", "edited", "{\n"])
def test_changed_metrics_stop_a_run_with_one_line(half, tmp_path, damage):
    folder = shutil.copytree(half, tmp_path / "run")
    file, kept = folder / "metrics.jsonl", {p: p.read_bytes() for p in states(folder).values()}
    edited = {"edited": file.read_text().replace('"loss": 2', '"loss": 1', 1), "deleted": ""}
    file.write_text(edited.get(damage, damage))
    if damage == "deleted":
        file.unlink()
    with pytest.raises(UserError, match=r"^[^\n]*metrics.jsonl has changed[^\n]*$"):
        run(tiny(), folder)
    assert {p: p.read_bytes() for p in states(folder).values()} == kept  # nothing else was lost


def test_lines_that_no_checkpoint_has_are_dropped(straight, half, tmp_path):
    """A kill leaves them: of step 0 without any checkpoint, or of the checkpoint's own step."""
    alone = tmp_path / "alone"
    alone.mkdir()
    line = (half / "metrics.jsonl").read_text().splitlines()[0]
    (alone / "metrics.jsonl").write_text(line + "\n")
    folder = shutil.copytree(half, tmp_path / "run")
    step = checkpoint.load(folder, "last").step
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "validation", "step": step, "loss": 1.0}) + "\n")
    for place in (alone, folder):
        run(tiny(), place)
        assert timeless(place) == straight[2]


def test_metrics_hold_the_curves_and_tensorboard_has_a_file(tmp_path):
    run(tiny(num_steps=6), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    kinds = [(line.pop("kind"), line.pop("step")) for line in lines]
    assert kinds == [("train", 3), ("validation", 5), ("train", 6), ("validation", 6)]
    names = {"loss", "accuracy", "learning_rate", "grad_norm", "steps_per_second"}
    assert lines[0].keys() == names
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"validation/accuracy" in events.read_bytes()


def test_lines_of_training_are_means_of_their_steps(tmp_path):
    built = tiny(eval_every=12)
    run(tiny(eval_every=12, log_every=1), tmp_path / "each")
    run(built, tmp_path / "means")
    each, means = (
        [line for line in timeless(tmp_path / name) if line["kind"] == "train"]
        for name in ("each", "means")
    )
    schedule = built.optimizer.schedule()
    assert [line["step"] for line in means] == [3, 6, 9, 12]
    for line in means:
        steps = each[line["step"] - 3 : line["step"]]
        for name in ("loss", "accuracy"):
            assert line[name] == pytest.approx(np.mean([step[name] for step in steps]))
        assert line["grad_norm"] == steps[-1]["grad_norm"]
        assert line["learning_rate"] == pytest.approx(float(schedule(line["step"] - 1)), rel=1e-5)


def test_newest_state_may_be_saved_unless_a_save_is_in_flight_or_recent(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    state = {"w": jnp.arange(3.0)}
    assert checkpoints.may_save()
    held, replace = threading.Event(), disk.replace
    monkeypatch.setattr(disk, "replace", lambda *given: (held.wait(10), replace(*given)))
    checkpoints.save("best", 1, state, {"a": 1})
    assert not checkpoints.may_save()
    held.set()
    checkpoints.save("last", 2, state, {"a": 2}, wait=True)  # the end of a run, a signal
    last, best = (checkpoint.load(tmp_path, kind) for kind in ("last", "best"))
    assert (last.step, last.history, best.step, best.history) == (2, {"a": 2}, 1, {"a": 1})
    np.testing.assert_array_equal(best.fill(state)["w"], [0.0, 1.0, 2.0])
    often = Checkpoints(tmp_path / "often", seconds_between=1e9)
    often.save("best", 1, state, {}, wait=True)
    assert often.may_save()
    often.save("last", 1, state, {}, wait=True)
    assert not often.may_save()


@pytest.mark.parametrize("varied", ["step", "seed"])
def test_each_step_and_each_seed_draws_its_own_dropout(varied):
    """From the same state, on the same batch, with a rate of 0."""
    built = tiny()
    still = dataclasses.replace(built.optimizer, learning_rate=0.0)
    built = dataclasses.replace(built, optimizer=still)
    both = pipeline.train_batches(rows(30), 0, 0, 1, 4, 2)
    batches = jax.tree.map(lambda x: x[[0, 0]], both)
    update, losses = step.make_update(built, pipeline.make_mesh(4)), []
    for seed in (0, 1):
        state, key = step.initial_state(built, 0), step.keys(seed)[1]
        _, logs = update(state, batches, np.int32(2), key)
        losses.append(logs.loss.tolist())
    first, second = losses[0] if varied == "step" else [one[0] for one in losses]
    assert first != second


def test_of_equal_evaluations_the_first_is_the_best(tmp_path):
    loop = train.Loop(tiny(), rows(30), rows(10, 1), tmp_path, 0)
    loop.score = lambda *_: {"correct": 4, "count": 10, "loss": 1.0}
    loop()
    assert (loop.history.best["step"], loop.history.last["step"]) == (5, 12)


@pytest.mark.parametrize(("stop", "end"), [(True, 7), (False, 12)])
def test_third_flat_evaluation_in_a_row_is_the_collapse(tmp_path, capsys, stop, end):
    def collapsing():
        built = tiny(eval_every=1, steps_per_dispatch=1, stop_on_collapse=stop)
        loop = train.Loop(built, rows(30), rows(10, 1), tmp_path, 0)
        flat = {2, 3, 5, 6, 7, 8, 10, 11, 12}
        variations = [0.9e-4 if step in flat else 1.1e-4 for step in range(13)]
        sums = {"correct": 4, "count": 10, "loss": 1}
        loop.score = lambda *_: {**sums, "variation": variations[loop.step]}
        loop()
        return loop

    with call_at(6, lambda: os.kill(os.getpid(), signal.SIGTERM)), pytest.raises(Interrupted):
        collapsing()
    for loop in (collapsing(), collapsing()):  # the second finds it finished
        assert (loop.step, loop.history.last["step"], loop.history.collapsed) == (end, end, 7)
        assert checkpoint.load(tmp_path, "last").step == end
    assert capsys.readouterr().err.count("collapsed at step 7: ") == 1


def test_the_rate_leaves_out_evaluations_and_the_time_has_all(tmp_path, monkeypatch):
    """By a clock on which a step takes 10 ms and an evaluation 1,000 s."""
    now = [0.0]

    def wait(table):
        now[0] += 0.01

    def score(*_):
        now[0] += 1_000
        return {"correct": 4, "count": 10, "loss": 1.0}

    monkeypatch.setattr(train, "wait_for", wait)
    monkeypatch.setattr(
        train, "time", types.SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    )
    loop = train.Loop(tiny(steps_per_dispatch=1), rows(30), rows(10, 1), tmp_path, 0)
    loop.score = score
    loop()
    assert loop.history.steps_per_second == pytest.approx(100)
    assert 3_000 < loop.history.wall_seconds < 3_001
    assert checkpoint.load(tmp_path, "last").history["wall_seconds"] > 3_000
