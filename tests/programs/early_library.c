/* A library that allocates as early as possible: in an IFUNC resolver (with -DIFUNC), and in its
 * constructor. */
#include <stdlib.h>
void *volatile early_block;
#ifdef IFUNC
static int real_answer(void) { return 42; }
static int (*resolve(void))(void) { early_block = malloc(1409); return real_answer; }
int answer(void) __attribute__((ifunc("resolve")));
#else
int answer(void) { return 42; }
#endif
__attribute__((constructor(101))) static void earliest(void) { early_block = malloc(1423); free(malloc(1427)); }
__attribute__((destructor(101))) static void last(void) { free(malloc(1429)); early_block = malloc(1433); }
