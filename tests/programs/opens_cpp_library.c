/* A C program that opens a C++ library while it runs: calls of operator new pass through the
 * hook, although the operator was loaded later. */
#include "own.h"
#include <dlfcn.h>
int main(int argc, char **argv) {
    must(argc > 1, "a library");
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    must(library != 0, dlerror());
    void *(*takes)(unsigned) = (void *(*)(unsigned))dlsym(library, "plugin_takes");
    void (*gives)(void *) = (void (*)(void *))dlsym(library, "plugin_gives");
    must(takes && gives, "its functions");
    for (int i = 0; i < 100; i++) gives(takes(7001));
    must(takes(7013) != 0, "a block");
    say("done\n");
    return 0;
}
