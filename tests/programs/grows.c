// Grows for 1.5 s. Argument: how many of ten blocks `list` holds; `other` and `third` share the rest.
#include <stdlib.h>
#include <unistd.h>

struct item {
    struct item *next;
    char text[500];
};

struct item *list, *other, *third;

__attribute__((noinline)) static void grow(struct item **head) {
    struct item *item = calloc(1, sizeof *item);
    item->next = *head;
    *head = item;
}

int main(int count, char **arguments) {
    int of_list = count > 1 ? atoi(arguments[1]) : 10;
    for (int step = 0; step < 150; step++) {
        for (int number = 0; number < 10; number++)
            grow(number < of_list ? &list : number % 2 == 0 ? &other : &third);
        usleep(10000);
    }
    return 0;
}
