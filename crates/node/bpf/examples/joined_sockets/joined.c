// Joins connected sockets of one machine: what one sends is queued at its peer, without the TCP stack.
//
// `cargo xtask bpf` compiles this file to `joined.o`, which is checked in.

#include <linux/bpf.h>

#define SECTION(name) __attribute__((section(name), used))

static long (*redirect)(struct sk_msg_md *message, void *map, void *key, __u64 flags) =
    (void *)BPF_FUNC_msg_redirect_hash;

struct map_definition {
    __u32 type;
    __u32 key_size;
    __u32 value_size;
    __u32 max_entries;
    __u32 flags;
};

// Joined sockets by local port.
struct map_definition joined SECTION("maps") = {
    .type = BPF_MAP_TYPE_SOCKHASH,
    .key_size = sizeof(__u32),
    .value_size = sizeof(int),
    .max_entries = 256,
};

SECTION("sk_msg")
int send_to_peer(struct sk_msg_md *message)
{
    __u32 peer = __builtin_bswap32(message->remote_port);

    return redirect(message, &joined, &peer, BPF_F_INGRESS);
}

SECTION("license") const char permitted[] = "GPL";
