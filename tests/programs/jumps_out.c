/* A signal handler leaves the code that it interrupts, hooks included, by siglongjmp, JUMPS
 * times (5,000). Then 100,000 blocks of 877 bytes are allocated and freed without interruption.
 * Linked with signal_safe_allocator. */
#include "own.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
static sigjmp_buf start;
static volatile unsigned long jumps;
static void handler(int signal) { (void)signal; jumps = jumps + 1; siglongjmp(start, 1); }
NOINLINE void *undisturbed(void) { void *p = malloc(877); KEEP_FRAME(); return p; }
int main(int argc, char **argv) {
    volatile unsigned long wanted = number(argc, argv, 1, 5000);
    struct sigaction action = { .sa_handler = handler };
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = { { 0, 100 }, { 0, 100 } }, never = { { 0, 0 }, { 0, 0 } };
    volatile uint64_t s = 99991;
    if (sigsetjmp(start, 1) == 0) setitimer(ITIMER_REAL, &often, 0);
    while (jumps < wanted) {
        uint64_t seed = s;
        void *p = malloc(16 + rng(&seed) % 100);
        s = seed;
        p = realloc(p, 300);
        free(p);
    }
    setitimer(ITIMER_REAL, &never, 0);
    for (int i = 0; i < 100000; i++) free(undisturbed());
    say("%s\n", jumps >= wanted ? "enough" : "few");
    return 0;
}
