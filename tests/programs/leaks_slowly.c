/* leaks_slowly COUNT MS [SIZE [DEATH]]: COUNT times, MS milliseconds apart, it leaks a block of
 * SIZE bytes (1,000) and allocates and frees 7 blocks. With DEATH it ends by abort. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((noinline)) static void keeps(size_t size) {
    volatile char *block = malloc(size);
    block[0] = 1;
}
__attribute__((noinline)) static void uses(void) {
    for (int i = 0; i < 7; i++) {
        volatile char *block = malloc(4000 + i);
        block[0] = 1;
        free((void *)block);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    long count = atol(argv[1]), ms = atol(argv[2]);
    size_t size = argc > 3 ? (size_t)atol(argv[3]) : 1000;
    for (long i = 0; i < count; i++) {
        keeps(size);
        uses();
        usleep((useconds_t)ms * 1000);
    }
    if (argc > 4) abort();
    return 0;
}
