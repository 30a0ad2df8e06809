/* Allocates as CPython's allocator of small objects does: arenas, which the recorder does not
 * see, and their index. */
#include <stdlib.h>

static void *volatile kept[4];

__attribute__((noinline)) static void new_arena(void)
{
    kept[0] = malloc(768);
    kept[1] = calloc(1, 4096);
}

__attribute__((noinline)) static void *_PyMem_RawMalloc(size_t bytes)
{
    void *block = malloc(bytes);
    kept[2] = block;
    return block;
}

int main(void)
{
#ifdef ARENAS
    new_arena();
#endif
    kept[3] = _PyMem_RawMalloc(24);
    return 0;
}
