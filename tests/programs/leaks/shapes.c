/* Programs whose live bytes have a shape: `shapes SHAPE MILLISECONDS sleepy|busy`. A run has 200
 * steps, each of which begins at its own point in time. A sleepy program does nothing else until
 * the next one, a busy one allocates and frees all the while. Each shape allocates in the function
 * of its name. If the machine did not let it run for a thirty-second of the run, or 6 ms, the run had another
 * shape, and `late` is printed on standard error. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 200, SIZE = 400, MOST = 40000 };
#define SITE __attribute__((noipa))

static struct timespec next;
static long step_ns;
static _Atomic long latest_ns;
static int is_busy;
static void *volatile kept;
static void *held[MOST];
static int in, out;

SITE static void noise(void) {
    for (int i = 0; i < 30; i++) {
        void *volatile block = malloc(24 + (size_t)(i & 7) * 16);
        free(block);
    }
}

SITE static void base(void) { kept = malloc(256 << 10); }

/* Notes how late it is after a point in time. */
static void note_late(struct timespec at) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long late = (now.tv_sec - at.tv_sec) * 1000000000 + now.tv_nsec - at.tv_nsec;
    for (long before = latest_ns; late > before && !atomic_compare_exchange_weak(&latest_ns, &before, late);) {}
}

static void report_late(void) {
    note_late(next);
    const long shortest_ns = 6000000, part_ns = STEPS / 32 * step_ns;
    if (latest_ns > (part_ns > shortest_ns ? part_ns : shortest_ns) && write(2, "late\n", 5) != 5) abort();
}

/* Waits for the next step. */
static void step(void) {
    if (is_busy) noise();
    next.tv_nsec += step_ns;
    next.tv_sec += next.tv_nsec / 1000000000;
    next.tv_nsec %= 1000000000;
    struct timespec now;
    while (is_busy && clock_gettime(CLOCK_MONOTONIC, &now) == 0 &&
           (now.tv_sec < next.tv_sec || (now.tv_sec == next.tv_sec && now.tv_nsec < next.tv_nsec - step_ns / 8))) {
        void *volatile block = malloc(40);
        free(block);
        clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){0, step_ns / 8}, NULL);
    }
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL) != 0) {}
    note_late(next);
}

static void steps(int from, int to) { for (int i = from; i < to; i++) step(); }

static void drop_all(void) { while (out < in) free(held[out++]); }

/* A table that is loaded at the start, and its like. */
SITE static void *table(void) { return malloc(SIZE); }
static void load(void) { for (int i = 0; i < 2000; i++) held[in++] = table(); }
static void run_table_kept(void) { load(); steps(0, STEPS); }
static void run_table_freed(void) { load(); steps(0, STEPS); drop_all(); }
static void run_table_atexit(void) { atexit(drop_all); load(); steps(0, STEPS); }
static void run_table_late(void) { steps(0, 170); load(); steps(170, STEPS); }
static void run_table_twice(void) { load(); steps(0, 185); load(); steps(185, STEPS); drop_all(); }

/* Ramps that stop after a share of the run. */
SITE static void *ramp(void) { return malloc(SIZE); }
static void climb(int until) {
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; i < until && k < 10; k++) held[in++] = ramp();
        step();
    }
}
static void run_ramp20(void) { climb(40); }
static void run_ramp40(void) { climb(80); }
static void run_ramp60(void) { climb(120); }
static void run_ramp95(void) { climb(190); }
static void run_ramp(void) { climb(STEPS); }
static void run_ramp_atexit(void) { atexit(drop_all); climb(STEPS); }
static void run_ramp40_atexit(void) { atexit(drop_all); climb(80); }
/* Drained a sixth of the run before the exit. */
static void run_ramp_drained(void) { climb(STEPS); drop_all(); steps(0, STEPS / 5); }

/* What comes and goes. */
SITE static void *wave(void) { return malloc(SIZE); }
static void run_wave(void) {
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < 10; k++) held[in++] = wave();
        step();
        if (i % 45 == 40) drop_all();
    }
}
static void run_spikes(void) {
    for (int i = 0; i < 100; i++) held[in++] = wave();
    out = in;
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; i % 20 == 13 && k < 1000; k++) held[in++] = wave();
        step();
        drop_all();
    }
}

