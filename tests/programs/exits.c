/* Allocates 433 bytes and exits with its argument. */
#include <stdlib.h>
int main(int count, char **arguments) {
    free(malloc(433));
    return count > 1 ? atoi(arguments[1]) : 0;
}
