/* Holds 1,000 blocks and replaces ten of them every MS milliseconds (1), until it is killed. */
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    long ms = argc > 1 ? atol(argv[1]) : 1;
    static void *blocks[1000];
    for (unsigned long i = 0;; i++) {
        void **block = &blocks[i * 7919 % 1000];
        free(*block);
        *block = malloc(16 + i * 40503 % 4000);
        if (!*block) abort();
        if (i % 10 == 0) usleep((useconds_t)ms * 1000);
    }
}
