#!/bin/bash
# Pid 1 of a node, in mount, uts, ipc, pid and network namespaces of its own: makes the directories that a
# node has to itself, then runs containerd, the kubelet and kube-proxy.
#   $1 the node's name   $2 its directory   $3 where etcd, kube and the like are
#   $4 its addresses     $5 the directory of keys   $6 the directory of CNI plugins
set -eu
name=$1 dir=$2 bin=$3 addresses=$4 pki=$5 plugins=$6
hostname "$name"

# A sysfs of this network namespace, with the cgroups in it. All mounts are private until the end of this
# part: shared ones would take the machine's own cgroup mounts with them.
mkdir -p "$dir/cgroup"
mount --rbind /sys/fs/cgroup "$dir/cgroup"
umount -R -l /sys
mount -t sysfs sysfs /sys
mount --rbind "$dir/cgroup" /sys/fs/cgroup
umount -R -l "$dir/cgroup"
mount -t bpf bpf /sys/fs/bpf

own() { # what is written there is this node's
    mkdir -p "$dir/own$1" "$dir/work$1"
    mount -t overlay overlay -o "lowerdir=${2:-$1},upperdir=$dir/own$1,workdir=$dir/work$1" "$1"
}
own /etc
own /opt
own /var
mkdir -p "$plugins"
own "$plugins" /usr/lib/cni
# A copy of a mount of somebody's network namespace would keep that namespace after its end.
[ ! -d /run/netns ] || umount -R -l /run/netns || true
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/containerd
# Overlays cannot lie on overlays, and that is what containers are made of.
for data in kubelet containerd; do
    mkdir -p "$dir/$data" "/var/lib/$data"
    mount --bind "$dir/$data" "/var/lib/$data"
done
mkdir -p "$dir/log"
mount --bind "$dir/log" /var/log

# The kubelet and Cilium's agent set these for the whole machine. They find what they want already there, in files.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000 kernel/unprivileged_bpf_disabled=1 \
    kernel/timer_migration=0; do
    [ -e "/proc/sys/${setting%=*}" ] || continue
    file=$dir/sysctl/${setting%=*}
    mkdir -p "${file%/*}"
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${setting%=*}"
done
mount --make-rshared /

containerd -c "$dir/containerd.toml" >>/var/log/containerd.log 2>&1 &
until [ -S /run/containerd/containerd.sock ]; do sleep 0.05; done
again_and_again() { # as systemd does: the kubelet ends if containerd is not done with recovering
    while :; do
        "$@" || true
        sleep 0.2
    done
}
again_and_again "$bin/kube" kubelet --config="$dir/kubelet.json" --kubeconfig="$pki/$name.conf" \
    --cert-dir="$dir/certificates" --hostname-override="$name" --node-ip="$addresses" >>/var/log/kubelet.log 2>&1 &
again_and_again "$bin/kube" kube-proxy --config="$dir/kube-proxy.json" >>/var/log/kube-proxy.log 2>&1 &
if [ -e "$dir/cni-agent.sh" ]; then
    # Also until the node is registered.
    again_and_again bash "$dir/cni-agent.sh" >>/var/log/cni-agent.log 2>&1 &
fi
trap 'exit 0' TERM INT
while :; do wait -n || true; jobs -r >/dev/null; sleep 1; done
