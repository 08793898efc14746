#!/bin/sh
# Process 1 of the guest. The host's root is mounted again with a cache (Python starts in half the time), everything
# that is written is in memory, then the scenario runs and the machine is switched off. If anything fails here the
# kernel panics, and QEMU ends.
set -eu
if [ "${1:-}" != cached ]; then
    mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=524288 cached /mnt
    exec switch_root /mnt "$0" cached
fi
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/home
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# those of another kernel than the host's, before what is in /tmp is hidden
[ "$MODULES" = /lib/modules ] || mount --bind "$MODULES" /lib/modules
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for folder in /dev/shm /run; do mount -t tmpfs tmpfs "$folder"; done
mkdir -p "$HOME" /run/lock /run/host-tmp
mount --bind /tmp /run/host-tmp # checkout and caches may be there: they stay visible beside what is written
mount -t tmpfs tmpfs /tmp
for folder in "$CHECKOUT" "${COREPIN_CACHE:-}"; do
    case "$folder" in
    /tmp/*) mkdir -p "$folder" && mount --bind "/run/host-tmp/${folder#/tmp/}" "$folder" ;;
    esac
done
mount -t cgroup2 cgroup /sys/fs/cgroup
exec </dev/null >/dev/console 2>&1
echo 4 >/proc/sys/kernel/printk # from here on the kernel says no more than what is wrong
echo "booted"  # the harness waits for it
modprobe -q virtio_console || true
cd "$CHECKOUT"
"$PYTHON" -m "$SCENARIO" || echo "$SCENARIO ended with status $?"
sync
echo o >/proc/sysrq-trigger
read -r _ </dev/console # wait in the shell itself: programs cannot be read any more
