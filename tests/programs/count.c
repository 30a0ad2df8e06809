/* The counting preload: it counts what a process does with its heap, as an independent reference
 * for the recorder's figures. It shares no code and no method with the library under test. It
 * calls glibc's functions by their __libc_ names, uses a radix table from address to size
 * instead of events, and keeps its counters in a file that is mapped shared, so that they are
 * there after _exit, exec and SIGKILL.
 *
 * COUNT_DIR names a folder, in which every process makes a file PID-N of `struct counts`.
 * Without COUNT_DIR nothing is counted. Definitions, as in heaptape: realloc(NULL, n) is an
 * allocation; realloc(p, 0) that frees is a free; failures and free(NULL) are no events; a C++
 * operator is the malloc that it calls. Bytes are the requested sizes of allocations and the new
 * sizes of reallocations. The peak of blocks is the maximum number of blocks at any time,
 * independent of the bytes. A forked child counts from zero; blocks of its parent are
 * `inherited` until it frees them. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void *__libc_valloc(size_t);
extern void *__libc_pvalloc(size_t);
extern void __libc_free(void *);

#define RELAXED memory_order_relaxed
#define MAGIC 0x31544e554f43ull /* "COUNT1" */

/* tests/src/oracle.rs reads this. */
struct counts {
    _Atomic uint64_t magic, pid, ppid;
    _Atomic uint64_t allocs, resizes, frees, bytes;
    _Atomic uint64_t live_blocks, live_bytes, peak_bytes, peak_blocks;
    _Atomic uint64_t inherited_blocks, inherited_bytes, unknown_frees;
    char exe[256];
};

/* State that a forked child must not have: the kernel wipes this page in the child. */
struct own {
    _Atomic(struct counts *) counts;
    _Atomic int attaching;
};

static struct own *own;
static _Atomic int state; /* 0 new, 1 starting, 2 counting, 3 off */
static _Atomic uint64_t generation; /* of this process: one more than its parent's */

/* Address -> generation << 48 | size + 1. A leaf covers 64 KiB of address space. Entries are single
 * words, so that each is consistent at any instant of a fork. */
#define TOP_BITS 17
#define MIDDLE_BITS 14
#define LEAF_BITS 13 /* 8-byte steps */
#define SIZE_MASK ((1ull << 48) - 1)
typedef _Atomic uint64_t leaf[1 << LEAF_BITS];
typedef _Atomic(leaf *) middle[1 << MIDDLE_BITS];
static _Atomic(middle *) top[1 << TOP_BITS];

static void *fresh(size_t bytes) {
    void *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) _exit(125);
    return p;
}

static _Atomic uint64_t *entry(void *block) {
    uintptr_t address = (uintptr_t)block;
    _Atomic(middle *) *t = &top[address >> 30 & ((1 << TOP_BITS) - 1)];
    middle *m = atomic_load(t);
    if (!m) {
        middle *made = fresh(sizeof *made);
        if (atomic_compare_exchange_strong(t, &m, made)) m = made; else munmap(made, sizeof *made);
    }
    _Atomic(leaf *) *u = &(*m)[address >> 16 & ((1 << MIDDLE_BITS) - 1)];
    leaf *l = atomic_load(u);
    if (!l) {
        leaf *made = fresh(sizeof *made);
        if (atomic_compare_exchange_strong(u, &l, made)) l = made; else munmap(made, sizeof *made);
    }
    return &(*l)[address >> 3 & ((1 << LEAF_BITS) - 1)];
}

/* Counts one more or one less block that was inherited from the parent. */
static void inherit(struct counts *c, uint64_t size, int sign) {
    atomic_fetch_add(&c->inherited_blocks, sign);
    atomic_fetch_add(&c->inherited_bytes, sign * size);
}

static void live(struct counts *c, uint64_t size, int sign) {
    atomic_fetch_add(&c->live_blocks, sign);
    atomic_fetch_add(&c->live_bytes, sign * size);
}

static char *digits(char *at, unsigned long n) {
    char text[24], *p = text + sizeof text;
    do *--p = '0' + n % 10; while (n /= 10);
    memcpy(at, p, text + sizeof text - p);
    return at + (text + sizeof text - p);
}

/* Each program has a file. The number distinguishes the programs that one pid executed. */
static struct counts *attach(void) {
    const char *folder = getenv("COUNT_DIR");
    char path[512];
    if (!folder || strlen(folder) > 400) return 0;
    int file = -1;
    for (unsigned long n = 0; n < 1000 && file < 0; n++) {
        strcpy(path, folder);
        char *at = path + strlen(path);
        *at++ = '/';
        at = digits(at, syscall(SYS_getpid));
        *at++ = '-';
        *digits(at, n) = 0;
        file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file < 0 && errno != EEXIST) return 0;
    }
    struct counts *made = 0;
    if (file >= 0 && ftruncate(file, sizeof *made) == 0) {
        void *p = mmap(0, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (p != MAP_FAILED) made = p;
    }
    if (file >= 0) close(file);
    if (made) {
        long n = readlink("/proc/self/exe", made->exe, sizeof made->exe - 1);
        (void)n;
        made->pid = syscall(SYS_getpid);
        made->ppid = syscall(SYS_getppid);
        made->magic = MAGIC;
    }
    return made;
}

