#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>
#include <vector>

// Orders the streams of a device by events, so that the host never waits. On the CPU all of this does nothing, because
// the work of a call is done when the call returns.
//
// Note [Streams of an engine]
// Compute runs on the stream that is current when the engine is called; autograd runs a backward on the stream of its
// forward. Gathers and reductions each have their own stream of the engine. So neither waits for compute that it does
// not need, and compute does not wait for them. Copies of checkpoints have their own stream, too. Each buffer has a
// StreamUses: the next user of the buffer waits for its earlier users, and for nothing else.
namespace zeroshard {

// Records which streams use a buffer.
class StreamUses {
 public:
  explicit StreamUses(c10::Device device = c10::kCPU) : device_(device) {}

  // The device's current stream starts to use the buffer together with other streams, without waiting for them.
  void share();
  // All uses so far end with the present work of their streams.
  void end();
  // Later work of the current stream runs after all other uses. The current stream is then the only user.
  void take();
  // Returns the current users, for which take() would wait.
  std::vector<c10::Stream> streams() const;

 private:
  struct Use {
    c10::Stream stream;
    c10::Event event;
    bool has_ended = false;  // the use ends with `event`
  };
  Use* find(c10::Stream stream);
  void add(c10::Stream stream);
  void end(Use& use);

  c10::Device device_;
  std::vector<Use> uses_;  // few: one per stream
  // Events for reuse, because creating one is expensive; it may be recorded again after others wait for it.
  std::vector<c10::Event> spare_{};
};

// Later work of the current stream of `device` runs after the event.
void current_stream_waits(c10::Event& event, c10::Device device);
// Keeps the memory of `tensor`, which was allocated on another stream, from being reused before the current stream has
// done its present work.
void outlive_current_stream(const at::Tensor& tensor);
// Frees the memory of `tensor`, which may have been allocated on another stream than the current one. If several
// streams used the memory, the caller must first make the current stream wait for them. An undefined tensor is allowed.
void free_after_current_stream(at::Tensor tensor) noexcept;

// A stream that the engine owns.
class SideStream {
 public:
  // Creates no stream on the CPU. A device without an index means the current one.
  explicit SideStream(c10::Device device);
  // Calls join(), so that memory which the stream uses may be freed afterwards.
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  // Makes the stream current for this thread during its lifetime.
  class Scope {
   public:
    explicit Scope(const SideStream& side) : guard_(side.stream_) {}

   private:
    c10::OptionalStreamGuard guard_;
  };

  // Later work of the current stream runs after the present work of this stream.
  void join() const;
  // Later work of this stream runs after the present work of the current stream.
  void follow() const;
  // Returns an event at the end of this stream's present work. Not on the CPU.
  c10::Event record() const;

 private:
  std::optional<c10::Stream> stream_;
  mutable std::optional<c10::Event> event_;  // event of follow() and join()
};

}  // namespace zeroshard
