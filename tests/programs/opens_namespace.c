/* Loads a library into a namespace of its own, with a C library of its own, which allocates 50 KiB.
 * With -DLIBRARY this is the library. The second argument is how long the program stays, in
 * milliseconds. */
#define _GNU_SOURCE
#include "own.h"
#include <dlfcn.h>
#include <time.h>

#ifdef LIBRARY
void allocates(void) {
    for (int i = 0; i < 50; i++) {
        char *volatile block = malloc(1024);
        must(block != 0, "memory");
        memset(block, 1, 1024);
    }
}
#else
int main(int argc, char **argv) {
    must(argc > 2, "a library and a time");
    free(malloc(100));
    void *library = dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW);
    must(library != 0, "the library");
    void (*allocates)(void) = (void (*)(void))dlsym(library, "allocates");
    must(allocates != 0, "its function");
    allocates();
    long ms = atol(argv[2]);
    struct timespec time = { ms / 1000, ms % 1000 * 1000 * 1000 };
    nanosleep(&time, 0);
    return 0;
}
#endif
