// Blocks that are held from memory that children do not get, that other processes may share, or that was
// made read-only, and from nowhere. Argument: a file that is mapped. Then it prints `ready`, and at the end of its input it
// ends, or with a second argument aborts.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PAGE = 4096, COUNT = 20 };

#define OF(NAME, SIZE) __attribute__((noinline)) static void *NAME(void) { return calloc(1, SIZE); }
OF(of_dontfork, 301)
OF(of_wipeonfork, 302)
OF(of_shared_file, 303)
OF(of_private_file, 304)
OF(of_sealed_file, 306)
OF(of_sealed_data, 307)
OF(of_nothing, 305)

static void *sealed[PAGE / sizeof(void *)] __attribute__((aligned(PAGE))) = { sealed };

static void *map(int flags, int file, int advice) {
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, flags, file, 0);
    if (page == MAP_FAILED || (advice && madvise(page, PAGE, advice))) exit(3);
    return page;
}

__attribute__((noinline)) static void plant(void **page, void *(*make)(void)) {
    for (int number = 0; number < COUNT; number++) {
        void *volatile block = make();
        if (page) page[number] = block;
        block = NULL;
    }
}

__attribute__((noinline)) static void scrub(void) {
    volatile char stack[16384];
    memset((void *)stack, 0, sizeof stack);
}

int main(int count, char **arguments) {
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
    setrlimit(RLIMIT_CORE, &limit);
    static char output[PAGE];
    setvbuf(stdout, output, _IOFBF, sizeof output);
    int file = open(arguments[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, PAGE)) return 3;
    plant(map(MAP_PRIVATE | MAP_ANONYMOUS, -1, MADV_DONTFORK), of_dontfork);
    plant(map(MAP_PRIVATE | MAP_ANONYMOUS, -1, MADV_WIPEONFORK), of_wipeonfork);
    plant(map(MAP_SHARED, file, 0), of_shared_file);
    plant(map(MAP_PRIVATE, file, 0), of_private_file);
    void *private = map(MAP_PRIVATE, file, 0);
    plant(private, of_sealed_file);
    plant(sealed, of_sealed_data);
    if (mprotect(private, PAGE, PROT_READ) || mprotect(sealed, PAGE, PROT_READ)) return 3;
    plant(NULL, of_nothing);
    scrub();
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {}
    scrub();
    if (count > 2) abort();
    return 0;
}
