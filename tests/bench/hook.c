/* hook PAIRS DEPTH [fresh] [thread]: a malloc and a free of 64 bytes below a stack of DEPTH frames, PAIRS times; prints the nanoseconds of processor
 * time that a pair took. `fresh`: the frames are pushed anew for each pair and lie somewhere else each time (1,024 places), so that nothing
 * remembered fits. `thread`: another thread exists, asleep. */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

static NOINLINE void pair(void) {
    void *p = malloc(64);
    __asm__ volatile("" : "+r"(p) : : "memory");
    free(p);
    KEEP_FRAME();
}
static NOINLINE void pairs(long count) {
    for (long i = 0; i < count; i++) pair();
    KEEP_FRAME();
}
static NOINLINE void dive(int depth, long count) {
    if (depth <= 0) pairs(count);
    else dive(depth - 1, count);
    KEEP_FRAME();
}
static NOINLINE void elsewhere(unsigned place, int depth) {
    char *room = alloca(16 + 16 * (place & 1023));
    KEEP_FRAME();
    room[0] = 1;
    dive(depth, 1);
    KEEP_FRAME();
}
static void *sleeps(void *unused) {
    (void)unused;
    for (;;) pause();
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    long count = atol(argv[1]);
    int depth = atoi(argv[2]), fresh = 0, thread = 0;
    for (int i = 3; i < argc; i++) {
        fresh |= !strcmp(argv[i], "fresh");
        thread |= !strcmp(argv[i], "thread");
    }
    pthread_t id;
    if (thread && pthread_create(&id, 0, sleeps, 0)) return 1;
    uint32_t s = 1;
    double start = now();
    if (!fresh) dive(depth, count);
    else for (long i = 0; i < count; i++) {
        s = s * 1664525u + 1013904223u;
        elsewhere(s >> 16, depth);
    }
    printf("%.3f\n", (now() - start) / count);
    return 0;
}
