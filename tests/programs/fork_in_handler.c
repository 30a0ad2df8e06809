/* A signal handler forks while it interrupts the allocator, FORKS times (200). The child returns
 * from the handler to the interrupted code, continues to allocate, and ends. Linked with
 * signal_safe_allocator.
 * raw       forks by a system call
 * atfork    has handlers of pthread_atfork that allocate, and a child that allocates in the
 *           signal handler and forks there again
 * data      runs below a limit on private memory that leaves nothing */
#include "own.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
static volatile sig_atomic_t forks, wanted, in_child;
static volatile pid_t last;
static int is_raw, is_atfork;
static void allocates(void) { for (int i = 0; i < 10; i++) free(malloc(503)); }
static int ends_well(pid_t pid) {
    int status;
    pid_t done;
    while ((done = waitpid(pid, &status, 0)) < 0 && errno == EINTR) ;
    return WIFEXITED(status) && WEXITSTATUS(status) == 11;
}
static void handler(int signal) {
    (void)signal;
    if (last || in_child || forks == wanted) return;
    int kept = errno;
    pid_t pid = is_raw ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (!pid && is_atfork) {
        free(realloc(malloc(521), 523));
        pid_t inner = fork();
        if (inner && !ends_well(inner)) _exit(12);
    }
    if (!pid) in_child = 1; else last = pid;
    errno = kept;
}
int main(int argc, char **argv) {
    wanted = number(argc, argv, 1, 200);
    is_raw = argc > 2 && !strcmp(argv[2], "raw");
    is_atfork = argc > 2 && !strcmp(argv[2], "atfork");
    if (is_atfork) must(!pthread_atfork(allocates, allocates, allocates), "handlers");
    if (argc > 2 && !strcmp(argv[2], "data")) {
        struct rlimit limit = { 1 << 20, 1 << 20 };
        free(malloc(1));
        must(!setrlimit(RLIMIT_DATA, &limit), "a limit");
    }
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = { { 0, 500 }, { 0, 500 } }, never = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_REAL, &often, 0);
    uint64_t s = 4711;
    while (forks < wanted) {
        void *p = malloc(16 + rng(&s) % 100);
        p = realloc(p, 300);
        free(p);
        if (in_child) {
            for (int i = 0; i < 100; i++) free(malloc(709));
            _exit(11);
        }
        if (last) {
            must(ends_well(last), "a child");
            forks = forks + 1;
            last = 0;
        }
    }
    setitimer(ITIMER_REAL, &never, 0);
    say("done\n");
    return 0;
}
