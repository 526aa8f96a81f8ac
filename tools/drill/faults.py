"""The cases of the drill: which fault strikes which command where, in an order that the seed fixes.

A case begins in one of the states of `stage.make`, lets a fault strike a command, and then runs
commands without it, which must give what an undisturbed one gives or refuse with one line.
"""

import dataclasses
import errno
import functools
import itertools
import os
import random
import re
import resource
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lra_fnet.training import hosts
from tools.drill import hostile
from tools.drill.stage import FILES, Process, Rule, Stage, Verdict

Facts = dict[str, Any]
MOST_FILES = 12  # of a folder that are damaged
READERS = ("train", "evaluate", "predict", "export", "report")  # of a complete run
# What is struck: the state that it begins in, the command, and what runs after it.
SCENES = {
    "train": ("bare", "train", ("train",)),
    "resume": ("half", "train", ("train",)),
    "evaluate": ("untested", "evaluate", ("evaluate",)),
    "data": ("empty", "data", ("data",)),
    "export": ("whole", "export", ("again", "exported")),
    "export again": ("exported", "again", ("again", "exported")),
    "report": ("whole", "report", ("report",)),
}
# When signals come: phase, scene, warm, cold or freshly started, and the call: kinds, part of its
# path, which one, and how many milliseconds later.
_EVENTS = """
    import    train fresh r  /jax/__pycache__/__init__               1 0
    import    train fresh r  lra_fnet/run/__pycache__/job            1 0
    data      data  warm  m  /data                 2 0
    data      data  warm  o  -train.array_record   1 0
    compile   train cold  r  lra-fnet/jax          1 0
    compile   train cold  r  lra-fnet/jax         12 300
    begin     train warm  o  tensorboard/          1 10
    train     train warm  w  metrics.jsonl         1 0
    train     train warm  w  metrics.jsonl         4 0
    save      train warm  o  checkpoints/last      1 0
    save      train warm  w  checkpoints/last      2 0
    save      train warm  n  checkpoints/best      1 0
    score     train warm  w  metrics.jsonl         2 3
    score     train warm  r  -test.array_record    1 0
    score     train warm  o  test_log.jsonl        1 0
    result    train warm  w  result.json           1 0
    result    train warm  n  result.json           1 0
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """One fault; `play` lets it strike on a stage and returns the verdict."""

    group: str
    title: str
    state: str
    play: Callable[[Stage, Facts], Verdict]


def cases(seed: int, root: Path, calls: dict[tuple[str, str], int]) -> list[Case]:
    """Returns all cases.

    Args:
      seed: chooses among the calls, bytes and bits.
      root: the folder of the states.
      calls: how many calls of which kinds each scene makes.
    """
    rng = random.Random(seed)
    return [
        *_struck(rng, calls),
        *_delayed(),
        *_damaged(rng, root),
        *_signalled(),
        *_limited(),
        *_joined(),
        *(Case("hostile input", *case) for case in hostile.cases()),
    ]


def count(stage: Stage, scene: str) -> list[str]:
    """Returns the kinds of the calls of a scene's command that change files, in their order."""
    stage.run(SCENES[scene][1], Rule("count", trace="trace"))
    return [line.split()[1] for line in (stage.folder / "trace").read_text().splitlines()]


def _struck(rng: random.Random, calls: dict[tuple[str, str], int]) -> Iterator[Case]:
    """Kills and I/O faults at calls that lie evenly over each scene."""
    faults = {  # action, its numbers, kinds of calls, and the step from call to call
        "kill": ("kill", (), FILES, 3),
        "half-written kill": ("half", (), FILES, 4),
        "EIO": ("fail", (errno.EIO,), FILES, 4),
        "ENOSPC": ("full", (errno.ENOSPC,), FILES, 5),
        "short write": ("short", (), "w", 4),
    }
    for (name, (action, numbers, kinds, stride)), scene in itertools.product(
        faults.items(), SCENES
    ):
        for nth in range(1 + rng.randrange(stride), calls[scene, kinds] + 1, stride):
            rule = Rule(action, numbers, nth, kinds)
            yield _strike(name, scene, f"call {nth} of {calls[scene, kinds]}", [rule])
    for scene, part in (("resume", "checkpoints"), ("train", "data"), ("evaluate", "checkpoints")):
        for nth in range(1, 7):
            rule = Rule("fail", (errno.EIO,), nth, "r", part=f"/{part}/")
            yield _strike("EIO", scene, f"reading {part}, file {nth}", [rule])


def _strike(group: str, scene: str, title: str, rules: Sequence[Rule] = (), **how) -> Case:
    """Returns the case of one of `SCENES`; `how` are further arguments of `_play`."""
    play = functools.partial(_play, scene=scene, rules=rules, **how)
    return Case(group, f"{scene}: {title}", SCENES[scene][0], play)


