#pragma once
#include <cstdint>
#include <span>

#include "zeroshard/dtype.h"

// Declares CPU kernels that make one pass over flat memory. Each kernel runs on the calling thread over the given
// range; callers split ranges among threads. Results do not depend on the instruction set. They do not depend on how a
// range is split either, except for those of sum_of_squares(). `DType` arguments are fp32, bf16 or fp16, except for
// StepBuffers::moment_dtype. Other values throw ValueError. Pointers may be unaligned, but aligned pointers make
// kernels faster. Rounding is to nearest even, except for moments in bf16. 16-bit NaNs are written as 0x7fc0 (bf16) and
// 0x7e00 (fp16). The sign and payload of an fp32 NaN depend on the processor.
namespace zeroshard::kernels {

// Computes dst[i] = round(float(src[i]) * scale). src and dst must not overlap, unless they are the same memory with
// the same dtype.
void pack(const void* src, DType src_dtype, void* dst, DType dst_dtype, float scale, int64_t numel);
// Computes dst[i] = round(float(dst[i]) + float(src[i]) * scale).
void pack_add(const void* src, DType src_dtype, void* dst, DType dst_dtype, float scale, int64_t numel);

// Computes out[i] = round((pieces[0][i] + pieces[1][i] + ...) * scale). The sum is in fp32, by the tree of Note [The
// tree of a sum] over `pieces`, and only the result is rounded to `out_dtype`. With `accumulate` the result is out[i] =
// round(float(out[i]) + sum * scale). `out` may be one of the pieces.
void sum_in_order(std::span<const void* const> pieces, DType dtype, float scale, void* out, DType out_dtype,
                  bool accumulate, int64_t numel);

// A sum in fp64, and the sum of the rounding errors of its additions. The value of both together is sum + rest.
struct TwofoldSum {
  double sum = 0, rest = 0;
};
// Returns the sum of squares. Squares are rounded to a grid on which their sums are exact, and the rounding errors are
// summed separately (as in Rump, Ogita and Oishi, "Accurate floating-point summation", SIAM J. Sci. Comput. 31, 2008).
// The result has 70 to 80 correct bits for a range of 2^15 elements, and at least 57 for any range. A double has 53
// bits, so the sums of the parts of a range add up to the same double wherever the range is cut, except once in
// millions of times. The order of additions does not depend on the instruction set. The result is not finite if an
// element is not finite.
TwofoldSum sum_of_squares(const void* data, DType dtype, int64_t numel);

// The random numbers for the stochastic rounding of moments to bf16. A number depends only on the key and the element's
// position, so it does not matter which elements are updated together. Elements 2^32 apart get the same number.
struct RandomBits {
  uint64_t key = 0;           // differs for each parameter and step
  int64_t first_element = 0;  // number of the first element of the range within the parameter
};
// Returns the key for one step of one parameter. `parameter` is the hash of its name.
uint64_t random_key(uint64_t parameter, int64_t step);

// The inputs that every optimizer kernel has besides its own hyper-parameters.
struct StepBuffers {
  float* master = nullptr;     // fp32 weights, updated in place
  const void* grad = nullptr;  // has dtype `grad_dtype`
  DType grad_dtype = DType::kFloat32;
  void* param = nullptr;  // receives round(master) in `param_dtype`; null if master is the parameter
  DType param_dtype = DType::kBFloat16;
  float grad_scale = 1;  // factor of the gradients: 1 / loss scale, times the clip factor
  int64_t numel = 0;
  // The moments are in fp32, in bf16 (rounded stochastically) or in kCodes. With kCodes, the range begins at a block of
  // kScaledNumel elements, and all elements of the range belong to one parameter.
  DType moment_dtype = DType::kFloat32;
  RandomBits random = {};      // for bf16
  float* scales[2] = {};       // for kCodes: for each moment, one scale per block
  bool takes_written = false;  // on a device: first replaces weights that do not round to `param` by `param`
};

// Adam, SGD and Adagrad use the formulas and the order of operations of torch.optim (2.13). All optimizers compute each
// element in fp32. Moments have dtype `buffers.moment_dtype`.
struct AdamArgs {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled_weight_decay = true;  // AdamW
  bool bias_correction = true;
  bool maximize = false;
  int64_t step = 1;  // 1 for the first update
};
void adam(const StepBuffers& buffers, void* exp_avg, void* exp_avg_sq, const AdamArgs& args);

// Values as 8-bit codes, with one scale for each kScaledNumel elements; see Note [The dynamic map]. The codes of an
// optimizer's first or only moment are signed. The second moment has codes without a sign.
struct CodedValues {
  void* codes = nullptr;
  float* scales = nullptr;
  bool is_signed = true;
};
// Writes the values of the elements [begin, end) to `to`. Elements are counted from the first code.
void decode(CodedValues from, int64_t begin, int64_t end, float* to);
// Encodes values. If decode() made all values of a block, decoding its new codes gives the same values. The last block
// may be incomplete.
void encode(const float* values, int64_t numel, CodedValues to);

struct SgdArgs {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
  bool first_step = false;  // momentum = grad, without dampening
};
void sgd(const StepBuffers& buffers, void* momentum_buffer /* null when momentum is 0 */, const SgdArgs& args);

struct LionArgs {
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
};
void lion(const StepBuffers& buffers, void* exp_avg, const LionArgs& args);

struct AdagradArgs {
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, eps = 1e-10;
  bool maximize = false;
  int64_t step = 1;
};
void adagrad(const StepBuffers& buffers, void* sum, const AdagradArgs& args);

// Returns the instruction set of the kernels: "avx512", "avx2", "neon" or "scalar". It is the best one of this
// processor, unless the environment variable ZEROSHARD_ISA names another one that this processor has. Tests use the
// variable to compare bits.
const char* instruction_set();

}  // namespace zeroshard::kernels
