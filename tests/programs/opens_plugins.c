/* Opens libraries that have their own operators (PATH PREFIX each) at the same time, and closes
 * one of them meanwhile. */
#include "own.h"
#include <dlfcn.h>
struct plugin { void *library, *(*takes[2])(unsigned); void (*gives[2])(void *); };
static void *named(void *library, const char *prefix, const char *name) {
    char text[64];
    snprintf(text, sizeof text, "%s%s", prefix, name);
    void *found = dlsym(library, text);
    must(found != 0, text);
    return found;
}
static struct plugin opened(const char *path, const char *prefix) {
    struct plugin plugin = { .library = dlopen(path, RTLD_NOW | RTLD_LOCAL) };
    must(plugin.library != 0, dlerror());
    *(void **)&plugin.takes[0] = named(plugin.library, prefix, "takes");
    *(void **)&plugin.takes[1] = named(plugin.library, prefix, "takes_many");
    *(void **)&plugin.gives[0] = named(plugin.library, prefix, "gives");
    *(void **)&plugin.gives[1] = named(plugin.library, prefix, "gives_many");
    return plugin;
}
static void uses(struct plugin *plugin) {
    for (int i = 0; i < 100; i++)
        for (int many = 0; many < 2; many++) {
            char *block = plugin->takes[many](64);
            must(block != 0, "a block");
            memset(block, i, 64);
            plugin->gives[many](block);
        }
}
int main(int argc, char **argv) {
    must(argc > 4, "two libraries");
    struct plugin first = opened(argv[1], argv[2]);
    uses(&first);
    struct plugin second = opened(argv[3], argv[4]);
    uses(&second);
    uses(&first);
    dlclose(first.library);
    uses(&second);
    first = opened(argv[1], argv[2]);
    uses(&first);
    uses(&second);
    say("each its own\n");
    return 0;
}
