"""The tables of a sweep: its trials, and the settings that it selected."""

from typing import Any

from lra_fnet import config, tasks
from lra_fnet.report.grid import Grid
from lra_fnet.report.sources import Sweep
from lra_fnet.sweep.files import Entry


def value_of(trial: Entry, axis: str) -> Any:
    """Returns the value that a trial binds an axis to, or None if it binds none.

    A text that is not a Python literal, and "None", are returned as they are.
    """
    for binding in trial.overrides:
        name, text = config.split(binding)
        if name == axis:
            try:
                value = config.literal(text)
                return "None" if value is None else value
            except ValueError:
                return text
    return None


def trials(sweep: Sweep) -> Grid:
    """Returns every trial of a sweep with its state; those of selected settings are marked."""
    axes = list(sweep.about.axes)
    settings = [set(trial.overrides) for trial in sweep.trials]
    shared = set.intersection(*settings) if settings else set()
    rows = []
    for trial in sweep.trials:
        validation, error = trial.validation, trial.error
        rows.append(
            [
                str(trial.number),
                tasks.title(trial.task),
                trial.model,
                trial.state + (f": {error}" if error else ""),
                *(_value(value_of(trial, axis)) for axis in axes),
                str(trial.seed),
                _steps(trial.step, trial.num_steps),
                "-" if validation is None else f"{100 * validation:.2f}",
                "selected" if any(choice.selects(trial) for choice in sweep.selected) else "",
            ]
        )
    fixed = sorted(binding for binding in shared if config.split(binding)[0] not in axes)
    notes = [f"Bound in every trial: `{' '.join(fixed)}`."] if fixed else []
    notes.append("Validation: accuracy in %.")
    if axes:
        notes[-1] += (
            " Selected: the setting of a task and model with the highest mean over its seeds when "
            "the sweep was finished. Trials never read the test split."
        )
    head = ["Trial", "Task", "Model", "State", *axes, "Seed", "Step", "Validation", "Selected"]
    return Grid(f"Trials of the sweep {sweep.name}", head, rows, notes, words=4)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "-" if value is None else str(value)


def _steps(step: int | None, num_steps: int | None) -> str:
    if step is None:
        return "-"
    return f"{step:,}" + (f" of {num_steps:,}" if num_steps and step != num_steps else "")


def selected(sweep: Sweep) -> Grid:
    """Returns the settings that were selected on validation and scored on test."""
    rows = [
        [
            tasks.title(choice.task),
            choice.model,
            " ".join(choice.overrides),
            ", ".join(map(str, choice.seeds)),
            "-" if choice.validation is None else f"{100 * choice.validation:.2f}",
        ]
        for choice in sweep.selected
    ]
    head = ["Task", "Model", "Setting", "Seeds", "Validation (%)"]
    return Grid(f"Selected in the sweep {sweep.name}", head, rows, words=3)
