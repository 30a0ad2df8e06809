/* heaptape.h: what only a program itself knows about its memory.
 *
 * heaptape records the heap of unmodified programs. With this header a program adds what cannot be
 * seen from outside: blocks of its own arenas and pools, marks in time, and labels of threads.
 * There is no library to link. While the program is not recorded, each call is a load and two
 * branches, and its arguments are not evaluated.
 *
 * A text has at most 56 bytes and is copied; a longer one is truncated. It should not be unique for
 * each call: there are at most 4,095 different names of heaps and labels in a process.
 *
 * This file may be copied into any program, under the terms of MIT-0: use, copy, modify, and
 * distribute it for any purpose, without any conditions. It comes without any warranty. */
#ifndef HEAPTAPE_H
#define HEAPTAPE_H

#include <stddef.h>

#define HEAPTAPE_API_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* A report. The layout and the numbers are those of the recording library and never change. */
struct heaptape_event {
    unsigned kind;
    const char *text;
    const volatile void *block;
    size_t size;
    const volatile void *old;
};

/* The function of the recording library. Linkers bind the name of one that they do not see to null, and
 * `dlsym` allocates, so the first call in each source file looks for the library by its name. A note in
 * it says where the address is. The structures are the loader's (dl_iterate_phdr(3)). */
#if defined(__linux__) && defined(__LP64__) && defined(__GNUC__)                                      \
    && (defined(__x86_64__) || defined(__aarch64__))
typedef void heaptape_function_(const struct heaptape_event *);
struct heaptape_segment_ {
    unsigned type, flags;
    size_t offset, start, physical, file_size, size, alignment;
};
struct heaptape_object_ {
    size_t base;
    const char *name;
    const struct heaptape_segment_ *segments;
    unsigned short count;
};
__attribute__((weak)) int heaptape_objects_(int (*)(void *, size_t, void *), void *) __asm__("dl_iterate_phdr");
static __inline__ int heaptape_look_(void *of, size_t of_size, void *found) {
    const struct heaptape_object_ *object = (const struct heaptape_object_ *)of;
    unsigned i;
    (void)of_size;
    if (!object->name || !__builtin_strstr(object->name, "libheaptape"))
        return 0;
    for (i = 0; i < object->count; i++) {
        const struct heaptape_segment_ *segment = &object->segments[i];
        const unsigned *note = (const unsigned *)(object->base + segment->start);
        size_t left = segment->type == 4 && segment->alignment == 4 ? segment->size / 4 : 0, size;
        /* The sizes of the name and of the text, a type, the name, the text. */
        for (; left >= 7; note += size, left -= size) {
            if (note[0] == 9 && note[3] == 0x70616568 && note[4] == 0x65706174 && note[5] == 0) {
                *(void **)found = *(void *const *)((size_t)&note[6] + (size_t)(long)(int)note[6]);
                return 1;
            }
            size = 3 + ((size_t)note[0] + 3) / 4 + ((size_t)note[1] + 3) / 4;
            if (size > left)
                break;
        }
    }
    return 0;
}
static __inline__ heaptape_function_ *heaptape_found_(void) {
    static void *found; /* its own address, if there is none */
    void *function = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (!function) {
        if (heaptape_objects_)
            heaptape_objects_(heaptape_look_, &function);
        if (!function)
            function = &found;
        __atomic_store_n(&found, function, __ATOMIC_RELAXED);
    }
    return function == &found ? (heaptape_function_ *)0 : __extension__(heaptape_function_ *)function;
}
#define HEAPTAPE_FUNCTION_ heaptape_found_()
#endif

#ifdef HEAPTAPE_FUNCTION_
#define HEAPTAPE_REPORT_(kind, text, block, size, old)                                            \
    do {                                                                                           \
        if (HEAPTAPE_FUNCTION_) {                                                                  \
            const struct heaptape_event heaptape_event_ = {(kind), (text), (block), (size), (old)}; \
            HEAPTAPE_FUNCTION_(&heaptape_event_);                                                  \
        }                                                                                          \
    } while (0)
#else
#define HEAPTAPE_REPORT_(kind, text, block, size, old)                                            \
    do {                                                                                           \
        (void)(text), (void)(block), (void)(size), (void)(old);                                    \
    } while (0)
#endif

#ifdef __cplusplus
}
#endif

/* Blocks of the program's own allocators. `heap` is the name of the heap, or null for none.
 *
 * The memory of the arena itself, if it comes from malloc, is a block of its own: see
 * heaptape_pool. Report an allocation after it was made, and a free before the memory may be used
 * again. */

/* A new block of a heap. */
#define heaptape_alloc(heap, block, size) HEAPTAPE_REPORT_(1u, heap, block, size, 0)
/* A block that replaces `old`, at the same address or at another one. */
#define heaptape_realloc(heap, old, block, size) HEAPTAPE_REPORT_(2u, heap, block, size, old)
/* A block is free. */
#define heaptape_free(block) HEAPTAPE_REPORT_(3u, (const char *)0, block, 0, 0)
/* All reported blocks are free that begin in this range. */
#define heaptape_free_range(start, size) HEAPTAPE_REPORT_(4u, (const char *)0, start, size, 0)
/* All blocks of a heap are free. */
#define heaptape_reset(heap) HEAPTAPE_REPORT_(5u, heap, 0, 0, 0)
/* A block, from malloc or another allocator, whose parts are reported as blocks from now on. It
 * counts as 0 bytes, so that nothing is counted twice. The blocks in it are free when it is. */
#define heaptape_pool(block) HEAPTAPE_REPORT_(6u, (const char *)0, block, 0, 0)

/* A mark: a named point in time, for all threads. */
#define heaptape_mark(name) HEAPTAPE_REPORT_(7u, name, 0, 0, 0)

/* All events of the calling thread have the label, until it is removed. Labels nest. */
#define heaptape_label_push(name) HEAPTAPE_REPORT_(8u, name, 0, 0, 0)
#define heaptape_label_pop() HEAPTAPE_REPORT_(9u, (const char *)0, 0, 0, 0)

/* Continues and stops the recording of the calling thread. A block that is freed meanwhile counts
 * as live. Both leave a mark. */
#define heaptape_start() HEAPTAPE_REPORT_(10u, (const char *)0, 0, 0, 0)
#define heaptape_stop() HEAPTAPE_REPORT_(11u, (const char *)0, 0, 0, 0)

#endif
