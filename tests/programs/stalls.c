/* THREADS threads (1) allocate and free without pause until the file END exists. Each call that
 * takes MS milliseconds (1,000) or longer is reported as a line "thread milliseconds" in the
 * file STALLS. Exits with 7. */
#include "own.h"
#include <pthread.h>
#include <time.h>

static const char *end;
static long limit;
static int stalls;

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static void *work(void *thread) {
    long last = now();
    for (unsigned long i = 0; i % 4096 || access(end, F_OK); i++) {
        own_free(own_malloc(16 + i % 1000));
        long time = now();
        if (time - last >= limit) {
            char line[64];
            int length = snprintf(line, sizeof line, "%ld %ld\n", (long)thread, time - last);
            must(write(stalls, line, (size_t)length) == length, "a line");
        }
        last = time;
    }
    return thread;
}

int main(int argc, char **argv) {
    must(argc == 5, "THREADS MS END STALLS");
    unsigned long threads = number(argc, argv, 1, 1);
    limit = (long)number(argc, argv, 2, 1000);
    end = argv[3];
    stalls = open(argv[4], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    must(stalls >= 0 && threads >= 1 && threads <= 64, "a file, and 1 to 64 threads");
    pthread_t id[64];
    for (unsigned long i = 0; i < threads; i++) must(!pthread_create(&id[i], 0, work, (void *)i), "a thread");
    for (unsigned long i = 0; i < threads; i++) pthread_join(id[i], 0);
    say("%lu threads\n", threads);
    return 7;
}
