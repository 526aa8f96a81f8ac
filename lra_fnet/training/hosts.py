"""Runs several processes as one, on one machine or on many: they join, agree, and end together.

JAX's coordination service does the work. Its key-value store carries the values that the processes
agree on, and the error of a process that ends. Its barriers let all processes start and leave
together. Its heartbeats notice a process that was killed, hangs or is cut off.

JAX then aborts the other processes with a stack trace, and a Python callback in its place crashes
(jaxlib 0.10: std::bad_cast). So `join` forks: the child is the run, and its parent, the supervisor,
passes signals on, holds the stack trace back, and prints one line with the reason instead.
"""

import contextlib
import functools
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lra_fnet.errors import Interrupted, RunFailed, UserError, one_line, out_of_memory
from lra_fnet.machine import progress, signals

SILENT_SECONDS = 30  # without a heartbeat, a process counts as lost
JOIN_SECONDS = 45  # for all processes to join, unless a `Place` says otherwise
GRACE_SECONDS = 5  # for a process to report its own error after another process has reported one

_LONG = 365 * 24 * 3600  # no limit: heartbeats notice a lost process
_LEAD = 100  # calls of `agree` by which process 0 may be ahead
_RESUME = "the same command in each process resumes"


class Place(NamedTuple):
    """The index of this process, the number of processes, and the address of process 0."""

    coordinator: str  # HOST:PORT
    processes: int
    process: int
    join_seconds: int  # for all processes to join
    local_devices: Sequence[int] | None = None  # None: all devices of the machine


_place: Place | None = None  # of this process, once it has joined
_names: list[str]  # of all processes, for messages
_link: socket.socket  # to the supervisor: lines of JSON, [_names, status, text]
_calls: dict[str, int] = {}  # newest call of `agree`, by subject
_ending = threading.Lock()


def place(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    detect: bool,
    join_seconds: int | None = None,
) -> Place | None:
    """Returns the place that the arguments describe; None for a run of one process.

    Args:
      coordinator: HOST:PORT of process 0; PORT is any free one.
      processes: number of processes.
      process: index of this process, from 0.
      detect: take all three from the cluster (SLURM, Open MPI, Cloud TPU, Kubernetes).
      join_seconds: for all processes to join; None: JOIN_SECONDS.

    Raises:
      UserError: an argument is missing, out of range or one too many, or there is no cluster.
    """
    devices, join_seconds = None, join_seconds or JOIN_SECONDS
    if detect and not (coordinator is processes is process is None):
        raise UserError(
            "--hosts auto takes --coordinator, --processes and --process from the cluster: leave "
            "them out, or --hosts auto (LRA_FNET_HOSTS)"
        )
    if detect:
        coordinator, processes, process, devices = _detect(join_seconds)
    elif coordinator is None and processes is None and process is None:
        return None
    if coordinator is None or processes is None or process is None:
        raise UserError(
            "several hosts need --coordinator HOST:PORT, --processes N and --process I, or "
            "--hosts auto on a cluster; got "
            f"{'no cluster' if detect else f'{coordinator}, {processes} and {process}'}"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"--coordinator expects HOST:PORT, got {coordinator!r}")
    if processes < 1 or not 0 <= process < processes:
        raise UserError(f"--process expects 0 to --processes - 1, got {process} of {processes}")
    if processes == 1:
        return None
    return Place(coordinator, processes, process, join_seconds, devices)


def _detect(join_seconds: int):
    """Returns coordinator, processes, process and local devices; None where JAX finds none.

    JAX has no public function for this.
    """
    from jax._src import clusters

    try:
        detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
        return detect(None, None, None, None, None, join_seconds)
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        raise UserError(f"--hosts auto: {str(error).splitlines()[0]}") from None


@contextlib.contextmanager
def join(where: Place | None) -> Iterator[None]:
    """Joins the other processes, and leaves together with them. Without a place it does nothing.

    The body runs in a forked child, so call this before any thread is started. The calling process
    supervises it and exits with its status. An error in the body ends all processes (see `fail`).
    """
    global _place, _names, _link
    if where is None:
        yield
        return
    _names = [f"process {index} of {where.processes}" for index in range(where.processes)]
    supervisor, _link = socket.socketpair()
    log_out, log_in = os.pipe()
    if child := os.fork():
        _link.close()
        os.close(log_in)
        _supervise(where, child, supervisor, log_out)
    import jax

    supervisor.close()
    os.setpgid(0, 0)  # Ctrl-C reaches the supervisor alone, which passes it on
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(log_in, 2)
    signals.handle(signal.SIG_DFL)
    _place = where
    progress.console.quiet = not first()
    threading.Thread(target=_obey, daemon=True).start()
    follower = threading.Thread(target=_follow, daemon=True)
    try:
        _start_jax(where, follower)
        yield
    except BaseException as error:
        if not isinstance(error, Interrupted):  # which all processes have agreed on
            fail(error)
        raise
    finally:
        jax.distributed.shutdown()  # waits until every process has finished
        follower.join()  # Python would kill it inside JAX, which then aborts
        _report(text="")


