#!/bin/busybox sh
# Process 1 of the emulated machine: mounts the kernel's file systems, runs the programs, prints a status, powers off.
/bin/busybox mkdir -p /etc /proc /sys /dev /run /tmp /sbin /usr/bin /usr/sbin
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts
mount -t devpts pts /dev/pts
ip link set lo up
# The lab mounts the files of each pod over these, if they exist.
touch /etc/resolv.conf /etc/hosts /etc/hostname
export PATH=/opt/ambit:/usr/sbin:/usr/bin:/sbin:/bin HOME=/

check() {
    echo "machine: $(uname -srm)"
    echo "machine: $(grep -m1 KernelPageSize /proc/self/smaps)"
    for program in ambit ambit-lab-tool ambit-agent ambit-control ambit-node-proxy ambit-waypoint; do
        $program --version || return
    done
    CNI_COMMAND=VERSION ambit-cni </dev/null || return
    echo
    ambit lab demo
}

check
echo "status: $?"
poweroff -f
