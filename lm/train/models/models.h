#pragma once
#include <memory>

#include "train/models/fields.h"
#include "zeroshard/causal_lm.h"

// Declares one function per architecture. Each function reads the fields of config.json that it supports, and makes the
// model. Each is defined in the file with the name of its architecture, and both functions of Qwen are in qwen.cpp.
namespace zeroshard {

// Returns " for parameter ...", the end of the error message if there is not enough memory for a parameter.
std::string missing_for(const std::string& name, const at::Tensor& parameter);

std::shared_ptr<CausalLM> make_llama(Fields& fields);
std::shared_ptr<CausalLM> make_mistral(Fields& fields);
std::shared_ptr<CausalLM> make_qwen2(Fields& fields);
std::shared_ptr<CausalLM> make_qwen3(Fields& fields);
std::shared_ptr<CausalLM> make_gemma2(Fields& fields);
std::shared_ptr<CausalLM> make_mixtral(Fields& fields);
std::shared_ptr<CausalLM> make_gpt2(Fields& fields);

}  // namespace zeroshard
