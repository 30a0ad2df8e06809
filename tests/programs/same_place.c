/* Opens and closes two libraries alternately at the same address, ROUNDS times (100). A function
 * of each allocates a block that is never freed: 1,601 bytes in the first library, 1,607 bytes
 * in the second. Prints the number of addresses at which they were mapped. */
#include "own.h"
#include <dlfcn.h>
typedef void *takes(void *(*)(size_t), size_t);
int main(int argc, char **argv) {
    must(argc > 2, "two libraries");
    unsigned long rounds = number(argc, argv, 3, 100), same = 0;
    void *before = 0;
    for (unsigned long i = 0; i < rounds * 2; i++) {
        void *library = dlopen(argv[1 + i % 2], RTLD_NOW | RTLD_LOCAL);
        must(library != 0, dlerror());
        takes **function = (takes **)dlsym(library, "plugin_takes");
        must(function != 0, "its function");
        same += before == (void *)*function;
        before = (void *)*function;
        must((*function)(malloc, i % 2 ? 1607 : 1601) != 0, "a block");
        for (int k = 0; k < 5; k++) free((*function)(malloc, 1609));
        dlclose(library);
    }
    say("%s\n", same > rounds ? "same place" : "different places");
    return 0;
}
