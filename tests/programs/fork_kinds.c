/* Starts COUNT children (3) of KIND one after another. Each child allocates 5 blocks of 401
 * bytes and frees 2, if it may, and ends without exit handlers. The parent allocates a block of
 * 409 bytes before each child and one of 419 bytes after it, and keeps them. */
#include "own.h"
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include "processor.h"
extern pid_t _Fork(void);
extern char **environ;
static void child(void) {
    void *p[5];
    for (int i = 0; i < 5; i++) p[i] = malloc(401);
    free(p[0]);
    free(p[3]);
    _exit(33);
}
static int cloned(void *none) { (void)none; child(); return 0; }
static void waits(pid_t pid) {
    int status;
    must(pid > 0, "a child");
    while (waitpid(pid, &status, 0) < 0) must(errno == EINTR, "waitpid");
    must(WIFEXITED(status) && WEXITSTATUS(status) == 33, "the child's status");
}
static void one(const char *kind, const char *self) {
    pid_t pid = -2;
    char *args[] = { (char *)self, "child", 0 };
    if (!strcmp(kind, "fork")) { if (!(pid = fork())) child(); }
    else if (!strcmp(kind, "_Fork")) { if (!(pid = _Fork())) child(); }
    else if (!strcmp(kind, "raw")) { if (!(pid = syscall(RAW_FORK))) child(); }
    else if (!strcmp(kind, "clone")) {
        void *stack = mmap(0, 1 << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        pid = clone(cloned, (char *)stack + (1 << 18), SIGCHLD, 0);
    } else if (!strcmp(kind, "clone3")) {
        struct clone_args how = { .exit_signal = SIGCHLD };
        if (!(pid = syscall(SYS_clone3, &how, sizeof how))) child();
    } else if (!strcmp(kind, "vfork")) { if (!(pid = vfork())) child(); }
    else if (!strcmp(kind, "vfork-exec")) { if (!(pid = vfork())) { execv(self, args); _exit(1); } }
    else if (!strcmp(kind, "posix_spawn")) { must(!posix_spawn(&pid, self, 0, 0, args, environ), "posix_spawn"); }
    else if (!strcmp(kind, "system")) {
        char line[600];
        snprintf(line, sizeof line, "exec %s child", self);
        int status = system(line);
        must(WIFEXITED(status) && WEXITSTATUS(status) == 33, "system");
        return;
    } else if (!strcmp(kind, "popen")) {
        char line[600], text[10] = "";
        snprintf(line, sizeof line, "%s child; echo said", self);
        FILE *pipe = popen(line, "r");
        must(pipe && fgets(text, sizeof text, pipe) && !strcmp(text, "said\n"), "popen");
        must(pclose(pipe) == 0, "pclose");
        return;
    } else must(0, "a kind of child");
    waits(pid);
}
int main(int argc, char **argv) {
    must(argc > 1, "a kind");
    if (!strcmp(argv[1], "child")) child();
    char self[500];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    must(n > 0, "own path");
    self[n] = 0;
    unsigned long count = number(argc, argv, 2, 3);
    for (unsigned long i = 0; i < count; i++) {
        must(malloc(409) != 0, "a block");
        one(argv[1], self);
        must(malloc(419) != 0, "a block");
    }
    say("%s\n", argv[1]);
    return 0;
}
