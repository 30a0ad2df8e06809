/* PAIRS pairs (100,000) on each of THREADS threads (1), in groups of GROUP (50), each followed
 * by a pause of 3 ms, so that a recorder keeps up. It uses the own_ functions, so that the
 * program itself computes the counts and the hash of all events. */
#include "own.h"
#include <pthread.h>
#include <time.h>
static unsigned long pairs, group;
static void *work(void *v) {
    uint64_t s = 977 + (uintptr_t)v;
    void *live[64] = { 0 };
    struct timespec rest = { 0, 3000000 };
    for (unsigned long i = 0; i < pairs; i++) {
        unsigned long k = rng(&s) % 64;
        own_free(live[k]);
        live[k] = own_malloc(16 + rng(&s) % 2000);
        if (i % 32 == 0) live[k] = own_realloc(live[k], 16 + rng(&s) % 4000);
        if (i % group == 0) nanosleep(&rest, 0);
    }
    for (int k = 0; k < 64; k++) own_free(live[k]);
    return v;
}
int main(int argc, char **argv) {
    pairs = number(argc, argv, 1, 100000);
    unsigned long threads = number(argc, argv, 2, 1);
    group = number(argc, argv, 3, 50);
    must(group > 0, "a group");
    pthread_t id[64];
    must(threads >= 1 && threads <= 64, "1 to 64 threads");
    for (unsigned long i = 1; i < threads; i++) must(!pthread_create(&id[i], 0, work, (void *)i), "a thread");
    work(0);
    for (unsigned long i = 1; i < threads; i++) pthread_join(id[i], 0);
    say("%lu pairs on %lu threads\n", pairs, threads);
    return 0;
}
