"""Checks that hold mixers and tasks, ours and a user's, to their contracts."""

import functools
import io
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.models.encoder import variable_shapes
from lra_fnet.models.mixer import Mixer
from lra_fnet.tasks import PixelTask, Task, sets

# Mixers

LENGTH, SHORT = 13, 7  # primes: no block size between 2 and 12 divides them
SIZES = {"dim": 6, "num_heads": 2, "qkv_dim": 4, "max_len": LENGTH, "layer": 0, "num_layers": 2}
DROPOUT = 0.5
CLOSE = 1e-4  # relative difference of float32 outputs that count as equal
BFLOAT16_CLOSE = 0.05  # eight bits of mantissa: 0.004 for each rounding
SLOPE_CLOSE = 1e-5  # relative difference of a gradient from finite differences, in float64


def check_mixer(cls: type[Mixer], **settings) -> None:
    """Checks a mixer against the contract in `lra_fnet.models.mixer`.

    The properties, on small random inputs of prime lengths. In evaluation and in training: the
    output has the shape and dtype of the input and is finite under any mask, also one without
    tokens; examples are independent; if `uses_mask`, what padding contains is invisible. In
    training: the gradient equals finite differences in float64 and is finite at zero; dropout has
    an effect exactly if `uses_dropout`; nothing is random beyond the dropout key. In evaluation:
    an example alone has the output that it has in a batch; if the class declares
    `uses_first_only`, position 0 alone is as among all; how much padding there is, is invisible if
    `uses_mask`, and padding is visible otherwise; bfloat16 is close to float32; nothing is random;
    the mixer commutes with permutations of the positions exactly if `equivariant`; the first
    position sees no other exactly if `first_alone`.

    Example: check_mixer(MyMixer, width=3).

    Args:
      cls: the mixer's class.
      **settings: the fields of the class; those of `Mixer` default to small sizes.

    Raises:
      AssertionError: if a property does not hold; its one line names the property.
      UserError: if the class is not a mixer, or it rejects a setting.
      TypeError: if settings are missing.
    """
    if not (isinstance(cls, type) and issubclass(cls, Mixer)):
        raise UserError(f"check_mixer expects a subclass of Mixer, got {cls!r}")
    checks = _MixerChecks(cls, settings)
    first = checks.shape_and_dtype, checks.randomness, checks.any_mask, checks.padding
    for check in (*first, checks.gradient, checks.bfloat16, checks.positions):
        for holds, fault in check():
            assert holds, f"{cls.__name__} {fault}"


def check_padding(mixer: Mixer) -> None:
    """Checks one property of `check_mixer` with a mixer as it is, before it is trained.

    Args:
      mixer: the mixer of a layer.

    Raises:
      UserError: it declares `uses_mask`, but what padding contains changes outputs at real tokens.
    """
    if not mixer.uses_mask:
        return
    rng, length = np.random.default_rng(0), mixer.max_len
    x = rng.normal(size=(1, length, mixer.dim)).astype(np.float32)
    mask = np.arange(length)[None] <= length // 2
    keys = {name: jax.random.key(0) for name in ("params", "dropout")}
    variables = dict(jax.jit(functools.partial(mixer.init, train=False))(keys, x, mask))
    variables["params"] = jax.tree.map(  # away from 0, where much is invisible
        lambda leaf: leaf + 0.1 * rng.normal(size=leaf.shape).astype(leaf.dtype),
        variables.get("params", {}),
    )
    evaluate = jax.jit(functools.partial(mixer.apply, train=False))
    inputs = x, np.where(mask[..., None], x, 50)
    first, second = (np.asarray(evaluate(variables, one, mask))[mask] for one in inputs)
    if np.isfinite(first).all() and not _close(first, second):
        name = type(mixer).__name__
        raise UserError(
            f"{name} declares uses_mask, but what padding contains changes its outputs: use the "
            f"mask, or declare uses_mask = False (lra_fnet.testing.check_mixer checks {name})"
        )


