"""Where a case of the drill plays: folders, commands in separate processes, and the verdict.

The command `lra-fnet` is not started anew for each case, which would take seconds. The drill's own
process has imported everything and started neither threads nor JAX's backend; a case is played in a
fork of it. The shim (shim.c) is preloaded into it, and is armed in the fork.
"""

import atexit
import contextlib
import ctypes
import dataclasses
import enum
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import jax

from lra_fnet import cli
from lra_fnet.errors import UserError
from lra_fnet.machine import disk, signals
from lra_fnet.run import result as results

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHIM = "LRA_FNET_DRILL_SHIM"  # the compiled shim's path, in the drill's own environment
FILES = "owstmnu"  # the kinds of calls of shim.c that change files
PATIENCE = 60.0  # seconds until a command counts as hanging
_COMMANDS = {
    "data": "data --task toy --gin-dir {gin} --import tools.drill.toy",
    "train": "train --task toy --model fnet --preset drill --gin-dir {gin} --seed {seed}",
    "untested": "{train} --no-test",
    "evaluate": "evaluate --run {run}",
    "predict": "predict --run {run} inputs.txt",
    "export": "export --run {run} --out export",
    "again": "export --run {run} --out export --force",
    "exported": "predict --run export inputs.txt",
    "report": "report --results runs",
}
_EXPORTING = ("export", "exported", "again")
_NUMBERS = (  # the fields of result.json that are no timings
    *("state", "config", "data_sha256", "floor", "mixer_length", "validation", "test", "train"),
    *("parameters", "parameters_sha256"),
)
_FACTS = ("result", "curve", "readings", "table")  # about a run
_NOISE = re.compile(
    r"Traceback \(most|Fatal Python error|Segmentation fault|stack trace|Exception ignored|"
    r"terminate called|\*\*\* Check failure|^[EF]\d{4} ",
    re.M,
)


class Verdict(enum.IntEnum):
    """How a case ended; of several commands the worst counts."""

    EQUAL = 0
    REFUSED = 1  # with one line
    TRACEBACK = 2  # or another end than the documented ones
    HANG = 3
    WRONG = 4  # another number without a word


def build(folder: Path) -> Path:
    """Compiles the shim.

    Raises:
      UserError: this is not Linux, or there is no C compiler.
    """
    shim = folder / "shim.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-pthread", "-o", str(shim), str(HERE / "shim.c")]
    try:
        if sys.platform != "linux":
            raise OSError("this is not Linux")
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"the drill needs Linux and the C compiler cc ({error})") from None
    return shim