/* Returns the counts of this process. A child finds its page wiped, and makes new counts. */
static struct counts *counts(void) {
    int seen = atomic_load(&state);
    if (seen == 2) {
        struct counts *c = atomic_load(&own->counts);
        if (c) return c;
        int nobody = 0;
        if (!atomic_compare_exchange_strong(&own->attaching, &nobody, 1)) {
            while (!(c = atomic_load(&own->counts)) && atomic_load(&state) == 2) ;
            return c;
        }
        c = attach();
        if (!c) { atomic_store(&state, 3); return 0; }
        atomic_fetch_add(&generation, 1);
        /* The blocks in the table are the parent's. */
        for (size_t t = 0; t < 1 << TOP_BITS; t++) {
            middle *m = atomic_load(&top[t]);
            for (size_t u = 0; m && u < 1 << MIDDLE_BITS; u++) {
                leaf *l = atomic_load(&(*m)[u]);
                for (size_t e = 0; l && e < 1 << LEAF_BITS; e++) {
                    uint64_t word = atomic_load_explicit(&(*l)[e], RELAXED);
                    if (word) inherit(c, (word & SIZE_MASK) - 1, 1);
                }
            }
        }
        atomic_store(&own->counts, c);
        return c;
    }
    if (seen == 3) return 0;
    int fresh_state = 0;
    if (!environ) return 0;
    if (!atomic_compare_exchange_strong(&state, &fresh_state, 1)) return counts();
    own = fresh(4096);
    struct counts *c = madvise(own, 4096, MADV_WIPEONFORK) == 0 ? attach() : 0;
    atomic_store(&own->counts, c);
    atomic_store(&state, c ? 2 : 3);
    return c;
}

static void peak(struct counts *c) {
    uint64_t now = atomic_load(&c->live_bytes), blocks = atomic_load(&c->live_blocks);
    uint64_t most = atomic_load(&c->peak_bytes), most_blocks = atomic_load(&c->peak_blocks);
    while (now > most && !atomic_compare_exchange_weak(&c->peak_bytes, &most, now)) ;
    while (blocks > most_blocks && !atomic_compare_exchange_weak(&c->peak_blocks, &most_blocks, blocks)) ;
}

static void *born(void *block, size_t size) {
    int kept = errno;
    struct counts *c = block ? counts() : 0;
    if (c) {
        c->allocs++;
        c->bytes += size;
        live(c, size, 1);
        atomic_store(entry(block), generation << 48 | (size + 1));
        peak(c);
    }
    errno = kept;
    return block;
}

/* Counts the free of a block: of this process, of its parent, or unknown. */
static void gone(struct counts *c, uint64_t word) {
    if (!word) c->unknown_frees++;
    else if (word >> 48 == generation) live(c, (word & SIZE_MASK) - 1, -1);
    else inherit(c, (word & SIZE_MASK) - 1, -1);
}

static void dies(void *block) {
    int kept = errno;
    struct counts *c = block ? counts() : 0;
    if (c) {
        c->frees++;
        gone(c, atomic_exchange(entry(block), 0));
    }
    errno = kept;
}

static void *resized(void *block, size_t size) {
    if (!block) return born(__libc_realloc(0, size), size);
    int kept = errno;
    struct counts *c = counts();
    /* Removed before the call: another thread may get the address while the call runs. */
    uint64_t word = c ? atomic_exchange(entry(block), 0) : 0;
    errno = kept;
    void *now = __libc_realloc(block, size);
    kept = errno;
    if (c) {
        if (!now && size) {
            atomic_store(entry(block), word);
        } else {
            gone(c, word);
            if (!now) {
                c->frees++;
            } else {
                c->resizes++;
                c->bytes += size;
                live(c, size, 1);
                atomic_store(entry(now), generation << 48 | (size + 1));
                peak(c);
            }
        }
    }
    errno = kept;
    return now;
}

void *malloc(size_t size) { return born(__libc_malloc(size), size); }
void *calloc(size_t n, size_t size) { return born(__libc_calloc(n, size), n * size); }
void *realloc(void *block, size_t size) { return resized(block, size); }
void *reallocarray(void *block, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) { errno = ENOMEM; return 0; }
    return resized(block, bytes);
}
void free(void *block) { dies(block); __libc_free(block); }
void cfree(void *block) { dies(block); __libc_free(block); }
/* Functions of C23, which this libc may not have. A search for the next definition of one finds it
 * here. A search without result would allocate its message. */
void free_sized(void *block, size_t size) { (void)size; free(block); }
void free_aligned_sized(void *block, size_t align, size_t size) { (void)align; (void)size; free(block); }
void *memalign(size_t align, size_t size) { return born(__libc_memalign(align, size), size); }
void *aligned_alloc(size_t align, size_t size) { return born(__libc_memalign(align, size), size); }
void *valloc(size_t size) { return born(__libc_valloc(size), size); }
void *pvalloc(size_t size) { return born(__libc_pvalloc(size), size); }
int posix_memalign(void **block, size_t align, size_t size) {
    if (align % sizeof(void *) || !align || align & (align - 1)) return EINVAL;
    int kept = errno;
    void *p = __libc_memalign(align, size);
    errno = kept;
    if (!p) return ENOMEM;
    *block = born(p, size);
    return 0;
}
