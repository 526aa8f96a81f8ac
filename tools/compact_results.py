"""Shortens the metrics.jsonl of committed results: python -m tools.compact_results [FOLDER].

Keeps every evaluation, and as many evenly spaced training lines, at most 200, as fit into 30 KB for
the run folder. A line keeps what `lra-fnet verify` and the learning curves of the report read.
"""

import json
import sys
from pathlib import Path

LINES, BYTES = 200, 30 * 1024
KEPT = ("kind", "step", "loss", "accuracy", "order_loss", "order_accuracy")


def compact(folder: Path) -> None:
    """Shortens the metrics.jsonl of a run folder, if it has one."""
    file = folder / "metrics.jsonl"
    if not file.exists():
        return
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [{name: row[name] for name in KEPT if name in row} for row in rows]
    train = [{n: row[n] for n in KEPT[:3]} for row in rows if row["kind"] == "train"]
    scores = [row for row in rows if row["kind"] == "validation"]
    free = BYTES - sum(len(json.dumps(row)) + 1 for row in scores)
    free -= sum(other.stat().st_size for other in folder.iterdir() if other != file)
    longest = max((len(json.dumps(row)) + 1 for row in train), default=1)
    count = min(LINES, len(train), max(0, free // longest))
    kept = [train[i * (len(train) - 1) // max(count - 1, 1)] for i in range(count)]
    kept = sorted(kept + scores, key=lambda row: row["step"])
    file.write_text("".join(json.dumps(row) + "\n" for row in kept))


if __name__ == "__main__":
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "results")
    for result in root.glob("**/seed*/result.json"):
        compact(result.parent)