def _play(
    stage: Stage,
    facts: Facts,
    scene: str,
    rules: Sequence[Rule],
    *,
    cold: bool = False,
    **how,
) -> Verdict:
    """Plays a scene with a fault and then without it.

    Args:
      stage: where.
      facts: of the undisturbed commands.
      scene: one of `SCENES`.
      rules: the fault, if it is one of the shim's.
      cold: whether there are no compiled programs.
      **how: further arguments of `Process`.
    """
    if cold:
        shutil.rmtree(stage.folder / "cache/lra-fnet/jax")
    _, command, after = SCENES[scene]
    opened = Rule("count", kinds="r", part="-test.array_record", trace="opened")
    codes = [128 + rule.numbers[0] for rule in rules if rule.action == "signal"]
    struck = stage.run(command, *rules, opened, **how)
    verdict = stage.judge(command, struck, facts[command], *codes, -signal.SIGKILL)
    if struck.code in codes and not re.search("resume|stop", struck.err):
        stage.log.append("  it ended without a word")
        verdict = Verdict.TRACEBACK
    read = command != "data" and _lines(stage.folder / "opened")
    if read and not _lines(stage.folder / "runs/test_log.jsonl"):
        stage.log.append("  it read the test split, and test_log.jsonl does not say so")
        verdict = Verdict.WRONG
    again = [stage.judge(each, stage.run(each), facts[each]) for each in after]
    return max(_clean(verdict), *again)


def _clean(verdict: Verdict) -> Verdict:
    """Returns a verdict on a struck command, which may refuse: what counts is what comes after."""
    return verdict if verdict > Verdict.REFUSED else Verdict.EQUAL


def _delayed() -> Iterator[Case]:
    """Slow disks below one kind of checkpoint, and a kill once the other kind is on disk."""
    slow = {"best": "last", "last": "best"}
    for (kind, other), nth, milliseconds in itertools.product(slow.items(), (2, 3), (3, 30)):
        rules = [
            Rule("delay", (1000 * milliseconds,), below="runs", part=f"checkpoints/{kind}/"),
            Rule("half", (), nth, "n", part=f"checkpoints/{other}/"),
        ]
        title = f"{milliseconds} ms a call below {kind}, kill when {other} {nth} is there"
        yield _strike("delay and kill", "train", title, rules)
        yield _strike("delay", "train", f"{milliseconds} ms a call below {kind}", rules[:1])


