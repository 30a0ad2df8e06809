// A library that a Python script calls through ctypes.
#include <stdlib.h>
static void *volatile kept;
void *keep_rows(size_t bytes) {
    kept = malloc(bytes);
    return kept;
}
