// A service with two faults of C++ that no leak checker shows well: requests and sessions own each
// other (a cycle of shared_ptr), and a cache of prices has no bound. It also makes and frees a
// string for each line of a response.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace shop {

struct Request;

struct Session {
  std::shared_ptr<Request> last;
  std::vector<std::string> history;
};

struct Request {
  std::shared_ptr<Session> session;
};

struct PriceCache {
  std::unordered_map<int, std::string> prices;
  const std::string &get(int item) {
    auto found = prices.find(item);
    if (found == prices.end())
      found = prices.emplace(item, std::string(200, 'p')).first;
    return found->second;
  }
};

std::string render(int line) { return "line " + std::to_string(line) + std::string(60, ' '); }

std::size_t handle(PriceCache &cache, int item) {
  auto session = std::make_shared<Session>();
  auto request = std::make_shared<Request>();
  request->session = session;
  session->last = request;
  session->history.push_back("a customer who looked at item " + std::to_string(item));
  std::size_t size = cache.get(item).size();
  for (int line = 0; line < 4; line++)
    size += render(line).size();
  return size;
}

} // namespace shop

int main() {
  std::size_t size = 0;
  shop::PriceCache cache;
  for (int item = 0; item < 12000; item++) {
    size += shop::handle(cache, item);
    if (item % 400 == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return size == 0;
}
