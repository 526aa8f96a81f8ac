"""Starts a SLURM of one node: munged, slurmctld and slurmd, with all their files in one folder.

It needs these three programs and root, but no systemd, cgroups or accounting database.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time

PROGRAMS = ("munged", "slurmctld", "slurmd")
CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES PriorityTier=1 MaxTime=1:00:00
PartitionName=graced Nodes={host} PriorityTier=1 GraceTime=60 MaxTime=1:00:00
PartitionName=high Nodes={host} PriorityTier=2 PreemptMode=OFF MaxTime=1:00:00
"""


def missing():
    """Returns what this machine lacks to start SLURM, in one line; empty if nothing is missing."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmd must be started by root"


@contextlib.contextmanager
def start(folder):
    """Yields the environment of SLURM's commands; ends the three programs afterwards."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)  # munged refuses a socket in a folder that others cannot reach
    conf = folder / "slurm.conf"
    with socket.socket() as controller, socket.socket() as node:
        for bound in (controller, node):
            bound.bind(("127.0.0.1", 0))
        ports = controller.getsockname()[1], node.getsockname()[1]
    conf.write_text(CONF.format(host=socket.gethostname(), folder=folder, ports=ports))
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    environment = os.environ | {"SLURM_CONF": str(conf), "PATH": _path()}
    munged = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket"]
    munged += [f"--key-file={folder}/munge.key", f"--pid-file={folder}/munged.pid"]
    munged += [f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"]
    with contextlib.ExitStack() as stack:
        for command in (munged, ["slurmctld", "-D", "-i"], ["slurmd", "-D"]):
            log = stack.enter_context(open(folder / f"{command[0]}.out", "wb"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            if command is munged:
                _until(lambda: (folder / "munge.socket").exists(), folder)
        _until(lambda: _state(environment) == "idle", folder)
        yield environment


def _path():
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _state(environment):
    asked = ["sinfo", "--noheader", "--partition=low", "--format=%t"]
    return subprocess.run(asked, env=environment, capture_output=True, text=True).stdout.strip()


def _until(true, folder, seconds=60):
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            logs = "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
            raise TimeoutError(f"SLURM did not start:\n{logs}")
        time.sleep(0.2)
