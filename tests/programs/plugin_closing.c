/* A library whose end calls what the program wants. */
#include <stdlib.h>
void (*plugin_at_end)(void);
__attribute__((noinline, noipa)) void plugin_uses(void) { free(malloc(31)); __asm__ volatile("" ::: "memory"); }
__attribute__((destructor)) static void end(void) { if (plugin_at_end) plugin_at_end(); }
