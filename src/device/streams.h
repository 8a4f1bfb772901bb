#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>
#include <vector>

// Classes that order the streams of a device by events, so that the host never waits. On the CPU they do nothing,
// because the work of a call is done when the call returns.
//
// Note [Streams of an engine]
// Compute runs on the stream that is current when the engine is called. Autograd runs a backward on the stream of its
// forward. The engine has one stream for gathers and one for reductions. A gather or a reduction waits only for the
// compute that it needs. Compute waits only for the gathers of the parameters that it uses. Each Mover has a stream of
// its own for copies between the device and the host. Each buffer has a StreamUses, by which the next user of the
// buffer waits for its earlier users, and for nothing else.
namespace zeroshard {

// Records which streams use a buffer.
class StreamUses {
 public:
  explicit StreamUses(c10::Device device = c10::kCPU) : device_(device) {}

  // Says that the device's current stream starts to use the buffer, without waiting for the other streams that use it.
  void share();
  // Says that every use so far ends when its stream has done the work that is queued on it now.
  void end();
  // Makes later work of the current stream wait for all other uses. The current stream is then the only user.
  void take();
  // Returns the streams that have used the buffer since the last take(), and the stream of that take().
  std::vector<c10::Stream> streams() const;

 private:
  struct Use {
    c10::Stream stream;
    c10::Event event;
    bool has_ended = false;  // whether the use ends with `event`
  };
  Use* find(c10::Stream stream);
  void add(c10::Stream stream);
  void end(Use& use);

  c10::Device device_;
  std::vector<Use> uses_;  // few, because each stream has one at most
  // Events that are used again, because creating one is expensive. An event can be recorded again as soon as other
  // streams have been told to wait for it.
  std::vector<c10::Event> spare_{};
};

// Makes later work of the current stream of `device` wait for the event.
void current_stream_waits(c10::Event& event, c10::Device device);
// Prevents the memory of `tensor`, which was allocated on another stream, from being reused before the current stream
// has done its present work.
void outlive_current_stream(const at::Tensor& tensor);
// Drops `tensor`. If no other tensor uses its memory, the memory is freed once the current stream has done its present
// work. On the CPU, it is freed immediately. The memory can be from another stream. If several streams used the memory,
// the caller must first make the current stream wait for them. `tensor` may be undefined.
void free_after_current_stream(at::Tensor tensor) noexcept;

// A stream that the engine owns.
class SideStream {
 public:
  // On the CPU, creates no stream. A device without an index means the current one.
  explicit SideStream(c10::Device device);
  // Calls join(), so that memory which the stream uses can be freed afterwards.
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  // Makes the stream current for this thread for the lifetime of the Scope.
  class Scope {
   public:
    explicit Scope(const SideStream& side) : guard_(side.stream_) {}

   private:
    c10::OptionalStreamGuard guard_;
  };

  // Makes later work of the current stream wait for the present work of this stream.
  void join() const;
  // Makes later work of this stream wait for the present work of the current stream.
  void follow() const;
  // Returns an event that completes with this stream's present work. Must not be called on the CPU.
  c10::Event record() const;

 private:
  std::optional<c10::Stream> stream_;
  mutable std::optional<c10::Event> event_;  // used by follow() and join()
};

}  // namespace zeroshard
