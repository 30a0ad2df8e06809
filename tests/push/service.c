/* A service that does one step for each line of its input: keep() allocates 100 blocks of 1,000 bytes that stay, work() 50 blocks of 64
   bytes that do not. It answers each line with its number. */
#include <stdio.h>
#include <stdlib.h>

static void *volatile kept;
static void *volatile current;

__attribute__((noinline)) void keep(void) {
    for (int number = 0; number < 100; number++) {
        void **block = malloc(1000);
        if (!block) return;
        block[0] = kept;
        kept = block;
    }
}

__attribute__((noinline)) void work(void) {
    for (int number = 0; number < 50; number++) {
        current = malloc(64);
        free(current);
    }
}

int main(void) {
    char line[64];
    for (int number = 1; fgets(line, sizeof line, stdin); number++) {
        keep();
        work();
        printf("%d\n", number);
        fflush(stdout);
    }
    return 0;
}
