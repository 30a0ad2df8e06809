/* Four threads allocate while a timer sends signals at 5 kHz. The handler allocates, resizes and
 * frees in whatever code it interrupts, hooks included, and counts separately. Linked with
 * signal_safe_allocator. */
#include "own.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
static unsigned long rounds;
static _Atomic unsigned long handled, running;
static void handler(int signal) {
    (void)signal;
    void *p = malloc(1201);
    p = realloc(p, 1213);
    free(p);
    handled++;
}
static void *work(void *v) {
    uint64_t s = 7919 + (uintptr_t)v;
    for (unsigned long i = 0; i < rounds; i++) {
        void *p = malloc(16 + rng(&s) % 100);
        if (i % 4 == 0) p = realloc(p, 16 + rng(&s) % 200);
        free(p);
    }
    running--;
    return 0;
}
int main(int argc, char **argv) {
    rounds = number(argc, argv, 1, 300000);
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_REAL, &often, 0);
    pthread_t id[4];
    running = 4;
    for (long i = 0; i < 4; i++) must(!pthread_create(&id[i], 0, work, (void *)i), "a thread");
    for (int i = 0; i < 4; i++) while (pthread_join(id[i], 0)) ;
    setitimer(ITIMER_REAL, &never, 0);
    must(handled > 0, "signals came");
    say("%lu\n", handled);
    return 0;
}
