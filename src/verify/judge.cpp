// The judge: everything beside the values of rows (rows.cpp). Contract: check.hpp.
#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <utility>

#include "core/geometry.hpp"
#include "core/numeric.hpp"
#include "reference/reference.hpp"
#include "verify/check.hpp"
#include "verify/rows.hpp"

namespace attn::verify {
namespace {

using Bytes = std::vector<std::byte>;

std::uint32_t element_bits(const std::byte* payload, std::size_t size, std::size_t at) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, payload + at, size);
  return bits;
}

}  // namespace

struct Judge::Impl {
  Impl(const Case& c, const CheckOptions& check_options, const std::function<void(Buffers&)>& prepare)
      : buffers(c), options(check_options) {
    if (prepare) {
      prepare(buffers);
    }
    const Problem& p = buffers.problem();
    Tensors after = buffers.tensors();
    if (p.seqlen_new > 0) {
      expect_caches(&after);
    }
    std::vector<QueryRow> rows = choose_rows(p, after, options, c.seed);
    expected = options.against_cpu ? expect_rows_by_cpu(p, after, std::move(rows))
                                   : expect_rows(p, after, std::move(rows));
  }

  // Caches as reference::append leaves them, in copies of their blocks; `after` reads from the copies.
  void expect_caches(Tensors* after) {
    for (const Block& block : buffers.blocks()) {
      caches.emplace_back();
      if (block.output() && block.name() != "o" && block.name() != "lse") {
        caches.back() = buffers.pristine(block);
      }
    }
    for (TensorView* view : {&after->k, &after->v, &after->q}) {
      rebase(view);
    }
    reference::append(buffers.problem(), *after);
  }

  void rebase(TensorView* view) {
    const auto* data = static_cast<const std::byte*>(view->data);
    for (std::size_t n = 0; n < buffers.blocks().size(); ++n) {
      const Block& block = buffers.blocks()[n];
      if (!caches[n].empty() && data >= block.payload() && data < block.payload() + block.payload_bytes()) {
        view->data = caches[n].data() + (data - block.payload());
        return;
      }
    }
  }

  void check_blocks(Report* report) const;
  void check_written(Report* report) const;
  template <typename Offset>
  void check_output(const Block& block, const TensorView& view, std::int64_t run_length, Offset offset,
                    Report* report) const;

  Buffers buffers;
  CheckOptions options;
  ExpectedRows expected;
  std::vector<Bytes> caches;  // by block; empty for those that no append writes
};

// Guards, inputs, caches.
void Judge::Impl::check_blocks(Report* report) const {
  for (std::size_t n = 0; n < buffers.blocks().size(); ++n) {
    const Block& block = buffers.blocks()[n];
    if (const auto at = block.broken_guard()) {
      report->failure = fmt::format("the guard of {} ({} bytes) was written at byte {}", block.name(),
                                    block.payload_bytes(), *at);
      return;
    }
    const bool cache = !caches.empty() && !caches[n].empty();
    const Bytes& want = cache ? caches[n] : buffers.pristine(block);
    if (block.name() == "o" || block.name() == "lse") {
      continue;
    }
    for (std::size_t at = 0; at < want.size(); ++at) {
      if (want[at] != block.payload()[at]) {
        report->failure =
            cache ? fmt::format("cache {} differs from a plain append at byte {} of {}", block.name(), at,
                                want.size())
                  : fmt::format("input {} was changed at byte {} of {}", block.name(), at, want.size());
        return;
      }
    }
  }
}

// Every element of every row was written, and nothing else in the block was.
template <typename Offset>
void Judge::Impl::check_output(const Block& block, const TensorView& view, std::int64_t run_length,
                               Offset offset, Report* report) const {
  const Problem& p = buffers.problem();
  const std::size_t size = size_of(view.dtype);
  const std::uint32_t poison = Buffers::poison_bits(view.dtype);
  const auto base = static_cast<std::size_t>(static_cast<const std::byte*>(view.data) - block.payload());
  Bytes rest(block.payload(), block.payload() + block.payload_bytes());
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const core::Sequence s = core::sequence_of(p, buffers.tensors(), b);
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        const std::size_t row = base + static_cast<std::size_t>(offset(view, s, i, h)) * size;
        for (std::size_t c = 0; c < static_cast<std::size_t>(run_length); ++c) {
          if (element_bits(rest.data(), size, row + c * size) == poison) {
            report->failure = fmt::format("{} at sequence {}, head {}, row {}, channel {} was not written",
                                          block.name(), b, h, i, c);
            return;
          }
          std::memcpy(rest.data() + row + c * size, &poison, size);
        }
      }
    }
  }
  for (std::size_t at = 0; at + size <= rest.size(); at += size) {
    if (element_bits(rest.data(), size, at) != poison) {
      report->failure =
          fmt::format("{} was written outside its rows, at element {} of its block", block.name(), at / size);
      return;
    }
  }
}

