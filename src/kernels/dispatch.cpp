#include <cstdlib>
#include <string>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "base/format.h"
#include "base/log.h"
#include "kernels/table.h"

namespace zeroshard::kernels {
namespace {

#ifdef __x86_64__
// Asks the processor itself, because not every compiler's __builtin_cpu_supports knows f16c. Does not ask whether the
// operating system supports the registers, because has_avx2() also asks for avx2, which uses the same registers.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#else
bool has_avx2() {
  return false;
}
bool has_avx512() {
  return false;
}
#endif

}  // namespace

std::vector<const KernelTable*> available_tables() {
  std::vector<const KernelTable*> tables;
  const auto add = [&](const KernelTable* table, bool supported) {
    if (table != nullptr && supported) tables.push_back(table);
  };
  add(avx512_table(), has_avx512());
  add(avx2_table(), has_avx2());
  add(neon_table(), true);  // every AArch64 processor has it; null on others
  add(scalar_table(), true);
  return tables;
}

const KernelTable& choose_table(const char* wanted) {
  const auto tables = available_tables();
  if (wanted == nullptr || *wanted == '\0') return *tables.front();
  std::string names;
  for (const KernelTable* table : tables) {
    if (std::string_view(wanted) == table->name) return *table;
    names += concat(names.empty() ? "" : ", ", table->name);
  }
  log(LogLevel::kWarning,
      concat("ZEROSHARD_ISA=", wanted, " is not available here (", names, "); using ", tables.front()->name));
  return *tables.front();
}

const KernelTable& active_table() {
  static const KernelTable& table = choose_table(std::getenv("ZEROSHARD_ISA"));
  return table;
}

const char* instruction_set() {
  return active_table().name;
}

}  // namespace zeroshard::kernels
