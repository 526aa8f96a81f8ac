"""Several devices: strong and weak scaling of the update, its loss and its all-reduces.

A separate process measures each number of devices and sees only these: the first GPUs, or simulated
CPU devices. Strong scaling splits the preset's batch over the devices; weak scaling gives the
preset's batch to each of them.
"""

import dataclasses
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from lra_fnet.benchmark.cells import Cell, Worker
from lra_fnet.errors import UserError
from lra_fnet.machine import disk, progress

STEPS = 7  # after which the losses are compared; two of them warm up
ROUNDS = 3  # timings of each row; the table shows their median
NOTICE = "Simulated CPU devices share the same cores: compare their losses, not their speed."


def main(cell: Cell, devices: Sequence[int], out: Path) -> list[dict]:
    """Measures, writes scaling.MODEL.LENGTH.json and .md into `out`, prints the table.

    Returns:
      One object per row: scaling ("strong" or "weak"), devices, batch_size, and if the machine has
      the devices: steps_per_second (one per round), loss after STEPS steps in nats, all_reduces in
      the program, platform.

    Raises:
      UserError: a number of devices does not divide the batch; the cell cannot be built or needs
        more memory than there is.
    """
    batch_size = cell.load().run.batch_size
    if wrong := [number for number in devices if batch_size % number]:
        raise UserError(
            f"--devices expects numbers that divide Run.batch_size ({batch_size}), got {wrong[0]}"
        )
    plan = [("strong", number, batch_size) for number in devices]
    plan += [("weak", number, batch_size * number) for number in devices if number > 1]
    out.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.]+", "-", f"scaling.{cell.label or cell.model}.{cell.length}")
    rows: list[dict] = []
    with progress.Bar("scaling", len(plan), unit="programs") as bar:
        for scaling, number, size in plan:
            row = {"scaling": scaling, "devices": number, "batch_size": size}
            overrides = (*cell.overrides, f"Run.batch_size={size}")
            rows.append(
                row | measure(dataclasses.replace(cell, overrides=overrides, devices=number))
            )
            disk.replace(out / f"{name}.json", json.dumps(rows, indent=1) + "\n")
            disk.replace(out / f"{name}.md", table(rows))
            bar.step()
    print(table(rows), end="")
    return rows


def measure(cell: Cell) -> dict:
    """Returns what a row measures; nothing if the machine has fewer devices than the cell.

    Raises:
      UserError: the cell does not fit.
    """
    child = Worker(cell)
    try:
        child.ready()
        if child.result["state"] == "OOM":
            raise UserError(
                f"{cell.model} on {cell.devices} devices does not fit: take a smaller batch"
            )
        if child.result["state"] == "ABSENT":
            return {}
        facts = child.ask({"steps": STEPS - 2})
        rounds = [child.ask({"seconds": cell.seconds}) for _ in range(ROUNDS)]
    finally:
        child.close()
    return {
        "steps_per_second": [reply["calls"] / reply["seconds"] for reply in rounds],
        **facts,
        "platform": child.result["device"]["platform"],
    }


def table(rows: Sequence[dict]) -> str:
    """Returns Markdown: steps/s, efficiency relative to one device, loss and all-reduces by row.

    Efficiency is the speed-up over the number of devices; in weak scaling, where a step of n
    devices does the work of n steps, it is the ratio of steps/s.
    """
    single = next((row for row in rows if row["devices"] == 1 and "loss" in row), None)
    lines = [
        "| scaling | devices | batch | steps/s | efficiency | loss | all-reduces |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        places = f"| {row['scaling']} | {row['devices']} | {row['batch_size']} |"
        if "loss" not in row:
            lines.append(f"{places} - | - | - | - |")
            continue
        rate = statistics.median(row["steps_per_second"])
        efficiency = "-"
        if single:
            ideal = row["devices"] if row["scaling"] == "strong" else 1
            efficiency = f"{rate / statistics.median(single['steps_per_second']) / ideal:.0%}"
        numbers = f"{rate:.3g} | {efficiency} | {row['loss']:.6f} | {row['all_reduces']}"
        lines.append(f"{places} {numbers} |")
    losses = [row["loss"] for row in rows if row["scaling"] == "strong" and "loss" in row]
    if losses:
        spread = (max(losses) - min(losses)) / abs(losses[0])
        lines += [
            "",
            f"Losses after {STEPS} steps on one batch; those of strong scaling differ by "
            f"{spread:.0e} of their value.",
        ]
    if any(row.get("platform") == "cpu" for row in rows):
        lines += ["", NOTICE]
    return "\n".join(lines) + "\n"