def _start_jax(where: Place, follower: threading.Thread) -> None:
    import jax
    from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

    jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM
    host, _, port = where.coordinator.rpartition(":")
    loopback = host in ("localhost", "[::1]") or host.startswith("127.")
    progress.say(f"waiting for {where.processes - 1} more processes at {where.coordinator}")
    # `initialize` has no option for this limit, whose message names the missing processes.
    _jax.get_distributed_runtime_service = functools.partial(
        _jax.get_distributed_runtime_service, cluster_register_timeout=where.join_seconds
    )
    if first():
        try:
            socket.create_server(("", int(port))).close()  # JAX crashes if the port is in use
        except OSError:
            raise UserError(f"--coordinator expects a free port, got {where.coordinator}") from None
    jax.distributed.initialize(
        where.coordinator,
        where.processes,
        where.process,
        where.local_devices,
        cluster_detection_method="deactivate",
        initialization_timeout=where.join_seconds + GRACE_SECONDS,
        heartbeat_timeout_seconds=SILENT_SECONDS,
        shutdown_timeout_seconds=_LONG,
        coordinator_bind_address=where.coordinator if loopback else f"[::]:{port}",
    )
    follower.start()
    _store().key_value_set(f"lra-fnet/host/{where.process}", socket.gethostname())
    same("processes", {"--processes": where.processes})
    for index in range(where.processes):
        _names[index] += f" ({_store().key_value_try_get(f'lra-fnet/host/{index}')})"
    _report()


def _report(status: int | None = None, text: str | None = None) -> None:
    _link.send(json.dumps([_names, status, text]).encode() + b"\n")


def _obey() -> None:
    """In a thread: handles signals that the supervisor passes on; ends when the supervisor does."""
    with contextlib.suppress(OSError):
        while data := _link.recv(1):
            if signal.getsignal(data[0]) is signal.SIG_DFL:
                _end(128 + data[0], f"stopped by {signal.Signals(data[0]).name}")
            os.kill(os.getpid(), data[0])  # the training loop saves
    os._exit(os.EX_TEMPFAIL)


def _follow() -> None:
    """In a thread: ends this process when another one has reported an error."""
    with contextlib.suppress(Exception):  # the processes have left
        code, text = json.loads(_store().blocking_key_value_get("lra-fnet/end", 1000 * _LONG))
        time.sleep(GRACE_SECONDS)
        _end(code, text)


def first() -> bool:
    """Returns whether this process writes and prints: process 0, or the only one."""
    return _place is None or _place.process == 0


def _store() -> Any:
    """Returns the client of JAX's coordination service; it has no public name."""
    from jax._src import distributed

    return distributed.global_state.client


def agree(value, about: str = "loop"):
    """Returns process 0's value in every process: the k-th call about a subject returns its k-th.

    Process 0 waits for the others once in `_LEAD` calls, and is never further ahead.

    Args:
      value: a JSON value; ignored in the other processes.
      about: the subject; each thread needs its own.
    """
    if _place is None:
        return value
    key = f"lra-fnet/agree/{about}"
    call = _calls[about] = _calls.get(about, -1) + 1
    if first():
        _store().key_value_set(f"{key}/{call}", json.dumps(value))
        _store().key_value_delete(f"{key}/{call - _LEAD}")  # all have read it
    else:
        value = json.loads(_store().blocking_key_value_get(f"{key}/{call}", 1000 * _LONG))
    if call % _LEAD == _LEAD - 1:
        _store().wait_at_barrier(f"{key}/{call}", 1000 * _LONG)
    return value


def every(mine: bool) -> bool:
    """Returns whether the value is true in all processes; call it equally often in all, as `agree`.

    Process 0 reads the others' values.
    """
    if _place is None:
        return mine
    call = _calls["every"] = _calls.get("every", -1) + 1
    keys = [f"lra-fnet/every/{call}/{process}" for process in range(_place.processes)]
    if not first():
        _store().key_value_set(keys[_place.process], json.dumps(mine))
        return agree(mine)  # process 0's
    others = [_store().blocking_key_value_get(key, 1000 * _LONG) for key in keys[1:]]
    return agree(mine and all(map(json.loads, others)))


def agree_on_signal(mine: int | None) -> int | None:
    """Returns the signal that stops all processes, once one of them has received it.

    Args:
      mine: the signal that this process has received. Like `agree`, call it equally often in all.
    """
    if _place is None:
        return mine
    if mine:
        _store().key_value_set(f"lra-fnet/signal/{_place.process}", str(mine), True)
    received = _store().key_value_dir_get("lra-fnet/signal") if first() else []
    return agree(int(received[0][1]) if received else None)


