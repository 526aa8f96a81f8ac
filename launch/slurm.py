"""Submits one run, or every trial of a sweep, to SLURM as one job array.

    python launch/slurm.py --partition gpu --time 4:00 --gpus 1 --cpus 8 -- \
        lra-fnet sweep --task listops --models fnet,linear --preset paper --seeds 3

A job is the command that a person types, started in the folder where this was called. One that is
preempted, reaches its time limit or loses another host goes back to the queue under its own id and
resumes from its checkpoint. One whose run failed (exit code 1), was mistyped (2) or was cancelled
does not. What else a cluster wants to know goes into sbatch's own variables: SBATCH_ACCOUNT=...
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from lra_fnet.errors import UserError

AGAIN = (75, 128 + signal.SIGTERM)  # exit codes: other hosts are gone; stopped after saving
SAVE_SECONDS = 120  # before the time limit a run is told to save; SLURM may be 60 s early
LOG_LEVEL = "SUBMITIT_LOG_LEVEL"
TIME_LIMITS = 100  # that a run may reach; then it is stuck


class Attempt:
    """What a job does with a command; `submitit` calls it anew after each requeue."""

    def __call__(self, words: list[str]) -> None:
        """Runs the command to its end, or back into the queue.

        Raises:
          SystemExit: the command's code, where the same command would end in the same way.
        """
        import submitit

        number = signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]  # the time limit is near
        # SLURM sends it to every process of the job; the command would end without saving.
        child = subprocess.Popen(words, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
        requeue = signal.signal(number, lambda *_: child.terminate())
        code = child.wait()
        signal.signal(number, requeue)
        code = 128 - code if code < 0 else code  # a signal that the command did not catch
        if code in AGAIN and _running(submitit.JobEnvironment().job_id):
            signal.raise_signal(number)  # to submitit, which requeues the job
        elif code:
            sys.exit(code)

    def checkpoint(self, words: list[str]):
        """What the requeued job does: the same; the run folder holds how far it came."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, words)


def _running(job: str) -> bool:
    """Whether SLURM is not yet ending the job: to cancel it, or to requeue it by itself."""
    state = ["squeue", "--noheader", "--jobs", job, "--format", "%T"]
    return subprocess.run(state, stdout=subprocess.PIPE, text=True).stdout.strip() == "RUNNING"


def commands(words: list[str]) -> list[list[str]]:
    """`lra-fnet train ...` itself, or what `lra-fnet sweep ... --dry-run` prints.

    Raises:
      UserError: another command.
      SystemExit: the sweep is mistyped; it has said so.
    """
    if words[:2] == ["lra-fnet", "train"]:
        return [words]
    if words[:2] != ["lra-fnet", "sweep"]:
        raise UserError(
            "expects `-- lra-fnet train ...` or `-- lra-fnet sweep ...` after its options, got "
            f"{shlex.join(words) or 'no command'!r}"
        )
    listed = subprocess.run(
        [*_program(words), *words[2:], "--dry-run"], stdout=subprocess.PIPE, text=True
    )
    if listed.returncode:
        raise SystemExit(listed.returncode)
    return [shlex.split(line) for line in listed.stdout.splitlines()]


def _program(words: list[str]) -> list[str]:
    """The same command of the Python that runs this: a job need not find `lra-fnet`."""
    return [sys.executable, "-m", "lra_fnet.cli", words[1]]


def minutes(text: str) -> int:
    """A time limit.

    >>> minutes("1:30")
    90

    Raises:
      UserError: no such time.
    """
    found = re.fullmatch(r"(\d+):([0-5]\d)", text)
    total = 60 * int(found[1]) + int(found[2]) if found else 0
    if not total:
        raise UserError(f"--time expects hours and minutes, 4:00 say, got {text!r}")
    return total


def import_submitit():
    """Returns the module submitit, imported without its configuration of logging.

    That configuration (`logging.config.dictConfig`) shuts down every handler that this process
    already has, and absl's handler then closes the stream that it writes to. The variable is set
    for the import only: sbatch passes the environment on to the jobs, whose log submitit does
    configure.

    Raises:
      UserError: submitit is not installed.
    """
    level = {name: os.environ[name] for name in [LOG_LEVEL] if name in os.environ}
    os.environ[LOG_LEVEL] = "NOCONFIG"
    try:
        import submitit
    except ImportError:
        raise UserError(
            "submitit is not installed: python -m pip install submitit, or `make` with it: "
            "launch/install.sh .venv python3 slurm"
        ) from None
    finally:
        del os.environ[LOG_LEVEL]
        os.environ |= level
    return submitit


def submit(args: argparse.Namespace, every: list[list[str]]) -> list:
    """Submits the commands; returns submitit's jobs in the same order.

    Raises:
      UserError: submitit or SLURM is missing, or SLURM refuses.
    """
    submitit = import_submitit()
    every = [[*_program(words), *words[2:]] for words in every]
    more = {}
    tasks = args.gpus or 1 if args.nodes > 1 else 1  # on a node: under SLURM, JAX has one for a GPU
    if args.nodes > 1:
        every = [[*words, "--hosts", "auto"] for words in every]
        more["srun_args"] = ["--kill-on-bad-exit=1"]  # a failed run ends on all its nodes
    if args.gpus:
        more["gpus_per_node"] = args.gpus
    if args.partition:
        more["partition"] = args.partition
    if args.array_parallelism:
        more["array_parallelism"] = args.array_parallelism
    try:
        executor = submitit.SlurmExecutor(args.logs, max_num_timeout=TIME_LIMITS)
        executor.update_parameters(
            job_name="lra-fnet",
            time=minutes(args.time),
            nodes=args.nodes,
            ntasks_per_node=tasks,
            cpus_per_task=max(1, args.cpus // tasks),
            signal_delay_s=SAVE_SECONDS,
            stderr_to_stdout=True,
            additional_parameters={"requeue": True},
            **more,
        )
        return executor.map_array(Attempt(), every)
    except RuntimeError as error:  # no srun; or what sbatch says
        raise UserError(" ".join(str(error).split())) from None


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UserError(f"{message} (see --help)")


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expects a whole number of at least 1, got {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="launch/slurm.py",
        usage="%(prog)s [options] -- lra-fnet train|sweep ...",
        description="Submits one run, or every trial of a sweep, to SLURM as one job array.",
    )
    parser.add_argument("--partition", help="default: the cluster's own")
    parser.add_argument("--time", required=True, metavar="H:MM", help="then a job requeues")
    parser.add_argument("--gpus", type=_positive, help="on each node; default: none")
    parser.add_argument("--cpus", type=_positive, default=1, help="on each node")
    parser.add_argument("--nodes", type=_positive, default=1, help="of one run")
    parser.add_argument("--array-parallelism", type=_positive, help="jobs that run at a time")
    parser.add_argument("--logs", type=Path, default=Path("runs/slurm"), help="seen by all nodes")
    return parser


def main(arguments: list[str]) -> int:
    """Submits; prints a line for each job, and where its output goes.

    Returns:
      0; 2 for a user's mistake.
    """
    split = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        args = _parser().parse_args(arguments[:split])
        minutes(args.time)
        every = commands(arguments[split + 1 :])
        if not every:
            print("no trial is left to run", file=sys.stderr)
            return 0
        jobs = submit(args, every)
    except UserError as error:
        print(f"launch/slurm.py: {error}", file=sys.stderr)
        return 2
    for job, words in zip(jobs, every, strict=True):
        print(f"{job.job_id}  {os.path.relpath(job.paths.stdout)}  {shlex.join(words)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
