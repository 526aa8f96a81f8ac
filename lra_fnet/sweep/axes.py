"""The axes of a sweep: their values, and the points that depend on no result."""

import contextlib
import itertools
from typing import Any

import optuna
from optuna import distributions
from optuna.distributions import BaseDistribution

from lra_fnet import config
from lra_fnet.errors import UserError

optuna.logging.set_verbosity(optuna.logging.ERROR)


def axis(option: str, text: str) -> tuple[str, list | dict[str, Any]]:
    """Returns the name and the values of an axis of the command line.

    >>> axis("grid", "Run.batch_size=[16, 32]")
    ('Run.batch_size', [16, 32])
    >>> axis("range", 'Optimizer.learning_rate=[1e-4, 1e-2, "log"]')
    ('Optimizer.learning_rate', {'low': 0.0001, 'high': 0.01, 'log': True})

    Args:
      option: "grid", or "range": two whole numbers make a range of whole numbers.
      text: the option's value.

    Raises:
      UserError: the text is not a name and a list of this form.
    """
    name, _, values = text.partition("=")
    with contextlib.suppress(ValueError):
        match option, config.literal(values):
            case "grid", [first, *rest]:
                return name.strip(), [first, *rest]
            case "range", [low, high, *log] if log in ([], ["log"]):
                return name.strip(), {"low": low, "high": high, "log": bool(log)}
    form = {"grid": "[value, ...]", "range": '[low, high] or [low, high, "log"]'}[option]
    raise UserError(f"--{option} expects Name.parameter={form}, texts in quotes, got {text!r}")


def checked(name: str, values: Any) -> list | dict[str, Any]:
    """Returns a list of values, or a range with all three fields.

    Raises:
      UserError: it is neither.
    """
    match values:
        case [_, *_]:
            return list(values)
        case {"low": low, "high": high, **more} if more.keys() <= {"log"}:
            full = {"low": low, "high": high, "log": bool(more.get("log"))}
            try:
                _distribution(full)
            except (ValueError, TypeError) as error:
                raise UserError(f"the range of {name}: {error}") from None
            return full
    raise UserError(
        f"the axis {name} expects a list of values, or a range of two numbers (low < high), got "
        f"{values!r:.60}"
    )


def _distribution(values: Any) -> BaseDistribution:
    """Returns the distribution of an axis; the values of a list are gin texts."""
    if not isinstance(values, dict):
        return distributions.CategoricalDistribution([repr(value) for value in values])
    if isinstance(values["low"], int) and isinstance(values["high"], int):
        return distributions.IntDistribution(**values)
    return distributions.FloatDistribution(**values)


def space(axes: dict[str, Any]) -> dict[str, BaseDistribution]:
    """Returns the distribution of each axis."""
    return {name: _distribution(values) for name, values in axes.items()}


def grid(axes: dict[str, list]) -> list[dict[str, str]]:
    """Returns every combination of the axes' values, as gin texts.

    >>> grid({"Encoder.num_layers": [1, 2], "Encoder.norm": ["pre"]})[1]
    {'Encoder.num_layers': '2', 'Encoder.norm': "'pre'"}
    """
    choices = [[repr(value) for value in values] for values in axes.values()]
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*choices)]


def random(axes: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Returns random points: point k is drawn with seed k, whatever their number."""
    samplers = (optuna.samplers.RandomSampler(seed=number) for number in range(count))
    studies = (optuna.create_study(sampler=sampler) for sampler in samplers)
    return [study.ask(space(axes)).params for study in studies]


def bindings(point: dict[str, Any]) -> tuple[str, ...]:
    """Returns a point as bindings: values from a list are gin texts, those of a range numbers."""
    return tuple(
        f"{name}={value if isinstance(value, str) else repr(value)}"
        for name, value in point.items()
    )
