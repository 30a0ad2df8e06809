// A factory in a library: it jumps to a function of the program. Build with -O2.
#include <stddef.h>
void *forge_part(size_t bytes);
__attribute__((noinline)) static void *make_of_steel(size_t bytes) { return forge_part(bytes + 1); }
void *make_part(size_t bytes) { return make_of_steel(bytes); }
