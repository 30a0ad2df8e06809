/* Allocates under the limits with which it was started: 1,000 blocks of 1,000 bytes, and a block
 * of 16 MiB, which it touches if the allocation succeeds. */
#include "own.h"
int main(void) {
    void *p[1000];
    for (int i = 0; i < 1000; i++) must((p[i] = own_malloc(1000)) != 0, "a small block");
    char *big = own_malloc(16 << 20);
    if (big) memset(big, 1, 16 << 20);
    say("big %s\n", big ? "yes" : "no");
    own_free(big);
    for (int i = 0; i < 1000; i++) own_free(p[i]);
    return 0;
}
