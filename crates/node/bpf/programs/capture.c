// Captures a pod's TCP without connection tracking: `crates/node/bpf/src/lib.rs` describes the whole.
//
// `cargo xtask bpf` compiles this file to `capture.o`, which is checked in. Names of maps and programs, the
// layout of the settings, flags and numbers of slots are those of `src/settings.rs` and `src/capture.rs`.

#include <linux/bpf.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

#define SECTION(name) __attribute__((section(name), used))
// Reads a word of a context. The verifier permits no computed addresses there, and the compiler would merge reads.
#define WORD(of) (*(volatile const u32 *)&(of))
#define ADDRESS_OF(of) {{WORD((of)[0]), WORD((of)[1]), WORD((of)[2]), WORD((of)[3])}}
#define ALWAYS_INLINE static __attribute__((always_inline)) inline

// Numbers of the kernel that the BPF target has no headers for.
#define FAMILY_IPV6 10
#define PROTOCOL_TCP 6
#define LEVEL_SOCKET 1
#define OPTION_MARK 36
#define OPTION_BIND_TO_DEVICE 25
#define LOOPBACK_INTERFACE 1
#define CONNECTION_REFUSED 111
#define MAPPED __builtin_bswap32(0xffff)

// Results of a program at `connect`.
#define REFUSE 0
#define PERMIT 1

// Listeners of each role in the map of listeners: one for each worker of a proxy.
#define SLOTS 16
#define ROLE_OUTBOUND 0
#define ROLE_INBOUND 1

#define CAPTURE_OUTBOUND 1
#define CAPTURE_INBOUND 2
// Openings to port 53 are not marked, since rules redirect them.
#define EXEMPT_DNS 4

static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*assign)(void *context, void *socket, u64 flags) = (void *)BPF_FUNC_sk_assign;
static long (*release)(void *socket) = (void *)BPF_FUNC_sk_release;
static long (*set_option)(void *context, int level, int option, void *value, int length) =
    (void *)BPF_FUNC_setsockopt;
static int (*set_result)(int result) = (void *)BPF_FUNC_set_retval;
static u64 (*netns_cookie)(void *context) = (void *)BPF_FUNC_get_netns_cookie;

struct map_definition {
    u32 type;
    u32 key_size;
    u32 value_size;
    u32 max_entries;
    u32 flags;
};

struct settings {
    u32 flags;
    // Checksum of the object file, by which processes know programs of others.
    u32 object;
    // Cookie of the pod's network namespace.
    u32 netns_low;
    u32 netns_high;
    // Bits of packet marks that are Ambit's.
    u32 mark_mask;
    u32 proxy_mark;
    u32 outbound_mark;
    u32 spoofed_mark;
    u32 tunnel_port;
    // Source address of exempt probes; IPv4 as a mapped address.
    u32 probe_v4[4];
    u32 probe_v6[4];
};

struct address {
    u32 words[4];
};

struct probe {
    u32 interface;
    // 0 stands for every port.
    u32 port;
};

struct map_definition SECTION("maps") SETTINGS = {BPF_MAP_TYPE_ARRAY, 4, sizeof(struct settings), 1, 0};
// Addresses of the pod itself.
struct map_definition SECTION("maps") ADDRESSES = {BPF_MAP_TYPE_HASH, sizeof(struct address), 1, 256, 0};
struct map_definition SECTION("maps") PROBES = {BPF_MAP_TYPE_HASH, sizeof(struct probe), 1, 4096, 0};
struct map_definition SECTION("maps") LISTENERS = {BPF_MAP_TYPE_SOCKMAP, 4, 4, 2 * SLOTS, 0};

ALWAYS_INLINE struct settings *settings(void) {
    u32 first = 0;
    return map_lookup(&SETTINGS, &first);
}

ALWAYS_INLINE int is_own(struct address *address) { return map_lookup(&ADDRESSES, address) != 0; }

ALWAYS_INLINE int is_mapped(struct address *a) {
    return a->words[0] == 0 && a->words[1] == 0 && a->words[2] == MAPPED;
}

ALWAYS_INLINE int is_equal(struct address *a, const u32 *b) {
    return a->words[0] == b[0] && a->words[1] == b[1] && a->words[2] == b[2] && a->words[3] == b[3];
}

// Whether the address is 127.0.0.0/8 or ::1, or the unspecified one, which `connect` takes for loopback.
ALWAYS_INLINE int is_loopback(struct address *a) {
    u32 last = __builtin_bswap32(a->words[3]);
    if (is_mapped(a))
        return last >> 24 == 127 || last == 0;
    return a->words[0] == 0 && a->words[1] == 0 && a->words[2] == 0 && last <= 1;
}

// Binds a socket to an interface, or to none if the name is empty.
ALWAYS_INLINE int bind_to(void *context, const char name[3]) {
    char copy[4] = {name[0], name[0] ? name[1] : 0, 0, 0};
    return set_option(context, LEVEL_SOCKET, OPTION_BIND_TO_DEVICE, copy, sizeof(copy)) ? REFUSE : PERMIT;
}

// Returns the first listener of the role that is open; the caller releases it.
ALWAYS_INLINE void *listener_of(u32 role) {
    for (u32 slot = 0; slot < SLOTS; slot++) {
        u32 index = role * SLOTS + slot;
        void *listener = map_lookup(&LISTENERS, &index);
        if (listener)
            return listener;
    }
    return 0;
}

