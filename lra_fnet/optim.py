"""LRA's optimizer and its `factors` learning-rate schedules, on Optax."""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Hashable
from typing import Annotated, Literal

import gin
import jax
import jax.numpy as jnp
import optax

from lra_fnet.errors import UserError
from lra_fnet.settings import Least, check_settings


@dataclasses.dataclass(frozen=True)
class Factor:
    """A factor of the learning rate, and the fields of Optimizer that it reads."""

    apply: Callable  # (rate, optimizer, step) -> rate
    period: str | None = None  # must be positive
    other: str | None = None


def _cosine(rate, optimizer, step):
    progress = jnp.maximum(0.0, (step - optimizer.warmup) / optimizer.steps_per_cycle)
    return rate * jnp.maximum(0.0, 0.5 * (1.0 + jnp.cos(jnp.pi * (progress % 1.0))))


def _linear(rate, optimizer, step):
    progress = jnp.maximum(0.0, (step - optimizer.warmup) / optimizer.steps_per_cycle)
    return rate * jnp.maximum(0.0, 1.0 - progress)


FACTORS = {
    "constant": Factor(lambda rate, o, _: rate * o.learning_rate, other="learning_rate"),
    "linear_warmup": Factor(lambda rate, o, s: rate * jnp.minimum(1.0, s / o.warmup), "warmup"),
    "rsqrt_decay": Factor(lambda rate, o, s: rate / jnp.sqrt(jnp.maximum(s, o.warmup)), "warmup"),
    "rsqrt_normalized_decay": Factor(
        lambda rate, o, s: rate * (jnp.sqrt(o.warmup) / jnp.sqrt(jnp.maximum(s, o.warmup))),
        "warmup",
    ),
    "decay_every": Factor(
        lambda rate, o, s: rate * o.decay_factor ** (s // o.steps_per_decay),
        "steps_per_decay",
        "decay_factor",
    ),
    "cosine_decay": Factor(_cosine, "steps_per_cycle", "warmup"),
    "linear_decay": Factor(_linear, "steps_per_cycle", "warmup"),  # BERT's; to 0
}


def _in_layers(path) -> bool:
    """Returns whether a parameter belongs to a block of the encoder, or to its last norm."""
    return any(part.key.startswith(("block_", "norm")) for part in path)


DECAY_MASKS: dict[str, Callable] = {  # (path in the tree of parameters, parameter) -> decays?
    "all": lambda path, leaf: True,
    "matrices": lambda path, leaf: leaf.ndim >= 2,
    "weights": lambda path, leaf: path[-1].key not in ("bias", "scale") or not _in_layers(path),
}
OTHERS = "others"  # the group of all parameters that Optimizer.groups does not name


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Adam with decoupled weight decay, like LRA's flax.optim.Adam (long-range-arena at cd31e5c).

    The decay is scaled by the learning rate and, in LRA, applies to every parameter.

    Raises:
      UserError: an unknown factor or mask, a negative number, a missing period.
    """

    learning_rate: Annotated[float, Least(0, suggest=1e-3)]  # the `constant` factor
    factors: str  # names of FACTORS joined with *
    warmup: Annotated[int, Least(0, suggest=100)]  # optimizer steps
    weight_decay: Annotated[float, Least(0, suggest=0.1)]
    # "all" parameters (LRA); "matrices": those with two axes or more, as stored: real and imaginary
    # parts of a vector count as a matrix; "weights": all but biases and scales of norms in the
    # layers of the encoder, by name (`add_optimizer_hooks` of state-spaces/s4 at e757cef).
    decay_mask: Literal["all", "matrices", "weights"]
    clip_norm: float | None  # global norm of the gradient; None does not clip
    steps_per_cycle: int = 0  # cosine_decay, linear_decay
    decay_factor: Annotated[float, Least(0, suggest=0.5)] = 0.5  # decay_every
    steps_per_decay: int = 0  # decay_every
    beta1: Annotated[float, Least(0, suggest=0.9, below=1)] = 0.9
    beta2: Annotated[float, Least(0, suggest=0.98, below=1)] = 0.98
    epsilon: Annotated[float, Least(0, suggest=1e-9)] = 1e-9
    # Parameters of the mixers with their own learning rate (in place of the one above, under the
    # same factors) and weight decay: {"log_dt": (0.001, 0.0)}. `Mixer.separable` has the names; one
    # counts in all layers that have such a parameter.
    groups: dict[str, tuple[float, float]] | None = dataclasses.field(default=None, hash=False)

    def __post_init__(self):
        check_settings(self)
        for name in self.factor_names():
            if name not in FACTORS:
                raise UserError(
                    f"Optimizer.factors expects names of {', '.join(FACTORS)} joined with *, "
                    f"got {name!r}"
                )
            field = FACTORS[name].period
            if field and not getattr(self, field) > 0:
                raise UserError(f"Optimizer.factors has {name}: Optimizer.{field} must be > 0")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise UserError(f"Optimizer.clip_norm expects None or > 0, got {self.clip_norm!r}")
        self._check_groups()

    def _check_groups(self):
        groups = {} if self.groups is None else self.groups
        pairs = groups.items() if isinstance(groups, dict) else [(None, groups)]
        for name, pair in pairs:
            numbers = pair if isinstance(pair, tuple | list) and isinstance(name, str) else ()
            fit = [type(n) in (int, float) and 0 <= n < math.inf for n in numbers]
            if fit != [True, True]:
                raise UserError(
                    "Optimizer.groups expects None, or a learning rate and a weight decay for each "
                    f"name, such as {{'log_dt': (0.001, 0.0)}}, got {groups!r}"
                )
        if groups and "constant" not in self.factor_names():
            raise UserError(
                "Optimizer.groups has learning rates, but Optimizer.factors has no constant: add it"
            )

    def unread(self) -> set[str]:
        """Returns the fields of the schedule that none of the factors reads."""
        used = [FACTORS[name] for name in self.factor_names()]
        every, read = (
            {field for factor in factors for field in (factor.period, factor.other) if field}
            for factors in (FACTORS.values(), used)
        )
        return every - read

    def factor_names(self) -> list[str]:
        """Returns the names of the factors, in order."""
        return [name.strip() for name in self.factors.split("*")]

    def schedule(self) -> Callable:
        """Returns step -> learning rate, the product of the factors; steps count from 0.

        With s the step and w the warm-up: linear_warmup is min(1, s / w); rsqrt_decay is
        1 / sqrt(max(s, w)); rsqrt_normalized_decay is sqrt(w) / sqrt(max(s, w)); decay_every is
        decay_factor ** (s // steps_per_decay); cosine_decay is max(0, (1 + cos(pi (p mod 1))) / 2)
        with p = max(0, (s - w) / steps_per_cycle), which starts again after a full cycle;
        linear_decay is max(0, 1 - p). As in LRA, step 0 of a warm-up has the learning rate 0.
        """

        def learning_rate(step):
            step = jnp.asarray(step, jnp.float32)
            rate = jnp.float32(1.0)
            for name in self.factor_names():
                rate = FACTORS[name].apply(rate, self, step)
            return rate

        return learning_rate

    def transform(self) -> optax.GradientTransformation:
        """Returns AdamW on the schedule, after clipping if there is a clip_norm.

        The norm is that of the whole gradient. Each of the groups has its own AdamW; without groups
        there is one, whose state has no level for them.
        """
        clip = [] if self.clip_norm is None else [optax.clip_by_global_norm(self.clip_norm)]
        adam = self._adam()
        if groups := self.groups:
            kinds: dict[Hashable, optax.GradientTransformation] = {OTHERS: adam}
            for name, (rate, decay) in groups.items():
                group = {"learning_rate": rate, "weight_decay": decay, "decay_mask": "all"}
                kinds[name] = dataclasses.replace(self, groups=None, **group)._adam()
            adam = optax.partition(kinds, lambda params: group_of(params, groups))
        return optax.chain(*clip, adam)

    def _adam(self) -> optax.GradientTransformation:
        return optax.adamw(
            self.schedule(),
            b1=self.beta1,
            b2=self.beta2,
            eps=self.epsilon,
            weight_decay=self.weight_decay,
            mask=functools.partial(jax.tree.map_with_path, DECAY_MASKS[self.decay_mask]),
        )


def group_of(params, groups: Collection[str]):
    """Returns the group of each parameter, a tree like `params`.

    That is the parameter's name if it is a mixer's own and in `groups`; otherwise OTHERS.
    """

    def label(path, _):
        *_, owner, name = (None, *(key.key for key in path))
        return name if owner == "mixer" and name in groups else OTHERS

    return jax.tree.map_with_path(label, params)
