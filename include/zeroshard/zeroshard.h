#pragma once
// Includes the public headers for training with an Engine and for launching ranks. These headers need only ATen. Code
// for models written with torch::nn must include zeroshard/nn.h, too. Each of the other public headers, such as
// metrics.h, is for a single task.
#include "zeroshard/config.h"
#include "zeroshard/dtype.h"
#include "zeroshard/engine.h"
#include "zeroshard/error.h"
#include "zeroshard/launch.h"
#include "zeroshard/optimizer.h"
#include "zeroshard/plan.h"
#include "zeroshard/rank_environment.h"
#include "zeroshard/sequence.h"
#include "zeroshard/version.h"
#include "zeroshard/world.h"
