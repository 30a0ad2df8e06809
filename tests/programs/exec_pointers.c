/* Calls exec with addresses that are not mapped or null, and prints the result of each call. With the
 * argument `sandbox`, behind a filter that refuses what nobody calls. */
#include "own.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/prctl.h>
#define BAD ((char *)1)
static void told(const char *how, int result) { say("%s %d %s\n", how, result, strerrorname_np(errno)); }
static void shut_in(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_reboot, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog whole = { sizeof rules / sizeof *rules, rules };
    must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole), "filter");
}
static void calls(void) {
    char *argv[] = { "true", 0 }, *environment[] = { "A=1", 0 }, *bad[] = { "A=1", BAD, 0 };
    char *const *none = (char *const *)BAD;
    free(malloc(10));
    told("path", execve(BAD, argv, environment));
    told("environment", execve("/bin/true", argv, (char **)none));
    told("string", execve("/bin/true", argv, bad));
    told("arguments", execve("/bin/true", bad, environment));
    told("at", execveat(AT_FDCWD, BAD, argv, environment, 0));
    told("descriptor", fexecve(-1, argv, (char **)none));
    int file = open("/bin/true", O_RDONLY | O_CLOEXEC);
    told("no environment", fexecve(file, argv, 0));
    told("no arguments", fexecve(file, 0, environment));
    told("v", execv(BAD, argv));
    told("null", execve(0, argv, environment));
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(page != MAP_FAILED && !munmap(page + 4096, 4096), "a page");
    memset(page, 'x', 4096);
    told("no end", execve(page + 4090, argv, environment));
    pid_t pid;
    errno = posix_spawn(&pid, BAD, 0, 0, argv, environment);
    told("spawn", 0);
    errno = posix_spawn(&pid, "/bin/true", 0, 0, argv, (char **)none);
    told("spawn environment", 0);
}
int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) shut_in();
    calls();
    return 0;
}
