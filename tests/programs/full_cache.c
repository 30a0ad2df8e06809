/* full_cache BLOCKS MS: fills a cache of BLOCKS blocks of 500 bytes, and then replaces its oldest
 * block again and again, MS milliseconds apart. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((noinline)) static char *entry(void) {
    volatile char *block = malloc(500);
    block[0] = 1;
    return (char *)block;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    long blocks = atol(argv[1]), ms = atol(argv[2]);
    char **cache = calloc((size_t)blocks, sizeof *cache);
    for (long i = 0; i < blocks; i++) cache[i] = entry();
    for (long i = 0;; i++) {
        free(cache[i % blocks]);
        cache[i % blocks] = entry();
        usleep((useconds_t)ms * 1000);
    }
}
