#pragma once
// Every public header that needs no more than ATen. For models written with torch::nn there is zeroshard/nn.h besides.
#include "zeroshard/config.h"
#include "zeroshard/dtype.h"
#include "zeroshard/engine.h"
#include "zeroshard/error.h"
#include "zeroshard/launch.h"
#include "zeroshard/optimizer.h"
#include "zeroshard/plan.h"
#include "zeroshard/rank_environment.h"
#include "zeroshard/version.h"
#include "zeroshard/world.h"
