/* bursts FILE COUNT: allocates once and waits until FILE exists. Then COUNT times it allocates and
 * frees ten blocks, 100 microseconds apart. */
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    long count = atol(argv[2]);
    volatile char *first = malloc(1000);
    first[0] = 1;
    while (access(argv[1], F_OK)) usleep(10000);
    for (long i = 0; i < count; i++) {
        for (int j = 0; j < 10; j++) {
            volatile char *block = malloc(100 + j);
            block[0] = 1;
            free((void *)block);
        }
        usleep(100);
    }
    return 0;
}