def _damaged(rng: random.Random, root: Path) -> Iterator[Case]:
    """Damages every file of runs, prepared data, caches and exports.

    Two of the commands read a file with a flipped bit, all of them one that is cut or gone.
    """
    places = {  # state, folder, what reads it, number of flipped bits a file
        "complete run": ("whole", "runs", READERS, 18),
        "unfinished run": ("half", "runs", ("train",), 18),
        "prepared data": ("bare", "data", ("train", "data"), 14),
        "cache": ("half", "cache", ("train",), 2),
        "export": ("exported", "export", ("exported",), 26),
    }
    for group, (state, folder, readers, flips) in places.items():
        files = sorted(filter(Path.is_file, (root / state / folder).rglob("*")), key=_place)
        files = files[:: -(-len(files) // MOST_FILES)]
        for file in files:
            path, size = file.relative_to(root / state), file.stat().st_size
            bits = sorted(rng.sample(range(8 * size), min(flips, 8 * size)))
            pairs = itertools.cycle(itertools.combinations(readers, min(2, len(readers))))
            damages = [
                (f"bit {bit} of {8 * size}", functools.partial(_flip, bit), pair)
                for bit, pair in zip(bits, pairs, strict=False)
            ]
            damages += [(title, damage, readers) for title, damage in _DAMAGES.items()]
            for title, damage, read_by in damages:
                play = functools.partial(_play_damaged, file=path, damage=damage, readers=read_by)
                yield Case(f"damaged {group}", f"{_short(path)}: {title}", state, play)


def _place(file: Path) -> tuple[str, int]:
    """Returns what orders files alike in every drill: names in the compile cache are hashes."""
    return re.sub("[0-9a-f]{32}", "", str(file)), file.stat().st_size


def _short(path: Path) -> str:
    return str(path).replace("runs/drill/toy/fnet/", "")


def _flip(bit: int, file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


_DAMAGES: dict[str, Callable] = {
    "halved": lambda file: os.truncate(file, file.stat().st_size // 2),
    "emptied": lambda file: os.truncate(file, 0),
    "deleted": Path.unlink,
}


def _play_damaged(stage: Stage, facts: Facts, file: Path, damage, readers) -> Verdict:
    complete = (stage.run_folder / "result.json").exists()
    damage(stage.folder / file)
    verdicts = []
    for command in readers:
        outcome = stage.run(command)
        expected, parts = facts[command], ("result", "table")
        if command in ("train", "evaluate") and complete:  # they only print
            expected = {name: expected[name] for name in parts}
        verdict = stage.judge(command, outcome, expected)
        if command == "report" and verdict is Verdict.WRONG and str(file.name) in outcome.err:
            verdict = Verdict.REFUSED  # it left the file out, and says so
        verdicts.append(verdict)
    return max(verdicts)


def _signalled() -> Iterator[Case]:
    """Signals at events of every phase; with a cold cache there is something to compile."""
    signals = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "HUP": signal.SIGHUP, "INT twice": 2}
    for line, (name, number) in itertools.product(_EVENTS.strip().splitlines(), signals.items()):
        phase, scene, how, kinds, part, nth, later = line.split()
        numbers = (number, int(later), 2 if name == "INT twice" else 1)
        rule = Rule("signal", numbers, int(nth), kinds, "/" if how == "fresh" else "", part)
        title = f"{name} while {phase}: {kinds} {part} {nth}, {later} ms later"
        yield _strike("signal", scene, title, [rule], fresh=how == "fresh", cold=how == "cold")


def _limited() -> Iterator[Case]:
    """Limits of file size, descriptors and memory."""
    limits = {  # scenes, values, whether the command is started freshly
        resource.RLIMIT_FSIZE: ("train data export", (0, 90, 400, 2000, 7000), False),
        resource.RLIMIT_NOFILE: ("train data report", (4, 7, 10, 16, 24), False),
        resource.RLIMIT_AS: ("train", (200 << 20, 700 << 20, 1 << 30, 2 << 30, 6 << 30), True),
    }
    names = {resource.RLIMIT_FSIZE: "file size", resource.RLIMIT_NOFILE: "descriptors"}
    for kind, (scenes, values, fresh) in limits.items():
        for scene, value in itertools.product(scenes.split(), values):
            before = functools.partial(resource.setrlimit, kind, (value, value))
            title = f"{names.get(kind, 'memory')} at most {value}"
            yield _strike("limit", scene, title, before=before, fresh=fresh)


def _joined() -> Iterator[Case]:
    """Two hosts, of which one is killed, stopped or terminated."""
    phases = {
        "before joining": ("c", "/connect", 1),
        "while compiling": ("r", "lra-fnet/jax", 4),
        "in training": ("w", "metrics.jsonl", 2),
        "while saving": ("n", "checkpoints/", 3),
    }
    for (phase, event), name, victim in itertools.product(
        phases.items(), ("KILL", "STOP", "TERM"), (0, 1)
    ):
        play = functools.partial(_play_joined, event=event, name=name, victim=victim)
        yield Case("two hosts", f"{name} process {victim} {phase}", "bare", play)


def _hosts(stage: Stage, rules=((), ())) -> list[Process]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def patience():
        hosts.SILENT_SECONDS = 15

    place = ("--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--join-seconds", "20")
    return [
        Process(
            stage,
            [*stage.words("train"), *place, "--process", str(index)],
            rules[index],
            before=patience,
        )
        for index in (0, 1)
    ]


def hosts_facts(stage: Stage) -> Any:
    """Returns the facts of an undisturbed run of two hosts."""
    outcomes = [process.wait() for process in _hosts(stage)]
    assert [outcome.code for outcome in outcomes] == [0, 0], "\n".join(map(str, outcomes))
    return stage.facts("train", outcomes[0])


def _play_joined(stage: Stage, facts: Facts, event, name: str, victim: int) -> Verdict:
    kinds, part, nth = event
    below = "/" if kinds == "c" else ""
    slow = Rule("delay", (20_000,), 0, below="runs")  # so that nothing ends before the signal comes
    noticed = Rule("count", (), 0, kinds, below, part, "trace")
    observed = 0 if part in ("metrics.jsonl", "checkpoints/") else victim
    rules = [[slow], [slow]]
    rules[observed].append(noticed)
    processes = _hosts(stage, rules)
    deadline = time.monotonic() + 60
    while _lines(stage.folder / "trace") < nth and time.monotonic() < deadline:
        time.sleep(0.01)
        if processes[observed].ended():
            stage.log.append("  it had ended before the event")
            break
    try:
        os.kill(processes[victim].pid, getattr(signal, f"SIG{name}"))
    except ProcessLookupError:
        stage.log.append("  it had ended before the signal")
    hung = False
    for index in (1 - victim, victim):
        stopped = name == "STOP" and index == victim
        outcome = processes[index].wait(0.1 if stopped else 60)
        stage.log.append(str(outcome))
        hung |= outcome.code is None and not stopped
    outcomes = [process.wait() for process in _hosts(stage)]
    stage.log += map(str, outcomes)
    return max(
        Verdict.HANG if hung else Verdict.EQUAL,
        stage.judge("train", outcomes[0], facts["hosts"]),
        outcomes[1].verdict(),
    )


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0
