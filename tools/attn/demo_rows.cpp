// Computing and judging the demo's rows: see demo_rows.hpp.
#include "demo_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "command.hpp"
#include "core/numeric.hpp"
#include "cpu/cpu_backend.hpp"
#include "io/safetensors.hpp"
#include "run_problem.hpp"
#include "verify/check.hpp"

namespace attn::tool {
namespace {

std::string value_or(const io::Metadata& metadata, const std::string& key, const std::string& fallback) {
  const auto it = metadata.find(key);
  return it == metadata.end() ? fallback : it->second;
}

// The options of `attn run` that compute what the metadata's problem string says.
RunOptions options_of(const Sample& sample, const std::string& layer, const Problem& problem,
                      const std::string& layout, const PlanFlags& plan) {
  RunOptions options;
  options.file = sample.path;
  options.prefix = layer + ".";
  options.layout = layout;
  options.plan = plan;
  const std::string alignment = problem.alignment == Alignment::kBottomRight ? "br"
                                : problem.alignment == Alignment::kTopLeft   ? "tl"
                                                                             : "";
  (problem.causal ? options.causal : options.align) = alignment;
  if (problem.window_left != -1 || problem.window_right != -1) {
    options.window = fmt::format("{},{}", problem.window_left, problem.window_right);
  }
  options.softcap = problem.softcap;
  options.scale = problem.softmax_scale;
  options.seqused_kv = problem.seqused_kv ? "@seqused_kv" : "";
  return options;
}

// How far the model's own output may lie from ours. Its exporter rounded q, k, v and o, and our P and O are
// rounded to the dtype; so twice rule 13's 4u on each side, times the largest |v|.
double model_tolerance(DType dtype, double max_abs_v) {
  const double u = dtype == DType::kFloat32 ? 0x1p-22 : dtype == DType::kFloat16 ? 0x1p-12 : 0x1p-9;
  return 8 * u * max_abs_v;
}

double largest_difference(const io::Array& a, const io::Array& b) {
  double largest = 0;
  for (std::int64_t i = 0; i < a.num_elements(); ++i) {
    const double difference = std::abs(a.at(i) - b.at(i));
    // A NaN on one side only is no agreement.
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

double largest_magnitude(const TensorView& v) {
  double largest = 0;
  for (std::int64_t b = 0; b < v.shape[0]; ++b) {
    for (std::int64_t s = 0; s < v.shape[1]; ++s) {
      for (std::int64_t h = 0; h < v.shape[2]; ++h) {
        const std::int64_t row = b * v.strides[0] + s * v.strides[1] + h * v.strides[2];
        for (std::int64_t d = 0; d < v.shape[3]; ++d) {
          largest = std::max(largest, std::abs(double{core::load_element(v.data, v.dtype, row + d)}));
        }
      }
    }
  }
  return largest;
}

void measure(DemoRow* row, const Problem& problem, const Tensors& tensors, const PlanFlags& plan,
             const TimingOptions& timing_options) {
  Execution execution(problem, plan.plan_options());
  const Timing timing = execution.time(tensors, timing_options);
  row->problem = to_string(problem);
  row->kernel = execution.plan().kernel();
  row->seconds = timing.median;
  row->gflops = work_of(problem, tensors).flops / timing.median * 1e-9;
  const int threads = cpu::thread_limit(static_cast<int>(plan.threads));
  if (const std::optional<double> peak = peak_gflops(row->kernel, threads)) {
    row->share_of_peak = row->gflops / *peak;
  }
}

void judge(DemoRow* row, const verify::Report& report) {
  row->max_error = report.max_error_o;
  row->max_error_of_bound = report.max_ratio_o;
  row->reference_agrees = report.passed;
  row->failure = report.failure;
}

}  // namespace

Sample open_sample(const std::string& path) {
  io::SafetensorsFile file;
  check(file.open(path));
  Sample sample;
  sample.path = path;
  sample.model = value_or(file.metadata(), "model", "");
  for (const io::TensorInfo& tensor : file.tensors()) {
    const std::string& name = tensor.name;
    if (name.size() > 2 && name.compare(name.size() - 2, 2, ".q") == 0) {
      sample.layers.push_back(name.substr(0, name.size() - 2));
    }
  }
  if (sample.layers.empty()) {
    throw Failure{kFile,
                  fmt::format("{}: no tensor NAME.q; a sample holds NAME.q, NAME.k, NAME.v of each layer, "
                              "and NAME.o where the model's own output is known",
                              path)};
  }
  return sample;
}

DemoRow layer_row(const Sample& sample, const std::string& layer, const PlanFlags& plan,
                  const TimingOptions& timing) {
  io::SafetensorsFile file;
  check(file.open(sample.path));
  const std::string where = fmt::format("{}: {}", sample.path, layer);
  const std::string line = value_or(file.metadata(), layer + ".problem", "");
  Problem stated;
  if (line.empty()) {
    throw Failure{kFile, fmt::format("{}: the metadata has no '{}.problem'", sample.path, layer)};
  }
  check(parse(line, &stated), where);
  RunProblem run(options_of(sample, layer, stated, value_or(file.metadata(), "layout", "bshd"), plan));
  if (run.problem() != stated) {
    throw Failure{kFile, fmt::format("{}: the tensors make the problem '{}', the metadata says '{}'", where,
                                     to_string(run.problem()), line)};
  }
  DemoRow row;
  row.name = layer;
  measure(&row, run.problem(), run.tensors(), plan, timing);
  judge(&row, verify::compare_with_reference(run.problem(), run.tensors()));
  if (file.find(layer + ".o") != nullptr) {
    io::Array model_o;
    check(file.read(layer + ".o", &model_o));
    row.model_tolerance = model_tolerance(run.problem().dtype, largest_magnitude(run.tensors().v));
    const io::Array o = run.take("o");
    if (model_o.shape != o.shape) {
      throw Failure{kFile, fmt::format("{}: '{}.o' has shape {}, but O has {}", sample.path, layer,
                                       io::shape_string(model_o.shape), io::shape_string(o.shape))};
    }
    row.model_error = largest_difference(o, model_o);
    if (row.reference_agrees && !row.model_agrees()) {
      row.failure = fmt::format("max |ΔO| against the model's own output is {:.3g}, more than {:.3g}",
                                *row.model_error, row.model_tolerance);
    }
  }
  return row;
}

DemoRow seeded_row(const std::string& name, const std::string& problem, const PlanFlags& plan,
                   const TimingOptions& timing) {
  verify::Case c;
  check(verify::parse(problem, &c));
  verify::Judge the_judge(c, {});
  DemoRow row;
  row.name = name;
  judge(&row, the_judge.check(verify::host_runner(), plan.plan_options()));
  measure(&row, c.problem, the_judge.buffers().tensors(), plan, timing);
  return row;
}

}  // namespace attn::tool
