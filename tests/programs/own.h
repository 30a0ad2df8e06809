/* Shared by the target programs: the program itself counts each call of the allocator family by
 * its own_ name, per thread, with a hash over (operation, address, size) that is independent of
 * the order. The counters are in the file OWN_FILE, which is mapped shared, so that they survive
 * SIGKILL and counting allocates nothing. A call is counted after it has returned.
 * tests/src/own.rs reads the file and computes the same hash from a recording. */
#ifndef OWN_H
#define OWN_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))
#define INLINE static inline __attribute__((always_inline, unused))
/* Keeps the caller's frame: after this macro a call is not a tail call. */
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

struct own { uint64_t tid, allocs, resizes, frees, bytes, hash; };
#define OWN_SLOTS 131072
struct own_file { uint64_t magic; _Atomic uint64_t used; struct own slots[OWN_SLOTS]; };
#define OWN_MAGIC 0x314e574full /* "OWN1" */

static struct own_file *own_file;
static struct own own_nobody;
static __thread struct own *own_mine __attribute__((tls_model("initial-exec")));

__attribute__((unused)) static struct own *own_claim(void) {
    static _Atomic int opened;
    int nobody = 0;
    if (atomic_compare_exchange_strong(&opened, &nobody, 1)) {
        const char *path = getenv("OWN_FILE");
        int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
        if (file >= 0 && ftruncate(file, sizeof *own_file) == 0) {
            void *p = mmap(0, sizeof *own_file, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (p != MAP_FAILED) { own_file = p; own_file->magic = OWN_MAGIC; }
        }
        if (file >= 0) close(file);
        atomic_store(&opened, 2);
    }
    while (atomic_load(&opened) != 2) ;
    if (!own_file) return own_mine = &own_nobody;
    uint64_t slot = atomic_fetch_add(&own_file->used, 1);
    own_mine = slot < OWN_SLOTS ? &own_file->slots[slot] : &own_nobody;
    own_mine->tid = syscall(SYS_gettid);
    return own_mine;
}
INLINE struct own *own(void) { return own_mine ? own_mine : own_claim(); }

INLINE uint64_t own_mix(uint64_t op, uint64_t address, uint64_t size) {
    uint64_t x = (address ^ op << 60) * 0x9e3779b97f4a7c15ull + size;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}
/* Volatile stores, word by word: a reader of the file and a signal handler see each step. */
#define OWN_ADD(field, n) (*(volatile uint64_t *)&o->field = o->field + (n))
INLINE void *own_born(void *p, size_t n) {
    if (p) { struct own *o = own(); OWN_ADD(hash, own_mix(1, (uintptr_t)p, n)); OWN_ADD(bytes, n); OWN_ADD(allocs, 1); }
    return p;
}
INLINE void *own_malloc(size_t n) { return own_born(malloc(n), n); }
INLINE void *own_calloc(size_t n, size_t size) { return own_born(calloc(n, size), n * size); }
INLINE void own_free(void *p) {
    if (p) { struct own *o = own(); OWN_ADD(hash, own_mix(3, (uintptr_t)p, 0)); free(p); OWN_ADD(frees, 1); } else free(p);
}
INLINE void *own_realloc(void *old, size_t n) {
    if (!old) return own_born(realloc(0, n), n);
    uintptr_t was = (uintptr_t)old;
    void *p = realloc(old, n);
    struct own *o = own();
    if (p) { OWN_ADD(hash, own_mix(2, (uintptr_t)p, n)); OWN_ADD(bytes, n); OWN_ADD(resizes, 1); }
    else if (!n) { OWN_ADD(hash, own_mix(3, was, 0)); OWN_ADD(frees, 1); }
    return p;
}

/* Prints without stdio, whose buffers would be allocated. */
__attribute__((format(printf, 1, 2), unused)) static void say(const char *format, ...) {
    char text[1024];
    va_list rest;
    va_start(rest, format);
    int n = vsnprintf(text, sizeof text, format, rest);
    va_end(rest);
    for (char *at = text, *end = text + (n < 1023 ? n : 1023); at < end;) {
        ssize_t done = write(1, at, end - at);
        if (done <= 0) break;
        at += done;
    }
}
INLINE void must(int holds, const char *what) {
    if (!holds) { dprintf(2, "target: %s\n", what); _exit(70); }
}
INLINE unsigned long number(int argc, char **argv, int at, unsigned long otherwise) {
    return argc > at ? strtoul(argv[at], 0, 10) : otherwise;
}
INLINE uint64_t rng(uint64_t *s) {
    uint64_t x = *s;
    x ^= x << 13; x ^= x >> 7; x ^= x << 17;
    return *s = x;
}
#endif
