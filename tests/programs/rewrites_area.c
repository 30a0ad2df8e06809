/* A thread writes random bytes to the memory that the process shares with the recorder, for the
 * given number of milliseconds (1,000), while another thread allocates. The program itself may
 * fail. */
#include "own.h"
#include <pthread.h>
#include <time.h>
static char *low, *high;
static volatile int over;
static void *scribbles(void *none) {
    uint64_t x = 88172645463325252ull;
    while (!over) {
        x ^= x << 13; x ^= x >> 7; x ^= x << 17;
        /* All but the first words of the header: without those the library would detach. */
        size_t at = 256 + (x >> 8) % (size_t)(high - low - 264);
        *(volatile uint64_t *)(low + at) = x & 1 ? x : x & 2 ? 0 : ~0ull;
    }
    return none;
}
int main(int argc, char **argv) {
    free(malloc(10));
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[600];
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (!low && strstr(line, "memfd:") && sscanf(line, "%lx-%lx rw-s", &from, &to) == 2 && strstr(line, "rw-s"))
            low = (char *)from, high = (char *)to;
    }
    if (maps) fclose(maps);
    if (!low) { say("no memory is shared\n"); return 0; }
    pthread_t id;
    must(!pthread_create(&id, 0, scribbles, 0), "a thread");
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        for (int i = 0; i < 100; i++) free(malloc(20 + i));
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < (long)number(argc, argv, 1, 1000));
    over = 1;
    pthread_join(id, 0);
    say("rewritten\n");
    _exit(0);
}
