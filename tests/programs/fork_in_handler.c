/* A handler forks while it interrupts the allocator, FORKS times (200); with `raw` by a system call. The child returns from the handler into what was interrupted,
 * allocates on, and ends. Linked with signal_safe_allocator. */
#include "own.h"
#include <errno.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
static volatile sig_atomic_t forks, in_child;
static volatile pid_t last;
static int is_raw;
static void handler(int signal) {
    (void)signal;
    if (last || in_child) return;
    int kept = errno;
    pid_t pid = is_raw ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (!pid) in_child = 1; else last = pid;
    errno = kept;
}
int main(int argc, char **argv) {
    sig_atomic_t wanted = number(argc, argv, 1, 200);
    is_raw = argc > 2;
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
            int status;
            pid_t done;
            while ((done = waitpid(last, &status, 0)) < 0 && errno == EINTR) ;
            must(WIFEXITED(status) && WEXITSTATUS(status) == 11, "a child");
            forks = forks + 1;
            last = 0;
        }
    }
    setitimer(ITIMER_REAL, &never, 0);
    say("done\n");
    return 0;
}
