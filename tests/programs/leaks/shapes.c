/* Programs whose live bytes have a shape: `shapes SHAPE`. A run has 200 steps, each of which sleeps for
 * 6 ms after its work. Where the machine lets it wait, it does not catch up: the run takes longer, and
 * keeps its shape. Each shape allocates in the function of its name. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 200, SIZE = 400, MOST = 4000 };
#define SITE __attribute__((noipa))

static void *volatile kept;
static void *held[MOST];
static int in, out;

SITE static void base(void) { kept = malloc(256 << 10); }

static void step(void) { nanosleep(&(struct timespec){0, 6000000}, NULL); }

static void drop_all(void) { while (out < in) free(held[out++]); }

/* A table that is loaded at the start. */
SITE static void *table(void) { return malloc(SIZE); }
static void run_table(void) {
    for (int i = 0; i < 2000; i++) held[in++] = table();
    for (int i = 0; i < STEPS; i++) step();
}

/* A ramp through the run, which is freed at the exit or not at all. */
SITE static void *ramp(void) { return malloc(SIZE); }
static void run_ramp(void) {
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < 10; k++) held[in++] = ramp();
        step();
    }
}
static void run_ramp_atexit(void) { atexit(drop_all); run_ramp(); }

/* A cache of 200 entries that is soon full. */
SITE static void *cache(void) { return malloc(SIZE); }
static void run_cache(void) {
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < 20; k++) {
            void **entry = &held[(i * 20 + k) % 200];
            free(*entry);
            *entry = cache();
        }
        step();
    }
}

/* Four threads, each of which leaks. */
SITE static void *work(void) { return malloc(SIZE); }
static void *run_worker(void *unused) {
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < 3; k++) kept = work();
        step();
    }
    return unused;
}
static void run_workers(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) if (pthread_create(&threads[i], NULL, run_worker, NULL) != 0) abort();
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

static const struct { const char *name; void (*run)(void); } shapes[] = {
    {"table", run_table}, {"ramp", run_ramp}, {"ramp_atexit", run_ramp_atexit}, {"cache", run_cache}, {"workers", run_workers},
};

int main(int argc, char **argv) {
    for (size_t i = 0; argc == 2 && i < sizeof shapes / sizeof *shapes; i++) {
        if (strcmp(shapes[i].name, argv[1]) != 0) continue;
        base();
        shapes[i].run();
        return 0;
    }
    return 2;
}
