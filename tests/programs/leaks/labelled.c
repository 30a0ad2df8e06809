/* Small programs with known leaks: one for each mode, which the first argument names. What a
 * mode keeps, it allocates in a function of that name. `noise` allocates blocks that are freed
 * immediately, as every program does. A program makes 200 steps of 1 ms, a slow one of 60 ms,
 * writes to FILE how many milliseconds its longest step took, and waits for two minutes. A marked
 * one does not sleep, and allocates a block of 13 bytes instead. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 200 };
#define SITE __attribute__((noipa))

static long pause_ns = 1000000;
static int is_marked;
static long longest_step;
static void *volatile kept;

SITE static void noise(void) {
    for (int i = 0; i < 50; i++) {
        void *volatile block = malloc(24 + (i & 7) * 16);
        free(block);
    }
}

SITE static void base(void) { kept = malloc(256 << 10); }

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void pauses(int steps) {
    if (!is_marked) {
        static long last;
        nanosleep(&(struct timespec){0, steps * pause_ns}, NULL);
        long now = now_ms();
        if (last && (now - last) / steps > longest_step) longest_step = (now - last) / steps;
        last = now;
        return;
    }
    for (int i = 0; i < steps; i++) { void *volatile mark = malloc(13); free(mark); }
}

static void step(void) { noise(); pauses(1); }

/* Leaks that grow during the whole run. */
SITE static void linear(void) { kept = malloc(48); }
static void run_linear(void) { for (int i = 0; i < STEPS; i++) { for (int k = 0; k < 5; k++) linear(); step(); } }

SITE static void copied_text(void) { kept = strdup("a name that nobody frees"); }
static void run_text(void) { for (int i = 0; i < STEPS; i++) { copied_text(); copied_text(); step(); } }

SITE static void half_freed(int i) {
    void *volatile block = malloc(56);
    if (i % 2) free(block); else kept = block;
}
static void run_half(void) { for (int i = 0; i < STEPS; i++) { for (int k = 0; k < 6; k++) half_freed(k); step(); } }

SITE static void rare(void) { kept = malloc(100); }
static void run_rare(void) { for (int i = 0; i < STEPS; i++) { if (i % 22 == 7) rare(); step(); } }

SITE static void rare_path(int i) {
    void *volatile block = malloc(72);
    if (i % 97) free(block); else kept = block;
}
static void run_rare_path(void) {
    int n = 0;
    for (int i = 0; i < STEPS; i++) { for (int k = 0; k < 40; k++) rare_path(n++); step(); }
}

SITE static void alone(void) { kept = malloc(88); }
static void run_alone(void) {
    for (int i = 0; i < STEPS / 10; i++) { alone(); alone(); pauses(10); }
}

SITE static void built_text(void) {
    char *text = NULL;
    for (int n = 1; n <= 5; n++) text = realloc(text, (size_t)n * 40);
    kept = text;
}
static void run_built_text(void) { for (int i = 0; i < STEPS; i++) { built_text(); built_text(); step(); } }

SITE static void arena_chunk(void) { kept = malloc(65536); }
static void run_arena(void) { for (int i = 0; i < STEPS; i++) { if (i % 5 == 0) arena_chunk(); step(); } }

SITE static void *thread_state(void *unused) {
    (void)unused;
    kept = malloc(144);
    kept = malloc(144);
    return NULL;
}
static void run_threads(void) {
    for (int i = 0; i < STEPS; i++) {
        pthread_t thread;
        if (i % 4 == 0 && pthread_create(&thread, NULL, thread_state, NULL) == 0) pthread_join(thread, NULL);
        step();
    }
}

/* A queue that is filled faster than it is emptied. */
SITE static void *backlog(void) { return malloc(64); }
static void run_backlog(void) {
    static void *queue[STEPS * 10];
    int in = 0, out = 0;
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < 10; k++) queue[in++] = backlog();
        for (int k = 0; k < 7; k++) free(queue[out++]);
        step();
    }
}

/* A full cache, and a leak in its eviction. */
enum { CACHE = 64 };
static void *cache[CACHE];
static unsigned cache_at;
SITE static void *entry(size_t size) { return malloc(size); }
static void run_cache(void) {
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < 5; k++) {
            free(cache[cache_at % CACHE]);
            cache[cache_at++ % CACHE] = entry(80);
        }
        step();
    }
}

SITE static void *mixed_entry(size_t size) { return malloc(size); }
static void run_mixed_cache(void) {
    unsigned random = 12345;
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < 8; k++) {
            random = random * 1103515245 + 12345;
            unsigned at = random >> 16;
            /* Entries 0 to 7 are used so often that they are never evicted. */
            at = i == 0 && k < 8 ? (unsigned)k : 8 + at % (CACHE - 8);
            free(cache[at]);
            cache[at] = mixed_entry(64 + random % 64);
        }
        step();
    }
}

SITE static void *lost_entry(void) { return malloc(80); }
static void run_behind_cache(void) {
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < 5; k++) {
            /* One eviction in seventy forgets to free. */
            if (cache_at % 70 != 69) free(cache[cache_at % CACHE]);
            cache[cache_at++ % CACHE] = lost_entry();
        }
        step();
    }
}

/* Blocks that are allocated in one phase of the run and kept. */
SITE static void table(void) { kept = malloc(4096); }
static void run_table(void) { for (int i = 0; i < STEPS; i++) { if (i == 3) table(); step(); } }

SITE static void setup(void) { kept = malloc(40); }
static void run_setup(void) { for (int i = 0; i < 1200; i++) setup(); for (int i = 0; i < STEPS; i++) step(); }

