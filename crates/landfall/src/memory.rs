//! How much memory this process may use: as configured, else three quarters of what the machine or its cgroup has.

use landfall_types::ByteSize;

use crate::config::ProcessConfig;

/// Where nothing can be found out: small enough for any machine that runs this at all.
const UNKNOWN_MACHINE: ByteSize = ByteSize::gib(2);

/// `process.memory.limit`.
pub(crate) fn limit(config: &ProcessConfig) -> ByteSize {
    config.memory_limit.unwrap_or_else(|| ByteSize(available().get() / 4 * 3))
}

/// What the cgroup or the machine has, the smaller of both.
fn available() -> ByteSize {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text));
    let cgroup = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    match (machine, cgroup) {
        (Some(machine), Some(cgroup)) => ByteSize(machine.min(cgroup)),
        (Some(bytes), None) | (None, Some(bytes)) => ByteSize(bytes),
        (None, None) => UNKNOWN_MACHINE,
    }
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// This process's resident memory, and the most it has been.
pub(crate) fn resident() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024)
    };
    (field("VmRSS:"), field("VmHWM:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a unit read wrongly, or a limit that ignores what is configured.
    #[test]
    fn the_limit_is_as_configured_or_three_quarters_of_the_machine() {
        assert_eq!(total_of("MemTotal:       24602500 kB\nMemFree: 1 kB\n"), Some(24_602_500 * 1024));
        let configured = ProcessConfig { memory_limit: Some(ByteSize::gib(1)), ..ProcessConfig::default() };
        assert_eq!(limit(&configured), ByteSize::gib(1));
        let machine = available().get();
        assert!(machine > 0 && limit(&ProcessConfig::default()).get() <= machine / 4 * 3);
    }
}
