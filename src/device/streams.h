#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>
#include <vector>

// Order between the streams of a device, by events: the host waits for nothing. On the CPU, where the work of a call is
// done when it returns, all of this does nothing.
//
// Note [Streams of an engine]
// Compute runs on the stream that is current when the engine is called; autograd runs a backward on the stream of its
// forward. Gathers and reductions are given to a stream of the engine's own each, so that neither waits for compute
// that it does not need, nor compute for them; copies of checkpoints have one, too. Each buffer has its StreamUses:
// whoever takes it next waits for those who had it before, and for nothing else.
namespace zeroshard {

// The streams that use a buffer.
class StreamUses {
 public:
  explicit StreamUses(c10::Device device = c10::kCPU) : device_(device) {}

  // The device's current stream uses the buffer from now on, beside others, whom it does not wait for.
  void share();
  // The uses so far end with what their streams were given until now.
  void end();
  // What the current stream is given from now on runs after all other uses. It is then the only user.
  void take();
  // All streams that take() would wait for, and the current users.
  std::vector<c10::Stream> streams() const;

 private:
  struct Use {
    c10::Stream stream;
    c10::Event event;
    bool has_ended = false;  // with `event`
  };
  Use* find(c10::Stream stream);
  void add(c10::Stream stream);
  void end(Use& use);

  c10::Device device_;
  std::vector<Use> uses_;            // few: one for each stream
  std::vector<c10::Event> spare_{};  // an event is dear to make, and may be recorded anew once others wait for it
};

// What the current stream of `device` is given from now on runs after the event.
void current_stream_waits(c10::Event& event, c10::Device device);
// The memory of `tensor`, which is made on another stream, is not lent to others before the current one has done what
// it was given.
void outlive_current_stream(const at::Tensor& tensor);
// Frees the memory of `tensor`, which may have been made on another stream than the current one. Whoever frees memory
// that several streams used makes the current one wait for them before. An undefined tensor has none.
void free_after_current_stream(at::Tensor tensor) noexcept;

// A stream of the engine's own.
class SideStream {
 public:
  // None on the CPU. A device without an index is the current one.
  explicit SideStream(c10::Device device);
  // Joins: memory that it uses may be freed afterwards.
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  // The stream is current for this thread as long as this lives.
  class Scope {
   public:
    explicit Scope(const SideStream& side) : guard_(side.stream_) {}

   private:
    c10::OptionalStreamGuard guard_;
  };

  // What the current stream is given from now on runs after what this one was given.
  void join() const;
  // What this one is given from now on runs after what the current stream was given.
  void follow() const;
  // What this one was given so far. Not on the CPU.
  c10::Event record() const;

 private:
  std::optional<c10::Stream> stream_;
  mutable std::optional<c10::Event> event_;  // of follow() and join()
};

}  // namespace zeroshard
