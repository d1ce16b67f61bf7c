// `attn run`: attention on tensors from files. Outputs appear, all of them, only when the run (and the check,
// where asked for) has succeeded. Tested in tests/cli/run_test.py.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command.hpp"
#include "measure.hpp"
#include "output.hpp"
#include "results.hpp"
#include "run_problem.hpp"
#include "verify/check.hpp"

namespace attn::tool {
namespace {

using Json = nlohmann::ordered_json;

enum class FileKind { kNpy, kSafetensors };

FileKind kind_of(const std::string& option, const std::string& path) {
  const std::filesystem::path file(path);
  if (file.extension() != ".npy" && file.extension() != ".safetensors") {
    fail_usage(fmt::format("{}: '{}' must end in .npy or .safetensors", option, path));
  }
  check_folder(option, path);
  return file.extension() == ".npy" ? FileKind::kNpy : FileKind::kSafetensors;
}

struct Output {
  const char* option;
  const char* tensor;  // its name in a .safetensors file
  const std::string* path;
};

std::vector<Output> outputs_of(const RunOptions& options) {
  std::vector<Output> outputs;
  for (const Output& output :
       {Output{"--out", "o", &options.out}, Output{"--lse", "lse", &options.lse},
        Output{"--k-out", "k", &options.k_out}, Output{"--v-out", "v", &options.v_out}}) {
    if (!output.path->empty()) {
      outputs.push_back(output);
    }
  }
  return outputs;
}

// What can be refused before anything is read.
void check_outputs(const RunOptions& options, const std::vector<Output>& outputs) {
  if (outputs.empty() && !options.verify) {
    fail_usage("--out is missing; say where O goes, or --verify to check only");
  }
  if (options.k_new.empty() && !(options.k_out.empty() && options.v_out.empty())) {
    fail_usage(fmt::format("--{}-out: only an append (--k-new, --v-new) changes the caches",
                           options.k_out.empty() ? "v" : "k"));
  }
  if (options.lse_without_sink && options.sinks.empty()) {
    fail_usage("--lse-without-sink: there is no sink; give --sinks");
  }
  if (!options.rotary_style.empty() && options.rotary_cos.empty()) {
    fail_usage(
        fmt::format("--rotary-style: '{}' without --rotary-cos and --rotary-sin", options.rotary_style));
  }
  if (!options.prefix.empty() && options.file.empty()) {
    fail_usage(fmt::format("--prefix: '{}' without a .safetensors file", options.prefix));
  }
  if (!options.out_dtype.empty() && options.out.empty()) {
    fail_usage(fmt::format("--out-dtype: '{}' without --out", options.out_dtype));
  }
  for (const Output& output : outputs) {
    const Output& first = outputs.front();
    const FileKind kind = kind_of(output.option, *output.path);
    if (kind != kind_of(first.option, *first.path)) {
      fail_usage(fmt::format("{}: '{}' and {} '{}' must be of one kind, .npy or .safetensors", output.option,
                             *output.path, first.option, *first.path));
    }
  }
  for (const Output& output : outputs) {
    const FileKind kind = kind_of(output.option, *output.path);
    for (const Output& other : outputs) {
      const bool same = *output.path == *other.path;
      if (kind == FileKind::kSafetensors && !same) {
        fail_usage(
            fmt::format("{}: '{}' differs from {} '{}'; the tensors of one run go to one .safetensors "
                        "file, so give the same path",
                        other.option, *other.path, output.option, *output.path));
      }
      if (kind == FileKind::kNpy && same && &output != &other) {
        fail_usage(fmt::format("{} and {}: both are '{}'; a .npy file holds one array", output.option,
                               other.option, *output.path));
      }
    }
  }
}

io::ElementType element_type(const std::string& name) {
  return name == "fp32"   ? io::ElementType::kFloat32
         : name == "fp16" ? io::ElementType::kFloat16
                          : io::ElementType::kBFloat16;
}

bool is_o(const Output& output) {
  return std::string_view(output.tensor) == "o";
}
bool is_lse(const Output& output) {
  return std::string_view(output.tensor) == "lse";
}

// Known once the inputs are read, and told before the work.
void check_output_dtypes(const RunOptions& options, const std::vector<Output>& outputs,
                         const Problem& problem) {
  for (const Output& output : outputs) {
    io::ElementType type = io::to_element_type(is_lse(output) ? DType::kFloat32 : problem.dtype);
    if (is_o(output) && !options.out_dtype.empty()) {
      type = element_type(options.out_dtype);
    }
    if (type == io::ElementType::kBFloat16 && !options.npy_bf16 &&
        kind_of(output.option, *output.path) == FileKind::kNpy) {
      fail_usage(
          fmt::format("{}: '{}': .npy has no bf16; write .safetensors, convert with --out-dtype fp32, or "
                      "store two-byte void with --npy-bf16",
                      output.option, *output.path));
    }
  }
}

void write_outputs(const RunOptions& options, const std::vector<Output>& outputs, RunProblem* problem) {
  if (outputs.empty()) {
    return;
  }
  std::vector<io::Array> arrays;
  for (const Output& output : outputs) {
    io::Array array = problem->take(output.tensor);
    if (is_o(output) && !options.out_dtype.empty()) {
      io::Array converted;
      check(io::convert(array, element_type(options.out_dtype), io::Rounding::kNearestEven, &converted),
            "--out-dtype");
      array = std::move(converted);
      array.name = output.tensor;
    }
    arrays.push_back(std::move(array));
  }
  if (kind_of(outputs.front().option, *outputs.front().path) == FileKind::kSafetensors) {
    const io::Metadata metadata{{"attn.problem", to_string(problem->problem())}};
    check(io::write_safetensors(*outputs.front().path, arrays, metadata), outputs.front().option);
    return;
  }
  std::vector<io::NpyOutput> files;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    files.push_back({*outputs[i].path, &arrays[i]});
  }
  check(io::write_npy(std::span<const io::NpyOutput>(files), {options.npy_bf16}), outputs.front().option);
}

Json report_json(const verify::Report& report) {
  Json json;
  json["passed"] = report.passed;
  json["failure"] = report.failure.empty() ? Json() : Json(report.failure);
  json["max_error"] = report.max_error_o;
  json["max_error_of_bound"] = report.max_ratio_o;
  json["max_error_lse"] = report.max_error_lse;
  json["max_error_lse_of_bound"] = report.max_ratio_lse;
  json["rows_checked"] = report.rows_checked;
  return json;
}

int run(const RunOptions& options) {
  const std::vector<Output> outputs = outputs_of(options);
  check_outputs(options, outputs);
  RunProblem problem(options);
  check_output_dtypes(options, outputs, problem.problem());
  Execution execution(problem.problem(), options.plan.plan_options());
  const Work work = work_of(problem.problem(), problem.tensors());

  double seconds = 0;
  {
    const Ticker ticker("computing");
    const auto start = std::chrono::steady_clock::now();
    execution.run(problem.tensors());
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  verify::Report report;
  report.passed = true;
  if (options.verify) {
    const Ticker ticker("comparing with the reference");
    report = verify::compare_with_reference(problem.problem(), problem.tensors());
  }
  if (report.passed) {
    write_outputs(options, outputs, &problem);
  }

  const Plan& plan = execution.plan();
  if (options.json) {
    Json json;
    json["problem"] = to_string(plan.problem());
    json["impl"] = "libattn:" + plan.kernel();
    json["splits"] = plan.num_splits();
    json["workspace_bytes"] = plan.workspace_bytes();
    json["us"] = seconds * 1e6;
    json["gflops"] = work.flops / seconds * 1e-9;
    json["outputs"] = Json::array();
    for (const Output& output : outputs) {
      if (report.passed) {
        json["outputs"].push_back({{"tensor", output.tensor}, {"path", *output.path}});
      }
    }
    json["verify"] = options.verify ? report_json(report) : Json();
    print(json_text(json));
  } else {
    print(fmt::format("problem  {}\nkernel   {}, {}, {} GFLOP/s\n", to_string(plan.problem()), plan.kernel(),
                      time_text(seconds), rate_text(work.flops / seconds * 1e-9)));
    if (options.verify) {
      print(fmt::format("check    {}: largest error {}, {} of its bound, over {} rows\n",
                        report.passed ? coloured("passed", Mood::kGood) : coloured("FAILED", Mood::kBad),
                        error_text(report.max_error_o), percent_text(report.max_ratio_o),
                        report.rows_checked));
    }
    for (const Output& output : outputs) {
      if (report.passed) {
        print(fmt::format("wrote    {} to {}\n", output.tensor, *output.path));
      }
    }
  }
  if (!report.passed) {
    throw Failure{
        kCheckFailed,
        fmt::format("the result does not agree with the reference, nothing was written: {}", report.failure)};
  }
  return kSuccess;
}

void add_options(Options& options, RunOptions* o) {
  const char* const kArray = "ARRAY";
  const char* const kList = "LIST";
  options.group("Inputs (ARRAY: FILE.npy, or @NAME of FILE.safetensors; LIST: 0,3,7 or an ARRAY)");
  options.text("file", &o->file, "FILE.safetensors", "Holds the tensors that @NAME means");
  options.text("--q", &o->q, kArray, "Q (default @q)");
  options.text("--k", &o->k, kArray, "K, or the pool of K pages (default @k)");
  options.text("--v", &o->v, kArray, "V, or the pool of V pages (default @v)");
  options.text("--prefix", &o->prefix, "TEXT", "Put before the default names q, k, v, such as layer0.");
  options.choice("--layout", &o->layout, {"bshd", "bhsd"},
                 "Order of the axes of Q, K, V and O (default bshd)");
  options.choice("--dtype", &o->dtype, {"fp32", "fp16", "bf16"}, "Compute in it (default: the files' dtype)");
  options.flag("--npy-bf16", &o->npy_bf16, "Read and write two-byte void .npy arrays as bf16");

  options.group("What is computed");
  options.choice("--causal", &o->causal, {"br", "tl"}, "Causal mask, aligned bottom-right or top-left");
  options.text("--window", &o->window, "LEFT,RIGHT", "Keys seen around each query's position; -1: unbounded");
  options.choice("--align", &o->align, {"br", "tl"},
                 "Alignment of a window, ALiBi or rotary without --causal");
  options.number("--scale", &o->scale, "Of the logits (default 1 / sqrt(head_dim))");
  options.number("--softcap", &o->softcap, "Logits become X·tanh(logit / X); 0: off");
  options.text("--sinks", &o->sinks, kList, "One more logit a query head");
  options.flag("--lse-without-sink", &o->lse_without_sink, "Leave the sink out of the LSE");
  options.text("--alibi", &o->alibi, kList, "ALiBi slopes: one a query head, or a row of those a sequence");

  options.group("Variable lengths and caches");
  options.text("--cu-seqlens-q", &o->cu_seqlens_q, kList, "Packed Q: batch + 1 ascending row offsets");
  options.text("--cu-seqlens-kv", &o->cu_seqlens_kv, kList, "Packed K, V: batch + 1 ascending row offsets");
  options.text("--seqused-kv", &o->seqused_kv, kList, "Keys that each sequence has");
  options.text("--page-table", &o->page_table, kList,
               "Paged K, V: a row of page numbers a sequence, 0,1;2,3");
  options.text("--k-new", &o->k_new, kArray, "Keys to append to the cache first; needs --seqused-kv");
  options.text("--v-new", &o->v_new, kArray, "Values to append");
  options.text("--rotary-cos", &o->rotary_cos, kArray, "(positions, rotary_dim / 2): rotates Q and --k-new");
  options.text("--rotary-sin", &o->rotary_sin, kArray, "As --rotary-cos");
  options.choice("--rotary-style", &o->rotary_style, {"half", "interleaved"},
                 "Which channels pair (default half)");

  options.group("How it runs");
  options.integer("--splits", &o->splits, "Splits along the keys; 0: chosen from the problem", 0, 1 << 20);
  options.flag("--batch-invariant", &o->batch_invariant, "A sequence's bits do not depend on its neighbours");
  options.flag("--nondeterministic", &o->nondeterministic, "Permit results that differ from run to run");
  o->plan.add(options);

  options.group("Outputs");
  options.text("--out", &o->out, "FILE", "O: .npy or .safetensors (tensor o)");
  options.text("--lse", &o->lse, "FILE",
               "Log-sum-exp, fp32: .npy, or the .safetensors of --out (tensor lse)");
  options.text("--k-out", &o->k_out, "FILE", "K after the append (tensor k)");
  options.text("--v-out", &o->v_out, "FILE", "V after the append (tensor v)");
  options.choice("--out-dtype", &o->out_dtype, {"fp32", "fp16", "bf16"}, "Store O so (default: as computed)");
  options.flag("--verify", &o->verify, "Compare with the float64 reference; a failure writes nothing");
  options.flag("--json", &o->json, "Print the summary as JSON");
  options.examples({
      "attn run --q q.npy --k k.npy --v v.npy --causal br --out o.npy --lse lse.npy",
      "attn run samples/minilm-attention.safetensors --prefix layer0. --seqused-kv @seqused_kv --verify",
      "attn run qkv.safetensors --q @query --layout bhsd --window 128,0 --align br --out o.safetensors",
  });
}

}  // namespace

Action add_run(Options& options) {
  const auto o = std::make_shared<RunOptions>();
  add_options(options, o.get());
  return [o] { return run(*o); };
}

}  // namespace attn::tool