// Whether the socket of a program's context is in the pod's network namespace.
ALWAYS_INLINE int is_of_pod(struct settings *s, void *context) {
    return netns_cookie(context) == ((u64)s->netns_high << 32 | s->netns_low);
}

ALWAYS_INLINE int connecting(struct bpf_sock_addr *context, struct address *to) {
    struct settings *s = settings();
    struct bpf_sock *socket = context->sk;
    if (!s || !socket || context->protocol != PROTOCOL_TCP)
        return PERMIT;
    if (!is_of_pod(s, context))
        return PERMIT;
    u32 mark = socket->mark;
    u32 ours = mark & s->mark_mask;
    if (ours == s->proxy_mark)
        return PERMIT;
    int is_dns = context->user_port == __builtin_bswap16(53) && s->flags & EXEMPT_DNS;
    if (!(s->flags & CAPTURE_OUTBOUND) || is_dns || is_loopback(to) || is_own(to)) {
        // The socket may have been marked by an earlier call, to another destination.
        if (ours != s->outbound_mark)
            return PERMIT;
        mark &= ~s->mark_mask;
        return set_option(context, LEVEL_SOCKET, OPTION_MARK, &mark, sizeof(mark)) ? REFUSE : PERMIT;
    }
    // The kernel answers no IPv4 opening to a foreign address with a reset.
    void *listener = listener_of(ROLE_OUTBOUND);
    if (!listener) {
        set_result(-CONNECTION_REFUSED);
        return REFUSE;
    }
    release(listener);
    mark = (mark & ~s->mark_mask) | s->outbound_mark;
    if (set_option(context, LEVEL_SOCKET, OPTION_MARK, &mark, sizeof(mark)))
        return REFUSE;
    // Packets of a socket that is bound to an interface would not be routed to loopback.
    return socket->bound_dev_if ? bind_to(context, "") : PERMIT;
}

// Marks the application's sockets as they connect, by which their packets are routed to loopback.
SECTION("cgroup/connect4") int connecting_v4(struct bpf_sock_addr *context) {
    struct address to = {{0, 0, MAPPED, context->user_ip4}};
    return connecting(context, &to);
}

SECTION("cgroup/connect6") int connecting_v6(struct bpf_sock_addr *context) {
    struct address to = ADDRESS_OF(context->user_ip6);
    return connecting(context, &to);
}

// Binds sockets that the application accepts from the proxy to loopback: the client whose address the proxy
// uses may have a connection of the same addresses and ports, or send packets as if it had. Packets of other
// interfaces are then never taken for this connection's.
SECTION("sockops") int accepted(struct bpf_sock_ops *context) {
    if (context->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
        return 1;
    struct settings *s = settings();
    struct bpf_sock *socket = context->sk;
    // While capture is paused, the proxy may call as under other backends, from a socket that is not bound.
    if (!s || !socket || !s->flags)
        return 1;
    if ((socket->mark & s->mark_mask) == s->spoofed_mark && is_of_pod(s, context))
        bind_to(context, "lo");
    return 1;
}

ALWAYS_INLINE int is_probe(struct settings *s, struct bpf_sk_lookup *context, struct address *from) {
    if (!is_equal(from, s->probe_v4) && !is_equal(from, s->probe_v6))
        return 0;
    struct probe probe = {context->ingress_ifindex, context->local_port};
    if (map_lookup(&PROBES, &probe))
        return 1;
    probe.port = 0;
    return map_lookup(&PROBES, &probe) != 0;
}

// Gives the opening to a listener of the role, and the kernel to one of those that share its port. Without one
// the opening is refused.
ALWAYS_INLINE int give_to(struct bpf_sk_lookup *context, u32 role) {
    void *listener = listener_of(role);
    if (!listener)
        return SK_DROP;
    long failed = assign(context, listener, 0);
    release(listener);
    return failed ? SK_DROP : SK_PASS;
}

// Chooses the listener of packets that belong to no connection: openings, and what pretends to be more.
//
// The kernel names the interface that has the destination's address, also if the packet arrived over
// loopback, unless its socket was bound to loopback.
SECTION("sk_lookup") int steer(struct bpf_sk_lookup *context) {
    struct settings *s = settings();
    if (!s || context->protocol != PROTOCOL_TCP)
        return SK_PASS;
    struct address from = {{0, 0, MAPPED, WORD(context->remote_ip4)}};
    struct address to = {{0, 0, MAPPED, WORD(context->local_ip4)}};
    if (context->family == FAMILY_IPV6) {
        from = (struct address)ADDRESS_OF(context->remote_ip6);
        to = (struct address)ADDRESS_OF(context->local_ip6);
    }
    if (context->ingress_ifindex == LOOPBACK_INTERFACE) {
        if (is_loopback(&to) || is_own(&to))
            return SK_PASS;
        // Only marked openings have a destination outside of the pod, and they come from the pod.
        return is_own(&from) ? give_to(context, ROLE_OUTBOUND) : SK_DROP;
    }
    // The pod calls itself; a guard drops packets from outside that pretend to.
    if (is_equal(&from, to.words) || is_own(&from) || is_loopback(&from))
        return SK_PASS;
    if (!(s->flags & CAPTURE_INBOUND))
        return SK_PASS;
    // From outside, to what only the pod itself may reach.
    if (is_loopback(&to))
        return SK_DROP;
    if (context->local_port == s->tunnel_port)
        return SK_PASS;
    return is_probe(s, context, &from) ? SK_PASS : give_to(context, ROLE_INBOUND);
}

char LICENSE[] SECTION("license") = "Apache-2.0";
