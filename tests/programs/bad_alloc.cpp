// operator new fails 1,000 times: the new handler is called first, then the exception passes
// through the hook and is caught.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>
#include <unistd.h>
static int asked;
static void handler() { if (++asked % 3 == 0) std::set_new_handler(nullptr); }
struct Guard { int *count; ~Guard() { ++*count; } };
__attribute__((noinline, noipa)) void *wants(size_t n, int *unwound) { Guard guard{unwound}; return operator new(n); }
int main() {
    int caught = 0, unwound = 0, nothing = 0;
    for (int i = 0; i < 1000; i++) {
        std::set_new_handler(handler);
        try { free(wants(size_t(1) << 62, &unwound)); } catch (const std::bad_alloc &) { caught++; }
        if (!operator new(size_t(1) << 61, std::nothrow)) nothing++;
        try { std::vector<int> v; v.resize(size_t(1) << 60); } catch (const std::exception &) { caught++; }
        delete new int(i);
    }
    char text[100];
    int n = snprintf(text, sizeof text, "caught %d, unwound %d, nothing %d, asked %d\n", caught, unwound, nothing, asked);
    return write(1, text, n) == n && caught == 2000 && unwound == 1000 && nothing == 1000 ? 0 : 1;
}
