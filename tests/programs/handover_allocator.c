/* An allocator with a few addresses that are used again at once, without a lock: aligned_alloc of
 * 16 << K returns address K, and free does nothing with it. So only the program decides in which
 * order the threads use an address. All other calls are those of glibc. */
#include <stddef.h>
#define FIRST_SIZE 64
#define ADDRESSES 8
#define STEP 4096
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);
static char pool[ADDRESSES * STEP] __attribute__((aligned(ADDRESSES * STEP)));
void *aligned_alloc(size_t align, size_t size) {
    if (size < FIRST_SIZE || align < 16 || align > 16 << (ADDRESSES - 1)) return __libc_memalign(align, size);
    return pool + STEP * (__builtin_ctzl(align) - 4);
}
void free(void *p) {
    if ((char *)p < pool || (char *)p >= pool + sizeof pool) __libc_free(p);
}
