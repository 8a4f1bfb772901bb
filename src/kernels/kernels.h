#pragma once
#include <cstdint>
#include <span>

#include "zeroshard/dtype.h"

// One-pass CPU kernels over flat memory. Each runs on the calling thread over the given range; callers split ranges
// among threads. Results depend only on the elements, not on the instruction set or on how a range was split. `DType`
// arguments are fp32, bf16 or fp16; others throw ValueError. Pointers may be unaligned; alignment only makes kernels
// faster. Rounding is to nearest even. 16-bit NaNs are written as 0x7fc0 (bf16) and 0x7e00 (fp16); the sign and payload
// of an fp32 NaN depend on the processor.
namespace zeroshard::kernels {

// dst[i] = round(float(src[i]) * scale). src and dst do not overlap (or are identical with equal dtypes).
void pack(const void* src, DType src_dtype, void* dst, DType dst_dtype, float scale, int64_t numel);
// dst[i] = round(float(dst[i]) + float(src[i]) * scale).
void pack_add(const void* src, DType src_dtype, void* dst, DType dst_dtype, float scale, int64_t numel);

// out[i] = round((pieces[0][i] + pieces[1][i] + ...) * scale), summed in fp32 in the order of `pieces`, one rounding.
// With `accumulate`: out[i] = round(float(out[i]) + that sum * scale). `out` may be one of the pieces.
void sum_in_order(std::span<const void* const> pieces, DType dtype, float scale, void* out, DType out_dtype,
                  bool accumulate, int64_t numel);

// A sum in fp64, and the sum of the rounding errors of its additions.
struct TwofoldSum {
  double sum = 0, rest = 0;
};
// Sum of squares. Squares are rounded to a grid on which their sums are exact, and the rounding errors are summed
// separately (as in Rump, Ogita and Oishi, "Accurate floating-point summation", SIAM J. Sci. Comput. 31, 2008). 70 to
// 80 bits of a range of 2^15 elements are right, at least 57 of any range. So the parts of a range that is cut
// elsewhere add up to the same double, except once in millions of times. The order of additions does not depend on the
// instruction set. Not finite if an element is not finite.
TwofoldSum sum_of_squares(const void* data, DType dtype, int64_t numel);

// Random numbers by which moments are rounded to bf16: a function of the element's number and the key alone, so that
// they do not depend on what is updated together. Elements 2^32 apart share theirs.
struct RandomBits {
  uint64_t key = 0;           // another one for each parameter and step
  int64_t first_element = 0;  // the number of the first element of the range
};
// The key of one step of the parameter with this hash of its name.
uint64_t random_key(uint64_t parameter, int64_t step);

// The inputs of every optimizer kernel besides its own hyper-parameters.
struct StepBuffers {
  float* master = nullptr;     // fp32 weights, updated in place
  const void* grad = nullptr;  // `grad_dtype`
  DType grad_dtype = DType::kFloat32;
  void* param = nullptr;  // receives round(master) in `param_dtype`; null when master is the parameter
  DType param_dtype = DType::kBFloat16;
  float grad_scale = 1;  // gradients are multiplied by this first: 1 / loss scale, times the clip factor
  int64_t numel = 0;
  // Or bf16, rounded at random; or kOther1, 8-bit codes. Then the range begins with a block of kScaledNumel elements of
  // one parameter, and has elements of that parameter alone.
  DType moment_dtype = DType::kFloat32;
  RandomBits random = {};      // with bf16
  float* scales[2] = {};       // with codes: of each moment, one for each block
  bool takes_written = false;  // for a device's kernels: a master that does not round to `param` becomes it
};

// The formulas and the order of operations are those of torch.optim (2.13), per element in fp32.
struct AdamArgs {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled_weight_decay = true;  // AdamW
  bool bias_correction = true;
  bool maximize = false;
  int64_t step = 1;  // 1 for the first update
};
// Moments are of the dtype that the buffers name.
void adam(const StepBuffers& buffers, void* exp_avg, void* exp_avg_sq, const AdamArgs& args);

// Values as 8-bit codes, with one scale for each kScaledNumel elements: see Note [The dynamic map]. The first moment of
// an optimizer is signed, the second one is not.
struct CodedValues {
  void* codes = nullptr;
  float* scales = nullptr;
  bool is_signed = true;
};
// The values of elements `begin` to `end`, counted from the first of the codes.
void decode(CodedValues from, int64_t begin, int64_t end, float* to);
// Values that decode() has given become codes that give them again. The last block may be incomplete.
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

// The instruction set that run-time dispatch chose: "avx512", "avx2", "neon" or "scalar". ZEROSHARD_ISA overrides it if
// it names one of these that the processor has (tests compare their bits).
const char* instruction_set();

}  // namespace zeroshard::kernels
