/* One function allocates on two lines: many blocks with short lifetimes, and two that live for
 * the number of milliseconds in the first argument. */
#include <stdlib.h>
#include <time.h>

static void *volatile block;
static void *volatile held[2];

__attribute__((noinline)) static void work(int is_last)
{
    if (is_last) {
        held[0] = malloc(64), held[1] = malloc(64);
        return;
    }
    for (int round = 0; round < 20; round++) {
        block = malloc(32);
        free(block);
    }
}

int main(int count, char **arguments)
{
    long milliseconds = count > 1 ? atol(arguments[1]) : 0;
    struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    work(0);
    work(1);
    for (int round = 0; round < 32; round++) /* One event in 16 has a timestamp. */
        free(malloc(1));
    nanosleep(&pause, 0);
    for (int round = 0; round < 32; round++)
        free(malloc(1));
    free(held[0]), free(held[1]);
    return 0;
}
