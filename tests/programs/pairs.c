/* PAIRS pairs (1,000,000) on each of THREADS threads (1) with the own_ functions: the program
 * itself computes the counts and the hash of all events. */
#include "own.h"
#include <pthread.h>
static unsigned long pairs;
static void *work(void *v) {
    uint64_t s = 977 + (uintptr_t)v;
    void *live[64] = { 0 };
    for (unsigned long i = 0; i < pairs; i++) {
        unsigned long k = rng(&s) % 64;
        own_free(live[k]);
        live[k] = own_malloc(16 + rng(&s) % 2000);
        if (i % 32 == 0) live[k] = own_realloc(live[k], 16 + rng(&s) % 4000);
    }
    for (int k = 0; k < 64; k++) own_free(live[k]);
    return v;
}
int main(int argc, char **argv) {
    pairs = number(argc, argv, 1, 1000000);
    unsigned long threads = number(argc, argv, 2, 1);
    pthread_t id[64];
    must(threads >= 1 && threads <= 64, "1 to 64 threads");
    if (threads == 1) work(0);
    else {
        for (unsigned long i = 0; i < threads; i++) must(!pthread_create(&id[i], 0, work, (void *)i), "a thread");
        for (unsigned long i = 0; i < threads; i++) pthread_join(id[i], 0);
    }
    say("%lu pairs on %lu threads\n", pairs, threads);
    return 0;
}
