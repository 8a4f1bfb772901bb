// The only file that includes gloo's headers. They are Debian's, and might not match the gloo in torch, so
// tests/comm_c10d calls every collective.
#include "comm_c10d/gloo_group.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/check.h"
#include "base/interface.h"

namespace zeroshard {
namespace {

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != 0 ? value : otherwise;
}

std::string master_address() {
  return variable("MASTER_ADDR", "127.0.0.1");
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

uint16_t master_port() {
  const std::string text = variable("MASTER_PORT", "29500");
  char* end = nullptr;
  const long port = std::strtol(text.c_str(), &end, 10);
  ZS_CHECK(*end == 0 && port > 0 && port < 65536, "MASTER_PORT is '", text, "', expected 1 to 65535");
  return static_cast<uint16_t>(port);
}

sockaddr_in loopback_address(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Returns a TCP socket that is bound to 127.0.0.1:port (0: any port). Returns -1 and sets errno if that fails.
int bind_to_loopback(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  const sockaddr_in address = loopback_address(port);
  if (fd < 0) return -1;
  if (::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

int listen_on_loopback(uint16_t port) {
  const int fd = bind_to_loopback(port);
  if (fd < 0 || ::listen(fd, 1024) != 0) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    throw CommError(concat("cannot listen on 127.0.0.1:", port, " (MASTER_PORT): ", std::strerror(error)));
  }
  return fd;
}

// Returns whether nobody listens on 127.0.0.1:port. Returns false if that cannot be found out. A socket that gets its
// own port while it connects could get `port`, and would then connect to itself. So the socket is bound to a free port
// first. If that is `port` itself, nobody listens there. SO_REUSEADDR lets other processes listen on the socket's port
// meanwhile.
bool refuses_connections(uint16_t port) {
  const int fd = bind_to_loopback(0);
  if (fd < 0) return false;
  sockaddr_in own{};
  socklen_t size = sizeof own;
  const sockaddr_in address = loopback_address(port);
  const bool refused =
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
      (own.sin_port == address.sin_port ||
       (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 && errno == ECONNREFUSED));
  ::close(fd);
  return refused;
}

// Makes this process ignore SIGPIPE if the signal has its default action. Gloo writes to sockets of peers that might
// have died, and SIGPIPE would then end this process without a message. (Python itself ignores SIGPIPE.)
void ignore_broken_pipes() {
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

// Returns whether all ranks are on this host, according to the variables that torchrun and the command `zeroshard run`
// set.
bool all_ranks_are_here() {
  const std::string here = variable("LOCAL_WORLD_SIZE", "");
  return !here.empty() && here == variable("WORLD_SIZE", "");
}

std::shared_ptr<gloo::transport::Device> make_device() {
  ignore_broken_pipes();
  using Gloo = c10d::ProcessGroupGloo;
  const std::string interface = variable("GLOO_SOCKET_IFNAME", "");
  if (!interface.empty()) return Gloo::createDeviceForInterface(interface);
  if (meets_on_loopback() || all_ranks_are_here()) return Gloo::createDeviceForHostname("127.0.0.1");
  // Gloo's default is the address of this host's own name. It cannot be used, because it is 127.0.1.1 on Debian.
  return Gloo::createDeviceForInterface(interface_towards(master_address()));
}

}  // namespace

bool meets_on_loopback() {
  return is_loopback(master_address());
}

bool reaches_other_hosts() noexcept {
  try {
    const std::string interface = variable("GLOO_SOCKET_IFNAME", "");
    if (!interface.empty()) return interface.find(',') == std::string::npos;
    return !meets_on_loopback() && !interface_towards(master_address()).empty();
  } catch (const std::exception&) {  // it is unknown which interface leads to MASTER_ADDR
    return false;
  }
}

void await_listener_on_loopback(uint16_t port, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (refuses_connections(port) && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

c10::intrusive_ptr<c10d::Store> make_env_store(int rank, int world_size, int64_t timeout_ms) {
  ZS_CHECK(world_size > 0 && rank >= 0 && rank < world_size, "rank is ", rank, ", world_size ", world_size);
  const std::string host = master_address();
  c10d::TCPStoreOptions options;
  options.port = master_port();
  // If this variable is "True", torchrun's agent serves the store at this address, so rank 0 must not.
  const bool agent = variable("TORCHELASTIC_USE_AGENT_STORE", "") == "True";
  options.isServer = rank == 0 && !agent;
  options.numWorkers = static_cast<size_t>(world_size);
  options.waitWorkers = false;  // because a Meeting reports the ranks that did not arrive
  options.timeout = std::chrono::milliseconds(timeout_ms);
  // Uses 127.0.0.1, because "localhost" can resolve to ::1 first, where no process listens.
  const bool loopback = is_loopback(host);
  if (loopback && options.isServer) options.masterListenFd = static_cast<size_t>(listen_on_loopback(options.port));
  // Waits for the listener, because a client of c10d whose connection is refused tries again only after half a second.
  // Ranks of one host start together, so a client often comes before the listener.
  if (loopback && !options.isServer)
    await_listener_on_loopback(options.port, std::min(options.timeout, std::chrono::milliseconds(2000)));
  try {
    return c10::make_intrusive<c10d::TCPStore>(loopback ? "127.0.0.1" : host, options);
  } catch (const c10::Error& error) {
    if (options.isServer) throw;
    throw CommError(
        concat("rank ", rank, ": rank 0 has not come within ", static_cast<double>(timeout_ms) / 1000,
               " s (zeroshard.timeout_s), so nobody serves the store at ", host, ":", options.port,
               ". Look for the first error of rank 0, and check MASTER_ADDR and MASTER_PORT. PyTorch says: ",
               error.what_without_backtrace()));
  }
}

c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                       int world_size, int64_t timeout_ms) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(timeout_ms));
  options->devices.push_back(make_device());
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, world_size);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                    c10::make_intrusive<c10d::ProcessGroupGloo>(
                        c10::make_intrusive<c10d::PrefixStore>("zeroshard/gloo", store), rank, world_size, options));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

std::future<c10::intrusive_ptr<c10d::ProcessGroup>> connect_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                                       const std::string& name, int rank,
                                                                       int world_size, int64_t timeout_ms) {
  std::packaged_task<c10::intrusive_ptr<c10d::ProcessGroup>()> task(
      [store = store->clone(), name, rank, world_size, timeout_ms] {
        return make_gloo_group(c10::make_intrusive<c10d::PrefixStore>(name, store), rank, world_size, timeout_ms);
      });
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

}  // namespace zeroshard
