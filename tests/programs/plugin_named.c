/* A plugin whose functions have the name NAME: `plugin_entry` leaves COUNT blocks of SIZE bytes,
 * allocated in a function of which no dynamic symbol exists. Plugins with names of the same length
 * differ in that name and the size only, so that their files have the same layout. */
#include <stddef.h>
#include <stdlib.h>
#define PASTED(a, b) a##b
#define FUNCTION(name) PASTED(name, _keeps)
static void *volatile kept;
__attribute__((noinline)) static void *FUNCTION(NAME)(void *(*allocate)(size_t)) {
    char *block = allocate(SIZE);
    kept = block;
    return block;
}
void plugin_entry(void *(*allocate)(size_t), int count) {
    for (int i = 0; i < count; i++) FUNCTION(NAME)(allocate);
}
