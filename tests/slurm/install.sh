#!/bin/sh
# Installs Debian's SLURM if it is missing; only root can install and start it.
set -eu
PATH=$PATH:/usr/sbin:/sbin
missing=
for program in munged slurmctld slurmd; do
    command -v "$program" >/dev/null || missing=1
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "make slurm-test needs root and the packages slurm-wlm and munge" >&2
    exit 2
fi
echo "installing slurm-wlm and munge" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install --no-install-recommends slurm-wlm munge >/dev/null
