/* Calls the C library's allocator by its own names, past every other one: 9 allocations, 2 resizes,
 * 5 frees, and 4 blocks are left. As a library (-DLIBRARY) it is an allocator that passes its calls on
 * by these names, with jumps. */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t), *__libc_valloc(size_t), *__libc_pvalloc(size_t);
extern void __libc_free(void *);

#ifdef LIBRARY
void *malloc(size_t size) { return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return __libc_calloc(count, size); }
void *realloc(void *block, size_t size) { return __libc_realloc(block, size); }
void free(void *block) { __libc_free(block); }
#else
#define NOT_INLINED __attribute__((noinline, noclone))

NOT_INLINED void *keeps(void) {
    void *volatile block = __libc_malloc(1009);
    return block;
}

int main(void) {
    void *kept[4] = { keeps(), __libc_calloc(3, 100), __libc_realloc(0, 500), __libc_memalign(64, 700) };
    void *freed[5] = { __libc_valloc(10), __libc_pvalloc(20), __libc_malloc(30), __libc_malloc(40), __libc_malloc(50) };
    freed[2] = __libc_realloc(freed[2], 3000);
    freed[3] = __libc_realloc(freed[3], 4000);
    for (int i = 0; i < 4; i++) memset(kept[i], 1, 10);
    for (int i = 0; i < 5; i++) __libc_free(freed[i]);
    __libc_free(0);
    return write(1, "done\n", 5) != 5;
}
#endif
