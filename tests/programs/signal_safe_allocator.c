/* An allocator that a signal may interrupt and leave at any instruction: blocks come from one
 * atomic counter and are never reused. Programs that are linked with it may allocate in
 * handlers, and jump out of them, without harm. So every fault that a test finds is heaptape's. */
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#define ROOM ((size_t)64 << 30)
static _Atomic uintptr_t next, end;
static void *take(size_t align, size_t size) {
    if (!atomic_load(&next)) {
        uintptr_t base = (uintptr_t)mmap(0, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), none = 0;
        if (base == (uintptr_t)MAP_FAILED) return 0;
        if (atomic_compare_exchange_strong(&next, &none, base)) atomic_store(&end, base + ROOM); else munmap((void *)base, ROOM);
    }
    if (size > ROOM / 2) { errno = ENOMEM; return 0; }
    if (align < 16) align = 16;
    size_t step = (size + 16 + align + 15) & ~(size_t)15;
    uintptr_t at = atomic_fetch_add(&next, step);
    at = (at + 16 + align - 1) & -align;
    ((size_t *)at)[-1] = size;
    return (void *)at;
}
void *malloc(size_t size) { return take(16, size); }
void *calloc(size_t n, size_t size) { size_t b; if (__builtin_mul_overflow(n, size, &b)) { errno = ENOMEM; return 0; } return take(16, b); }
void *memalign(size_t align, size_t size) { return take(align, size); }
void *aligned_alloc(size_t align, size_t size) { return take(align, size); }
void *valloc(size_t size) { return take(4096, size); }
void *pvalloc(size_t size) { return take(4096, (size + 4095) & ~(size_t)4095); }
int posix_memalign(void **out, size_t align, size_t size) { void *p = take(align, size); if (p) *out = p; return p ? 0 : ENOMEM; }
size_t malloc_usable_size(void *p) { return p ? ((size_t *)p)[-1] : 0; }
void free(void *p) { (void)p; }
void *realloc(void *p, size_t size) {
    if (!p) return take(16, size);
    if (!size) return 0;
    void *q = take(16, size);
    size_t old = malloc_usable_size(p);
    if (q) memcpy(q, p, old < size ? old : size);
    return q;
}
void *reallocarray(void *p, size_t n, size_t size) {
    size_t b;
    if (__builtin_mul_overflow(n, size, &b)) { errno = ENOMEM; return 0; }
    return realloc(p, b);
}
