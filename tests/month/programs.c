/* The programs of a simulated month, by the name under which they are started:
   shop      a service: a base of BYTES, requests, and in one build (-DLEAK) sessions that nobody frees, BYTES a second; until it is killed
   ledger    a job with known sums: COUNT blocks of 100 bytes, of which it keeps each tenth, over MILLISECONDS
   brief     ten blocks of 100 bytes, and the end */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void *volatile kept[1024];

__attribute__((noinline)) void *work(size_t bytes) {
    char *block = malloc(bytes);
    if (block) memset(block, 1, bytes);
    return block;
}

__attribute__((noinline)) void handle_request(unsigned number) {
    free(kept[number % 1024]);
    kept[number % 1024] = work(500);
}

#ifdef LEAK
static void *sessions;

__attribute__((noinline)) void remember_session(size_t bytes) {
    void **session = work(bytes);
    if (!session) return;
    session[0] = sessions;
    sessions = session;
}
#endif

static int shop(size_t base, size_t leak) {
    void *volatile cache = work(base);
#ifdef LEAK
    enum { SESSION = 2048 };
    double leaked = 0;
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
#endif
    for (unsigned number = 0; number < 1000000; number++) {
        handle_request(number);
#ifdef LEAK
        // By the clock, so that a busy machine does not delay the end.
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        double due = (now.tv_sec - begin.tv_sec + (now.tv_nsec - begin.tv_nsec) / 1e9) * leak;
        for (; leaked < due; leaked += SESSION) remember_session(SESSION);
#endif
        usleep(5000);
    }
    return cache == 0 && leak == 0;
}

static int ledger(unsigned count, unsigned milliseconds) {
    for (unsigned number = 0; number < count; number++) {
        void *block = work(100);
        if (number % 10 == 0) kept[number / 10 % 1024] = block; else free(block);
        if (number % 100 == 99) usleep(milliseconds * 1000ul / (count / 100));
    }
    return 0;
}

static int brief(void) {
    for (unsigned number = 0; number < 10; number++) kept[number] = work(100);
    return 0;
}

int main(int argc, char **argv) {
    const char *name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    if (!strcmp(name, "brief")) return brief();
    if (!strcmp(name, "shop") && argc > 2) return shop(strtoul(argv[1], 0, 10), strtoul(argv[2], 0, 10));
    if (!strcmp(name, "ledger") && argc > 2) return ledger(atoi(argv[1]), atoi(argv[2]));
    return 2;
}
