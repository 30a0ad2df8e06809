/* 100 blocks of 1,000 bytes are lost. A block of 256 bytes lies where a block of 264 bytes was, whose
 * last word, behind the new one's end, pointed to one of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *volatile holders[100];
static char *volatile last;

__attribute__((noinline)) static char *target(void) { return memset(malloc(1000), 0, 1000); }
__attribute__((noinline)) static char **earlier(void) { return malloc(264); }
__attribute__((noinline)) static char *holder(void) { return memset(malloc(256), 0, 256); }

int main(void) {
    for (int i = 0; i < 100; i++) {
        char **block = earlier();
        ((char *volatile *)block)[32] = target();
        free(block);
        holders[i] = holder();
    }
    last = 0;
    puts("100 lost");
    return 0;
}