SITE static void burst(void) { kept = malloc(40); }
static void run_burst(void) {
    for (int i = 0; i < STEPS; i++) { if (i >= 60 && i < 75) for (int k = 0; k < 50; k++) burst(); step(); }
}

SITE static void plugin(void) { kept = malloc(2000); }
static void run_plugin(void) { for (int i = 0; i < STEPS; i++) { if (i == 185) plugin(); step(); } }

SITE static void late(void) { kept = malloc(40); }
static void run_late(void) {
    for (int i = 0; i < STEPS; i++) { if (i >= 190 && i < 194) for (int k = 0; k < 150; k++) late(); step(); }
}

SITE static void pool(void) { kept = malloc(512); }
static void run_pool(void) { for (int i = 0; i < STEPS; i++) { if (i < 60) for (int k = 0; k < 6; k++) pool(); step(); } }

SITE static void *reset_arena(void) { return malloc(65536); }
static void run_reset_arena(void) {
    static char *chunk[8];
    for (int i = 0; i < STEPS; i++) {
        if (!chunk[i % 8]) chunk[i % 8] = reset_arena();
        memset(chunk[i % 8], i, 64);
        step();
    }
}

/* Containers. */
SITE static void *array(size_t size) { return malloc(size); }
static void run_array(void) {
    size_t room = 16, used = 0;
    char *data = array(room);
    for (int i = 0; i < STEPS; i++) {
        if ((used += 60) > room) {
            char *larger = array(room * 2);
            memcpy(larger, data, room);
            free(data);
            data = larger;
            room *= 2;
        }
        step();
    }
    kept = data;
}

SITE static void *buffer(void *old, size_t size) { return realloc(old, size); }
static void run_buffer(void) {
    void *data = NULL;
    for (int i = 0; i < STEPS; i++) { data = buffer(data, (size_t)(i + 1) * 96); step(); }
    kept = data;
}

/* Several containers at once, which exist from the start. */
SITE static void *column(void *old, size_t size) { return realloc(old, size); }
static void run_columns(void) {
    static void *columns[12];
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < 12; k++) if ((i + k) % 10 == 0 || i == 0) columns[k] = column(columns[k], (size_t)(i + 10) * 32);
        step();
    }
}

/* Blocks that are freed, but only when the program ends. */
SITE static void *session(void) { return malloc(120); }
static void run_exit(void) {
    static void *all[STEPS * 5];
    int n = 0;
    for (int i = 0; i < STEPS; i++) { for (int k = 0; k < 5; k++) all[n++] = session(); step(); }
    while (n > 0) free(all[--n]);
}

/* Blocks that are in use when a signal ends the program. */
SITE static void *request(void) { return malloc(300); }
static void run_killed(void) {
    for (int i = 0; i < STEPS; i++) {
        void *volatile a = request(), *volatile b = request();
        step();
        if (i == STEPS - 1) raise(SIGKILL);
        free(a);
        free(b);
    }
}

SITE static void *batch(void) { return malloc(96); }
static void run_batch(void) {
    static void *items[400];
    int n = 0;
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < 8; k++) items[n++] = batch();
        step();
        if (i % 25 == 20) while (n > 0) free(items[--n]);
    }
}

/* Nothing is live at the end. */
SITE static void *tidy(void) { return malloc(500); }
static void run_tidy(void) {
    for (int i = 0; i < STEPS; i++) { void *volatile block = tidy(); step(); free(block); }
}

/* Children that inherit blocks of their parent and leak blocks of their own. */
SITE static void parents(void) { kept = malloc(32); }
SITE static void children(void) { kept = malloc(64); }
static void run_fork(void) {
    for (int i = 0; i < 600; i++) parents();
    for (int child = 0; child < 2; child++) {
        pid_t pid = fork();
        if (pid == 0) {
            for (int i = 0; i < STEPS; i++) { for (int k = 0; k < 4; k++) children(); step(); }
            _exit(0);
        }
        if (pid > 0) waitpid(pid, NULL, 0);
        if (is_marked) pauses(STEPS);
    }
}

static const struct { const char *name; void (*run)(void); } modes[] = {
    {"linear", run_linear}, {"copied_text", run_text}, {"half_freed", run_half}, {"rare", run_rare}, {"rare_path", run_rare_path},
    {"alone", run_alone}, {"built_text", run_built_text}, {"arena_chunk", run_arena}, {"thread_state", run_threads},
    {"backlog", run_backlog}, {"entry", run_cache}, {"mixed_entry", run_mixed_cache}, {"lost_entry", run_behind_cache},
    {"table", run_table}, {"setup", run_setup}, {"burst", run_burst}, {"plugin", run_plugin}, {"late", run_late}, {"pool", run_pool},
    {"reset_arena", run_reset_arena}, {"array", run_array}, {"buffer", run_buffer}, {"column", run_columns}, {"session", run_exit},
    {"request", run_killed}, {"batch", run_batch}, {"tidy", run_tidy}, {"children", run_fork},
};

int main(int argc, char **argv) {
    is_marked = argc > 2 && strcmp(argv[2], "marked") == 0;
    if (argc > 2 && !is_marked) pause_ns = 60000000;
    for (size_t i = 0; argc > 1 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(modes[i].name, argv[1]) != 0) continue;
        base();
        modes[i].run();
        if (argc > 3) {
            FILE *file = fopen(argv[3], "w");
            if (!file || fprintf(file, "%ld", longest_step) < 1 || fclose(file)) return 3;
        }
        if (argc > 2 && strcmp(argv[2], "slow") == 0) sleep(120);
        return 0;
    }
    fprintf(stderr, "labelled MODE [marked|slow [FILE]]\n");
    return 2;
}