void Judge::Impl::check_written(Report* report) const {
  const Tensors& t = buffers.tensors();
  check_output(*buffers.find("o"), t.o, buffers.problem().head_dim_v, core::q_row_offset, report);
  if (report->failure.empty() && buffers.problem().want_lse) {
    check_output(*buffers.find("lse"), t.lse, 1, core::lse_offset, report);
  }
}

Judge::Judge(const Case& c, const CheckOptions& options, const std::function<void(Buffers&)>& prepare)
    : impl_(std::make_unique<Impl>(c, options, prepare)) {}
Judge::~Judge() = default;
Buffers& Judge::buffers() noexcept {
  return impl_->buffers;
}

Report Judge::compare() {
  Report report;
  report.line = to_string(impl_->buffers.what());
  impl_->check_blocks(&report);
  if (report.failure.empty()) {
    impl_->check_written(&report);
  }
  if (report.failure.empty()) {
    compare_rows(impl_->buffers.problem(), impl_->buffers.tensors(), impl_->expected, &report);
  }
  report.passed = report.failure.empty();
  return report;
}

namespace {

std::vector<Bytes> copy_outputs(const Buffers& buffers) {
  std::vector<Bytes> copies;
  for (const Block& block : buffers.blocks()) {
    copies.emplace_back();
    if (block.output()) {
      copies.back().assign(block.payload(), block.payload() + block.payload_bytes());
    }
  }
  return copies;
}

void compare_bits(const Buffers& buffers, const std::vector<Bytes>& first, Report* report) {
  for (std::size_t n = 0; n < first.size(); ++n) {
    const Block& block = buffers.blocks()[n];
    if (!first[n].empty() && std::memcmp(first[n].data(), block.payload(), first[n].size()) != 0) {
      report->passed = false;
      report->failure =
          fmt::format("{} has other bits in a second call with another workspace fill", block.name());
      return;
    }
  }
}

}  // namespace

Report Judge::check(const Runner& runner, const PlanOptions& plan_options) {
  const auto run_once = [&](std::uint8_t fill) {
    RunInfo info;
    Buffers& buffers = impl_->buffers;
    buffers.reset();
    const Status status = runner(buffers, plan_options, fill, &info);
    Report report;
    if (status.ok()) {
      report = compare();
    } else {
      report.refused = status.code() == StatusCode::kUnsupported || status.code() == StatusCode::kUnavailable;
      report.failure = fmt::format("{}: {}", attn::to_string(status.code()), status.message());
    }
    if (!info.guard_failure.empty()) {
      report.passed = false;
      report.refused = false;
      report.failure = info.guard_failure;
    }
    report.line = to_string(buffers.what());
    report.kernel = info.kernel;
    report.workspace_bytes = info.workspace_bytes;
    return report;
  };
  Report report = run_once(impl_->options.workspace_fill);
  if (report.passed && impl_->options.bitwise) {
    const std::vector<Bytes> first = copy_outputs(impl_->buffers);
    Report second = run_once(static_cast<std::uint8_t>(impl_->options.workspace_fill ^ 0x5A));
    if (!second.passed) {
      return second;
    }
    compare_bits(impl_->buffers, first, &report);
  }
  return report;
}

void check_each(const Case& c, std::span<const PlanOptions> plans, const CheckOptions& options,
                const Runner& runner, const std::function<bool(const Report&)>& each) {
  const auto fail = [&](const std::string& why) {
    Report report;
    report.line = to_string(c);
    report.failure = why;
    each(report);
  };
  try {
    Case completed = c;
    if (const Status status = complete(&completed); !status.ok()) {
      fail(status.message());
      return;
    }
    Judge judge(completed, options);
    for (const PlanOptions& plan : plans) {
      if (!each(judge.check(runner, plan))) {
        return;
      }
    }
  } catch (const std::exception& error) {
    fail(fmt::format("the check itself failed: {}", error.what()));
  }
}

Report check(const Case& c, const PlanOptions& plan_options, const CheckOptions& options,
             const Runner& runner) {
  Report result;
  check_each(c, {&plan_options, 1}, options, runner, [&](const Report& report) {
    result = report;
    return true;
  });
  return result;
}

Report compare_with_reference(const Problem& problem, const Tensors& tensors, const CheckOptions& options) {
  Report report;
  report.line = attn::to_string(problem);
  try {
    const ExpectedRows expected = expect_rows(problem, tensors, choose_rows(problem, tensors, options, 1));
    compare_rows(problem, tensors, expected, &report);
    report.passed = report.failure.empty();
  } catch (const std::exception& error) {
    report.failure = fmt::format("the check itself failed: {}", error.what());
  }
  return report;
}

}  // namespace attn::verify