class _MixerChecks:
    """Yields (holds, fault) pairs of each property in `check_mixer`, a method for each."""

    def __init__(self, cls, settings):
        fields = SIZES | {"dropout": DROPOUT} | settings
        self.mixer = cls(**fields, parent=None)
        self.without_dropout = cls(**(fields | {"dropout": 0.0}), parent=None)
        self.length = self.mixer.max_len
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(4, self.length, self.mixer.dim)).astype(np.float32)
        # Four rows: full, padded at the end, with holes, and without tokens.
        positions = np.arange(self.length)
        holes = rng.random(self.length) < 0.6
        self.mask = np.stack([positions >= 0, positions < SHORT, holes, positions < 0])
        self.variables = jax.tree.map(
            lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(leaf.dtype),
            variable_shapes(self.mixer, self.x, self.mask),
        )
        self.evaluate, self.train = jax.jit(self._keyed), jax.jit(self._training)
        self.output, self.trained = (f(self.x, self.mask) for f in (self._evaluate, self._train))

    def shape_and_dtype(self):
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.variables.get("params", {})):
            name = jax.tree_util.keystr(path)
            yield leaf.dtype == np.float32, f"has a {leaf.dtype} parameter {name}"
        missing = set(self.mixer.separable) - set(self.variables.get("params", {}))
        yield not missing, f"declares separable parameters that it does not have: {missing}"
        want = self.x
        for _, got, when in self._both():
            yield got.shape == want.shape, f"maps {want.shape} to {got.shape}{when}: keep the shape"
            yield got.dtype == want.dtype, f"maps {want.dtype} to {got.dtype}{when}: keep the dtype"
            yield np.isfinite(got).all(), f"gives NaN or infinity for some mask{when}"

    def any_mask(self):
        for call, before, when in self._both():
            for row in range(len(self.x)):
                x, mask = self.x.copy(), self.mask.copy()
                x[row], mask[row] = 2 * x[row - 1], ~mask[row]
                others = np.arange(len(x)) != row
                same = _close(call(x, mask)[others], before[others])
                yield same, f"mixes the examples of a batch{when}"
        alone = self._evaluate(self.x[:1], self.mask[:1])
        yield _close(alone, self.output[:1]), "depends on the number of examples in a batch"

    def padding(self):
        for call, before, when in self._both():
            junk = call(np.where(self.mask[..., None], self.x, 50), self.mask)
            yield np.isfinite(junk).all(), f"gives NaN or infinity for some padding{when}"
            content = _close(junk[self.mask], before[self.mask])
            seen = f"declares uses_mask, but the content of padding changes outputs{when}"
            yield content or not self.mixer.uses_mask, seen
        try:
            short = self._evaluate(self.x[:, :SHORT], self.mask[:, :SHORT])
        except UserError:  # it takes max_len positions only
            amount = not self.mixer.uses_mask
        else:
            x, mask = self.x.copy(), self.mask.copy()
            x[:, SHORT:], mask[:, SHORT:] = 0, False
            long = self._evaluate(x, mask)[:, :SHORT]
            amount = _close(short[mask[:, :SHORT]], long[mask[:, :SHORT]])
        if self.mixer.uses_mask:
            yield amount, "declares uses_mask, but the amount of padding changes outputs"
        else:
            yield not (content and amount), "declares no uses_mask, but padding changes no output"

    def gradient(self):
        rng = np.random.default_rng(1)
        point = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (self.variables, self.x))
        direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), point)
        cotangent = rng.normal(size=self.x.shape)
        dtypes = []

        @jax.jit
        @jax.value_and_grad
        def loss(point):
            variables, x = point
            y = self._training(variables, x, self.mask)
            dtypes.append(y.dtype)
            return (y * cotangent).sum()

        def value(step):
            return loss(jax.tree.map(lambda leaf, to: leaf + step * to, point, direction))[0]

        with jax.enable_x64(True):
            gradient = jax.device_get(loss(point)[1])
            at_zero = jax.device_get(loss((point[0], 0 * point[1]))[1])
            difference = (value(1e-6) - value(-1e-6)) / 2e-6
        yield dtypes[0] == np.float64, f"maps float64 to {dtypes[0]}: keep the dtype"
        finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((gradient, at_zero)))
        yield finite, "has a gradient with NaN or infinity"
        products = jax.tree.map(lambda slope, leaf: (slope * leaf).sum(), gradient, direction)
        want, slope = float(difference), sum(jax.tree.leaves(products))
        close = abs(slope - want) <= SLOPE_CLOSE * max(1.0, abs(want))
        yield close, f"has the gradient {slope:.8g} in a direction of slope {want:.8g}"

    def bfloat16(self):
        got = self._evaluate(jnp.asarray(self.x, jnp.bfloat16), self.mask)
        yield got.dtype == jnp.bfloat16, f"maps bfloat16 to {got.dtype}: keep the dtype"
        error = np.linalg.norm(got.astype(np.float32) - self.output)
        close = error <= BFLOAT16_CLOSE * np.linalg.norm(self.output)
        yield close, "in bfloat16 is far from float32"

    def randomness(self):
        again = self._evaluate(self.x, self.mask, seed=1)
        yield (again == self.output).all(), "is random in evaluation"
        train = jax.jit(functools.partial(self._training, mixer=self.mixer))
        first, second = (np.asarray(train(self.variables, self.x, self.mask)) for _ in "12")
        yield (first == second).all(), "is random in training beyond its dropout key"
        drops, declared = bool((first != self.trained).any()), self.mixer.uses_dropout
        fault = f"dropout {'changes' if drops else 'does not change'} its training"
        right = drops == declared or not self.mixer.dropout
        yield right, f"declares uses_dropout = {declared}, but {fault}"

    def positions(self):
        order = np.random.default_rng(2).permutation(self.length)
        moved = self._evaluate(self.x[:, order], self.mask[:, order])
        commutes, declared = _close(moved, self.output[:, order]), self.mixer.equivariant
        fault = "commutes" if commutes else "does not commute with permutations of the positions"
        yield commutes == declared, f"declares equivariant = {declared}, but {fault}"
        later = np.concatenate([self.x[:, :1], 1 - self.x[:, 1:]], axis=1)
        alone = bool((self._evaluate(later, self.mask)[:, 0] == self.output[:, 0]).all())
        declared = self.mixer.first_alone
        fault = f"its first position {'sees no other' if alone else 'sees others'}"
        yield alone == declared, f"declares first_alone = {declared}, but {fault}"
        if self.mixer.uses_first_only:
            apply = jax.jit(functools.partial(self.mixer.apply, train=False, first_only=True))
            got, want = np.asarray(apply(self.variables, self.x, self.mask)), self.output[:, :1]
            fault = f"gives {got.shape} with first_only: return position 0 alone"
            yield got.shape == want.shape, fault
            yield _close(got, want), "has another output at position 0 with first_only"

    def _both(self):
        """Yields a call, its output on the whole batch, and words: for evaluation and training."""
        yield self._evaluate, self.output, ""
        yield self._train, self.trained, " in training"

    def _training(self, variables, x, mask, mixer=None):
        rngs = {"dropout": jax.random.key(2)}
        return (mixer or self.without_dropout).apply(variables, x, mask, train=True, rngs=rngs)

    def _train(self, x, mask):
        return np.asarray(self.train(self.variables, x, mask))

    def _keyed(self, variables, x, mask, seed):
        rngs = {"dropout": jax.random.key(seed)}
        return self.mixer.apply(variables, x, mask, train=False, rngs=rngs)

    def _evaluate(self, x, mask, seed=0):
        return np.asarray(self.evaluate(self.variables, x, mask, seed))


