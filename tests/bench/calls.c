/* calls [CHUNKS]: nanoseconds of a pair of malloc and free, the least and the median of chunks of 20,000 pairs. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int chunks = argc > 1 ? atoi(argv[1]) : 500;
    double *times = calloc(chunks, sizeof *times);
    for (int c = 0; c < chunks; c++) {
        double start = now();
        for (int i = 0; i < 20000; i++) {
            void *volatile block = malloc(64);
            free(block);
        }
        times[c] = (now() - start) / 20000;
    }
    qsort(times, chunks, sizeof *times, order);
    printf("%.3f %.3f\n", times[0], times[chunks / 2]);
    free(times);
    return 0;
}
