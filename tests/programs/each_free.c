/* Allocates 100 blocks, which each deallocation function frees in part; 17 are kept. 1,000 calls
 * of free(NULL) are no events. */
#include "own.h"
#include <dlfcn.h>
#include <malloc.h>
int main(void) {
    void (*old_free)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "cfree");
    void (*sized)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
    void (*aligned)(void *, size_t, size_t) = (void (*)(void *, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
    (void)old_free;
    void *p[100];
    for (int i = 0; i < 100; i++) p[i] = i % 2 ? malloc(101 + i) : memalign(64, 101 + i);
    for (int i = 0; i < 1000; i++) free(0);
    for (int i = 0; i < 83; i++) {
        if (i % 4 == 1 && sized) sized(p[i], 101 + i);
        else if (i % 4 == 2 && aligned) aligned(p[i], 64, 101 + i);
        else if (i % 8 == 3) must(realloc(p[i], 0) == 0, "realloc to nothing frees");
        else free(p[i]);
    }
    say("done\n");
    return 0;
}