def _close(got, want) -> bool:
    return abs(got - want).max(initial=0) <= CLOSE * max(1.0, abs(want).max(initial=0))


# Tasks


def check_task(
    task: Task,
    source: str | Path | None = None,
    decode: Callable[[np.ndarray], bytes] | None = None,
) -> None:
    """Prepares a task's set twice in temporary folders and checks what training relies on.

    Every split must have the same rows at each preparation, with any `jobs`. Values, lengths and
    labels must be within the limits that the task states, each class must occur in the training
    rows, `Task.encode` must give the values of a row for its raw input, `Task.tokens` must mark
    padding, and the set must verify.

    Args:
        task: the task to check. Give a set of images or a large one few rows: all are prepared.
        source: the raw files, for tasks that read some: a folder, a file or a URL.
        decode: turns the values uint8 [length] of a row back into its raw input. Images and texts
            of bytes need none; `encode` is not checked if other tasks give none.

    Raises:
        AssertionError: names the property that does not hold.
        UserError: if the set cannot be prepared, or a row is not as the task's class variables say.
    """
    with tempfile.TemporaryDirectory() as folder:
        for holds, rule in _task_checks(task, Path(folder), source, decode):
            assert holds, f"{task.name}/{task.config}: {rule}"


def _task_checks(task: Task, folder: Path, source, decode) -> Iterator[tuple[bool, str]]:
    prepared = sets.prepare(task, folder / "first", source, jobs=1)
    again = sets.prepare(task, folder / "second", source, jobs=2)
    same = sets.verify(task, folder / "first") == prepared
    yield same, "verify must return what prepare returned"
    task = prepared.task
    if decode is None and task.vocab_size == 257:
        decode = _png if isinstance(task, PixelTask) else np.ndarray.tobytes
    for split in task.splits:
        same = prepared.splits[split] == again.splits[split]
        yield same, f"{split} must have the same rows at every preparation: draw them from a seed"
        rows = prepared.arrays(split).take(slice(4))
        values, lengths = rows.values.reshape(-1, task.max_len), rows.lengths.reshape(-1)
        real = np.arange(task.max_len) < lengths[:, None]
        ids = np.where(real, values.astype(np.int32) + (not task.zero_is_padding), 0)
        same = all(map(np.array_equal, task.tokens(values, lengths), (ids, ids > 0)))
        yield same, f"tokens of {split} must be value + 1 before the length and 0 after it"
        yield ids.max() < task.num_ids, f"token ids of {split} must be below {task.num_ids}"
        for number, (texts, _) in enumerate(itertools.islice(store.read(prepared, split), 100)):
            same = not decode or all(np.array_equal(task.encode(decode(x)), x) for x in texts)
            yield same, f"encode must give the values of row {number} of {split} for its raw input"
    counts = prepared.splits[task.splits[0]]["label_counts"]
    absent = ", ".join(str(label) for label, count in enumerate(counts) if not count)
    yield not absent, f"no training row has the label {absent}"


def _png(values: np.ndarray) -> bytes:
    """Returns square gray pixels as a PNG file."""
    from PIL import Image

    file, side = io.BytesIO(), int(len(values) ** 0.5)
    Image.fromarray(values.reshape(side, side)).save(file, format="PNG")
    return file.getvalue()
