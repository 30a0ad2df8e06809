/* Opens each library that it is given and keeps it open, with one block of its own. */
#include "own.h"
#include <dlfcn.h>
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        void *library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        must(library != 0, dlerror());
        ((void (*)(void *(*)(size_t), int))dlsym(library, "plugin_entry"))(malloc, 1);
    }
    return 0;
}
