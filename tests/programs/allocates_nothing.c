/* Allocates nothing at all. */
#include <unistd.h>
int main(void) { return write(1, "nothing\n", 8) == 8 ? 4 : 1; }
