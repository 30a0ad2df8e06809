/* A service of a simulated host: a cache, requests, and in one build (-DLEAK) sessions that nobody frees. service NUMBER: runs until
   the file that is named by the second argument exists, at most for a minute. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef LEAK
static void *sessions;

__attribute__((noinline)) void remember_session(size_t bytes) {
    void **session = malloc(bytes);
    session[0] = sessions;
    sessions = session;
}
#endif

static void *volatile kept[64];

__attribute__((noinline)) void handle_request(unsigned number) {
    free(kept[number % 64]);
    kept[number % 64] = malloc(500);
}

__attribute__((noinline)) void *make_cache(size_t bytes) { return malloc(bytes); }

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    void *volatile cache = make_cache(100000 + 1000 * strtoul(argv[1], 0, 10));
    for (unsigned number = 0; number < 64; number++) handle_request(number);
    for (unsigned number = 0; number < 12000 && access(argv[2], F_OK) != 0; number++) {
        handle_request(number);
#ifdef LEAK
        remember_session(2048);
#endif
        usleep(5000);
    }
    return cache == 0;
}
