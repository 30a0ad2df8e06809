/* Allocates a few times with long pauses, from its only thread: 0.3 s after the first block a large
 * one, which it frees 0.3 s later. */
#include <stdlib.h>
#include <unistd.h>

static void *volatile kept[2];

int main(void) {
    kept[0] = malloc(100);
    usleep(300000);
    kept[1] = malloc(1 << 20);
    usleep(300000);
    free(kept[1]);
    return 0;
}
