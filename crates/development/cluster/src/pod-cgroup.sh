#!/bin/sh
# CNI plugin in front of portmap: makes the pod's cgroup in a version 2 hierarchy beside those of version 1, as the
# kubelet does where version 2 is the only one. The container runtime joins it by itself.
unified=/sys/fs/cgroup/unified
uid=${CNI_ARGS##*K8S_POD_UID=}
uid=${uid%%;*}
if [ "$CNI_COMMAND" = ADD ] && [ -n "$uid" ] && [ -e "$unified/cgroup.controllers" ]; then
    pod=$(find /sys/fs/cgroup/memory -type d -name "pod$uid" | head -n 1)
    [ -z "$pod" ] || mkdir -p "$unified/${pod#/sys/fs/cgroup/memory/}"
fi
exec "${0%/*}/portmap"
