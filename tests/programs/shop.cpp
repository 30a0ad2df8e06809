// A service with templates and named threads: two workers fill a cache each, a reloader allocates
// and frees large tables in the first half of the run. For the page of `export --format html`.
#include <chrono>
#include <memory>
#include <pthread.h>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace shop {

struct Session {
    std::vector<int> cart;
};

template <class Key, class Value> struct LruCache {
    std::unordered_map<Key, std::shared_ptr<Value>> all;
    template <class Make> [[gnu::noinline]] std::shared_ptr<Value> get_or_make(const Key &key, Make make) {
        auto &held = all[key];
        if (!held) held = make();
        return held;
    }
};

[[gnu::noinline]] void serve(LruCache<std::string, Session> &cache, int id) {
    cache.get_or_make("a key that is too long to be stored inline " + std::to_string(id), [] {
        auto session = std::make_shared<Session>();
        session->cart.resize(100);
        return session;
    });
}

[[gnu::noinline]] void reload() {
    std::vector<std::unique_ptr<std::vector<char>>> tables;
    for (int n = 0; n < 40; n++) tables.push_back(std::make_unique<std::vector<char>>(50000));
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
}

void name_thread(const char *name) { pthread_setname_np(pthread_self(), name); }

} // namespace shop

int main() {
    auto work = [](const char *name) {
        shop::name_thread(name);
        shop::LruCache<std::string, shop::Session> cache;
        for (int id = 0; id < 1000; id++) {
            shop::serve(cache, id);
            if (id % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(4));
        }
    };
    std::thread first(work, "worker-1"), second(work, "worker-2"), reloader([] {
        shop::name_thread("reloader");
        for (int round = 0; round < 3; round++) shop::reload();
    });
    reloader.join();
    first.join();
    second.join();
}
