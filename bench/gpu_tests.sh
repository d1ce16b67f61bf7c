#!/bin/bash
# Every test of the CUDA backend that needs a GPU, from a folder that bench/stage.sh filled, with time limits; the last
# lines are a table of what passed, failed and was skipped. Logs and results documents go to $OUT, by default out/
# beside this file.
#   gpu_tests.sh [part ...]        parts: first-use unit reports shapes random selftest soak soak-kernels large
# A part's limit is LIMIT seconds (default 240); the soaks check CASES (20000) and KERNEL_CASES (2000) problems,
# or as many as fit in the limit. Where python3 is there, the documents become parts of one, selftest.json.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-$here/out}
mkdir -p "$out"
chmod +x "$here"/bin/* # a copy may have lost it
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export ATTN_SHAPES_DIR=$here/shapes
limit=${LIMIT:-240}
jobs=${JOBS:-$(nproc)}
shards=$((jobs < 12 ? jobs : 12))
failed=0
rows=()

sum() { # of the numbers on stdin
  awk '{ s += $1 } END { print s + 0 }'
}

row() { # part seconds passed failed skipped note
  rows+=("$(printf '%-45s %8s %8s %8s %8s  %s' "$1" "$3" "$4" "$5" "$2" "$6")")
  [ "$4" = 0 ] || failed=1
}

# A GoogleTest program in shards, all at once: part, shards, program, arguments.
tests() {
  local part=$1 count=$2 start=$SECONDS i status pids=() bad=0 note=""
  shift 2
  for ((i = 0; i < count; ++i)); do
    GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$i ATTN_TEST_BACKEND=${BACKEND:-cuda} \
      timeout "$limit" "$here/bin/$1" "${@:2}" > "$out/$part.$i.log" 2>&1 &
    pids+=($!)
  done
  for i in "${!pids[@]}"; do
    wait "${pids[$i]}"
    status=$?
    [ $status = 124 ] && note="$note shard $i ran past ${limit} s;"
    [ $status -gt 124 ] && note="$note shard $i died ($status);"
    [ $status = 0 ] || bad=$((bad + 1))
  done
  local logs=("$out/$part".*.log)
  local passed skipped failures
  passed=$(grep -h '^\[  PASSED  \]' "${logs[@]}" | grep -o '[0-9]* test' | sum)
  skipped=$(grep -h '^\[  SKIPPED \] [0-9]' "${logs[@]}" | grep -o '[0-9]* test' | sum)
  failures=$(grep -h '^\[  FAILED  \] [0-9]' "${logs[@]}" | grep -o '[0-9]* test' | sum)
  # A shard that ended without a word of a failing test counts as one.
  [ "$bad" != 0 ] && [ "$failures" = 0 ] && failures=$bad
  [ "$failures" != 0 ] && note="$note $(grep -h '^\[  FAILED  \] [A-Z]' "${logs[@]}" | sed 's/^\[  FAILED  \] //; s/ (.*//; s/,.*//' | sort -u | head -n 4 | tr '\n' ' ')"
  row "$part" $((SECONDS - start)) "$passed" "$failures" "$skipped" "$note"
}

# `attn` with a summary line "<n> passed, <n> failed, <n> refused in …": part, arguments.
command_part() {
  local part=$1 start=$SECONDS status line note=""
  shift
  timeout "$limit" "$here/bin/attn" "$@" > "$out/$part.log" 2>&1
  status=$?
  line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$out/$part.log" | tail -n 1)
  local passed=0 failures=1 refused=0
  if [ -n "$line" ]; then
    passed=$(sed -E 's/^([0-9]+) passed.*/\1/' <<< "$line")
    failures=$(sed -E 's/.* ([0-9]+) failed.*/\1/' <<< "$line")
    refused=$(sed -E 's/.* ([0-9]+) refused.*/\1/' <<< "$line")
    note="skipped: refused; ${line#*; }"
  else
    note="exit code $status: $(tail -n 1 "$out/$part.log" | cut -c 1-100)"
  fi
  [ "$passed" = 0 ] && [ "$failures" = 0 ] && failures=1 # nothing was checked
  row "$part" $((SECONDS - start)) "$passed" "$failures" "$refused" "$note"
}

large='*SageAttention386*:*PyTorch142228*:*FiveHundredByThirtyFiveThousand'
dense_files() { for f in "$here"/shapes/dense_*.txt; do printf -- '--file %s ' "$f"; done; }

