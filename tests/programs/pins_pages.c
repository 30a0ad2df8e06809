/* pins_pages MIB [MILLISECONDS]: two threads allocate MIB mebibytes of blocks of many sizes, and
 * write to them. Of eight blocks seven are freed. It pauses after each step. Prints the anonymous
 * memory that is resident at its most and at the end, beyond that at the start, in bytes. */
#include "own.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
static size_t resident(void) {
    char text[128] = { 0 };
    int file = open("/proc/self/statm", O_RDONLY);
    must(file >= 0 && read(file, text, sizeof text - 1) > 0, "statm");
    close(file);
    unsigned long all, here, shared;
    must(sscanf(text, "%lu %lu %lu", &all, &here, &shared) == 3, "statm");
    return (here - shared) * (size_t)sysconf(_SC_PAGESIZE);
}
struct work { uint64_t seed; size_t wanted; char **blocks; size_t count; };
static void *fills(void *argument) {
    struct work *work = argument;
    for (size_t total = 0; total < work->wanted;) {
        size_t size = rng(&work->seed) % 64 ? 16 + rng(&work->seed) % 2000 : 4096 + rng(&work->seed) % 60000;
        work->blocks[work->count++] = memset(malloc(size), 1, size);
        total += size;
    }
    return 0;
}
static void *thins(void *argument) {
    struct work *work = argument;
    for (size_t i = 0; i < work->count; i++) if (i % 8) free(work->blocks[i]);
    return 0;
}
int main(int argc, char **argv) {
    size_t wanted = (size_t)number(argc, argv, 1, 32) << 20, most = wanted / 16;
    struct work works[2];
    for (int i = 0; i < 2; i++) works[i] = (struct work){ 77 + i, wanted / 2, mmap(0, most * sizeof(char *), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), 0 };
    size_t start = resident(), peak;
    void *(*const steps[])(void *) = { fills, thins };
    for (int step = 0; step < 2; step++) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, steps[step], &works[i]);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
        if (!step) peak = resident();
        usleep((useconds_t)number(argc, argv, 2, 0) * 1000);
    }
    char line[64];
    snprintf(line, sizeof line, "%zu %zu\n", peak - start, resident() - start);
    say(line);
    return 0;
}
