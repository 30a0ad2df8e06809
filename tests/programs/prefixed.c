/* An allocator whose functions have a prefix (-DPREFIX=je_), with those that the jemalloc in Redis 8
 * has besides. All are called a known number of times: 61 allocations, 40 resizes, 60 frees, and one
 * of 4,321 bytes is left. With -DLIBRARY it is a library; else with an argument the program opens
 * that library, and calls its allocator instead of its own. The prefix may be empty (-DPREFIX=): then
 * the names are those of libc, and only this file sees its functions. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOIN(prefix, name) prefix##name
#define WITH(prefix, name) JOIN(prefix, name)
#define NAME(name) WITH(PREFIX, name)
#define NOT_INLINED __attribute__((noinline, noclone, visibility("hidden")))

/* What jemalloc's messages begin with. */
__attribute__((used)) static const char message[] = "<jemalloc>: Error in munmap()\n";

/* -DNEEDS: the library needs a variable that only the program has, as modules of Python do. */
#if defined(NEEDS) && defined(LIBRARY)
extern int only_the_program_has_it;
int *needed = &only_the_program_has_it;
#elif defined(NEEDS)
int only_the_program_has_it;
#endif

static char buffer[1 << 20] __attribute__((aligned(16)));
static size_t used;

static void *next(size_t size) {
    void *block = buffer + used;
    used += (size + 15) / 16 * 16;
    return used <= sizeof buffer ? block : NULL;
}

/* Only jemalloc has such a function. */
NOT_INLINED __attribute__((used)) int NAME(mallctl)(void) { return 0; }

NOT_INLINED void *NAME(malloc)(size_t size) { return next(size); }
NOT_INLINED void NAME(free)(void *block) { __asm__ volatile("" : : "r"(block)); }
NOT_INLINED void *NAME(malloc_with_usize)(size_t size, size_t *usable) {
    *usable = size;
    return next(size);
}
NOT_INLINED void *NAME(calloc_with_usize)(size_t count, size_t size, size_t *usable) {
    *usable = count * size;
    return NAME(malloc)(count * size);
}
NOT_INLINED void *NAME(realloc_with_usize)(void *block, size_t size, size_t *old, size_t *usable) {
    *old = block != NULL;
    *usable = size;
    return next(size);
}
NOT_INLINED void NAME(free_with_usize)(void *block, size_t *usable) {
    *usable = block != NULL;
    __asm__ volatile("" : : "r"(block));
}

__attribute__((noinline)) void leaves_one(void) {
    size_t usable;
    void *volatile left = NAME(malloc_with_usize)(4321, &usable);
    (void)left;
}

void calls_all(void) {
    size_t old, usable;
    for (int i = 0; i < 10; i++) {
        void *block = NAME(malloc)(100);
        for (int j = 0; j < 4; j++) block = NAME(realloc_with_usize)(block, 200, &old, &usable);
        NAME(free_with_usize)(block, &usable);
    }
    for (int i = 0; i < 20; i++) NAME(free)(NAME(malloc_with_usize)(300, &usable));
    for (int i = 0; i < 30; i++) NAME(free_with_usize)(NAME(calloc_with_usize)(3, 100, &usable), &usable);
    leaves_one();
    /* A block of libc's malloc, so that a stack goes through this file. */
    char *volatile other = strdup("a copy");
    (void)other;
}

#ifndef LIBRARY
int main(int argc, char **argv) {
    void (*call)(void) = calls_all;
    if (argc > 1) {
        void *library = dlopen(argv[1], RTLD_NOW);
        call = library ? (void (*)(void))dlsym(library, "calls_all") : NULL;
        if (!call) return 1;
    }
    call();
    return write(1, "done\n", 5) != 5;
}
#endif
