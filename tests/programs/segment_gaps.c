/* Allocates at the end of known chains of calls, in a program and in a library (the first
 * argument) that were linked with gaps between their segments. With a second argument, the address
 * of a gap in the program, it also calls code that it has made there.
 * 2,003 bytes in the program, 2,011 in the library, 2,017 through the code in the gap. */
#include "own.h"
#include <dlfcn.h>

typedef void *takes(void *(*)(size_t), size_t);

NOINLINE static void *inner(size_t size) {
    void *p = malloc(size);
    KEEP_FRAME();
    return p;
}
NOINLINE static void *middle(size_t size) {
    volatile char frame[72];
    frame[0] = frame[71] = 1;
    void *p = inner(size);
    KEEP_FRAME();
    return p;
}
NOINLINE static void *outer(size_t size) {
    volatile char frame[200];
    frame[0] = frame[199] = 1;
    void *p = middle(size);
    KEEP_FRAME();
    return p;
}
NOINLINE static void through_gap(uintptr_t at) {
    /* push rbp; mov rbp, rsp; call rsi; pop rbp; ret */
    static const unsigned char code[] = { 0x55, 0x48, 0x89, 0xe5, 0xff, 0xd6, 0x5d, 0xc3 };
    void *p = mmap((void *)at, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    must(p == (void *)at, "the gap is free");
    memcpy(p, code, sizeof code);
    must(!mprotect(p, 4096, PROT_READ | PROT_EXEC), "code");
    must(((void *(*)(size_t, void *(*)(size_t)))p)(2017, inner) != 0, "a block");
    KEEP_FRAME();
}
int main(int argc, char **argv) {
    extern const char __ehdr_start;
    must(outer(2003) != 0, "a block");
    if (argc > 1 && *argv[1]) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        must(library != 0, dlerror());
        takes **function = (takes **)dlsym(library, "plugin_takes");
        must(function != 0, "its function");
        must((*function)(malloc, 2011) != 0, "a block");
    }
    if (argc > 2) through_gap((uintptr_t)&__ehdr_start + strtoul(argv[2], 0, 0));
    return 0;
}