part() {
  case $1 in
    first-use) # each in a process that has used nothing before
      local name
      for name in FirstRunOfAKernelInsideACapture PlanInsideACapture PlanInsideARelaxedCapture; do
        tests "first-use-$name" 1 unit_cuda "--gtest_filter=CudaGraph.$name"
      done ;;
    unit) tests unit 1 unit_cuda ;;
    shapes) tests shapes "$shards" conformance_shapes ;;
    random) tests random "$shards" conformance_random ;;
    reports) tests reports "$shards" conformance_public_reports "--gtest_filter=-$large" ;;
    large) tests large 4 conformance_public_reports "--gtest_filter=$large" ;;
    selftest) # a row a case: every dense shape on the kernel that is taken unasked
      command_part selftest verify --backend cuda $(dense_files) --output "$out/selftest_shapes.json" ;;
    soak) command_part soak verify --forever --dense --backend cuda --against cpu --seed 1 --cases "${CASES:-20000}" \
            --time-limit $((limit - 20)) --jobs "$jobs" --output "$out/selftest_random.json" ;;
    soak-kernels) command_part soak-kernels verify --forever --dense --all-kernels --bitwise --backend cuda \
            --against cpu --seed 1000001 --cases "${KERNEL_CASES:-2000}" --time-limit $((limit - 20)) --jobs "$jobs" \
            --output "$out/selftest_every_kernel.json" ;;
    *) echo "no part '$1'" >&2; exit 2 ;;
  esac
}

[ $# -gt 0 ] || set -- first-use unit reports shapes random large selftest soak soak-kernels
for name in "$@"; do
  part "$name"
done

# Problems by kernel, and refusals by reason, over all shards.
cat "$out"/*.log 2> /dev/null | grep '^\[   CUDA   \]' | sed 's/^\[   CUDA   \] //' |
  awk -F': ' '/ problems$/ { n = $0; sub(/ problems$/, "", n); c = n; sub(/.*: /, "", c); sub(/: [0-9]+$/, "", n); s[n] += c }
              / problems$/ { next } { other[$0] = 1 }
              END { for (n in s) printf "%8d  %s\n", s[n], n; for (o in other) print "          " o }' | sort -k2 \
  > "$out/problems_by_kernel.txt"
if command -v python3 > /dev/null; then
  OUT_DIR=$out python3 - << 'PYTHON' || echo "selftest.json was not written"
import json, os, pathlib, subprocess
out = pathlib.Path(os.environ["OUT_DIR"])
parts = {}
gpu = {"machine": os.environ.get("MACHINE", "h200")}
try:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,power.limit", "--format=csv,noheader,nounits", "--id=0"]
    name, driver, power = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    gpu.update(gpu=name, driver=driver, power_limit_w=float(power))
except (OSError, ValueError, subprocess.CalledProcessError):
    pass
for part, file in (("shapes", "selftest_shapes.json"), ("random", "selftest_random.json"),
                   ("every_kernel", "selftest_every_kernel.json")):
    if (out / file).exists():
        document = json.loads((out / file).read_text())
        document["command"] = document["command"].replace(str(out) + "/", "").replace(str(out.parent) + "/", "")
        document["context"].update(gpu)
        parts[part] = {key: value for key, value in document.items() if key not in ("schema", "what")}
        context = document["context"]
rows = []
for line in (out / "problems_by_kernel.txt").read_text().splitlines():
    count, _, name = line.strip().partition("  ")
    if count.isdigit():
        rows.append({"problem": "tests/conformance", "impl": "libattn:" + name, "kernel": name, "problems": int(count)}
                    if not name.startswith("refused") else {"problem": "tests/conformance", "refused": name[9:], "problems": int(count)})
logs = "".join(path.read_text(errors="replace") for path in sorted(out.glob("*.log")))
if rows and parts:
    failed = sorted({line.split("] ", 1)[1].split(" (")[0] for line in logs.splitlines() if line.startswith("[  FAILED  ] ") and "." in line})
    parts["conformance"] = {"command": "gpu_tests.sh shapes random reports large", "context": context, "failed": failed, "rows": rows}
if parts:
    whole = {"schema": 1, "what": "selftest", "command": "gpu_tests.sh", "parts": parts}
    (out / "selftest.json").write_text(json.dumps(whole, separators=(",", ":")) + "\n")
PYTHON
fi
cat "$out/problems_by_kernel.txt"
echo
printf '%-45s %8s %8s %8s %8s\n' part passed failed skipped seconds
printf '%s\n' "${rows[@]}"
exit $failed
