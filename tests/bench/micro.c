/* micro PAIRS DEPTH THREADS [cross]: the allocator under stress below a call stack of known depth.
 * Each thread keeps 10,000 blocks of 16 to 4,095 bytes and replaces one at random, PAIRS times in all. Of DEPTH frames above the call the
 * innermost eight are pushed anew each time, along one of forty paths; the others stand for a thousand pairs, as a real program's do.
 * With `cross` the threads work in twos: one takes, the other frees. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIVE 10000
#define ROOM 4096
#define NOINLINE __attribute__((noinline, noclone, noipa))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

static inline uint64_t step(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    return *s ^= *s << 17;
}
static inline size_t size_of(uint64_t r) {
    size_t low = (size_t)16 << (r & 7);
    return low + (r >> 8 & (low - 1));
}

#define LEAF(name, mark) static NOINLINE char *name(size_t n) { char *p = malloc(n); p[0] = mark; KEEP_FRAME(); return p; }
LEAF(leaf_a, 1)
LEAF(leaf_b, 2)
LEAF(leaf_c, 3)
LEAF(leaf_d, 4)
static char *(*const leaves[4])(size_t) = { leaf_a, leaf_b, leaf_c, leaf_d };
static NOINLINE char *odd(int depth, size_t n, unsigned path);
static NOINLINE char *even(int depth, size_t n, unsigned path) {
    char *p = depth <= 0 ? leaves[path & 3](n) : path & 4 ? odd(depth - 1, n, path >> 3) : even(depth - 1, n, path);
    KEEP_FRAME();
    return p;
}
static NOINLINE char *odd(int depth, size_t n, unsigned path) {
    char *p = depth <= 0 ? leaf_b(n) : even(depth - 1, n, path);
    KEEP_FRAME();
    return p;
}

struct queue {
    _Atomic size_t head __attribute__((aligned(64)));
    _Atomic size_t tail __attribute__((aligned(64)));
    _Atomic int done;
    char *slots[ROOM];
};
struct work {
    uint64_t pairs, seed;
    int depth, role; /* 0 alone, 1 takes, 2 frees */
    struct queue *queue;
};

static NOINLINE void replaces(struct work *w, char **live, uint64_t *s, int count, int depth) {
    for (int i = 0; i < count; i++) {
        uint64_t r = step(s);
        size_t k = (r >> 40) % LIVE;
        free(live[k]);
        live[k] = even(depth - 2, size_of(r), (unsigned)(r >> 20) & 63);
    }
    (void)w;
}
static NOINLINE void stands(struct work *w, char **live, uint64_t *s, int count, int below, int depth) {
    if (below <= 0) replaces(w, live, s, count, depth);
    else stands(w, live, s, count, below - 1, depth);
    KEEP_FRAME();
}
static void alone(struct work *w) {
    char **live = calloc(LIVE, sizeof *live);
    uint64_t s = w->seed;
    int top = w->depth > 8 ? 8 : w->depth;
    for (uint64_t left = w->pairs; left;) {
        int count = left < 1000 ? (int)left : 1000;
        stands(w, live, &s, count, w->depth - top, top);
        left -= count;
    }
    for (size_t k = 0; k < LIVE; k++) free(live[k]);
    free(live);
}
static void takes(struct work *w) {
    uint64_t s = w->seed;
    struct queue *q = w->queue;
    for (uint64_t i = 0; i < w->pairs; i++) {
        uint64_t r = step(&s);
        char *p = even(w->depth - 2, size_of(r), (unsigned)(r >> 20) & 63);
        size_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed);
        while (tail - atomic_load_explicit(&q->head, memory_order_acquire) >= ROOM) sched_yield();
        q->slots[tail % ROOM] = p;
        atomic_store_explicit(&q->tail, tail + 1, memory_order_release);
    }
    atomic_store(&q->done, 1);
}
static void frees(struct work *w) {
    char **live = calloc(LIVE, sizeof *live);
    uint64_t s = w->seed;
    struct queue *q = w->queue;
    for (size_t head = 0;;) {
        if (head == atomic_load_explicit(&q->tail, memory_order_acquire)) {
            if (atomic_load(&q->done) && head == atomic_load(&q->tail)) break;
            sched_yield();
            continue;
        }
        char *p = q->slots[head % ROOM];
        atomic_store_explicit(&q->head, ++head, memory_order_release);
        size_t k = step(&s) % LIVE;
        free(live[k]);
        live[k] = p;
    }
    for (size_t k = 0; k < LIVE; k++) free(live[k]);
    free(live);
}
static void *thread(void *v) {
    struct work *w = v;
    if (w->role == 0) alone(w);
    else if (w->role == 1) takes(w);
    else frees(w);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    uint64_t pairs = strtoull(argv[1], 0, 10);
    int depth = atoi(argv[2]), threads = atoi(argv[3]), cross = argc > 4 && !strcmp(argv[4], "cross");
    if (threads == 1) {
        struct work w = { pairs, 88172645463325252ull, depth, 0, 0 };
        alone(&w);
        return 0;
    }
    pthread_t *ids = calloc(threads, sizeof *ids);
    struct work *works = calloc(threads, sizeof *works);
    struct queue *queues = aligned_alloc(64, threads * sizeof *queues);
    memset(queues, 0, threads * sizeof *queues);
    for (int i = 0; i < threads; i++) {
        works[i] = (struct work){ cross ? pairs / (threads / 2) : pairs / threads, 88172645463325252ull + 7919 * i, depth,
            cross ? 1 + i % 2 : 0, &queues[i / 2] };
        if (pthread_create(&ids[i], 0, thread, &works[i])) return 1;
    }
    for (int i = 0; i < threads; i++) pthread_join(ids[i], 0);
    free(queues);
    free(works);
    free(ids);
    return 0;
}
