/* A library that takes long to load: the program that needs it calls nothing meanwhile. */
#include <time.h>

__attribute__((constructor)) static void load(void) {
    struct timespec long_time = { 1, 600000000 };
    nanosleep(&long_time, 0);
}
