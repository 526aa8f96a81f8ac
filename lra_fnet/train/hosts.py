"""Several processes as one run, on one machine or many: they join, agree, and end together.

Process 0 listens at the coordinator's address; every other process keeps a connection to it, apart
from those of JAX. In each process a thread sends a beat every second and listens. A process that
ends closes its connection, which is noticed at once; one that is stopped or cut off falls silent,
which is noticed after SILENT_SECONDS. The thread then says which process is missing and ends its
own process, whatever that is doing: a collective would wait for ever. Threads of Python run during
compilation and collectives, so a slow process is not taken for a stopped one.

The same connections carry what the processes must agree on, in `agree` and `same`.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import os
import secrets
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lra_fnet.errors import Gone, Interrupted, RunFailed, UserError
from lra_fnet.machine import progress

BEAT_SECONDS = 1.0
SILENT_SECONDS = 30.0  # without a beat: taken for stopped
JOIN_SECONDS = 300.0  # for all processes to come
GRACE_SECONDS = 5.0  # for a process to end by itself after an error of another

_JAX_HEARTBEAT_SECONDS = 24 * 3600  # JAX's own watch, after ours: all may be stopped for a while

_STOPPING = (signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass(frozen=True)
class Place:
    """Which of how many processes this one is, and where process 0 listens."""

    host: str
    port: int
    processes: int
    process: int
    local_devices: Sequence[int] | None = None  # None: all devices of the machine


def place(
    coordinator: str | None, processes: int | None, process: int | None, detect: bool
) -> Place | None:
    """The place that the arguments give; None for a run of one process.

    Args:
      coordinator: HOST:PORT of process 0; PORT is any free one.
      processes: how many there are.
      process: which one this is, from 0.
      detect: ask the cluster for all three (SLURM, Open MPI, Cloud TPU, Kubernetes).

    Raises:
      UserError: some are missing or out of range, or no cluster is found.
    """
    devices = None
    if detect:
        coordinator, processes, process, devices = _detected()
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
        raise UserError(
            f"--process expects 0 to --processes - 1, got --process {process} "
            f"--processes {processes}"
        )
    if processes == 1:
        return None
    return Place(host.strip("[]"), int(port), processes, process, devices)


def _detected():
    """Coordinator, processes, process and local devices as JAX finds them; None what it does not.

    JAX has no public name for this.
    """
    from jax._src import clusters

    try:
        return clusters.ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, int(JOIN_SECONDS)
        )
    except (RuntimeError, OSError, ValueError) as error:
        raise UserError(f"--hosts auto: {str(error).splitlines()[0]}") from None


_group: "_Group | None" = None  # the one that this process has joined


@contextlib.contextmanager
def join(where: Place | None) -> Iterator[None]:
    """Joins the other processes, and leaves together with them; nothing without a place.

    An error inside ends all processes with one line in each; see `fail`.

    Raises:
      Gone: process 0 cannot be reached.
      UserError: process 0 cannot listen, or refuses this process.
    """
    global _group
    if where is None:
        yield
        return
    _group = _Group(where)
    try:
        progress.console.quiet = not first()
        _start_jax(where, _group.gather())
        yield
    except Interrupted:  # agreed on
        _group.leave()
        raise
    except BaseException as error:
        fail(error)
    else:
        _group.leave()


def _start_jax(where: Place, port: int) -> None:
    """Joins JAX's processes; to notice a loss is left to the watch."""
    import jax  # late: to agree and to end together takes no JAX

    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM for itself
    host = f"[{where.host}]" if ":" in where.host else where.host
    near = f"{host}:{port}" if where.process == 0 else f"127.0.0.1:{_relay(where.host, port)}"
    jax.distributed.initialize(
        near,
        where.processes,
        where.process,
        where.local_devices,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=_JAX_HEARTBEAT_SECONDS,
        coordinator_bind_address=f"{host if _near(where.host) else '[::]'}:{port}",
    )
    jax.devices()  # found together


def _stop_jax() -> None:
    """Leaves JAX's processes."""
    import jax

    jax.distributed.shutdown()


