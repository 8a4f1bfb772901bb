#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/rows.h"

// The kernels of one instruction set, or of a device. There is one function for each kernel and combination of dtypes.
// The kernels of rows take only fp32. This file also has the constants that optimizers need. They are computed once per
// call in fp64, by the same code for all instruction sets, and then rounded to fp32.
namespace zeroshard::kernels {

struct AdamConstants {
  float grad_scale;    // negated to maximize
  float decay;         // decoupled: param *= decay
  float l2;            // coupled: grad += l2 * param
  float beta1_weight;  // 1 - beta1
  float beta2, beta2_weight;
  float bias_correction2_sqrt, eps, negative_step_size;
  bool decoupled, coupled;
};
struct SgdConstants {
  float grad_scale, l2, momentum, grad_weight /* 1 - dampening */, negative_lr;
  bool decay, nesterov, first_step;
};
struct LionConstants {
  float grad_scale, decay, beta1, beta1_weight, beta2, beta2_weight, lr;
};
struct AdagradConstants {
  float grad_scale, l2, eps, negative_lr;
  bool decay;
};

// The number of dtypes of elements. The indices of a table are 0 for fp32, 1 for bf16 and 2 for fp16.
constexpr int kDtypes = 3;
// The index that is used instead of that of param_dtype if StepBuffers::param is null.
constexpr int kNoParam = kDtypes;
// The number of dtypes of moments. The indices are 0 for fp32, 1 for bf16 and 2 for 8-bit codes.
constexpr int kMomentDtypes = 3;

struct KernelTable {
  using Pack = void (*)(const void* src, void* dst, float scale, int64_t numel);
  using Sum = void (*)(const void* const* pieces, int count, float scale, void* out, bool accumulate, int64_t numel);
  using SumOfSquares = TwofoldSum (*)(const void* data, int64_t numel);
  using Adam = void (*)(const StepBuffers&, void* exp_avg, void* exp_avg_sq, const AdamConstants&);
  using Sgd = void (*)(const StepBuffers&, void* momentum_buffer, const SgdConstants&);
  using Lion = void (*)(const StepBuffers&, void* exp_avg, const LionConstants&);
  using Adagrad = void (*)(const StepBuffers&, void* sum, const AdagradConstants&);

  const char* name;
  Pack pack[kDtypes][kDtypes];         // [src][dst]
  Pack pack_add[kDtypes][kDtypes];     // [src][dst]
  Sum sum_in_order[kDtypes][kDtypes];  // [piece][out]
  SumOfSquares sum_of_squares[kDtypes];
  Adam adam[kMomentDtypes][kDtypes][kDtypes + 1];  // [moment][grad][param]; only fp32 moments on a device
  Sgd sgd[kMomentDtypes][kDtypes][kDtypes + 1];
  Lion lion[kMomentDtypes][kDtypes][kDtypes + 1];
  Adagrad adagrad[kMomentDtypes][kDtypes][kDtypes + 1];
  // These two functions work on a block of kScaledNumel elements.
  void (*decode)(const void* codes, float scale, bool is_signed, float* values);
  void (*encode)(const float* values, float scale, bool is_signed, void* codes);
  decltype(&kernels::rms_norm) rms_norm;
  decltype(&kernels::rms_norm_backward) rms_norm_backward;
  decltype(&kernels::rotate) rotate;
};

// Each function returns the table of an instruction set, or null if it was not compiled for this architecture. The
// functions do not check the processor.
const KernelTable* avx512_table();
const KernelTable* avx2_table();
const KernelTable* neon_table();
const KernelTable* scalar_table();

// Returns the tables that this processor supports, best first. The last one is scalar.
std::vector<const KernelTable*> available_tables();
// Returns the table named `wanted`. If `wanted` is null or empty, returns the best one. If this processor has no table
// of that name, logs a warning and returns the best one.
const KernelTable& choose_table(const char* wanted);
// Returns the table that the functions of kernels.h use.
const KernelTable& active_table();

// The functions of kernels.h, run with a given table instead of active_table(). The engine passes the table of a
// device, and tests pass the tables of instruction sets.
void pack(const KernelTable&, const void* src, DType src_dtype, void* dst, DType dst_dtype, float scale, int64_t numel);
void pack_add(const KernelTable&, const void* src, DType src_dtype, void* dst, DType dst_dtype, float scale,
              int64_t numel);
void sum_in_order(const KernelTable&, std::span<const void* const> pieces, DType dtype, float scale, void* out,
                  DType out_dtype, bool accumulate, int64_t numel);
TwofoldSum sum_of_squares(const KernelTable&, const void* data, DType dtype, int64_t numel);
void decode(const KernelTable&, CodedValues from, int64_t begin, int64_t end, float* to);
void encode(const KernelTable&, const float* values, int64_t numel, CodedValues to);
void adam(const KernelTable&, const StepBuffers&, void* exp_avg, void* exp_avg_sq, const AdamArgs&);
void sgd(const KernelTable&, const StepBuffers&, void* momentum_buffer, const SgdArgs&);
void lion(const KernelTable&, const StepBuffers&, void* exp_avg, const LionArgs&);
void adagrad(const KernelTable&, const StepBuffers&, void* sum, const AdagradArgs&);

}  // namespace zeroshard::kernels
