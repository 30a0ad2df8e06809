/* longest SECONDS: pairs of malloc and free, each timed. Prints how many, the longest during which no other program was given the processor,
 * how many of those took over 1 ms, and how often the program waited (voluntary switches). */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 5;
    long long start = now(), end = start + (long long)(seconds * 1e9), longest = 0, before = start;
    long pairs = 0, slow = 0;
    struct rusage was, is;
    getrusage(RUSAGE_THREAD, &was);
    long waited = was.ru_nvcsw;
    while (before < end) {
        void *volatile block = malloc(16 + pairs % 1000);
        free(block);
        long long after = now(), took = after - before;
        pairs++;
        if (took > 20000) {
            getrusage(RUSAGE_THREAD, &is);
            if (is.ru_nivcsw == was.ru_nivcsw) {
                if (took > longest) longest = took;
                slow += took > 1000000;
            }
            was = is;
            after = now();
        }
        before = after;
    }
    getrusage(RUSAGE_THREAD, &is);
    printf("%ld %lld %ld %ld\n", pairs, longest, slow, is.ru_nvcsw - waited);
    return 0;
}
