/* Keeps 1,000 more blocks for each byte that it reads, and then writes the byte back. */
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    char byte;
    while (read(0, &byte, 1) == 1) {
        for (int i = 0; i < 1000; i++) {
            char *volatile block = malloc(24);
            block[0] = 1;
        }
        if (write(1, &byte, 1) != 1) return 1;
    }
    return 0;
}