/* Queues: a number of blocks each step, of which a number is taken. */
SITE static void *queue(void) { return malloc(SIZE); }
static void serve(int steps_in, int put, int take) {
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; i < steps_in && k < put; k++) held[in++] = queue();
        for (int k = 0; k < take && out < in; k++) free(held[out++]);
        step();
    }
}
static void run_backlog19(void) { held[in++] = queue(); serve(STEPS, 20, 19); }
static void run_backlog9(void) { serve(STEPS, 40, 36); }
static void run_backlog3(void) { serve(STEPS, 40, 30); }
static void run_backlog99(void) { serve(STEPS, 100, 99); }
static void run_drained(void) { serve(60, 40, 20); }
static void run_drained_slowly(void) {
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; i < 120 && k < 10; k++) held[in++] = queue();
        for (int k = 0; i >= 120 && k < 15; k++) free(held[out++]);
        step();
    }
}
static void run_steady(void) { for (int i = 0; i < 200; i++) held[in++] = queue(); serve(STEPS, 20, 20); }

/* Caches that are full after a share of the run. */
SITE static void *cache(size_t size) { return malloc(size); }
static void lookups(int each, int room) {
    static void *entries[MOST];
    unsigned random = 12345;
    for (int i = 0, n = 0; i < STEPS; i++) {
        for (int k = 0; k < each; k++, n++) {
            random = random * 1103515245 + 12345;
            int at = n < room ? n : (int)((random >> 8) % (unsigned)room);
            free(entries[at]);
            entries[at] = cache(SIZE - 100 + (random >> 16) % 200);
        }
        step();
    }
}
static void run_cache5(void) { lookups(20, 200); }
static void run_cache40(void) { lookups(20, 1600); }
static void run_cache60(void) { lookups(20, 2400); }

/* A hash table of 1,000 keys that is full after two fifths of the run. From then on, values are
 * replaced now and then. */
SITE static void *value(void) { return malloc(SIZE); }
static void run_table_full(void) {
    static void *values[1000];
    for (int i = 0, n = 0; i < STEPS; i++) {
        for (int k = 0; k < 13 && n < 1000; k++) values[n++] = value();
        for (int k = 0; k < 3; k++) {
            int at = (i * 7 + k * 311) % n;
            free(values[at]);
            values[at] = value();
        }
        step();
    }
}

/* A leak of one in a number of blocks, among others that are in use for some steps. */
SITE static void *churn(void) { return malloc(SIZE); }
static void run_churn(void) {
    for (int i = 0, n = 0; i < STEPS; i++) {
        for (int k = 0; k < 40; k++, n++) {
            void *block = churn();
            if (n % 20 == 7) kept = block; else held[in++] = block;
        }
        while (in - out > 300) free(held[out++]);
        step();
    }
    drop_all();
}

/* Four threads, each of which leaks. */
SITE static void *work(void) { return malloc(SIZE); }
static void *run_worker(void *unused) {
    struct timespec at = next;
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < 3; k++) kept = work();
        at.tv_nsec += step_ns;
        at.tv_sec += at.tv_nsec / 1000000000;
        at.tv_nsec %= 1000000000;
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) {}
        note_late(at);
    }
    return unused;
}
static void run_workers(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) if (pthread_create(&threads[i], NULL, run_worker, NULL) != 0) abort();
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &next);
}

static const struct { const char *name; void (*run)(void); } shapes[] = {
    {"table_kept", run_table_kept}, {"table_freed", run_table_freed}, {"table_atexit", run_table_atexit},
    {"table_late", run_table_late}, {"table_twice", run_table_twice}, {"ramp20", run_ramp20}, {"ramp40", run_ramp40},
    {"ramp60", run_ramp60}, {"ramp95", run_ramp95}, {"ramp", run_ramp}, {"ramp_atexit", run_ramp_atexit},
    {"ramp40_atexit", run_ramp40_atexit}, {"ramp_drained", run_ramp_drained}, {"wave", run_wave}, {"spikes", run_spikes},
    {"backlog19", run_backlog19}, {"backlog9", run_backlog9}, {"backlog3", run_backlog3}, {"backlog99", run_backlog99},
    {"drained", run_drained}, {"drained_slowly", run_drained_slowly}, {"steady", run_steady}, {"cache5", run_cache5}, {"cache40", run_cache40}, {"cache60", run_cache60},
    {"table_full", run_table_full}, {"churn", run_churn}, {"workers", run_workers},
};

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    step_ns = atol(argv[2]) * (1000000 / STEPS);
    is_busy = strcmp(argv[3], "busy") == 0;
    clock_gettime(CLOCK_MONOTONIC, &next);
    // The last one to run.
    atexit(report_late);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (strcmp(shapes[i].name, argv[1]) != 0) continue;
        base();
        shapes[i].run();
        return 0;
    }
    return 2;
}
