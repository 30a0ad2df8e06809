/* Reports blocks as heaptrack's header does: by weak functions, called if they are there. */
#include <stddef.h>

__attribute__((weak)) void heaptrack_report_alloc(void *block, size_t size);
__attribute__((weak)) void heaptrack_report_realloc(void *old, size_t size, void *block);
__attribute__((weak)) void heaptrack_report_free(void *block);

static char pool[1 << 16];

__attribute__((noinline)) static void reports(void)
{
    for (int index = 0; index < 100; index++)
        if (heaptrack_report_alloc)
            heaptrack_report_alloc(pool + 64 * index, 50);
    for (int index = 0; index < 30; index++)
        if (heaptrack_report_realloc)
            heaptrack_report_realloc(pool + 64 * index, 60, pool + 64 * (index + 200));
    for (int index = 90; index < 100; index++)
        if (heaptrack_report_free)
            heaptrack_report_free(pool + 64 * index);
}

int main(void)
{
    reports();
    return 0;
}
