/* Enters a sandbox in which any system call is fatal except read, write, exit and those by which
 * the allocator itself gets memory, and allocates PAIRS pairs (10,000) there. With `forks`
 * (`forks-raw`: by a system call) and a static program, it enters a sandbox in which sockets and
 * files are fatal, forks a child that allocates, and starts the program. */
#include "own.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define DENY(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
static int forks(const char *how, char *path) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        DENY(socket), DENY(connect), DENY(openat), DENY(newfstatat), DENY(getxattr),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog whole = { sizeof program / sizeof *program, program };
    free(malloc(10));
    must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new rights");
    if (!strcmp(how, "forks")) must(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole), "filter");
    else must(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &whole), "filter");
    int status;
    pid_t pid = fork();
    if (!pid) { free(malloc(20)); _exit(21); }
    must(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 21, "the child lives");
    if (!(pid = fork())) { execl(path, path, "1", (char *)0); _exit(1); }
    must(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the program runs");
    for (int i = 0; i < 300000; i++) free(malloc(30));
    if (write(1, "alive\n", 6) != 6) return 1;
    return 0;
}
int main(int argc, char **argv) {
    if (argc > 2 && !strncmp(argv[1], "forks", 5)) return forks(argv[1], argv[2]);
    unsigned long pairs = number(argc, argv, 1, 10000);
    for (int i = 0; i < 100; i++) free(malloc(1 + i * 10));
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read), ALLOW(write), ALLOW(exit), ALLOW(exit_group), ALLOW(brk), ALLOW(mmap), ALLOW(munmap),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog whole = { sizeof program / sizeof *program, program };
    must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new rights");
    must(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole), "filter");
    for (unsigned long i = 0; i < pairs; i++) {
        void *p = malloc(1 + i % 900);
        if (i % 3 == 0) p = realloc(p, 1 + i % 700);
        free(p);
    }
    if (write(1, "alive\n", 6) != 6) return 1;
    syscall(SYS_exit, 0);
}
