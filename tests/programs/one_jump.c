// Functions of one instruction: a jump to the C library, through a stub of the linker or the slot
// of the loader.
#include <stdlib.h>
#include <string.h>

#define ALONE __attribute__((noipa))

ALONE char *copy_name(const char *name) { return strdup(name); }
ALONE void *take_block(size_t size) { return malloc(size); }
ALONE void *take_clear(size_t count, size_t size) { return calloc(count, size); }

static void *volatile kept;

ALONE void add_user(void) {
    kept = copy_name("a name of some length");
    __asm__ volatile("");
}

ALONE void add_session(void) {
    kept = take_block(700);
    __asm__ volatile("");
}

ALONE void add_table(void) {
    kept = take_clear(30, 30);
    __asm__ volatile("");
}

ALONE void add_plain(void) {
    kept = strdup("copied without a function of its own");
    __asm__ volatile("");
}

int main(void) {
    for (int turn = 0; turn < 50; turn++) {
        add_user();
        add_session();
        add_table();
        add_plain();
    }
    return 0;
}
