/* Allocates and frees small blocks as fast as it can, from its only thread. */
#include <stdlib.h>

static void *volatile block;

int main(void) {
    for (int i = 0; i < 200000; i++) {
        block = malloc(100);
        free(block);
    }
    return 0;
}