@dataclasses.dataclass(frozen=True)
class Rule:
    """A fault below Python; see shim.c. `below` and `trace` are relative to the case's folder."""

    action: str
    numbers: tuple[int, ...] = ()
    nth: int = 0
    kinds: str = FILES
    below: str = ""
    part: str = ""
    trace: str = ""

    def text(self, folder: Path) -> bytes:
        """Returns the rule as shim.c reads it."""
        a, b, c = (*self.numbers, 0, 0, 0)[:3]
        trace = folder / self.trace if self.trace else ""
        lines = f"{self.action} {a} {b} {c} {self.nth} {self.kinds}", trace, folder / self.below
        return "\n".join(map(str, (*lines, self.part))).encode()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a command ended; the code is None if it hung and negative if a signal killed it."""

    words: Sequence[str]
    code: int | None
    out: str
    err: str

    def verdict(self, *codes: int) -> Verdict:
        """Judges the end alone; numbers that are equal are the caller's to compare.

        Args:
          *codes: exit codes that are as good as 0 here.
        """
        if self.code is None:
            return Verdict.HANG
        if self.code in codes and not _NOISE.search(self.err):
            return Verdict.EQUAL
        lines = re.findall("^lra-fnet: ", self.err, re.M)
        if _NOISE.search(self.err) or self.code not in (0, 2, os.EX_TEMPFAIL):
            return Verdict.TRACEBACK
        if self.code and len(lines) != 1:
            return Verdict.TRACEBACK
        return Verdict.REFUSED if self.code else Verdict.EQUAL

    def __str__(self) -> str:
        """The command, its code, and the end of what it said."""
        ends = "hung" if self.code is None else f"ended with {self.code}"
        said = "".join(f"\n    {line}" for line in self.err.strip().splitlines()[-12:])
        return f"  lra-fnet {' '.join(self.words)}: {ends}{said}"


class Process:
    """A command that runs in a fork of this process, or in a fresh one."""

    def __init__(
        self,
        stage: "Stage",
        words: Sequence[str],
        rules: Sequence[Rule] = (),
        *,
        before: Callable[[], Any] = lambda: None,
        fresh: bool = False,
    ):
        self.words = list(map(str, words))
        pipes = [os.pipe() for _ in range(2)]
        for _, end in pipes:
            fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 1 << 20)  # pyright: ignore[reportAttributeAccessIssue]
        self.pid = os.fork()
        if not self.pid:
            self._child(stage, rules, [end for _, end in pipes], before, fresh)
        for _, end in pipes:
            os.close(end)
        self._ends = [end for end, _ in pipes]

    def _child(self, stage, rules, ends, before, fresh) -> None:
        code = 1
        try:
            os.setsid()
            signals.handle(signals.stop_at_once)  # as `python -m lra_fnet` begins
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, end in enumerate(ends, 1):
                os.dup2(end, number)
            os.closerange(3, 1 << 10)
            os.chdir(stage.folder)
            cache = stage.folder / "cache"
            os.environ["XDG_CACHE_HOME"] = str(cache)
            os.environ["JAX_COMPILATION_CACHE_DIR"] = folder = str(cache / "lra-fnet/jax")
            jax.config.update("jax_compilation_cache_dir", folder)
            shim = os.environ.pop(SHIM)
            texts = [rule.text(stage.folder) for rule in rules]
            before()
            if fresh:
                os.environ["LD_PRELOAD"] = shim
                os.environ["LRA_FNET_DRILL"] = texts[0].decode() if texts else ""
                os.execv(sys.executable, [sys.executable, "-m", "lra_fnet", *self.words])
            for text in texts:
                ctypes.CDLL(shim).drill_arm(text)
            code = cli.main(self.words)
            threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue] # as at Python's end
            atexit._run_exitfuncs()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def ended(self) -> bool:
        """Returns whether it has ended; `wait` still gives its outcome."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def wait(self, seconds: float = PATIENCE) -> Outcome:
        """Returns the outcome; a process that has not ended by then is killed."""
        handle = os.pidfd_open(self.pid)
        ended = select.select([handle], [], [], seconds)[0]
        with contextlib.suppress(ProcessLookupError):  # it, even before it leads a group
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
        with contextlib.suppress(ProcessLookupError):  # what it has left behind
            os.killpg(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        texts = []
        for end in self._ends:
            os.set_blocking(end, False)
            data = b""
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(end, 1 << 20):
                    data += chunk
            os.close(end)
            texts.append(data.decode(errors="replace"))
        return Outcome(self.words, code if ended else None, *texts)


# Lines that differ between equal runs: times, and where several processes meet.
_TIMES = re.compile(r"^(\[Gloo\]|trained in ).*\n", re.MULTILINE)


@dataclasses.dataclass
class Stage:
    """A folder with the drill's task, in which commands run with their default folders."""

    folder: Path
    seed: int
    log: list[str] = dataclasses.field(default_factory=list)  # what happened, for the reader

    @property
    def run_folder(self) -> Path:
        """The folder of the run that the command `train` makes."""
        return self.folder / f"runs/drill/toy/fnet/seed{self.seed}"

    def words(self, command: str) -> list[str]:
        """Returns the arguments of a command of the drill, by its short name."""
        run = self.run_folder.relative_to(self.folder)
        text = _COMMANDS[command].replace("{train}", _COMMANDS["train"])
        places = {"gin": HERE / "gin", "run": run, "seed": self.seed}
        return [word.format(**places) for word in text.split()]

    def run(self, words: str | Sequence[str], *rules: Rule, **keywords) -> Outcome:
        """Runs a command, by its short name or its arguments, to its end."""
        words = self.words(words) if isinstance(words, str) else words
        outcome = Process(self, words, rules, **keywords).wait()
        self.log.append(str(outcome))
        return outcome

    def facts(self, command: str, outcome: Outcome, names: Collection[str] = _FACTS) -> Any:
        """Returns everything that must not depend on a fault, after a command's success.

        Args:
          command: its short name.
          outcome: of the command.
          names: the facts about a run that are wanted; files of others are not read.
        """
        if command in ("train", "untested", "evaluate"):
            result = results.read(self.run_folder)
            assert result is not None, "there is no result.json"
            facts = {
                "result": lambda: {name: result.raw[name] for name in _NUMBERS},
                "curve": lambda: _curve(self.run_folder / "metrics.jsonl"),
                "readings": lambda: _readings(self.folder / "runs/test_log.jsonl"),
                "table": lambda: _TIMES.sub("", outcome.out).partition("run folder: ")[0],
            }
            return {name: facts[name]() for name in names}
        if command == "data":
            folder = next((self.folder / "data/lra_toy/full").glob("[0-9]*"))
            return json.loads((folder / "fingerprint.json").read_text())["fingerprint"]
        if command in ("export", "again"):
            names = ("model.safetensors", "README.md")
            return [(self.folder / "export" / name).read_bytes().hex() for name in names]
        if command == "report":
            return (self.folder / "reports/accuracy.csv").read_text()
        return outcome.out

    def judge(self, command: str, outcome: Outcome, expected: Any, *codes: int) -> Verdict:
        """Returns the verdict on a command: on its end, and on its facts if it has succeeded."""
        verdict = outcome.verdict(*codes)
        if verdict is Verdict.EQUAL and not outcome.code:
            try:
                wanted = expected if isinstance(expected, dict) else _FACTS
                facts = self.facts(command, outcome, wanted)
            except (UserError, OSError, ValueError, AssertionError) as error:
                facts = f"{type(error).__name__}: {error}"
            if facts != expected:
                verdict = Verdict.WRONG
                self.log.append(f"  {command}: {_difference(facts, expected)}")
        return verdict


def _curve(file: Path) -> list:
    """Returns the numbers of metrics.jsonl that are not timings."""
    names = ("kind", "step", "loss", "accuracy", "learning_rate", "grad_norm")
    return [[line.get(name) for name in names] for line in disk.read_lines(file)]


def _readings(file: Path) -> list:
    """Returns each different reading of the test split; one that was made twice counts once."""
    names = ("run", "kind", "step", "correct", "count", "loss")
    lines = [line for line in disk.read_lines(file, skip=True) if "correct" in line]
    return sorted({tuple(line[name] for name in names) for line in lines})


def _difference(actual, expected) -> str:
    """Returns the first place at which two facts differ."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        for name in sorted(actual.keys() | expected.keys()):
            if actual.get(name) != expected.get(name):
                return f"{name}: {_difference(actual.get(name), expected.get(name))}"
    return f"got {str(actual)[:300]!r}, expected {str(expected)[:300]!r}"


def make(root: Path, seed: int) -> dict[str, Any]:
    """Makes the states that cases begin with, in folders of `root`; returns the undisturbed facts.

      empty      nothing
      bare       prepared data and warm caches
      half       a run that was stopped between its two evaluations
      untested   a run that was trained with --no-test
      whole      a complete run
      exported   a complete run and its export

    Raises:
      UserError: an undisturbed command fails.
    """
    facts: dict[str, Any] = {}
    (root / "empty").mkdir()
    (root / "empty/inputs.txt").write_text("0101101\n1110\n")

    def begin(name, copied):
        shutil.copytree(root / copied, root / name, symlinks=True)
        return Stage(root / name, seed)

    def must(stage, command, *rules, code=0):
        outcome = stage.run(command, *rules)
        if outcome.code != code:
            raise UserError(f"without a fault, the drill expects exit code {code}:\n{outcome}")
        if not code:
            now = stage.facts(command, outcome)
            if now != facts.setdefault(command, now):
                raise UserError(f"{command}, twice: {_difference(now, facts[command])}")
        return outcome

    warm = begin("warm", "empty")
    for command in ("data", "train", "evaluate", "predict", "report", *_EXPORTING):
        must(warm, command)
    for name, without in {
        "bare": ("runs", "export", "reports"),
        "whole": ("export", "reports"),
        "exported": ("reports",),
    }.items():
        shutil.copytree(warm.folder, root / name, symlinks=True)
        for folder in without:
            shutil.rmtree(root / name / folder)
    must(begin("untested", "bare"), "untested")
    kept, used = (
        {file.name for file in (root / name / "cache/lra-fnet/jax").glob("*-cache")}
        for name in ("bare", "untested")
    )
    if kept != used:  # then no case could damage what a command reads
        raise UserError(f"without a fault, a copied cache serves, but this adds {used - kept}")
    stop = Rule("signal", (signal.SIGTERM, 0, 1), 3, "w", part="metrics.jsonl")
    must(begin("half", "bare"), "train", stop, code=128 + signal.SIGTERM)
    return facts
