/* Allocates in a signal handler that interrupts hooks, stubs of the linker, and an allocator which may
   be interrupted anywhere (tests/programs/signal_safe_allocator.c). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define HITS 60
static volatile int hits;

static void handler(int signal)
{
    (void)signal;
    void *block = malloc(1000);
    free(realloc(block, 2000));
    hits++;
}

__attribute__((noinline)) static int churn(int n)
{
    void *block = malloc(n % 100);
    block = realloc(block, n % 200);
    free(block);
    return n + 1;
}

int main(void)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    int n = 0;
    sigaction(SIGPROF, &action, 0);
    setitimer(ITIMER_PROF, &timer, 0);
    while (hits < HITS)
        n = churn(n);
    memset(&timer, 0, sizeof timer);
    setitimer(ITIMER_PROF, &timer, 0);
    printf("%d hits\n", n ? HITS : 0);
    return 0;
}