def _relay(host: str, port: int) -> int:
    """A port of this machine that leads to JAX's service and stays open when that one closes.

    JAX ends a process with a dump of its own as soon as it loses the service of process 0.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    kept = []

    def pump(source, target, close):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        if close:
            target.close()

    def connect():
        while True:
            with contextlib.suppress(OSError):  # the service is about to start
                return socket.create_connection((host, port))
            time.sleep(0.1)

    def serve():
        while True:
            near, _ = listener.accept()
            far = connect()
            kept.append(near)
            for ends in ((near, far, True), (far, near, False)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def _near(host: str) -> bool:
    """Whether an address is of this machine alone."""
    return host in ("localhost", "::1") or host.startswith("127.")


def first() -> bool:
    """Whether this process writes and speaks: process 0, or the only one."""
    return _group is None or _group.index == 0


def agree(value, about: str = "loop"):
    """Process 0's value, in every process: the k-th call about the same thing gives its k-th.

    Process 0 does not wait. The value is one of JSON.
    """
    return value if _group is None else _group.agree(value, about)


def agree_on_signal(mine: int | None) -> int | None:
    """The signal that stops all processes, if one of them got one; as `agree`."""
    if _group is None:
        return mine
    if mine and not first():
        _group.tell(["signal", mine])
    return _group.agree(mine or _group.signal, "loop")


def same(about: str, facts: Mapping[str, Any]) -> None:
    """Waits for all processes; they end with one line if their facts differ. Once for a subject."""
    if _group is not None:
        _group.compare(about, dict(facts))


def check_shared(folder: Path) -> None:
    """Holds the folder to be one that all processes share.

    Raises:
      UserError: this process does not see in it what process 0 has written.
    """
    if _group is None:
        return
    mark = folder / ".shared"
    word = agree(secrets.token_hex(8), "shared")
    if first():
        mark.write_text(word)
    same("written", {})
    seen, deadline = False, time.monotonic() + SILENT_SECONDS  # NFS shows a file with delay
    while not seen and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            seen = mark.read_text() == word
        if not seen:
            time.sleep(0.1)
    if not seen:
        raise UserError(
            f"{folder.absolute()} is not the folder that process 0 writes: --runs takes one that "
            "all hosts share"
        )
    same("seen", {})
    if first():
        mark.unlink()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """An error inside ends every process, before anything waits for the others.

    What all processes find alike passes: a signal, a divergence, a full device.
    """
    try:
        yield
    except (Interrupted, RunFailed):
        raise
    except BaseException as error:
        from jax.errors import JaxRuntimeError

        if not (isinstance(error, JaxRuntimeError) and "RESOURCE_EXH" in str(error)):
            fail(error)
        raise


def fail(error: BaseException) -> None:
    """Ends this process and tells the others why; returns only where there are no others."""
    if _group is None:
        return
    code, text = 1, " ".join(str(error).split())
    if isinstance(error, UserError):
        code = 2
    elif not isinstance(error, RunFailed):
        time.sleep(GRACE_SECONDS)  # a collective that lost its peer: the watch ends this process
        traceback.print_exception(error)
        text = f"{type(error).__name__}: {text[:200]}"
    _group.end(code, text)


class _Peer:
    """A connection, and what is known of the process at its other end."""

    def __init__(self, connection: socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.lock = threading.Lock()  # held by who sends
        self.unread = b""
        self.silent = 0.0  # seconds since anything came
        self.index: int | None = None
        self.name = ""  # of the process, for people
        self.left = False  # it has nothing more to do

    def send(self, message: list, wait: bool = True, patience: float = 0.0) -> None:
        """One line of JSON; without `wait` it is dropped where the other end does not read.

        And where another thread is sending for more than `patience` seconds.
        """
        if not self.lock.acquire(timeout=-1 if wait else patience):
            return
        try:
            line = json.dumps(message).encode() + b"\n"
            self.socket.sendall(line, 0 if wait else socket.MSG_DONTWAIT)
        except OSError:
            pass  # the watch will see it closed or silent
        finally:
            self.lock.release()

    def receive(self) -> list[bytes] | None:
        """The lines that have come; None at the end."""
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            return None
        self.silent = 0.0
        *lines, self.unread = (self.unread + data).split(b"\n")
        return lines


@dataclasses.dataclass
class _Ending:
    """How this process is about to end."""

    code: int
    text: str
    awaited: set[int | None]  # processes that should have closed their connections before
    not_before: float
    deadline: float


class _Group:
    """This process's connections: of process 0 to all others, of the others to process 0."""

    def __init__(self, where: Place):
        self.where, self.index = where, where.process
        self.name = self._name(self.index, socket.gethostname())
        self.signal = 0  # one that another process got
        self._peers: dict[int, _Peer] = {}
        self._changed = threading.Condition()
        self._words = collections.defaultdict(collections.deque)  # of process 0, by subject
        self._reports = collections.defaultdict(dict)  # to process 0: subject -> process -> facts
        self._complete = False  # all have joined
        self._ending: _Ending | None = None
        self._over = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._on_wake)
        if self.index == 0:
            self._listen()
        else:
            self._call()
        self._thread = threading.Thread(target=self._watch, name="hosts", daemon=True)
        self._thread.start()
        self._handlers = {number: signal.signal(number, _noted) for number in _STOPPING}
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def _name(self, index: int, host: str) -> str:
        return f"process {index} of {self.where.processes} ({host})"

    # Joining.

    def _listen(self) -> None:
        """Opens the coordinator's port; on this machine alone if its address is loopback."""
        host, port = self.where.host, self.where.port
        try:
            if _near(host):
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                listener = socket.create_server((host, port), family=family, backlog=1024)
            else:
                both = socket.has_dualstack_ipv6()
                family = socket.AF_INET6 if both else socket.AF_INET
                listener = socket.create_server(
                    ("", port), family=family, backlog=1024, dualstack_ipv6=both
                )
        except OSError as error:
            raise UserError(
                f"process 0 cannot listen at {host}:{port} ({error.strerror}): choose another "
                "port with --coordinator HOST:PORT"
            ) from None
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, self._admit)

    def _call(self) -> None:
        """Connects to process 0, which may come later than this process."""
        where = self.where
        hello = {"process": self.index, "processes": where.processes, "name": self.name}
        deadline = time.monotonic() + JOIN_SECONDS
        while True:
            reason = "it does not answer"
            try:
                connection = socket.create_connection((where.host, where.port), SILENT_SECONDS)
                peer = _Peer(connection)
                peer.send(["lra-fnet", hello])
                answer = peer.receive()
                if answer:
                    break  # an answer is one short line, so it comes whole
                connection.close()
            except OSError as error:
                reason = error.strerror or str(error)
            if time.monotonic() > deadline:
                raise Gone(
                    f"process 0 cannot be reached at {where.host}:{where.port} within "
                    f"{JOIN_SECONDS:.0f} s ({reason}): start it, or name it with --coordinator"
                )
            time.sleep(0.2)
        connection.settimeout(None)
        peer.index, peer.name = 0, self._name(0, where.host)
        self._peers[0] = peer
        kind, *rest = json.loads(answer[0])
        if kind == "end":
            raise UserError(rest[1])
        peer.unread = b"\n".join([*answer[1:], peer.unread])  # heard with what comes next
        self._selector.register(connection, selectors.EVENT_READ, functools.partial(self._on, peer))

    def _admit(self) -> None:
        connection, _ = self._listener.accept()
        peer = _Peer(connection)
        self._selector.register(connection, selectors.EVENT_READ, functools.partial(self._on, peer))

    def _greet(self, peer: _Peer, line: bytes) -> None:
        """At process 0: another process, or anything else that found the port."""
        try:
            word, hello = json.loads(line)
            index, processes, name = hello["process"], hello["processes"], hello["name"]
        except (ValueError, TypeError, KeyError):
            word = None
        if word != "lra-fnet":
            self._drop(peer)
            return
        refusal = None
        if self._complete:
            refusal = f"the run at this address has all its processes without {name}"
        elif processes != self.where.processes:
            refusal = f"{name} meets {self.name}: give the same --processes to all"
        elif index in self._peers:
            refusal = f"{self._peers[index].name} was started twice: give each its own --process"
        if refusal is None:
            peer.index, peer.name = index, name
            peer.send(["welcome"], wait=False)
            with self._changed:
                self._peers[index] = peer
                self._changed.notify_all()
            return
        peer.send(["end", 2, refusal], wait=False)
        if not self._complete:
            self.end(2, refusal)

    def gather(self) -> int:
        """Waits for all processes; returns a free port of process 0's machine."""
        port, where = 0, self.where
        if self.index == 0:
            progress.say(
                f"waiting for {where.processes - 1} more processes at {where.host}:{where.port}"
            )
            with self._changed:
                self._complete = self._changed.wait_for(
                    lambda: len(self._peers) == where.processes - 1, JOIN_SECONDS
                )
            if not self._complete:
                missing = [str(i) for i in range(1, where.processes) if i not in self._peers]
                self.end(
                    Gone.code,
                    f"{len(missing)} of {where.processes} processes did not come within "
                    f"{JOIN_SECONDS:.0f} s: --process {', '.join(missing)}",
                )
            with socket.create_server(("", 0)) as free:
                port = free.getsockname()[1]
        return self.agree(port, "port")

    # Agreeing.

    def tell(self, message: list) -> None:
        """Sends to all of this process's connections."""
        for peer in list(self._peers.values()):
            peer.send(message)

    def agree(self, value, about: str):
        """As the function `agree`."""
        if self.index == 0:
            self.tell(["word", about, value])
            return value
        with self._changed:
            self._changed.wait_for(lambda: self._words[about])
            return self._words[about].popleft()

    def compare(self, about: str, facts: dict) -> None:
        """As the function `same`."""
        if self.index == 0:
            reports = self._reports[about]
            with self._changed:
                self._changed.wait_for(lambda: len(reports) == self.where.processes - 1)
            for index, theirs in sorted(reports.items()):
                if differing := [name for name in facts if facts[name] != theirs.get(name)]:
                    pairs = (f"{n} {theirs.get(n)}, not {facts[n]}" for n in differing)
                    text = f"{self._peers[index].name} differs from process 0: {'; '.join(pairs)}"
                    self.end(2, " ".join(text.split()))
        else:
            self.tell(["report", about, facts])
        self.agree(None, about)

    def leave(self) -> None:
        """Waits until every process has nothing more to do; then closes."""
        _stop_jax()
        if self.index != 0:
            self.tell(["leave"])
        with self._changed:
            self._changed.wait_for(lambda: all(peer.left for peer in self._peers.values()))
        if self.index == 0:
            self.tell(["leave"])
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._over = True
        self._wake.send(b"\0")
        self._thread.join()

    # Watching; all below runs in the thread, but for `end`.

    def _watch(self) -> None:
        beaten = time.monotonic()
        try:
            while not self._over:
                for key, _ in self._selector.select(BEAT_SECONDS):
                    key.data()
                now = time.monotonic()
                if now - beaten >= BEAT_SECONDS:
                    # A process that was itself stopped has not listened: that is nobody's silence.
                    self._beat(min(now - beaten, 2 * BEAT_SECONDS))
                    beaten = now
                if self._ending is not None:
                    self._try_to_end(self._ending)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _beat(self, seconds: float) -> None:
        for index, peer in list(self._peers.items()):
            peer.send(["beat"], wait=False)
            peer.silent += seconds
            if peer.silent > SILENT_SECONDS and not peer.left:
                self._lose(index, f"has not answered for {SILENT_SECONDS:.0f} s")

    def _on(self, peer: _Peer) -> None:
        lines = peer.receive()
        if lines is None:
            self._drop(peer)
            if peer.index is not None and not peer.left:
                self._lose(peer.index, "has ended")
            return
        for line in lines:
            if peer.index is None:
                self._greet(peer, line)
            else:
                self._hear(peer, line)

    def _hear(self, peer: _Peer, line: bytes) -> None:
        kind, *rest = json.loads(line)
        if kind == "end":
            self._told(peer, *rest)
        with self._changed:
            if kind == "word":
                self._words[rest[0]].append(rest[1])
            elif kind == "report":
                self._reports[rest[0]][peer.index] = rest[1]
            elif kind == "signal":
                self.signal = rest[0]
            elif kind == "leave":
                peer.left = True
            self._changed.notify_all()

    def _drop(self, peer: _Peer) -> None:
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if self._ending is not None:
            self._ending.awaited.discard(peer.index)

    def _lose(self, index: int, how: str) -> None:
        text = f"{self._peers[index].name} {how}; the same command in each process resumes"
        self.end(Gone.code, text, without=index)

    def _told(self, peer: _Peer, code: int, text: str) -> None:
        """Another process ends the run; this one may be about to find the same error itself."""
        grace = 0.0 if code == Gone.code else GRACE_SECONDS
        self.end(code, text, without=peer.index, grace=grace)

    def _on_wake(self) -> None:
        for number in self._woken.recv(1 << 10):
            if number in _STOPPING and signal.getsignal(number) is _noted:
                self.end(128 + number, f"stopped by {signal.Signals(number).name}")

    def end(self, code: int, text: str, *, without: int | None = None, grace: float = 0.0) -> None:
        """Tells the other processes and ends this one; does not return outside of the watch.

        Args:
          code: of the exit.
          text: one line.
          without: a process that need not be waited for: the one that is missing, or that told.
          grace: seconds in which this process may still end by itself.
        """
        now = time.monotonic()
        watching = threading.current_thread() is self._thread
        if self._ending is None:
            patience = GRACE_SECONDS if self.index == 0 else BEAT_SECONDS
            deadline = now + grace + patience
            awaited = set(self._peers) - {without}
            self._ending = _Ending(code, text, {*awaited}, now + grace, deadline)
            theirs = text if watching else f"{self.name}: {text}"
            for index in awaited:
                self._peers[index].send(["end", code, theirs], wait=False, patience=BEAT_SECONDS)
        elif not watching:  # the process's own error says more than what it was told
            self._ending.code, self._ending.text, self._ending.not_before = code, text, now
        if not watching:
            self._wake.send(b"\0")
            self._thread.join()

    def _try_to_end(self, ending: _Ending) -> None:
        now = time.monotonic()
        if now < ending.not_before or (ending.awaited and now < ending.deadline):
            return
        lines = f"lra-fnet: {ending.text}\n"
        if sys.stderr.isatty():
            lines = f"\r\x1b[?25h\x1b[K{lines}"  # the cursor that a bar has hidden
        os.write(2, lines.encode())
        os._exit(ending.code)


def _noted(number, frame) -> None:
    """The handler of signals outside of the training loop: the watch acts on their numbers."""
