"""Counts settings in steps, and lets the learning rate follow the length of the run."""

from collections.abc import Callable, Collection

import gin

from lra_fnet.config.bindings import DURATION
from lra_fnet.config.parsing import bind_missing
from lra_fnet.errors import UserError

# Settings that count steps; a text such as "40 epochs" or "10 %" (of the run) is one way to give
# them. Run.num_steps comes first: shares refer to it.
_STEPS = ("Run.num_steps", "Run.eval_every", "Run.save_every", "Run.log_every")
_STEPS += ("Optimizer.warmup", "Optimizer.steps_per_cycle", "Optimizer.steps_per_decay")


def bound_schedule() -> tuple[int, int, int] | None:
    """Returns the bound steps of a run that ends at rate 0: all, warm-up, cycle; else None."""
    names = "Run.num_steps", "Optimizer.warmup", "Optimizer.steps_per_cycle"
    try:
        values = tuple(gin.query_parameter(name) for name in names)
    except ValueError:  # one is not bound
        return None
    fits = all(type(value) is int and value >= 0 for value in values)
    return values if fits and _ends_at_zero() else None


def set_length(num_steps: int) -> None:
    """Binds the length of the run that is loaded; the learning rate follows (`follow`)."""
    schedule = bound_schedule()
    gin.bind_parameter("Run.num_steps", num_steps)
    follow(schedule, ())


def follow(
    before: tuple[int, int, int] | None, bound: Collection[str]
) -> tuple[int, int, int] | None:
    """Lets the learning rate follow the length of the run, unless the parsed text binds both.

    The warm-up keeps its share of the steps, and the cosine's cycle ends at the same share of them:
    otherwise a shorter run would end at a high rate, and a longer one would start the cosine again.

    Args:
      before: the schedule before the text was parsed.
      bound: the settings in steps that keep their values.

    Returns:
      The schedule from now on.
    """
    after = bound_schedule()
    if before is None or after is None or not before[0]:
        return after
    (steps, warmup, cycle), (new_steps, new_warmup, _) = before, after
    if "Optimizer.warmup" not in bound:
        new_warmup = max(min(warmup, 1), round(warmup * new_steps / steps))
        gin.bind_parameter("Optimizer.warmup", new_warmup)
    if "Optimizer.steps_per_cycle" not in bound:
        end = -(-(warmup + cycle) * new_steps // steps)
        gin.bind_parameter("Optimizer.steps_per_cycle", max(1, end - new_warmup))
    return bound_schedule()


def count_steps(
    durations: dict[str, str], bound: Collection[str], rows: Callable[[], int]
) -> set[str]:
    """Binds durations in epochs or per cent of the run as steps, anew after each text.

    A later text may bind another data set, batch size or length of the run.

    Args:
      durations: those that earlier texts gave, by setting; updated.
      bound: the names that were just bound, by a file or by all overrides.
      rows: as in `load`.

    Returns:
      The settings in steps among `bound`, and those of all durations.

    Raises:
      UserError: a text is no duration.
    """
    given = set(_STEPS).intersection(bound)
    durations |= {name: str(gin.query_parameter(name)) for name in given}
    for name in _STEPS:
        match = DURATION.fullmatch(durations.get(name, ""))
        if not match or (match[2] == "%" and name == "Run.num_steps"):
            text = durations.pop(name, None)
            if text is not None and type(gin.query_parameter(name)) is str:
                share = " or '10 %'" if name != "Run.num_steps" else ""
                raise UserError(
                    f"{name} must be a whole number of steps, or a duration such as '40 epochs'"
                    f"{share}, got {text!r}"
                )
            continue
        percent = match[2] == "%"
        whole = _count("Run.num_steps" if percent else "Run.batch_size")
        if whole:  # otherwise a later text may bind it
            steps = float(match[1]) * (whole / 100 if percent else rows() / whole)
            least = 0 if name == "Run.num_steps" else 1  # a run of 0 steps is refused
            gin.bind_parameter(name, max(least, round(steps)))
    return given | set(durations)


def _count(name: str) -> int | None:
    """Returns the positive whole number that a parameter is bound to; None without one."""
    try:
        value = gin.query_parameter(name)
    except ValueError:
        return None
    return value if type(value) is int and value > 0 else None


def apply_overrides(
    before: tuple[int, int, int] | None,
    durations: dict[str, str],
    overridden: Collection[str],
    rows: Callable[[], int],
) -> None:
    """Lets the settings in steps follow the overrides, which were just parsed.

    An override of the run's length scales the whole schedule: `follow` does so in one that ends at
    0, durations included.

    Args:
      before: the schedule of the files.
      durations: those of the files, by setting.
      overridden: the names that overrides bound.
      rows: as in `load`.

    Raises:
      UserError: a text is no duration.
    """
    if _ends_at_zero():
        durations = {name: text for name, text in durations.items() if name.startswith("Run.")}
    bound = count_steps(durations, overridden, rows)
    follow(before, bound)
    if before is None and "Optimizer.factors" in overridden:
        _end_decay(bound)


def _end_decay(bound: Collection[str]):
    """Lets a decay that an override has turned on end with the run, unless `bound` has its end."""
    bind_missing({"Optimizer.steps_per_cycle": 0})
    if "Optimizer.steps_per_cycle" not in bound and (now := bound_schedule()):
        num_steps, warmup, _ = now
        gin.bind_parameter("Optimizer.steps_per_cycle", max(1, num_steps - warmup))


def _ends_at_zero() -> bool:
    """Returns whether the bound learning rate has a factor that ends at 0."""
    try:
        factors = str(gin.query_parameter("Optimizer.factors"))
    except ValueError:  # it is not bound
        return False
    return "cosine_decay" in factors or "linear_decay" in factors
