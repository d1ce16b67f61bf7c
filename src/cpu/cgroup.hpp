// The CPU quota of the container that this process runs in, from the cgroup file systems (v1 and v2).
// Tested in tests/unit/cpu_threads_test.cpp on sample trees.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace attn::cpu {

// CPUs that "cpu.max" of cgroup v2 grants: "200000 100000" is 2; "max …" and anything malformed is no limit.
std::optional<double> parse_cpu_max(std::string_view text);
// The same from cpu.cfs_quota_us and cpu.cfs_period_us of cgroup v1; a quota of −1 is no limit.
std::optional<double> parse_cfs_quota(std::string_view quota, std::string_view period);

// The tightest quota on the way from the process's own group to the root. root: where the cgroup file
// systems are mounted; proc_cgroup: the contents of /proc/self/cgroup.
std::optional<double> cpu_quota(const std::string& root, std::string_view proc_cgroup);
// … of this process.
std::optional<double> cpu_quota();

}  // namespace attn::cpu
