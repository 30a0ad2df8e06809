// Leaks by functions that the optimizer inlines: a template's member and a lambda into `shop::session_for`, which allocates
// on several lines, and a lambda into a thread's start.
#include <chrono>
#include <thread>
#include <unistd.h>

namespace shop {

struct Session {
    char *name;
    int *items;
};

template <class Value> class Cache {
    Value *entries[20000] = {};

public:
    template <class Make> Value *get_or_make(int key, Make make) {
        if (!entries[key])
            entries[key] = make();
        return entries[key];
    }
};

Cache<Session> cache;

__attribute__((noinline)) Session *session_for(int key) {
    Session *session = cache.get_or_make(key, [key] {
        Session *made = new Session;
        made->name = new char[40 + key % 8];
        return made;
    });
    session->items = new int[25];
    return session;
}

} // namespace shop

int main() {
    std::thread thread([] {
        for (int at = 0; at < 20000; at++) {
            int *extra = new int[50];
            extra[0] = *shop::session_for(at)->name;
            if (at % 100 == 0)
                std::this_thread::sleep_for(std::chrono::milliseconds(6));
        }
    });
    thread.join();
    _exit(0);
}
