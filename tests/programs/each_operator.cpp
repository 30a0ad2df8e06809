// Allocates one block with each form of operator new, which is never freed, and another that one
// of the forms of operator delete frees. Sizes are primes.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <unistd.h>
#define NOINLINE __attribute__((noinline, noclone, noipa))
using std::align_val_t;
using std::nothrow;
#define TAKES(name, call) extern "C" NOINLINE void *name() { void *p = call; __asm__ volatile("" ::: "memory"); return p; }
TAKES(takes_new, operator new(5003))
TAKES(takes_new_array, operator new[](5009))
TAKES(takes_new_nothrow, operator new(5011, nothrow))
TAKES(takes_new_array_nothrow, operator new[](5021, nothrow))
TAKES(takes_new_aligned, operator new(5023, align_val_t(64)))
TAKES(takes_new_array_aligned, operator new[](5039, align_val_t(128)))
TAKES(takes_new_aligned_nothrow, operator new(5051, align_val_t(256), nothrow))
TAKES(takes_new_array_aligned_nothrow, operator new[](5059, align_val_t(512), nothrow))
int main() {
    void *kept[] = { takes_new(), takes_new_array(), takes_new_nothrow(), takes_new_array_nothrow(), takes_new_aligned(),
        takes_new_array_aligned(), takes_new_aligned_nothrow(), takes_new_array_aligned_nothrow() };
    for (void *p : kept) if (!p) abort();
    const align_val_t a{64};
    operator delete(operator new(61));
    operator delete[](operator new[](67));
    operator delete(operator new(71), 71ul);
    operator delete[](operator new[](73), 73ul);
    operator delete(operator new(79, nothrow), nothrow);
    operator delete[](operator new[](83, nothrow), nothrow);
    operator delete(operator new(89, a), a);
    operator delete[](operator new[](97, a), a);
    operator delete(operator new(101, a), 101ul, a);
    operator delete[](operator new[](103, a), 103ul, a);
    operator delete(operator new(107, a, nothrow), a, nothrow);
    operator delete[](operator new[](109, a, nothrow), a, nothrow);
    operator delete(nullptr);
    return write(1, "done\n", 5) == 5 ? 0 : 1;
}
