/* Kinds of sandboxes, as the first argument selects:
 * counter        the timestamp counter is disabled, then 100,000 pairs
 * strict         strict mode, then 1,000 pairs of blocks that existed before
 * deep N         a filter for what an allocator needs, then N new frames of 4 KiB
 * nodes N        the same filter, then 2^N stacks
 * masked         rt_sigprocmask fails with EPERM, then blocks on a stack that ends at unreadable
 *                memory
 * ask            queries in the two usual ways whether there is seccomp, then 3 children allocate
 * unseen N       the same filter, installed by an instruction of the program's own, then N new frames
 *                of 12 KiB and new stacks
 * first N        the same before the program has allocated anything
 * permissive     a filter that forbids what no program needs, then 3 children and a thread
 *                allocate */
#include "own.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include "processor.h"
#define RULE(name, what) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, what)
#define LOAD BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define ELSE(what) BPF_STMT(BPF_RET | BPF_K, what)
#define FILTER(...) do { \
        struct sock_filter rules[] = { LOAD, __VA_ARGS__ }; \
        struct sock_fprog whole = { sizeof rules / sizeof *rules, rules }; \
        must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new rights"); \
        must(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole), "filter"); \
    } while (0)
#define ALLOW(name) RULE(name, SECCOMP_RET_ALLOW)
#define ALLOCATOR_ALONE ALLOW(read), ALLOW(write), ALLOW(exit), ALLOW(exit_group), ALLOW(brk), ALLOW(mmap), ALLOW(munmap), \
    ELSE(SECCOMP_RET_KILL_PROCESS)
static void shut_in(void) { FILTER(ALLOCATOR_ALONE); }
static void shut_in_unseen(void) {
    /* glibc asks for random numbers at its first allocation. */
    struct sock_filter rules[] = { LOAD, ALLOW(getrandom), ALLOCATOR_ALONE };
    struct sock_fprog whole = { sizeof rules / sizeof *rules, rules };
    must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new rights");
    must(!raw_call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&whole), "filter");
}
static void pairs(unsigned long count) { for (unsigned long i = 0; i < count; i++) free(malloc(24)); }
NOINLINE static void deeper(unsigned long left) {
    volatile char room[4000];
    room[0] = 0;
    if (left) deeper(left - 1);
    else pairs(100);
    KEEP_FRAME();
}
NOINLINE static void much_deeper(unsigned long left) {
    volatile char room[12288];
    room[0] = 0;
    pairs(1);
    if (left) much_deeper(left - 1);
    KEEP_FRAME();
}
NOINLINE static void branch(unsigned left);
NOINLINE static void one(unsigned left) { branch(left); KEEP_FRAME(); }
NOINLINE static void other(unsigned left) { branch(left); KEEP_FRAME(); }
NOINLINE static void branch(unsigned left) {
    if (!left) { pairs(1); return; }
    one(left - 1);
    other(left - 1);
    KEEP_FRAME();
}
NOINLINE static void allocates(void) { pairs(1000); KEEP_FRAME(); }
NOINLINE static void on_stack(char *top, void (*body)(void)) {
#ifdef __aarch64__
    __asm__ volatile("mov x19, sp\n mov sp, %0\n blr %1\n mov sp, x19"
                     : : "r"(top), "r"(body)
                     : "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16",
                       "x17", "x19", "x30", "cc", "memory");
#else
    __asm__ volatile("mov %%rsp, %%rbx\n mov %0, %%rsp\n call *%1\n mov %%rbx, %%rsp"
                     : : "r"(top), "r"(body)
                     : "rbx", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory");
#endif
}
static void *thread(void *unused) { pairs(1000); return unused; }
static void children(void) {
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        int status;
        if (!pid) { pairs(10); _exit(7); }
        must(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child lives");
    }
}
int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    unsigned long count = number(argc, argv, 2, 3);
    if (!strcmp(how, "first")) shut_in_unseen();
    free(malloc(100000));
    pairs(100);
    if (!strcmp(how, "counter")) {
        must(!prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0), "no counter");
        pairs(100000);
        must(!prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0), "the counter again");
    } else if (!strcmp(how, "strict")) {
        must(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT), "strict");
        pairs(1000);
    } else if (!strcmp(how, "deep")) {
        shut_in();
        deeper(count);
    } else if (!strcmp(how, "nodes")) {
        shut_in();
        branch(count);
    } else if (!strcmp(how, "unseen") || !strcmp(how, "first")) {
        if (!strcmp(how, "unseen")) shut_in_unseen();
        much_deeper(count);
        branch(8);
    } else if (!strcmp(how, "masked")) {
        char *stack = mmap(0, 20 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        must(stack != MAP_FAILED && !mprotect(stack, 16 * 4096, PROT_READ | PROT_WRITE), "a stack");
        FILTER(RULE(rt_sigprocmask, SECCOMP_RET_ERRNO | EPERM), ELSE(SECCOMP_RET_ALLOW));
        on_stack(stack + 16 * 4096, allocates);
    } else if (!strcmp(how, "ask")) {
        must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0) == -1 && errno == EFAULT, "there are filters");
        unsigned action = SECCOMP_RET_ALLOW;
        must(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0, "there is an action");
        children();
    } else if (!strcmp(how, "permissive")) {
        FILTER(RULE(reboot, SECCOMP_RET_KILL_PROCESS), RULE(kexec_load, SECCOMP_RET_KILL_PROCESS), ELSE(SECCOMP_RET_ALLOW));
        children();
        pthread_t other;
        must(!pthread_create(&other, 0, thread, 0) && !pthread_join(other, 0), "a thread");
    }
    if (write(1, "alive\n", 6) != 6) return 1;
    syscall(SYS_exit, 0);
}
