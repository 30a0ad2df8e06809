/* Pins pages on purpose, and then counts its own memory.
 *
 * Long-lived sessions are scattered between short-lived requests, which are freed: each session keeps its page. A large buffer is never
 * written, another one half. The program waits SECONDS, in which snapshots are taken, and changes nothing. Then it prints what mincore finds:
 * NAME BYTES, one on a line. The last argument "threads" makes four threads do the same, each in an arena of its own.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { REQUESTS = 60000, EVERY = 40, SESSIONS = REQUESTS / EVERY, PAGE = 4096, BUFFER = 24 << 20, THREADS = 4 };

static char *requests[THREADS][REQUESTS];
static char *sessions[THREADS][SESSIONS];
static char *whole, *half;
static char output[1 << 12];

static int is_resident(uintptr_t page) {
    unsigned char resident = 0;
    return mincore((void *)(page * PAGE), PAGE, &resident) == 0 && resident & 1;
}

__attribute__((noinline)) static char *make_session(void) {
    return memset(malloc(80), 1, 80);
}

__attribute__((noinline)) static char *make_request(int number) {
    size_t size = 400 + number % 300;
    return memset(malloc(size), 2, size);
}

__attribute__((noinline)) static char *reserve_buffer(void) {
    return malloc(BUFFER);
}

static void *serve(void *which) {
    size_t thread = (size_t)which;
    for (int i = 0; i < REQUESTS; i++) {
        requests[thread][i] = make_request(i);
        if (i % EVERY == 0) sessions[thread][i / EVERY] = make_session();
    }
    for (int i = 0; i < REQUESTS; i++) free(requests[thread][i]);
    return 0;
}

static long status(const char *name) {
    char line[256];
    long found = 0;
    FILE *file = fopen("/proc/self/status", "r");
    setvbuf(file, NULL, _IONBF, 0);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0) found = atol(line + strlen(name) + 1) * 1024;
    fclose(file);
    return found;
}

int main(int argc, char **argv) {
    int threads = argc > 2 && strcmp(argv[2], "threads") == 0 ? THREADS : 1;
    setvbuf(stdout, output, _IOFBF, sizeof output);
    whole = reserve_buffer();
    half = reserve_buffer();
    memset(half, 3, BUFFER / 2);
    pthread_t others[THREADS];
    for (size_t i = 1; i < (size_t)threads; i++) pthread_create(&others[i], NULL, serve, (void *)i);
    serve(0);
    for (int i = 1; i < threads; i++) pthread_join(others[i], NULL);
    sleep(argc > 1 ? atoi(argv[1]) : 0);

    uint64_t session_bytes = 0, pinned = 0, untouched = 0;
    for (int t = 0; t < threads; t++)
        for (int i = 0; i < SESSIONS; i++) {
            /* A chunk begins 8 bytes before its block. Sessions are 25 KiB apart, so there is one on a page, or it is on two. */
            uintptr_t start = (uintptr_t)sessions[t][i] - 8, end = start + 8 + malloc_usable_size(sessions[t][i]);
            session_bytes += 80;
            for (uintptr_t page = start / PAGE; page <= (end - 1) / PAGE; page++) {
                uintptr_t from = page * PAGE, to = from + PAGE;
                uintptr_t used = (end < to ? end : to) - (start > from ? start : from);
                if (is_resident(page)) pinned += PAGE - used;
            }
        }
    for (char *buffer = whole; buffer; buffer = buffer == whole ? half : NULL)
        for (uintptr_t at = (uintptr_t)buffer; at < (uintptr_t)buffer + BUFFER; at = (at / PAGE + 1) * PAGE) {
            uintptr_t end = (at / PAGE + 1) * PAGE, limit = (uintptr_t)buffer + BUFFER;
            if (!is_resident(at / PAGE)) untouched += (end < limit ? end : limit) - at;
        }
    printf("sessions %llu\npinned %llu\nuntouched %llu\n", (unsigned long long)session_bytes, (unsigned long long)pinned,
           (unsigned long long)untouched);
    printf("resident %ld\n", status("VmRSS:"));
    return 0;
}
