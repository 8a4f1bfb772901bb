#pragma once

namespace zeroshard {

// Gives memory that this process has freed, and the allocator keeps, back to the system, where the C library can.
void return_free_memory();

}  // namespace zeroshard
