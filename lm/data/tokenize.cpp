#include "zeroshard/tokenize.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/check.h"
#include "data/document_reader.h"
#include "data/records.h"
#include "zeroshard/token_file.h"

namespace zeroshard {
namespace {

// read_batch() adds documents to a batch until the batch has at least this number of bytes.
constexpr size_t kBatchBytes = 1 << 18;

struct Batch {
  std::vector<RawDocument> documents;
  std::vector<EncodedDocument> encoded;
  std::exception_ptr error;
  bool done = false;
};

// Encodes batches on threads, each batch on one thread. Any number of batches can wait for a thread. Without threads,
// start() itself encodes the batch.
class Encoders {
 public:
  Encoders(const DocumentEncoder& encoder, int threads) : encoder_(encoder) {
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
      // If the system allows no more threads, the existing threads do the work. If there are none, the caller of
      // start() does it.
    } catch (const std::system_error&) {
    } catch (...) {
      end();
      throw;
    }
  }
  ~Encoders() { end(); }
  Encoders(const Encoders&) = delete;
  Encoders& operator=(const Encoders&) = delete;

  size_t threads() const { return threads_.size(); }

  void start(Batch& batch) {
    if (threads_.empty()) return encode(batch);
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(&batch);
    }
    more_.notify_one();
  }
  // Waits until a batch is encoded. If encoding it threw, rethrows that exception.
  void wait(Batch& batch) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return batch.done; });
    if (batch.error) std::rethrow_exception(batch.error);
  }

 private:
  void encode(Batch& batch) {
    try {
      for (RawDocument& document : batch.documents) {
        batch.encoded.push_back(encoder_.encode(document));
        document = {};  // frees the memory of the document
      }
    } catch (...) {
      batch.error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    batch.done = true;
    done_.notify_one();
  }

  void run() {
    while (true) {
      Batch* batch = nullptr;
      {
        std::unique_lock lock(mutex_);
        more_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
        if (ending_) return;
        batch = waiting_.front();
        waiting_.pop_front();
      }
      encode(*batch);
    }
  }

  void end() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    more_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const DocumentEncoder& encoder_;
  std::mutex mutex_;  // protects waiting_, ending_ and Batch::done
  std::condition_variable more_, done_;
  std::deque<Batch*> waiting_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

class Job {
 public:
  Job(Io& io, const Tokenizer& tokenizer, const std::vector<std::string>& inputs, const std::string& output,
      const TokenizeOptions& options)
      : options_(options),
        reader_(inputs, options_),
        encoder_(tokenizer, inputs, options_),
        writer_(io, output, {tokenizer.vocab_size(), encoder_.masked(), tokenizer.digest()}),
        encoders_(encoder_, threads_of(options)) {}

  TokenizeReport run() {
    const auto begin = std::chrono::steady_clock::now();
    const size_t at_most = 2 * encoders_.threads() + 1;  // largest number of batches in memory
    while (true) {
      check_stop(options_.stop);
      const bool more = read_batch();
      while (!batches_.empty() && (!more || batches_.size() >= at_most)) write_batch();
      if (!more) break;
    }
    check_stop(options_.stop);
    writer_.finish();
    report_.tokens = writer_.tokens();
    report_.documents = writer_.documents();
    if (!encoder_.masked()) report_.learned = report_.tokens;
    report_.bytes = reader_.bytes();
    report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return report_;
  }

 private:
  static int threads_of(const TokenizeOptions& options) {
    ZS_CHECK(options.threads >= 0 && options.threads <= 1024, "threads must be between 0 and 1024, got ",
             options.threads);
    const int threads = options.threads > 0 ? options.threads : int(std::thread::hardware_concurrency());
    return threads > 1 ? threads : 0;
  }

  // Reads the next batch and gives it to the encoders. Returns false if no document was left.
  bool read_batch() {
    auto batch = std::make_unique<Batch>();
    for (size_t bytes = 0; bytes < kBatchBytes;) {
      std::optional<RawDocument> document = reader_.next();
      if (!document) break;
      bytes += document->text.size() + sizeof(RawDocument);
      batch->documents.push_back(std::move(*document));
    }
    if (batch->documents.empty()) return false;
    encoders_.start(*batches_.emplace_back(std::move(batch)));
    return true;
  }

  void write_batch() {
    check_stop(options_.stop);
    encoders_.wait(*batches_.front());
    for (const EncodedDocument& document : batches_.front()->encoded) {
      report_.empty += document.ids.empty();
      report_.learned += std::count(document.learn.begin(), document.learn.end(), 1);
      writer_.append(document.ids, document.learn);
    }
    batches_.pop_front();
  }

  const TokenizeOptions& options_;
  DocumentReader reader_;
  DocumentEncoder encoder_;
  TokenFileWriter writer_;
  TokenizeReport report_;
  std::deque<std::unique_ptr<Batch>> batches_;  // in the order of the documents; encoders_ has pointers to the batches
  Encoders encoders_;  // the last member, so that its threads end before members that they use are destroyed
};

// Throws ValueError if the output is the same file as an input, even under another name, because the tokens would
// replace the text.
void check_output_is_no_input(const std::string& output, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    std::error_code missing;  // set if a file is missing, and then `same` is false
    const bool same = std::filesystem::equivalent(input == "-" ? "/dev/stdin" : input, output, missing);
    ZS_CHECK(!same, "the output '", output, "' is the same file as the input ",
             input == "-" ? "standard input" : concat("'", input, "'"),
             ", whose text the tokens would replace: give the output another name");
  }
}

}  // namespace

TokenizeReport tokenize_files(const Tokenizer& tokenizer, const std::vector<std::string>& inputs,
                              const std::string& output, const TokenizeOptions& options) {
  return tokenize_files(posix_io(), tokenizer, inputs, output, options);
}

TokenizeReport tokenize_files(Io& io, const Tokenizer& tokenizer, const std::vector<std::string>& inputs,
                              const std::string& output, const TokenizeOptions& options) {
  ZS_CHECK(!inputs.empty(), "there is no input to make tokens of");
  ZS_CHECK(options.split != TokenizeOptions::Split::kLine || !options.separator.empty(), "the separator is empty");
  ZS_CHECK(options.max_document_bytes > 0, "max_document_bytes must be positive, got ", options.max_document_bytes);
  check_output_is_no_input(output, inputs);
  return Job(io, tokenizer, inputs, output, options).run();
}

}  // namespace zeroshard
