/* Calls an allocator in a shared library by the names that no C library has: jemalloc's `mallocx`
 * and its kin or, with MIMALLOC, `mi_malloc` and `mi_free`. Prints its own counts of allocations,
 * resizes and frees. */
#include <stdio.h>
#include <stdlib.h>
#ifdef MIMALLOC
void *mi_malloc(size_t size);
void mi_free(void *block);
#define TAKE(size) mi_malloc(size)
#define DROP(block) mi_free(block)
#define GROW(block, size) (block)
#define RESIZES 0
#else
void *mallocx(size_t size, int flags);
void *rallocx(void *block, size_t size, int flags);
void dallocx(void *block, int flags);
void sdallocx(void *block, size_t size, int flags);
#define TAKE(size) mallocx(size, 0)
#define DROP(block) (i % 2 ? dallocx(block, 0) : sdallocx(block, 2011, 0))
#define GROW(block, size) rallocx(block, size, 0)
#define RESIZES 1
#endif
int main(void) {
    int allocs = 0, resizes = 0, frees = 0;
    for (int i = 0; i < 100; i++) {
        void *block = GROW(TAKE(1009), 2011);
        allocs++, resizes += RESIZES;
        if (i < 70) DROP(block), frees++;
    }
    /* Blocks that the library's `malloc` allocates or frees are the same. */
    for (int i = 0; i < 20; i++) {
        free(TAKE(3001));
        void *block = malloc(2011);
        if (block) DROP(block);
        allocs += 2, frees += 2;
    }
    char line[64];
    int length = snprintf(line, sizeof line, "%d %d %d\n", allocs, resizes, frees);
    return fwrite(line, 1, length, stderr) == (size_t)length ? 0 : 1;
}