def same(about: str, facts: Mapping[str, Any]) -> None:
    """Waits for all processes, and ends them with one line if their facts differ.

    Args:
      about: the subject; use each one only once.
      facts: JSON values by name.
    """
    expected = agree(facts, about)
    for name, value in facts.items():
        if value != expected.get(name):
            fail(UserError(f"{name} expects {expected.get(name)}, as in process 0, got {value}"))
    if _place is not None:
        _store().wait_at_barrier(f"lra-fnet/same/{about}", 1000 * _LONG)


def check_shared(folder: Path) -> None:
    """Checks that all processes share the folder.

    Raises:
      UserError: this process does not see the file that process 0 has written there.
    """
    if _place is None:
        return
    mark = folder / f".shared-{agree(time.time_ns(), 'shared')}"
    if first():
        mark.touch()
    same("file written", {})
    deadline = time.monotonic() + SILENT_SECONDS  # NFS shows a new file with a delay
    while not mark.exists():
        if time.monotonic() > deadline:
            raise UserError(f"--runs expects a folder that all hosts share, got {folder.resolve()}")
        time.sleep(0.1)
    same("file seen", {})
    if first():
        mark.unlink()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Ends every process if the body raises, before anything waits for the others.

    Outcomes that all processes reach alike pass through: a signal, divergence, a full device.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, (Interrupted, RunFailed)) and not out_of_memory(error):
            fail(error)
        raise


def fail(error: BaseException) -> None:
    """Ends all processes with the error's text; returns only in a run of one process."""
    if _place is None:
        return
    text = one_line(error)
    if not isinstance(error, (UserError, RunFailed)):
        # When a process is lost, a collective fails with "UNKNOWN: ..." before JAX aborts this one.
        time.sleep(GRACE_SECONDS + (SILENT_SECONDS if re.match("[A-Z_]+: ", text) else 0))
        sys.excepthook(type(error), error, error.__traceback__)
        text = f"{type(error).__name__}: {text[:200]}"
    _end(error.code if isinstance(error, UserError) else 1, text)


def _end(code: int, text: str) -> NoReturn:
    """Ends this process with one line, once the others know why."""
    _ending.acquire()  # for good: the first reason counts
    _report(code, text)
    if _place and _calls:  # all have joined
        with contextlib.suppress(Exception):  # another process has ended, too
            message = json.dumps([code, f"{_names[_place.process]}: {text}"])
            _store().key_value_set("lra-fnet/end", message, allow_overwrite=True)
            _store().wait_at_barrier("lra-fnet/end", 2000 * GRACE_SECONDS)
    os._exit(code)


def _supervise(where: Place, child: int, link: socket.socket, log: int) -> NoReturn:
    """Waits until the child has ended; prints its last line, and exits with its status."""

    def forward(number, _):
        with contextlib.suppress(OSError):
            link.send(bytes([number]))

    signals.handle(forward)
    trace = b""
    while words := os.read(log, 1 << 16):
        if trace or b"coordination_service" in words or b"JAX distributed service" in words:
            trace += words
        else:
            os.write(2, words)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    link.setblocking(False)
    status, text = None, None
    with contextlib.suppress(OSError):
        for line in link.recv(1 << 20).splitlines():
            _names[:], status, text = json.loads(line)
    if text is None:
        status, text = _reason(where, code, trace.decode(errors="replace"))
    signals.end(status or code, text)


def _reason(where: Place, code: int, trace: str) -> tuple[int, str]:
    """Returns exit status and text for a child that was aborted by JAX or killed."""
    name, status, advice = _names[where.process], os.EX_TEMPFAIL, _RESUME
    if listed := re.search(r"(heartbeats|task names).*:\n([\d\n]+)", trace):
        lost = sorted(map(int, listed[2].split()))
        name = f"process {', '.join(map(str, lost))}"
        problem = f"did not join within {where.join_seconds} s"
        if listed[1] == "heartbeats":
            name, problem = ", ".join(_names[index] for index in lost), "does not answer"
    elif refused := re.search(r"absl::Status: (.*)\n+RPC: .*RegisterTask", trace):
        status = os.EX_TEMPFAIL if "DEADLINE" in refused[1] else 2
        problem = f"cannot join process 0 at {where.coordinator} ({refused[1]})"
        advice = "check --coordinator, --processes and --process"
    elif trace:
        name, problem = _names[0], "has ended or does not answer"
    else:
        status = 128 - code if code < 0 else code
        problem = f"has ended with {signal.Signals(-code).name if code < 0 else f'status {code}'}"
    return status, f"{name} {problem}; {advice}"
