/* Maps all addresses that its limit of 8 GiB allows, and starts itself by each exec function in a child
 * of vfork; with the argument `sandbox`, behind a filter that kills who reads the clock. */
#include "own.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include "processor.h"
extern char **environ;
static void forbid_the_clock(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog whole = { sizeof rules / sizeof *rules, rules };
    must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new rights");
    must(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole), "filter");
}
static void fill(void) {
    struct rlimit limit = { 8ul << 30, RLIM_INFINITY };
    must(!setrlimit(RLIMIT_AS, &limit), "a limit");
    for (size_t bytes = 1ul << 30; bytes >= 4096; bytes /= 2)
        while (mmap(0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED) ;
}
static void start(const char *program, int way) {
    char *arguments[] = { (char *)program, "end", 0 };
    switch (way) {
        case 0: execve(program, arguments, environ); break;
        case 1: execl(program, program, "end", (char *)0); break;
        case 2: execvp(program, arguments); break;
        default: raw_call(SYS_execve, (long)program, (long)arguments, (long)environ);
    }
    _exit(98);
}
int main(int argc, char **argv) {
    free(malloc(24));
    if (argc > 1 && !strcmp(argv[1], "end")) return 7;
    fill();
    for (int way = 0; way < 4; way++) {
        int status;
        pid_t pid = vfork();
        if (!pid) {
            if (argc > 1) forbid_the_clock();
            start(argv[0], way);
        }
        must(waitpid(pid, &status, 0) == pid, "waitpid");
        char line[] = { (char)('0' + way), ' ', (char)('a' + WEXITSTATUS(status)), (char)('a' + WTERMSIG(status)), '\n' };
        must(write(1, line, sizeof line) == sizeof line, "write");
    }
    return 0;
}
