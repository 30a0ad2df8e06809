/* Writes past the end of a block. A debugging allocator notices it at the free. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
    char *block = malloc(24);
    memset(block, 1, 40);
    free(block);
    puts("not noticed");
    return 0;
}
