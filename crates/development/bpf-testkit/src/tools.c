// System calls that tests need and no safe Rust interface offers: connecting by io_uring, attaching programs as others
// do, and refusing bpf(2) to a command.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    exit(1);
}

struct ring {
    int fd;
    unsigned flags;
    unsigned *tail, *sq_mask, *array, *wake, *head, *cq_tail, *cq_mask;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *completions;
};

static struct ring open_ring(unsigned flags) {
    struct io_uring_params p = {.flags = flags, .sq_thread_idle = 1000};
    int fd = syscall(SYS_io_uring_setup, 4, &p);
    if (fd < 0)
        fail("io_uring_setup");
    size_t size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    size_t sq_size = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    char *rings = mmap(0, size > sq_size ? size : sq_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                       IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap(0, p.sq_entries * sizeof(*entries), PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQES);
    if (rings == MAP_FAILED || entries == MAP_FAILED)
        fail("mmap");
    return (struct ring){
        .fd = fd,
        .flags = flags,
        .tail = (void *)(rings + p.sq_off.tail),
        .sq_mask = (void *)(rings + p.sq_off.ring_mask),
        .array = (void *)(rings + p.sq_off.array),
        .wake = (void *)(rings + p.sq_off.flags),
        .head = (void *)(rings + p.cq_off.head),
        .cq_tail = (void *)(rings + p.cq_off.tail),
        .cq_mask = (void *)(rings + p.cq_off.ring_mask),
        .entries = entries,
        .completions = (void *)(rings + p.cq_off.cqes),
    };
}

// Runs one operation, and returns its result.
static int run(struct ring *ring, struct io_uring_sqe operation) {
    unsigned index = *ring->tail & *ring->sq_mask;
    ring->entries[index] = operation;
    ring->array[index] = index;
    __atomic_store_n(ring->tail, *ring->tail + 1, __ATOMIC_SEQ_CST);
    unsigned submitted = ring->flags & IORING_SETUP_SQPOLL ? 0 : 1;
    unsigned wake = submitted ? 0 : IORING_ENTER_SQ_WAKEUP;
    if (syscall(SYS_io_uring_enter, ring->fd, submitted, 1, IORING_ENTER_GETEVENTS | wake, 0, 0) < 0)
        fail("io_uring_enter");
    while (*ring->head == __atomic_load_n(ring->cq_tail, __ATOMIC_SEQ_CST))
        if (syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, 0, 0) < 0)
            fail("io_uring_enter");
    int result = ring->completions[*ring->head & *ring->cq_mask].res;
    __atomic_store_n(ring->head, *ring->head + 1, __ATOMIC_SEQ_CST);
    return result;
}

// uring inline|worker|thread ADDRESS PORT: creates a socket, connects it, and sends `early`, in the submitting thread,
// one of the kernel's workers, or its polling thread.
static int uring(char **args) {
    struct ring ring = open_ring(strcmp(args[0], "thread") ? 0 : IORING_SETUP_SQPOLL);
    uint8_t flags = strcmp(args[0], "worker") ? 0 : IOSQE_ASYNC;
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(atoi(args[2]))};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = v4.sin_port};
    int is_v4 = inet_pton(AF_INET, args[1], &v4.sin_addr) == 1;
    if (!is_v4 && inet_pton(AF_INET6, args[1], &v6.sin6_addr) != 1)
        return 2;
    int fd = run(&ring, (struct io_uring_sqe){.opcode = IORING_OP_SOCKET,
                                              .flags = flags,
                                              .fd = is_v4 ? AF_INET : AF_INET6,
                                              .off = SOCK_STREAM});
    if (fd < 0) {
        fprintf(stderr, "socket: %s\n", strerror(-fd));
        return 1;
    }
    int failed = run(&ring, (struct io_uring_sqe){.opcode = IORING_OP_CONNECT,
                                                  .flags = flags,
                                                  .fd = fd,
                                                  .addr = is_v4 ? (uintptr_t)&v4 : (uintptr_t)&v6,
                                                  .off = is_v4 ? sizeof(v4) : sizeof(v6)});
    if (failed < 0) {
        fprintf(stderr, "connect: %s\n", strerror(-failed));
        return 1;
    }
    return run(&ring, (struct io_uring_sqe){.opcode = IORING_OP_SEND,
                                            .flags = flags,
                                            .fd = fd,
                                            .addr = (uintptr_t)"early",
                                            .len = 5}) != 5;
}

static long bpf(int command, union bpf_attr *attr) { return syscall(SYS_bpf, command, attr, sizeof(*attr)); }

// hook CGROUP alone|overridable|beside [ADDRESS]: attaches a program to `connect` of IPv4, without a link and with the
// flags of this mode. It permits all, and sets the destination to ADDRESS.
static int hook(char **args) {
    int is_rewriting = args[2] != 0;
    struct in_addr to = {0};
    if (is_rewriting && inet_pton(AF_INET, args[2], &to) != 1)
        return 2;
    struct bpf_insn permit[] = {{BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 1}, {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
    struct bpf_insn rewrite[] = {
        {BPF_ALU | BPF_MOV | BPF_K, 2, 0, 0, (int)to.s_addr},
        {BPF_STX | BPF_MEM | BPF_W, 1, 2, offsetof(struct bpf_sock_addr, user_ip4), 0},
        permit[0],
        permit[1],
    };
    union bpf_attr load = {0};
    load.prog_type = BPF_PROG_TYPE_CGROUP_SOCK_ADDR;
    load.expected_attach_type = BPF_CGROUP_INET4_CONNECT;
    load.insns = is_rewriting ? (uintptr_t)rewrite : (uintptr_t)permit;
    load.insn_cnt = is_rewriting ? 4 : 2;
    load.license = (uintptr_t) "GPL";
    int program = bpf(BPF_PROG_LOAD, &load);
    if (program < 0)
        fail("load");
    union bpf_attr attach = {0};
    attach.target_fd = open(args[0], O_RDONLY | O_DIRECTORY);
    attach.attach_bpf_fd = program;
    attach.attach_type = BPF_CGROUP_INET4_CONNECT;
    attach.attach_flags = !strcmp(args[1], "beside")        ? BPF_F_ALLOW_MULTI
                          : !strcmp(args[1], "overridable") ? BPF_F_ALLOW_OVERRIDE
                                                            : 0;
    if (bpf(BPF_PROG_ATTACH, &attach) < 0)
        fail("attach");
    return 0;
}

// without COMMAND-OF-BPF PROGRAM ARGUMENT...: runs a program whose calls of bpf(2) with this command the kernel refuses,
// or with every command if it is -1, as a profile of seccomp does.
static int without(char **args) {
    int command = atoi(args[0]);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_bpf, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, command, 0, command == -1 ? 0 : 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(filter) / sizeof(*filter), filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        fail("seccomp");
    execv(args[1], args + 1);
    fail("exec");
    return 1;
}

int main(int count, char **args) {
    if (count >= 5 && !strcmp(args[1], "uring"))
        return uring(args + 2);
    if (count >= 4 && !strcmp(args[1], "hook"))
        return hook(args + 2);
    if (count >= 4 && !strcmp(args[1], "without"))
        return without(args + 2);
    return 2;
}
