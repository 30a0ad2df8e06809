/* Makes a number of calls that is known, in nested functions, and prints it. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline)) static void *inner(int n) { void *block = malloc(n + 1); return block ? block : 0; }

__attribute__((noinline)) static void *outer(int n) { void *block = inner(n); return (char *)block + (n < 0); }

int main(void)
{
    static void *blocks[1000];
    setvbuf(stdout, 0, _IONBF, 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 1000; i++)
            blocks[i] = outer(i);
        for (int i = 0; i < 1000; i += 10)
            blocks[i] = realloc(blocks[i], 5000);
        for (int i = 0; i < 1000; i++)
            if (round < 2 || i >= 7)
                free(blocks[i]);
    }
    printf("3000 allocations, 300 resizes, 2993 frees\n");
    return 0;
}
