/* A hundred blocks of 107 bytes, half of them freed; the exit status is the first argument. Builds for any libc, dynamic or static. */
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    for (int i = 0; i < 100; i++) { void *volatile p = malloc(107); if (i % 2) free(p); }
    if (write(1, "small\n", 6) != 6) return 1;
    return argc > 1 ? atoi(argv[1]) : 0;
}
