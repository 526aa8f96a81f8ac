"""Submits one run, or every trial of a sweep, to SLURM as one job array.

    python launch/slurm.py --partition gpu --time 4:00 --gpus 1 --cpus 8 -- \
        lra-fnet sweep --task listops --models fnet,linear --preset paper --seeds 3

A job runs the command that a person would type, in the folder where this script was called. A job
that is preempted, reaches its time limit or loses another host goes back to the queue under its id
and resumes from its checkpoint. A job that fails (exit code 1), has a mistake in its command (2) or
is cancelled does not. Other settings of a cluster go into sbatch's variables: SBATCH_ACCOUNT=...
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from lra_fnet import cli
from lra_fnet.errors import UserError

# Exit codes: another host is gone, as lra-fnet or JAX itself ends then; stopped after saving.
AGAIN = (75, 128 + signal.SIGABRT, 128 + signal.SIGTERM)
SAVE_SECONDS = 120  # before the time limit a run is asked to save; SLURM may be 60 s early
TIME_LIMITS = 100  # after reaching its time limit so often, a run counts as stuck


class Attempt:
    """Runs the command of a job; `submitit` calls it again after each requeue."""

    def __call__(self, words: list[str]) -> None:
        """Runs the command to its end, or puts the job back into the queue.

        Raises:
          SystemExit: the command failed, and would fail again; the code is the command's.
        """
        import submitit

        number = signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]  # the time limit is near
        # SLURM signals every process of the job, and the command would end without saving.
        child = subprocess.Popen(words, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
        requeue = signal.signal(number, lambda *_: child.terminate())
        code = child.wait()
        signal.signal(number, requeue)
        code = 128 - code if code < 0 else code  # ended by a signal that it did not catch
        if code in AGAIN and _is_running(submitit.JobEnvironment().job_id):
            signal.raise_signal(number)  # to submitit, which requeues the job
        elif code:
            sys.exit(code)

    def checkpoint(self, words: list[str]):
        """Returns the same call for the requeued job: the run folder holds the progress."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, words)


def _is_running(job: str) -> bool:
    """Returns False if SLURM is already ending the job, to cancel it or to requeue it itself."""
    state = ["squeue", "--noheader", "--jobs", job, "--format", "%T"]
    return subprocess.run(state, stdout=subprocess.PIPE, text=True).stdout.strip() == "RUNNING"


def commands(words: list[str]) -> list[list[str]]:
    """Returns the commands of the jobs: `lra-fnet train ...`, or those of a sweep's --dry-run.

    Raises:
      UserError: it is another command.
      SystemExit: the sweep has a mistake, which it has printed.
    """
    if words[:2] == ["lra-fnet", "train"]:
        if "--force" in words:
            raise UserError("--force would start again after each requeue: move the run away first")
        return [words]
    if words[:2] != ["lra-fnet", "sweep"]:
        raise UserError(
            "expected `-- lra-fnet train ...` or `-- lra-fnet sweep ...` after the options, got "
            f"{shlex.join(words) or 'no command'!r}"
        )
    dry_run = subprocess.run([*_program(words), "--dry-run"], stdout=subprocess.PIPE, text=True)
    if dry_run.returncode:
        raise SystemExit(dry_run.returncode)
    return [shlex.split(line) for line in dry_run.stdout.splitlines()]


def _program(words: list[str]) -> list[str]:
    """Returns the command for the Python of this process, since a job may not find `lra-fnet`."""
    return [sys.executable, "-m", "lra_fnet", *words[1:]]


def minutes(text: str) -> int:
    """Returns the minutes of a time limit.

    >>> minutes("1:30")
    90

    Raises:
      ArgumentTypeError: the text is not a time of at least a minute.
    """
    match = re.fullmatch(r"(\d+):([0-5]\d)", text)
    total = 60 * int(match[1]) + int(match[2]) if match else 0
    if not total:
        raise argparse.ArgumentTypeError(f"expects hours and minutes, such as 4:00, got {text!r}")
    return total


def import_submitit():
    """Returns the module submitit, imported without its configuration of logging.

    That configuration shuts down every handler that the process already has, and absl's handler
    then closes the stream that it writes to. sbatch passes the variable on to the jobs.

    Raises:
      UserError: submitit is not installed.
    """
    os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
    try:
        import submitit
    except ImportError:
        raise UserError(
            "submitit is not installed: run `python -m pip install submitit`, or "
            "`launch/install.sh .venv python3 slurm` for the environment of make"
        ) from None
    return submitit


def submit(args: argparse.Namespace, trials: list[list[str]]) -> list:
    """Submits the commands; returns submitit's jobs in the same order.

    Raises:
      UserError: submitit or SLURM is missing, or SLURM refuses.
    """
    submitit = import_submitit()
    several = args.nodes > 1
    tasks = args.gpus or 1 if several else 1  # on a node: under SLURM, JAX has one for each GPU
    optional = {
        "gpus_per_node": args.gpus,
        "partition": args.partition,
        "array_parallelism": args.array_parallelism,
        "srun_args": ["--kill-on-bad-exit=1"] if several else None,  # a failed run ends everywhere
    }
    try:
        executor = submitit.SlurmExecutor(args.logs, max_num_timeout=TIME_LIMITS)
        executor.update_parameters(
            job_name="lra-fnet",
            time=args.time,
            nodes=args.nodes,
            ntasks_per_node=tasks,
            cpus_per_task=max(1, args.cpus // tasks),
            signal_delay_s=SAVE_SECONDS,
            stderr_to_stdout=True,
            additional_parameters={"requeue": True},
            **{name: value for name, value in optional.items() if value},
        )
        hosts = ["--hosts", "auto"] if several else []
        return executor.map_array(Attempt(), [[*_program(words), *hosts] for words in trials])
    except OSError as error:
        raise UserError(
            f"--logs {args.logs} cannot be written ({error.strerror}): name another folder"
        ) from None
    except RuntimeError as error:  # there is no srun, or sbatch refuses
        raise UserError(" ".join(str(error).split())) from None


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expects a whole number of at least 1, got {text!r}")
    return int(text)


def _parser() -> cli.Parser:
    parser = cli.Parser(
        prog="launch/slurm.py",
        usage="%(prog)s [options] -- lra-fnet train|sweep ...",
        description="Submits one run, or every trial of a sweep, to SLURM as one job array.",
    )
    option = parser.add_argument
    option("--partition", help="default: the cluster's default partition")
    limit = "time limit, after which a job requeues"
    option("--time", required=True, type=minutes, metavar="H:MM", help=limit)
    option("--gpus", type=_positive, help="GPUs of each node (default: none)")
    option("--cpus", type=_positive, default=1, help="cores of each node (default: 1)")
    option("--nodes", type=_positive, default=1, help="nodes of one run (default: 1)")
    option("--array-parallelism", type=_positive, help="number of jobs that run at a time")
    option("--logs", type=Path, default=Path("runs/slurm"), help="a folder that all nodes see")
    return parser


def main(arguments: list[str]) -> int:
    """Submits the jobs; prints the id, the log and the command of each.

    Returns:
      0; 2 for a user's mistake.
    """
    split = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        args = _parser().parse_args(arguments[:split])
        trials = commands(arguments[split + 1 :])
        if not trials:
            print("all trials are complete: there is nothing to submit", file=sys.stderr)
            return 0
        jobs = submit(args, trials)
    except UserError as error:
        print(f"launch/slurm.py: {error}", file=sys.stderr)
        return 2
    for job, words in zip(jobs, trials, strict=True):
        print(f"{job.job_id}  {os.path.relpath(job.paths.stdout)}  {shlex.join(words)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
