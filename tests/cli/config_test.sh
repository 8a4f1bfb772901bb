#!/bin/sh
# Usage: config_test.sh ZEROSHARD SOURCE_DIR. `zeroshard config` from outside: output, exit codes, docs and examples.
set -u
zeroshard=$1
source_dir=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
  echo "FAILED: $*" >&2
  failed=1
}

# check CODE PATTERN STREAM ARGUMENTS...: runs zeroshard and looks for PATTERN in stdout or stderr.
check() {
  want_code=$1 pattern=$2 stream=$3
  shift 3
  "$zeroshard" "$@" >"$work/stdout" 2>"$work/stderr"
  code=$?
  [ "$code" = "$want_code" ] || fail "$*: exit code $code instead of $want_code: $(cat "$work/stderr")"
  grep -q -e "$pattern" "$work/$stream" || fail "$*: no '$pattern' in $stream: $(cat "$work/$stream")"
}

for example in "$source_dir"/examples/configs/*.json; do
  filled="$work/$(basename "$example")"  # as transformers' Trainer fills it in
  sed 's/\("train_micro_batch_size_per_gpu"\|"total_num_steps"\): "auto"/\1: 100/' "$example" >"$filled"
  check 0 '^zero_optimization.stage ' stdout config explain "$filled" --world-size 4 --hidden-size 64
  check 0 '"origin": "file"' stdout config explain "$filled" --world-size 4 --hidden-size 64 --json
  check 0 '^zero_optimization.stage ' stdout config explain "$example"
done

printf '%s\n' '{' '  "train_batch_size": 8, "memory_breakdown": true,' \
  '  "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": "auto"},' '}' >"$work/auto.json"
check 0 '^train_micro_batch_size_per_gpu .*= 4 .*(derived' stdout config explain "$work/auto.json" --world-size 2 --hidden-size 64
check 0 '^zero_optimization.stage3_param_persistence_threshold .*= 640 .*(auto: 10 x hidden size)' stdout \
  config explain "$work/auto.json" --world-size 2 --hidden-size 64
check 0 '^  memory_breakdown = true: ' stdout config explain "$work/auto.json" --hidden-size 64
placed='"zeroshard": {"placement": [{"units": "layers.0-3", "parameters": "replicated"}]}'
printf '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}, %s}' "$placed" >"$work/placed.json"
check 0 '^  layers.0-3  *replicated bf16  *sharded bf16  *sharded fp32  *sharded 2 x fp32$' stdout \
  config explain "$work/placed.json" --world-size 4
check 0 '^  others up to 100000 elements  *persistent bf16 ' stdout config explain "$work/placed.json" --world-size 4
check 0 '^  all others  *sharded bf16 ' stdout config explain "$work/placed.json" --world-size 4
check 0 '^  all units  *replicated bf16  *replicated bf16 ' stdout config explain "$work/placed.json"
check 0 '"parameters": "persistent bf16"' stdout config explain "$work/placed.json" --world-size 4 --json
check 0 '^zero_optimization.stage3_param_persistence_threshold .*= "auto" .*(open: transformers. Trainer fills it in: 10 x' stdout \
  config explain "$work/auto.json"
check 2 'auto.json: zero_optimization.stage3_param_persistence_threshold = "auto": needs the model.s hidden size' stderr \
  plan --params 1B --world-size 1 --config "$work/auto.json"
check 2 'world_size 8 != 2 \* 1 \* 3' stderr config explain "$work/auto.json" --world-size 3 --hidden-size 64

echo '{"train_batch_size": 1, "zero_optimization": {"stge": 1}}' >"$work/typo.json"
check 2 "did you mean 'zero_optimization.stage'?" stderr config explain "$work/typo.json"
[ -s "$work/stdout" ] && fail "an error printed something on stdout"
echo '{"train_batch_size": 1, "_comment": "x", "zero_optimisation": {"stage": 3}}' >"$work/unknown.json"
check 0 "^  zero_optimisation = .*: did you mean 'zero_optimization'?$" stdout config explain "$work/unknown.json"
check 0 '^    "_comment = ' stdout config explain "$work/unknown.json" --json
check 0 'Note: the config has unknown keys, ignored as DeepSpeed does: _comment' stdout \
  plan --params 1B --world-size 1 --config "$work/unknown.json"
echo '{"train_batch_size": 1, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}' >"$work/offload.json"
check 0 'fp32 parameters stay on the device with their optimizer states' stdout plan --params 1B --world-size 1 --config "$work/offload.json"
check 0 '^  total  *16.00$' stdout plan --params 1B --world-size 1 --config "$work/offload.json"
sed 's/"offload_param"/"offload_optimizer": {"device": "cpu", "ratio": 0.5}, &/' "$work/offload.json" >"$work/share.json"
check 0 'fp32 parameters stay on the device with their optimizer states' stdout plan --params 1B --world-size 1 --config "$work/share.json"
echo '{"train_batch_size": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}' \
  >"$work/alone.json"
check 0 '^  all others  *sharded bf16 on host  *sharded bf16  *sharded fp32  *sharded 2 x fp32$' stdout \
  config explain "$work/alone.json" --world-size 1
check 0 '^  host: parameters  *2.00$' stdout plan --params 1B --world-size 1 --config "$work/alone.json"
check 0 '^  total  *14.00$' stdout plan --params 1B --world-size 1 --config "$work/alone.json"
echo '{"train_batch_size": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
  "offload_optimizer": {"device": "cpu"}}}' >"$work/all.json"
check 0 '^  all others  *sharded bf16 on host  *sharded bf16 on host  *sharded fp32 on host  *sharded 2 x fp32 on host$' stdout \
  config explain "$work/all.json" --world-size 1
check 0 '^  host: parameters  *2.00$' stdout plan --params 1B --world-size 1 --config "$work/all.json"
check 0 '^  total  *-$' stdout plan --params 1B --world-size 1 --config "$work/all.json"
echo '{"train_batch_size": 2, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}' \
  >"$work/states.json"
check 0 '^  all units  *replicated bf16  *sharded bf16 on host  *sharded fp32 on host  *sharded 2 x fp32 on host$' stdout \
  config explain "$work/states.json" --world-size 2
check 0 '^  host: total  *7.00$' stdout plan --params 1B --world-size 2 --config "$work/states.json"
check 0 '"total_bytes": 7000000000' stdout plan --params 1B --world-size 2 --config "$work/states.json" --json
printf '{\n "a": ?\n}' >"$work/syntax.json"
check 2 'syntax.json: line 2, column 7' stderr config explain "$work/syntax.json"
check 2 'cannot read' stderr config explain "$work/missing.json"
check 2 'subcommand' stderr config
check 2 'file' stderr config explain
check 0 "^zeroshard $(sed -n 's/.*kVersion.*"\(.*\)".*/\1/p' "$source_dir/include/zeroshard/version.h")$" stdout --version

"$zeroshard" config keys --markdown >"$work/keys.md"
sed -n '/^## Keys with an effect$/,$p' "$source_dir/docs/config.md" >"$work/documented.md"
cmp -s "$work/keys.md" "$work/documented.md" ||
  fail "docs/config.md is not up to date: replace its tables by the output of \`zeroshard config keys --markdown\`"
exit $failed
