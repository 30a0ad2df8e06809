/* A function whose allocations move to other lines, one of them added (-DMOVED). */
#include <stdlib.h>

static void *volatile kept[4];

__attribute__((noinline)) static void load(void)
{
#ifdef MOVED
    kept[0] = malloc(70000);
    kept[1] = malloc(90000);
    kept[2] = malloc(110000);
#else
    kept[0] = malloc(7000);
    kept[1] = malloc(9000);
#endif
}

int main(void)
{
    load();
    return 0;
}
