/* Uses one address three times, prints it, and ends with the third block live. The block of the
 * first argument's size is too large for malloc's caches of threads, so that its memory is used
 * again. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline)) static char *first_user(void) { return malloc(3000); }
__attribute__((noinline)) static char *second_user(void) { return calloc(1, 3000); }
__attribute__((noinline)) static char *third_user(void) { return malloc(2990); }

int main(void) {
    char *volatile barrier = malloc(10);
    char *block = first_user();
    unsigned long address = (unsigned long)block;
    char *volatile other = malloc(10);
    free(block);
    block = second_user();
    unsigned long again = (unsigned long)block;
    free(block);
    block = third_user();
    printf("%lx %d\n", address, address == again && again == (unsigned long)block);
    return barrier == other;
}
