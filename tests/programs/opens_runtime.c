/* Calls the operators of a C++ run-time through a library. It is linked (-DLINKED), or the one that
 * is named is opened and closed a few times, and its addresses made unreadable each time. Prints
 * how many calls of an operator reached the run-time each time. */
#include "own.h"
#include <dlfcn.h>
#include <link.h>
#define COUNT 1000
unsigned long plugin_uses(unsigned long count);
static int keep_mapped(struct dl_phdr_info *info, size_t size, void *kept) {
    (void)size;
    if (!strstr(info->dlpi_name, "libplugin_runtime.so") && !strstr(info->dlpi_name, "libstdc++.so.6")) return 0;
    ((uintptr_t *)kept)[++*(uintptr_t *)kept] = info->dlpi_addr;
    return 0;
}
int main(int argc, char **argv) {
#ifdef LINKED
    (void)argc, (void)argv, (void)keep_mapped;
    say("%lu\n", plugin_uses(COUNT));
#else
    must(argc > 1, "a library");
    for (int round = 0; round < 3; round++) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        must(library != 0, dlerror());
        unsigned long (*uses)(unsigned long) = (unsigned long (*)(unsigned long))dlsym(library, "plugin_uses");
        must(uses != 0, "its function");
        say("%lu\n", uses(COUNT));
        uintptr_t mapped[8] = { 0 };
        dl_iterate_phdr(keep_mapped, mapped);
        must(mapped[0] == 2, "the library and the run-time");
        dlclose(library);
        for (uintptr_t i = 1; i <= mapped[0]; i++)
            must(mmap((void *)mapped[i], 4096 * 5, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != MAP_FAILED, "it is closed");
    }
#endif
    return 0;
}
