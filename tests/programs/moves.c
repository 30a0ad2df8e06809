/* THREADS threads (4) with ROUNDS rounds each (2,000): each moves blocks by realloc, and takes and
 * frees others of the sizes that these leave, so that threads get the addresses of blocks that are
 * just being moved. */
#include "own.h"
#include <pthread.h>
static unsigned long rounds;
static const size_t sizes[] = { 1500, 3000, 6000, 12000 };
static void *work(void *v) {
    uint64_t s = 88172645463325252ull + (uintptr_t)v;
    void *keeps[8] = { 0 };
    for (unsigned long i = 0; i < rounds; i++) {
        void **p = &keeps[rng(&s) % 8];
        size_t size = sizes[rng(&s) % 4];
        if (!*p) *p = own_malloc(size);
        else if (rng(&s) % 4) *p = own_realloc(*p, size);
        else { own_free(*p); *p = 0; }
    }
    for (int i = 0; i < 8; i++) own_free(keeps[i]);
    KEEP_FRAME();
    return 0;
}
int main(int argc, char **argv) {
    unsigned long threads = number(argc, argv, 1, 4);
    rounds = number(argc, argv, 2, 2000);
    pthread_t id[threads];
    for (unsigned long i = 0; i < threads; i++) must(!pthread_create(&id[i], 0, work, (void *)i), "a thread");
    for (unsigned long i = 0; i < threads; i++) pthread_join(id[i], 0);
    say("%lu threads, %lu rounds\n", threads, rounds);
    return 0;
}
