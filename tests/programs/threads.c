/* THREADS threads (8) with ROUNDS rounds each (50,000): each allocates a block and passes it to
 * the next thread, which frees it. Each keeps ten blocks. */
#include "own.h"
#include <pthread.h>
#include <sched.h>
#define RING 256
struct ring { _Atomic(void *) slot[RING]; _Atomic unsigned long head, tail; } __attribute__((aligned(64)));
static struct ring *rings;
static unsigned long threads, rounds;
static _Atomic unsigned long finished;
static void gives_back(struct ring *r) {
    for (unsigned long t = atomic_load(&r->tail); t < atomic_load(&r->head); t++) {
        own_free(atomic_load(&r->slot[t % RING]));
        atomic_store(&r->tail, t + 1);
    }
}
NOINLINE void *takes(size_t size) { void *p = own_malloc(size); KEEP_FRAME(); return p; }
static void *work(void *v) {
    unsigned long me = (unsigned long)v;
    struct ring *mine = &rings[me], *next = &rings[(me + 1) % threads];
    uint64_t s = 88172645463325252ull + me;
    void *keeps[10] = { 0 };
    for (unsigned long i = 0; i < rounds; i++) {
        void *p = takes(1 + rng(&s) % 700);
        if (i % 16 == 0) p = own_realloc(p, 1 + rng(&s) % 900);
        if (i < 10) { keeps[i] = p; continue; }
        while (atomic_load(&next->head) - atomic_load(&next->tail) >= RING) { gives_back(mine); sched_yield(); }
        unsigned long h = atomic_load(&next->head);
        atomic_store(&next->slot[h % RING], p);
        atomic_store(&next->head, h + 1);
        gives_back(mine);
    }
    atomic_fetch_add(&finished, 1);
    while (atomic_load(&finished) < threads) { gives_back(mine); sched_yield(); }
    gives_back(mine);
    KEEP_FRAME();
    return keeps[0];
}
int main(int argc, char **argv) {
    threads = number(argc, argv, 1, 8);
    rounds = number(argc, argv, 2, 50000);
    rings = mmap(0, threads * sizeof *rings, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t id[threads];
    for (unsigned long i = 0; i < threads; i++) must(!pthread_create(&id[i], 0, work, (void *)i), "a thread");
    for (unsigned long i = 0; i < threads; i++) pthread_join(id[i], 0);
    say("%lu threads, %lu rounds\n", threads, rounds);
    return 0;
}
