#!/bin/sh
# Init of the guest: mounts the host's root read-only with a cache (which halves Python's start time) and writable folders
# in memory, runs the scenario, and powers off. If this script fails, the kernel panics, and QEMU exits.
set -eu
if [ "${1:-}" != cached ]; then
    mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=524288 cached /mnt
    exec switch_root /mnt "$0" cached
fi
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/home
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# modules of another kernel than the host's, before a tmpfs hides /tmp
[ "$MODULES" = /lib/modules ] || mount --bind "$MODULES" /lib/modules
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for folder in /dev/shm /run; do mount -t tmpfs tmpfs "$folder"; done
mkdir -p "$HOME" /run/lock /run/host-tmp
mount --bind /tmp /run/host-tmp # because checkout and caches may be below /tmp
mount -t tmpfs tmpfs /tmp
for folder in "$CHECKOUT" "${COREPIN_CACHE:-}"; do
    case "$folder" in
    /tmp/*) mkdir -p "$folder" && mount --bind "/run/host-tmp/${folder#/tmp/}" "$folder" ;;
    esac
done
mount -t cgroup2 cgroup /sys/fs/cgroup
exec </dev/null >/dev/console 2>&1
echo 4 >/proc/sys/kernel/printk # from here on the kernel prints only errors
echo "booted"  # for which the harness waits
modprobe -q virtio_console || true
cd "$CHECKOUT"
"$PYTHON" -m "$SCENARIO" || echo "$SCENARIO ended with status $?"
sync
echo o >/proc/sysrq-trigger
read -r _ </dev/console # a builtin, because programs can no longer be read
