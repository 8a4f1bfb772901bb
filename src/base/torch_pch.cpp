// The build compiles this file only to precompile torch_pch.h.
