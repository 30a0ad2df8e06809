/* Children of several kinds: `forks`, `vforks` and `fails` start no program, `vtouches`, `clones` and
 * `touches` neither, and use 256 new pages, the last one by direct system calls; `renames` changes its name; `execle` starts a program with an
 * environment of its own. The program itself allocates nothing. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "processor.h"

static char pages[20][256 << 12], stack[1 << 16];

static int touch(void *area)
{
    for (int at = 0; at < 256; at++)
        ((volatile char *)area)[at << 12] = 1;
    return 0;
}

int main(int count, char **args)
{
    char *own[] = {"PATH=/usr/bin:/bin", 0}, *none[] = {"none", 0};
    if (count < 2)
        return 2;
    if (!strcmp(args[1], "execle")) {
        if (!vfork()) {
            execle("/bin/true", "true", (char *)0, own);
            _exit(1);
        }
        wait(0);
        return 0;
    }
    if (!strcmp(args[1], "renames")) {
        prctl(PR_SET_NAME, "other");
        _exit(0);
    }
    for (int i = 0; i < 20; i++) {
        if (!strcmp(args[1], "touches")) {
            long child = raw_call(SYS_clone, SIGCHLD, 0, 0);
            if (!child) {
                touch(pages[i]);
                raw_call(SYS_exit_group, 0, 0, 0);
            }
            waitpid((pid_t)child, 0, 0);
            continue;
        }
        if (!strcmp(args[1], "clones")) {
            waitpid(clone(touch, stack + sizeof stack, SIGCHLD, pages[i]), 0, 0);
            continue;
        }
        pid_t child = !strcmp(args[1], "forks") ? fork() : vfork();
        if (!child) {
            if (!strcmp(args[1], "fails"))
                execv("/no/such/program", none);
            if (!strcmp(args[1], "vtouches"))
                touch(pages[i]);
            _exit(0);
        }
        waitpid(child, 0, 0);
    }
    return 0;
}
