#!/bin/sh
# Tries a run on several hosts on one machine: starts N processes that join over loopback.
#   launch/hosts.sh 2 .venv/bin/lra-fnet train --task listops --model fnet --preset cpu
# On real hosts, run that command on each one with --coordinator HOST:PORT --processes N --process I,
# or with --hosts auto on a cluster that JAX knows. --runs must be on a file system that all share.
# PORT=29500 sets the port. The exit status is the first one that is not 0.
set -eu
case ${1:-} in
'' | *[!0-9]* | 0*)
    echo "launch/hosts.sh expects a number of processes and a command, got: $*" >&2
    exit 2
    ;;
esac
count=$1
shift
[ $# -gt 0 ] || { echo "launch/hosts.sh expects a command after the number of processes" >&2; exit 2; }

free='import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'
LRA_FNET_COORDINATOR=127.0.0.1:${PORT:-$(python3 -c "$free")}
LRA_FNET_PROCESSES=$count
export LRA_FNET_COORDINATOR LRA_FNET_PROCESSES

processes=
trap 'kill -TERM $processes 2>/dev/null || true' TERM
trap : INT # a terminal sends it to the processes as well
index=0
while [ "$index" -lt "$count" ]; do
    LRA_FNET_PROCESS=$index "$@" &
    processes="$processes $!"
    index=$((index + 1))
done
status=0
for process in $processes; do
    ended=0
    wait "$process" || ended=$?
    while kill -0 "$process" 2>/dev/null; do # a signal ended the wait, not the process
        ended=0
        wait "$process" || ended=$?
    done
    [ "$status" -ne 0 ] || status=$ended
done
exit "$status"
