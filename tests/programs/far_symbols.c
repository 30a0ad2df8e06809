/* leaks_slowly, whose symbols lie far behind everything that is mapped. */
#include "leaks_slowly.c"
__asm__(".section .far,\"\",@progbits\n.zero 0x40000\n.previous");
