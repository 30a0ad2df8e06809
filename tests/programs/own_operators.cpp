// Replaces the plain forms of the operators. The others are the run-time's, which call these.
// Prints how many calls have come here.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <unistd.h>
static unsigned long taken, given;
void *operator new(size_t size) { taken++; return malloc(size + 16); }
void operator delete(void *block) noexcept { given++; free(block); }
template <typename T> static T *kept(T *block) { __asm__ volatile("" : "+r"(block) : : "memory"); return block; }
int main() {
    for (int i = 0; i < 1000; i++) {
        operator delete(kept(operator new(50)));
        operator delete[](kept(operator new[](60)));
        operator delete(kept(operator new(70, std::nothrow)), std::nothrow);
        operator delete[](kept(operator new[](80, std::nothrow)), 80ul);
        operator delete(kept(operator new(90)), 90ul);
    }
    char text[80];
    int n = snprintf(text, sizeof text, "taken %lu, given %lu\n", taken, given);
    return write(1, text, n) == n ? 0 : 1;
}
