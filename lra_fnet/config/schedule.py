"""Counts durations in steps, and lets the learning rate follow the length of the run."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from lra_fnet.config.bindings import DURATION
from lra_fnet.errors import UserError

_LENGTH, _WARMUP, _CYCLE = "Run.num_steps", "Optimizer.warmup", "Optimizer.steps_per_cycle"
# Settings that count steps; a text such as "40 epochs" or "10 %" (of the run) is one way to give
# them. The length comes first: shares refer to it.
_STEPS = (_LENGTH, "Run.eval_every", "Run.save_every", "Run.log_every")
_STEPS += (_WARMUP, _CYCLE, "Optimizer.steps_per_decay")


def steps(
    files: Sequence[Mapping[str, Any]],
    overrides: dict[str, Any],
    rows: Callable[[], int],
    stage: Callable[[int], int],
) -> dict[str, Any]:
    """Returns the settings in steps, by name, from the values that files and overrides bind.

    Durations are counted anew after each file, which may bind another batch size or length. A rate
    that decays to 0 follows the length of the run (`_follow`) unless the same file binds both.

    Args:
      files: the values that each file binds, in load order.
      overrides: the values that all overrides bind.
      rows: returns the training rows; called if a setting is given in epochs.
      stage: returns the steps of this stage of training from those of all stages.

    Raises:
      UserError: a text is no duration.
    """
    given: dict[str, Any] = {}
    now: dict[str, Any] = {}
    for bound in files:
        given |= bound
        now = _follow(now, _count(given, rows), _fixed(given, bound))
        given = now | _durations(given)
    kept = _durations(given)
    if _decays(given | overrides):  # an override of the length scales the whole schedule
        kept = {name: text for name, text in kept.items() if name.startswith("Run.")}
    given = now | kept | overrides
    before, now = now, _count(given, rows)
    fixed = _fixed(given, overrides)
    now = _follow(before, now, fixed)
    turned_on = "Optimizer.factors" in overrides and not _scales(before)
    if turned_on and _CYCLE not in fixed and _scales({_CYCLE: 0} | now):
        now[_CYCLE] = max(1, now[_LENGTH] - now[_WARMUP])  # the decay ends with the run
    if _is_count(now.get(_LENGTH)) and now[_LENGTH]:
        now = _follow(now, now | {_LENGTH: stage(now[_LENGTH])}, ())
    return {name: now[name] for name in _STEPS if name in now}


def _follow(
    before: Mapping[str, Any], after: Mapping[str, Any], fixed: Collection[str]
) -> dict[str, Any]:
    """Scales warm-up and cycle with the length of the run, unless they are fixed.

    The warm-up keeps its share of the steps, and the cosine's cycle ends at the same share of them:
    otherwise a shorter run would end at a high rate, and a longer one would start the cosine again.
    """
    after = dict(after)
    if _scales(before) and _scales(after) and before[_LENGTH]:
        old, new, warmup = before[_LENGTH], after[_LENGTH], before[_WARMUP]
        if _WARMUP not in fixed:
            after[_WARMUP] = max(min(warmup, 1), round(warmup * new / old))
        if _CYCLE not in fixed:
            end = -(-(warmup + before[_CYCLE]) * new // old)
            after[_CYCLE] = max(1, end - after[_WARMUP])
    return after


def _count(given: Mapping[str, Any], rows: Callable[[], int]) -> dict[str, Any]:
    """Returns the values with durations as steps; one without its batch size or length stays."""
    counted = dict(given)
    for name, text in _durations(given).items():
        match = DURATION.fullmatch(text)
        if not match or (match[2] == "%" and name == _LENGTH):
            share = "" if name == _LENGTH else " or '10 %'"
            raise UserError(
                f"{name} must be a whole number of steps, or a duration such as '40 epochs'{share},"
                f" got {text!r}"
            )
        percent = match[2] == "%"
        whole = counted.get(_LENGTH if percent else "Run.batch_size")
        if _is_count(whole) and whole:  # else a later file may bind it
            count = float(match[1]) * (whole / 100 if percent else rows() / whole)
            counted[name] = max(0 if name == _LENGTH else 1, round(count))
    return counted


def _durations(given: Mapping[str, Any]) -> dict[str, str]:
    return {name: given[name] for name in _STEPS if isinstance(given.get(name), str)}


def _fixed(given: Mapping[str, Any], bound: Collection[str]) -> set[str]:
    """Returns the settings that keep their values: those just bound, and durations."""
    return {*bound, *_durations(given)}


def _scales(values: Mapping[str, Any]) -> bool:
    """Returns whether the values are those of a run that ends at rate 0."""
    return _decays(values) and all(_is_count(values.get(n)) for n in (_LENGTH, _WARMUP, _CYCLE))


def _decays(values: Mapping[str, Any]) -> bool:
    factors = str(values.get("Optimizer.factors"))
    return "cosine_decay" in factors or "linear_decay" in factors


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
